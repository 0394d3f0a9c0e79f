"""Schemes of expert parallelism: a file or a folder each."""
