"""Results of each kind, made once."""

from __future__ import annotations

from typing import Any

import pytest

import replay
from replay.experiments.layer.result import Comparison, Result


@pytest.fixture(scope="package")
def compared(synthetic: Any) -> Comparison:
    """Two layers, isolated, under a bound, software and a proposal."""
    return replay.compare(synthetic(), ["ideal", "deepep", "dysharp"], barrier=True)


@pytest.fixture(scope="package")
def chained(synthetic: Any) -> Result:
    """Two layers in a chain."""
    return replay.run(synthetic(), scheme="deepep", compare_barrier=True)


@pytest.fixture(scope="package")
def across(synthetic: Any) -> Comparison:
    """One layer on two nodes."""
    return replay.compare(synthetic(ranks=16), ["deepep", "nccl-alltoall"], system="dgx-h100-x2", layer=0)
