"""What kernels without a switch are made of: loads from all peers, and stores to all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.collectives import grids
from replay.collectives.grids import Work

if TYPE_CHECKING:
    from replay.collectives.grids import Grid, Items, Walked
    from replay.machine.kinds import PhaseKinds
    from replay.machine.machine import Ints, Machine
    from replay.machine.times import Time
    from replay.machine.transfers import FanOut


class _Messages(NamedTuple):
    """(message,): its item, its own rank, the peer; and bytes that are payload, and that are not."""

    item: Ints
    rank: Ints
    peer: Ints
    payload: Ints
    other: Ints


def all_pairs(machine: Machine) -> FanOut:
    """Every rank exchanges with every other one."""
    rank, peer = np.nonzero(~np.eye(machine.num_ranks, dtype=bool))
    return machine.transfers.fan_out(rank, peer)


def _to_peers(machine: Machine, items: Items, payload: bool) -> _Messages:
    """One message for each item and peer, the peer behind the own rank first."""
    others = machine.num_ranks - 1
    item = np.repeat(np.arange(len(items.rank)), others)
    rank = items.rank[item]
    peer = (rank + np.tile(np.arange(1, others + 1), len(items.rank))) % machine.num_ranks
    nbytes = items.nbytes[item]
    return _Messages(item, rank, peer, nbytes * payload, nbytes * (not payload))


def add_up(
    machine: Machine, kinds: PhaseKinds, grid: Grid, nbytes: int, met: Ints, *, payload: bool
) -> Walked:
    """Load so many bytes of all peers' buffers and add them up."""

    def busy(of_block: int) -> Time:
        return machine.costs.sm_add(machine.num_ranks * of_block, of_block)

    return _loads(machine, kinds, grid, nbytes, met, busy, payload=payload)


def read_all(
    machine: Machine, kinds: PhaseKinds, grid: Grid, nbytes: int, met: Ints, *, payload: bool
) -> Walked:
    """Load so many bytes of each peer's buffer."""

    def busy(of_block: int) -> Time:
        return machine.costs.sm_load(machine.num_ranks * of_block)

    return _loads(machine, kinds, grid, nbytes, met, busy, payload=payload)


def _loads(
    machine: Machine,
    kinds: PhaseKinds,
    grid: Grid,
    nbytes: int,
    met: Ints,
    busy: Callable[[int], Time],
    *,
    payload: bool,
) -> Walked:
    read = partial(load, machine, kinds, fan_out=all_pairs(machine), payload=payload)
    return grids.walk(machine, kinds, grid, nbytes, met, Work(read, busy, kinds.receive))


def load(
    machine: Machine,
    kinds: PhaseKinds,
    items: Items,
    fan_out: FanOut,
    *,
    payload: bool,
    in_turn: bool = False,
) -> Ints:
    """Load the items' bytes from all peers: (item,) marks when all are in the SMs.

    Parameters
    ----------
    in_turn
        Whether a thread waits for one peer's answer before it asks the next.
    """
    found = _to_peers(machine, items, payload)
    if not in_turn:
        arrived = machine.transfers.load(
            kinds, found.rank, found.peer, found.payload, items.after[found.item], fan_out,
            meta_bytes=found.other, requests_first=True,
        ).arrived  # fmt: skip
        return _each(machine, items, found.item, arrived)
    at, others = items.after, machine.num_ranks - 1
    for turn in range(others):
        now = _Messages(*(column[turn::others] for column in found))
        at = machine.transfers.load(
            kinds, now.rank, now.peer, now.payload, at, fan_out,
            meta_bytes=now.other, requests_first=True,
        ).arrived  # fmt: skip
    return at


def store(
    machine: Machine,
    kinds: PhaseKinds,
    items: Items,
    after: Ints,
    fan_out: FanOut,
    *,
    payload: bool,
) -> Ints:
    """Store the items' bytes into all peers' memory: (item,) marks when all are visible there."""
    found = _to_peers(machine, items, payload)
    arrived = machine.transfers.store(
        kinds, found.rank, found.peer, found.payload, after[found.item], fan_out,
        meta_bytes=found.other,
    ).arrived  # fmt: skip
    return _each(machine, items, found.item, arrived)


def _each(machine: Machine, items: Items, item: Ints, tasks: Ints) -> Ints:
    """One mark for each item: it waits for all `tasks` (message,) of the item."""
    marks = machine.mark(items.rank, items.after)
    machine.graph.edges(tasks, marks[item])
    return marks
