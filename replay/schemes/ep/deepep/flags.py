"""Rows with flags behind them: what DeepEP's low-latency kernels store, and when it is seen.

A flag says that all rows of one group of messages are there. Within a domain its source waits until
the rows have been acknowledged (a release). Through network cards rows and flag follow one another
in one queue, so that the flag leaves behind the rows at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.rdma import Writes

if TYPE_CHECKING:
    from hwmodel.link import Scattered
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.kinds import Kind, PhaseKinds
    from replay.model.machine.machine import Machine

FLAG_BYTES = 4


class FlaggedRows(NamedTuple):
    """Messages of one kernel.

    Attributes
    ----------
    src, dst, rows, after
        (message,): ranks, number of rows, and the task that each message waits for.
    group
        (message,): the group that it is flagged with.
    """

    src: Ranks
    dst: Ranks
    rows: Counts
    after: Tasks
    group: Ints


class KernelFlags(NamedTuple):
    """Messages and flags that a kernel has sent.

    Attributes
    ----------
    groups
        (group,) tasks when the source may flag each group.
    from_cards
        (rank,) tasks when all rows that come through network cards are there.
    """

    groups: Ints
    from_cards: Ints


def store_rows(
    machine: Machine,
    kinds: PhaseKinds,
    messages: FlaggedRows,
    row_bytes: tuple[int, int],
    groups: tuple[Ints, Ints],
    begun: Tasks,
    scattered: Scattered,
) -> KernelFlags:
    """Store rows to whatever peer is next, or leave them in the sender's own memory.

    Parameters
    ----------
    row_bytes
        Payload of a row, and what travels beside it.
    groups
        Two (group,): source and destination of each group, those without messages too.
    begun
        (rank,): what a rank does before it flags anything.
    """
    src, dst, rows, after, group = messages
    told = machine.join(after, group, groups[0], begun[groups[0]])
    remote = src != dst
    src, dst, group = src[remote], dst[remote], group[remote]
    arrived = machine.transfers.store(
        kinds,
        src,
        dst,
        row_bytes[0],
        after[remote],
        fan_out=machine.transfers.fan_out(src, dst, scattered),
        rows=rows[remote],
        meta_bytes=row_bytes[1],
        writes=Writes(each=rows[remote]),
    ).arrived
    by_card = np.zeros(len(src), np.bool_)
    for path in machine.path(src, dst):
        if path.is_nvlink:
            machine.order(path.of(arrived), told[path.of(group)])
        else:
            by_card[path.messages] = True
    acknowledged, costs = np.unique(group[~by_card]), machine.costs
    gpus = min(machine.num_ranks, machine.domains.size)
    told[acknowledged] = machine.sync.fence(
        kinds,
        told[acknowledged],
        groups[0][acknowledged],
        stored="each",
        late=costs.release(gpus),
    )
    return KernelFlags(told, machine.gather(arrived[by_card], dst[by_card], begun))


def store_flags(
    machine: Machine,
    kinds: PhaseKinds,
    ways: tuple[Kind, Kind],
    src: Ranks,
    dst: Ranks,
    after: Tasks,
) -> Tasks:
    """Store a flag each, and see it at the other end: (flag,) tasks.

    Parameters
    ----------
    ways
        What the flags are on a way out of a GPU, and on a way in.
    src, dst, after
        (flag,): ranks, and the task that each flag waits for.
    """
    costs, seen, remote = machine.costs, after.copy(), src != dst
    seen[~remote] = machine.delay(kinds.sync, costs.visible() + costs.poll(), after[~remote], dst[~remote])
    seen[remote] = machine.sync.flag(src[remote], dst[remote], FLAG_BYTES, after[remote], stored="nothing", kinds=ways)
    return seen
