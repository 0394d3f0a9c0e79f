"""Tiles as steps that follow one another: equal shares of the inner dimension.

A tile has several steps for one of two reasons. Its rows come in parts, and it begins to multiply
when the first is there: each step waits for its own part, and the SM may take another tile
meanwhile. Or its operands are followed through the L2 cache slice by slice
(`replay.model.machine.l2`): then nothing comes between its steps, and the SM is the tile's from the
first to the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.arrays import Ints, Picoseconds, Ranks, Tasks
    from replay.model.machine.kinds import Kind
    from replay.model.machine.machine import IntsLike, Machine

KEEPS_ITS_SM = -128
"""Priority of a step whose tile has an SM: before whatever else waits for one."""


def add_steps(
    machine: Machine,
    duration_ps: Picoseconds,
    ending_ps: IntsLike,
    after: Sequence[Tasks],
    *,
    resource: Ints,
    late_ps: IntsLike,
    priority: IntsLike,
    kind: Kind,
    rank: Ranks,
    tag: IntsLike,
) -> list[Ints]:
    """Add the steps of tiles: (step,) tasks (tile,) each.

    Parameters
    ----------
    duration_ps
        (tile,): time on the SM, all steps together.
    ending_ps
        (tile,): part of it that is left when the last slice has been multiplied.
    after
        Tasks (tile,) that each step waits for. With one entry tiles wait once and then have as many
        steps as the L2 cache has slices.
    resource, priority, kind, rank, tag
        As for `GraphBuilder.add`, a number or (tile,).
    late_ps
        (tile,): from the end of the last step until it is seen to have ended.
    """
    held = len(after) == 1
    count = machine.l2.slices if held else len(after)
    share = (duration_ps - (ending_ps if count > 1 and held else 0)) // count
    chain: list[Ints] = []
    for step in range(count):
        is_end = step == count - 1
        tasks = machine.graph.add(
            len(duration_ps),
            resource=resource,
            duration_ps=duration_ps - share * step if is_end else share,
            latency_ps=late_ps if is_end else 0,
            priority=KEEPS_ITS_SM if held and chain else priority,
            kind=kind,
            rank=rank,
            tag=tag,
            after=chain[-1] if held and chain else after[step],
        )
        if chain and not held:
            machine.order(chain[-1], tasks)
        chain.append(tasks)
    return chain
