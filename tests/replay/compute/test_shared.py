"""Shared experts beside the dispatch: their cost, whose SMs they take, who waits for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from loops import every
from round_machine import round_machine
from tiers import mostly_extended

import hwmodel
import replay
import replay.schemes.ep.plain
import tracegen
from replay.chains.layer import build_layer
from replay.engine import schedule
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.model.machine.l2 import L2Caches
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES, find
from replay.schemes.contract.layers import draw, work

HIDDEN, WIDTH, EXPERTS, TOKENS = 256, 192, 8, (130, 20)
APART = ("deepep", "dysharp-basic", "nccl-alltoall", "nvls", "plain")
FUSED = ("comet", "dysharp", "dysharp-comet", "dysharp-fusion-only", "flashdmoe", "moe-hub")


def layer(precision: str = "bf16", *, is_backward: bool = False, width: int = WIDTH) -> LayerWork:
    ids = draw(sum(TOKENS), EXPERTS, 2, seed=1)
    made = work(
        ids,
        2,
        EXPERTS,
        tokens_of_rank=list(TOKENS),
        precision=precision,
        shape=ExpertShape(HIDDEN, 96),
        is_backward=is_backward,
    )
    return made.with_shared(width) if width else made


def built(scheme: str, made: LayerWork, system: hwmodel.System | None = None):
    """Graph, schedule, tasks of GPU 0's shared experts by kind, ends."""
    found = build_layer(made, system or round_machine(), find(scheme))
    graph = found.graph
    of_shared = graph.tag == EXPERTS
    tasks = {kind: np.flatnonzero(of_shared & (graph.kind == kind)) for kind in Kind}
    return graph, schedule(graph), tasks, found


def test_every_rank_has_one_more_expert_for_its_own_tokens() -> None:
    shared = layer().shared
    assert shared is not None and shared.num_experts == EXPERTS + 2
    assert shared.rows_of_expert.tolist() == [0] * EXPERTS + list(TOKENS)
    assert (shared.pair_rank == shared.pair_source).all()
    assert shared.shape == ExpertShape(HIDDEN, WIDTH)


@pytest.mark.parametrize("scheme", [*APART, *FUSED])
def test_weights_rows_and_results_go_through_memory(scheme: str, monkeypatch) -> None:
    touched = []

    def read(self: L2Caches, what, tasks, rank, block, nbytes, **_) -> None:
        touched.extend(zip(tasks.tolist(), block.tolist(), nbytes.tolist(), strict=True))

    def write(self: L2Caches, tasks, rank, block, nbytes, **_) -> None:
        touched.extend(zip(tasks.tolist(), block.tolist(), nbytes.tolist(), strict=True))

    monkeypatch.setattr(L2Caches, "read", read)
    monkeypatch.setattr(L2Caches, "write", write)
    _, _, tasks, _ = built(scheme, layer())
    rows, columns = TOKENS[0], 2 * WIDTH
    # A fused activation leaves only its result; a kernel apart reads both halves and writes it.
    first_result = (WIDTH if scheme in FUSED else columns) * 2
    first = columns * HIDDEN * 2 + rows * (HIDDEN * 2 + first_result)
    second = HIDDEN * WIDTH * 2 + rows * (WIDTH * 2 + HIDDEN * 2)
    for kind, nbytes in ((Kind.GEMM1, first), (Kind.GEMM2, second)):
        own = set(tasks[kind].tolist())
        blocks = {block: size for task, block, size in touched if task in own}
        assert sum(blocks.values()) == nbytes


@every("scheme", [*APART, *FUSED])
@every("is_backward", [False, True])
def test_they_share_the_gpu_and_its_end_waits_for_them(scheme: str, is_backward: bool) -> None:
    made = layer(is_backward=is_backward)
    graph, timeline, tasks, found = built(scheme, made)
    of_shared = np.concatenate([*tasks.values()])
    end = timeline.visible_ps[found.ends[0]]
    assert timeline.visible_ps[of_shared].max() <= end
    first = timeline.start_ps[of_shared].min()
    assert first <= timeline.start_ps[graph.kind == Kind.DISPATCH_SEND].min(initial=first)
    if is_backward:
        assert len(tasks[Kind.WGRAD])


@every("scheme", APART)
def test_kernels_apart_wait_until_the_shared_ones_have_ended(scheme: str) -> None:
    graph, timeline, _, _ = built(scheme, layer())
    multiplies = np.isin(graph.kind, (Kind.GEMM1, Kind.GEMM2)) & (graph.rank == 0)
    shared, routed = multiplies & (graph.tag >= EXPERTS), multiplies & (graph.tag < EXPERTS)
    assert timeline.end_ps[shared].max() <= timeline.start_ps[routed].min()
    servers = set(graph.resources.servers[graph.resource[shared]].tolist())
    held = {
        "deepep": 24,
        "dysharp-basic": 20,  # as many as keep up with the port
        "nccl-alltoall": 32,
        "nvls": 16,
        "plain": 10,  # likewise
    }
    assert servers == {100 - held[scheme]}


@every("scheme", FUSED)
def test_a_fused_kernel_takes_their_tiles_for_its_own(scheme: str) -> None:
    graph, timeline, _, _ = built(scheme, layer())
    first = (graph.kind == Kind.GEMM1) & (graph.rank == 0)
    pools = graph.resource[first]
    assert len(set(pools.tolist())) == 1
    if scheme in ("comet", "dysharp-comet"):  # the second kernel begins when the first has ended
        second = (graph.kind == Kind.GEMM2) & (graph.rank == 0)
        shared = (graph.tag == EXPERTS) & (first | second)
        routed = second & (graph.tag < EXPERTS)
        assert timeline.end_ps[shared].max() < timeline.start_ps[routed].min()


def test_fp8_rows_are_cast_before() -> None:
    graphs = [built("plain", layer(name))[0] for name in ("bf16", "fp8")]
    casts = [np.flatnonzero((graph.kind == Kind.CAST) & (graph.rank == 0)) for graph in graphs]
    assert [len(tasks) for tasks in casts] == [0, 1]
    hbm = round_machine().spec.hbm
    read, written = TOKENS[0] * 2 * HIDDEN, TOKENS[0] * (HIDDEN + 4 * 2)
    peak = hbm.peak_GB_per_s.value / 1000  # bytes a picosecond
    moving = read / hbm.read_efficiency.value + written / hbm.write_efficiency.value
    assert graphs[1].duration_ps[casts[1][0]] == pytest.approx(moving / peak, abs=2)


def test_where_the_dispatch_takes_all_sms_they_run_behind_it() -> None:
    scheme = find("plain").with_options({"num_sms": 100})
    found = build_layer(layer(), round_machine(), scheme)
    graph, timeline = found.graph, schedule(found.graph)
    shared = (graph.kind == Kind.GEMM1) & (graph.tag >= EXPERTS)
    stores = graph.kind == Kind.DISPATCH_SEND
    assert timeline.start_ps[shared].min() > timeline.end_ps[stores].max()
    assert set(graph.resources.servers[graph.resource[shared]].tolist()) == {100}


# ---- as a setting of a replay --------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    return tracegen.generate.generate("zipf", "deepseek-v3", ranks=4, tokens_per_rank=16, layers=2, seed=1, skew=0.5)


@pytest.fixture(scope="module")
def small() -> tracegen.RoutingTrace:
    """For what holds of every scheme, whatever the numbers of experts and tokens."""
    return tracegen.generate.generate(
        "zipf", "qwen2-moe-2.7b-e64", ranks=4, tokens_per_rank=8, layers=2, seed=1, skew=0.5
    )


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=3))
def test_it_is_a_setting_for_every_scheme(scheme: str, small) -> None:
    between, beside = (
        replay.run(small, scheme=scheme, precision="bf16", shared_experts=where).chain
        for where in ("between", "beside-dispatch")
    )
    assert between is not None and beside is not None
    assert beside.between_us < between.between_us
    payload = [[layer.payload_bytes for layer in chain.layers] for chain in (between, beside)]
    assert payload[0] == payload[1]
    assert beside.measures.makespan_us < 1.05 * between.measures.makespan_us
    kernels = [chain.measures.mechanisms for chain in (between, beside)]
    assert kernels[0] != kernels[1]


def test_a_layer_by_itself_has_those_beside_its_dispatch(trace) -> None:
    between, beside = (
        replay.run(trace, scheme="ideal", layer=0, shared_experts=where).layers[0].measures
        for where in ("between", "beside-dispatch")
    )
    assert beside.makespan_us > between.makespan_us


def test_a_model_without_shared_experts_has_nothing_to_move() -> None:
    trace = tracegen.generate.generate("zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=16, layers=2, seed=1, skew=0.5)
    between, beside = (
        replay.run(trace, scheme="deepep", shared_experts=where).chain for where in ("between", "beside-dispatch")
    )
    assert between == beside


def test_a_scheme_that_has_no_place_for_them_says_so(trace, tmp_path: Path) -> None:
    text = Path(replay.schemes.ep.plain.__file__).read_text(encoding="utf-8")
    text = text.replace('name = "plain"', 'name = "without"')
    place = "        dispatched = shared_kernels("
    line = next(line for line in text.splitlines() if line.startswith(place))
    file = tmp_path / "without.py"
    file.write_text(text.replace(line + "\n", ""), encoding="utf-8")
    assert replay.run(trace, scheme=f"{file}:Plain", layer=0).layers
    with pytest.raises(UserError, match="no place for shared experts beside its dispatch"):
        replay.run(trace, scheme=f"{file}:Plain", layer=0, shared_experts="beside-dispatch")
