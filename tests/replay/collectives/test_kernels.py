"""One-shot, two-shot and multimem kernels: bytes by closed forms, times by hand, thread blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from loops import every
from machine_alone import carried, ints, machine_of
from round_machine import NS, round_machine

import hwmodel
from replay.engine import TaskGraph, schedule
from replay.model.arrays import Ints
from replay.model.collectives import buffer_copies, grids, multimem_kernels, one_shot, two_shot
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.collectives.grids import BlockGrid, Style
from replay.model.collectives.library import ALGORITHMS
from replay.model.collectives.one_shot import ENGINE
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.machine import Machine

KIB, MIB = 1 << 10, 1 << 20
UP, DOWN, ACCESS, VISIBLE = 150 * NS, 100 * NS, 20 * NS, 30 * NS
SUM = 7 * NS  # the switch takes it to add up
RELEASE = 9 * NS  # a fence behind stores that it copied
TRIP = 2 * (UP + DOWN) + ACCESS
PACKET = 144  # ps that 128 bytes and their header occupy a port
SLOW = 2  # times as long in multicast and sums
H100 = "dgx-h100"

Run = Callable[[Machine, Ints], Ints]


def sums(machine: Machine, nbytes: int) -> CollectiveCall:
    return CollectiveCall(machine, DISPATCH, "all_reduce", nbytes)


def barrier(num_ranks: int) -> int:
    return (1000 + 10 * (num_ranks - 1)) * NS


def graph_of(run: Run, num_ranks: int, system: hwmodel.System | None = None) -> TaskGraph:
    machine = machine_of(system or round_machine(), num_ranks)
    run(machine, machine.mark(machine.ranks))
    return machine.graph.build()


def time_ps(run: Run, num_ranks: int, system: hwmodel.System | None = None) -> int:
    machine = machine_of(system or round_machine(), num_ranks)
    ends = run(machine, machine.mark(machine.ranks))
    return int(schedule(machine.graph.build()).visible_ps[ends].max())


def algorithm(name: str, collective: str, nbytes: int, **options: object) -> Run:
    def run(machine: Machine, begun: Ints) -> Ints:
        build = ALGORITHMS[name].build
        return build(machine, DISPATCH, collective, nbytes, begun, **options)  # type: ignore[arg-type]  # of each kernel

    return run


# ---- bytes -------------------------------------------------------------------------------------

S = 384 * KIB


def shares(n: int) -> int:
    """Of all other ranks."""
    return (n - 1) * S // n


def shares_twice(n: int) -> int:
    return 2 * (n - 1) * S // n


def shares_and_own(n: int) -> int:
    return S + S // n


@every("n", [2, 3, 8])
@every(
    ("name", "collective", "up", "down"),
    [
        ("one-shot", "all_reduce", lambda n: (n - 1) * S, lambda n: (n - 1) * S),
        ("multimem-one-shot", "all_reduce", lambda n: n * S, lambda n: S),
        ("two-shot", "all_reduce", shares_twice, shares_twice),
        ("two-shot", "all_gather", shares, shares),
        ("two-shot", "reduce_scatter", shares, shares),
        ("two-shot-stores", "all_reduce", shares_twice, shares_twice),
        ("multimem", "all_reduce", shares_and_own, shares_and_own),
        ("multimem", "all_gather", lambda n: S // n, lambda n: S),
        ("multimem", "reduce_scatter", lambda n: S, lambda n: S // n),
    ],
)
def test_payload_of_every_port(
    name: str, collective: str, up: Callable[[int], int], down: Callable[[int], int], n: int
) -> None:
    graph = graph_of(algorithm(name, collective, S, payload=True), n)
    expected = {("uplink", rank): up(n) for rank in range(n)}
    expected |= {("downlink", rank): down(n) for rank in range(n)}
    assert carried(graph, "payload_bytes") == expected
    unpaid = graph_of(algorithm(name, collective, S), n)
    assert not unpaid.payload_bytes.any()
    assert carried(unpaid) == carried(graph)  # the same bytes are on the wire


# ---- times of one packet, by hand ----------------------------------------------------------------


def test_one_shot_by_loads_is_a_meeting_a_trip_and_a_sum() -> None:
    took = time_ps(lambda m, at: one_shot.by_loads(sums(m, 128), at), 2)
    added = 2 * 128 * 5 + 128 * 20  # reading at 200 GB/s, writing at 50
    assert took == barrier(2) + 2 * 16 + TRIP + 2 * PACKET + added


def test_two_shot_by_loads_meets_in_between() -> None:
    took = time_ps(lambda m, at: two_shot.all_reduce(sums(m, 256), at), 2)
    trip = 2 * 16 + TRIP + 2 * PACKET
    added, copied = 2 * 128 * 5 + 128 * 20, 2 * 128 * 20
    assert took == 2 * barrier(2) + 2 * trip + added + copied


def test_two_shot_by_stores_meets_behind_what_is_acknowledged() -> None:
    took = time_ps(lambda m, at: two_shot.all_reduce_by_stores(sums(m, 256), at), 2)
    trip = 2 * 16 + TRIP + 2 * PACKET
    pushed = 2 * 128 * 5 + 2 * 128 * 10
    stored = 2 * PACKET + UP + DOWN + VISIBLE
    assert took == barrier(2) + trip + pushed + stored + UP + DOWN + barrier(2)


def test_the_halves_of_two_shot_are_a_scatter_that_adds_and_a_gather_that_does_not() -> None:
    trip = 2 * 16 + TRIP + 2 * PACKET
    added, copied = 2 * 128 * 5 + 128 * 20, 2 * 128 * 20
    scattered = time_ps(algorithm("two-shot", "reduce_scatter", 256), 2)
    gathered = time_ps(algorithm("two-shot", "all_gather", 256), 2)
    assert scattered == 2 * barrier(2) + trip + added
    assert gathered == 2 * barrier(2) + trip + copied


def sum_ps(n: int) -> int:
    """Requests and answers of all ranks at once: the last one's is the n-th at every port."""
    asked = SLOW * 16 * (1 + n)
    return asked + UP + DOWN + ACCESS + SLOW * PACKET * n + UP + SUM + SLOW * PACKET + DOWN


def test_one_shot_in_the_switch_is_one_trip() -> None:
    took = time_ps(lambda m, at: one_shot.in_switch(sums(m, 128), at, one_shot.SAMPLE), 4)
    # Adders take in 128 bytes of four ranks; what a rank's own part waits for is at most that.
    assert took == pytest.approx(sum_ps(4) + 128 * 20, abs=2 * NS)


@pytest.mark.parametrize("n", [2, 4])
def test_multimem_all_reduce_is_a_sum_a_store_and_two_meetings(n: int) -> None:
    def run(style: Style) -> int:
        return time_ps(
            lambda m, at: multimem_kernels.exchange(sums(m, 128 * n), at, style),
            n,
        )

    style = multimem_kernels.TORCH
    none = run(replace(style, meets_before=False, meets_after=False))
    stored = SLOW * PACKET * (1 + n) + UP + DOWN + VISIBLE
    assert none == pytest.approx(sum_ps(n) + 128 * 10 + stored, abs=2 * NS)
    assert run(replace(style, meets_after=False)) == none + barrier(n)
    acknowledged = UP + DOWN
    assert run(style) == none + 2 * barrier(n) + acknowledged + RELEASE


def test_a_fence_behind_multicast_stores_takes_longer_to_be_through() -> None:
    def longer(name: str, collective: str) -> int:
        run = algorithm(name, collective, 4 * KIB)
        late = hwmodel.load(H100, {"switch.multicast_release_ns": 900.0})
        return time_ps(run, 4, late) - time_ps(run, 4, hwmodel.load(H100))

    assert longer("multimem", "all_reduce") == longer("multimem", "all_gather") == 900 * NS
    assert not longer("multimem", "reduce_scatter")
    assert not longer("two-shot-stores", "all_reduce")


def test_flags_in_the_data_take_the_place_of_the_last_meeting() -> None:
    nbytes = 4 * 128
    style = replace(multimem_kernels.SAMPLE, meets_after=False)
    bare = time_ps(lambda m, at: multimem_kernels.exchange(sums(m, nbytes), at, style), 4)
    flags = time_ps(lambda m, at: multimem_kernels.all_reduce_with_flags(sums(m, nbytes), at), 4)
    # Each of four blocks reads a quarter of the buffer, and clears a quarter of the share.
    looked, cleared, poll = nbytes // 4 * 5, 32 * 20, 5 * NS
    assert flags == bare + poll + looked + cleared


def test_flags_in_the_data_are_read_one_after_the_other() -> None:
    system = hwmodel.load(H100, {"gpu.sm_read_GB_per_s": 1e6})

    def after(waves: int) -> int:
        nbytes, bare = waves * 4 * 16 * KIB, replace(multimem_kernels.SAMPLE, meets_after=False)
        flags = time_ps(lambda m, at: multimem_kernels.all_reduce_with_flags(sums(m, nbytes), at), 8, system)
        return flags - time_ps(lambda m, at: multimem_kernels.exchange(sums(m, nbytes), at, bare), 8, system)

    # A wave more is one load more of the cache, and an eighth of it to be cleared by four blocks.
    cleared = 16 * KIB // 8 * 1000 / hwmodel.load(H100).spec.gpu.sm_write_GB_per_s.value
    assert after(9) - after(1) == pytest.approx(8 * (195 * NS + cleared), rel=0.01)


def test_a_store_that_the_switch_copies_takes_longer() -> None:
    def longer(name: str) -> int:
        run = algorithm(name, "all_reduce", 4 * KIB)
        late = hwmodel.load(H100, {"switch.multicast_ns": 900.0})
        return time_ps(run, 4, late) - time_ps(run, 4, hwmodel.load(H100))

    assert longer("multimem") == 900 * NS
    assert not longer("two-shot-stores") and not longer("multimem-one-shot")


def test_multimem_all_gather_pushes_and_nobody_loads() -> None:
    run = algorithm("multimem", "all_gather", 4 * 128)
    pushed, n = 128 * 10, 4
    stored = SLOW * PACKET * (1 + n) + UP + DOWN + VISIBLE
    assert time_ps(run, n) == 2 * barrier(n) + pushed + stored + UP + DOWN + RELEASE
    assert not (graph_of(run, n).kind == Kind.DISPATCH_REQUEST_UP).any()


def test_without_a_compiled_number_of_gpus_peers_are_asked_in_turn() -> None:
    style = Style(BlockGrid(1, 32), meets_before=False, meets_after=False)

    def run(n: int) -> int:
        return time_ps(lambda m, at: two_shot.all_reduce_by_stores(sums(m, 128 * n), at, style), n)

    assert run(5) - run(4) > 2 * TRIP
    assert 2 * TRIP < run(4) < 3 * TRIP + UP + DOWN + VISIBLE
    assert 3 * TRIP < run(8) < 4 * TRIP + UP + DOWN + VISIBLE


def test_an_engines_second_shot_asks_one_gpu_after_the_other() -> None:
    style = Style(BlockGrid(1, 32), meets_before=False, meets_after=False)

    def run(n: int) -> int:
        return time_ps(lambda m, at: two_shot.all_reduce(sums(m, 128 * n), at, style), n)

    meetings = barrier(5) - barrier(2)
    assert run(5) - run(2) - meetings == pytest.approx(3 * TRIP, rel=0.15)


def test_a_release_behind_stores_to_peers_takes_longer_the_more_there_are() -> None:
    def longer(name: str, n: int) -> int:
        run = algorithm(name, "all_reduce", 4 * KIB)
        late = hwmodel.load(H100, {"warp.release_ns": 300.0})
        return time_ps(run, n, late) - time_ps(run, n, hwmodel.load(H100))

    assert [longer("two-shot-stores", n) for n in (2, 4, 8)] == [300 * NS, 900 * NS, 2100 * NS]
    assert not longer("multimem", 4) and not longer("two-shot", 4)


# ---- thread blocks ------------------------------------------------------------------------------


@every(
    ("name", "collective", "nbytes"),
    [
        ("one-shot", "all_reduce", 1 * MIB),
        ("multimem-one-shot", "all_reduce", 1 * MIB),
        ("two-shot", "all_reduce", 8 * MIB),
        ("two-shot-stores", "all_reduce", 8 * MIB),
        ("multimem", "all_reduce", 8 * MIB),
        ("multimem", "all_gather", 8 * MIB),
        ("multimem", "reduce_scatter", 8 * MIB),
    ],
)
def test_few_blocks_are_a_limit_and_many_are_not(name: str, collective: str, nbytes: int) -> None:
    system = hwmodel.load(H100)
    times = [time_ps(algorithm(name, collective, nbytes, blocks=blocks), 8, system) for blocks in (1, 2, 4, 8, 64, 128)]
    assert all(more <= 1.05 * few for few, more in pairwise(times))
    # One block stores a share at the rate of one SM, which a port hardly exceeds eight times.
    assert times[0] > (1.1 if collective == "all_gather" else 1.5) * times[1]
    assert times[-1] == pytest.approx(times[-2], rel=0.1)


@every("waves", [1, 4, 16, 40])
def test_one_block_goes_there_and_back_for_every_wave(waves: int) -> None:
    style = Style(BlockGrid(1, 1024), meets_before=False, meets_after=False)
    nbytes = waves * 16 * KIB
    took = time_ps(lambda m, at: one_shot.by_loads(sums(m, nbytes), at, style), 2)
    port = 2 * 16 * KIB * 9 // 8 + 2 * 2 * KIB  # data and its requests, out and in
    busy = 2 * 16 * KIB * 5 + 16 * KIB * 20  # of one SM, longer than a trip
    assert waves * TRIP + busy < took <= waves * (TRIP + port) + busy


def test_a_block_is_as_fast_as_its_sm() -> None:
    """On a machine whose SMs are slow, n waves take n times the SM's time and one trip."""
    style = Style(BlockGrid(1, 1024), meets_before=False, meets_after=False)
    system = hwmodel.load(H100, {"gpu.sm_read_GB_per_s": 1.0, "gpu.sm_write_GB_per_s": 1.0})

    def run(waves: int) -> int:
        nbytes = waves * 16 * KIB
        return time_ps(lambda m, at: one_shot.in_switch(sums(m, nbytes), at, style), 2, system)

    assert run(9) - run(1) == 8 * 16 * KIB * 1000  # ps at a byte a nanosecond


@pytest.mark.extended
@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize("name", ["multimem", "two-shot", "two-shot-stores"])
def test_rounds_of_several_waves_take_as_long_as_waves_one_by_one(
    monkeypatch: pytest.MonkeyPatch, name: str, blocks: int
) -> None:
    run, system = algorithm(name, "all_reduce", 12 * MIB, blocks=blocks), hwmodel.load(H100)
    together = time_ps(run, 4, system)
    monkeypatch.setattr(grids, "MOST_ROUNDS", 1000)
    assert together == pytest.approx(time_ps(run, 4, system), rel=0.06)


def test_a_kernel_beside_others_holds_its_sms_and_shares_the_memory() -> None:
    def run(machine: Machine, begun: Ints) -> Ints:
        split = machine.sms.split("a test", {"blocks": 8}, rest="compute")
        build = ALGORITHMS["multimem"].build
        return build(machine, DISPATCH, "all_reduce", 1 * MIB, begun, payload=True, beside=split)

    graph = graph_of(run, 4)
    groups = np.array([*graph.resources.groups, ""])
    on_sm = groups[graph.resource] == "blocks of collectives"
    # Sixteen KiB a block and wave; a share of 256 KiB in two waves of eight blocks.
    assert np.bincount(graph.rank[on_sm]).tolist() == [2 * 8] * 4
    assert carried(graph, "payload_bytes")["uplink", 0] == MIB + MIB // 4
    alone = graph_of(algorithm("multimem", "all_reduce", 1 * MIB), 4)
    assert not (alone.kind == Kind.DISPATCH_MEMORY).any()


def test_two_gpus_fill_their_ports_with_what_is_under_way() -> None:
    """36 blocks have 288 KiB under way, as much as a port takes in 0.87 us: a round trip is 0.83.

    An engine's one-shot kernel reads 4 MiB of one peer in 13.8 us (SGLang, `custom_allreduce`).
    """
    nbytes, style = 4 * MIB, replace(ENGINE, meets_before=False)
    took = time_ps(lambda m, at: one_shot.by_loads(sums(m, nbytes), at, style), 2, hwmodel.load(H100))
    port = 1e12 * nbytes * (9 + 1) / 8 / (450e9 * 0.9435)  # requests come in the same direction
    assert port < took < 1.2 * port


@every(
    ("name", "collective", "touched"),
    [
        # Each buffer is read once, however many GPUs ask for the same bytes, and written once.
        ("one-shot", "all_reduce", lambda n: 2 * S),
        ("multimem-one-shot", "all_reduce", lambda n: 2 * S),
        ("two-shot", "all_reduce", lambda n: 2 * (S + S // n)),
        ("two-shot", "all_gather", lambda n: S // n + S),
        ("two-shot", "reduce_scatter", lambda n: S + S // n),
        ("two-shot-stores", "all_reduce", lambda n: 2 * S),
        ("multimem", "all_reduce", lambda n: 2 * S),
        ("multimem", "all_gather", lambda n: S // n + S),
        ("multimem", "reduce_scatter", lambda n: S + S // n),
    ],
)
def test_memory_is_touched_beside_others(name: str, collective: str, touched: Callable[[int], int]) -> None:
    def run(machine: Machine, begun: Ints) -> Ints:
        split = machine.sms.split("a test", {"blocks": 40}, rest="compute")
        return algorithm(name, collective, S, beside=split)(machine, begun)

    graph = graph_of(run, 4)
    memory = graph.kind == Kind.DISPATCH_MEMORY
    spent = np.bincount(graph.rank[memory], graph.duration_ps[memory])
    assert spent == pytest.approx([touched(4) / 5] * 4, rel=1e-3)  # 5 TB/s


# ---- ports and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_requests_pass_data_that_waits_at_the_same_port(first: bool) -> None:
    machine = machine_of(round_machine(), 2)
    begun = machine.mark(machine.ranks)
    for _ in range(2):  # one is on its way when the request comes, one waits
        machine.transfers.store(DISPATCH, ints(0), ints(1), 128 * KIB, begun[:1])
    later = machine.delay(Kind.DISPATCH_SYNC, machine.costs.ns(1), begun)
    loaded = machine.transfers.load(DISPATCH, ints(0), ints(1), 128, later[:1], requests_first=first)
    asked = schedule(machine.graph.build()).visible_ps[loaded.asked[0]]
    # The message that is being served comes before at either port; the one that waits only behind.
    messages = (2 if first else 3) * 128 * KIB * 9 // 8
    assert asked == pytest.approx(messages + UP + DOWN + ACCESS, abs=NS)


def test_copies_find_small_buffers_in_the_cache() -> None:
    """In all of it: an SM copies its own part, which does not lie in both halves."""

    def run(nbytes: int) -> int:
        return time_ps(lambda m, at: buffer_copies.copy(m, DISPATCH, nbytes, at), 2, hwmodel.load(H100))

    rate = 4930 * 1.755e9  # bytes a second, both ways together
    fits, more = 50_000_000 // 3, 50_000_000 // 3 + 1
    assert run(fits) == pytest.approx(1e12 * 2 * fits / rate + 195 * NS, rel=1e-3)
    read, written = more / (3350e9 * 0.949), more / (3350e9 * 0.796)
    assert run(more) == pytest.approx(1e12 * (read + written) + 415 * NS, rel=1e-3)


def test_engines_meet_before_and_not_behind() -> None:
    graph = graph_of(lambda m, at: one_shot.by_loads(sums(m, 4 * KIB), at), 4)
    assert (graph.kind == Kind.DISPATCH_SYNC).sum() == 4
    both = replace(ENGINE, meets_after=True)
    graph = graph_of(lambda m, at: one_shot.by_loads(sums(m, 4 * KIB), at, both), 4)
    assert (graph.kind == Kind.DISPATCH_SYNC).sum() == 8
