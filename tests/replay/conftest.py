"""Makes the oracles importable by name, and loads each modelled system once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import hwmodel

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))


@cache
def _system(num_ranks: int) -> hwmodel.System:
    return hwmodel.load("dgx-h100" if num_ranks <= 8 else "gh200-nvl32")


@pytest.fixture(scope="session")
def system_for() -> Callable[[int], hwmodel.System]:
    """A system with at least so many GPUs that supports every scheme."""
    return _system
