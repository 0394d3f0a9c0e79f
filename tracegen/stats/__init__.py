"""Statistics of routing, and pictures of them."""
