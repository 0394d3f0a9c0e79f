"""COMET."""
