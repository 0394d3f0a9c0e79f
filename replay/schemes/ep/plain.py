"""The scheme to copy: un-overlapped stores of one row per (token, expert), there and back.

Modelled: what a first implementation over NVLink does. SMs of the dispatch kernel store each row
straight into the memory of its expert's GPU; a barrier over all GPUs says that all rows are there;
the experts run as kernels one after the other; SMs of the combine kernel store each result straight
back; after a second barrier a kernel adds the results of each token. Nothing is counted or packed.

Source: definition. It is found by name (``--scheme plain``) and left out of comparisons that ask
for no scheme by name, which are about published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_before_dispatch, cast_received, cast_results
from replay.model.compute.experts import separate_kernels
from replay.model.compute.shared_experts import shared_kernels
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind, PhaseKinds
from replay.model.machine.times import MemoryTraffic
from replay.model.work.precision import NUMBER_TYPES
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import LIBRARY_WEIGHTS, Buffer
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork


@dataclass(frozen=True)
class PlainOptions(Options):
    """Options of the two kernels that store rows."""

    num_sms: int = option(
        0,
        "SMs that store rows, in either direction. 0: as many as fill a port.",
        "definition: fewer let the port wait, and more wait for it",
    )


class Plain(Scheme):
    """Direct stores, experts as separate kernels, direct stores back."""

    name = "plain"
    summary = "direct stores of (token, expert) rows, no overlap; the one to copy"
    source = "definition"
    spares = MappingProxyType(
        {
            "routing kernels": "rows go to their places by definition",
            "counts": "rows go to their places by definition",
            "host waits": "buffers have room for the worst case",
            "permutes": "rows go to their places by definition",
            "copies in memory": "rows are stored to where tiles read them",
        }
    )
    traffic = "pair"
    weight_types = LIBRARY_WEIGHTS
    platform = ""
    combine_types = frozenset(NUMBER_TYPES)
    options: PlainOptions = PlainOptions()

    def communication_sms(self, system: System) -> int | None:
        """SMs that store; None where rates decide."""
        return self.options.num_sms or None

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Rows as they come to either side, and what is cast."""
        received, returned = memory.received_rows(work), memory.returned_rows(work)
        return (
            *memory.cast_tokens(work),
            Buffer("received rows", received * work.dispatch_row_bytes),
            *memory.cast_received(work, received),
            *memory.cast_results(work, received),
            Buffer("returned rows", returned * work.combine_row_bytes),
        )

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add dispatch, barrier, experts, combine, barrier and sums."""
        owner, expert_rank = work.pair_source, work.pair_rank
        cast = cast_before_dispatch(machine, work, start)
        begun = machine.kernel(cast, "dispatch")
        stored, arrived = self._store(machine, DISPATCH, owner, expert_rank, work.dispatch_row_bytes, begun)
        machine.notes.follow("sent", work.pair_token, stored)
        landed = machine.gather(arrived, expert_rank, begun)
        dispatched = machine.sync.barrier(DISPATCH, landed, stored="each")

        split = self.split(machine, num_sms=self._sms(machine))
        dispatched = shared_kernels(machine, work, split, start, dispatched)
        rows = work.matrix("pairs").sum(axis=0)
        every_sm = machine.sms.pool("sm", machine.sms.count)
        operands = cast_received(machine, work, rows, dispatched)
        done = separate_kernels(machine, work, every_sm, operands)
        begun = machine.kernel(cast_results(machine, work, rows, done), "combine")

        _, arrived = self._store(machine, COMBINE, expert_rank, owner, work.combine_row_bytes, begun)
        landed = machine.gather(arrived, owner, begun)
        combined = machine.sync.barrier(COMBINE, landed, stored="each")
        # Reads the results of every token, writes their sum.
        summed = MemoryTraffic(
            read=work.matrix("pairs").sum(axis=1) * work.combine_row_bytes,
            written=np.diff(work.tokens_of_rank) * work.result_row_bytes,
        )
        ends = machine.memory_kernel(Kind.UNPERMUTE, summed, combined, moves="every result, their sums")
        token = np.arange(work.num_tokens)
        machine.notes.follow("combined", token, ends[work.source_rank])
        return ends

    def _sms(self, machine: Machine) -> int:
        return self.options.num_sms or machine.storing_sms()

    def _store(
        self, machine: Machine, kinds: PhaseKinds, src: Ranks, dst: Ranks, row_bytes: int, begun: Tasks
    ) -> tuple[Ints, Ints]:
        """Store a row per pair: (pair,) tasks that store it, and those after which it is there."""
        num_sms = self._sms(machine)
        pool = self.split(machine, num_sms=num_sms).pool("plain-store", num_sms)
        time = machine.costs.sm_store(np.full(len(src), row_bytes))
        stored = machine.serve(pool[src], time, kind=kinds.send, rank=src, after=begun[src])
        arrived, remote = stored.copy(), src != dst  # rows of its own GPU stay in its memory
        src, dst = src[remote], dst[remote]
        arrived[remote] = machine.transfers.store(kinds, src, dst, row_bytes, stored[remote], on=pool[src]).arrived
        return stored, arrived
