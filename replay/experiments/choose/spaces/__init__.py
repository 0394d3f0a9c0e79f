"""Spaces that come with the package."""
