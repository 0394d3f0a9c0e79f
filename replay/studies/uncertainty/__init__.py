"""Uncertainty of a comparison: replays on machines, with costs of calls, errors of the model and routing, drawn."""
