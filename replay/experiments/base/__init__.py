"""Base of all experiments."""
