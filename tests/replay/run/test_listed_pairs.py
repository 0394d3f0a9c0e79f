"""A pair of layers under a stack's list: what is launched, what it moves, what runs beside what."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from small_shape import small_shape

import hwmodel
import replay
import tracegen
from hwmodel.compute import gradient_type
from replay.chains.listed_pairs import LAYOUT, PARTS, PassesInTurn, rows_of, sizes_of
from replay.chains.pass_pairs import ORDERS
from replay.engine import schedule
from replay.errors import UserError
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.model.compute import laws
from replay.model.compute.row_tiles import padded_rows
from replay.model.machine.host import UNSTAGED, Calls, StageCalls
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.model.work.kernel_lists import load

SHAPE = small_shape(
    name="latent",
    hidden=512,
    num_experts=16,
    num_layers=2,
    num_kv_heads=8,
    num_shared_experts=1,
    shared_intermediate=256,
    q_lora_rank=256,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=64,
)
GIVEN: dict[str, Any] = {
    "system": "dgx-h100",
    "scheme": "deepep",
    "options": {"num_sms": 20, "stack": "deepseek"},
    "precision": "fp8",
    "direction": "training",
    "interleave": "dualpipe",
    "layer": 0,
    "stack": "bare",
}


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    return tracegen.generate.generate(
        "zipf",
        SHAPE,
        ranks=4,
        tokens_per_rank=160,
        layers=2,
        steps=2,
        phase="training",
        seed=3,
        skew=0.5,
    )


def prepared(trace: tracegen.RoutingTrace, **given: Any) -> Any:
    return set_up(RunSpec(**{**GIVEN, **given}), {}).prepare(trace)


@pytest.fixture(scope="module")
def pair(trace):
    """Links of a pair, its graph, and when each task is visible."""
    made = prepared(trace)
    chain = made.build()
    return made.links, chain, schedule(chain.built.graph)


def listed(links, is_backward: bool, part: str):
    link = links[is_backward]
    sizes = sizes_of(SHAPE, link.work(), link.context)
    return rows_of(load("deepseek"), part, sizes, is_backward=is_backward)


def moves(row) -> bool:
    """Whether a row is of kernels that move bytes; the layout is the scheme's own."""
    of_memory = row.of.kind in ("memory", "tiny", "map", "rows")
    return row.of.gemm is None and of_memory and row.of.call != "wait" and row.of.name != "layout"


def test_every_part_of_the_list_is_launched_once() -> None:
    parts = [(one.name, one.direction == "backward") for one in load("deepseek").parts]
    found = [(name, is_backward) for (is_backward, _), (name, _) in PARTS.items()]
    assert sorted(found) == sorted(parts)
    launched = [(is_backward, part) for is_backward, parts in ORDERS["dualpipe"].launches for part in parts]
    order = [PARTS[one][0] for one in launched if one in PARTS]
    assert order == [name for name, _ in parts]


def test_the_host_launches_the_list_in_its_order(pair) -> None:
    links, chain, _ = pair
    names, launches, want, kernels = [], 0, [], 0
    for one in chain.built.machine.host.program:
        launches += one.launches
        names.append(one.name)
    for part in load("deepseek").parts:
        for row in listed(links, part.direction == "backward", part.name):
            # Copies of the device, which have no kernel, are launched as well.
            kernels += max(row.of.kernels, int(row.of.moves > 0 or row.of.call == "torch"))
            if moves(row):
                want.append(row.of.name)
    assert launches == kernels
    # Kernels of one row stand together, the last of them by itself.
    found = [name for name, _ in itertools.groupby(names) if name in set(want)]
    assert found == want


def test_kernels_move_the_bytes_of_the_list_through_memory(pair) -> None:
    links, chain, _ = pair
    graph, hbm = chain.built.graph, hwmodel.load("dgx-h100").hbm
    want = np.zeros(4, np.int64)
    for part in load("deepseek").parts:
        for row in listed(links, part.direction == "backward", part.name):
            if moves(row):
                want += np.asarray(hbm.stream_ps(row.moves))
    of = np.isin(graph.kind, [Kind.BETWEEN, Kind.PERMUTE])
    of &= np.isin(graph.resource, chain.built.machine.resources.hbm)
    found = np.zeros(4, np.int64)
    np.add.at(found, graph.rank[of], graph.duration_ps[of])
    assert found.tolist() == want.tolist()


def test_kernels_take_what_their_law_says_beyond_their_bytes(trace, pair, monkeypatch: pytest.MonkeyPatch) -> None:
    links, _, alone = pair
    chains = [row for row in listed(links, False, "router") if row.law and row.law[0] == "chain"]
    assert [row.of.name for row in chains] == ["choice", "loss of the router"]
    assert all(row.law[1].shape == (4,) for row in chains)
    later = 10**10
    monkeypatch.setitem(laws.LAWS, "chain", lambda *_: Time(later))
    found = schedule(prepared(trace).build().built.graph)
    assert found.makespan_ps - alone.makespan_ps == pytest.approx(2 * later, rel=0.01)


def test_rows_of_experts_are_the_padded_ones(pair) -> None:
    links, *_ = pair
    work = links[1].work()
    rows = {one.of.name: one for one in listed(links, True, "experts")}
    down = rows["down, gradient of input"]
    assert down.gemm[:, 0].tolist() == padded_rows(work, LAYOUT).tolist()
    assert down.of.is_routed
    assert not down.of.weights
    copies = work.matrix("copies").sum(axis=0)
    expanded = rows["permute"]
    assert expanded.moves.tolist() == ((copies + padded_rows(work, LAYOUT)) * 512).tolist()
    assert len(set(expanded.moves.tolist())) > 1


def test_products_are_of_the_shapes_of_the_list(pair) -> None:
    links, chain, _ = pair
    compute = hwmodel.load("dgx-h100").compute
    sms, hbm = chain.built.machine.sms.compute, hwmodel.load("dgx-h100").hbm
    assert sms == 132 - 20
    want = 0
    for part in load("deepseek").parts:
        for row in listed(links, part.direction == "backward", part.name):
            if row.of.gemm is None or row.of.is_routed:
                continue
            m, n, k = row.gemm[0].tolist()
            dtype = row.of.types or "fp8"
            if row.of.weights:  # both operands have scales of their own, sums are FP32
                dtype = gradient_type(dtype)
            one = compute.gemm_time_ps(m, n, k, dtype, sms)
            if row.of.weights:
                read = int(compute.activation_bytes(m, k, dtype))
                read += int(compute.activation_bytes(n, k, dtype))
                one += int(hbm.stream_ps(6 * m * n))
                one = max(one, int(hbm.stream_ps(read + 8 * m * n)) + compute.tile_overhead_ps)
            want += one
    graph = chain.built.graph
    of = (graph.kind == Kind.DENSE_GEMM) & (graph.rank == 0)
    assert graph.duration_ps[of].sum() == want


def test_gradients_of_weights_run_on_two_streams(trace) -> None:
    made = dataclasses.replace(prepared(trace), launch=None)  # long launched
    chain, work = made.build(), made.links[1].work()
    graph, timeline = chain.built.graph, schedule(chain.built.graph)
    mine = work.experts_of_rank[1]
    assert (work.rows_of_expert[mine] > 0).all()
    of = (graph.kind == Kind.WGRAD) & (graph.resource >= 0) & (graph.rank == 1)
    # Of each of four experts, down's.
    begun = [int(timeline.start_ps[of & (graph.tag == one)].min()) for one in mine]
    took = [int(graph.duration_ps[of & (graph.tag == one)].max()) for one in mine[:2]]
    assert begun[0] == begun[1]
    assert begun[2] >= begun[0] + took[0]
    assert begun[3] >= begun[1] + took[1]


def test_kernels_beside_rows_compute_on_what_these_leave(trace) -> None:
    found = replay.run(trace, **GIVEN).chain.pairs
    bare = replay.run(trace, **{**GIVEN, "options": {"num_sms": 20}}).chain.pairs
    for one in (found, bare):
        assert min(one.busy_us["rows"]) > 0
    # The list has several times the kernels.
    assert min(found.pair_us) > 1.5 * max(bare.pair_us)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"interleave": "megatron"}, "launches pairs in the order dualpipe"),
        ({"interleave": "off"}, "is of a pair of layers: .* --schedule dualpipe --stack deepseek"),
        ({"precision": "bf16"}, "are FP8"),
    ],
)
def test_what_the_list_has_no_kernels_for_is_refused(trace, given, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepared(trace, **given).build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_lora_rank": None}, "latent queries"),
        ({"num_shared_experts": 0, "shared_intermediate": 0}, "has shared experts"),
    ],
)
def test_other_models_are_refused(change: dict[str, Any], message: str) -> None:
    other = tracegen.generate.generate(
        "uniform",
        SHAPE.model_copy(update=change),
        ranks=4,
        tokens_per_rank=8,
        layers=1,
        steps=2,
        phase="training",
    )
    with pytest.raises(UserError, match=message):
        prepared(other).build()


def test_passes_in_turn_take_what_their_calls_take(trace) -> None:
    """Launches of exchanges are a stack's calls, in a pass by itself as in a pair."""
    made = dataclasses.replace(prepared(trace), launch="eager", strategy=PassesInTurn())
    slow = {(UNSTAGED, is_backward): StageCalls(10**9) for is_backward in (False, True)}
    found = [
        schedule(dataclasses.replace(made, calls=calls).build().built.graph).makespan_ps
        for calls in (None, Calls(slow))
    ]
    assert found[1] > found[0] + 4 * 10**9  # dispatch and combine in both passes


def test_the_stack_runs_the_same_kernels_by_its_hosts(trace) -> None:
    """As the scheme's option has them, launched bare; each row costs what its calls do."""
    bare, stack = prepared(trace), prepared(trace, options={"num_sms": 20}, stack="deepseek")
    assert stack.scheme.kernel_list == bare.scheme.kernel_list == "deepseek"
    assert bare.stack is None
    programs = []
    for one in (bare, stack):
        machine = one.build().built.machine
        programs.append(machine.host.program)
    assert [one.name for one in programs[1]] == [one.name for one in programs[0]]
    costs = {(one.name, one.host_ps) for one in programs[1]}
    rows = [row.of for row in listed(bare.links, False, "attention") if row.of.gemm is None]
    for row in rows:
        if row.kernels and row.kind == "memory":
            assert (row.name, stack.stack.each_ps(row)) in costs
    ends = [schedule(one.build().built.graph).makespan_ps for one in (bare, stack)]
    assert ends[1] > ends[0]


def test_a_gpu_that_is_late_with_a_pass_holds_up_the_others_notify_kernels(trace) -> None:
    made = prepared(trace)
    late = np.array([0, 0, 5_000_000_000, 0])  # 5 ms
    links = [made.links[0], dataclasses.replace(made.links[1], delays_ps=late)]
    ends = []
    for one in (made, dataclasses.replace(made, links=links)):
        chain = one.build()
        visible = schedule(chain.built.graph).visible_ps
        spans = [of.at(visible) for of in chain.spans[0] if of.of == "rows"]
        ends.append([(of.ended - of.begun).tolist() for of in spans])
    # The dispatch of gradients waits for the last GPU, on all others, and is busy with that.
    waited = np.array(ends[1][2]) - ends[0][2]
    assert (waited[[0, 1, 3]] > 4_900_000_000).all()
    assert waited[2] < 1_000_000


def test_gpus_of_pairs_may_be_late(trace) -> None:
    first, second = prepared(trace, jitter="lognormal:40:1", jitter_seed=2).links
    assert first.delays_ps.shape == second.delays_ps.shape == (4,)
    assert (first.delays_ps != second.delays_ps).all()
