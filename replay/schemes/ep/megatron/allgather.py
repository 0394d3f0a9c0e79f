"""Megatron-LM's all-gather dispatcher: all tokens to all GPUs round a ring, sums scattered back.

Routing map, probabilities and rows of all tokens are gathered, each by NCCL's ring; every GPU picks
the rows of its experts, runs them, adds the results of each token of anybody into a dense buffer,
and the buffers are summed up by a ring reduce-scatter. It carries them in the type of the
probabilities, which is that of the rows back here: BF16, or FP32 with Megatron-LM's
``--moe-router-dtype fp32`` (``--combine-type fp32``). Ranks gather equally many tokens; those that
have fewer than the most add rows of nobody, which is assumed: the code stops there.

Backward, gradients of results are gathered and those of inputs are scattered, as are those of
probabilities.

Source: Megatron-LM ``megatron/core/transformer/moe/token_dispatcher.py``
(``MoEAllGatherTokenDispatcher``); TransformerEngine ``common/triton/permutation.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.compute.list_rows import ListedPart, Software
from replay.model.compute.shared_experts import shared_kernels
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind, PhaseKinds
from replay.model.machine.times import MemoryTraffic
from replay.model.work.capacity import CarriedLayer, with_equal_tokens
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.megatron.experts import ExpertOptions, refusal, run_experts, run_weight_gradients
from replay.schemes.ep.nccl import FLAGS_IN_DATA
from replay.schemes.ep.staged_schemes import StagedScheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.collectives.algorithm import Collective
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages

MAP, PROBS, ROWS = "all-gather of the map", "all-gather of probabilities", "all-gather of rows"
SUMS, PROB_GRADIENTS = "reduce-scatter of sums", "reduce-scatter of gradients of probabilities"
LISTED = Software("megatron", (("dispatcher", "allgather"),))
OWN, SELECTED = "own experts", "own gate weights"
TO_PROBS, TO_TOKENS = "sums in the probabilities' type", "sums as tokens are"
COUNTS_WAIT, SIZE_WAIT = "counts to the host", "size of the selection to the host"


class MegatronAllGather(StagedScheme):
    """Ring all-gathers, experts of its own rows, ring reduce-scatter."""

    name = "megatron-allgather"
    summary = "Megatron-LM's all-gather dispatcher: rings there and back"
    source = "Megatron-LM token_dispatcher.py, MoEAllGatherTokenDispatcher; NCCL rings"
    assumes = (
        "ranks with fewer tokens add rows of nobody; probabilities have the type of the rows back; "
        "gradients travel in the types of the layer; rings hold no SMs that others would have"
    )
    wins = (
        "skew, and tokens with about as many experts as there are GPUs: every port carries all rows whatever the "
        "routing"
    )
    loses = "few choices, and few tokens, by a second wait and small kernels; FP32 probabilities"
    unacknowledged = FLAGS_IN_DATA
    traffic = "ring"
    network = "rings"
    full_nodes = "its rings go through all of each"
    phases_separated = False
    dispatch_types = frozenset({"bf16", "fp32"})
    interleaves = frozenset()
    options: ExpertOptions = ExpertOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say why it, or its experts, cannot run a layer."""
        return super().refuses(work) or refusal(work, self.options)

    def carries(self, work: LayerWork) -> CarriedLayer:
        """Layer with equally many tokens on every rank."""
        return with_equal_tokens(work)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """All tokens, twice; maps and probabilities of all; the rows of its own experts."""
        work = self.carries(work).work
        n, tokens = work.num_ranks, work.num_tokens
        got = work.matrix("pairs").sum(axis=0)
        pairs = tokens * work.whole_experts
        each = (
            ("gathered rows", tokens * work.dispatch_row_bytes),
            ("gathered map and probabilities", pairs * (1 + work.precision.combine_value_bytes)),
            ("sums for all tokens", tokens * work.combine_row_bytes),
        )
        return (
            *(Buffer(name, np.full(n, nbytes)) for name, nbytes in each),
            Buffer("permuted rows", got * work.dispatch_row_bytes),
        )

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add gathers, permute, experts, unpermute, reduce-scatter."""
        layer, owner, work = work, work.source_rank, self.carries(work).work
        n, tokens = work.num_ranks, work.num_tokens
        got, every = work.matrix("pairs").sum(axis=0), np.full(n, tokens)
        b_d, b_c, own = work.dispatch_row_bytes, work.combine_row_bytes, work.token_row_bytes
        local = np.array([len(experts) for experts in work.experts_of_rank])
        flags = tokens * local
        prob = work.precision.combine_value_bytes
        part = ListedPart(machine, work, LISTED, "combine" if work.is_backward else "dispatch", local=local)

        gathered = start
        if not work.is_backward:
            for name, each in ((MAP, 1), (PROBS, prob)):
                nbytes = tokens * work.whole_experts * each
                gathered = self._ring(machine, COUNTS, "all_gather", nbytes, gathered, name)
        gathered = yield gathered
        machine.notes.follow("sent", np.arange(len(owner)), gathered[owner])
        gathered = yield self._ring(machine, DISPATCH, "all_gather", tokens * b_d, gathered, ROWS, payload=True)
        if not work.is_backward:
            # Slices are read and written, flags are summed up; counts are a few bytes.
            gathered = part.launch(OWN, gathered, flags * (3 + 2 * prob))
            machine.host.wait(DISPATCH, gathered, COUNTS_WAIT)
            gathered = part.launch("row map", gathered)
        moved = MemoryTraffic(_copies(work) * b_d, got * b_d)
        rows = part.launch("permute", gathered, moved, Kind.PERMUTE)
        if not work.is_backward:
            rows = part.launch(SELECTED, rows, flags * (4 + 3 * prob))
            machine.host.wait(DISPATCH, rows, SIZE_WAIT)
        # NCCL's kernels have gone, and have left no SMs to shared experts before.
        split = self.split(machine, gathers=machine.sms.count)
        ready = shared_kernels(machine, layer, split, start, rows)
        done = run_experts(machine, work, self.options, ready)
        summed = MemoryTraffic(got * work.result_row_bytes, every * own)
        done = machine.memory_kernel(Kind.UNPERMUTE, summed, done, moves="own results, a row for each token of anybody")
        casts = n > 1 and b_c != own
        if casts:
            moved = MemoryTraffic(every * own, every * b_c)
            done = machine.memory_kernel(Kind.UNPERMUTE, moved, done, TO_PROBS)
        done = yield done
        done = self._ring(machine, COMBINE, "reduce_scatter", tokens * b_c, done, SUMS, payload=True)
        if work.is_backward:
            nbytes = tokens * work.whole_experts * prob
            done = self._ring(machine, COMBINE, "reduce_scatter", nbytes, done, PROB_GRADIENTS)
        done = yield done
        if casts:
            mine = np.diff(work.tokens_of_rank)
            moved = MemoryTraffic(mine * b_c, mine * own)
            done = machine.memory_kernel(Kind.UNPERMUTE, moved, done, TO_TOKENS)
        machine.notes.follow("combined", np.arange(len(owner)), done[owner])
        return done

    def weight_gradients(self, work: LayerWork, machine: Machine, after: Tasks) -> Ints:
        """Add weight gradients that were put off, run as the experts' other GEMMs are."""
        return run_weight_gradients(machine, self.carries(work).work, self.options, after)

    def _ring(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        collective: Collective,
        nbytes: int,
        after: Tasks,
        name: str,
        *,
        payload: bool = False,
    ) -> Tasks:
        """Run a collective of `nbytes` of all ranks in a kernel: (rank,) tasks.

        What passes is copied out of FIFOs, and its own part from buffer to buffer; of sums, both
        summands are read and the last sum is written.
        """
        n = machine.num_ranks
        if n == 1:
            return after
        begun = machine.kernel(after, name)
        done = NCCL.build(machine, kinds, collective, nbytes, begun, payload=payload)
        copied = 2 * nbytes
        memory = machine.stream(kinds.memory, np.full(n, copied), machine.ranks, begun)
        return machine.gather(np.concatenate((done, memory)), np.tile(machine.ranks, 2), begun)


def _copies(work: LayerWork) -> Ints:
    """(rank,): tokens that have experts on each GPU."""
    return np.bincount(work.copy_rank, minlength=work.num_ranks).astype(np.int64)
