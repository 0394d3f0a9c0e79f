"""What every scheme of tensor parallelism must do: one is under test when it is listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from hwmodel import System
from replay.engine import GraphBuilder, Timeline, schedule
from replay.measure.measured import measures
from replay.model.machine.kinds import ACKS, KIND_NAMES, Kind
from replay.model.machine.machine import Ints, Machine
from replay.model.work.transformer_layer import (
    Attention,
    Enter,
    Leave,
    Part,
    Product,
    Sizes,
    TensorLayer,
    layer_of,
)
from replay.model.work.transformer_shape import LayerShape
from replay.schemes.contract.case import one_flop_per_picosecond, system_for
from replay.schemes.contract.reading import Dependencies, Port, port_bytes
from replay.schemes.contract.sms import most_in_use, only_communicating
from replay.schemes.tp.base import GATHER, REDUCE, TensorScheme
from replay.schemes.tp.plain import NoCommunication
from replay.schemes.tp.traffic import GATHERS, REDUCES, TensorTraffic, gathers_of, payload_of

DENSE = LayerShape(
    name="dense", hidden=384, intermediate=768, gated=True, num_heads=48, num_kv_heads=48,
    head_dim=8, num_layers=1,
)  # fmt: skip
EXPERTS = LayerShape(
    name="experts", hidden=256, intermediate=128, gated=True, num_heads=8, num_kv_heads=2,
    head_dim=32, num_layers=1, num_experts=4, topk=2, num_shared_experts=1,
    shared_intermediate=128,
)  # fmt: skip

FEWER = {"chunks": 2}
"""Options whose defaults make many tasks of a small layer."""


def small(scheme: TensorScheme, **options: object) -> TensorScheme:
    """The scheme with some options, and fewer tasks."""
    fewer = {name: value for name, value in FEWER.items() if hasattr(scheme.options, name)}
    return scheme.with_options({**fewer, **options})


SCHEMES = {
    **{name: small(scheme) for name, scheme in LISTED.items()},
    **{
        f"{name}, sequence parallel": small(scheme, sequence_parallel=True)
        for name, scheme in LISTED.items()
        if hasattr(scheme.options, "sequence_parallel")
    },
}
"""Every scheme as it is, and with sequence parallelism where that is an option."""


class Small(NamedTuple):
    """A small layer."""

    num_ranks: int
    tokens: int
    is_backward: bool = False
    part: Part = "layer"
    shape: LayerShape = DENSE
    is_decode: bool = False

    def make(self) -> TensorLayer:
        """Count its work."""
        sizes = Sizes(self.tokens, 64, self.is_decode, 128, 128)
        return layer_of(
            self.shape, self.num_ranks, sizes, is_backward=self.is_backward, part=self.part
        )


LAYERS = {
    "forward": Small(8, 256),
    "forward, several tiles": Small(2, 640),
    "backward": Small(4, 256, is_backward=True),
    "attention to mlp, backward": Small(4, 128, is_backward=True, part="attention-to-mlp"),
    "mlp to attention, 3 GPUs": Small(3, 384, part="mlp-to-attention"),
    "mlp to attention, 12 GPUs": Small(12, 96, part="mlp-to-attention"),
    "decode": Small(4, 16, is_decode=True),
    "experts": Small(4, 64, shape=EXPERTS),
    "experts, backward": Small(2, 64, is_backward=True, shape=EXPERTS),
    "one GPU": Small(1, 64),
}
EVERY_TIME = (
    *("attention to mlp, backward", "mlp to attention, 3 GPUs", "decode", "experts", "one GPU"),
)
"""Layers of the default tier; all others are extended."""
BY_TURNS = ("forward", "attention to mlp, backward", "decode", "experts")
"""Layers that are also built with GPUs that begin one after another."""


class Built:
    """A scheme's tasks of a layer and their schedule; rank r starts when `begins_ps[r]` is over.

    Attributes
    ----------
    first
        Number of the first task that the scheme added.
    """

    def __init__(
        self, scheme: TensorScheme, layer: TensorLayer, system: System, *, late: bool = False
    ) -> None:
        self.scheme, self.layer = scheme, layer
        graph = GraphBuilder(KIND_NAMES)
        self.machine = Machine(system, graph, layer.num_ranks)
        self.begins_ps = 10_000_000 * late * np.arange(layer.num_ranks, 0, -1)
        start = graph.add(
            layer.num_ranks, resource=-1, duration_ps=self.begins_ps, kind=Kind.BETWEEN,
            rank=self.machine.ranks,
        )  # fmt: skip
        self.first = graph.num_tasks
        self.ends: Ints = np.asarray(scheme.build(layer, self.machine, start))
        self.graph = graph.build()

    @cached_property
    def timeline(self) -> Timeline:
        """The schedule."""
        return schedule(self.graph)

    def of_kind(self, *kinds: Kind) -> Ints:
        """Numbers of the tasks of some kinds."""
        return np.flatnonzero(np.isin(self.graph.kind, kinds))

    def flop(self, *kinds: Kind) -> list[int]:
        """Operations of each GPU's SM tasks, where one takes a picosecond."""
        tasks = self.of_kind(*kinds)
        tasks = tasks[np.isin(self.graph.resource[tasks], self.machine.sms.resources)]
        done = np.zeros(self.layer.num_ranks, np.int64)
        np.add.at(done, self.graph.rank[tasks], self.graph.duration_ps[tasks])
        return done.tolist()


class Case:
    """One scheme on one layer, built once for all its tests."""

    def __init__(self, scheme: TensorScheme, layer: TensorLayer) -> None:
        self.scheme, self.layer = scheme.with_options(scheme.exact), layer

    @cached_property
    def built(self) -> Built:
        """The layer on GPUs as they are."""
        return Built(self.scheme, self.layer, system_for(self.layer.num_ranks))

    @cached_property
    def late(self) -> Built:
        """The same with ranks that begin one after another."""
        return Built(self.scheme, self.layer, system_for(self.layer.num_ranks), late=True)

    @cached_property
    def counted(self) -> Built:
        """On SMs that take a picosecond for an operation, and for nothing else."""
        return Built(self.scheme, self.layer, one_flop_per_picosecond())


LESS_THAN_A_ROW = 1e-4

CASES = [
    pytest.param(scheme, layer, marks=() if layer in EVERY_TIME else pytest.mark.extended)
    for scheme in SCHEMES
    for layer in LAYERS
    if not SCHEMES[scheme].refuses(LAYERS[layer].make())
]
Check = Callable[[Case], None]
CHECKS: list[Check] = []
BY_TURNS_CHECKS: list[Check] = []


def check(one: Check) -> Check:
    """A check of every case."""
    CHECKS.append(one)
    return one


def by_turns(one: Check) -> Check:
    """A check of the layers that are also built with GPUs that begin one after another."""
    BY_TURNS_CHECKS.append(one)
    return one


# ---- what is declared ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_declares_what_users_are_told(name: str) -> None:
    scheme = SCHEMES[name]
    assert scheme.name == name.removesuffix(", sequence parallel")
    assert scheme.summary
    assert len(scheme.summary) <= 70
    assert "\n" not in scheme.summary + scheme.source
    assert scheme.source
    assert bool(scheme.proposes) <= bool(scheme.assumes)  # hardware that is not there is assumed
    assert scheme.traffic.gather in GATHERS
    assert scheme.traffic.reduce in REDUCES
    assert scheme.sequence_parallel == (not scheme.traffic.reduce.endswith("-all"))
    assert scheme.sequence_parallel == (scheme.traffic.gather != "none")
    assert scheme.with_options(scheme.exact).describe()["name"] == scheme.name


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_runs_both_passes_and_refuses_in_one_line(name: str) -> None:
    refused = {small: SCHEMES[name].refuses(layer.make()) for small, layer in LAYERS.items()}
    assert not refused["forward"]
    assert not refused["backward"]
    assert "\n" not in "".join(refused.values())


# ---- bytes on ports ------------------------------------------------------------------------------


@check
def payload_is_that_of_every_row(case: Case) -> None:
    found = port_bytes(case.built.graph)
    expected = payload_row_by_row(case.layer, case.scheme.traffic)
    assert found == {"dispatch": expected["gather"], "combine": expected["reduce"]}


@check
def closed_forms_are_those_of_rows(case: Case) -> None:
    closed = payload_of(case.layer, case.scheme.traffic)
    rows = payload_row_by_row(case.layer, case.scheme.traffic)
    for phase in ("gather", "reduce"):
        for gpu in range(case.layer.num_ranks):
            assert closed[phase].up == rows[phase]["uplink", gpu]
            assert closed[phase].down == rows[phase]["downlink", gpu]


@cache
def payload_row_by_row(layer: TensorLayer, traffic: TensorTraffic) -> dict[str, Counter[Port]]:
    """Payload of each phase on every port, by sending every row of the layer."""
    num = {"gather": gathers_of(layer), "reduce": layer.num(Leave)}
    found: dict[str, Counter[Port]] = {"gather": Counter(), "reduce": Counter()}
    if layer.num_ranks > 1:
        for phase, counter in found.items():
            for row in range(layer.tokens):
                owner = row * layer.num_ranks // layer.tokens
                for port in _ports_of_row(phase, getattr(traffic, phase), owner, layer.num_ranks):
                    counter[port] += num[phase] * layer.hidden * 2
    return found


def _ports_of_row(phase: str, name: str, owner: int, num_ranks: int) -> list[Port]:
    """Every port that one row passes on its way from, or to, its owner; as often as it does."""
    others = [gpu for gpu in range(num_ranks) if gpu != owner]
    every = range(num_ranks)
    if name == "none":
        return []
    if phase == "gather":
        if name == "ring":
            way = [(owner + hop) % num_ranks for hop in range(num_ranks)]
            return _along(way)
        if name == "direct":
            return [port for gpu in others for port in (("uplink", owner), ("downlink", gpu))]
        receive = every if name == "switch" else others
        return [("uplink", owner), *(("downlink", gpu) for gpu in receive)]
    way = [(owner + 1 + hop) % num_ranks for hop in range(num_ranks)]  # ends at the owner
    if name in ("ring", "ring-all"):
        back = [(owner + hop) % num_ranks for hop in range(num_ranks)]
        return _along(way) + (_along(back) if name == "ring-all" else [])
    if name in ("direct", "direct-all"):
        to = [port for gpu in others for port in (("uplink", gpu), ("downlink", owner))]
        back = [port for gpu in others for port in (("uplink", owner), ("downlink", gpu))]
        return to + (back if name == "direct-all" else [])
    send = others if name == "merged" else every
    summed: list[Port] = [*(("uplink", gpu) for gpu in send), ("downlink", owner)]
    if name == "switch-all":
        summed += [("uplink", owner), *(("downlink", gpu) for gpu in every)]
    return summed


def _along(way: list[int]) -> list[Port]:
    """Ports between the GPUs of a way."""
    return [
        port
        for gpu, following in pairwise(way)
        for port in (("uplink", gpu), ("downlink", following))
    ]


@check
def only_rows_and_sums_are_payload(case: Case) -> None:
    graph = case.built.graph
    kinds = {Kind(kind) for kind in np.unique(graph.kind[graph.payload_bytes > 0]).tolist()}
    assert kinds <= {GATHER.up, GATHER.down, REDUCE.up, REDUCE.down}
    assert (graph.wire_bytes >= graph.payload_bytes).all()


# ---- products ------------------------------------------------------------------------------------


@check
def products_multiply_exactly_the_rows(case: Case) -> None:
    layer, built = case.layer, case.counted
    enters = [step for step in layer.steps if isinstance(step, Enter)]
    leaves = [step for step in layer.steps if isinstance(step, Leave)]
    beside = [
        work
        for step in (*enters, *leaves)
        for work in (step.before if isinstance(step, Enter) else step.after)
        if isinstance(work, Product)
    ]
    every = [step.product for step in (*enters, *leaves)] + beside
    for kind, products in (
        (Kind.GEMM1, [step.product for step in enters]),
        (Kind.GEMM2, [step.product for step in leaves]),
        (Kind.DENSE_GEMM, beside),
        (Kind.WGRAD, every if layer.is_backward else []),
    ):
        flop = sum(2 * one.rows * one.n * one.k for one in products)
        for found in built.flop(kind):  # slices of the inner dimension write sums besides
            assert flop <= found <= flop * (1 + LESS_THAN_A_ROW), kind


@check
def attention_is_carried_out_as_often_as_it_stands_there(case: Case) -> None:
    num = sum(isinstance(work, Attention) for step in case.layer.steps for work in _works(step))
    assert len(case.built.of_kind(Kind.ATTENTION)) == num * case.layer.num_ranks


def _works(step: object) -> tuple[object, ...]:
    return getattr(step, "works", ())


ROWS_WAIT = {
    "feed-forward network": Small(4, 512),
    "feed-forward network, backward": Small(4, 512, is_backward=True),
}


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("small", ROWS_WAIT)
def test_no_row_is_multiplied_before_it_is_there(name: str, small: str) -> None:
    """At every instant, against the bytes that came in; of a step that gathers, and no other."""
    scheme = SCHEMES[name].with_options(SCHEMES[name].exact)
    layer = ROWS_WAIT[small].make()
    step = next(step for step in layer.steps if isinstance(step, Enter))
    enter = TensorLayer(layer.num_ranks, layer.tokens, layer.hidden, (step,), layer.is_backward)
    built = Built(scheme, enter, one_flop_per_picosecond())
    if not scheme.sequence_parallel:
        assert not port_bytes(built.graph)["dispatch"]  # all rows are there
        return
    bytes_of_flop = layer.tokens * layer.row_bytes / step.product.flop
    own = layer.owned * layer.row_bytes
    for rank in range(layer.num_ranks):
        tiles = _by_time(built, (Kind.GEMM1,), rank, "start_ps", built.graph.duration_ps)
        rows = _by_time(built, (GATHER.down,), rank, "end_ps", built.graph.payload_bytes)
        arrived = own + np.append(0, np.cumsum(rows[1]))
        there = arrived[np.searchsorted(rows[0], tiles[0], side="right")]
        assert (np.cumsum(tiles[1]) * bytes_of_flop <= there + 1e-3).all()


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("small", ROWS_WAIT)
def test_no_sum_leaves_before_it_is_made(name: str, small: str) -> None:
    """At every instant: a GPU sends no more than the rows that it has multiplied."""
    scheme = SCHEMES[name].with_options(SCHEMES[name].exact)
    layer = ROWS_WAIT[small].make()
    step = next(step for step in layer.steps if isinstance(step, Leave))
    leave = TensorLayer(layer.num_ranks, layer.tokens, layer.hidden, (step,), layer.is_backward)
    built = Built(scheme, leave, one_flop_per_picosecond())
    bytes_of_flop = layer.tokens * layer.row_bytes / step.product.flop
    for rank in range(layer.num_ranks):
        tiles = _by_time(built, (Kind.GEMM2,), rank, "end_ps", built.graph.duration_ps)
        sums = _by_time(built, (REDUCE.up,), rank, "start_ps", built.graph.payload_bytes)
        made = np.append(0, np.cumsum(tiles[1])) * bytes_of_flop
        assert sums[1].sum() > 0
        sent = np.minimum(np.cumsum(sums[1]), layer.tokens * layer.row_bytes)  # then copies of sums
        assert (sent <= made[np.searchsorted(tiles[0], sums[0], side="right")] + 1e-3).all()


def _by_time(
    built: Built, kinds: tuple[Kind, ...], rank: int, when: str, what: Ints
) -> tuple[Ints, Ints]:
    """Times of a GPU's tasks of some kinds in order, and a column of them."""
    tasks = built.of_kind(*kinds)
    resource = built.graph.resource[tasks]
    tasks = tasks[(resource >= 0) & (built.graph.resources.owner[resource] == rank)]
    times = getattr(built.timeline, when)[tasks]
    order = np.argsort(times, kind="stable")
    return times[order], what[tasks[order]]


@by_turns
def ends_wait_for_rows_and_sums(case: Case) -> None:
    """Every byte that comes to a GPU is waited for by the task that stands for its end."""
    graph, waits = case.built.graph, Dependencies(case.built.timeline)
    incoming = case.built.of_kind(GATHER.down, REDUCE.down)
    incoming = incoming[graph.payload_bytes[incoming] > 0]
    for rank, end in enumerate(case.built.ends.tolist()):
        own = incoming[graph.resources.owner[graph.resource[incoming]] == rank]
        assert set(own.tolist()) <= waits.before([end])


# ---- beginning and end ---------------------------------------------------------------------------


@check
def ends_are_tasks_one_for_each_rank(case: Case) -> None:
    ends = case.built.ends
    assert ends.shape == (case.layer.num_ranks,)
    assert np.issubdtype(ends.dtype, np.integer)
    assert ((ends >= 0) & (ends < case.built.graph.num_tasks)).all()


@by_turns
def nothing_happens_before_its_start(case: Case) -> None:
    late, graph = case.late, case.late.graph
    works = (graph.duration_ps > 0) | (graph.resource >= 0)
    works[: late.first] = False
    start_ps = late.timeline.start_ps
    assert (start_ps[works] >= late.begins_ps.min()).all()
    on_sm = works & np.isin(graph.resource, late.machine.sms.resources) & (graph.duration_ps > 0)
    owner = graph.resources.owner[graph.resource[on_sm]]
    assert (start_ps[on_sm] >= late.begins_ps[owner]).all()


@check
def everything_is_over_at_the_end(case: Case) -> None:
    _is_over_at_the_end(case.built)


@by_turns
def everything_is_over_at_the_end_of_gpus_that_are_late(case: Case) -> None:
    _is_over_at_the_end(case.late)


def _is_over_at_the_end(built: Built) -> None:
    graph, timeline = built.graph, built.timeline
    ends = timeline.visible_ps[built.ends]
    on_sm = np.isin(graph.resource, built.machine.sms.resources)
    owner = graph.resources.owner[graph.resource[on_sm]]
    assert (timeline.end_ps[on_sm] <= ends[owner]).all()
    after = timeline.visible_ps > ends.max()
    assert {Kind(kind) for kind in graph.kind[after].tolist()} <= ACKS


@check
def no_gpu_uses_more_sms_than_it_has(case: Case) -> None:
    machine = case.built.machine
    assert most_in_use(case.built.timeline, machine).sms <= machine.sms.count


@by_turns
def no_gpu_that_is_late_uses_more_sms_than_it_has(case: Case) -> None:
    machine = case.late.machine
    assert most_in_use(case.late.timeline, machine).sms <= machine.sms.count


@check
def as_many_sms_communicate_as_are_stated(case: Case) -> None:
    if case.layer.num_ranks > 1:
        stated = case.scheme.communication_sms(case.built.machine)
        assert only_communicating(case.built.graph, case.built.machine) == stated


# ---- times ---------------------------------------------------------------------------------------


@check
def times_keep_their_bounds(case: Case) -> None:
    built = case.built
    found = measures(built.graph, built.ends, built.machine, built.timeline, phases_separated=False)
    assert found.bounds_us.largest_us <= found.makespan_us
    assert 0 <= found.exposed_communication_us <= found.makespan_us
    # Kernels need what they need by themselves, but for the gaps before them and partial waves.
    plain = Built(
        NoCommunication(sequence_parallel=case.scheme.sequence_parallel),
        case.layer,
        system_for(case.layer.num_ranks),
    )
    for kind in (Kind.ATTENTION, Kind.BETWEEN):
        alone = plain.graph.duration_ps[plain.of_kind(kind)].sum()
        assert case.built.graph.duration_ps[case.built.of_kind(kind)].sum() >= alone


@by_turns
def the_same_layer_gives_the_same_schedule(case: Case) -> None:
    again = Built(case.scheme, case.layer, system_for(case.layer.num_ranks))
    for name in ("start_ps", "end_ps", "visible_ps"):
        assert np.array_equal(getattr(again.timeline, name), getattr(case.built.timeline, name))


# ---- all of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "layer"), CASES)
def test_the_contract(scheme: str, layer: str) -> None:
    """All that is read from one graph and schedule: a test of its own each would be 2,000."""
    case = Case(SCHEMES[scheme], LAYERS[layer].make())
    for one in (*CHECKS, *(BY_TURNS_CHECKS if layer in BY_TURNS else ())):
        one(case)


def test_every_check_is_carried_out() -> None:
    assert (len(CHECKS), len(BY_TURNS_CHECKS)) == (10, 5)
