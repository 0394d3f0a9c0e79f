"""Thread blocks on SMs: who holds an SM, from when and until when.

A pool of SMs serves tasks whose data are there. A real block takes its SM earlier: the hardware
gives blocks to SMs in the order of the grid as SMs become free, and a block keeps its SM until it
ends, whatever it waits for in between - a flag that it polls, or room in a buffer for what it
stores. Here each GPU has as many *block slots* as SMs; a block's *claim* takes one, its last task
gives it back, and claims are served in the order in which the block scheduler would be.

What a kernel's grid order costs follows from who waits for what. Blocks of a kernel that runs from
its start are all claimed at once, in grid order, and hold their SMs while their data are under
way. Blocks that are launched when their data are there are claimed then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.model.machine.kinds import Kind

if TYPE_CHECKING:
    from replay.model.machine.machine import Ints, IntsLike, Machine


class BlockScheduler:
    """Block slots of every GPU, one per SM, and the unit that assigns them.

    Parameters
    ----------
    machine
        Receives tasks. All schedulers of a machine with the same `num_sms` share their slots, so
        that blocks of one layer keep those of the next from their SMs.
    num_sms
        SMs per GPU that take blocks.
    """

    def __init__(self, machine: Machine, num_sms: int) -> None:
        self._graph = machine.graph
        # Kernels that run side by side do not block each other, hence no plain queue.
        self._scheduler = machine.sms.units("block scheduler", 1, "voq")[:, 0]
        self._slots = machine.buffers.pools("blocks on SMs", num_sms)

    def hold(
        self,
        first: Ints,
        last: Ints,
        rank: Ints,
        after: Ints | None,
        *,
        priority: IntsLike = 0,
        resident: Ints | None = None,
    ) -> Ints:
        """Make blocks take an SM before their first task and keep it until their last has ended.

        Parameters
        ----------
        first, last
            (block,): first and last task of each block; the same for a block of a single task.
        rank
            (block,): its GPU.
        after
            (block,): task after which the block is offered to the scheduler; None where a gate
            offers it.
        priority
            Order among blocks that are offered, smaller first. Equal ones are served in the order
            of the times at which they were offered, then in their order here.
        resident
            (block,): pools of credits that limit how many blocks of a kernel are on SMs at a time.

        Returns
        -------
        (block,) claims: a block has its SM when its claim starts.
        """
        graph = self._graph
        claims = graph.add(
            len(first),
            resource=self._scheduler[rank],
            priority=priority,
            kind=Kind.LAUNCH,
            rank=rank,
            after=after,
        )
        graph.edges(claims, first)
        graph.take(claims, self._slots[rank], 1, released_by=last)
        if resident is not None:
            graph.take(claims, resident, 1, released_by=last)
        return claims
