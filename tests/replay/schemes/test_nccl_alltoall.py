"""NCCL in a scheme is NCCL as it is validated; and what the scheme costs off the wire."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
from loops import every
from packets import write_packets
from round_machine import NS, US, elementwise_ps, memory_ps, round_machine

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.studies.validate.nccl import build

COMBINE_KINDS = {
    getattr(Kind, f"COMBINE_{part}"): getattr(Kind, f"DISPATCH_{part}")
    for part in ("SYNC", "SEND", "UP", "DOWN", "ACK_UP", "ACK_DOWN", "RECEIVE", "MEMORY")
}
Tasks = Counter[tuple[object, ...]]


def described(timeline: Timeline, kinds: dict[Kind, Kind]) -> Tasks:
    """Tasks of some kinds: what, where, how long, how many bytes, and when after the first."""
    graph = timeline.graph
    chosen = np.flatnonzero(np.isin(graph.kind, list(kinds)))
    begin = timeline.start_ps[chosen].min()
    names = [*graph.resources.names, "nothing"]
    return Counter(
        (
            kinds[Kind(graph.kind[task])],
            names[graph.resource[task]],
            int(graph.rank[task]),
            int(graph.duration_ps[task]),
            int(graph.latency_ps[task]),
            int(graph.wire_bytes[task]),
            int(timeline.start_ps[task] - begin),
        )
        for task in chosen.tolist()
    )


def alone(system: hwmodel.System, num_ranks: int, collective: str, nbytes: int) -> Timeline:
    machine = Machine(system, GraphBuilder(KIND_NAMES), num_ranks)
    build(collective, nbytes, machine, machine.mark(machine.ranks))
    return schedule(machine.graph.build())


def even_layer(num_ranks: int, rows: int, hidden: int) -> LayerWork:
    """One expert on each rank, which gets `rows` tokens of every rank."""
    ids = np.tile(np.repeat(np.arange(num_ranks, dtype=np.int32), rows), num_ranks)[:, None]
    return small_layers.work(ids, num_ranks, num_ranks, shape=ExpertShape(hidden, 16))


@every("num_ranks", [2, 4, 8])
@every(("rows", "hidden"), [(1, 64), (4, 2048), (16, 512), (8, 4096), (64, 4096), (640, 4096)])
@every("preset", ["dgx-h100", "hgx-b200"])
def test_the_schemes_all_to_all_is_the_validated_one(preset: str, num_ranks: int, rows: int, hidden: int) -> None:
    system = hwmodel.load(preset)
    graph, _, _ = build_layer(even_layer(num_ranks, rows, hidden), system, SCHEMES["nccl-alltoall"])
    in_layer = described(schedule(graph), COMBINE_KINDS)
    kinds = {kind: kind for kind in COMBINE_KINDS.values()}
    nbytes = num_ranks * rows * 2 * hidden
    assert in_layer == described(alone(system, num_ranks, "alltoall", nbytes), kinds)


@every("num_ranks", [2, 8])
@every("num_experts", [8, 256])
def test_counts_are_gathered_as_nccl_gathers(num_ranks: int, num_experts: int) -> None:
    ids = small_layers.draw(24, num_experts, 2)
    layer = small_layers.work(ids, num_ranks, num_experts)
    system = hwmodel.load("dgx-h100")
    graph, _, _ = build_layer(layer, system, SCHEMES["nccl-alltoall"])
    kinds = {Kind.COUNT_UP: Kind.DISPATCH_UP, Kind.COUNT_DOWN: Kind.DISPATCH_DOWN}
    nbytes = num_ranks * 8 * num_experts  # an int64 for each expert
    gathered = alone(system, num_ranks, "all_gather", nbytes)
    wanted = described(gathered, {kind: kind for kind in kinds.values()})
    assert described(schedule(graph), kinds) == wanted


# ---- costs off the wire, by hand ---------------------------------------------------------------

UP, DOWN, VISIBLE, POLL = 150 * NS, 100 * NS, 30 * NS, 5 * NS
GAP, LAUNCH, HOST_WAIT, SMALL_KERNEL = 2 * US, 3 * US, 9 * US, 300 * NS
LL_START, LL_PASS, COPY = 1 * US, 100, 20  # of a ring; ps a byte
ROW = 2048  # bytes of 1024 BF16 values


@cache
def four_tokens() -> Timeline:
    """Three tokens of rank 0 and one of rank 1, two experts on each rank.

    Pairs: three of rank 0 stay and three go to rank 1, one of rank 1 stays and one goes.
    """
    ids = np.array([[0, 1], [0, 2], [2, 3], [1, 3]], np.int32)
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[3, 1], shape=ExpertShape(1024, 64))
    graph, _, _ = build_layer(layer, round_machine(), SCHEMES["nccl-alltoall"])
    return schedule(graph)


def on(group: str, kind: Kind) -> list[list[int]]:
    """Durations of a kind's tasks on a group of resources: (rank,) lists, in order of the tasks."""
    graph = four_tokens().graph
    groups = np.array([*graph.resources.groups, "nothing"])[graph.resource]
    return [
        graph.duration_ps[(graph.kind == kind) & (groups == group) & (graph.rank == rank)].tolist() for rank in (0, 1)
    ]


def test_memory_reads_and_writes_every_row_of_every_kernel() -> None:
    tokens, sent, got = (3, 1), (6, 2), (4, 4)
    own, received, returned = (3, 1), (1, 3), (3, 1)
    for rank in (0, 1):
        # A byte for each token and expert says whether the one goes to the other, a count for each
        # of four experts; five times a place for each; and places of the received rows for each
        # sort. Splits are a few bytes.
        flags, places = tokens[rank] * 4, got[rank] * 4
        assert on("hbm", Kind.LAYOUT)[rank] == [
            memory_ps(flags + 4 * 8),
            0,
            0,
            0,
            memory_ps(flags * (1 + 5 * 4)),
            memory_ps(places),
            memory_ps(places),
        ]
        # A row for each pair is made of the tokens'; then rows and gate weights are sorted by expert.
        assert on("hbm", Kind.PERMUTE)[rank] == [
            elementwise_ps(tokens[rank] * ROW, sent[rank] * ROW),
            elementwise_ps(got[rank] * (ROW + 4), got[rank] * (ROW + 4)),
        ]
        assert on("hbm", Kind.UNPERMUTE)[rank] == [
            elementwise_ps(got[rank] * ROW, got[rank] * ROW),
            elementwise_ps(sent[rank] * ROW, tokens[rank] * ROW),
        ]
        # What came and what stays is copied: rows, then gate weights of four bytes.
        assert on("hbm", Kind.DISPATCH_MEMORY)[rank] == [
            memory_ps(2 * rows * nbytes) for nbytes in (ROW, 4) for rows in (received[rank], own[rank])
        ]
        assert on("hbm", Kind.COMBINE_MEMORY)[rank] == [
            memory_ps(2 * rows * ROW) for rows in (returned[rank], own[rank])
        ]


def test_sms_store_what_goes_and_copy_what_stays() -> None:
    own, gone, back = (3, 1), (3, 1), (1, 3)
    for rank in (0, 1):
        assert on("nccl", Kind.DISPATCH_SEND)[rank] == [
            each for nbytes in (ROW, 4) for each in (gone[rank] * nbytes * LL_PASS, own[rank] * nbytes * COPY)
        ]
        assert on("nccl", Kind.COMBINE_SEND)[rank] == [
            back[rank] * ROW * LL_PASS,
            own[rank] * ROW * COPY,
        ]


def test_the_host_waits_once_for_the_gathered_counts() -> None:
    timeline = four_tokens()
    graph = timeline.graph
    assert on("host", Kind.DISPATCH_SYNC) == [[HOST_WAIT], [HOST_WAIT]]
    wait = np.flatnonzero((graph.duration_ps == HOST_WAIT) & (graph.kind == Kind.DISPATCH_SYNC))
    counted = int(timeline.visible_ps[np.flatnonzero(graph.kind == Kind.LAYOUT)[:2]].max())
    part = 4 * 8  # a rank's counts, by protocol LL in one step, and then copied
    wire = write_packets(2 * part)
    summed = counted + GAP + SMALL_KERNEL  # the splits to send
    gathered = summed + GAP + LL_START + part * LL_PASS + 2 * wire + UP + DOWN + VISIBLE + POLL + part * LL_PASS
    # Four kernels for what will be received, and three of four copies, before the wait.
    assert timeline.start_ps[wait].max() == gathered + 7 * (GAP + SMALL_KERNEL)
    # Nothing is sent before the host knows how much, and has launched the kernel.
    sends = np.flatnonzero(graph.kind == Kind.DISPATCH_SEND)
    assert timeline.start_ps[sends].min() >= timeline.end_ps[wait].min() + LAUNCH


def test_a_rank_alone_exchanges_nothing() -> None:
    layer = small_layers.work(small_layers.draw(20, 8, 2), 1, 8)
    graph, _, _ = build_layer(layer, round_machine(), SCHEMES["nccl-alltoall"])
    kinds = {Kind(kind) for kind in graph.kind.tolist()}
    assert not kinds & {Kind.DISPATCH_SEND, Kind.DISPATCH_MEMORY, Kind.COUNT_UP}
    assert not kinds & {Kind.COMBINE_SEND, Kind.COMBINE_MEMORY}
