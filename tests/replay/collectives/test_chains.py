"""NCCL's broadcast and reduce by hand: who stores to whom, bytes of memory, time in a pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from round_machine import NS, ROUND, US

import hwmodel
from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.model.collectives import chains
from replay.model.machine.kinds import KIND_NAMES, WEIGHTS, Kind
from replay.model.machine.machine import Machine

N, ROOT = 4, 2
MIB = 1 << 20


def chain(
    name: chains.Chain, nbytes: int, *, channels: int = 0, n: int = N, **changes: object
) -> tuple[TaskGraph, int]:
    """Graph of a chain, and when its last rank ends."""
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(hwmodel.load("dgx-h100", {**ROUND, **changes}), builder, n)
    ends = chains.run(machine, WEIGHTS, name, nbytes, ROOT, machine.mark(machine.ranks), channels=channels)
    graph = builder.build()
    return graph, int(schedule(graph).visible_ps[ends].max())


def stored(graph: TaskGraph) -> dict[int, int]:
    """Payload-free wire bytes that each rank stores."""
    up = graph.kind == Kind.WEIGHTS_UP
    return {rank: int(graph.wire_bytes[up & (graph.rank == rank)].sum()) for rank in range(N)}


@pytest.mark.parametrize(("name", "last"), [("broadcast", ROOT - 1), ("reduce", ROOT)])
def test_all_but_the_last_store_everything_once(name: chains.Chain, last: int) -> None:
    graph, _ = chain(name, 16 * MIB)
    packets = 16 * MIB // 128
    for rank, nbytes in stored(graph).items():
        assert nbytes == (0 if rank == last else packets * 9 * 16)
    assert not graph.payload_bytes.any()


@pytest.mark.parametrize(
    ("name", "times"),
    [("broadcast", {0: 2, 1: 2, 2: 0, 3: 2}), ("reduce", {0: 2, 1: 2, 2: 3, 3: 0})],
)
def test_memory_where_chunks_come_out_of_fifos(name: chains.Chain, times: dict[int, int]) -> None:
    graph, _ = chain(name, 16 * MIB)
    rate = 5  # bytes in a picosecond
    for rank, factor in times.items():
        mine = (graph.kind == Kind.WEIGHTS_MEMORY) & (graph.rank == rank)
        assert int(graph.duration_ps[mine].sum()) * rate == pytest.approx(factor * 16 * MIB, abs=50)


@every(("channels", "chunks"), [(8, 4), (1, 32), (64, 2)])
def test_chunks_are_a_step_of_each_channel(channels: int, chunks: int) -> None:
    graph, _ = chain("broadcast", 16 * MIB, channels=channels)  # 24 channels at most
    assert int(((graph.kind == Kind.WEIGHTS_SEND) & (graph.rank == ROOT)).sum()) == chunks


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_a_rank_passes_a_chunk_on_while_the_next_comes(name: chains.Chain) -> None:
    quick = {"nccl.copy_GB_per_s": 1000.0}
    _, alone = chain(name, 4 * MIB, channels=8, **quick)
    _, together = chain(name, 8 * 4 * MIB, channels=8, **quick)
    chunk_ps = 4 * MIB * 9 // 8  # of the ports, a byte a picosecond, with headers
    assert together - alone == pytest.approx(7 * chunk_ps, rel=0.04)
    _, two = chain(name, 4 * MIB, channels=8, n=3, **quick)
    assert chunk_ps < alone - two < chunk_ps + US  # a hop


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_channels_copy_what_comes(name: chains.Chain) -> None:
    _, alone = chain(name, 4 * MIB, channels=8)
    _, together = chain(name, 8 * 4 * MIB, channels=8)
    of_channel = MIB // 2 * 1000 // 25  # a chunk at 25 GB/s
    assert together - alone == pytest.approx(7 * of_channel, rel=0.001)


def test_small_ones_take_a_quick_protocol() -> None:
    slow = {"nccl.ll_start_us": 30.0, "nccl.ll128_start_us": 40.0}
    _, quick = chain("broadcast", 4096)
    graph, simple = chain("broadcast", 4096, **slow)
    assert 1 * US + 3 * 150 * NS < quick < 3 * US  # its start, three ways
    assert 8 * US < simple < 30 * US
    assert stored(graph)[ROOT] == 4096 * 9 // 8


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_every_rank_waits_for_the_ranks_before_it(name: chains.Chain) -> None:
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(hwmodel.load("dgx-h100", ROUND), builder, N)
    late = np.array([0, 0, 0, 50_000], np.int64) * NS  # rank 3, behind the root
    start = builder.add(N, resource=-1, duration_ps=late, kind=Kind.MARK, rank=machine.ranks)
    ends = chains.run(machine, WEIGHTS, name, MIB, ROOT, start)
    visible = schedule(builder.build()).visible_ps[ends]
    waits = [0, 1, 3] if name == "broadcast" else [0, 1, 2, 3]
    assert (visible[waits] > 50_000 * NS).all()
    assert (visible[ROOT] < 50_000 * NS) == (name == "broadcast")
