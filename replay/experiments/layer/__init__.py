"""Layers of a trace under one scheme of expert parallelism, or several."""
