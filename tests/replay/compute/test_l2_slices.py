"""Tiles that read operands slice by slice: who keeps the SM, and what the cache still has."""

from __future__ import annotations

import numpy as np
import pytest
from engine_oracle import simulate
from loops import every
from round_machine import WHOLE_BLOCKS

import hwmodel
from hwmodel import System
from replay.engine import GraphBuilder, TaskGraph, Timeline, schedule
from replay.measure.measures import mechanisms
from replay.measure.parts import CacheUse
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import TileTasks, gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape
from replay.schemes.contract import layers as small_layers

TILE, INNER = 128, 512
BLOCK = 2 * TILE * INNER  # bytes of 128 columns of weights, and of 128 rows of activations
ROOM = 1 << 39  # bytes, for all that is read


def machine_of(num_sms: int, **changes: object) -> System:
    """Memory serves a byte in a picosecond; the cache is as fast as one likes."""
    values: dict[str, object] = {
        **WHOLE_BLOCKS,
        "gpu.num_sms": num_sms,
        "gpu.l2_bytes": 1 << 40,
        "gpu.l2_bytes_per_clock": 1e9,
        "compute.bf16_blocks": [[TILE, TILE]],
        "compute.bf16_grouped_blocks": [[TILE, TILE]],
        "compute.bf16_grouped_whole_tiles": False,
        "compute.tile_overhead_ns": 0.0,
        "compute.cluster_tiles": 1,
        "compute.operand_bytes_per_clock": 1e6,
        "hbm.peak_GB_per_s": 1000.0,
        "hbm.stream_efficiency": 1.0,
        "hbm.write_efficiency": 1.0,
    }
    return hwmodel.load("dgx-h100", {**values, **changes})


def cache(kept_bytes: int, slices: int) -> dict[str, object]:
    return {"gpu.l2_bytes": 2 * kept_bytes, "cache.kept_share": 0.5, "cache.slices": slices}


def graph_of(
    system: System, rows: list[int], columns: int, *, resident_blocks: int = 1, apart_ps: int = 0
) -> tuple[TaskGraph, Machine, TileTasks]:
    """The tiles of one GEMM; the i-th row tile is ready after i times `apart_ps`."""
    machine = Machine(system, GraphBuilder(KIND_NAMES), 1)
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows)[:, None]
    shape = ExpertShape(hidden=INNER, intermediate=columns * TILE // 2)
    work = small_layers.work(ids, 1, len(rows), shape=shape)
    gemm = Gemm.first(work, fused_activation=False)
    tiles = row_tiles(machine, work, gemm, system.sm.num_sms)
    ready = machine.graph.add(len(tiles), resource=-1, duration_ps=np.arange(len(tiles)) * apart_ps)
    tasks = gemm_tasks(
        machine,
        work,
        gemm,
        tiles,
        machine.sms.pool("sm", system.sm.num_sms),
        ready,
        resident_blocks=resident_blocks,
    )
    return machine.graph.build(), machine, tasks


def run(graph: TaskGraph, machine: Machine) -> tuple[Timeline, dict[str, CacheUse]]:
    timeline = schedule(graph)
    return timeline, mechanisms(timeline, machine).cache


def read_bytes(used: CacheUse) -> int:
    return used.first_bytes + used.again_bytes


MEASURED = {
    "dgx-h100": 20 << 20,
    "hgx-h800": 20 << 20,
    "aws-p5": 20 << 20,
    "hgx-h200": 231 << 17,
    "gh200-nvl32": 231 << 17,
}
"""What the H100 and the H200 were seen to keep, and what has their chips."""
BLACKWELL = ("hgx-b200", "gb200-nvl72")  # an H200's share is assumed of their caches' halves


def test_caches_of_two_halves_keep_what_was_measured_and_others_all_that_they_hold() -> None:
    for name in hwmodel.names():
        l2 = hwmodel.load(name).l2
        machine = name.partition("-x")[0]
        if machine in (*MEASURED, "hgx-h20", *BLACKWELL):
            kept = MEASURED.get(machine, l2.num_bytes * 77 // 160)
            assert l2.kept_bytes == pytest.approx(kept, rel=1e-5)
            assert l2.slices == (1 if machine in BLACKWELL else 2)
        else:
            assert (l2.kept_bytes, l2.slices) == (l2.num_bytes, 1)


def test_one_slice_of_the_whole_cache_is_the_model_without_slices() -> None:
    room = 6 * BLOCK
    found = []
    for changes in ({**WHOLE_BLOCKS, "gpu.l2_bytes": room}, cache(room, 1)):
        graph, machine, _ = graph_of(machine_of(4, **changes), [5 * TILE, 3 * TILE], 4)
        timeline, used = run(graph, machine)
        found.append((timeline.makespan_ps, used))
    assert found[0] == found[1]


@every("slices", [2, 3, 5])
@every("resident_blocks", [1, 2])
def test_a_tile_has_its_sm_from_its_first_slice_to_its_last(slices: int, resident_blocks: int) -> None:
    """With room for all, so that tiles wait for nothing but their SM."""
    changes: dict[str, object] = {"compute.tile_overhead_ns": 40.0, **cache(ROOM, slices)}
    system = machine_of(3, **{**changes, "hbm.peak_GB_per_s": 1e9})
    graph, machine, tasks = graph_of(system, [4 * TILE - 60, 2 * TILE], 3, resident_blocks=resident_blocks)
    timeline, _ = run(graph, machine)
    steps = tasks.begins + np.arange(slices)[:, None] * len(tasks.begins)
    assert (steps[-1] == tasks.columns).all()
    start, end = timeline.start_ps[steps], timeline.end_ps[steps]
    assert (start[1:] == end[:-1]).all()
    # The last slice has the end of the tile, whose results are stored by the blocks in turn.
    ending = 40_000 // resident_blocks
    longer = graph.duration_ps[steps[-1]] - graph.duration_ps[steps[0]]
    assert ((ending <= longer) & (longer < ending + slices)).all()
    # In all they take what they take as one, on the SM and until they are seen.
    whole, _, as_one = graph_of(
        machine_of(3, **{**changes, **cache(ROOM, 1), "hbm.peak_GB_per_s": 1e9}),
        [4 * TILE - 60, 2 * TILE],
        3,
        resident_blocks=resident_blocks,
    )
    assert (graph.duration_ps[steps].sum(axis=0) == whole.duration_ps[as_one.columns]).all()
    assert (graph.latency_ps[tasks.columns] == whole.latency_ps[as_one.columns]).all()


def test_tiles_that_begin_together_read_a_column_once_whatever_the_room() -> None:
    for slices in (1, 2, 4):
        graph, machine, _ = graph_of(machine_of(4, **cache(BLOCK // slices, slices)), [4 * TILE], 1)
        _, used = run(graph, machine)
        assert read_bytes(used["weights"]) == BLOCK


@every("slices", [2, 4, 8])
def test_a_tile_that_begins_later_finds_nothing_of_what_has_left(slices: int) -> None:
    """Two row tiles of one column, the second ready when the first is half through.

    A cache with room for one slice keeps nothing between them. Whole blocks are found all the same,
    as long as the first tile is in service.
    """
    fast = {"hbm.peak_GB_per_s": 1e6}
    tile_ps = int(machine_of(2).compute.tile_ps(TILE, TILE, INNER, "bf16", block_m=TILE))
    for changes, columns_read in (
        (cache(BLOCK, 1), 1),
        (cache(BLOCK // slices, slices), 2),
        (cache(8 * BLOCK, slices), 1),  # room for all that comes between
    ):
        graph, machine, _ = graph_of(machine_of(2, **fast, **changes), [2 * TILE], 1, apart_ps=tile_ps // 2 + 1)
        _, used = run(graph, machine)
        assert read_bytes(used["weights"]) == columns_read * BLOCK


def one_tile_ps(**changes: object) -> int:
    graph, machine, _ = graph_of(machine_of(1, **changes), [TILE], 1)
    return run(graph, machine)[0].makespan_ps


@every("slices", [1, 2, 4])
def test_memory_takes_a_picosecond_a_byte_whatever_the_cache_has_room_for(slices: int) -> None:
    """Rows, weights and results, also where a block is four times as large as the cache."""
    nbytes = 2 * BLOCK + 2 * TILE * TILE
    assert one_tile_ps(**cache(ROOM, slices)) == nbytes
    assert one_tile_ps(**cache(BLOCK // 4, slices)) == nbytes


@every("slices", [1, 2, 4])
@every("resident_blocks", [1, 2])
def test_the_end_of_a_tile_is_behind_all_that_it_reads(slices: int, resident_blocks: int) -> None:
    """A tile that waits for memory does nothing of its end before all is there, and it once.

    Its result is written meanwhile.
    """
    room, read, written = cache(ROOM, slices), 2 * BLOCK, 2 * TILE * TILE

    def tile_ps(overhead_ns: float) -> int:
        graph, machine, _ = graph_of(
            machine_of(1, **room, **{"compute.tile_overhead_ns": overhead_ns}),
            [TILE],
            1,
            resident_blocks=resident_blocks,
        )
        return run(graph, machine)[0].makespan_ps

    for overhead in (0, 20_000, 40_000):
        hidden = overhead - overhead // resident_blocks
        assert tile_ps(overhead / 1000) == read + max(overhead, written + hidden)


@every("slices", [1, 2])
def test_work_that_reads_its_blocks_whole_has_its_end_behind_them(slices: int) -> None:
    """Such as weight gradients and slices of a matrix: one task, also where tiles are several."""
    system = machine_of(1, **{**cache(ROOM, slices), "compute.tile_overhead_ns": 40.0})
    machine, one = Machine(system, GraphBuilder(KIND_NAMES), 1), np.zeros(1, np.int64)
    sm = machine.sms.pool("sm", 1)[one]
    task = machine.graph.add(1, resource=sm, duration_ps=40_000, kind=Kind.WGRAD, rank=one)
    machine.l2.read("gradients", task, one, one + machine.l2.new_blocks(1), BLOCK)
    assert schedule(machine.graph.build()).makespan_ps == BLOCK + 40_000


@every("seed", range(6))
def test_slices_are_served_as_the_twin_serves_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 4 * TILE, rng.integers(1, 4)).tolist()
    system = machine_of(
        int(rng.integers(1, 6)),
        **{
            **cache(int(rng.integers(1, 9)) * BLOCK // 2, int(rng.integers(1, 5))),
            "compute.tile_overhead_ns": float(rng.integers(0, 3) * 20),
            "hbm.peak_GB_per_s": float(rng.choice([50.0, 1000.0])),
        },
    )
    graph, _, _ = graph_of(
        system,
        rows,
        int(rng.integers(1, 5)),
        resident_blocks=int(rng.integers(1, 3)),
        apart_ps=int(rng.integers(0, 200_000)),
    )
    found, twin = schedule(graph), simulate(graph)
    assert dict(enumerate(found.start_ps.tolist())) == twin.start
    assert dict(enumerate(found.end_ps.tolist())) == twin.end


def test_a_bad_table_is_refused_in_one_line() -> None:
    with pytest.raises(hwmodel.UserError, match=r"cache\.slices"):
        hwmodel.load("dgx-h100", {"cache.slices": 0})
    with pytest.raises(hwmodel.UserError, match=r"cache\.slices: is missing"):
        hwmodel.load("cloudmatrix384", {"cache.kept_share": 0.5})
    with pytest.raises(hwmodel.UserError, match=r"cache\.kept_share"):
        hwmodel.load("dgx-h100", {"cache.kept_share": 1.1})
