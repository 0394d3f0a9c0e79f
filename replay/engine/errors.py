"""Reasons for which a graph or its schedule is refused."""

from __future__ import annotations

from tracegen.shared.errors import UserError as UserError


class GraphError(UserError):
    """A task graph that must not be run: a cycle, a dangling id, a negative duration."""


class EngineError(UserError):
    """A run that cannot finish: tasks wait for credits that nobody will give back."""
