"""Choosing model shapes and parallel plans by simulated training steps."""
