"""Pangu's hierarchical exchange: all-gather between nodes, all-to-all inside."""
