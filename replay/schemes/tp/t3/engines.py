"""Copies that completed stores trigger, by engines beside the SMs, and sums made in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Counts, Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time
    from replay.schemes.tp.t3.options import T3Options


class Engines:
    """Trackers, copy engines and memories of all GPUs.

    A tracker counts what is stored into a piece. When the piece is complete, the engine that has its
    command starts and reads it from memory. Commands do not wait for one another: each pays for its
    start, and they share the link.

    Attributes
    ----------
    trigger
        Time from the last store into a piece until its command goes, or whoever waits knows.
    """

    def __init__(self, machine: Machine, options: T3Options) -> None:
        self.machine = machine
        self.trigger = machine.costs.ns(options.trigger_ns)
        self._start: Time = self.trigger
        if options.engine_start:
            self._start += machine.costs.copy_engine_start()

    def start_commands(self, kinds: PhaseKinds, rank: Ranks, ready: Tasks) -> Ints:
        """Let commands of GPUs `rank` (command,) go when their pieces are `ready`: (command,)."""
        return self.machine.delay(kinds.sync, self._start, ready, rank)

    def read(self, kinds: PhaseKinds, rank: Ranks, nbytes: Bytes, ready: Tasks) -> Tasks:
        """Start commands, and read their pieces from memory: (command,) tasks."""
        started = self.start_commands(kinds, rank, ready)
        return self.machine.stream(kinds.memory, nbytes, rank, started)

    def copy(self, kinds: PhaseKinds, src: Ranks, dst: Ranks, rows: Counts, row_bytes: Bytes, ready: Tasks) -> Tasks:
        """Copy pieces (command,) to the memory of another GPU: (command,) tasks, written there."""
        machine, nbytes = self.machine, rows * row_bytes
        sent = machine.transfers.store(
            kinds,
            src,
            dst,
            row_bytes,
            self.read(kinds, src, nbytes, ready),
            rows=rows,
            engine="copy_engine",
        )
        return machine.stream(kinds.memory, nbytes, dst, sent.arrived)

    def wait(self, rank: Ranks, one: Ints, other: Ints) -> Ints:
        """Wait for two things: (piece,) marks on GPUs `rank` (piece,)."""
        both = self.machine.mark(rank, one)
        self.machine.order(other, both)
        return both

    def tell(self, kinds: PhaseKinds, rank: Ranks, ready: Tasks) -> Tasks:
        """Let those who wait on GPUs `rank` (piece,) know of complete pieces: (piece,) tasks."""
        return self.machine.delay(kinds.sync, self.trigger, ready, rank)
