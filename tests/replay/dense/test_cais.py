"""CAIS: what each part of it does and costs, on a machine of round numbers."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every
from round_machine import NS, ROUND, US

import hwmodel
from replay.engine import GraphBuilder, TouchOutcome, schedule
from replay.errors import UserError
from replay.experiments.dense.measure import skew_of
from replay.measure.measures import measures
from replay.model.arrays import Ints
from replay.model.machine.kinds import ACKS, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.transformer_layer import Enter, Leave, Norm, Product, Step, TensorLayer
from replay.schemes.tp.base import GATHER, REDUCE
from replay.schemes.tp.cais.kernels import PART_ROWS, CaisBlocks
from replay.schemes.tp.cais.moves import Moves
from replay.schemes.tp.cais.norms import NORM_ROWS
from replay.schemes.tp.cais.options import CaisOptions
from replay.schemes.tp.cais.rows import cut_rows, overlaps
from replay.schemes.tp.cais.scheme import Cais
from replay.schemes.tp.kernels import TensorKernels

NUM, TOKENS, HIDDEN = 4, 2048, 512
ROW = 2 * HIDDEN
OWNED = TOKENS // NUM
TILE = 64  # rows and columns
SYSTEM = {**ROUND, "switch.multimem_efficiency": 1.0, "switch.reduction_GFLOP_per_s": 0}
ENTER, LEAVE = Enter(Product(TOKENS, 256, HIDDEN)), Leave(Product(TOKENS, HIDDEN, 256))
NORM = Norm(4 * ROW)
BLOCKS = TOKENS // TILE * 4, TOKENS // TILE * 8  # of the two products
BASE = {"coordination": False, "overlap": False}
FLIT, UP, DOWN = 16, 150 * NS, 100 * NS


class Run:
    """Steps under CAIS, with one block on an SM at a time unless options say otherwise."""

    def __init__(
        self,
        *steps: Step,
        system: dict[str, Any] | None = None,
        is_backward: bool = False,
        num: int = NUM,
        **options: Any,
    ) -> None:
        self.scheme = Cais().with_options({"resident_blocks": 1, **options})
        graph = GraphBuilder(KIND_NAMES)
        self.machine = Machine(hwmodel.load("dgx-h100", {**SYSTEM, **(system or {})}), graph, num)
        layer = TensorLayer(num, TOKENS, HIDDEN, steps, is_backward)
        self.ends: Ints = self.scheme.build(layer, self.machine, self.machine.mark(self.machine.ranks))
        self.graph = graph.build()

    @cached_property
    def timeline(self) -> Any:
        """The schedule."""
        return schedule(self.graph)

    @cached_property
    def found(self) -> Any:
        """What a result reports."""
        return measures(self.graph, self.ends, self.machine, self.timeline, phases_separated=False)

    @property
    def ps(self) -> int:
        """Until all is over."""
        return int(self.timeline.visible_ps[self.ends].max())

    def of(self, *kinds: Kind, rank: int | None = None) -> Ints:
        """Tasks of some kinds, of one rank."""
        chosen = np.isin(self.graph.kind, kinds)
        return np.flatnonzero(chosen & (True if rank is None else self.graph.rank == rank))

    def busy_ps(self, *kinds: Kind, rank: int | None = None) -> int:
        """Time in service of tasks of some kinds."""
        tasks = self.of(*kinds, rank=rank)
        return int((self.timeline.end_ps - self.timeline.start_ps)[tasks].sum())

    def missed(self) -> int:
        """Messages whose entry had left the merge unit."""
        return int(self.found.mechanisms.tables["merge unit"].missed)


# ---- rows ----------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 12), st.integers(1, 7))
def test_pieces_lie_in_one_part_and_one_home(num: int, owned: int, tile: int, most: int) -> None:
    part = np.arange(num * owned) // tile
    cut = cut_rows(part, owned, most)
    rows = [list(range(first, first + rows)) for first, rows in zip(cut.first.tolist(), cut.rows.tolist(), strict=True)]
    assert [row for members in rows for row in members] == list(range(num * owned))
    for piece, members in enumerate(rows):
        assert {row // owned for row in members} == {cut.home[piece]}
        assert {row // tile for row in members} == {cut.part[piece]}
        assert 1 <= len(members) <= most
    for one, other in pairwise(rows):  # no piece could have one row more
        same = part[one[0]] == part[other[0]] and one[0] // owned == other[0] // owned
        assert not same or len(one) == most


def test_parts_that_share_rows_are_found_once() -> None:
    one, other = overlaps(np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2, 2]))
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)]


def blocks_of(order: str, machine: Machine) -> CaisBlocks:
    layer = TensorLayer(NUM, 8, HIDDEN, (), is_backward=False)
    options = CaisOptions()
    kernels = TensorKernels(machine, layer, layer.own_rows)
    return CaisBlocks(kernels, Moves(machine, options), options, is_coordinated=False, order=order)


@every(
    ("order", "rank", "tiles"),
    [
        ("same", 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("same", 3, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("spread", 0, [0, 2, 4, 6, 1, 3, 5, 7]),
        ("spread", 2, [0, 2, 4, 6, 1, 3, 5, 7]),
        ("rotated", 0, [2, 3, 4, 5, 6, 7, 0, 1]),
        ("rotated", 3, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_gpus_go_through_rows_in_the_order_that_is_asked_for(order: str, rank: int, tiles: list[int]) -> None:
    """Eight rows in tiles of one; then groups of four tiles with two columns."""
    machine = Machine(hwmodel.load("dgx-h100", SYSTEM), GraphBuilder(KIND_NAMES), NUM)
    blocks = blocks_of(order, machine)
    part, alone = np.arange(8), np.arange(8)
    places = blocks.places(part, alone, np.zeros(8, int))[rank]
    assert alone[np.argsort(places)].tolist() == tiles
    tile = np.array([0, 1, 2, 3] * 2 + [4, 5, 6, 7] * 2)
    column = np.array(([0] * 4 + [1] * 4) * 2)
    order_of = np.argsort(blocks.places(part, tile, column)[rank])
    assert tile[order_of].tolist() == (tiles[:4] * 2 + tiles[4:] * 2)
    assert column[order_of].tolist() == column.tolist()


# ---- loads ---------------------------------------------------------------------------------------


def test_rows_leave_once_with_the_merge_unit_and_seven_times_without() -> None:
    for merge, times in ((True, 1), (False, NUM - 1)):
        run = Run(ENTER, merge=merge, **BASE)
        payload = run.found.payload_bytes["dispatch"]
        assert payload.uplink == [times * OWNED * ROW] * NUM
        assert payload.downlink == [(TOKENS - OWNED) * ROW] * NUM
        # And are read from their home's memory as often: five bytes a picosecond.
        pieces = run.of(GATHER.up)[run.graph.payload_bytes[run.of(GATHER.up)] > 0]
        memory = run.of(GATHER.memory)
        assert len(memory) == len(pieces)
        assert run.busy_ps(GATHER.memory, rank=1) == pytest.approx(times * OWNED * ROW / 5, rel=0.01)


def test_no_row_is_asked_for_before_its_owner_has_it() -> None:
    run = Run(ENTER, launch_skew_us=30.0, **BASE)
    assert run.timeline.start_ps[run.of(GATHER.request_up)].min() > 30 * US


def test_a_block_has_no_more_under_way_than_its_window() -> None:
    """A piece of two rows at a time: the next is asked for when it has come."""
    options: dict[str, Any] = {"piece_bytes": 1024, "slices": 2, "window_bytes": 2048, **BASE}
    run = Run(ENTER, system={"gpu.num_sms": 1}, **options)
    sent = np.sort(run.timeline.start_ps[run.of(GATHER.request_up, rank=0)])
    come = np.sort(run.timeline.visible_ps[_with_payload(run, GATHER.down, 0)])
    assert (sent[2:] >= come[:-2]).all()
    wide = Run(ENTER, system={"gpu.num_sms": 1}, **{**options, "window_bytes": 65536})
    assert wide.ps < run.ps


def _with_payload(run: Run, kind: Kind, rank: int) -> Ints:
    tasks = run.of(kind, rank=rank)
    return tasks[run.graph.payload_bytes[tasks] > 0]


def test_tiles_begin_when_the_first_slice_of_their_rows_is_there() -> None:
    slow = {"link.efficiency": 0.02}  # a row tile takes about as long as its product
    one, four = (Run(ENTER, slices=slices, system=slow, **BASE) for slices in (1, 4))
    tiles = {run: run.of(Kind.GEMM1, rank=0) for run in (one, four)}
    assert len(tiles[four]) == 4 * len(tiles[one]) == 4 * BLOCKS[0]
    durations = [int(run.graph.duration_ps[tiles[run]].sum()) for run in (one, four)]
    assert durations[0] == durations[1]  # the product costs the same
    read = [run.found.mechanisms.cache for run in (one, four)]
    for what in ("weights", "activations"):
        assert read[0][what].bytes == read[1][what].bytes
    assert four.ps < one.ps


def test_own_rows_wait_for_nobody() -> None:
    """The tile of its own rows starts while those of others are under way."""
    run = Run(ENTER, order="same", **BASE)
    started = run.timeline.start_ps[run.of(Kind.GEMM1, rank=0)].min()
    assert started < run.timeline.visible_ps[_with_payload(run, GATHER.down, 0)].min()


def test_blocks_keep_their_sms_while_they_wait_for_rows() -> None:
    """On one SM, tile after tile; rows of the next are not asked for meanwhile."""
    run = Run(ENTER, system={"gpu.num_sms": 1}, order="same", slices=1, **BASE)
    asked = run.timeline.start_ps[run.of(GATHER.request_up, rank=0)]
    ends = np.sort(run.timeline.end_ps[run.of(Kind.GEMM1, rank=0)])
    late = np.searchsorted(ends, asked, side="right")  # tiles that were over
    assert len(set(late.tolist())) == (TOKENS - OWNED) // TILE  # a row tile each time


@every("slices", [1, 4])
@every("num_sms", [1, 3, 100])
def test_no_slice_is_multiplied_before_its_block_has_its_turn(slices: int, num_sms: int) -> None:
    """Blocks of which a slice has been multiplied and not the last are on SMs of their own."""
    for resident in (1, 2):
        run = Run(ENTER, system={"gpu.num_sms": num_sms}, slices=slices, resident_blocks=resident, **BASE)
        for rank in range(NUM):
            steps = run.of(Kind.GEMM1, rank=rank).reshape(slices, -1)
            begun, over = run.timeline.start_ps[steps[0]], run.timeline.end_ps[steps[-1]]
            assert at_once(begun, over) <= num_sms * resident
            assert at_once(run.timeline.start_ps[steps], run.timeline.end_ps[steps]) <= num_sms


def at_once(start: Ints, end: Ints) -> int:
    """Most intervals at a time; what ends makes room for what starts then."""
    times = np.concatenate((end, start), axis=None)
    change = np.repeat((-1, 1), start.size)
    return int(np.cumsum(change[np.lexsort((change, times))]).max())


@every("resident", [1, 2, 4])
def test_blocks_that_wait_leave_their_sm_to_as_many_as_it_has_room_for(resident: int) -> None:
    """On one SM, rows of so many row tiles are asked for before the first tile is over."""
    run = Run(ENTER, system={"gpu.num_sms": 1}, order="same", slices=1, resident_blocks=resident, **BASE)
    # The last rank's tiles of own rows come last: all that it asks for before are of others.
    asked = run.timeline.start_ps[run.of(GATHER.request_up, rank=NUM - 1)]
    first_end = run.timeline.end_ps[run.of(Kind.GEMM1, rank=NUM - 1)].min()
    per_tile = len(asked) / ((TOKENS - OWNED) // TILE)
    assert (asked < first_end).sum() == resident * per_tile


def test_waiting_is_hidden_by_other_blocks_and_multiplying_is_not() -> None:
    """Rows that are slow to come: with room for all blocks an SM multiplies without a gap."""
    slow = {"gpu.num_sms": 2, "link.efficiency": 0.02}
    times = [Run(ENTER, system=slow, resident_blocks=resident, **BASE).ps for resident in (1, 2, 4, 32)]
    assert times == sorted(times, reverse=True)
    run = Run(ENTER, system=slow, resident_blocks=32, **BASE)
    tiles = run.of(Kind.GEMM1, rank=0)
    busy = int(run.graph.duration_ps[tiles].sum()) // 2
    assert times[-1] > busy
    assert times[0] - times[-1] > 0.1 * busy


@every(("tile", "resident"), [([128, 256], 1), ([128, 128], 2), ([64, 128], 3), ([64, 64], 2)])
def test_as_many_blocks_are_on_an_sm_as_the_tiles_leave_room_for(tile: list[int], resident: int) -> None:
    system = {"compute.bf16_blocks": [tile]}
    for steps in ((ENTER,), (LEAVE,), THREE):
        by_tile, given = (Run(*steps, system=system, resident_blocks=number) for number in (0, resident))
        assert by_tile.ps == given.ps


NARROW = Enter(Product(TOKENS, 64, HIDDEN))


@every(
    ("steps", "num_sms", "resident"),
    [
        ((LEAVE,), 4, 3),  # 64 x 128
        ((NARROW,), 4, 2),  # 64 x 64
        ((LEAVE, NORM, NARROW), 4, 2),
        ((LEAVE,), 100, 2),  # 64 x 64, since there are more SMs than larger tiles
        ((LEAVE, NORM, ENTER), 100, 2),  # 64 x 128 in the second
    ],
)
def test_a_kernel_of_two_products_has_room_for_as_many_as_the_larger_blocks_leave(
    steps: tuple[Step, ...], num_sms: int, resident: int
) -> None:
    system = {"compute.bf16_blocks": [[64, 64], [64, 128]], "gpu.num_sms": num_sms}
    started: dict[int, list[int]] = {}
    for number in (0, 2, 3):
        timeline = Run(*steps, system=system, resident_blocks=number).timeline
        started[number] = timeline.start_ps.tolist()
    assert started[0] == started[resident]
    assert started[2] != started[3]


# ---- sums ----------------------------------------------------------------------------------------


def test_sums_reach_their_home_once_with_the_merge_unit_and_seven_times_without() -> None:
    for merge, times in ((True, 1), (False, NUM - 1)):
        run = Run(LEAVE, merge=merge, **BASE)
        payload = run.found.payload_bytes["combine"]
        assert payload.downlink == [times * OWNED * ROW] * NUM
        assert payload.uplink == [(TOKENS - OWNED) * ROW] * NUM
        # The home reads and writes its own sums as often.
        nbytes = times * OWNED * ROW
        expected = nbytes / 8 + nbytes / 4  # bytes a picosecond that are read, and written
        assert run.busy_ps(REDUCE.memory, rank=1) == pytest.approx(expected, rel=0.02)


def test_a_tile_is_issued_by_its_sm_and_leaves_before_the_sm_goes_on() -> None:
    run = Run(LEAVE, system={"gpu.num_sms": 1}, **BASE)
    issued = run.of(REDUCE.send, rank=2)
    assert len(issued) == BLOCKS[1]
    abroad = (TOKENS - OWNED) * ROW
    assert run.busy_ps(REDUCE.send, rank=2) == abroad * 10  # a tenth of a byte a picosecond
    left = run.timeline.visible_ps[_with_payload(run, REDUCE.up, 2)]
    tiles = run.of(Kind.GEMM2, rank=2)
    begun = np.sort(run.timeline.start_ps[tiles])
    for start in begun[1:].tolist():
        done = int((run.timeline.end_ps[tiles] <= start).sum())
        assert done == int((begun < start).sum())
    sent = np.sort(run.timeline.start_ps[_with_payload(run, REDUCE.up, 2)])
    place = np.searchsorted(begun, sent)  # the tile that follows each message
    later = place < len(begun)
    assert (begun[place[later]] >= left[np.argsort(left)][later]).all()


def test_all_gpus_have_their_sums_at_the_end() -> None:
    run = Run(LEAVE, **BASE)
    added = run.timeline.visible_ps[run.of(REDUCE.memory)].max()
    barrier = 1000 * NS + 3 * 10 * NS + UP + DOWN  # of four; flags follow acknowledged stores
    assert run.timeline.visible_ps[run.ends].tolist() == [added + barrier] * NUM


def test_one_gpu_moves_nothing() -> None:
    for is_backward in (False, True):
        run = Run(LEAVE, NORM, ENTER, num=1, is_backward=is_backward)
        assert not run.graph.wire_bytes.any()


# ---- coordination --------------------------------------------------------------------------------


def test_every_block_costs_two_packets_for_its_launch_and_two_for_its_access() -> None:
    for steps, accesses in (((ENTER,), TOKENS // TILE), ((LEAVE,), BLOCKS[1])):
        blocks = BLOCKS[isinstance(steps[0], Leave)]
        for group in (1, 8):
            run = Run(*steps, coordination=True, overlap=False, group_blocks=group)
            signals = run.found.mechanisms.wire_bytes["signals"]
            meetings = -(-blocks // group) + accesses
            assert signals.uplink == signals.downlink == [meetings * FLIT] * NUM
        assert not sum(Run(*steps, **BASE).found.mechanisms.wire_bytes["signals"].uplink)


def test_accesses_are_together_although_gpus_begin_apart() -> None:
    """Thirty microseconds, of which only the coordinated ones have nothing left."""
    for step, name in ((ENTER, "merged loads"), (LEAVE, "merged reductions")):
        spread = {}
        for coordination in (False, True):
            run = Run(
                step,
                coordination=coordination,
                overlap=False,
                launch_skew_us=30.0,
                system={"switch.virtual_channels": 8},
                table_bytes=128 * 10**4,
            )
            spread[coordination] = skew_of(run.timeline, run.machine).between_gpus[name].p50_us
        if step is LEAVE:  # gathers have a barrier in front
            assert spread[False] > 15
        assert spread[True] < 1.5


def test_gpus_begin_evenly_apart() -> None:
    run = Run(LEAVE, launch_skew_us=30.0, **BASE)
    begun = [run.timeline.start_ps[run.of(Kind.GEMM2, rank=rank)].min() for rank in range(NUM)]
    assert np.diff(begun).tolist() == [10 * US] * 3


def test_a_block_waits_for_its_number_on_all_gpus() -> None:
    """Launched one wave after another: the first of the second wave waits for the first wave."""
    run = Run(LEAVE, coordination=True, overlap=False, launch_skew_us=300.0)
    begun = [run.timeline.start_ps[run.of(Kind.GEMM2, rank=rank)] for rank in range(NUM)]
    assert [int(each.min()) // US for each in begun] == [302] * 4
    alone = Run(LEAVE, launch_skew_us=300.0, **BASE)
    assert int(alone.timeline.start_ps[alone.of(Kind.GEMM2, rank=0)].min()) < 3 * US


@every("resident", [1, 2])
def test_a_gpu_registers_no_more_blocks_ahead_than_its_sms_have_room_for(resident: int) -> None:
    run = Run(LEAVE, coordination=True, overlap=False, resident_blocks=resident)
    registered = np.sort(run.timeline.start_ps[run.of(Kind.SIGNAL_UP, rank=1)])
    launched = np.sort(run.timeline.start_ps[run.of(Kind.LAUNCH, rank=1)])[1:]  # the kernel first
    assert len(registered) == len(launched) == BLOCKS[1]
    room = 100 * resident
    assert (registered[room:] >= launched[:-room]).all()
    assert registered[room - 1] < launched[0]


def test_packets_take_their_way_there_and_back() -> None:
    """Where nobody waits for anybody else, a block's access and its launch cost it just that."""
    together, alone = (
        Run(LEAVE, coordination=coordination, overlap=False, system={"gpu.num_sms": 1})
        for coordination in (True, False)
    )
    first = [run.timeline.start_ps[run.of(Kind.GEMM2)].min() for run in (together, alone)]
    assert first[0] - first[1] == FLIT + UP + FLIT + DOWN
    sends = [
        [int(run.timeline.start_ps[run.of(REDUCE.send, rank=rank)].min()) for rank in range(NUM)]
        for run in (together, alone)
    ]
    assert min(sends[0]) == max(sends[1]) + 2 * (FLIT + UP + FLIT + DOWN)


# ---- overlap -------------------------------------------------------------------------------------

THREE = LEAVE, NORM, ENTER


def test_the_second_product_begins_before_the_first_is_over() -> None:
    for overlap in (False, True):
        run = Run(*THREE, overlap=overlap, coordination=False, ahead_blocks=1)
        last = run.timeline.start_ps[run.of(Kind.GEMM2, rank=0)].max()
        assert (run.timeline.start_ps[run.of(Kind.GEMM1, rank=0)].min() < last) == overlap


def test_rows_are_loaded_after_their_norm_and_that_after_their_sums() -> None:
    run = Run(*THREE, coordination=True)
    timeline = run.timeline
    norms = run.of(Kind.BETWEEN)
    assert len(norms) == TOKENS // NORM_ROWS
    assert run.busy_ps(Kind.BETWEEN, rank=0) > 0
    first = timeline.end_ps[norms].min()
    assert timeline.start_ps[run.of(GATHER.request_up)].min() > first
    for rank in range(NUM):  # no more rows than sums of which have come
        sums = _with_payload(run, REDUCE.down, rank)
        order = np.argsort(timeline.visible_ps[sums])
        come = np.append(0, np.cumsum(run.graph.payload_bytes[sums][order]))
        begun = np.sort(timeline.start_ps[run.of(Kind.BETWEEN, rank=rank)])
        there = come[np.searchsorted(timeline.visible_ps[sums][order], begun, side="right")]
        assert (np.arange(1, len(begun) + 1) * NORM_ROWS * ROW <= there).all()


def test_a_norm_takes_an_sm_and_memory_and_tells_the_other_gpus() -> None:
    run = Run(*THREE, coordination=False)
    nbytes = OWNED * NORM.row_bytes
    per_block = run.machine.costs.sm_copy(NORM_ROWS * NORM.row_bytes // 2).ps
    assert run.busy_ps(Kind.BETWEEN, rank=3) == OWNED // NORM_ROWS * per_block
    sums = OWNED * ROW
    memory = nbytes / 5 + sums / 8 + sums / 4
    assert run.busy_ps(REDUCE.memory, rank=3) == pytest.approx(memory, rel=0.02)
    flags = run.of(Kind.NOTIFY_UP, rank=3)
    assert len(flags) == OWNED // TILE * (NUM - 1)  # for each row tile, to each other GPU


@every("resident", [1, 2])
def test_blocks_of_the_second_product_follow_as_many_as_run_at_a_time(resident: int) -> None:
    by_default, given = (
        Run(*THREE, resident_blocks=resident, system={"gpu.num_sms": 20}, **ahead)
        for ahead in ({}, {"ahead_blocks": 20 * resident})
    )
    assert by_default.timeline.start_ps.tolist() == given.timeline.start_ps.tolist()
    other = Run(*THREE, resident_blocks=resident, system={"gpu.num_sms": 20}, ahead_blocks=30)
    assert by_default.ps != other.ps


def test_with_overlap_both_directions_are_busier() -> None:
    at = {}
    for overlap in (False, True):
        run = Run(*THREE, overlap=overlap, ahead_blocks=8, system={"link.efficiency": 0.3})
        at[overlap] = run.ps
        use = run.found.utilisation
        at[overlap, "use"] = use["uplink"].mean + use["downlink"].mean
    assert at[True] < at[False]
    assert at[True, "use"] > at[False, "use"]


@pytest.mark.parametrize("overlap", [False, True])
def test_backward_rows_are_gathered_again_for_the_gradient_of_the_weights(overlap: bool) -> None:
    run = Run(*THREE, is_backward=True, overlap=overlap)
    assert run.found.payload_bytes["dispatch"].uplink == [2 * OWNED * ROW] * NUM
    assert len(run.of(Kind.WGRAD, rank=0)) > 0
    last = run.timeline.visible_ps[run.of(GATHER.down)].max()
    assert run.timeline.start_ps[run.of(Kind.WGRAD)].min() >= (last if overlap else 0)
    assert run.timeline.start_ps[run.of(Kind.WGRAD)].max() >= last


def test_kernels_that_only_move_rows_do_so_in_blocks() -> None:
    """Where something reads rows before the product, or changes sums behind it."""
    before = Enter(Product(TOKENS, 256, HIDDEN), (Product(TOKENS, 64, HIDDEN),))
    after = Leave(Product(TOKENS, HIDDEN, 256), (Product(TOKENS, 64, HIDDEN),))
    run = Run(after, NORM, before, coordination=False)
    assert len(run.of(REDUCE.send, rank=0)) == TOKENS // PART_ROWS
    first = run.timeline.start_ps[run.of(Kind.GEMM1)].min()
    assert first >= run.timeline.visible_ps[_with_payload(run, GATHER.down, 0)].max()
    read = TOKENS * ROW / 5 + OWNED * ROW / 8 + OWNED * ROW / 4
    assert run.busy_ps(REDUCE.memory, rank=0) == pytest.approx(read, rel=0.02)


# ---- tables --------------------------------------------------------------------------------------


def test_smaller_tables_and_larger_skew_make_more_requests_twice() -> None:
    def missed(**options: Any) -> int:
        return Run(LEAVE, **BASE, **options).missed()

    assert missed(launch_skew_us=20.0, table_bytes=128 * 10**5) == 0
    assert missed(launch_skew_us=0.0, table_bytes=40960) < missed(launch_skew_us=20.0, table_bytes=40960)
    by_size = [missed(launch_skew_us=5.0, table_bytes=size) for size in (4096, 40960, 409600)]
    assert by_size == sorted(by_size, reverse=True)
    assert by_size[0] > by_size[-1]


def test_what_is_written_early_keeps_the_rest_waiting_until_the_timer_is_over() -> None:
    ends = [Run(LEAVE, **BASE, table_bytes=4096, timeout_us=timeout).ps for timeout in (0.0, 100.0)]
    assert ends[1] >= ends[0] + 90 * US


def test_entries_of_a_few_bytes_hold_whole_pieces_of_theirs() -> None:
    run = Run(ENTER, **BASE, table_bytes=128, piece_bytes=2048)
    assert run.found.mechanisms.tables["merge unit"].entries == 4 * 128
    assert (run.timeline.touched & TouchOutcome.EVICTED).any()


# ---- options -------------------------------------------------------------------------------------


def test_gpus_that_wait_for_one_another_have_one_order() -> None:
    with pytest.raises(UserError, match="exclude each other"):
        Cais().with_options({"order": "rotated"})
    assert Cais().with_options({"order": "rotated", "coordination": False})
    assert Cais().with_options({"order": "rotated", "merge": False})


@every("num_sms", [1, 3])
@every("order", ["same", "spread", "rotated"])
@every("merge", [False, True])
def test_blocks_never_wait_in_a_circle(num_sms: int, order: str, merge: bool) -> None:
    for overlap in (False, True):
        assert (
            Run(
                *THREE,
                merge=merge,
                order=order,
                coordination=order != "rotated",
                overlap=overlap,
                ahead_blocks=1,
                group_blocks=3,
                system={"gpu.num_sms": num_sms},
                is_backward=True,
                table_bytes=1024,
                launch_skew_us=7.0,
            ).ps
            > 0
        )


def test_nothing_but_acknowledgements_is_left_at_the_end() -> None:
    run = Run(*THREE)
    after = run.timeline.visible_ps > run.ps
    assert {Kind(kind) for kind in run.graph.kind[after].tolist()} <= ACKS


# ---- options -------------------------------------------------------------------------------------


def test_ports_at_line_rate_do_not_know_what_is_left_of_it_for_multimem() -> None:
    half = {"switch.multimem_efficiency": 0.5}
    line = Run(ENTER, system=half, port_rate="line").ps
    assert line == Run(ENTER).ps < Run(ENTER, system=half).ps


def test_blocks_that_are_launched_ahead_delay_those_of_the_second_product() -> None:
    before = []
    for ahead in (1, 64, 256):
        run = Run(*THREE, coordination=False, ahead_blocks=ahead)
        start, made = run.timeline.start_ps, run.of(Kind.GEMM2, rank=0)
        before.append((start[made] < start[run.of(Kind.GEMM1, rank=0)].min()).sum())
    assert before[0] < before[1] < before[2] == len(made)


@pytest.mark.parametrize("merge", [False, True])
def test_requests_pass_sums_with_traffic_control_alone(merge: bool) -> None:
    for control in (False, True):
        run = Run(ENTER, merge=merge, traffic_control=control)
        priority = run.graph.priority[run.of(GATHER.request_up)]
        assert set(priority.tolist()) == {-1 if control else 0}
