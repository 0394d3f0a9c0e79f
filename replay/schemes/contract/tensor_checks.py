"""Checks of schemes of tensor parallelism; each looks at one case and says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.chain import LayerGraph
from replay.measure.ports import PORT_NAMES
from replay.model.machine.kinds import ACKS, Kind
from replay.model.work.transformer_layer import Attention, Enter, Leave, Product, TensorLayer
from replay.schemes.contract import basics
from replay.schemes.contract.basics import Check
from replay.schemes.contract.case import (
    AnyCase,
    LayerRun,
    one_after_another,
    one_flop_per_picosecond,
    system_for,
)
from replay.schemes.contract.graph_facts import port_bytes
from replay.schemes.contract.tensor_layers import (
    BY_ROWS,
    BY_TURNS,
    TENSOR_LAYERS,
    payload_row_by_row,
)
from replay.schemes.tp.base import GATHER, REDUCE
from replay.schemes.tp.plain import NoCommunication

if TYPE_CHECKING:
    import numpy.typing as npt

    from replay.engine import TaskGraph, Timeline
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.machine import Machine
    from replay.model.work.transformer_layer import Step
    from replay.schemes.tp.base import TensorScheme

    Column = npt.NDArray[np.integer]

LESS_THAN_A_ROW = 1e-4
PHASES = {"gather": "dispatch", "reduce": "combine"}
"""Phases of a layer, and those of the kinds of their tasks."""


class TensorCase(AnyCase):
    """One scheme on one layer whose weights are sliced; its payload is exact.

    Parameters
    ----------
    name
        Name of the layer in `TENSOR_LAYERS`.
    """

    aftermath = ACKS
    scheme: TensorScheme
    work: TensorLayer

    def __init__(self, scheme: TensorScheme, name: str, work: TensorLayer) -> None:
        self.scheme, self.name, self.work = scheme.with_options(scheme.exact), name, work
        self.system = system_for(work.num_ranks, platform=scheme.platform)

    def under(self, scheme: TensorScheme) -> TensorCase:
        """Make a case of another scheme on the same layer."""
        return TensorCase(scheme, self.name, self.work)

    def run(
        self,
        begins_ps: Picoseconds | None = None,
        num_layers: int = 1,
        work: TensorLayer | None = None,
        *,
        counted: bool = False,
        scheme: TensorScheme | None = None,
    ) -> LayerRun:
        """Build the layer.

        Parameters
        ----------
        work, scheme
            Another layer of as many GPUs, another scheme.
        counted
            Whether SMs take a picosecond for an operation, and for nothing else.
        """
        system = one_flop_per_picosecond(platform=self.scheme.platform) if counted else None
        begins_ps = np.zeros(self.num_ranks, np.int64) if begins_ps is None else begins_ps
        machine = self.machine(system)
        return LayerRun(scheme or self.scheme, work or self.work, machine, begins_ps, num_layers)

    @cached_property
    def built(self) -> LayerGraph:
        """Graph, ends and machine."""
        run = self.run()
        return LayerGraph(run.graph, run.ends, run.machine)

    @property
    def stated_sms(self) -> int | None:
        """SMs that only communicate, as the scheme states them; None on one GPU."""
        return None if self.num_ranks == 1 else self.scheme.communication_sms(self.built.machine)

    @cached_property
    def chain_run(self) -> tuple[Timeline, Machine]:
        """The layer three times in a row on GPUs that begin one after another."""
        run = self.run(one_after_another(self.num_ranks), 3)
        return run.timeline, run.machine


def _of_kind(graph: TaskGraph, *kinds: Kind) -> Ints:
    return np.flatnonzero(np.isin(graph.kind, kinds))


# ---- bytes on ports ------------------------------------------------------------------------------


def payload(case: TensorCase) -> Iterator[str]:
    """Payload of every port against every row, sent by its class of traffic."""
    graph = case.built.graph
    found, row = port_bytes(graph), case.work.row_bytes
    for phase, wanted in payload_row_by_row(case.work, case.scheme.traffic).items():
        carried = found[PHASES[phase]]
        for direction, gpu in sorted(carried.keys() | wanted.keys()):
            more = carried[direction, gpu] - wanted[direction, gpu]
            if more:
                yield (
                    f"{phase}: the {direction} of GPU {gpu} carries "
                    f"{carried[direction, gpu]:,} bytes, its class "
                    f"{getattr(case.scheme.traffic, phase)!r} {wanted[direction, gpu]:,} bytes: "
                    f"{abs(more) / row:g} rows {'too many' if more > 0 else 'are missing'}"
                )
    has_some = graph.payload_bytes > 0
    groups = np.array([*graph.resources.groups, "none"])[graph.resource]
    off = has_some & ~np.isin(groups, PORT_NAMES)
    of_rows = np.isin(graph.kind, (GATHER.up, GATHER.down, REDUCE.up, REDUCE.down))
    for wrong, what in (
        (off, "payload is counted on ports alone"),
        (has_some & ~of_rows, "rows and sums alone are payload"),
        (graph.wire_bytes < graph.payload_bytes, "the wire carries headers beside the payload"),
    ):
        if wrong.any():
            kind = Kind(int(graph.kind[wrong.argmax()])).name
            yield f"{wrong.sum()} tasks, such as one of kind {kind}: {what}"


# ---- products ------------------------------------------------------------------------------------


def products(case: TensorCase) -> Iterator[str]:
    """Operations of every GPU against those of the layer's products."""
    layer, run = case.work, case.run(counted=True)
    enters = [step for step in layer.steps if isinstance(step, Enter)]
    leaves = [step for step in layer.steps if isinstance(step, Leave)]
    works = [one for step in enters for one in step.before]
    works += [one for step in leaves for one in step.after]
    beside = [one for one in works if isinstance(one, Product)]
    entered, left = [step.product for step in enters], [step.product for step in leaves]
    for kind, of in (
        (Kind.GEMM1, entered),
        (Kind.GEMM2, left),
        (Kind.DENSE_GEMM, beside),
        (Kind.WGRAD, entered + left + beside if layer.is_backward else []),
    ):
        flop = sum(2 * one.rows * one.n * one.k for one in of)
        for gpu, found in enumerate(_flop(run, kind)):
            # Slices of the inner dimension write sums besides.
            if not flop <= found <= flop * (1 + LESS_THAN_A_ROW):
                yield (
                    f"{kind.name}: GPU {gpu} carries out {found:,} operations, the layer has "
                    f"{flop:,}: {'some rows are forgotten' if found < flop else 'too many'}"
                )


def _flop(run: LayerRun, kind: Kind) -> list[int]:
    """Operations of each GPU's SM tasks, where one takes a picosecond."""
    graph, tasks = run.graph, _of_kind(run.graph, kind)
    tasks = tasks[np.isin(graph.resource[tasks], run.machine.sms.resources)]
    done = np.zeros(run.machine.num_ranks, np.int64)
    np.add.at(done, graph.rank[tasks], graph.duration_ps[tasks])
    return done.tolist()


def kernels(case: TensorCase) -> Iterator[str]:
    """Attention, norms and activations against those of the layer without communication."""
    graph = case.built.graph
    num = sum(isinstance(one, Attention) for step in case.work.steps for one in _works(step))
    found = len(_of_kind(graph, Kind.ATTENTION))
    if found != num * case.num_ranks:
        yield f"attention runs {found} times on {case.num_ranks} GPUs; the layer has it {num} times"
    alone = NoCommunication(sequence_parallel=case.scheme.sequence_parallel)
    plain = case.run(scheme=alone).graph
    for kind in (Kind.ATTENTION, Kind.BETWEEN):
        least = plain.duration_ps[_of_kind(plain, kind)].sum()
        takes = graph.duration_ps[_of_kind(graph, kind)].sum()
        if takes < least:
            yield f"kernels of kind {kind.name} take {takes:,} ps, alone they take {least:,} ps"


def _works(step: Step) -> tuple[object, ...]:
    return getattr(step, "works", ())


# ---- rows and sums in time -----------------------------------------------------------------------


def rows_wait(case: TensorCase) -> Iterator[str]:
    """At every instant of a gather: rows that are multiplied against rows that are there."""
    layer, scheme = case.work, case.scheme
    step = next(step for step in layer.steps if isinstance(step, Enter))
    run = case.run(work=_only(layer, step), counted=True)
    if not scheme.sequence_parallel:
        if port_bytes(run.graph)["dispatch"]:
            yield "rows are gathered, though every GPU has them: sequence_parallel is False"
        return
    bytes_of_flop = layer.tokens * layer.row_bytes / step.product.flop
    own = layer.own_rows * layer.row_bytes
    for rank in range(layer.num_ranks):
        tiles, flop = _by_time(run, Kind.GEMM1, rank, "start_ps", run.graph.duration_ps)
        rows, nbytes = _by_time(run, GATHER.down, rank, "end_ps", run.graph.payload_bytes)
        arrived = own + np.append(0, np.cumsum(nbytes))
        there = arrived[np.searchsorted(rows, tiles, side="right")]
        early = np.flatnonzero(np.cumsum(flop) * bytes_of_flop > there + 1e-3)
        if len(early):
            yield (
                f"GPU {rank} begins to multiply rows at {tiles[early[0]]:,} ps that come later: "
                "products must wait for what gather returns"
            )


def sums_wait(case: TensorCase) -> Iterator[str]:
    """At every instant of a reduction: sums that leave against rows that are multiplied."""
    layer = case.work
    step = next(step for step in layer.steps if isinstance(step, Leave))
    run = case.run(work=_only(layer, step), counted=True)
    whole = layer.tokens * layer.row_bytes
    for rank in range(layer.num_ranks):
        tiles, flop = _by_time(run, Kind.GEMM2, rank, "end_ps", run.graph.duration_ps)
        sums, nbytes = _by_time(run, REDUCE.up, rank, "start_ps", run.graph.payload_bytes)
        made = np.append(0, np.cumsum(flop)) * whole / step.product.flop
        sent = np.minimum(np.cumsum(nbytes), whole)  # then copies of sums
        early = np.flatnonzero(sent > made[np.searchsorted(tiles, sums, side="right")] + 1e-3)
        if len(early):
            yield (
                f"GPU {rank} sends sums at {sums[early[0]]:,} ps that are made later: reduce must wait for its product"
            )


def _only(layer: TensorLayer, step: Step) -> TensorLayer:
    return TensorLayer(layer.num_ranks, layer.tokens, layer.hidden, (step,), layer.is_backward)


def _by_time(run: LayerRun, kind: Kind, rank: int, when: str, what: Column) -> tuple[Ints, Column]:
    """Times of a GPU's tasks of a kind in order, and a column of them."""
    tasks, graph = _of_kind(run.graph, kind), run.graph
    resource = graph.resource[tasks]
    tasks = tasks[(resource >= 0) & (graph.resources.owner[resource] == rank)]
    times = getattr(run.timeline, when)[tasks]
    order = np.argsort(times, kind="stable")
    return times[order], what[tasks[order]]


def ends_wait(case: TensorCase) -> Iterator[str]:
    """Wait of the task that ends a GPU's layer for every byte that comes to the GPU."""
    graph = case.built.graph
    incoming = _of_kind(graph, GATHER.down, REDUCE.down)
    incoming = incoming[graph.payload_bytes[incoming] > 0]
    owner = graph.resources.owner[graph.resource[incoming]]
    for rank, end in enumerate(case.built.ends.tolist()):
        own = set(incoming[owner == rank].tolist())
        unheeded = own - case.waits.before([end])
        if unheeded:
            yield (f"GPU {rank} ends without waiting for {len(unheeded)} of {len(own)} messages with its rows and sums")


ALL = tuple(TENSOR_LAYERS)
SHORT = tuple(name for name in ALL if name not in BY_ROWS)

TENSOR_CHECKS = {
    "ends": Check("a layer is built, a task per rank returned", ALL, basics.ends),
    "payload": Check("every port carries its rows and sums, to the byte", SHORT, payload),
    "products": Check("products multiply exactly their rows", SHORT, products),
    "kernels": Check("attention, norms and activations are run", SHORT, kernels),
    "rows": Check("no row is multiplied before it is there", BY_ROWS, rows_wait),
    "sums": Check("no sum leaves before it is made", BY_ROWS, sums_wait),
    "waits": Check("a rank's end waits for its rows and sums", BY_TURNS, ends_wait),
    "starts": Check("nothing begins before its start", BY_TURNS, basics.starts),
    "aftermath": Check("nothing that matters ends last", SHORT, basics.aftermath),
    "frees": Check("a rank ends when its SMs are free", SHORT, basics.frees),
    "late": Check("the same on ranks that begin in turn", BY_TURNS, basics.late_frees),
    "sms": Check("no GPU uses more SMs than it has, in a chain", SHORT, basics.sms),
    "communication": Check("as many SMs communicate as are stated", SHORT, basics.communication),
    "same": Check("the same layer gives the same schedule", BY_TURNS, basics.same_again),
    "options": Check("every value of an option runs or is refused", ("mlp to attention, 3 GPUs",), basics.values),
}
"""What a scheme of tensor parallelism must keep, by name, in the order of examination."""
