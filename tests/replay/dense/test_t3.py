"""T3: what triggers a copy, when, at what cost in memory, and what it hides."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every
from machine_alone import ints, machine_of
from tensor_run import TensorRun

import hwmodel
from replay.engine import schedule
from replay.errors import UserError
from replay.measure.measures import measures
from replay.model.arrays import Ints
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.work.ragged import places
from replay.model.work.transformer_layer import Enter, Leave, Product, Step, TensorLayer
from replay.schemes.registry import find
from replay.schemes.tp import matrices
from replay.schemes.tp.base import GATHER, REDUCE
from replay.schemes.tp.overlap.pieces import RowPieces, pieces_between, sums_of, whole_rows
from replay.schemes.tp.t3 import ring, switch
from replay.schemes.tp.t3.engines import Engines
from replay.schemes.tp.t3.options import RingOptions, T3Options

NS = 1000
ROWS, ROW_BYTES = 64, 512
NBYTES = ROWS * ROW_BYTES


# ---- one piece on its way, by hand ---------------------------------------------------------------


def one_piece(owner: int) -> RowPieces:
    return RowPieces(ints(owner), ints(0), ints(ROWS), ints(ROW_BYTES))


def made_at(machine: Machine, times_ps: Iterable[int]) -> Ints:
    """(rank, piece): tasks that make the piece at these times."""
    made = machine.graph.add(
        machine.num_ranks,
        resource=-1,
        duration_ps=np.array(list(times_ps)),
        kind=Kind.GEMM2,
        rank=machine.ranks,
    )
    return made[:, None]


class ByHand:
    """Times of one piece on idle ports, written out from the models of hardware."""

    def __init__(self, system: hwmodel.System, options: T3Options) -> None:
        self.fabric, self.link, self.system = system.fabric, system.link, system
        self.memory = system.hbm.stream_ps(NBYTES)
        self.trigger = options.trigger_ns * NS
        self.issued = int(system.sm.push_ps(NBYTES))  # by the SM that has made the piece
        self.start = system.overheads.copy_engine_start_ps * options.engine_start
        self.way = self.fabric.uplink_latency_ps + self.fabric.downlink_latency_ps + self.fabric.write_visibility_ps

    def stored(self, engine: Any) -> int:
        """From the beginning of a store until it is written into the other memory."""
        wire = self.link.write_wire_bytes(ROW_BYTES, ROWS, engine=engine)
        return 2 * self.link.port_duration_ps(wire) + self.way + self.memory

    @property
    def copied(self) -> int:
        """From the last store into a piece until its copy is written into the other memory."""
        return self.trigger + self.start + self.memory + self.stored("copy_engine")

    def summed(self, parts: int) -> int:
        """From when an engine asks for the sum of all until that is in the owner's memory."""
        multimem = self.system.switch.multimem_duration_ps
        request = multimem(self.link.request_wire_bytes(ROW_BYTES, ROWS))
        answer = multimem(self.link.response_wire_bytes(ROW_BYTES, ROWS))
        one_way = self.fabric.uplink_latency_ps + self.fabric.downlink_latency_ps
        return (
            2 * request
            + one_way
            + self.fabric.read_access_ps
            + 2 * answer
            + one_way
            + self.system.switch.merge_latency_ps
            + self.memory
            + parts * self.system.switch.adding_ps(-(-NBYTES * (parts - 1) // parts))
        )

    @property
    def told(self) -> int:
        """From a piece that is made until the owner's tracker knows."""
        wire = self.link.write_wire_bytes(8, 1)
        return 2 * self.link.port_duration_ps(wire) + self.way + self.trigger


@every(
    "options",
    [
        RingOptions(),
        RingOptions(trigger_ns=0),
        RingOptions(trigger_ns=5000),
        RingOptions(engine_start=False),
        RingOptions(near_memory=False),
    ],
    ids=str,
)
@every(
    "made_us",
    [(0, 0, 0, 0), (100, 0, 0, 0), (0, 100, 0, 0), (0, 0, 100, 0), (0, 0, 0, 100), (9, 3, 5, 6)],
    ids=str,
)
def test_a_piece_leaves_when_own_part_and_received_part_are_there(
    made_us: tuple[int, ...], options: RingOptions
) -> None:
    """Against a slow twin: hop by hop, the later of what came and what was made."""
    system, n, owner = hwmodel.load("dgx-h100"), len(made_us), 2
    machine, made_ps = machine_of(system, n), [one * 1_000_000 for one in made_us]
    added, ranks = ring.reduce(
        Engines(machine, options),
        one_piece(owner),
        made_at(machine, made_ps),
        pool=machine.sms.for_kernels(),
        near_memory=options.near_memory,
    )
    hand, expected = ByHand(system, options), []
    now = made_ps[(owner + 1) % n]
    for hop in range(n - 1):
        rank = (owner + 2 + hop) % n
        arrived = now + (hand.issued + hand.stored("sm") if hop == 0 else hand.copied)
        now = max(arrived, made_ps[rank]) + (not options.near_memory) * hand.memory
        expected.append((rank, now))
    visible = schedule(machine.graph.build()).visible_ps[added[:, 0]]
    assert list(zip(ranks[:, 0].tolist(), visible.tolist(), strict=True)) == expected
    assert expected[-1][0] == owner


def test_sums_that_are_stored_already_are_copied_by_engines() -> None:
    options, system = RingOptions(), hwmodel.load("dgx-h100")
    machine = machine_of(system, 3)
    added, _ = ring.reduce(
        Engines(machine, options),
        one_piece(0),
        made_at(machine, (0, 0, 0)),
        pool=None,
        near_memory=True,
    )
    visible = schedule(machine.graph.build()).visible_ps[added[:, 0]]
    copied = ByHand(system, options).copied
    assert visible.tolist() == [copied, 2 * copied]


@pytest.mark.parametrize("options", [T3Options(), T3Options(engine_start=False)], ids=str)
def test_rows_are_handed_round_by_engines(options: T3Options) -> None:
    system = hwmodel.load("dgx-h100")
    machine = machine_of(system, 4)
    after = made_at(machine, (0, 7_000_000, 0, 0))[:, 0]
    there = ring.gather(Engines(machine, options), one_piece(1), after)[:, 0]
    visible = schedule(machine.graph.build()).visible_ps[there]
    copied = ByHand(system, options).copied
    assert visible.tolist() == [7_000_000 + hops * copied for hops in (3, 0, 1, 2)]


@every("options", [T3Options(), T3Options(trigger_ns=900)], ids=str)
@every("made_us", [(0, 0, 0), (50, 0, 0), (0, 50, 0), (0, 0, 50)], ids=str)
def test_the_switch_adds_when_all_parts_are_made(made_us: tuple[int, ...], options: T3Options) -> None:
    system, owner = hwmodel.load("dgx-h100"), 1
    machine, made_ps = machine_of(system, 3), [one * 1_000_000 for one in made_us]
    summed = switch.reduce(Engines(machine, options), one_piece(owner), made_at(machine, made_ps))
    hand, timeline = ByHand(system, options), schedule(machine.graph.build())
    flag = system.link.port_duration_ps(system.link.write_wire_bytes(8, 1))
    told = [one + hand.told for rank, one in enumerate(made_ps) if rank != owner]
    # Two flags share the owner's downlink.
    last = max(max(told), min(told) + flag)
    asked = max(made_ps[owner], last) + hand.trigger + hand.start
    assert timeline.visible_ps[summed[0]].tolist() == [asked + hand.summed(3)]
    assert len(summed[1]) == 3
    read = timeline.end_ps[summed[1]] - timeline.start_ps[summed[1]]
    assert read.tolist() == [hand.memory] * 3  # every GPU's memory is read


def test_the_switch_copies_rows_to_all_memories() -> None:
    system, options = hwmodel.load("dgx-h100"), T3Options()
    machine = machine_of(system, 3)
    after = made_at(machine, (0, 0, 0))[:, 0]
    there = switch.gather(Engines(machine, options), one_piece(1), after)[:, 0]
    hand = ByHand(system, options)
    port = system.switch.multimem_duration_ps(system.link.write_wire_bytes(ROW_BYTES, ROWS))
    expected = hand.trigger + hand.start + 2 * hand.memory + 2 * port + hand.way
    assert schedule(machine.graph.build()).visible_ps[there].tolist() == [expected] * 3


# ---- a product and its sums ----------------------------------------------------------------------


class Run(TensorRun):
    """A run of layers of one size."""

    def __init__(self, name: str, *steps: Step, system: str = "dgx-h100", **given: object) -> None:
        super().__init__(name, *steps, system=hwmodel.load(system), tokens=TOKENS, hidden=HIDDEN, **given)

    def rows_in_order(self, rank: int) -> Ints:
        """(task,): first rows of the tiles of the only product, in the order of their starts."""
        (tiled,) = self.tiled
        tasks, tile = tiled.tasks.columns, tiled.tasks.column_tile
        own = np.flatnonzero(tiled.tiles.rank[tile] == rank)
        order = own[np.lexsort((tasks[own], self.timeline.start_ps[tasks[own]]))]
        return tiled.first_row[tile[order]]

    def results_bytes(self) -> int:
        """Bytes that tiles of products write into their own GPUs' memories."""
        found = measures(self.graph, self.ends, self.machine, self.timeline, phases_separated=False).mechanisms.cache
        assert found is not None
        return found["results"].bytes


TOKENS, HIDDEN = 8192, 2048
LEAVE, ENTER = Leave(Product(TOKENS, HIDDEN, 1024)), Enter(Product(TOKENS, 2048, HIDDEN))
SHARE = TOKENS // 8 * HIDDEN * 2  # bytes of a chunk of eight
TILE = 128 * 256 * 2  # bytes of sums of a tile


@cache
def ran(name: str, step: str, num_ranks: int = 8, **options: object) -> Run:
    """Run a step once for all tests."""
    made = {"leave": LEAVE, "enter": ENTER}[step]
    system = "dgx-h100" if num_ranks <= 8 else "gh200-nvl32"
    return Run(name, made, num_ranks=num_ranks, system=system, **options)


def test_gpus_make_what_they_send_first_first_and_their_own_sums_last() -> None:
    run = ran("t3", "leave")
    (tiled,) = run.tiled
    for rank in range(8):
        own = np.flatnonzero(tiled.tiles.rank[tiled.tasks.column_tile] == rank)
        start = run.timeline.start_ps[tiled.tasks.columns[own]]
        turn = (rank - 1 - tiled.first_row[tiled.tasks.column_tile[own]] // 1024) % 8
        # The first wave has tiles of several chunks; then none begins before those of the last.
        assert (np.diff(turn[np.lexsort((turn, start))]) >= 0).all()
        assert start[turn == 0].max() == start.min()
        assert start[turn == 7].min() > start.min()


def test_in_the_switch_all_gpus_make_tiles_in_one_order_and_for_all_owners_in_turn() -> None:
    run = ran("t3-nvls", "leave")
    first = run.rows_in_order(0)
    assert set((first[:64] // 1024).tolist()) == set(range(8))
    assert (first[:64] % 1024 < 256).all()  # two row tiles of each
    for rank in range(1, 8):
        assert run.rows_in_order(rank).tolist() == first.tolist()


@pytest.mark.parametrize("name", ["t3", "t3-nvls"])
def test_no_sm_communicates(name: str) -> None:
    """But for tiles of the first turn of rings, whose stores go to another GPU."""
    for step, product in (("leave", Kind.GEMM2), ("enter", Kind.GEMM1)):
        run = ran(name, step)
        on_sm = np.isin(run.graph.resource, run.machine.sms.resources)
        stores = on_sm & (run.graph.kind == REDUCE.send)
        assert set(run.graph.kind[on_sm & ~stores].tolist()) == {product}
        time = run.graph.duration_ps[stores]
        if (name, step) == ("t3", "leave"):
            share = TOKENS * HIDDEN * 2 // run.machine.num_ranks
            whole = run.machine.system.sm.push_ps(share) * run.machine.num_ranks
            assert time.sum() == pytest.approx(whole, rel=1e-4)
        else:
            assert not len(time)
        assert find(name, "tp").communication_sms(run.machine) == 0


@pytest.mark.parametrize(("num_ranks", "fewer_reads"), [(8, 2.5), (16, 2.2)])
def test_memory_reads_and_writes_what_the_paper_says(num_ranks: int, fewer_reads: float) -> None:
    """T3 6.2: reads of the reduce-scatter fall 2.5-fold on 8 GPUs and 2.2-fold on 16.

    In sequence, a ring reads 2 N - 1 chunks: its own, then what came and its own N - 1 times. It
    writes N that are made and N that come or are final.
    """
    n, shares = num_ranks, TOKENS // num_ranks * HIDDEN * 2 // TILE
    run, sequential = ran("t3", "leave", n), ran("sp-ring", "leave", n)
    piece = run.machine.system.hbm.stream_ps(TILE)
    incoming = (n - 1) * shares  # written where they arrive
    reads = run.busy_ps(REDUCE.memory, 0) // piece - incoming
    assert reads == (n - 2) * shares
    assert round((2 * n - 1) * shares / reads, 1) == fewer_reads
    # What a GPU makes in its first turn is not written at home.
    made = TOKENS * HIDDEN * 2
    assert sequential.results_bytes() == n * made
    assert run.results_bytes() == (n - 1) * made
    # All that a sub-layer moves beside a product's operands falls by 22 % (6.2), a gather included.
    gather = 2 * (n - 1)
    moved = (run.busy_ps(REDUCE.memory, 0) // piece) / shares + (n - 1) + gather
    assert abs(1 - moved / ((2 * n - 1) + 2 * n + gather) - 0.22) < 0.03


def test_without_compute_in_memory_the_second_store_reads_the_first() -> None:
    with_it, without = ran("t3", "leave"), ran("t3", "leave", near_memory=False)
    piece = with_it.machine.system.hbm.stream_ps(TILE)
    for rank in range(8):
        more = without.busy_ps(REDUCE.memory, rank) - with_it.busy_ps(REDUCE.memory, rank)
        assert more == 7 * SHARE // TILE * piece
    assert without.time_ps > with_it.time_ps
    assert without.results_bytes() == with_it.results_bytes()


def test_memory_of_the_switch_and_of_gathers() -> None:
    stream = ran("t3", "leave").machine.system.hbm.stream_ps
    # All parts are read, and the sums of its own rows written.
    run = ran("t3-nvls", "leave")
    assert run.busy_ps(REDUCE.memory, 3) == (8 + 1) * SHARE // TILE * stream(TILE)
    # Around a ring, rows are read before every hop and written behind it; own ones are there.
    pieces = SHARE // 65536
    assert ran("t3", "enter").busy_ps(GATHER.memory, 3) == 14 * pieces * stream(65536)
    assert ran("t3-nvls", "enter").busy_ps(GATHER.memory, 3) == 9 * pieces * stream(65536)


@every("name", ["t3", "t3-nvls"])
@every("step", ["leave", "enter"])
def test_overlap_hides_the_shorter_of_product_and_wire(name: str, step: str) -> None:
    run, alone = ran(name, step), ran("plain", step).time_ps
    sequential = ran({"t3": "sp-ring", "t3-nvls": "sp-nvls"}[name], step)
    kinds = REDUCE if step == "leave" else GATHER
    wire = max(
        int(run.graph.duration_ps[(run.graph.kind == kind) & (run.graph.rank == rank)].sum())
        for kind in (kinds.up, kinds.down)
        for rank in range(8)
    )
    assert run.time_ps >= max(alone, wire)
    assert run.time_ps < alone + wire < sequential.time_ps


@pytest.mark.parametrize("step", ["leave", "enter"])
def test_triggers_and_starts_of_engines_take_time(step: str) -> None:
    usual = ran("t3", step).time_ps
    assert ran("t3", step, trigger_ns=3000).time_ps > usual
    assert ran("t3", step, engine_start=False).time_ps < usual


# ---- rows that come ------------------------------------------------------------------------------


def test_rows_are_multiplied_in_the_order_in_which_they_come() -> None:
    run = ran("t3", "enter")
    for rank in range(8):
        chunks = run.rows_in_order(rank) // 1024
        of = np.flatnonzero(np.diff(chunks, prepend=-1))
        assert chunks[of].tolist() == [(rank - turn) % 8 for turn in range(8)]
        # Its own ones before anything has come.
        assert run.first_ps(Kind.GEMM1, rank) < run.timeline.end_ps[run.of(GATHER.down, rank)].min()


@every("name", ["t3", "t3-nvls"])
@every(("options", "resident"), [({}, 1), ({"resident_blocks": 2}, 2), ({"resident_blocks": 3}, 3)])
def test_as_many_tiles_wait_on_sms_as_there_is_room_for(name: str, options: dict[str, int], resident: int) -> None:
    """From the begin of the kernel on: 512 of 128 x 256, of which an SM has one."""
    run = ran(name, "enter", **options)
    begun, *claims = run.timeline.start_ps[run.of(Kind.LAUNCH, 3)].tolist()
    first = min(claims)
    assert len(claims) == 512
    assert sum(start == first for start in claims) == 132 * resident
    assert begun < first < run.timeline.end_ps[run.of(GATHER.down, 3)].min()


def test_rows_of_all_gpus_come_from_the_switch_at_the_same_time() -> None:
    run = ran("t3-nvls", "enter")
    (tiled,) = run.tiled
    for rank in range(8):
        assert run.rows_in_order(rank)[0] % 1024 == 0
        assert run.first_ps(Kind.GEMM1, rank) < run.last_ps(GATHER.down, rank)
    # Groups of tiles that begin together have the same place in the rows of all GPUs.
    of_first = tiled.first_row[:8]
    assert of_first.tolist() == [1024 * owner for owner in range(8)]


@pytest.mark.parametrize("name", ["t3", "t3-nvls"])
def test_without_overlap_a_gather_ends_before_its_product(name: str) -> None:
    run = ran(name, "enter", overlap_gather=False)
    for rank in range(8):
        assert run.first_ps(Kind.GEMM1, rank) > run.last_ps(GATHER.down, rank)
    assert run.time_ps > ran(name, "enter").time_ps


@pytest.mark.parametrize("name", ["t3", "t3-nvls"])
def test_backward_rows_come_beside_the_product_and_gradients_run_beside_sums(name: str) -> None:
    run = Run(name, LEAVE, is_backward=True)
    for rank in range(8):
        rows = run.last_ps(GATHER.memory, rank)
        assert run.first_ps(GATHER.up, rank) < run.last_ps(Kind.GEMM2, rank)
        made = int(run.timeline.visible_ps[run.of(Kind.GEMM2, rank)].max())
        gap = run.machine.system.overheads.kernel_gap_ps()
        assert run.first_ps(Kind.WGRAD, rank) == max(made, rows) + gap


# ---- pieces --------------------------------------------------------------------------------------


@every(("num_ranks", "tokens", "hidden"), [(8, 2048, 384), (3, 600, 640), (8, 64, 512)])
def test_pieces_of_sums_cover_every_value_once(num_ranks: int, tokens: int, hidden: int) -> None:
    """Also where a row tile has rows of several GPUs."""
    layer = TensorLayer(num_ranks, tokens, hidden, (), is_backward=False)
    machine = machine_of(hwmodel.load("dgx-h100"), num_ranks)
    product = Product(tokens, hidden, 256)
    cuts = matrices.cut(machine, product, Kind.GEMM2, machine.sms.compute)
    begun = machine.mark(cuts[0].rank)
    tiled = matrices.tiles_of(machine, product, Kind.GEMM2, machine.sms.for_kernels(), begun, cuts=cuts)
    pieces, made = sums_of(tiled, layer)
    values = np.zeros(tokens, np.int64)
    np.add.at(
        values, np.repeat(pieces.first_row, pieces.rows) + places(pieces.rows), np.repeat(pieces.row_bytes, pieces.rows)
    )
    assert values.tolist() == [hidden * 2] * tokens
    assert (pieces.first_row // layer.own_rows == pieces.chunk).all()
    assert ((pieces.first_row + pieces.rows - 1) // layer.own_rows == pieces.chunk).all()
    tasks = tiled.tasks
    tile = dict(zip(tasks.columns.tolist(), tasks.column_tile.tolist(), strict=True))
    columns = dict(zip(tasks.columns.tolist(), tiled.columns.tolist(), strict=True))
    for rank in range(num_ranks):
        of = np.array([tile[task] for task in made[rank].tolist()])
        assert (tiled.tiles.rank[of] == rank).all()
        assert (tiled.first_row[of] <= pieces.first_row).all()
        assert (pieces.first_row + pieces.rows <= tiled.first_row[of] + tiled.tiles.rows[of]).all()
        each = dict.fromkeys(made[rank].tolist(), 0)
        for task, nbytes in zip(made[rank].tolist(), pieces.nbytes.tolist(), strict=True):
            each[task] += nbytes
        assert each == {task: tiled.tiles.rows[tile[task]] * columns[task] * 2 for task in each}


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 5000))
def test_whole_rows_are_cut_within_chunks(num_ranks: int, owned: int, most: int) -> None:
    layer = TensorLayer(num_ranks, num_ranks * owned, 64, (), is_backward=False)
    pieces = whole_rows(layer, most)
    rows = np.repeat(pieces.first_row, pieces.rows) + places(pieces.rows)
    assert rows.tolist() == list(range(num_ranks * owned))
    assert (rows // owned == np.repeat(pieces.chunk, pieces.rows)).all()
    assert (pieces.nbytes <= max(most, 128)).all()
    run, piece = pieces_between(pieces, ints(0, owned // 2), ints(owned, owned))
    for one, (first, last) in enumerate(((0, owned), (owned // 2, owned // 2 + owned))):
        expected = [
            each
            for each in range(len(pieces))
            if pieces.first_row[each] < last and pieces.first_row[each] + pieces.rows[each] > first
        ]
        assert piece[run == one].tolist() == expected


# ---- options -------------------------------------------------------------------------------------


@every(
    ("name", "options", "message"),
    [
        ("t3", {"trigger_ns": -1}, "trigger_ns=-1 of scheme 't3': must be at least 0"),
        ("t3", {"piece_bytes": 0}, "piece_bytes=0 of scheme 't3': must be at least 1"),
        ("t3-nvls", {"near_memory": "true"}, "near_memory"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find(name, "tp").with_options(options)


def test_what_a_system_must_have() -> None:
    system = hwmodel.load("dgx-a100")
    assert find("t3-nvls", "tp").lacks(system) == {"multicast", "reduction"}
    assert not find("t3", "tp").lacks(system)


@pytest.mark.parametrize("name", ["t3", "t3-nvls"])
def test_every_piece_of_rows_is_a_command(name: str) -> None:
    started = []
    for piece_bytes in (65536, 131072, 1):
        run = Run(name, ENTER, piece_bytes=piece_bytes)
        started.append(len(run.of(GATHER.memory, 3)))
    rows = SHARE // (2 * HIDDEN)
    each = 14 if name == "t3" else 9
    assert started == [each * SHARE // 65536, each * SHARE // 131072, each * rows]
