"""Schemes of tensor parallelism: a file or a folder each."""
