"""Rooms of experiments: names that are listed without importing any."""

ROOMS = (
    "layer",
    "trace",
    "dense",
    "collective",
    "place",
    "train",
    "serve",
    "serve.arrivals",
    "choose",
)
"""Every experiment: a folder below `replay.experiments` each, whose ``experiment.py`` has it."""
