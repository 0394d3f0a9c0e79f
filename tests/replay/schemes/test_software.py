"""What schemes say that hosts launch, what they launch, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer

import hwmodel
import replay
import tracegen
from replay.chains.chain import ChainLink
from replay.chains.host_program import (
    EXPERTS,
    FEW_EXPERTS,
    can_be_captured,
    num_kernels,
    program,
    typical_program,
)
from replay.chains.layer import build_layer
from replay.chains.replay import Replay
from replay.engine import schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES, Scheme, find
from replay.schemes.contract.layers import draw, work
from replay.schemes.registry import COMPARED, EXAMPLES

SYSTEM = hwmodel.load("dgx-h100")
DECODE = tracegen.load("gpt-oss-20b-decode", layers=[0])
LAUNCH_US, GRAPH_US, STREAM_GAP_US = 4.5, 2.5, 2.0


#: Kernels and waits of the host, forward and backward, as they are in the sources.
PROGRAMS: list[tuple[str, dict[str, Any], tuple[int, int], tuple[int, int] | None]] = [
    ("nccl-alltoall", {}, (25, 1), (12, 0)),
    ("megatron", {}, (31, 1), (24, 0)),
    ("megatron-allgather", {}, (28, 2), (22, 0)),
    ("tutel", {}, (67, 1), (29, 0)),
    ("fastermoe", {}, (41, 7), (40, 2)),
    ("deepep", {}, (17, 1), (11, 0)),
    ("deepep-ll", {}, (6, 0), None),
    ("nccl-ep", {}, (6, 0), None),
    ("deepep-v2", {}, (7, 1), (9, 0)),
    ("hybrid-ep", {}, (18, 1), (15, 0)),
    ("nccl-ep-ht", {}, (18, 1), (11, 1)),
    ("nvls", {}, (12, 0), (10, 0)),
    ("pangu", {}, (41, 2), (13, 0)),
    ("comet", {}, (4, 0), (4, 0)),
    ("flux", {}, (19, 1), (18, 1)),
    ("ccfuser", {}, (23, 1), (16, 0)),
    ("flashdmoe", {}, (1, 0), (1, 0)),
    ("megamoe", {}, (2, 0), None),
    ("megamoe-hopper", {}, (2, 0), None),
    ("flashinfer-push", {}, (20, 0), None),
    ("dysharp-basic", {}, (5, 0), (7, 0)),
    ("dysharp-fusion-only", {}, (1, 0), (1, 0)),
    ("dysharp-comet", {}, (2, 0), (2, 0)),
    ("dysharp", {}, (1, 0), (1, 0)),
    ("moe-hub", {}, (1, 0), (1, 0)),
    ("plain", {}, (6, 0), (8, 0)),
    ("ideal", {"form": "kernels"}, (3, 0), (5, 0)),
    ("deepep", {"cached_layout": True}, (16, 0), (11, 0)),
    ("deepep", {"stack": "sglang"}, (13, 1), (11, 0)),
    ("deepep", {"stack": "bare"}, (10, 1), (11, 0)),
    ("deepep-ll", {"hook": True}, (8, 0), None),
    ("deepep-v2", {"do_expand": False}, (16, 1), (11, 0)),
    ("deepep-v2", {"do_expand": False, "stack": "bare", "cpu_sync": False}, (9, 0), (11, 0)),
    ("deepep-v2", {"cached_layout": True}, (7, 0), (9, 0)),
    ("hybrid-ep", {"non_blocking": True}, (18, 0), (15, 0)),
    ("moe-hub", {"dam": False}, (4, 0), (6, 0)),
]
variants = pytest.mark.parametrize(("name", "options"), [(name, options) for name, options, *_ in PROGRAMS], ids=str)


def small(**more: Any) -> LayerWork:
    return work(draw(40, 16, 4), 4, 16, **more)


def host_tasks(scheme: Scheme, layer: LayerWork, launch: Any) -> tuple[int, int]:
    """Launches and waits that occupy the host thread of GPU 0, rows of kernels as one."""
    graph, _, machine = build_layer(layer, SYSTEM, scheme, launch)
    at_host = graph.resource == machine.resources.host[0]
    launches = int((graph.kind[at_host] == Kind.HOST).sum())
    return launches, int(at_host.sum()) - launches


@pytest.mark.parametrize(("name", "options", "forward", "backward"), PROGRAMS, ids=str)
def test_kernels_and_waits_are_those_of_the_sources(
    name: str, options: dict[str, Any], forward: tuple[int, int], backward: tuple[int, int] | None
) -> None:
    scheme = find(name).with_options(options)
    for is_backward, expected in ((False, forward), (True, backward)):
        if expected is not None:
            found = program(scheme, small(is_backward=is_backward), SYSTEM)
            waits = sum(not one.launches for one in found)
            assert (num_kernels(found), waits) == expected


#: Kernels that FP8 rows and GEMMs add to those of BF16, forward and backward, where each kernel is
#: for itself. Tokens are cast; Megatron-LM quantises what its activation wrote; engines bring the
#: scales of a GEMM's input into columns, and SGLang quantises that of GEMM-2 in a kernel of its
#: own, vLLM in the activation. Gradients are cast and nothing else.
FP8_ADDS: list[tuple[str, dict[str, Any], int, int]] = [
    ("nccl-alltoall", {}, 1 + 1, 1 + 1),
    ("hybrid-ep", {}, 1 + 1, 1 + 1),
    ("hybrid-ep", {"non_blocking": True}, 1 + 1, 1 + 1),
    ("hybrid-ep", {"cached_layout": True}, 1 + 1, 1 + 1),
    ("deepep", {}, 1 + 1, 1),
    ("deepep", {"cached_layout": True}, 1 + 1, 1),
    ("deepep", {"stack": "sglang"}, 1 + 1 + 1 + 1, 1),
    ("deepep", {"stack": "bare"}, 1, 1),
    ("deepep-v2", {}, 1, 1),
    ("deepep-v2", {"cached_layout": True}, 1, 1),
    ("deepep-v2", {"do_expand": False}, 1 + 1, 1),
    ("deepep-v2", {"do_expand": False, "stack": "sglang"}, 1 + 1 + 1 + 1, 1),
    ("deepep-v2", {"do_expand": False, "stack": "bare"}, 1, 1),
    ("deepep-ll", {}, 1, 0),
    ("deepep-ll", {"hook": True}, 1, 0),
    ("nvls", {}, 1, 1),
    ("nvls", {"loopback": False}, 1, 1),
    ("pangu", {}, 1, 1),
    ("pangu", {"counts": "histogram"}, 1, 1),
    ("comet", {}, 1, 1),
    ("comet", {"rows_of": "gpus"}, 1, 1),
    ("flux", {}, 1, 1),
    ("flux", {"rows_of": "gpus"}, 1, 1),
    ("megamoe", {}, 1 - 1, 0),  # in place of the copy of rows
    ("megamoe-hopper", {}, 1 - 1, 0),
    ("plain", {}, 1, 1),
    *((name, {}, 0, 0) for name in ("flashdmoe", "dysharp", "dysharp-basic", "moe-hub")),
    ("moe-hub", {"dam": False}, 0, 0),
]


@every(("name", "options", "forward", "backward"), FP8_ADDS)
def test_fp8_adds_its_kernels_with_every_option(
    name: str, options: dict[str, Any], forward: int, backward: int
) -> None:
    scheme = find(name).with_options(options)
    for is_backward, more in ((False, forward), (True, backward))[: len(scheme.passes)]:
        bf16, fp8 = (
            num_kernels(program(scheme, small(is_backward=is_backward, precision=one), SYSTEM))
            for one in ("bf16", "fp8")
        )
        assert fp8 - bf16 == more


SEPARATE = {"nccl-alltoall", "hybrid-ep", "deepep", "deepep-v2", "nvls", "pangu", "plain"}


@every(("name", "options", "more"), [(*one[:3],) for one in FP8_ADDS if one[0] in SEPARATE])
def test_rows_in_bf16_are_cast_for_fp8_gemms_in_place_of_tokens(name: str, options: dict[str, Any], more: int) -> None:
    scheme = find(name).with_options(options)
    layers = (small(), small(precision=Precision("bf16", gemm="fp8")))
    bf16, fp8 = (num_kernels(program(scheme, layer, SYSTEM)) for layer in layers)
    assert fp8 - bf16 == more


@variants
def test_every_launch_takes_the_host_its_time(name: str, options: dict[str, Any]) -> None:
    scheme = find(name).with_options(options)
    graph, _, machine = build_layer(small(), SYSTEM, scheme, "eager")
    launches = (graph.resource == machine.resources.host[0]) & (graph.kind == Kind.HOST)
    count = num_kernels(program(scheme, small(), SYSTEM))
    assert graph.duration_ps[launches].sum() == count * LAUNCH_US * 1e6


@variants
def test_a_graph_is_one_launch_up_to_a_wait(name: str, options: dict[str, Any]) -> None:
    scheme = find(name).with_options(options)
    listed = [one.launches for one in program(scheme, small(), SYSTEM)]
    found = host_tasks(scheme, small(), "graph")
    if 0 not in listed:
        assert found == (1, 0)
    else:
        behind = [one for one in listed[listed.index(0) :] if one]
        rows = sum(min(one, 2) for one in behind)
        # Kernels for each expert are launched one by one.
        if name == "fastermoe" or (name.startswith("megatron") and scheme.options.experts == "te"):
            rows += sum(one - 2 for one in behind if one == 4)
        assert found == (1 + rows, listed.count(0))


@variants
def test_a_graph_is_no_slower_than_its_kernels_one_by_one(name: str, options: dict[str, Any]) -> None:
    scheme = find(name).with_options(options)
    eager, graph = (replay_layer(small(), SYSTEM, scheme, launch).measures.makespan_us for launch in ("eager", "graph"))
    assert graph < eager


def test_which_schemes_a_graph_can_hold() -> None:
    forward = {name for name, scheme in SCHEMES.items() if not can_be_captured(typical_program(scheme))}
    assert {"nccl-alltoall", "deepep", "flux"} <= forward
    known = SCHEMES["deepep"].with_options({"cached_layout": True})
    assert can_be_captured(typical_program(known))
    waiting = {
        name
        for name, one in SCHEMES.items()
        if "backward" in one.passes and not can_be_captured(typical_program(one, is_backward=True))
    }
    # The calls of flux make their indices each time; FasterMoE synchronises at the end; NCCL EP
    # asks how many rows it has to copy, unless it is captured.
    assert waiting == {"flux", "fastermoe", "nccl-ep-ht"}


@every("name", [*COMPARED, *EXAMPLES])
def test_few_experts_tell_where_hosts_wait(name: str) -> None:
    """Of a launch nothing but that is asked, so that a small layer is built for it."""
    scheme = find(name)
    for is_backward in (False, True):
        listed = (
            typical_program(scheme, is_backward=is_backward, num_experts=num_experts)
            for num_experts in (FEW_EXPERTS, EXPERTS)
        )
        waits = [None if one is None else [each.name for each in one if not each.launches] for one in listed]
        assert waits[0] == waits[1]


def test_decode_is_captured_with_more_sms_than_other_machines_have() -> None:
    """An H100 has 132 SMs, a B200 148."""
    asked = replay.RunSpec(
        scheme="deepep",
        options={"cached_layout": True, "num_sms": 140},
        system="hgx-b200",
        phase="decode",
        ranks=8,
    )
    unsaid, graph, eager = (
        replay.run(DECODE, asked.changed(launch=one)).headline_us for one in (None, "graph", "eager")
    )
    assert unsaid == graph < eager


@every(("name", "kernels"), [("flashdmoe", 1), ("dysharp", 1), ("dysharp-comet", 2), ("moe-hub", 1)])
def test_fused_layers_are_a_launch_or_two(name: str, kernels: int) -> None:
    assert num_kernels(typical_program(SCHEMES[name]) or ()) == kernels


def test_megatrons_list_by_hand() -> None:
    """Counting and splits 1 + 1 + 1 + 4, copies 3, row map 3, cast and permute; all-to-all of rows
    and weights 2; chunk map and sort 2, three expert kernels and a quantisation, map and sort 2;
    all-to-all, sums.
    """
    scheme = SCHEMES["nccl-alltoall"]
    listed = typical_program(scheme) or ()
    waits = [place for place, one in enumerate(listed) if not one.launches]
    assert len(waits) == 1
    assert num_kernels(listed[: waits[0]]) == 7 + 3 + 5
    assert num_kernels(listed[waits[0] :]) == 2 + 2 + 4 + 2 + 2
    one_expert = program(scheme, work(draw(40, 8, 4), 8, 8, precision="fp8"), SYSTEM)
    assert num_kernels(listed) - num_kernels(one_expert) == 4
    # Cast, permute, all-to-all; sort, six expert kernels, sort; two all-to-alls, sums.
    assert num_kernels(typical_program(scheme, is_backward=True) or ()) == 3 + 8 + 3


def test_a_fused_kernel_pays_one_launch_and_a_stack_of_kernels_is_bound_by_them() -> None:
    free = hwmodel.load("dgx-h100", {"overheads.launch_us": 0.0})
    few = work(draw(8, 16, 4), 4, 16)

    def lost_us(name: str, layer: LayerWork) -> float:
        times = (replay_layer(layer, one, SCHEMES[name], "eager") for one in (SYSTEM, free))
        paid, unpaid = (one.measures.makespan_us for one in times)
        return paid - unpaid

    assert lost_us("flashdmoe", few) == pytest.approx(LAUNCH_US - STREAM_GAP_US)
    # Behind the wait eleven launches go before the last kernel, of 4.5 us for each 2 us of gap and
    # 1.3 of a small kernel; they and those before it are what the layer waits for.
    assert lost_us("nccl-alltoall", few) > 20
    # A hundred times the tokens keep the GPU busy for longer than its launches take.
    many = work(draw(4000, 16, 4), 4, 16, shape=ExpertShape(4096, 2048))
    assert lost_us("nccl-alltoall", many) < lost_us("nccl-alltoall", few)


def test_waiting_for_launches_is_no_exposed_communication() -> None:
    few = small()
    for name in ("ideal", "nvls"):
        ahead, eager, graph = (
            replay_layer(few, SYSTEM, SCHEMES[name], launch).measures.exposed_communication_us
            for launch in (None, "eager", "graph")
        )
        assert eager == pytest.approx(ahead, abs=0.05)
        assert graph == pytest.approx(ahead, abs=0.05)


def test_the_row_map_reads_and_writes_its_indices() -> None:
    """Ten tokens, sixteen experts: a flag each and an 8-byte count, a 4-byte index five times."""
    scheme = SCHEMES["nccl-alltoall"]
    graph, _, machine = build_layer(small(), SYSTEM, scheme)
    at_memory = (graph.resource == machine.resources.hbm[0]) & (graph.kind == Kind.LAYOUT)
    received = int((small().pair_rank == 0).sum())
    sizes = [10 * 16 + 8 * 16, 0, 0, 0, 10 * 16 * (1 + 5 * 4), 4 * received, 4 * received]
    times = [int(SYSTEM.hbm.stream_ps(size)) for size in sizes]
    assert graph.duration_ps[at_memory].tolist() == times


def test_hosts_keep_their_lead_from_layer_to_layer() -> None:
    """Two layers of one kernel each under flashdmoe: the second was launched during the first."""
    layer = work(draw(400, 16, 4), 4, 16)
    links = [ChainLink(lambda: layer), ChainLink(lambda: layer, layer_index=1)]
    chain = Replay(links, SYSTEM, SCHEMES["flashdmoe"], "eager").build()
    timeline = schedule(chain.built.graph)
    graph = chain.built.graph
    host = graph.resource == chain.built.machine.resources.host[0]
    assert timeline.end_ps[host].tolist() == [4_500_000, 9_000_000]
    assert timeline.visible_ps[chain.finishes[0]].min() > 9_000_000
    alone = schedule(Replay(links[:1], SYSTEM, SCHEMES["flashdmoe"], "eager").build().built.graph)
    both, one = timeline.makespan_ps, alone.makespan_ps
    assert both < 2 * one  # each alone waits for its launch


def test_every_layer_behind_a_wait_begins_a_graph() -> None:
    links = [ChainLink(small, layer_index=index) for index in range(3)]
    chain = Replay(links, SYSTEM, SCHEMES["nccl-alltoall"], "graph").build()
    graph, resources = chain.built.graph, chain.built.machine.resources
    at_host = (graph.resource == resources.host[0]) & (graph.kind == Kind.HOST)
    assert (graph.duration_ps[at_host] == GRAPH_US * 1e6).sum() == 3
    whole = Replay(links, SYSTEM, SCHEMES["nvls"], "graph").build().built
    at_host = whole.graph.resource == whole.machine.resources.host[0]
    assert whole.graph.duration_ps[at_host].tolist() == [GRAPH_US * 1e6]


def test_all_ranks_meet_after_each_layer_where_asked_to() -> None:
    tokens = [137, 1, 1, 1]  # each for an expert of its own rank
    layer = work(2 * np.repeat(np.arange(4, dtype=np.int32), tokens)[:, None], 4, 8, tokens_of_rank=tokens)
    links = [ChainLink(lambda: layer), ChainLink(lambda: layer, layer_index=1)]
    for meets in (True, False):
        scheme = SCHEMES["ideal"].with_options({"form": "kernels"})
        chain = Replay(links, SYSTEM, scheme, meets=meets).build()
        visible = schedule(chain.built.graph).visible_ps
        ends, starts = visible[chain.finishes[0]], visible[chain.starts[1]]
        assert ends[0] > ends[1]
        assert starts.tolist() == ([ends[0]] * 4 if meets else ends.tolist())
