"""Two results or comparisons: what entered otherwise, and what came out otherwise, by cause."""
