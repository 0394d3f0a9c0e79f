"""What a graph or its schedule can be refused for."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what was given; the message says what is possible and where."""


class GraphError(UserError):
    """A task graph that must not be run: a cycle, a dangling id, a negative duration."""


class EngineError(UserError):
    """A run that cannot finish: tasks wait for credits that nobody will give back."""
