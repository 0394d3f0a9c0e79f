"""CCFuser: blocks that fetch rows of another GPU and multiply their own meanwhile.

Source: WongHuLin/CCFuser bcd8816 (PPoPP 2025): ``mix_moe/csrc/cuda/mix_gemm.cu`` (both kernels),
``csrc/mix_moe.h`` (what stands around them) and ``mix_moe/layers.py`` (who has which block). Tokens
are copied k-fold into a symmetric heap, a barrier, then kernel 1: a block gets 64 rows of another
GPU, copies 64 of its own to where the backward pass wants them, multiplies its own rows by all
columns and then the others. Kernel 2 is the mirror: the others' rows, a put of the results into the
heap of their owner, its own rows. Nothing is deduplicated or added up on the way.

Where the code differs from its paper's abstract:

- *The get is not hidden behind the block's own product.* NVSHMEM's ``get_nbi_block`` to a peer that
  is reached by loads and stores is a loop in which each thread loads 16 bytes and stores them
  (``nvshmemi_memcpy_threadgroup``), so that a block waits for a round trip every 4 KiB. Other SMs
  multiply meanwhile. `get=engine` lets the block go on, as with a transport of its own.
- *The tensor cores wait for registers.* Warps load all operands of a step of 32 of the inner
  dimension from shared memory and then multiply (``myHGEMMAlignedV5``: one set of fragments).
- *A tile is multiplied whole*, since lengths bound the copies alone.
- *Kernel 2 does the tiles of a paired block twice* (`repeats`): the branch of pairs has no
  ``return``. The second time it writes to the wrong rows, so that this is a defect, left out here;
  the published times have it.

The host makes the list of blocks in Python, which takes no time here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.compute.experts import ACTIVATION, activation_bytes
from replay.model.compute.shared_experts import shared_kernels
from replay.model.compute.weight_gradients import DOWN, UP, weight_gradient_kernel
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.ccfuser.blocks import TILE_ROWS, BlockPairs
from replay.schemes.ep.ccfuser.kernels import PATH, gemm2_and_put, get_and_gemm1
from replay.schemes.ep.facts import Buffer
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Bytes, Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

CODE = "WongHuLin/CCFuser bcd8816"

COUNT_BYTES, INDEX_BYTES = 8, 4  # rows for an expert: int64; an expert's id, a position: int32
HEAP_COPIES = 2  # of every token, whatever k

# Kernels and copies.
GATHER, BARRIER, FIRST, SECOND = "counts to all", "barrier", "get and gemm1", "gemm2 and put"
POSITIONS = Operation("positions", moves="an id and a place of each (token, expert)")
# Experts, their places, owners, lengths, addresses; by expert, offsets.
BLOCK_LIST = Operation("block list", 7)
SCATTER = Operation("permute", moves="tokens, and a row for each of their experts")
ZEROS = Operation("zeros", 3, "rows of all blocks, results of the first GEMM, those before a put")
ZEROS_BEFORE_PUT = Operation("zeros", moves="results before their put")
ZEROS_BEFORE_SUMS = Operation("zeros", moves="a row of each (token, expert); in a backward pass of each token")
TRANSPOSE = Operation("transpose", moves="rows of all blocks")
SUMS = Operation("unpermute", moves="every result, into the order of tokens or added to them")
GATES = Operation("weighted sum", moves="those, the tokens' sums")


@dataclass(frozen=True)
class CcFuserOptions(Options):
    """Options of the two kernels."""

    get: str = option(
        "loop",
        "How rows of another GPU come. loop: the block's threads load and store them, and multiply "
        "nothing meanwhile. engine: a transport of its own brings them, and the block waits for them "
        "when it has multiplied its own.",
        "NVSHMEM, nvshmemi_memcpy_threadgroup; the paper's description",
        choices=("loop", "engine"),
    )
    pad_tiles: bool = option(
        True,
        "Whether a partial tile is multiplied, and moved through memory, as if it were full.",
        f"{CODE}, mix_gemm.cu: the product knows no lengths",
    )
    loads_ahead: bool = option(
        False,
        "Whether warps load the operands of a step into registers while they multiply those of the step before.",
        f"{CODE}, mix_gemm.cu, myHGEMMAlignedV5: one set of fragments",
    )
    repeats: bool = option(
        False,
        "Whether kernel 2 multiplies both tiles of a paired block once more, as the released one does.",
        f"{CODE}, mix_gemm.cu, moe_second_mm: a defect, which its results show",
    )


class CcFuser(Scheme):
    """Pairs of own and other rows in each of two kernels."""

    name = "ccfuser"
    summary = "CCFuser: a block multiplies 64 own rows and 64 that it gets or puts"
    source = f"{CODE}, csrc/cuda/mix_gemm.cu, csrc/mix_moe.h, mix_moe/layers.py"
    assumes = (
        "BF16 stands for FP16; the list of blocks costs the host nothing; experts with a gate take the same kernels"
    )
    wins = (
        "nowhere in the study; over slow links between pairs of GPUs, for which it was written, the distance is "
        "smallest"
    )
    loses = (
        "few rows, which leave most SMs idle: tiles of 64 rows, and a block multiplies all columns of its rows; many "
        "rows, by operands that are loaded before they are multiplied"
    )
    traffic = "pair"
    overlap = "inside each of two fused kernels"
    phases_separated = False
    gemm_types = frozenset({"bf16"})
    dispatch_types = frozenset({"bf16"})
    combine_types = frozenset({"bf16"})
    validity = "4 A100 of one node, top-1 and top-2, widths that are multiples of 512"
    unpadded = MappingProxyType({"pad_tiles": False, "loads_ahead": True, "repeats": False})
    options: CcFuserOptions = CcFuserOptions()

    def communication_sms(self, system: System) -> int:
        """None: blocks that move rows multiply them too."""
        return 0

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Symmetric heap, and rows in the order of blocks."""
        blocks = BlockPairs.of(work, padded=True)
        most = int(np.diff(work.tokens_of_rank).max(initial=0))
        copies = max(HEAP_COPIES, work.expert_ids.shape[1])  # it has no room for more than two
        heap = np.full(work.num_ranks, copies * most * work.dispatch_row_bytes)
        return (
            Buffer("symmetric heap", heap, stays=True),
            Buffer("rows of all blocks", _rows(work, blocks) * work.dispatch_row_bytes),
        )

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add what precedes the kernels, the kernels, and what stands between and behind them."""
        sms = self.split(machine)
        pool = sms.pool("sm", machine.sms.count)
        blocks = BlockPairs.of(work, padded=self.options.pad_tiles)
        begun = self._before(work, machine, blocks, start)
        # Its blocks take every SM, so that shared experts come before them.
        none_left = self.split(machine, all=machine.sms.count)
        begun = shared_kernels(machine, work, none_left, start, begun)
        begun = machine.kernel(begun, FIRST)
        does_wait = self.options.get == "loop"
        path = replace(PATH, loads_ahead=self.options.loads_ahead)
        ends = get_and_gemm1(work, machine, blocks, pool, begun, does_wait=does_wait, path=path)
        if work.is_backward:
            ends = self._gradient(work, machine, blocks, pool, ends, first=True)
        activated = activation_bytes(work, rows=_rows(work, blocks))
        ends = machine.memory_kernel(Kind.ACTIVATION, activated, ends, ACTIVATION)
        zeros = _rows(work, blocks, remote=True) * work.combine_row_bytes
        ends = _zeros(machine, Kind.UNPERMUTE, zeros, ends, ZEROS_BEFORE_PUT)
        begun = machine.kernel(ends, SECOND)
        ends = gemm2_and_put(
            work,
            machine,
            blocks,
            pool,
            begun,
            repeats=self.options.repeats,
            path=path,
        )
        met = machine.sync.barrier(COMBINE, machine.kernel(ends, BARRIER), stored="each")
        if work.is_backward:
            met = self._gradient(work, machine, blocks, pool, met, first=False)
        return self._add(work, machine, met)

    def _before(self, work: LayerWork, machine: Machine, blocks: BlockPairs, start: Tasks) -> Tasks:
        """Count, list blocks, copy rows into the heap, and meet: (rank,) tasks."""
        tokens, rows = np.diff(work.tokens_of_rank), work.matrix("pairs").sum(axis=1)
        if not work.is_backward:
            ids = rows * INDEX_BYTES
            start = machine.memory_kernel(Kind.LAYOUT, ids, start, moves="an id of each (token, expert)")
            if machine.num_ranks > 1:
                gathered = machine.num_ranks * COUNT_BYTES * work.num_experts
                begun = machine.kernel(start, GATHER)
                start = NCCL.build(machine, COUNTS, "all_gather", gathered, begun)
            start = machine.memory_kernel(Kind.LAYOUT, 3 * ids, start, POSITIONS)
            machine.host.wait(DISPATCH, start)
            none = np.zeros(machine.num_ranks, np.int64)
            start = machine.small_kernels(Kind.LAYOUT, none, start, BLOCK_LIST)
        row_bytes = work.dispatch_row_bytes
        copied = MemoryTraffic(tokens * row_bytes, rows * row_bytes, rows)
        ends = machine.memory_kernel(Kind.PERMUTE, copied, start, SCATTER)
        written = work.precision.token_row_bytes(
            work.shape.intermediate if work.is_backward else work.shape.gemm1_columns
        )
        zeros = _rows(work, blocks) * (row_bytes + written)
        zeros = zeros + _rows(work, blocks, remote=True) * work.combine_row_bytes
        ends = _zeros(machine, Kind.PERMUTE, zeros, ends, ZEROS)
        return machine.sync.barrier(DISPATCH, machine.kernel(ends, BARRIER), stored="nothing")

    def _gradient(
        self,
        work: LayerWork,
        machine: Machine,
        blocks: BlockPairs,
        pool: Pools,
        after: Tasks,
        *,
        first: bool,
    ) -> Tasks:
        """Transpose the gradients of all blocks' rows and multiply them: (rank,) tasks."""
        width = work.shape.hidden if first else work.shape.gemm1_columns
        moved = _rows(work, blocks) * work.precision.token_row_bytes(width)
        kind = Kind.PERMUTE if first else Kind.UNPERMUTE
        ends = machine.memory_kernel(kind, MemoryTraffic(moved, moved), after, TRANSPOSE)
        return weight_gradient_kernel(machine, work, DOWN if first else UP, pool, ends)

    def _add(self, work: LayerWork, machine: Machine, met: Ints) -> Tasks:
        """Bring what came back into the order of tokens and add it up: (rank,) tasks."""
        tokens, rows = np.diff(work.tokens_of_rank), work.matrix("pairs").sum(axis=1)
        back, result = rows * work.combine_row_bytes, tokens * work.result_row_bytes
        if work.is_backward:  # ``index_add_`` adds each row to its token
            ends = _zeros(machine, Kind.UNPERMUTE, result, met, ZEROS_BEFORE_SUMS)
            moved = MemoryTraffic(2 * back, back, rows)
            ends = machine.memory_kernel(Kind.UNPERMUTE, moved, ends, SUMS)
        else:
            ends = _zeros(machine, Kind.UNPERMUTE, back, met, ZEROS_BEFORE_SUMS)
            ends = machine.memory_kernel(Kind.UNPERMUTE, MemoryTraffic(back, back, rows), ends, SUMS)
            ends = machine.memory_kernel(Kind.UNPERMUTE, MemoryTraffic(back, result), ends, GATES)
        machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
        return ends


def _rows(work: LayerWork, blocks: BlockPairs, *, remote: bool = False) -> Ints:
    """(rank,): rows of its tiles, or of the remote ones, each counted as full."""
    rank = blocks.tiles.grid.rank
    rank = rank[blocks.is_remote] if remote else rank
    return np.bincount(rank, minlength=work.num_ranks) * TILE_ROWS


def _zeros(machine: Machine, kind: Kind, nbytes: Bytes, after: Tasks, what: Operation) -> Tasks:
    """Set so many bytes (rank,) to zero: (rank,) tasks."""
    return machine.small_kernels(kind, MemoryTraffic(np.zeros_like(nbytes), nbytes), after, what)
