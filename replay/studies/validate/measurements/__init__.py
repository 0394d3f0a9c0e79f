"""Published measurements as CSV; see README.md."""
