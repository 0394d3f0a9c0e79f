"""The examples of MEASURES.md, as graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from round_machine import ROUND, US

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.measure.exposure import Intervals, union
from replay.measure.measures import measures
from replay.measure.result import Measures
from replay.measure.token_latency import token_latency
from replay.model.machine.kinds import COMBINE, DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.times import Time
from replay.schemes.contract.layers import work


@dataclass
class Bench:
    """A machine of round numbers to which tasks are added by hand."""

    machine: Machine

    @classmethod
    def make(cls, num_ranks: int, **changed: float) -> Bench:
        values = {
            **ROUND,
            "gpu.num_sms": 4,
            **{k.replace("__", "."): v for k, v in changed.items()},
        }
        system = hwmodel.load("dgx-h100", values)
        return cls(Machine(system, GraphBuilder(KIND_NAMES), num_ranks))

    def task(
        self,
        kind: Kind,
        rank: int,
        server: int,
        us: float,
        after: int | None = None,
        late: float = 0,
        count: int = 1,
    ) -> np.ndarray:
        """Tasks of so many microseconds, each behind one task."""
        return self.machine.serve(
            server,
            Time(int(us * US)),
            kind=kind,
            rank=np.full(count, rank),
            after=None if after is None else np.full(count, after),
            late=Time(int(late * US)),
        )

    def measured(self, ends: list[int]) -> Measures:
        timeline = schedule(self.machine.graph.build())
        return measures(timeline.graph, np.array(ends), self.machine, timeline, phases_separated=False)


@pytest.fixture
def two_gpus() -> tuple[Bench, list[int]]:
    """The example of exposed communication."""
    bench = Bench.make(2)
    ports, sms = bench.machine.resources, bench.machine.sms.pool("sm", 4)
    launch = bench.task(Kind.LAUNCH, 0, -1, 1)[0]
    out = bench.task(DISPATCH.up, 0, ports.uplink[0], 2, launch, late=1)[0]
    later = bench.task(Kind.MARK, 0, -1, 3)[0]
    own = bench.task(Kind.GEMM1, 0, sms[0], 4, later)[0]
    received = bench.task(DISPATCH.down, 1, ports.downlink[1], 2, out)[0]
    tiles = bench.task(Kind.GEMM1, 1, sms[1], 4, received, count=4)
    back = bench.task(COMBINE.up, 1, ports.uplink[1], 1, tiles[0])[0]
    arrived = bench.task(COMBINE.down, 0, ports.downlink[0], 1, back)[0]
    flag = bench.task(COMBINE.sync, 0, -1, 2, arrived)[0]
    end = bench.machine.mark(np.array([0]), np.array([flag]))
    bench.machine.graph.edges(np.array([own]), end)
    token = np.array([0])
    bench.machine.notes.follow("sent", token, np.array([out]))
    bench.machine.notes.follow("combined", token, end)
    return bench, [int(end[0]), int(back)]


def test_exposed_communication_and_what_it_waits_for(two_gpus: tuple[Bench, list[int]]) -> None:
    bench, ends = two_gpus
    result = bench.measured(ends)
    assert result.rank_end_us == [14, 11]
    parts = result.exposure
    assert parts is not None
    assert parts.by_time.wires_us == [3, 3]
    assert parts.by_time.imbalance_us == [4, 4]
    assert parts.by_time.latency_us == [2, 0]
    assert parts.by_sms.wires_us == [3.75, 3]
    assert parts.by_sms.imbalance_us == [4, 4]
    assert parts.by_sms.latency_us == [2, 0]
    assert parts.unfilled_us == [2.25, 0]
    assert parts.copying_us == [0, 0]
    assert parts.by_time.total_us == result.exposed_communication_us_per_gpu == [9, 7]
    assert result.exposed_communication_us == 8


def test_rows_that_sms_copy_are_told_from_messages_alone(two_gpus: tuple[Bench, list[int]]) -> None:
    """GPU 0 copies for a microsecond while its message arrives, and for another behind that."""
    bench, ends = two_gpus
    later = bench.task(Kind.MARK, 0, -1, 11)[0]
    bench.task(COMBINE.receive, 0, bench.machine.sms.pool("copies", 1)[0], 2, later)
    parts = bench.measured(ends).exposure
    assert parts is not None
    assert parts.copying_us == [2, 0]
    assert parts.by_time.wires_us == [4, 3]  # the message alone for the first 2 of GPU 0
    assert parts.by_time.latency_us == [1, 0]


def test_acknowledgements_are_nothing_that_is_waited_for(
    two_gpus: tuple[Bench, list[int]],
) -> None:
    bench, ends = two_gpus
    bench.task(DISPATCH.ack_down, 0, bench.machine.resources.downlink[0], 10)
    parts = bench.measured(ends).exposure
    assert parts is not None
    # It holds up the message back, until 11 us at most: nothing else changes.
    assert parts.by_time.imbalance_us == [4, 4]


def test_a_token_takes_longer_from_the_start_of_its_layer(
    two_gpus: tuple[Bench, list[int]],
) -> None:
    bench, _ = two_gpus
    layer = work(np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0])
    timeline = schedule(bench.machine.graph.build())
    tokens = token_latency(timeline, bench.machine, layer, None)
    assert (tokens.from_dispatch.max_us, tokens.from_start.max_us) == (13, 14)
    assert tokens.from_start.num_tokens == 1
    assert tokens.slowest[0].latency_us == 13


def _reading(l2_bytes_per_clock: float) -> Measures:
    """Two tiles of 1 us, one after the other, that read a block of 15 MB."""
    bench = Bench.make(1, gpu__l2_bytes_per_clock=l2_bytes_per_clock)
    sms = bench.machine.sms.pool("sm", 4)
    first = bench.task(Kind.GEMM1, 0, sms[0], 1)
    second = bench.task(Kind.GEMM1, 0, sms[0], 1, first[0])
    tiles = np.append(first, second)
    block = bench.machine.l2.new_blocks(1)
    zeros = np.zeros(2, np.int64)
    bench.machine.l2.read("weights", tiles, zeros, zeros + block, 15_000_000)
    return bench.measured([int(second[0])])


def test_tiles_that_wait_for_memory() -> None:
    result = _reading(1e9)
    times = result.sm_time_us
    assert times is not None
    assert times.computing_us == [2]
    assert times.waiting_for_hbm_us == [2.011]  # 3 us at five bytes a picosecond, and 11 ns
    # Through the cache in 0.01 us.
    assert times.waiting_for_l2_us == [0]
    assert times.copying_us == [0]


def test_tiles_that_wait_for_the_cache() -> None:
    clock_GHz = hwmodel.load("dgx-h100").spec.gpu.clock_GHz.value
    times = _reading(3750 / clock_GHz).sm_time_us  # 3750 GB/s: 15 MB take 4 us
    assert times is not None
    assert times.waiting_for_l2_us[0] == pytest.approx(2 * 3, abs=1e-4)
    assert times.waiting_for_hbm_us == [0]


def test_kernels_that_follow_one_another_have_the_same_sms() -> None:
    bench = Bench.make(1)
    split = bench.machine.sms.split("a kernel", {"others": 1})
    first, second = split.pool("sm", 3), bench.machine.sms.pool("sm-2", 4)
    before = bench.task(Kind.GEMM1, 0, first[0], 1, count=6)
    last = bench.task(Kind.GEMM2, 0, second[0], 1, before[-1], count=8)
    result = bench.measured([int(last[-1])])
    assert result.makespan_us == 4
    assert result.bounds_us.sm_us == 3.5
    assert result.utilisation["sm"].max == 14 / 16
    assert "sm-2" not in result.utilisation
    assert (result.busiest_resource.name, result.busiest_resource.group) == ("sm 0", "sm")
    over_time = result.utilisation_over_time
    busy_us = sum(over_time.groups["sm"]) * over_time.window_us
    assert busy_us / result.makespan_us == pytest.approx(14 / 16, abs=1e-6)


def test_sms_set_apart_bound_the_layer_by_themselves() -> None:
    bench = Bench.make(1)
    split = bench.machine.sms.split("a kernel", {"others": 3})
    last = bench.task(Kind.GEMM1, 0, split.pool("sm", 1)[0], 1, count=6)
    assert bench.measured([int(last[-1])]).bounds_us.sm_us == 6


def test_warps_are_a_share_of_their_sm() -> None:
    bench = Bench.make(1)
    split = bench.machine.sms.split("a kernel", {})
    lanes = split.warp_lanes("copy", 1, 2)
    block = split.channels("copy-block", 1, on="copy")
    both = [bench.task(DISPATCH.send, 0, lanes[0, 0, peer], 3)[0] for peer in range(2)]
    bench.task(DISPATCH.send, 0, block[0, 0], 3)
    result = bench.measured([int(both[0])])
    assert result.sm_time_us is not None
    assert result.sm_time_us.copying_us == [3]  # three queues of one SM
    assert result.utilisation["sm"].max == 1 / 4


def test_union_of_intervals_joins_those_that_touch() -> None:
    rows = [(0, 5, 7), (1, 0, 2), (0, 0, 3), (0, 3, 4), (1, 1, 9), (1, 4, 4), (2, 6, 6)]
    owner, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    joined = union(Intervals(owner, start, end))
    assert list(zip(*(column.tolist() for column in joined), strict=True)) == [
        (0, 0, 4),
        (0, 5, 7),
        (1, 0, 9),
    ]


def test_nothing_at_all_has_no_exposed_communication() -> None:
    bench = Bench.make(2)
    ends = bench.machine.mark(bench.machine.ranks)
    result = bench.measured(ends.tolist())
    assert result.exposure is not None
    assert result.exposure.by_time.total_us == result.exposure.by_sms.total_us == [0, 0]


def test_waiting_for_a_launch_alone_is_not_exposed(two_gpus: tuple[Bench, list[int]]) -> None:
    bench, ends = two_gpus
    # GPU 0 could begin a kernel when its flag comes (14), and gets its launch at 15.
    flag = bench.machine.mark(np.array([0]), np.array([ends[0]]))
    launched = bench.task(Kind.HOST, 0, -1, 15)
    begun = bench.machine.gather(np.append(flag, launched), np.array([0, 0]), np.array([flag[0]] * 2))
    bench.machine.notes.held_up.append((flag, begun[:1], np.array([0])))
    result = bench.measured([int(begun[0]), ends[1]])
    assert result.rank_end_us == [15, 11]
    assert result.exposed_communication_us_per_gpu == [9, 7]
    assert result.exposure is not None
    assert (result.exposure.gaps_us, result.exposure.launches_us) == ([1, 0], [1, 0])


MOMENTS = 60
KINDS = (Kind.LAUNCH, Kind.PERMUTE, Kind.GEMM1, DISPATCH.up, DISPATCH.send, DISPATCH.ack_up, DISPATCH.sync)


def plainly(
    tasks: list[tuple[Kind, int, int, int]], held_up: list[tuple[int, int, int]], ends: list[int]
) -> list[dict[str, int]]:
    """What each GPU does, moment by moment: its own work, a pause of its kernels, or the first cause of its wait."""
    found = []
    for gpu, end in enumerate(ends):
        times = dict.fromkeys(("computes", "gap", "launch", "wires", "copies", "imbalance", "latency"), 0)
        for now in range(end):
            under_way = [(kind, of) for kind, of, start, past in tasks if start <= now < past and kind in KINDS[:5]]
            own = {kind for kind, of in under_way if of == gpu}
            late = {of for of, start, past in held_up if start <= now < past}
            if own & {Kind.PERMUTE, Kind.GEMM1}:
                what = "computes"
            elif Kind.LAUNCH in own or gpu in late:
                what = "gap" if Kind.LAUNCH in own else "launch"
            elif own:
                what = "wires"
                times["copies"] += DISPATCH.send in own
            else:
                what = "imbalance" if under_way or late else "latency"
            times[what] += 1
        found.append(times)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_time_of_each_gpu_is_that_of_every_moment(seed: int) -> None:
    """Against a twin that looks at each microsecond; what is left of the end is computing, to the picosecond."""
    draw = np.random.default_rng(seed)
    bench = Bench.make(3)
    # On no resource nothing queues: each task begins behind a mark at its own moment.
    tasks, held_up = [], []
    sms = bench.machine.sms.pool("sm", 4)

    def moment(gpu: int, us: int) -> np.ndarray:
        return bench.task(Kind.MARK, gpu, -1, us)

    for _ in range(24):
        kind, gpu = KINDS[int(draw.integers(len(KINDS)))], int(draw.integers(3))
        start, length = int(draw.integers(MOMENTS - 10)), int(draw.integers(1, 10))
        if kind == Kind.GEMM1 and any(one[:2] == (kind, gpu) for one in tasks):
            continue  # a tile alone on its GPU begins at once
        bench.task(kind, gpu, sms[gpu] if kind == Kind.GEMM1 else -1, length, int(moment(gpu, start)[0]))
        tasks.append((kind, gpu, start, start + length))
    for _ in range(4):
        gpu, start, length = int(draw.integers(3)), int(draw.integers(MOMENTS - 10)), int(draw.integers(1, 10))
        both = moment(gpu, start), moment(gpu, start + length)
        bench.machine.notes.held_up.append((*both, np.array([gpu])))
        held_up.append((gpu, start, start + length))
    ends = draw.integers(MOMENTS // 2, MOMENTS, 3).tolist()
    result = bench.measured([int(moment(gpu, end)[0]) for gpu, end in enumerate(ends)])
    parts = result.exposure
    assert parts is not None and parts.gaps_us is not None and parts.launches_us is not None
    waits = parts.by_time
    for gpu, times in enumerate(plainly(tasks, held_up, ends)):
        found = {
            "gap": parts.gaps_us[gpu],
            "launch": parts.launches_us[gpu],
            "wires": waits.wires_us[gpu],
            "imbalance": waits.imbalance_us[gpu],
            "latency": waits.latency_us[gpu],
        }
        computes = result.rank_end_us[gpu] - sum(found.values())
        copies = (parts.copying_us or [])[gpu]
        assert {"computes": computes, **found, "copies": copies} == times
