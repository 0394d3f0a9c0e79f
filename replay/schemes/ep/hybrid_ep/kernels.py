"""HybridEP's dispatch and combine kernels.

Blocks are persistent, one an SM, and take chunks of consecutive tokens in turn. In the dispatch a
warp loads tokens into a FIFO in shared memory, others store each to all GPUs that want it. In the
combine the owner's block loads the rows of a token from all GPUs into the FIFO, and a group of
warps adds them up and stores the sum. Since rows are pushed into buffers that others have read, and
pulled from buffers that others have written, a kernel of one thread meets all GPUs before and
behind either kernel. The FIFO (10 to 12 rows) never holds up an SM here: 10 rows of 14 KB in a
round trip of 1 us are 140 GB/s, more than an SM adds up.

Left out: blocks of the combine share each chunk, in groups of four tokens.

Source: deepseek-ai/DeepEP, branch hybrid-ep, ``csrc/hybrid_ep/backend/hybrid_ep_backend.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.machine.times import MemoryTraffic
from replay.model.work.precision import SCALE_BLOCK, SCALE_BYTES, VALUE_BYTES
from replay.model.work.ragged import places
from replay.schemes.ep.deepep.pushes import Pushes
from replay.schemes.ep.hybrid_ep import between
from replay.schemes.ep.hybrid_ep.preprocessing import all_experts

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.machine.times import Stored
    from replay.model.work.layer import LayerWork

EXPECTED, MEET = "expected values of flags", "device sync"
HIDDEN_STEP = 512  # values of which a row must be a multiple
PROB_BYTES = 4


@dataclass(frozen=True)
class RowSizes:
    """Bytes of a row with all that travels with it.

    Attributes
    ----------
    out, back
        On the way out and on the way back.
    slot
        Room for either, without gate weights: values of two bytes, and scales.
    stores
        Stores of a row on the way out: its values, and by themselves its scales and gate weights.
    """

    out: int
    back: int
    slot: int
    stores: int

    @classmethod
    def of(cls, work: LayerWork, experts: int | None = None) -> RowSizes:
        """Sizes of a layer: gate weights of experts go out, their gradients come back.

        Parameters
        ----------
        experts
            Whose gate weights travel with a row; those of all GPUs if not given.
        """
        hidden = -(-work.shape.hidden // HIDDEN_STEP) * HIDDEN_STEP
        types = work.precision
        probs = (all_experts(work)[1] if experts is None else experts) * PROB_BYTES
        scales = SCALE_BYTES * (hidden // SCALE_BLOCK) if types.dispatch == "fp8" else 0
        out = VALUE_BYTES[types.dispatch] * hidden + scales
        back = VALUE_BYTES[types.combine] * hidden
        slot = 2 * hidden + scales
        stores = 1 + (scales > 0)
        if work.is_backward:
            return cls(out, back + probs, slot, stores)
        return cls(out + probs, back, slot, stores + 1)


def meet(machine: Machine, kinds: PhaseKinds, after: Tasks, *, stored: Stored) -> Tasks:
    """Launch the kernel of one thread that meets all GPUs of the node: (rank,) tasks of its end."""
    return machine.sync.barrier(kinds, machine.kernel(after, MEET), stored=stored, inside=True)


def _begin(machine: Machine, kinds: PhaseKinds, after: Tasks, name: str) -> Tasks:
    """Launch what precedes a kernel, and the kernel: (rank,) tasks of its begin."""
    nothing = np.zeros(machine.num_ranks, np.int64)
    expected = machine.memory_kernel(kinds.sync, nothing, after, EXPECTED)
    return machine.kernel(meet(machine, kinds, expected, stored="nothing"), name)


def _sm_of_token(work: LayerWork, num_sms: int, chunk_tokens: int) -> Ints:
    """(token,): SM that has the chunk of each."""
    sm: Ints = places(np.diff(work.tokens_of_rank)) // chunk_tokens % num_sms
    return sm


def dispatch(work: LayerWork, machine: Machine, split: Split, num_sms: int, chunk_tokens: int, start: Tasks) -> Tasks:
    """Add the dispatch kernel between two meetings: (rank,) tasks of the end."""
    begun = _begin(machine, DISPATCH, start, "dispatch")
    shape = num_sms, chunk_tokens
    pushed = push_rows(work, machine, split, shape, RowSizes.of(work), begun)
    return meet(machine, DISPATCH, pushed, stored="each")


def push_rows(
    work: LayerWork,
    machine: Machine,
    split: Split,
    shape: tuple[int, int],
    rows: RowSizes,
    begun: Tasks,
) -> Ints:
    """Push rows to whoever wants them: (rank,) marks when those that a GPU sends are there.

    Parameters
    ----------
    shape
        Blocks, and tokens of a chunk.
    begun
        (rank,): the kernel has begun.
    """
    num_sms, chunk_tokens = shape
    if machine.num_domains > 1:
        sizes = rows.out, rows.back
        return between.dispatch(work, machine, split, shape, sizes, rows.stores, begun)
    sms = split.channels("hybrid-ep", num_sms)
    sm = _sm_of_token(work, num_sms, chunk_tokens)[work.copy_token]
    pushes = Pushes.of(work.copy_source, work.copy_rank, sm, work.num_ranks)
    pushed, arrived = pushes.push(
        machine,
        DISPATCH,
        sms,
        between.push_time(machine, pushes, work.copy_token, rows.out, rows.stores),
        work.dispatch_row_bytes,
        begun,
        meta_bytes=rows.out - work.dispatch_row_bytes,
    )
    machine.notes.follow("sent", work.copy_token, pushed[pushes.of_row])
    return machine.gather(arrived, pushes.src, begun)


def combine(work: LayerWork, machine: Machine, split: Split, num_sms: int, chunk_tokens: int, start: Tasks) -> Tasks:
    """Add the combine kernel between two meetings: (rank,) tasks of the end."""
    begun = _begin(machine, COMBINE, start, "combine")
    shape = num_sms, chunk_tokens
    pulled = pull_rows(work, machine, split, shape, RowSizes.of(work), begun)
    return meet(machine, COMBINE, pulled, stored="nothing")


def pull_rows(
    work: LayerWork,
    machine: Machine,
    split: Split,
    shape: tuple[int, int],
    rows: RowSizes,
    begun: Tasks,
) -> Ints:
    """Pull rows and add them up: (rank,) marks when a GPU's sums are written.

    Parameters
    ----------
    shape
        Blocks, and tokens of a chunk.
    begun
        (rank,): the kernel has begun.
    """
    num_sms, chunk_tokens = shape
    if machine.num_domains > 1:
        return between.combine(work, machine, split, shape, (rows.out, rows.back), begun)
    sm = _sm_of_token(work, num_sms, chunk_tokens)
    pulls = Pushes.of(work.copy_source, work.copy_rank, sm[work.copy_token], work.num_ranks)
    arrived = between.pull(
        machine, split.channels("hybrid-ep", num_sms), pulls, (work.combine_row_bytes, rows.back), begun
    )
    adders = split.channels("hybrid-ep, adding", num_sms, on="hybrid-ep")
    owner = work.source_rank
    added = machine.serve(
        adders[owner, sm],
        machine.costs.sm_add(0, np.full(work.num_tokens, rows.back)),
        kind=COMBINE.receive,
        rank=owner,
        after=begun[owner],
    )
    machine.order(arrived, added[work.copy_token])
    sums = MemoryTraffic(read=0, written=np.full(work.num_tokens, rows.back))
    written = machine.stream(COMBINE.memory, sums, owner, added)
    machine.notes.follow("combined", np.arange(work.num_tokens), written)
    return machine.gather(written, owner, begun)
