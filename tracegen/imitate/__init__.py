"""Synthetic traces that imitate a recorded one (IMITATION.md)."""
