"""Layers as one graph, scheduled."""
