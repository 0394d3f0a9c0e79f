"""Kinds of inputs, one module for each family."""
