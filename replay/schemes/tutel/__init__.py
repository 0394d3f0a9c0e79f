"""Tutel."""
