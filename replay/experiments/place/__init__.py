"""Placements of experts, fitted to a trace or to loads."""
