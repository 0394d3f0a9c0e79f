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
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.experts import separate_kernels
from replay.machine.kinds import COMBINE, DISPATCH, Kind, PhaseKinds
from replay.schemes.base import Scheme
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork


@dataclass(frozen=True)
class PlainOptions(Options):
    """Options of the two kernels that store rows."""

    num_sms: int = option(
        16, least=1, help="SMs that store rows, in either direction.", source="chosen"
    )


class Plain(Scheme):
    """Direct stores, experts as separate kernels, direct stores back."""

    name = "plain"
    summary = "direct stores of (token, expert) rows, no overlap; the one to copy"
    source = "definition"
    traffic = "pair"
    options: PlainOptions = PlainOptions()

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add dispatch, barrier, experts, combine, barrier and sums."""
        owner, expert_rank = work.pair_source, work.pair_rank
        begun = machine.kernel(start)
        stored, arrived = self._store(
            machine, DISPATCH, owner, expert_rank, work.dispatch_row_bytes, begun
        )
        machine.notes.follow("sent", work.pair_token, stored)
        dispatched = machine.sync.barrier(DISPATCH, machine.gather(arrived, expert_rank, begun))

        every_sm = machine.sms.pool("sm", machine.sms.count)
        begun = machine.kernel(separate_kernels(machine, work, every_sm, dispatched))

        _, arrived = self._store(
            machine, COMBINE, expert_rank, owner, work.combine_row_bytes, begun
        )
        combined = machine.sync.barrier(COMBINE, machine.gather(arrived, owner, begun))
        # Reads the results of every token, writes their sum.
        rows = work.matrix("pairs").sum(axis=1) + np.diff(work.tokens_of_rank)
        ends = machine.memory_kernel(Kind.UNPERMUTE, rows * work.combine_row_bytes, combined)
        token = np.arange(work.num_tokens)
        machine.notes.follow("combined", token, ends[work.source_rank])
        return ends

    def _store(
        self, machine: Machine, kinds: PhaseKinds, src: Ints, dst: Ints, row_bytes: int, begun: Ints
    ) -> tuple[Ints, Ints]:
        """Store a row per pair: (pair,) tasks that store it, and those after which it is there."""
        num_sms = self.options.num_sms
        split = machine.sms.split(f"scheme {self.name!r}", {"num_sms": num_sms})
        pool = split.pool("plain-store", num_sms)
        time = machine.costs.sm_store(np.full(len(src), row_bytes))
        stored = machine.serve(pool[src], time, kind=kinds.send, rank=src, after=begun[src])
        arrived, remote = stored.copy(), src != dst  # rows of the own GPU stay in its memory
        src, dst, store = src[remote], dst[remote], machine.transfers.store
        fan_out = machine.transfers.fan_out(src, dst)
        arrived[remote] = store(kinds, src, dst, row_bytes, stored[remote], fan_out).arrived
        return stored, arrived
