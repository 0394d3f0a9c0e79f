"""Skew of accesses, its distribution, and bytes by direction, against slow counts."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay.engine import GraphBuilder, schedule
from replay.experiments.dense.measure import quantiles, skew_of, spread_ps
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.schemes.contract.case import system_for

ACCESSES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 10**9)), max_size=40)


@given(accesses=ACCESSES)
def test_spread_is_from_first_to_last_of_addresses_that_several_access(
    accesses: list[tuple[int, int]],
) -> None:
    by_address: defaultdict[int, list[int]] = defaultdict(list)
    for address, time in accesses:
        by_address[address].append(time)
    expected = [max(times) - min(times) for times in by_address.values() if len(times) > 1]
    columns = np.array(accesses, np.int64).reshape(-1, 2)
    assert sorted(spread_ps(columns[:, 0], columns[:, 1]).tolist()) == sorted(expected)


def test_quantiles_are_values_that_occurred() -> None:
    found = quantiles(np.arange(1, 101) * 1_000_000)
    assert found.count == 100
    assert (found.mean_us, found.max_us) == (50.5, 100.0)
    # At least the share of the values is as small: of 100 values the 51st, as the index rounds up.
    assert (found.p50_us, found.p90_us, found.p99_us) == (51.0, 91.0, 100.0)


def test_one_value_is_all_quantiles() -> None:
    found = quantiles(np.array([2_500_000]))
    assert (found.p50_us, found.p99_us, found.max_us, found.mean_us) == (2.5, 2.5, 2.5, 2.5)


def test_skew_is_read_from_the_starts_of_tasks() -> None:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system_for(4), graph, 4)
    begin = graph.add(
        4,
        resource=-1,
        duration_ps=np.array([0, 1, 4, 9]) * 1_000_000,
        kind=Kind.BETWEEN,
        rank=machine.ranks,
    )
    access = machine.mark(machine.ranks, begin)
    machine.notes.access("loads", np.array([5, 5, 7, 8]), access)
    machine.notes.access("sums", np.array([1]), access[:1])
    machine.notes.access("loads", np.array([7]), access[:1])
    found = skew_of(schedule(graph.build()), machine).between_gpus
    assert list(found) == ["loads"]  # sums are of one GPU alone
    assert found["loads"].count == 2  # addresses 5 and 7, not 8
    assert (found["loads"].p50_us, found["loads"].max_us) == (4.0, 4.0)
    assert found["loads"].mean_us == (1 + 4) / 2
