"""Thread blocks on SMs: who holds an SM, from when and until when.

A pool of SMs serves tasks whose data are there. A real block takes room on an SM earlier: the
hardware gives it to blocks in the order of the grid as it becomes free, and a block keeps it until
it ends, whatever it waits for in between - a flag that it polls, or room in a buffer for what it
stores. Here each GPU has *block slots*, as many for each SM as blocks of the kernel are resident on
one (`hwmodel.System.resident_blocks`). A block's *claim* takes a slot, its last task gives it back,
and claims are served in the order in which the block scheduler would be.

A block that waits holds its slot alone. What it does takes an SM of the pool, whole, one block at a
time: of the tasks that are ready, in the order of their priorities, then of the times at which they
became ready, then as they are numbered; none is interrupted. With one resident block an SM is never
asked for by two, so that a block has one from its claim to its end. With several, others multiply
while it waits. They need not be of the same SM, which spares them some waiting.

What a kernel's grid order costs follows from who waits for what. Blocks of a kernel that runs from
its start are all claimed at once, in grid order, and hold their SMs while their data are under
way. Blocks that are launched when their data are there are claimed then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.model.machine.kinds import Kind

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.machine import IntsLike, Machine


class BlockScheduler:
    """Block slots of every GPU, and the unit that assigns them.

    Parameters
    ----------
    machine
        Receives tasks. All schedulers of a machine with the same `num_sms` and `resident_blocks`
        share their slots, so that blocks of one layer keep those of the next from their SMs.
    num_sms
        SMs per GPU that take blocks.
    resident_blocks
        Blocks that an SM has at a time.

    Attributes
    ----------
    slots
        Blocks that a GPU has at a time.
    """

    def __init__(self, machine: Machine, num_sms: int, resident_blocks: int = 1) -> None:
        self._graph = machine.graph
        # Kernels that run side by side do not block each other, hence no plain queue.
        self._scheduler = machine.sms.units("block scheduler", 1, "voq")[:, 0]
        self.slots = num_sms * resident_blocks
        self._slots = machine.buffers.pools("blocks on SMs", self.slots)

    def hold(
        self,
        first: Ints,
        last: Ints,
        rank: Ranks,
        after: Tasks | None,
        *,
        priority: IntsLike = 0,
        resident: Ints | None = None,
    ) -> Ints:
        """Make blocks take a slot before their first task and keep it until their last has ended.

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
        (block,) claims: a block has its slot when its claim starts.
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
