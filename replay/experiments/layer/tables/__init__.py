"""Layers as tables: one result, or several side by side."""

from replay.experiments.layer.tables.every import tables as tables
