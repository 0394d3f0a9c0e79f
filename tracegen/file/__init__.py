"""The trace file: its schema (FORMAT.md), and reading and writing it."""
