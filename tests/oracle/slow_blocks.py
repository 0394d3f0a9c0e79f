"""Blocks on the SMs of one GPU, instant by instant: `replay.model.machine.block_scheduler`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Block:
    """A block of some steps, one after the other.

    Attributes
    ----------
    offered
        When the block scheduler gets it.
    data, duration
        For each step, when what it multiplies is there, and how long it takes; at least 1.
    sm
        Where it is, if blocks stay on an SM.
    claimed, started
        When it came onto an SM, and when each of its steps started.
    """

    offered: int
    data: list[int]
    duration: list[int]
    sm: int = -1
    claimed: int = -1
    started: list[int] = field(default_factory=list)

    def ready(self, number: int) -> int:
        """When its next step became ready; -1 if that is not before the end of the run."""
        before = self.claimed
        if number:
            before = self.started[number - 1] + self.duration[number - 1]
        return max(before, self.data[number])

    @property
    def end(self) -> int:
        """When its last step was over; only if it has started."""
        return self.started[-1] + self.duration[-1]

    def is_over(self, now: int) -> bool:
        """Whether it has left its SM."""
        return len(self.started) == len(self.data) and self.end <= now


def run(blocks: list[Block], num_sms: int, resident: int, *, bound: bool = False) -> None:
    """Set `claimed` and `started` of all blocks.

    At most `resident` blocks for each SM are on SMs at a time, in the order in which they were
    offered. A step of one takes an SM; which step is next is decided by when it became ready, then
    by its number in its block, then by the block's number.

    Parameters
    ----------
    bound
        Whether a block stays on one SM, that with the fewest blocks when it came, the first of
        these; what it does takes this one. Otherwise it takes any.
    """
    now = 0
    while not all(block.is_over(now) for block in blocks):
        while True:
            on = [b for b in blocks if b.claimed >= 0 and not b.is_over(now)]
            busy = [b for b in on if b.started and b.started[-1] + b.duration[len(b.started) - 1] > now]
            waiting = [b for b in blocks if b.claimed < 0 and b.offered <= now]
            claims = waiting and len(on) < num_sms * resident
            steps = sorted(
                (b.ready(len(b.started)), len(b.started), number)
                for number, b in enumerate(blocks)
                if b in on and b not in busy and len(b.started) < len(b.data)
                if b.ready(len(b.started)) <= now
            )
            changed = False
            for _, _, number in steps:
                free = len(busy) < num_sms
                if bound:
                    free = all(b.sm != blocks[number].sm for b in busy)
                if free:
                    blocks[number].started.append(now)
                    busy.append(blocks[number])
                    changed = True
            if claims:
                block = min(waiting, key=lambda b: b.offered)
                load = [sum(b.sm == sm for b in on) for sm in range(num_sms)]
                block.claimed, block.sm = now, load.index(min(load))
                changed = True
            if not changed:
                break
        now += 1
