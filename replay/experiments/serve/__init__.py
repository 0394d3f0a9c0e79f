"""Inference: requests, batches, and what an iteration of an engine takes."""
