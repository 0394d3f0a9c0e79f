"""The backward pass: the same rows the other way round, three times the multiplications."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer

import hwmodel
from replay.chains.layer import build_layer
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers


@pytest.fixture(scope="module")
def counting_machine() -> hwmodel.System:
    """Tiles take as many picoseconds as they have operations, and memory none."""
    return hwmodel.load(
        "gh200-nvl32",
        {
            "compute.bf16_peak_TFLOP_per_s": 132.0,
            "compute.bf16_efficiency": 1.0,
            "compute.bf16_grouped_efficiency": 1.0,
            "compute.bf16_grouped_whole_tiles": False,
            "compute.mma_rows": 1,
            "compute.operand_bytes_per_clock": 1e6,
            "compute.tile_overhead_ns": 0.0,
            "hbm.peak_GB_per_s": 1e9,
        },
    )


def layer(is_backward: bool, gated: bool = True) -> LayerWork:
    ids = small_layers.draw(300, 8, 2, skew=0.7)
    shape = ExpertShape(160, 96, gated=gated)
    return small_layers.work(ids, 4, 8, shape=shape, is_backward=is_backward)


def most_of_a_rank(work: LayerWork) -> int:
    """Rows of the expert that gets most from one rank, which Tutel gives every expert and rank."""
    loads = Counter(zip(work.pair_source.tolist(), work.pair_expert.tolist(), strict=True))
    return max(loads.values())


TRAINED = [name for name, scheme in SCHEMES.items() if not scheme.refuses(layer(is_backward=True))]


def test_kernels_for_inference_have_no_backward_pass() -> None:
    assert set(SCHEMES) - set(TRAINED) == {
        "deepep-ll",
        "nccl-ep",
        "trtllm-alltoall",
        "megamoe",
        "megamoe-hopper",
        "flashinfer-push",
    }


@every("gated", [True, False])
@every("scheme", TRAINED)
def test_weight_gradients_multiply_as_much_as_the_forward_pass(
    scheme: str, gated: bool, counting_machine: hwmodel.System
) -> None:
    work = layer(is_backward=True, gated=gated)
    graph, _, _ = build_layer(work, counting_machine, SCHEMES[scheme])
    done: Counter[int] = Counter()
    tasks: Counter[int] = Counter()
    for task in np.flatnonzero(graph.kind == Kind.WGRAD).tolist():
        done[int(graph.tag[task])] += int(graph.duration_ps[task])
        tasks[int(graph.tag[task])] += 1
    rows = Counter(expert for row in work.expert_ids.tolist() for expert in row)
    if scheme == "tutel":  # its padding is multiplied
        rows = Counter(dict.fromkeys(rows, work.num_ranks * most_of_a_rank(work)))
    projections = 3 if gated else 2
    assert set(done) == set(rows)
    for expert, count in rows.items():
        exact = 2 * count * 160 * 96 * projections
        # Sums of either product take memory a picosecond, in which all SMs wait, but for a bound's. Equal shares of
        # an expert's tiles are rounded up, a picosecond a task at most.
        exact += 0 if scheme == "ideal" else 2 * counting_machine.sm.num_sms
        assert exact <= done[expert] <= exact + tasks[expert]


@every("scheme", TRAINED)
def test_rows_travel_as_in_the_forward_pass(scheme: str, system_for) -> None:
    there, back = (
        replay_layer(layer(is_backward), system_for(4), SCHEMES[scheme]).measures for is_backward in (False, True)
    )
    assert there.payload_bytes == back.payload_bytes
    assert "wgrad" in back.phases and "wgrad" not in there.phases


@every("scheme", TRAINED)
def test_nothing_is_counted_when_the_routing_is_known(scheme: str, system_for) -> None:
    graph, _, _ = build_layer(layer(is_backward=True), system_for(4), SCHEMES[scheme])
    exchanged = [Kind.COUNT_UP, Kind.COUNT_DOWN]
    # The calls of flux make their indices each time, from ids that are known.
    looked = [] if scheme == "flux" else [Kind.LAYOUT]
    assert not np.isin(graph.kind, exchanged + looked).any()


@every("scheme", TRAINED)
def test_the_layer_ends_after_its_weight_gradients(scheme: str, system_for) -> None:
    from replay.engine import schedule

    graph, ends, _ = build_layer(layer(is_backward=True), system_for(4), SCHEMES[scheme])
    timeline = schedule(graph)
    gradients = graph.kind == Kind.WGRAD
    for rank, end in enumerate(ends.tolist()):
        mine = gradients & (graph.rank == rank)
        assert timeline.visible_ps[end] >= timeline.visible_ps[mine].max()
