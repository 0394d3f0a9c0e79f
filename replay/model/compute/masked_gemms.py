"""The experts as SGLang runs them behind low-latency kernels: masked grouped GEMMs of DeepGEMM.

Rows lie in a buffer of fixed size, so many slots for each expert, beside a count for each. Between
the two GEMMs one kernel applies the activation and quantises its result; another brings the scales
into the order that the second GEMM loads them in, slots without rows included.

Source: sgl-project/sglang, ``forward_deepgemm_masked`` and ``silu_and_mul_masked_post_quant_fwd``;
deepseek-ai/DeepGEMM, ``get_mn_major_tma_aligned_tensor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.experts import activation_bytes
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import GemmKernel, gemm_kernel
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.model.work.precision import SCALE_BLOCK

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Counts, Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

SGLANG = "sgl-project/sglang, DeepEP's dispatcher and forward_deepgemm_masked"
ACTIVATION = Operation("silu_and_mul_masked_post_quant", 1, "results of GEMM-1, operands of GEMM-2", SGLANG)
SCALES = Operation("get_mn_major_tma_aligned_tensor", 1, "scales of all slots, read and written", SGLANG)

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
    hidden, intermediate = work.shape.hidden, work.shape.intermediate
    if has_scales and not scales_in_order:
        after = machine.memory_kernel(Kind.PERMUTE, scale_bytes(slots, hidden), after, SCALES)
    first = Gemm.first(work, fused_activation=False)
    done = gemm_kernel(machine, work, first, pool, after, layout="masked", tuned_rows=expected).end
    done = masked_activation(machine, work, done)
    if has_scales:
        done = machine.memory_kernel(Kind.ACTIVATION, scale_bytes(slots, intermediate), done, SCALES)
    return done


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
    begun = machine.kernel(after, ACTIVATION, kind=Kind.ACTIVATION)
    started = machine.delay(Kind.ACTIVATION, Time(blocks * BLOCK_PS), begun)
    moved = activation_bytes(work, "masked")
    done = machine.stream(Kind.ACTIVATION, moved, machine.ranks, begun, late=machine.costs.elementwise(moved))
    return machine.gather(started, machine.ranks, done)


def scale_bytes(rows: Counts, width: int) -> Bytes:
    """Bytes of reading and writing the scales of rows of some width."""
    return 2 * SCALE_BYTES * rows * width // SCALE_BLOCK
