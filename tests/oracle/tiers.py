"""Which cases of a test run every time, and which in the extended tier only."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

#: One scheme of each kind: collectives of a library, kernels that push rows, tiles that wait for
#: rows, a kernel that schedules itself, switches that multicast and reduce.
KINDS = ("nccl-alltoall", "deepep", "comet", "flashdmoe", "dysharp")


def mostly_extended(every: Iterable[str], kept: Collection[str] = KINDS) -> list[object]:
    """Parameters of a test that shows the same of many: those in `kept` run every time."""
    names = list(every)
    assert not set(kept).isdisjoint(names), "nothing is left in the default tier"
    return [
        name if name in kept else pytest.param(name, marks=pytest.mark.extended) for name in names
    ]
