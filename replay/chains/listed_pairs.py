"""A pair of layers whose kernels are those of a stack's list, around a scheme's exchanges.

`replay.chains.pass_pairs` has the order in which a pair's parts are launched. Where a scheme runs
under a stack whose kernels of a pair are listed (`replay.model.work.kernel_lists`), each part is
the list's: its kernels in their order, on their streams, with their bytes and shapes. Rows travel
as the scheme's kernels have them travel, notify kernels included.

A row of the list that moves bytes is a kernel that HBM bounds, or that has a law of its own. If it
stands for several kernels, the last one moves all its bytes. A product of routed experts is their
grouped kernel; a gradient of their weights is a call for each expert. Where the list has half of
these calls in a second stream, they alternate between the two, and the next row waits for both.

Beside the published profile of DeepSeek-V3's pair on H800 kernels that compute are too fast
(``replay/chains/MODELS.md`` has both, by kind). Norms have grids of 132 and 396 blocks, what 132 SMs
hold (Dao-AILab/flash-attention 0251105, csrc/layer_norm/ln_bwd_kernels.cuh:488): beside 20 SMs for
rows the last of them run behind the others, up to 0.3 ms if each keeps its share of memory. The clock is
not why: 14.9 TFLOP in FP8, 2.6 in BF16 and 24 GB a pair draw 600 of 700 W (`hwmodel.power`). Nor are
hosts: all calls of a pair take a thread 8.7 ms (`replay.model.work.stacks`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.chain import LayerTasks, TaskRanges
from replay.chains.kernel_streams import KernelSpan, StageStreams
from replay.chains.launch_program import LaunchProgram
from replay.chains.replay import Strategy
from replay.errors import UserError
from replay.model.compute import laws
from replay.model.compute.calls import gradient_calls
from replay.model.compute.dense_kernels import DenseKernels
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.listed_parts import ListedParts
from replay.model.compute.row_tiles import padded_rows
from replay.model.compute.weight_gradients import DOWN, UP
from replay.model.machine.host import UNSTAGED, Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.work.kernel_lists import KernelList, KernelSizes, ListedOperation, load
from replay.model.work.stacks import even_sizes
from replay.schemes.ep.staged_schemes import ListedExchanges

if TYPE_CHECKING:
    from replay.chains.chain import ChainLink
    from replay.chains.kernel_streams import Occupation
    from replay.chains.launch_program import PairPart
    from replay.chains.replay import Replay
    from replay.engine import GraphBuilder
    from replay.model.arrays import Bytes, Counts, Ints
    from replay.model.work.context import Context
    from replay.model.work.layer import LayerWork
    from replay.model.work.stacks import Stack
    from tracegen import ModelShape

LAYOUT = "contiguous"
"""Rows of experts in memory: each expert's are padded to 128, as grids of the trace have it."""

PARTS: Mapping[tuple[bool, PairPart], tuple[str, Occupation]] = {
    (True, "receive"): ("combine", "rows"),
    (False, "prepare"): ("attention", "attention"),
    (False, "attend"): ("router", "attention"),
    (True, "experts"): ("experts", "experts"),
    (False, "receive"): ("dispatch", "rows"),
    (True, "combine"): ("dispatch", "rows"),
    (True, "weights"): ("experts' weights", "experts"),
    (False, "experts"): ("experts", "experts"),
    (True, "attend"): ("router", "attention"),
    (True, "prepare"): ("attention", "attention"),
    (True, "attention weights"): ("attention's weights", "attention"),
    (False, "combine"): ("combine", "rows"),
}
"""Part of a list and what it keeps busy, by pass (backward or not) and part of a pair. Others have
no kernels of their own: the list has shared experts among the experts' kernels, what lies before a
dispatch with the router and what lies behind a combine with attention."""


class ListedRow(NamedTuple):
    """A row of a list on every GPU.

    Attributes
    ----------
    of
        What it is; the numbers in it are those of one GPU.
    moves
        (rank,): bytes that its kernels read and write.
    gemm
        (rank, 3): rows, columns and inner dimension of each product; ignored if it is none.
    rows
        (rank,): rows of the GPU's experts, padding included.
    law
        Name and sizes of the law by which its kernels may take longer than their bytes, the first
        size (rank,).
    host_ps
        What each launch takes the host; None for a bare one.
    """

    of: ListedOperation
    moves: Ints
    gemm: Ints
    rows: Counts
    law: tuple[str, Ints, int] | None = None
    host_ps: int | None = None

    @property
    def operation(self) -> Operation:
        """The row as a step of a host's program."""
        launches = max(self.of.kernels, 1)
        return Operation(self.of.name, launches, source=self.of.source, host_ps=self.host_ps)


def sizes_of(shape: ModelShape, work: LayerWork, context: Context) -> list[KernelSizes]:
    """Sizes of each rank's kernels, with the rows that its experts have in this layer."""
    rows, copies = padded_rows(work, LAYOUT), work.matrix("copies").sum(axis=0)
    return [
        dataclasses.replace(
            even_sizes(shape, tokens=tokens, ranks=work.num_ranks),
            local=len(work.experts_of_rank[rank]),
            rows=int(rows[rank]),
            copies=int(copies[rank]),
        )
        for rank, tokens in enumerate(context.tokens.tolist())
    ]


def rows_of(
    found: KernelList,
    part: str,
    sizes: Sequence[KernelSizes],
    *,
    is_backward: bool,
    stack: Stack | None = None,
) -> list[ListedRow]:
    """Rows of a part in one pass, computed for the GPUs of these sizes.

    Parameters
    ----------
    stack
        Whose hosts launch them; None for bare launches.
    """

    @functools.cache
    def on(one: KernelSizes) -> tuple[ListedOperation, ...]:
        return found.operations(
            one, found.option_values(), parts=(part,), direction="backward" if is_backward else "forward"
        )

    each, rows = [on(one) for one in sizes], np.array([one.rows for one in sizes], np.int64)
    return [
        ListedRow(
            alike[0],
            np.array([one.moves for one in alike], np.int64),
            np.array([one.gemm or (0, 0, 0) for one in alike], np.int64),
            rows,
            _law(alike),
            None if stack is None else stack.each_ps(alike[0]),
        )
        for alike in zip(*each, strict=True)
    ]


def _law(alike: Sequence[ListedOperation]) -> tuple[str, Ints, int] | None:
    every = [one.law for one in alike if one.law is not None]
    if not every:
        return None
    name, _, second = every[0]
    return name, np.array([first for _, first, _ in every], np.int64), second


def check(found: KernelList, shape: ModelShape, work: LayerWork) -> None:
    """Refuse models that a list has no kernels for.

    Raises
    ------
    UserError
        If it is another attention than latent attention, there are no shared experts, or number
        types are not the list's.
    """
    if not (shape.q_lora_rank and shape.kv_lora_rank and shape.gated):
        lacking = "its model has latent queries, keys and values, and gated experts"
    elif not shape.num_shared_experts * shape.shared_intermediate:
        lacking = "its model has shared experts"
    elif work.precision.gemm != "fp8" or work.precision.dispatch != "fp8":
        lacking = "its products and the rows of its dispatch are FP8 (--precision fp8)"
    else:
        return
    raise UserError(f"stack {found.name!r} has no kernels for this: {lacking}")


class ListedProgram(LaunchProgram):
    """Launches for one pass whose kernels a list has; see `LaunchProgram`."""

    def __init__(
        self,
        machine: Machine,
        scheme: ListedExchanges,
        streams: StageStreams,
        start: Ints,
        stack: Stack | None = None,
    ) -> None:
        super().__init__(machine, scheme, streams, start)
        self._exchanges, self._list = scheme, load(scheme.kernel_list)
        self._sizes: list[KernelSizes] = []
        self._times: dict[tuple[object, ...], int] = {}
        self._stack = stack

    def come_to(self, link: ChainLink, context: Context | None, work: LayerWork) -> None:
        """Go on to the next layer; see `LaunchProgram`."""
        super().come_to(link, context, work)
        assert link.between is not None
        assert context is not None
        check(self._list, link.between.shape, work)
        self._sizes = sizes_of(link.between.shape, work, context)
        if isinstance(link.between, ListedParts):
            self._stack = link.between.stack

    def add(self, part: PairPart) -> None:
        """Add the kernels of a part."""
        if part == "send":
            self.arrived = self.started = self.ends
        found = PARTS.get((self._link.is_backward, part))
        if found is None:
            return
        name, of = found
        rows = rows_of(self._list, name, self._sizes, is_backward=self._link.is_backward, stack=self._stack)
        if of == "rows":
            self._move(rows, is_back=part == "combine")
            return
        weights = part.endswith("weights")
        begun = self._streams.compute.next(self._computed if weights else self.ends)
        ended = self._walk(rows, begun)
        if part == "experts":
            self._computed = ended
        elif part == "prepare" and self._link.is_backward:
            self._computed = ended  # of attention, whose weights come last
        if not weights:
            self.ends = ended
        self._end(of, begun, ended)

    def _move(self, rows: Sequence[ListedRow], *, is_back: bool) -> None:
        """Add kernels of the stream for rows: the list's before the exchange, then the scheme's."""
        offered = self._streams.moving.next(self.ends)
        before = [one for one in rows if one.of.kind == "memory"]
        exchange = self._exchanges.combine if is_back else self._exchanges.dispatch

        def move(begun: Ints) -> Ints:
            self.machine.host.enter(UNSTAGED, is_backward=self._link.is_backward)
            return exchange(self._work, self.machine, begun)

        self.ends = self._streams.move(self._walk(before, offered), move)
        self.through = self.ends
        self.spans.append(KernelSpan("rows", offered, self.ends))

    # ---- kernels ---------------------------------------------------------------------------------

    def _walk(self, rows: Sequence[ListedRow], after: Ints) -> Ints:
        """Add kernels one after the other, calls that alternate between two streams together."""
        streams = 1 + any(one.of.stream == "weights" for one in rows)
        for one in rows:
            if one.of.stream == "compute" or one.of.kind == "memory":
                after = self._kernels(one, after, streams)
        return after

    def _kernels(self, one: ListedRow, after: Ints, streams: int) -> Ints:
        if one.of.kind == "attention":
            return self._attention(after)
        if one.of.gemm is None:
            return self._moving_bytes(one, after)
        if not one.of.is_routed:
            return self._product(one, after)
        if not one.of.weights:
            return self._multiply_routed(one, after)
        machine, work, pool = self.machine, self._work, self.machine.sms.for_kernels()
        of = UP if int(one.gemm[0, 0]) == work.shape.gemm1_columns else DOWN
        return gradient_calls(machine, work, of, pool, after, streams=streams)

    def _moving_bytes(self, one: ListedRow, after: Ints) -> Bytes:
        machine, what = self.machine, one.operation
        if one.of.kind != "rows":
            return machine.small_kernels(Kind.BETWEEN, one.moves, after, what, least=laws.least(machine, one.law))
        begun = machine.kernel(after, what)
        return machine.elementwise(Kind.PERMUTE, one.moves, begun, rows=one.rows)

    def _attention(self, after: Ints) -> Ints:
        between = self._link.between
        assert between is not None
        assert self._context is not None
        return between.mix(self.machine, self._context, after)

    def _product(self, one: ListedRow, after: Ints) -> Ints:
        """Add a product of dense parts."""
        kernels = DenseKernels(
            self.machine,
            one.of.types or self._work.precision.gemm,
            after,
            is_backward=False,
            known=self._times,
        )
        kernels.product(one.gemm, one.operation, of_weights=one.of.weights)
        return kernels.end

    def _multiply_routed(self, one: ListedRow, after: Ints) -> Ints:
        """Add a product of routed experts, on the SMs that the other stream leaves."""
        pool = self.machine.sms.for_kernels()
        gemm = next(of for of in Gemm.of_matrices(self._work) if (of.n, of.k) == _columns(one))
        return gemm_kernel(self.machine, self._work, gemm, pool, after, layout=LAYOUT).end


def _columns(one: ListedRow) -> tuple[int, int]:
    """Columns of a product and its inner dimension, which are the same on every GPU."""
    _, n, k = one.gemm[0].tolist()
    return n, k


ALONE: Mapping[bool, tuple[PairPart, ...]] = {
    False: ("send", "prepare", "attend", "receive", "experts", "combine"),
    True: (
        "send",
        "receive",
        "experts",
        "weights",
        "combine",
        "attend",
        "prepare",
        "attention weights",
    ),
}
"""Parts of a pass that nothing runs beside, by whether it is backward."""


class PassesInTurn(Strategy):
    """Layers one after the other under a list, in one stream that has all SMs."""

    crosses_layers = False

    def layers(self, replay: Replay, builder: GraphBuilder) -> Iterator[LayerTasks]:
        """Add layers to a graph; see `Strategy`."""
        links, scheme = replay.links, replay.scheme
        assert isinstance(scheme, ListedExchanges)
        work = links[0].work()
        machine = replay.machine(builder, work)
        start = machine.mark(machine.ranks)
        streams = StageStreams(machine, "hook")
        program = ListedProgram(machine, scheme, streams, start, replay.stack)
        for number, link in enumerate(links):
            first_task = builder.num_tasks
            machine.notes.layer = number
            machine.host.next_layer(same_graph=number > 0 and link.is_with(links[number - 1]))
            work = link.work()
            if link.is_backward:
                work = work.putting_off_weights()
            program.come_to(link, link.context, work)
            for part in ALONE[link.is_backward]:
                program.add(part)
            yield LayerTasks(
                reached={number: program.reached},
                starts={number: program.started},
                finishes={number: program.through},
                ends=program.through,
                ranges=TaskRanges(np.array([first_task, builder.num_tasks]), np.array([number])),
                machine=machine,
                work=work,
                summary=work.summary(),
                memory=program.memory,
                through=program.through,
            )
