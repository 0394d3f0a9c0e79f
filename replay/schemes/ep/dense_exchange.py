"""Dense exchange: rows of all tokens go to all GPUs, and sums of all tokens come back.

Kernels around the two collectives are those of Megatron-Core's inference dispatchers
(``token_dispatcher_inference.py``, ``inference/moe/permute.py``): each rank counts the rows of its
experts among all ids, adds the counts up and copies the rows. Behind the experts a buffer of all
tokens is set to zero, and the results are added into it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_before_dispatch, cast_received
from replay.model.compute.experts import separate_kernels
from replay.model.compute.shared_experts import shared_kernels
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep import memory
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.staged_schemes import StagedScheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages

ID_BYTES = 8  # of each of a token's experts, as torch.topk gives them
WEIGHT_BYTES = 4  # FP32
COUNT_BYTES = 4  # of each expert
GATHERS = ("all-gather of rows", "all-gather of expert ids", "all-gather of gate weights")
ALL_GATHER = "all-gather of rows, ids and weights"
COUNT = Operation("count of rows", moves="expert ids of all tokens")
OFFSETS = Operation("offsets of experts", moves="a count for each own expert, twice")
PERMUTE = Operation("permute", moves="ids and weights of all tokens, own copies, own rows")
ZERO = Operation("zeroes", moves="a row for each of all tokens")
ADD = Operation("scatter-add", moves="own rows, own sums twice")
SUM = "reduce-scatter"


class DenseExchange(StagedScheme):
    """All-gather, experts, reduce-scatter; dense buffers."""

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Two symmetric buffers of all tokens, which stay, and its own experts' rows."""
        received, slots = memory.received_rows(work), work.whole_choices
        gathered = work.dispatch_row_bytes + slots * (ID_BYTES + WEIGHT_BYTES)
        sums = work.num_tokens * work.combine_row_bytes
        return (
            *memory.cast_tokens(work),
            Buffer("gathered tokens", memory.on_each(work, work.num_tokens * gathered), stays=True),
            Buffer("rows by expert", received * work.dispatch_row_bytes),
            *memory.cast_received(work, received),
            Buffer("sums of all tokens", memory.on_each(work, sums), stays=True),
        )

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add all-gathers, permute, experts, zeroing, scatter-add, reduce-scatter."""
        rows = work.matrix("pairs").sum(axis=0)
        copies = work.matrix("copies").sum(axis=0)
        b_d, b_c = work.dispatch_row_bytes, work.combine_row_bytes
        slots = work.num_tokens * work.whole_choices
        every = np.ones(machine.num_ranks, np.int64)

        cast = yield cast_before_dispatch(machine, work, start)
        gathered = yield self._all_gather(work, machine, cast)
        # Every rank looks through all tokens' expert ids, twice, and copies its experts' rows.
        if not work.is_backward:
            counted = machine.memory_kernel(Kind.LAYOUT, slots * ID_BYTES * every, gathered, COUNT)
            local = np.bincount(work.placement.expert_rank, minlength=machine.num_ranks)
            nbytes = 2 * COUNT_BYTES * local
            gathered = machine.memory_kernel(Kind.LAYOUT, nbytes, counted, OFFSETS)
        looked = slots * (ID_BYTES + WEIGHT_BYTES)
        moved = MemoryTraffic(looked + copies * b_d, rows * b_d, rows)
        permuted = machine.memory_kernel(Kind.PERMUTE, moved, gathered, PERMUTE)
        # Of the tokens that were gathered, only those copied out are wanted.
        permuted = cast_received(machine, work, rows, permuted)
        sms = machine.sms.for_kernels()
        permuted = shared_kernels(machine, work, self._sms(machine), start, permuted)
        done = separate_kernels(machine, work, sms, permuted)
        # The dense buffer: zeros for all tokens, to which its own experts' rows are added.
        zeroes = MemoryTraffic(0 * every, work.num_tokens * b_c * every)
        zeroed = machine.memory_kernel(Kind.UNPERMUTE, zeroes, done, ZERO)
        added = MemoryTraffic((rows + copies) * b_c, copies * b_c)
        summed = yield machine.memory_kernel(Kind.UNPERMUTE, added, zeroed, ADD)
        return (yield self._reduce_scatter(work, machine, summed))

    @abstractmethod
    def _sms(self, machine: Machine) -> Split:
        """SMs of the collectives, and those that they leave."""

    @abstractmethod
    def _all_gather(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Gather rows, ids and weights: (rank,) tasks. A rank alone has them."""

    @abstractmethod
    def _reduce_scatter(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Sum all ranks' buffers: (rank,) tasks. A rank alone has its sums already."""
