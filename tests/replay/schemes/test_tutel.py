"""Tutel: capacities, what is padding and what is dropped, chunks in their order."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from loops import every
from round_machine import round_machine

import hwmodel
import tracegen
from replay.chains.host_program import can_be_captured, typical_program
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.arrays import Ints
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.work.capacity import CarriedLayer, cut, largest_load, with_capacity
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import case_of, examine_case
from replay.schemes.contract.graph_facts import port_bytes
from replay.schemes.ep.base import DROPPED, PADDED, Scheme
from replay.schemes.ep.tutel.scheme import Tutel

FLAT = hwmodel.load("dgx-h100", {"compute.bf16_grouped_whole_tiles": False})


def tutel(**options: object) -> Scheme:
    return SCHEMES["tutel"].with_options(options)


@cache
def skewed() -> LayerWork:
    """Eight GPUs with four experts each, 64 tokens each, weights 1 / (1 + e)."""
    return small_layers.work(small_layers.draw(512, 32, 2, skew=1.0, seed=4), 8, 32, shape=ExpertShape(96, 64))


def histogram(work: LayerWork) -> np.ndarray:
    """(rank, expert): rows, counted token by token."""
    counts = np.zeros((work.num_ranks, work.num_experts), int)
    for row, owner in zip(work.expert_ids.tolist(), work.source_rank.tolist(), strict=True):
        for expert in row:
            if expert >= 0:
                counts[owner, expert] += 1
    return counts


def test_without_capacity_all_is_padded_to_the_hottest_expert_of_any_rank() -> None:
    work = skewed()
    counts, graph = histogram(work), build_layer(work, FLAT, tutel())[0]
    factor = counts.max() * counts.size / counts.sum()
    assert factor > 5  # a mean of four rows, and the hottest expert
    row, away = 2 * 96, 7 * 4  # bytes; experts on other GPUs
    carried = port_bytes(graph)
    for phase in ("dispatch", "combine"):
        for gpu in range(8):
            for way in ("uplink", "downlink"):
                assert carried[phase][way, gpu] == counts.max() * away * row
    exact = port_bytes(build_layer(work, FLAT, SCHEMES["nccl-alltoall"])[0])
    sent = [sum(of["dispatch"]["uplink", gpu] for gpu in range(8)) for of in (carried, exact)]
    own = sum(counts[gpu, 4 * gpu : 4 * gpu + 4].sum() for gpu in range(8))
    assert sent[0] / sent[1] == pytest.approx(factor * (7 / 8) * counts.sum() / (counts.sum() - own))


def test_padding_is_multiplied_and_activated() -> None:
    work = skewed()
    rows = 4 * 8 * int(histogram(work).max())  # of four experts and eight GPUs
    graph = build_layer(work, FLAT, tutel())[0]
    moved = graph.duration_ps[graph.kind == Kind.ACTIVATION]
    assert moved[moved > 0].tolist() == [int(FLAT.hbm.stream_ps(rows * 2 * (128 + 64)))] * 8
    # All experts alike, whatever was routed to them.
    tiles = np.flatnonzero(graph.kind == Kind.GEMM1)
    spent = np.bincount(graph.tag[tiles], graph.duration_ps[tiles], 32)
    assert len(set(spent.tolist())) == 1


def test_the_result_counts_padding_and_what_is_dropped() -> None:
    work, counts = skewed(), histogram(skewed())
    for capacity, rows in ((0.0, int(counts.max())), (1.0, 2 * 2), (1.5, 2 * 3), (-1.0, 4)):
        noted = build_layer(work, FLAT, tutel(capacity=capacity)).machine.notes.counters
        assert noted[DROPPED].tolist() == np.maximum(0, counts - rows).sum(axis=1).tolist()
        assert noted[PADDED].tolist() == np.maximum(0, rows - counts).sum(axis=1).tolist()


def test_first_choices_are_kept_before_second_ones() -> None:
    ids = np.array([[1, 0], [0, 1], [0, 1]], np.int32)
    carried = with_capacity(small_layers.work(ids, 1, 2), 2)
    assert carried.work.expert_ids[carried.token].tolist() == [[1, -1], [0, 1], [0, -1]]


def test_capacity_is_a_multiple_of_the_chunks() -> None:
    work = skewed()
    largest = largest_load(work)
    assert largest == histogram(work).max()
    for degree in (1, 2, 3, 4):
        rows = tutel(overlap_degree=degree).options.rows(work)
        assert rows == -(-largest // degree) * degree
    parts = cut(with_capacity(work, 12), 4, 12)
    assert [part.rows_of_expert.tolist() for part in parts] == [[3 * 8] * 32] * 4


def test_uneven_ranks_take_the_capacity_of_the_fullest() -> None:
    ids = small_layers.draw(40, 8, 2)
    work = small_layers.work(ids, 4, 8, tokens_of_rank=[33, 0, 7, 0])
    assert tutel(capacity=1.0).options.rows(work) == 2 * 5  # 33 tokens, eight experts
    carried = tutel(capacity=1.0).carries(work).work
    assert carried.rows_of_expert.tolist() == [4 * 10] * 8


@every("options", [{"capacity": 1.0, "overlap_degree": 2}, {"capacity": -0.5}])
@every("name", ["uniform 4 ranks", "zipf 8 ranks", "all slots empty", "backward"])
def test_the_contract_holds_where_rows_are_dropped(name: str, options: dict[str, float]) -> None:
    found = [one for one in examine_case(case_of(tutel(**options), name)) if one.check != "communication"]
    assert not found


class Silent(Tutel):
    """Forgets to count what it pads and drops."""

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        ends = super().build(work, machine, start)
        machine.notes.counters.clear()
        return ends


class Elsewhere(Tutel):
    """Carries the first token to other experts than it chose."""

    def carries(self, work: LayerWork) -> CarriedLayer:
        ids = work.expert_ids.copy()
        ids[0] = (ids[0] + 1) % work.num_experts
        other = small_layers.work(ids, work.num_ranks, work.num_experts)
        return super().carries(other)


@every(
    ("scheme", "sentence"),
    [
        (Silent(), "rows of padding: "),
        (Silent().with_options({"capacity": 1.0}), "dropped (token, expert): "),
        (Elsewhere(), "a token's slot has an expert that it does not have"),
    ],
    ids=["padding", "drops", "elsewhere"],
)
def test_the_contract_finds_rows_that_are_not_the_layers(scheme: Scheme, sentence: str) -> None:
    found = examine_case(case_of(scheme, "uniform 4 ranks"))
    assert any(sentence in one.sentence for one in found if one.check == "carried")


def test_the_number_that_ranks_agree_on_is_no_payload() -> None:
    assert not list(examine_case(case_of(tutel(), "16 ranks")))  # an all-reduce in the switch


# ---- chunks --------------------------------------------------------------------------------------


def run(degree: int, intermediate: int = 512, tokens: int = 256) -> Timeline:
    shape = ExpertShape(512, intermediate, gated=False)
    work = small_layers.work(small_layers.draw(tokens, 4, 2, seed=1), 4, 4, shape=shape)
    # A host that waits for no capacity has launched everything long ago.
    scheme = tutel(overlap_degree=degree, channels=8, capacity=1.5)
    return schedule(build_layer(work, round_machine(), scheme)[0])


def spans(timeline: Timeline, kind: Kind) -> list[tuple[int, int]]:
    """Begin and end of a kind's work on GPU 0, in stretches that do not touch."""
    graph = timeline.graph
    mine = np.flatnonzero((graph.kind == kind) & (graph.rank == 0) & (graph.duration_ps > 0))
    found: list[tuple[int, int]] = []
    for task in mine[np.argsort(timeline.start_ps[mine], kind="stable")].tolist():
        begin, end = int(timeline.start_ps[task]), int(timeline.end_ps[task])
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def test_dispatches_stand_before_combines_in_one_stream() -> None:
    timeline = run(4)
    sent, back = (spans(timeline, kind) for kind in (Kind.DISPATCH_SEND, Kind.COMBINE_SEND))
    assert len(sent) == len(back) == 4
    assert sent[-1][1] < back[0][0]
    # The experts of the first chunk run while the others travel.
    first = spans(timeline, Kind.GEMM1)[0]
    assert sent[0][1] < first[0] < sent[-1][0]


def test_a_combine_that_is_ready_waits_for_the_last_dispatch() -> None:
    timeline = run(8, intermediate=16, tokens=2048)
    sent, back = (spans(timeline, kind) for kind in (Kind.DISPATCH_SEND, Kind.COMBINE_SEND))
    computed = spans(timeline, Kind.GEMM2)[0][1]
    assert computed + 10_000_000 < sent[-1][0]  # ps
    assert back[0][0] > sent[-1][1]


def test_one_chunk_overlaps_nothing() -> None:
    timeline = run(1)
    sent, back = (spans(timeline, kind) for kind in (Kind.DISPATCH_SEND, Kind.COMBINE_SEND))
    gemms = spans(timeline, Kind.GEMM1) + spans(timeline, Kind.GEMM2)
    assert sent[-1][1] < min(begin for begin, _ in gemms)
    assert max(end for _, end in gemms) < back[0][0]


def test_chunks_leave_the_experts_fewer_sms() -> None:
    for degree, sms in ((1, 100), (2, 92)):
        graph = run(degree).graph
        tasks = np.flatnonzero((graph.kind == Kind.GEMM1) & (graph.rank == 0))
        assert {int(graph.resources.servers[graph.resource[task]]) for task in tasks} == {sms}


def test_the_host_waits_for_the_capacity_unless_it_is_given() -> None:
    for capacity, waits in ((0.0, 1), (1.0, 0), (-1.0, 1)):
        operations = typical_program(tutel(capacity=capacity))
        assert operations
        assert [one.launches for one in operations].count(0) == waits
        assert can_be_captured(operations) == (not waits)


def test_even_uniform_routing_is_padded_and_zipf_several_times() -> None:
    """By the histogram alone, 256 tokens of each of eight GPUs for eight of 64 experts."""
    factors = {}
    for kind, more in (("uniform", {}), ("zipf", {"skew": 1.0})):
        trace = tracegen.generate.generate(kind, "olmoe-1b-7b", ranks=8, tokens_per_rank=256, layers=1, seed=1, **more)
        ids = np.asarray(trace.expert_ids[0], np.int32)
        work = small_layers.work(ids, 8, 64)
        counts = histogram(work)
        factors[kind] = counts.max() * counts.size / counts.sum()
        assert tutel().options.rows(work) == counts.max()
    assert 1.3 < factors["uniform"] < 2 < factors["zipf"]
