"""The least work of experts, counted by hand on a machine of round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from packets import write_packets
from round_machine import ROUND

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, schedule
from replay.errors import UserError
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.times import Time
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

ROWS = [50, 0, 70]
HIDDEN, INNER = 1024, 64
COLUMNS = 2 * INNER  # gate and up projection
SMS = 100  # of an operation a picosecond each, on steps of 64 rows


def layer(is_backward: bool = False) -> LayerWork:
    ids = np.repeat(np.arange(3, dtype=np.int32), ROWS)[:, None]
    shape = ExpertShape(HIDDEN, INNER)
    return small_layers.work(ids, 1, 3, shape=shape, is_backward=is_backward)


def takes(is_backward: bool = False, **changed: float) -> int:
    """Picoseconds on a machine of round numbers."""
    system = hwmodel.load("dgx-h100", {**ROUND, **{k.replace("__", "."): v for k, v in changed.items()}})
    graph, ends, _ = build_layer(layer(is_backward), system, SCHEMES["ideal"])
    return int(schedule(graph).visible_ps[ends].max())


def test_products_take_all_sms_evenly() -> None:
    padded = 64 + 128
    operations = 2 * padded * (COLUMNS * HIDDEN + INNER * HIDDEN)
    parts = 2 * 2  # experts and GEMMs, each rounded up to whole picoseconds
    assert 0 <= takes() - operations / SMS <= parts


def test_weights_come_once_where_memory_is_slower() -> None:
    weights = 2 * 2 * (COLUMNS + INNER) * HIDDEN  # two experts, BF16
    # 1000 GB/s at half of it: two picoseconds a byte; the two streams are rounded up.
    assert takes(hbm__peak_GB_per_s=1000.0) == 2 * weights


def test_gradients_of_weights_are_products_over_the_rows() -> None:
    forward = 2 * (64 + 128) * (COLUMNS + INNER) * HIDDEN
    gradients = 2 * sum(ROWS) * (COLUMNS + INNER) * HIDDEN  # 64 and 128 are whole steps
    parts = 2 * 2 * 2
    assert 0 <= takes(is_backward=True) - (forward + gradients) / SMS <= parts


def test_accumulated_gradients_are_read_and_written() -> None:
    matrices = 2 * (COLUMNS + INNER) * HIDDEN
    nbytes = 2 * matrices + 2 * 4 * matrices  # weights in BF16, gradients in FP32
    assert takes(is_backward=True, hbm__peak_GB_per_s=1000.0) == 2 * nbytes


def test_shared_experts_beside_the_dispatch_are_work_as_well() -> None:
    system = hwmodel.load("dgx-h100", ROUND)
    alone, both = (
        int(schedule(graph).visible_ps[ends].max())
        for graph, ends, _ in (
            build_layer(one, system, SCHEMES["ideal"]) for one in (layer(), layer().with_shared(INNER))
        )
    )
    tokens = 128  # 120, in steps of 64
    shared = 2 * tokens * (COLUMNS * HIDDEN + INNER * HIDDEN)
    assert 0 <= both - alone - shared / SMS <= 2 * 2


def test_nothing_is_launched_in_its_own_form() -> None:
    graph, _, machine = build_layer(layer(), hwmodel.load("dgx-h100", ROUND), SCHEMES["ideal"])
    assert not machine.host.program
    assert not np.isin(graph.kind, (Kind.LAUNCH, Kind.HOST)).any()


# Token 0 of GPU 0 goes to GPUs 1 and 2 and to its own, token 1 of GPU 0 to GPU 1 twice, token 2 of
# GPU 2 to its own: GPU 0 owes three rows, or two tokens, of which GPU 1 gets two and GPU 2 one.
EXCHANGED = small_layers.work(
    np.array([[0, 2, 4], [2, 3, -1], [4, -1, -1]], np.int32),
    3,
    6,
    tokens_of_rank=[2, 0, 1],
    shape=ExpertShape(HIDDEN, INNER),
)
ROW_PS = write_packets(2 * HIDDEN)  # of BF16, at a byte a picosecond


def ports_ps(rows: str, form: str = "communication", **changed: float) -> dict[str, list[int]]:
    """Time that each port is busy, and the layer's."""
    system = hwmodel.load("dgx-h100", {**ROUND, **{k.replace("__", "."): v for k, v in changed.items()}})
    scheme = SCHEMES["ideal"].with_options({"form": form, "rows": rows})
    graph, ends, machine = build_layer(EXCHANGED, system, scheme)
    busy = np.bincount(
        graph.resource[graph.resource >= 0],
        graph.duration_ps[graph.resource >= 0],
        len(graph.resources),
    )
    return {
        "up": busy[machine.resources.uplink].tolist(),
        "down": busy[machine.resources.downlink].tolist(),
        "takes": [int(schedule(graph).visible_ps[ends].max())],
    }


@pytest.mark.parametrize("rows, up, down", [("copy", [3, 2, 1], [3, 2, 1]), ("switch", [2, 2, 1], [2, 2, 1])])
def test_ports_carry_the_least_rows_both_ways(rows: str, up: list[int], down: list[int]) -> None:
    """Out of GPU 0 in the dispatch, into it in the combine; the others the other way round."""
    assert ports_ps(rows) == {
        "up": [each * ROW_PS for each in up],
        "down": [each * ROW_PS for each in down],
        "takes": [up[0] * ROW_PS],
    }


def test_rows_have_the_types_of_the_layer() -> None:
    """Out in FP8 with a scale of four bytes for each 128 values, back in BF16."""
    work = small_layers.work(
        np.array([[1]], np.int32),
        2,
        2,
        tokens_of_rank=[1, 0],
        shape=ExpertShape(HIDDEN, INNER),
        precision="fp8",
    )
    scheme = SCHEMES["ideal"].with_options({"form": "communication"})
    graph, _, _ = build_layer(work, hwmodel.load("dgx-h100", ROUND), scheme)
    took = {Kind(kind): int(ps) for kind, ps in zip(graph.kind, graph.duration_ps, strict=True) if ps}
    out = write_packets(HIDDEN + 4 * HIDDEN // 128)
    assert took == {
        Kind.DISPATCH_UP: out,
        Kind.DISPATCH_DOWN: out,
        Kind.COMBINE_UP: ROW_PS,
        Kind.COMBINE_DOWN: ROW_PS,
    }


def test_dispatch_and_combine_share_a_port() -> None:
    """GPU 1 sends a token, and results of another."""
    work = small_layers.work(
        np.array([[0], [1]], np.int32),
        2,
        2,
        tokens_of_rank=[0, 2],
        shape=ExpertShape(HIDDEN, INNER),
    )
    both = small_layers.work(
        np.array([[1], [0]], np.int32),
        2,
        2,
        tokens_of_rank=[1, 1],
        shape=ExpertShape(HIDDEN, INNER),
    )
    scheme = SCHEMES["ideal"].with_options({"form": "communication"})
    took = []
    for one in (work, both):
        graph, ends, _ = build_layer(one, hwmodel.load("dgx-h100", ROUND), scheme)
        took.append(int(schedule(graph).visible_ps[ends].max()))
    assert took == [ROW_PS, 2 * ROW_PS]


@pytest.mark.parametrize(
    "changed",
    [{}, {"hbm__peak_GB_per_s": 1.0}, {"link__bandwidth_GB_per_s": 0.125}],
    ids=["tensor cores", "memory", "ports"],
)
def test_the_busiest_resource_decides(changed: dict[str, float]) -> None:
    each = [ports_ps("copy", form, **changed)["takes"] for form in ("least", "communication")]
    assert ports_ps("copy", "busiest", **changed)["takes"] == max(each)
    assert (each[1] > each[0]) == ("link__bandwidth_GB_per_s" in changed)


def test_rows_of_several_domains_are_refused() -> None:
    system = hwmodel.load("dgx-h100-x2")
    work = small_layers.work(np.zeros((16, 1), np.int32), 16, 16)
    with pytest.raises(UserError, match="in one NVLink domain; 16 ranks lie in 2"):
        build_layer(work, system, SCHEMES["ideal"].with_options({"form": "busiest"}))


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_begins_with_those_it_serves_and_ends_with_those_that_serve_it(late: int) -> None:
    # A token of GPU 0 whose expert is on GPU 1; GPU 2 has nothing to do.
    work = small_layers.work(
        np.array([[1]], np.int32), 3, 3, tokens_of_rank=[1, 0, 0], shape=ExpertShape(HIDDEN, INNER)
    )
    machine = Machine(hwmodel.load("dgx-h100", ROUND), GraphBuilder(KIND_NAMES), 3)
    after = Time(np.where(machine.ranks == late, 500_000_000, 0))
    start = machine.delay(Kind.MARK, after, machine.mark(machine.ranks))
    ends = SCHEMES["ideal"].build(work, machine, start)
    first, second, third = schedule(machine.graph.build()).visible_ps[ends].tolist()
    products = 2 * 64 * (COLUMNS + INNER) * HIDDEN / SMS
    assert first == second == pytest.approx(500_000_000 + products, abs=2)
    assert third == 0
