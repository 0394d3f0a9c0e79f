"""LADM: who loads what when, what holds SMs meanwhile, and what kernels wait for."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from loops import every
from round_machine import WHOLE_BLOCKS
from tensor_run import TensorRun

import hwmodel
from replay.errors import UserError
from replay.experiments.dense.measure import skew_of
from replay.model.machine.kinds import Kind
from replay.model.work.transformer_layer import Enter, Leave, Product, Step
from replay.schemes.contract.sms import most_in_use
from replay.schemes.registry import find
from replay.schemes.tp.base import GATHER, REDUCE

TOKENS, HIDDEN = 8192, 2048
LEAVE, ENTER = Leave(Product(TOKENS, HIDDEN, 1024)), Enter(Product(TOKENS, 2048, HIDDEN))
US = 1_000_000


def run_of(step: Step, *, name: str = "ladm", overrides: dict[str, Any] | None = None, **given: object) -> TensorRun:
    system = hwmodel.load("dgx-h100", {**WHOLE_BLOCKS, **(overrides or {})})
    return TensorRun(name, step, system=system, **{"tokens": TOKENS, "hidden": HIDDEN, **given})


@cache
def ran(step: str, name: str = "ladm", **options: object) -> TensorRun:
    """Run a step once for all tests."""
    return run_of({"leave": LEAVE, "enter": ENTER}[step], name=name, **options)


# ---- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("late_us", [0, 40])
def test_loading_and_adding_takes_what_its_steps_take(late_us: int) -> None:
    """Two GPUs, one block each: product, barrier, kernel, load, add, write."""
    rows, hidden = 8, 512
    nbytes = rows * hidden * 2
    step = Leave(Product(2 * rows, hidden, 256))
    run = run_of(step, num_ranks=2, tokens=2 * rows, hidden=hidden, begins_us=(0, late_us))
    plain = run_of(step, num_ranks=2, tokens=2 * rows, hidden=hidden, begins_us=(0, late_us), name="plain")
    system, link, fabric = run.system, run.system.link, run.system.fabric
    one_way = fabric.uplink_latency_ps + fabric.downlink_latency_ps
    request = link.port_duration_ps(link.request_wire_bytes(hidden * 2, rows))
    answer = link.port_duration_ps(link.response_wire_bytes(hidden * 2, rows))
    expected = (
        plain.time_ps
        + system.overheads.barrier_ps(2)
        + system.overheads.kernel_gap_ps()
        + 2 * request
        + one_way
        + fabric.read_access_ps
        + 2 * answer
        + one_way
        + system.sm.reduce_ps(2 * nbytes, nbytes)
        + system.hbm.stream_ps(2 * nbytes)
    )
    assert run.timeline.visible_ps[run.ends].tolist() == [expected] * 2


def test_memory_is_read_at_home_and_written_by_the_owner() -> None:
    run, stream = ran("leave"), ran("leave").system.hbm.stream_ps
    block, blocks = 16 * HIDDEN * 2, TOKENS // 8 // 16
    # Seven others read its parts; it reads its own and writes the sum.
    expected = blocks * (7 * stream(block) + stream(2 * block))
    assert run.busy_ps(REDUCE.memory, 5) == expected
    # Rows are read at home for each reader; readers' tiles read them from their own memory.
    run = ran("enter", slice_values=0)
    assert run.busy_ps(GATHER.memory, 5) == 7 * 8 * stream(128 * HIDDEN * 2)


# ---- kernels of all GPUs -------------------------------------------------------------------------


@pytest.mark.parametrize("step", [LEAVE, ENTER], ids=["leave", "enter"])
def test_no_gpu_loads_before_all_gpus_have_stored(step: Step) -> None:
    kinds = REDUCE if isinstance(step, Leave) else GATHER
    run = run_of(step, begins_us=(0, 0, 500, 0, 0, 0, 0, 0))
    first = min(int(run.starts_ps(kinds.request_up, rank)[0]) for rank in range(8))
    made = run.timeline.end_ps[run.of(Kind.GEMM2)]
    stored = int(made.max(initial=500 * US))
    overheads = run.system.overheads
    assert first >= stored + overheads.barrier_ps(8) + overheads.kernel_gap_ps()


# ---- blocks of a product -------------------------------------------------------------------------


def test_all_gpus_begin_with_the_rows_of_the_first() -> None:
    run = ran("enter")
    (tiled,) = run.tiled
    assert tiled.first_row[:8].tolist() == list(range(0, 1024, 128))
    asked = run.of(GATHER.request_down)
    order = np.argsort(run.timeline.start_ps[asked], kind="stable")
    # The first blocks have 17 row tiles: those of GPUs 0 and 1, and one of GPU 2.
    assert set(run.graph.rank[asked[order[:50]]].tolist()) <= {0, 1, 2}
    own_first = ran("enter", own_rows_first=True)
    asked = own_first.of(GATHER.request_down)
    order = np.argsort(own_first.timeline.start_ps[asked], kind="stable")
    assert set(own_first.graph.rank[asked[order[:50]]].tolist()) == set(range(8))
    assert own_first.time_ps < run.time_ps
    (tiled,) = own_first.tiled
    of_3 = tiled.first_row[tiled.tiles.rank == 3] // 1024
    assert of_3[np.flatnonzero(np.diff(of_3, prepend=-1))].tolist() == [3, 4, 5, 6, 7, 0, 1, 2]


def test_a_block_asks_for_its_rows_when_it_has_its_sm() -> None:
    """Nothing is fetched ahead: the last rows are asked for when blocks before have ended."""
    run = ran("enter", slice_values=0)
    assert len(run.of(GATHER.request_up, 0)) == 7 * 8  # each row tile once
    for rank in range(8):
        asked = run.starts_ps(GATHER.request_up, rank)
        ends = np.sort(run.timeline.end_ps[run.of(Kind.GEMM1, rank)])
        # 512 blocks: the last group of row tiles has no SM before others have given theirs back.
        assert asked[-1] >= ends[len(ends) - run.system.sm.num_sms - 128]
        assert asked[0] < ends[0]


SLOW = {"gpu.num_sms": 1, "link.bandwidth_GB_per_s": 0.1}


@pytest.mark.parametrize("slice_values", [0, 256])
def test_a_block_keeps_its_sm_until_all_of_its_rows_have_come(slice_values: int) -> None:
    """One SM and slow links: the second block of a row tile begins behind the last row."""
    step = Enter(Product(256, 512, 1024))
    run = run_of(step, num_ranks=2, tokens=256, hidden=1024, overrides=SLOW, slice_values=slice_values)
    (tiled,) = run.tiled
    for rank in range(2):
        tiles = tiled.tasks.column_tile
        own = np.flatnonzero(tiled.tiles.rank[tiles] == rank)
        far = own[tiled.first_row[tiles[own]] // 128 != rank]
        tasks = np.sort(tiled.tasks.columns[far])
        starts, came = run.timeline.start_ps[tasks], run.timeline.end_ps[run.of(GATHER.down, rank)]
        assert len(tasks) > 1
        assert np.sort(starts)[1] > came.max()
        # With slices, the first block begins when the first has come.
        assert (np.sort(starts)[0] < came.max()) == bool(slice_values)
        assert np.sort(starts)[0] > came.min()
    assert most_in_use(run.timeline, run.machine).sms == 1


@every("name", ["leave", "enter"])
@every(("options", "resident"), [({}, 1), ({"resident_blocks": 2}, 2)])
def test_as_many_blocks_come_at_once_as_sms_have_room_for(name: str, options: dict[str, int], resident: int) -> None:
    """Of the product, and of the kernel that adds; while some wait others multiply."""
    run = run_of({"leave": LEAVE, "enter": ENTER}[name], overrides={"gpu.num_sms": 8}, **options)
    claims = run.timeline.start_ps[run.of(Kind.LAUNCH, 3)]
    assert np.unique(claims, return_counts=True)[1].max() == 8 * resident
    assert most_in_use(run.timeline, run.machine).sms <= 8


def test_the_next_slice_is_asked_for_when_one_has_come() -> None:
    step = Enter(Product(256, 256, 1024))
    slices = run_of(step, num_ranks=2, tokens=256, hidden=1024)
    for rank in range(2):
        asked = slices.starts_ps(GATHER.request_up, rank)
        came = np.sort(slices.timeline.end_ps[slices.of(GATHER.down, rank)])
        tiles = len(slices.tiled[0].tiles) // 4  # of the other GPU
        assert len(asked) == len(came) == 4 * tiles
        asked, came = asked.reshape(4, tiles), came.reshape(4, tiles)
        assert (asked[1:] > came[:-1]).all()


def test_without_a_cache_of_remote_rows_every_block_loads_its_own() -> None:
    cached = ran("enter", slice_values=0)
    alone = ran("enter", slice_values=0, remote_caching=False)
    (tiled,) = alone.tiled
    columns = len(tiled.tasks.columns) // len(tiled.tiles)
    assert columns > 1
    for rank in range(8):
        found = [int(run.graph.payload_bytes[run.of(GATHER.down, rank)].sum()) for run in (cached, alone)]
        assert found == [7 * 1024 * HIDDEN * 2, columns * 7 * 1024 * HIDDEN * 2]
        assert alone.busy_ps(GATHER.memory, rank) == columns * cached.busy_ps(GATHER.memory, rank)
    assert alone.time_ps > 2 * cached.time_ps


@pytest.mark.parametrize("step", ["leave", "enter"])
def test_what_is_loaded_is_not_hidden_for_nothing(step: str) -> None:
    run, alone = ran(step), ran(step, "plain").time_ps
    kinds = REDUCE if step == "leave" else GATHER
    wire = max(run.busy_ps(kind, 0) for kind in (kinds.up, kinds.down))
    assert run.time_ps > max(alone, wire)
    if step == "leave":  # a kernel behind the other
        assert run.time_ps > alone + wire


def test_blocks_are_of_the_kernel_and_no_others_communicate() -> None:
    for step in ("leave", "enter"):
        run = ran(step)
        assert most_in_use(run.timeline, run.machine).sms <= run.system.sm.num_sms
        assert find("ladm", "tp").communication_sms(run.machine) == 0


def test_loads_of_the_same_rows_are_counted_with_their_skew() -> None:
    run = ran("enter")
    skew = skew_of(run.timeline, run.machine).between_gpus["loads of rows"]
    assert skew.count == TOKENS // 128
    assert 0 < skew.p50_us <= skew.max_us


def test_backward_rows_are_loaded_by_a_kernel_before_the_product() -> None:
    run = run_of(LEAVE, is_backward=True)
    for rank in range(8):
        rows = run.timeline.end_ps[run.of(GATHER.down, rank)].max()
        assert run.starts_ps(Kind.GEMM2, rank)[0] > rows
        assert run.starts_ps(Kind.WGRAD, rank)[0] > rows
    # A block copies what it has loaded into its own memory.
    block = 16 * HIDDEN * 2
    stream = run.system.hbm.stream_ps(block)
    assert run.busy_ps(GATHER.memory, 2) == 2 * 7 * 64 * stream
    assert run.busy_ps(GATHER.receive, 2) == 7 * 64 * run.system.sm.copy_out_ps(block)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(UserError, match="slice_values=-1 of scheme 'ladm': must be at least 0"):
        find("ladm", "tp").with_options({"slice_values": -1})
