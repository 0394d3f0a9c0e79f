"""Shared parts of all packages: errors, files, output, display."""
