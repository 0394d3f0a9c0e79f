"""The experts as SGLang runs them behind low-latency kernels: masked grouped GEMMs of DeepGEMM.

Rows lie in a buffer of fixed size, so many slots for each expert, beside a count for each. Between
the two GEMMs one kernel applies the activation and quantises its result; another brings the scales
into the order that the second GEMM loads them in, slots without rows included.

What is launched is stated in SGLang's list (``model/work/kernel_lists/sglang.toml``); the grid of the activation is
that of ``silu_and_mul_masked_post_quant_fwd``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.experts import activation_bytes
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import GemmKernel, gemm_kernel
from replay.model.compute.list_rows import ListedPart, Software
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.model.work.precision import SCALE_BLOCK

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Counts, Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

IN_BF16 = Software("sglang", (("dispatcher", "deepep-ll"),))
IN_FP8 = Software("sglang", (*IN_BF16.options, ("fp8_experts", True), ("signals", True)))
ACTIVATION, ACTIVATION_IN_FP8 = "silu_and_mul_masked_fwd", "silu_and_mul_masked_post_quant_fwd"
SCALES = "get_mn_major_tma_aligned_tensor"

SCALE_BYTES = 4
# Blocks of the activation kernel per expert and 128 columns, for fewer than four experts and for
# more (SGLang, ``silu_and_mul_masked_post_quant_fwd``).
FEW_EXPERTS, ACTIVATION_BLOCKS = 4, (64, 32)
# Starting a block, 1 ns: each expert without rows adds 0.50 us (4 and 8 tokens at EP4 and EP8) or
# 0.56 us (16 and 32 tokens) to the masked rows of
# ``studies/validate/measurements/moe_deepgemm.csv``, and has 16 x 32 blocks.
BLOCK_PS = 1_000


def masked_kernels(
    machine: Machine,
    work: LayerWork,
    pool: Pools,
    after: Tasks,
    slots: Ints,
    *,
    scales_in_order: bool,
    expected: Ints | None = None,
) -> Ints:
    """Run the experts of every rank in a masked layout: (rank,) marks of their end.

    Parameters
    ----------
    pool
        (rank,): resource of the SMs that compute.
    after
        (rank,) tasks after which the rows are there.
    slots
        (rank,): rows that the buffer has room for.
    scales_in_order
        Whether the scales of the rows come in the order of the first GEMM, as low-latency kernels
        write them.
    expected
        (rank,): rows that the host expects of an expert; by default their mean on the rank.
    """
    done = masked_operands(machine, work, pool, after, slots, scales_in_order=scales_in_order, expected=expected)
    return gemm_kernel(machine, work, Gemm.second(work), pool, done, layout="masked", tuned_rows=expected).end


def masked_operands(
    machine: Machine,
    work: LayerWork,
    pool: Pools,
    after: Tasks,
    slots: Ints,
    *,
    scales_in_order: bool,
    expected: Ints | None = None,
) -> Ints:
    """Run all but the second GEMM: (rank,) marks when it may begin; see `masked_kernels`."""
    has_scales = work.precision.operand_bytes == 1
    part = listed_experts(machine, work, slots)
    if has_scales and not scales_in_order:
        after = part.launch(SCALES, after, scale_bytes(slots, work.shape.hidden), Kind.PERMUTE)
    first = Gemm.first(work, fused_activation=False)
    done = gemm_kernel(machine, work, first, pool, after, layout="masked", tuned_rows=expected).end
    done = masked_activation(machine, work, done)
    if has_scales:
        done = part.launch(SCALES, done, kind=Kind.ACTIVATION)
    return done


def listed_experts(machine: Machine, work: LayerWork, slots: Ints | int = 0) -> ListedPart:
    """Give the experts of SGLang's list.

    Parameters
    ----------
    slots
        (rank,): rows that the buffer has room for.
    """
    software = IN_FP8 if work.precision.operand_bytes == 1 else IN_BF16
    return ListedPart(machine, work, software, "experts", slots=slots)


def expected_rows(work: LayerWork) -> Ints:
    """(rank,): rows that SGLang's host expects of an expert, if all ranks have as many tokens as its own.

    Source: sgl-project/sglang 003a81b, ``token_dispatcher/deepep.py``, ``expected_m``.
    """
    pairs = np.diff(work.tokens_of_rank) * work.num_ranks * work.expert_ids.shape[1]
    expected: Ints = (pairs + work.num_experts) // work.num_experts
    return expected


def signalling_kernel(machine: Machine, work: LayerWork, pool: Pools, after: Tasks, num_sms: int) -> GemmKernel:
    """Run the second GEMM beside a kernel that sends its results block by block.

    When a column tile is stored, one is added to the signal of its row tile; whoever reads the sum
    of all of them may read the rows.

    Parameters
    ----------
    pool, num_sms
        (rank,): resource of the SMs that multiply, and how many they are.
    after
        (rank,): what `masked_operands` gives.
    """
    gemm, expected = Gemm.second(work), expected_rows(work)
    return gemm_kernel(machine, work, gemm, pool, after, layout="masked", tuned_rows=expected, num_sms=num_sms)


def masked_activation(machine: Machine, work: LayerWork, after: Tasks) -> Ints:
    """Apply the activation to the rows that are there: (rank,) marks of the kernel's end.

    The kernel starts as many blocks for an expert without rows as for any other.
    """
    experts = np.array([len(local) for local in work.experts_of_rank], np.int64)
    of_expert = np.where(experts < FEW_EXPERTS, *ACTIVATION_BLOCKS)
    blocks = experts * of_expert * -(-work.shape.intermediate // SCALE_BLOCK)
    name = ACTIVATION_IN_FP8 if work.precision.operand_bytes == 1 else ACTIVATION
    what = listed_experts(machine, work).operation(name)
    begun = machine.kernel(after, what, kind=Kind.ACTIVATION)
    started = machine.delay(Kind.ACTIVATION, Time(blocks * BLOCK_PS), begun)
    moved = activation_bytes(work, "masked")
    machine.host.moves(moved)
    done = machine.stream(Kind.ACTIVATION, moved, machine.ranks, begun, late=machine.costs.elementwise(moved))
    return machine.gather(started, machine.ranks, done)


def scale_bytes(rows: Counts, width: int) -> Bytes:
    """Bytes of reading and writing the scales of rows of some width."""
    return 2 * SCALE_BYTES * rows * width // SCALE_BLOCK
