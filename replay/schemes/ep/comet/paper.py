"""COMET as its paper describes it: two kernels, and nothing named around them.

Counts are exchanged without a host, the activation is part of kernel 1, rows come back per
(token, expert) and are added in kernel 2.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import DISPATCH, Kind
from replay.schemes.ep import memory
from replay.schemes.ep.comet.combine import rows_back
from replay.schemes.ep.comet.scheme import FIRST, PAPER, FusedKernelPair, shared_tokens
from replay.schemes.ep.facts import Buffer

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.comet.combine import Send

BLOCK_COLUMNS = 512  # of results that are sent together: assumed


class Comet(FusedKernelPair):
    """The paper's form: one row per (token, expert) comes back, and no host waits."""

    name = "comet"
    summary = "COMET's paper: tiles overlap rows inside each of two kernels"
    source = f"{PAPER} sections 3-4"
    assumes = (
        "rows are fetched by the GPU that reads them; counts are exchanged without a host; results "
        "come from memory when they are sent"
    )
    wins = "few tokens and skew: rows come nearest first while tiles run, and no host waits"
    loses = "many tokens against one persistent kernel: rows per expert, and SMs that only communicate"
    spares = MappingProxyType(
        {
            "host waits": "counts are for the kernels alone",
            "permutes": "the counts give each row its place",
            "copies in memory": "rows are read from where they lie",
            "kernels for sums": "rows go back as they are, and SMs of the owner add",
        }
    )
    traffic_of = MappingProxyType({"experts": "pair", "gpus": "copy"})
    fuses_activation = True

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """The symmetric buffer, and what the paper does not count: rows fetched and returned.

        They have to lie somewhere, too.
        """
        what = "copies" if self.options.rows_of == "gpus" else "pairs"
        fetched, back = (work.matrix(what).sum(axis=axis) for axis in (0, 1))
        return (
            *memory.cast_tokens(work),
            shared_tokens(work),
            Buffer("fetched rows", fetched * work.dispatch_row_bytes),
            *memory.cast_received(work, memory.received_rows(work)),
            Buffer("returned rows", back * work.combine_row_bytes),
        )

    def block_columns(self, hidden: int) -> int:
        """See `FusedKernelPair`: the same for every hidden size."""
        return BLOCK_COLUMNS

    def sends(self, work: LayerWork) -> Send:
        """See `FusedKernelPair`: rows, four times `message_rows` at a time."""
        once = self.options.rows_of == "gpus"
        return rows_back(work, 4 * self.options.message_rows, once=once)

    def before(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Exchange counts, and begin kernel 1 on all ranks: (rank,) tasks."""
        if not work.is_backward:
            tokens = np.diff(work.tokens_of_rank)
            counted = machine.memory_kernel(Kind.LAYOUT, tokens * work.num_experts, start)
            begun = machine.kernel(counted, "counts to all")
            start = machine.sync.exchange_counts(begun, 4 * work.num_experts)
        return machine.sync.barrier(DISPATCH, machine.kernel(start, FIRST), stored="nothing")
