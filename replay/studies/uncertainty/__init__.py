"""Uncertainty of a comparison: replays on machines, with errors of the model and routing, drawn."""
