"""Results that leave beside GEMM-2, in DeepEP's low-latency kernels: who waits for whom, by hand.

On a machine of round numbers, from the sources of the kernels and the sizes of the layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loops import every
from moments import tasks
from round_machine import NS, ROUND, US

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract.case import Case
from replay.schemes.contract.examine import examine_case
from replay.schemes.contract.graph_facts import Dependencies
from replay.schemes.contract.layers import LAYERS, draw, work
from replay.schemes.contract.sms import most_in_use

UP, DOWN, VISIBLE, POLL = 150 * NS, 100 * NS, 30 * NS, 5 * NS
MEMORY, CACHE, GAP = 60 * NS, 20 * NS, 2 * US
HIDDEN = 2048
ROW = 2 * HIDDEN  # results are BF16
BY_SM = ROW * 10  # ps in which an SM stores a row, at 100 GB/s


def machine(**more: Any) -> hwmodel.System:
    free = {"link.fan_out_efficiency": 1.0, "link.scatter_efficiency": 1.0}
    return hwmodel.load(
        "dgx-h100",
        {**ROUND, **free, "link.bulk_scatter_efficiency": 1.0, "overheads.grid_barrier_us": 0.1} | more,
    )


def run(layer: LayerWork, system: hwmodel.System | None = None, sms: int = 3) -> Timeline:
    scheme = SCHEMES["deepep-ll"].with_options({"overlap_sms": sms})
    return schedule(build_layer(layer, system or machine(), scheme).graph)


def fp8(experts: list[int], num_experts: int, tokens: list[int], intermediate: int = 128):
    """A token for each of some experts."""
    ids = np.array(experts, np.int32)[:, None]
    return work(
        ids,
        len(tokens),
        num_experts,
        tokens_of_rank=tokens,
        shape=ExpertShape(HIDDEN, intermediate),
        precision="fp8",
    )


def of_combine(timeline: Timeline, rank: int) -> int:
    """When the kernel that sends results begins on a GPU."""
    launches = tasks(timeline, Kind.LAUNCH, rank)
    launches = launches[timeline.graph.duration_ps[launches] == GAP]
    starts = np.sort(timeline.start_ps[launches])
    assert starts[-3] == starts[-2] < starts[-1]  # GEMM-2, this one, the one that receives
    return int(starts[-2]) + GAP


@pytest.fixture(scope="module")
def eight() -> Timeline:
    """A row for each of eight experts of GPU 1, on 7 SMs: 4 multiply, 3 send."""
    return run(fp8(list(range(8, 16)), 16, [8, 0]), machine(**{"gpu.num_sms": 7}))


def test_units_are_dealt_to_three_blocks_in_order(eight: Timeline) -> None:
    names = eight.graph.resources.names
    sends = tasks(eight, Kind.COMBINE_SEND)
    assert [names[of] for of in eight.graph.resource[sends]] == [f"ll-combine-beside 1.{unit % 3}" for unit in range(8)]


def test_a_block_leaves_while_later_ones_multiply_and_none_before_its_own(eight: Timeline) -> None:
    second = tasks(eight, Kind.GEMM2)
    sends = tasks(eight, Kind.COMBINE_SEND)
    stored = [eight.visible_ps[second[eight.graph.tag[second] == 8 + k]].max() for k in range(8)]
    starts = eight.start_ps[sends]
    # A block that has nothing else to do begins as soon as it sees the last column counted.
    assert (starts >= np.array(stored) + VISIBLE + POLL).all()
    assert starts[:3].tolist() == [end + VISIBLE + POLL for end in stored[:3]]
    assert eight.start_ps[tasks(eight, Kind.COMBINE_UP)].min() < eight.start_ps[second].max()
    waits = Dependencies(eight)
    for unit, send in enumerate(sends.tolist()):
        waited = {int(eight.graph.tag[task]) - 8 for task in waits.before([send]) & {*second}}
        assert waited == set(range(unit % 3, unit + 1, 3))  # and what its block sent before


def test_the_gemm_has_the_other_sms_and_goes_through_experts_one_by_one(eight: Timeline) -> None:
    second = tasks(eight, Kind.GEMM2)
    first_wave = eight.start_ps[second] == eight.start_ps[second].min()
    assert first_wave.sum() == 7 - 3
    order = np.lexsort((second, eight.start_ps[second]))
    assert (np.diff(eight.graph.tag[second[order]]) >= 0).all()


def test_an_expert_is_gone_through_column_by_column() -> None:
    # Tiles of 128 rows, as 81 are expected: 128, 128 and 44 of one expert, 20 of the other; one SM multiplies.
    timeline = run(fp8([2] * 300 + [3] * 20, 4, [160, 160]), machine(**{"gpu.num_sms": 4}))
    second = tasks(timeline, Kind.GEMM2)
    second = second[np.argsort(timeline.start_ps[second], kind="stable")]
    tags = timeline.graph.tag[second]
    each = timeline.graph.duration_ps[second[tags == 2]].reshape(-1, 3)
    assert (np.diff(tags) >= 0).all()
    assert (each[:-1] == each[0]).all()  # the last column is narrower
    assert (each[:, 0] == each[:, 1]).all()
    assert (each[:, 1] > each[:, 2]).all()


def test_a_block_copies_32_rows_at_a_time() -> None:
    # 40 rows: 32 as fast as the SM stores, then 8, which take what a warp takes for one.
    timeline = run(fp8([1] * 40, 2, [40, 0]))
    sends = tasks(timeline, Kind.COMBINE_SEND, 1)
    a_row = 40 * NS + round(ROW / (512 * 4) * (100 * NS + CACHE))
    assert timeline.graph.duration_ps[sends].tolist() == [32 * BY_SM, max(8 * BY_SM, a_row)]
    assert timeline.start_ps[sends[1]] == timeline.visible_ps[sends[0]]
    slow = run(fp8([1] * 40, 2, [40, 0]), machine(**{"warp.row_ns": 5000.0}))
    each = 4960 * NS + a_row
    assert slow.graph.duration_ps[tasks(slow, Kind.COMBINE_SEND, 1)].tolist() == [each, each]


def test_a_block_counts_a_unit_and_looks_for_the_next() -> None:
    # Two experts are multiplied at the same time; one block sends both.
    timeline = run(fp8([2, 3], 4, [2, 0]), sms=1)
    one, other = tasks(timeline, Kind.COMBINE_SEND, 1)
    assert timeline.start_ps[other] == timeline.visible_ps[one] + 2 * CACHE


def test_experts_without_rows_are_flagged_in_their_turn() -> None:
    # GPU 0 has 36 experts without rows: counts of two lines and a look, then two looks a unit.
    timeline = run(fp8([36], 72, [1, 0]))
    begun = of_combine(timeline, 0)
    flags = np.sort(timeline.start_ps[tasks(timeline, Kind.NOTIFY_UP, 0)]) - begun
    turns = [3 * CACHE + unit // 3 * 2 * CACHE for unit in range(36)]
    assert flags[-1] >= turns[-1] + CACHE  # flags of one instant follow one another on the port
    assert sorted({max(MEMORY, turn) + CACHE for turn in turns}) == [
        flag for flag in flags.tolist() if flag % CACHE == 0
    ]


def test_the_flag_of_an_expert_waits_for_its_rows_to_all_ranks() -> None:
    # GPU 2 sends the row of GPU 0 at first, the 40 of GPU 1 behind it.
    timeline = run(fp8([2] * 41, 3, [1, 40, 0]))
    graph = timeline.graph
    ups, flags = tasks(timeline, Kind.COMBINE_UP, 2), tasks(timeline, Kind.NOTIFY_UP, 2)
    landed = timeline.visible_ps[tasks(timeline, Kind.COMBINE_DOWN)]
    assert len(flags) == 2
    assert timeline.start_ps[flags].min() == landed.max() + UP + DOWN + CACHE
    # One message to GPU 0; two to GPU 1, of the rows that were copied together.
    assert np.sort(graph.payload_bytes[ups] // ROW).tolist() == [1, 9, 31]


def test_results_come_from_the_cache() -> None:
    layer = fp8([1] * 40, 2, [40, 0])
    assert timeline_memory(run(layer)) == 0
    # 100 bytes a nanosecond from the cache, as slow as the SM: rows wait for it as well.
    fast, slow = run(layer), run(layer, machine(**{"gpu.l2_bytes_per_clock": 8.0}))
    for one, is_slow in ((fast, False), (slow, True)):
        send = tasks(one, Kind.COMBINE_SEND, 1)[0]
        served = one.end_ps[send] - one.start_ps[send]
        assert (served > 32 * BY_SM) == is_slow


def timeline_memory(timeline: Timeline) -> int:
    """Time in which the memory of GPU 1 serves its combine."""
    return int(timeline.graph.duration_ps[tasks(timeline, Kind.COMBINE_MEMORY, 1)].sum())


def test_kernels_and_signals(eight: Timeline) -> None:
    # Cast of ids, two of the dispatch, signals set to zero, GEMM, activation, scales, GEMM, and two
    # of the combine. Each GEMM looks at counts.
    launches = tasks(eight, Kind.LAUNCH, 0)
    gaps = eight.graph.duration_ps[launches] == GAP
    assert gaps.sum() == 10
    # Room for 128 tokens of two GPUs: four signals of four bytes for each of eight experts.
    layout = eight.graph.duration_ps[tasks(eight, Kind.LAYOUT, 0)]
    assert -(-8 * 4 * 4 // 5) in layout.tolist()


@every("name", ["uniform 8 ranks fp8", "zipf 4 ranks fp8", "32 ranks fp8", "shared experts fp8"])
def test_the_contract(name: str) -> None:
    scheme = SCHEMES["deepep-ll"].with_options({"overlap_sms": 3})
    assert not list(examine_case(Case(scheme, name, LAYERS[name]())))


UNEVEN = {
    "several tiles": lambda: work(draw(600, 4, 2, skew=0.5), 2, 4, precision="fp8"),
    "a rank without tokens": lambda: work(draw(20, 8, 2), 3, 8, tokens_of_rank=[11, 0, 9], precision="fp8"),
    "experts do not divide": lambda: work(draw(33, 10, 3), 3, 10, precision="fp8"),
    "no tokens": lambda: work(draw(0, 8, 2), 4, 8, precision="fp8"),
    "random placement": lambda: work(draw(40, 16, 4, skew=0.8), 4, 16, placement="random:3", precision="fp8"),
}


@every("name", UNEVEN)
def test_the_contract_with_uneven_ranks_and_experts(name: str) -> None:
    scheme = SCHEMES["deepep-ll"].with_options({"overlap_sms": 2})
    assert not list(examine_case(Case(scheme, name, UNEVEN[name]())))


def test_no_more_sms_than_there_are() -> None:
    scheme = SCHEMES["deepep-ll"].with_options({"overlap_sms": 3})
    layer = work(draw(400, 8, 2), 4, 8, shape=ExpertShape(1024, 256), precision="fp8")
    built = build_layer(layer, machine(**{"gpu.num_sms": 20}), scheme)
    assert most_in_use(schedule(built.graph), built.machine).sms <= 20


def test_what_cannot_be_is_said() -> None:
    scheme = SCHEMES["deepep-ll"].with_options({"overlap_sms": 3})
    assert "is FP8, not bf16" in scheme.refuses(LAYERS["uniform 2 ranks"]())
    with pytest.raises(UserError, match=r"overlap_sms=100 .* takes 100 SMs; .* some must multiply"):
        run(fp8([1], 2, [1, 0]), sms=100)


def test_overlap_has_three_sms_unless_it_is_said() -> None:
    scheme = SCHEMES["deepep-ll"]
    assert scheme.interleave("sbo").options.overlap_sms == 3
    assert scheme.with_options({"overlap_sms": 8}).interleave("sbo").options.overlap_sms == 8
    assert scheme.interleave("tbo").options.overlap_sms == 0
