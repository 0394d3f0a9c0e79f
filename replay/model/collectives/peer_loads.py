"""Loads from all peers and stores to all of them, of which kernels without a switch are made."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.collectives.grids import BlockWork

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.collectives.grids import Items, Kernel
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time
    from replay.model.machine.transfers import FanOut


def add_up(kernel: Kernel, touched: int, *, turns: int = 1) -> BlockWork:
    """Load the same bytes of all peers' buffers, add them up, write the sum.

    Parameters
    ----------
    touched
        See `BlockWork`: those that ask a GPU for the same bytes find them in its cache.
    turns
        See `load`.
    """
    machine, n = kernel.machine, kernel.machine.num_ranks

    def busy(of_block: int) -> Time:
        return machine.costs.sm_add(n * of_block, of_block)

    read = partial(load, kernel, fan_out=all_pairs(machine), turns=turns)
    return BlockWork(kernel.kinds.receive, busy, touched, load=read, trips=turns)


def read_all(kernel: Kernel, *, turns: int = 1) -> BlockWork:
    """Load each peer's share and write it; `turns` as in `load`."""
    machine, n = kernel.machine, kernel.machine.num_ranks

    def busy(of_block: int) -> Time:
        return machine.costs.sm_load(n * of_block)

    read = partial(load, kernel, fan_out=all_pairs(machine), turns=turns)
    return BlockWork(kernel.kinds.receive, busy, touched=1 + n, load=read, trips=turns)


class _Messages(NamedTuple):
    """(message,): its item, its own rank, the peer; bytes that are payload, and that are not."""

    item: Ints
    rank: Ranks
    peer: Ranks
    payload: Ints
    other: Ints


def all_pairs(machine: Machine) -> FanOut:
    """Pairs of every rank with every other one."""
    rank, peer = np.nonzero(~np.eye(machine.num_ranks, dtype=bool))
    return machine.transfers.fan_out(rank, peer)


def _to_peers(kernel: Kernel, items: Items) -> _Messages:
    """One message for each item and peer, the peer behind its own rank first."""
    n = kernel.machine.num_ranks
    item = np.repeat(np.arange(len(items.rank)), n - 1)
    rank = items.rank[item]
    peer = (rank + np.tile(np.arange(1, n), len(items.rank))) % n
    nbytes = items.nbytes[item]
    return _Messages(item, rank, peer, nbytes * kernel.payload, nbytes * (not kernel.payload))


def load(kernel: Kernel, items: Items, *, fan_out: FanOut, turns: int = 1) -> Tasks:
    """Load the items' bytes from all peers: (item,) tasks when all are in the SMs.

    Parameters
    ----------
    turns
        Groups of peers that a thread asks one after the other: it waits for the answers of one
        before it asks the next. All at once by default, at most as many as peers.
    """
    found, others = _to_peers(kernel, items), kernel.machine.num_ranks - 1
    at = items.after
    for peers in np.array_split(np.arange(others), max(1, turns)):
        asked = np.flatnonzero(np.isin(np.arange(len(found.item)) % others, peers))
        now = _Messages(*(column[asked] for column in found))
        at = _each(kernel, items, now.item, _answers(kernel, now, at, fan_out), at)
    return at


def _answers(kernel: Kernel, of: _Messages, after: Tasks, fan_out: FanOut) -> Tasks:
    """Loads (message,) behind tasks (item,): (message,) tasks when the data has come."""
    return kernel.machine.transfers.load(
        kernel.kinds,
        of.rank,
        of.peer,
        of.payload,
        after[of.item],
        fan_out=fan_out,
        meta_bytes=of.other,
        requests_first=True,
    ).arrived


def store(kernel: Kernel, items: Items, after: Tasks, *, fan_out: FanOut) -> Ints:
    """Store the items' bytes into all peers' memory: (item,) marks when all are visible there."""
    found = _to_peers(kernel, items)
    arrived = kernel.machine.transfers.store(
        kernel.kinds,
        found.rank,
        found.peer,
        found.payload,
        after[found.item],
        fan_out=fan_out,
        meta_bytes=found.other,
    ).arrived
    return _each(kernel, items, found.item, arrived)


def _each(kernel: Kernel, items: Items, item: Ints, tasks: Tasks, behind: Tasks | None = None) -> Ints:
    """One mark for each item behind all `tasks` (message,) of the item, and behind a task (item,)."""
    return kernel.machine.join(tasks, item, items.rank, items.after if behind is None else behind)
