"""Predicted against measured: every benchmark's own setting through the code of a replay."""
