"""COMET: tiles overlap rows inside each of two kernels, in which some SMs communicate.

Sources: arXiv 2502.19811v3 (MLSys 2025), sections 3 and 4, and bytedance/flux 19831ca, its library.
Kernel 1 is dispatch and GEMM-1, kernel 2 GEMM-2 and combine; dispatch and combine never overlap
each other. `COMET` is the paper's own description, which names nothing around the kernels: counts
are exchanged, the activation is part of kernel 1, rows come back per (token, expert) and are added
in kernel 2. `FLUX` is the library: a GPU adds up the rows of its own experts before it stores one
row per (token, GPU), and kernels follow one another as ``moe_ag_scatter`` and ``moe_gather_rs``
launch them:

- ids and gate weights of all tokens are gathered (the library takes them as given) and indexed;
- rows are copied to the symmetric buffer, a barrier, two kernels of indices, a copy of the counts
  to the host, which waits for it before it launches kernel 1;
- kernel 1, a barrier, the activation (``examples/moe.py``);
- ``prepare_args``: three copies of arguments, a counter set to zero, ``ep_index_filter``;
- kernel 2, a barrier, its flags set to zero, and ``ep_topk_reduce`` at the owners.

The library's first kernel gathers all tokens by copy engine, whether they are wanted or not. That
is another scheme; here both forms fetch rows as the paper says.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from replay.model.collectives import nccl
from replay.model.compute.casts import cast_before_dispatch
from replay.model.compute.experts import activation_bytes
from replay.model.compute.weight_gradients import DOWN, UP, weight_gradient_kernel
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.comet.combine import gemm2_and_combine, rows_back, sums_back
from replay.schemes.ep.comet.dispatch import dispatch_and_gemm1
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.software import ACTIVATION, TYPICAL, WGRAD, Listed, Outline, kernels
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmodel import System
    from replay.model.machine.machine import Ints, Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork

PAPER = "arXiv 2502.19811v3"
LIBRARY = "bytedance/flux 19831ca"

FLUX_BUFFERS = f"{LIBRARY}, init_buffers and init_buffer of its two operators, for all tokens"

INDEX_BYTES = 4  # of an expert's id, a row's position, a token's number: int32
WEIGHT_BYTES = 4  # FP32
ARGUMENT_COPIES = 3  # problem sizes and pointers; offsets of experts; offsets of tokens
PAPER_COLUMNS = 512  # of a block: assumed
BLOCKS = {7168: 7, 1152: 9}  # of the columns, where they are not eight (`dispatch_split`)

# Kernels and copies.
FIRST, SECOND, BARRIER = "dispatch and gemm1", "gemm2 and combine", "barrier"
IDS, ROWS_OF_EXPERT, POSITIONS = "ids and weights to all", "rows of experts", "positions of rows"
FILL, TOKENS, BY_SOURCE = "rows to the buffer", "tokens of rows", "rows by source"
ARGUMENTS, CLEAR, FILTER = "arguments", "clear", "index filter"

# Splits of the SMs to choose from. The paper says that several are compiled and profiled, and
# shows the best for three set-ups (18, 26 and 46 of 132, figure 8) but not the list. The library
# has kernels with 28 (BF16) and 32 (FP8), and profiles 26, 28 and 30 (docs/tuning_guide.md).
SPLITS = (6, 12, 18, 26, 46)


@dataclass(frozen=True)
class CometOptions(Options):
    """Options of the two fused kernels."""

    dispatch_sms: int = option(
        26,
        least=1,
        help="SMs that communicate in kernel 1. The library profiles several pre-compiled splits.",
        source=f"{PAPER} figure 8: 18, 26 and 46 are the best for kernel 2",
    )
    combine_sms: int = option(
        26,
        least=1,
        help="SMs that communicate in kernel 2.",
        source=f"{PAPER} figure 8: 18, 26 and 46 are the best",
    )
    message_rows: int = option(
        16,
        least=1,
        unit="rows",
        help="Most rows that a communicating block fetches at a time; four times as many parts of "
        "rows go back together in `comet`.",
        source="assumed",
    )
    column_block: int = option(
        0,
        least=0,
        unit="columns",
        help="Columns of GEMM-2's output that are finished, reduced and sent together. 0 takes an "
        "eighth of a row in `flux`, as the library does (a seventh of 7168, a ninth of 1152), and "
        "512 columns in `comet`.",
        source=f'{LIBRARY}; {PAPER} says "column blocks" and leaves their width open',
    )
    rows_of: str = option(
        "experts",
        choices=("experts", "gpus"),
        help="What a row is fetched and sent for: every (token, expert), or every (token, GPU) "
        "with experts of the token: it is fetched once for them, and their results are added up "
        "before they are sent, which `flux` does anyway. They differ where tokens choose several "
        "experts of a GPU, as they do where GPUs share experts.",
        source=f"{PAPER} figure 4 has M x topk rows; but its buffer has M (section 5.5), and what "
        "is sent follows the top-K reduction (section 3.2.1)",
    )


class Comet(Scheme):
    """Tile-granular overlap inside each of two fused kernels.

    Parameters
    ----------
    name, summary, source, assumes
        See `Scheme`.
    is_flux
        What comes back, and what stands around the kernels. The library: one row per (token, GPU),
        with its kernels and waits of the host. The paper: one per (token, expert), with the
        activation fused and no wait.
    """

    overlap = "inside each of two fused kernels"
    phases_separated = False
    gemm_types = dispatch_types = frozenset({"bf16", "fp8"})
    combine_types = frozenset({"bf16"})  # what FP8 GEMMs write, too
    validity = "measured on 8 H800 and on 8 L20"
    tuned_by_default = True
    candidates = MappingProxyType({"dispatch_sms": SPLITS, "combine_sms": SPLITS})
    options: CometOptions = CometOptions()

    def __init__(
        self, name: str, *, is_flux: bool, summary: str, source: str, assumes: str
    ) -> None:
        self.name, self.summary, self.source, self.assumes = name, summary, source, assumes
        self.is_flux = is_flux
        self.traffic = self._traffic()
        super().__init__()

    def _traffic(self) -> str:
        if self.options.rows_of == "gpus":
            return "copy"
        return "pair-copy" if self.is_flux else "pair"  # of the way back

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """See `Scheme`; what a row is for decides the class of traffic."""
        changed = super().with_options(given)
        changed.traffic = changed._traffic()
        return changed

    def communication_sms(self, system: System) -> int | None:
        """Those of the kernel that has more of them."""
        return max(self.options.dispatch_sms, self.options.combine_sms)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Of the library: buffers of all tokens and of all their rows, which stay.

        The paper counts the symmetric buffer, a row for each of all tokens, and nothing else; rows
        that are fetched and that come back have to lie somewhere, too.
        """
        every, topk = work.num_tokens, work.expert_ids.shape[1]
        shared = memory.on_each(work, every * work.dispatch_row_bytes)
        buffer = Buffer("tokens of all GPUs", shared, stays=True)
        if not self.is_flux:
            what = "copies" if self.options.rows_of == "gpus" else "pairs"
            rows = memory.received(work)
            fetched, back = (work.matrix(what).sum(axis=axis) for axis in (0, 1))
            return (
                *memory.cast_tokens(work), buffer,
                Buffer("fetched rows", fetched * work.dispatch_row_bytes),
                *memory.cast_received(work, rows),
                Buffer("returned rows", back * work.combine_row_bytes),
            )  # fmt: skip
        each = {
            "results of all rows": every * topk * work.result_row_bytes,
            "sums for all tokens": every * work.combine_row_bytes,
            "indices": (3 * topk + topk + 2) * every * INDEX_BYTES,
        }
        return (
            *memory.cast_tokens(work), buffer, *memory.cast_received(work, memory.received(work)),
            *(
                Buffer(name, memory.on_each(work, nbytes), stays=True, source=FLUX_BUFFERS)
                for name, nbytes in each.items()
            ),
        )  # fmt: skip

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """The library's second kernel writes into a buffer that stays."""
        is_paper = not self.is_flux
        return memory.intermediates(
            work, memory.received(work), fuses_activation=is_paper, keeps_results=is_paper
        )

    def operations(self, layer: Outline = TYPICAL) -> tuple[Listed, ...]:
        """Two fused kernels; weight gradients are kernels of their own."""
        gradients = (WGRAD, WGRAD) if layer.is_backward else ()
        if not self.is_flux:
            counts = () if layer.is_backward else kernels("layout", "counts to all")
            return (*layer.tokens, *counts, *kernels(FIRST, SECOND), *gradients)
        ids: tuple[Listed, ...] = ()
        if not layer.is_backward:
            gathered = kernels(IDS) if layer.num_ranks > 1 else ()
            ids = (*gathered, *kernels(ROWS_OF_EXPERT, POSITIONS))
        return (
            *layer.tokens,
            *ids,
            Listed(FILL, moves="own tokens, read and written"),
            *kernels(BARRIER, TOKENS, BY_SOURCE),
            Listed("counts to the host", 0),
            *kernels(FIRST, BARRIER),
            ACTIVATION,
            Listed(ARGUMENTS, ARGUMENT_COPIES),
            *kernels(CLEAR, FILTER, SECOND, BARRIER, CLEAR),
            Listed("unpermute", moves="a row of every GPU that has experts of a token; the token"),
            *gradients,
        )

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add what precedes the kernels, the kernels, and what stands between and behind them."""
        is_flux, once = self.is_flux, self.options.rows_of == "gpus"
        first, second = (self._split(machine, name) for name in ("dispatch_sms", "combine_sms"))
        start = cast_before_dispatch(machine, work, start)  # which other GPUs read as they are
        begun = (_before_flux if is_flux else _before_paper)(work, machine, start)
        ends, activated = dispatch_and_gemm1(
            work, machine, first, begun,
            num_sms=self.options.dispatch_sms,
            message_rows=self.options.message_rows,
            fused_activation=not is_flux,
            once=once,
        )  # fmt: skip
        if is_flux:
            ends = _between(work, machine, ends)
        ends = gemm2_and_combine(
            work, machine, second, machine.kernel(ends, SECOND),
            num_sms=self.options.combine_sms,
            block_columns=self._block_columns(work.shape.hidden),
            send_of=sums_back if is_flux else rows_back(4 * self.options.message_rows, once=once),
            inputs=None if is_flux else activated,
        )  # fmt: skip
        if is_flux:
            ends = _reduced(work, machine, ends)
        if work.is_backward:  # neither fuses the weight gradients
            pool = machine.sms.pool("sm-wgrad", machine.sms.count)
            for projection in (DOWN, UP):
                ends = weight_gradient_kernel(machine, work, projection, pool, ends)
        return ends

    def _split(self, machine: Machine, name: str) -> Split:
        return machine.sms.split(
            f"scheme {self.name!r}", {name: getattr(self.options, name)}, rest="compute"
        )

    def _block_columns(self, hidden: int) -> int:
        own = -(-hidden // BLOCKS.get(hidden, 8)) if self.is_flux else PAPER_COLUMNS
        return self.options.column_block or own


# ---- the paper -----------------------------------------------------------------------------------


def _before_paper(work: LayerWork, machine: Machine, start: Ints) -> Ints:
    """Exchange counts, and begin kernel 1 on all ranks: (rank,) tasks."""
    if not work.is_backward:
        tokens = np.diff(work.tokens_of_rank)
        counted = machine.memory_kernel(Kind.LAYOUT, tokens * work.num_experts, start)
        begun = machine.kernel(counted, "counts to all")
        start = machine.sync.exchange_counts(begun, 4 * work.num_experts)
    return machine.sync.barrier(DISPATCH, machine.kernel(start, FIRST))


# ---- flux ----------------------------------------------------------------------------------------


def _before_flux(work: LayerWork, machine: Machine, start: Ints) -> Ints:
    """Gather ids, fill the buffers, make indices, wait, and launch kernel 1: (rank,) tasks."""
    n, topk = machine.num_ranks, work.expert_ids.shape[1]
    tokens, rows = np.diff(work.tokens_of_rank), work.matrix("pairs").sum(axis=0)
    slots = np.full(n, work.num_tokens * topk)
    if not work.is_backward:
        if n > 1:
            most = int(tokens.max()) * topk * (INDEX_BYTES + WEIGHT_BYTES)
            begun = machine.kernel(start, IDS)
            start = nccl.run(machine, COUNTS, "all_gather", n * most, begun)
        counted = machine.memory_kernel(Kind.LAYOUT, slots * INDEX_BYTES, start, ROWS_OF_EXPERT)
        start = machine.memory_kernel(Kind.LAYOUT, 2 * slots * INDEX_BYTES, counted, POSITIONS)
    own = tokens * work.dispatch_row_bytes
    filled = machine.memory_kernel(DISPATCH.memory, MemoryTraffic(own, own), start, FILL)
    met = machine.sync.barrier(DISPATCH, machine.kernel(filled, BARRIER))
    found = machine.memory_kernel(Kind.LAYOUT, (slots + rows) * INDEX_BYTES, met, TOKENS)
    ordered = machine.memory_kernel(Kind.LAYOUT, 3 * rows * INDEX_BYTES, found, BY_SOURCE)
    machine.host.wait(DISPATCH, ordered)
    return machine.kernel(ordered, FIRST)


def _between(work: LayerWork, machine: Machine, done: Ints) -> Ints:
    """Barrier, activation, arguments and indices of kernel 2: (rank,) tasks."""
    met = machine.sync.barrier(DISPATCH, machine.kernel(done, BARRIER))
    ends = machine.memory_kernel(Kind.ACTIVATION, activation_bytes(work), met)
    none = np.zeros(machine.num_ranks, np.int64)
    ends = machine.small_kernels(Kind.LAYOUT, none, ends, ARGUMENTS, ARGUMENT_COPIES)
    ends = machine.small_kernels(Kind.LAYOUT, none, ends, CLEAR)
    # Each token's rows here, how many, its place at its owner and the owner; at the owner, which
    # ranks have rows of it, and how many.
    looked = work.num_tokens * work.expert_ids.shape[1]
    rows, copies = work.matrix("pairs").sum(axis=0), work.matrix("copies")
    written = rows + 4 * copies.sum(axis=0) + copies.sum(axis=1) + np.diff(work.tokens_of_rank)
    return machine.memory_kernel(Kind.LAYOUT, (looked + written) * INDEX_BYTES, ends, FILTER)


def _reduced(work: LayerWork, machine: Machine, sent: Ints) -> Ints:
    """Barrier, flags set to zero, and the sums of what GPUs have stored: (rank,) tasks."""
    met = machine.sync.barrier(COMBINE, machine.kernel(sent, BARRIER), behind_stores=True)
    none = np.zeros(machine.num_ranks, np.int64)
    cleared = machine.small_kernels(Kind.LAYOUT, none, met, CLEAR)
    parts, tokens = work.matrix("copies").sum(axis=1), np.diff(work.tokens_of_rank)
    added = MemoryTraffic(parts * work.combine_row_bytes, tokens * work.result_row_bytes)
    ends = machine.memory_kernel(Kind.UNPERMUTE, added, cleared)
    machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
    return ends


# ---- both forms ----------------------------------------------------------------------------------


COMET = Comet(
    "comet",
    is_flux=False,
    summary="COMET's paper: tiles overlap rows inside each of two kernels",
    source=f"{PAPER} sections 3-4",
    assumes=(
        "rows are fetched by the GPU that reads them; counts are exchanged without a host; results "
        "come from memory when they are sent"
    ),
)
FLUX = Comet(
    "flux",
    is_flux=True,
    summary="COMET as flux releases it: rows summed on a GPU before they return",
    source=f"{LIBRARY}, src/moe_gather_rs, src/moe_ag_scatter; {PAPER} sections 3-4",
    assumes=(
        "rows are fetched by the GPU that reads them; one kernel for the activation; results come "
        "from memory when they are added up"
    ),
)
