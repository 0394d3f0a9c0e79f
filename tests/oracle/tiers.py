"""Which cases of a test run every time, and which in the extended tier only.

Default tier: what a change is checked with while it is made, in five minutes on two slow cores. A
test function of it takes half a second of CPU at most, all its cases together, or is the one that
shows its fact: that a sweep goes on after an interrupt, that another process gives the same bytes
(`KEPT` of `cpu_times.py`, which writes the list of longer ones, `tests/lengthy.txt`, out of a run of
both tiers). Cases that differ in nothing but a name are one test with a
loop (`loops.every`). Schemes are examined on a few small layers each, chosen by a rule that
`test_scheme_contract.py` states, and two of the golden cases run, with the defaults of options.

Extended tier (marker ``extended``): all that is left out above, comparisons with tables of
measurements, statistics of many draws, programs that are killed, clusters, every page of the
documentation. ``pytest -m "not bench and not release"`` runs both tiers: what CI has a quarter of an
hour for. Where many share their code (schemes on layers, options on machines), each takes a part of the
cases by turns, not all of them, and of a function that takes longer than eight seconds of CPU the cheapest cases
(`CI_S` of `cpu_times.py`, which writes the list of the others, `tests/costly.txt`).

Before a release (marker ``release``; `scripts/check.sh full` runs it too): all cases, all rows of the long tables of
measurements, with the errors that VALIDATION.md states, and what looks for faults that nobody has thought of
by many inputs, draws or families, where CI has fewer. Whoever changes a mechanism runs
``pytest -m release tests/replay/validate``, and who changes what is read the release tests of its folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

#: One scheme of each kind: collectives of a library, kernels that push rows, tiles that wait for
#: rows, a kernel that schedules itself, switches that multicast and reduce.
KINDS = ("nccl-alltoall", "deepep", "comet", "flashdmoe", "dysharp")


def mostly_extended(
    every: Iterable[str], kept: Collection[str] = KINDS, *, share: int = 1, turn: int = 0
) -> list[object]:
    """Parameters of a test that shows the same of many: those in `kept` run every time.

    Of the others the extended tier takes one in `share`, from `turn` on: tests that look at the same
    schemes in several ways take them by turns.
    """
    names = list(every)
    assert not set(kept).isdisjoint(names), "nothing is left in the default tier"
    others = [name for name in names if name not in kept][turn::share]
    marked = {name: pytest.param(name, marks=pytest.mark.extended) for name in others}
    return [marked.get(name, name) for name in names if name in kept or name in marked]
