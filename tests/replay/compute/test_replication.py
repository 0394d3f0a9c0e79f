"""What placement per step costs: bytes, memory, SMs, kernels and waiting, added up by hand."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from round_machine import NS, round_machine

import hwmodel
import replay
from replay.chains.layer import build_layer
from replay.chains.memory import memory_of
from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.errors import UserError
from replay.model.compute.replication import memory, replicate
from replay.model.machine.host import Operation
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.step_plan import plan_step
from replay.schemes.ep.plain import Plain

SHAPE = ExpertShape(hidden=1024, intermediate=512)
FIRST, SECOND = 2 * 1024 * 1024, 1024 * 1024  # gate and up, down: bytes in BF16
EXPERT = FIRST + SECOND
PACKETS = 9 / 8  # every 128 bytes of data have a header flit of 16
TILE, CHUNK, MESSAGE = 32 * 1024, 256 * 1024, 64 * 1024


def hot(ranks: int, spec: str = "ultraep", *, precision: str = "bf16", rows: int = 4096) -> LayerWork:
    """One expert a GPU; all rows of all GPUs are for that of the first."""
    ids, owner = np.zeros((ranks * rows, 1), np.int32), np.repeat(np.arange(ranks), rows)
    plan = plan_step(spec, ids, owner, ranks, ranks)
    return LayerWork(
        plan.reroute(ids, owner),
        owner.astype(np.int32),
        plan.placement,
        SHAPE,
        Precision(precision),
        step_plan=plan,
    )


class Replicated:
    """Placement per step alone, on a machine of round numbers."""

    def __init__(self, work: LayerWork, system: hwmodel.System | None = None) -> None:
        builder = GraphBuilder(KIND_NAMES)
        self.machine = Machine(system or round_machine(), builder, work.num_ranks)
        start = self.machine.mark(self.machine.ranks)
        self.ends = replicate(self.machine, work, start)
        self.graph: TaskGraph = builder.build()
        self.timeline = schedule(self.graph)

    def each(self, kind: Kind, values: np.ndarray) -> list[int]:
        """(rank,) sums over the tasks of a kind."""
        chosen = self.graph.kind == kind
        sums = np.bincount(self.graph.rank[chosen], values[chosen], minlength=self.machine.num_ranks)
        return sums.astype(np.int64).tolist()


@cache
def replicated(ranks: int, spec: str = "ultraep") -> Replicated:
    return Replicated(hot(ranks, spec))


@pytest.mark.parametrize("spec", ["ultraep", "moonep"])
def test_a_home_sends_every_replica_an_expert(spec: str) -> None:
    found = replicated(4, spec)
    sent = int(EXPERT * PACKETS)
    assert found.each(Kind.WEIGHTS_UP, found.graph.wire_bytes) == [3 * sent, 0, 0, 0]
    assert found.each(Kind.WEIGHTS_DOWN, found.graph.wire_bytes) == [0, sent, sent, sent]
    assert not found.graph.payload_bytes.any()  # which is rows alone


def test_tiles_are_read_once_and_written_at_every_replica() -> None:
    found = replicated(4)
    read, write = 5, 4  # bytes a picosecond
    of_home, of_replica = EXPERT // read, EXPERT // write
    spent = found.each(Kind.WEIGHTS_MEMORY, found.graph.duration_ps)
    assert spent == pytest.approx([of_home, of_replica, of_replica, of_replica], rel=1e-4)


def test_sms_of_the_home_store_every_copy() -> None:
    found = replicated(4)
    assert found.each(Kind.WEIGHTS_SEND, found.graph.duration_ps) == [3 * EXPERT * 10, 0, 0, 0]
    sms = found.graph.resource[found.graph.kind == Kind.WEIGHTS_SEND]
    assert (found.graph.resources.servers[sms] == 100).all()
    even = replicated(4, "moonep").graph
    sms = even.resource[even.kind == Kind.WEIGHTS_SEND]
    assert (even.resources.servers[sms] == 32).all()


def test_with_seven_replicas_two_relays_share_what_the_home_would_send() -> None:
    found = replicated(8)
    sent = int(EXPERT * PACKETS)
    up = found.each(Kind.WEIGHTS_UP, found.graph.wire_bytes)
    assert sorted(one // sent for one in up) == [0, 0, 0, 0, 0, 2, 2, 3]
    assert up[0] == 2 * sent
    assert found.each(Kind.WEIGHTS_DOWN, found.graph.wire_bytes) == [0, *[sent] * 7]
    # A relay reads its own slot again, once for all that it serves: three GPUs read.
    assert sum(found.each(Kind.WEIGHTS_MEMORY, found.graph.duration_ps)) == pytest.approx(
        3 * EXPERT // 5 + 7 * EXPERT // 4, rel=1e-4
    )


def test_relays_pass_on_chunk_by_chunk() -> None:
    found = replicated(8)
    graph, timeline = found.graph, found.timeline
    passes_on = (graph.kind == Kind.WEIGHTS_SEND) & (graph.rank != 0)
    for relay in np.unique(graph.rank[passes_on]):
        down = (graph.kind == Kind.WEIGHTS_DOWN) & (graph.rank == relay)
        landed = np.sort(timeline.visible_ps[down])
        first = timeline.start_ps[passes_on & (graph.rank == relay)].min()
        assert landed[CHUNK // MESSAGE - 1] < first < landed[-1]
    # Flags: one a chunk and relay, beside the loads of every GPU for every other.
    flags = (graph.kind == Kind.LOADS_UP).sum() - 8 * 7
    assert flags == 2 * EXPERT // CHUNK


def test_loads_are_stored_to_every_gpu_with_their_flags() -> None:
    found = replicated(4)
    packet = 2 * 4 * 4 + 16  # four experts of four bytes, as much of flags, a header
    assert found.each(Kind.LOADS_UP, found.graph.wire_bytes) == [3 * packet] * 4


KERNELS = {
    "loads cleared": 1,
    "loads counted": 1,
    "loads copied": 1,
    "loads gathered": 1,
    "loads added up": 1,
    "plan cleared": 6,
    "plan": 1,
    "copy list": 1,
    "copy counters": 2,
    "weight copies": 1,
    "weight relays": 1,
    "reroute cleared": 1,
    "reroute": 1,
}


def test_every_kernel_is_launched_and_no_host_waits() -> None:
    launched: Counter[str] = Counter()
    for name, count, *_ in replicated(4).machine.host.program:
        assert count, "a wait"
        launched[name] += count
    assert launched == KERNELS
    assert replicated(4, "moonep").machine.host.program == [Operation("plan", 1), Operation("weight prefetch", 1)]
    assert "weight relays" not in [one.name for one in replicated(2).machine.host.program]


def test_the_plan_takes_the_steps_of_its_thread_block() -> None:
    # Four experts, four GPUs, 16384 rows for the first: the level is 4096 + 41; three replicas.
    found, work = replicated(4), hot(4)
    assert work.step_plan is not None
    effort = work.step_plan.effort
    assert (effort.attempts, effort.visits, effort.searches, effort.moves) == (1, 1, 3, 1)
    cache_load = 20
    begin = 2 * cache_load + 17 * (1 + 2)
    searching = (1 + 1) * 17 + 2 * 17 + 3 * (12 * 20 + 40)
    giving, dividing = 3 * 4 * 17, 2 * 4 * (cache_load + 100)
    plans = (found.graph.kind == Kind.PLAN) & (found.graph.resource < 0)
    times = found.graph.duration_ps[plans] + found.graph.latency_ps[plans]
    assert (begin + searching + giving + dividing) * NS in times.tolist()


def test_moonep_plans_on_the_first_gpu_between_barriers() -> None:
    # Four experts, 16384 rows for the first: three GPUs lack 4096 each, three steps hand them out.
    found, work = replicated(4, "moonep"), hot(4, "moonep")
    graph = found.graph
    assert work.step_plan is not None
    assert work.step_plan.rounds == 3 + 3
    loads, tables = 4 * 4, 4 * (3 * 4 * 4 + 4 * 4 * 8)
    up = found.each(Kind.LOADS_UP, graph.wire_bytes)
    assert up == [3 * (tables + -(-tables // 128) * 16), *[loads + 16] * 3]
    grid_barrier = int(found.machine.costs.grid_barrier().ps)
    solved = (graph.kind == Kind.PLAN) & (graph.resource < 0)
    times = graph.duration_ps[solved] + graph.latency_ps[solved]
    assert set(times.tolist()) == {6 * 4 * 20 * NS + 10 * grid_barrier}
    barrier = round_machine().overheads.barrier_ps(4) + 250 * NS  # behind acknowledged stores
    met = (graph.kind == Kind.PLAN_SYNC) & (graph.latency_ps + graph.duration_ps == barrier)
    assert met.sum() == 3 * 4  # loads, plan, weights
    ids = 4096 * 8  # of a GPU: sorted from, looked at again, places written
    assert found.each(Kind.PLAN, graph.duration_ps * (graph.resource >= 0)) == [2 * ids // 8 + ids // 4] * 4


def test_a_gpu_goes_on_with_its_weights_and_when_its_own_copies_are_done() -> None:
    found = replicated(4)
    graph, timeline = found.graph, found.timeline
    ends = timeline.visible_ps[found.ends]
    for rank in range(1, 4):
        written = (graph.kind == Kind.WEIGHTS_MEMORY) & (graph.rank == rank)
        assert ends[rank] == timeline.visible_ps[written].max()
    arrived = timeline.visible_ps[graph.kind == Kind.WEIGHTS_DOWN].max()
    assert ends[0] == arrived + 250 * NS  # the way back of the last acknowledgement: 150 and 100


def test_without_copies_a_gpu_goes_on_with_its_rows() -> None:
    ids = np.tile(np.arange(4, dtype=np.int32), 4)[:, None]
    owner = np.repeat(np.arange(4), 4)
    plan = plan_step("ultraep", ids, owner, 4, 4)
    assert not plan.copies
    work = LayerWork(
        plan.reroute(ids, owner),
        owner.astype(np.int32),
        plan.placement,
        SHAPE,
        Precision("bf16"),
        step_plan=plan,
    )
    found = Replicated(work)
    assert not (found.graph.kind == Kind.WEIGHTS_UP).any()
    # The kernels find nothing: a list, two counters cleared, two launches beside each other.
    visible = found.timeline.visible_ps
    waits = (found.graph.kind == Kind.PLAN) & (found.graph.resource < 0)
    for rank, end in enumerate(visible[found.ends].tolist()):
        *_, planned, _ = visible[waits & (found.graph.rank == rank)]  # the last: a counter cleared
        assert end - planned == (3 * 2300 + 2000) * NS


def test_experts_wait_for_the_weights_of_their_replicas() -> None:
    work = hot(4, rows=64)
    built = build_layer(work, round_machine(), Plain())
    graph, timeline = built.graph, schedule(built.graph)
    for rank in range(4):
        written = (graph.kind == Kind.WEIGHTS_MEMORY) & (graph.rank == rank)
        multiplied = (graph.kind == Kind.GEMM1) & (graph.rank == rank)
        assert timeline.start_ps[multiplied].min() >= timeline.visible_ps[written].max()


def test_rows_of_the_scheme_are_those_of_the_plan() -> None:
    work = hot(4, rows=64)
    built = build_layer(work, round_machine(), Plain())
    graph = built.graph
    sent = work.matrix("pairs").copy()
    np.fill_diagonal(sent, 0)
    up = graph.kind == Kind.DISPATCH_UP
    payload = np.bincount(graph.rank[up], graph.payload_bytes[up], minlength=4)
    assert payload.tolist() == (sent.sum(axis=1) * work.dispatch_row_bytes).tolist()


def test_slots_are_memory() -> None:
    ids, owner = np.zeros((64, 1), np.int32), np.repeat(np.arange(4), 16)
    plan = plan_step("ultraep:20", ids, owner, 8, 4)  # three reserved beside two on every GPU
    work = LayerWork(
        plan.reroute(ids, owner),
        owner.astype(np.int32),
        plan.placement,
        SHAPE,
        Precision("fp8"),
        step_plan=plan,
    )
    weights, tables = memory(work, round_machine()).values()
    scales = 4 * (8 * 8 + 8 * 4)  # a float for each block of 128 x 128
    assert weights.tolist() == [3 * (EXPERT // 2 + scales)] * 4
    flags = 3 * 2 * 5 * 8  # of 1 MiB and scales, in chunks
    assert tables.tolist() == [flags + 4 * (20 + 8 + 4 * 8 * 4) + 4 * 8 * (4 + 2)] * 4
    plain = LayerWork(ids, owner.astype(np.int32), plan.placement, SHAPE, Precision("fp8"))
    assert memory(plain, round_machine()) == {}


def test_all_layers_share_the_slots() -> None:
    work = hot(4)  # an expert and a reserved slot on every GPU
    found = memory_of(work, round_machine(), Plain())
    assert found.weight_bytes == [EXPERT] * 4
    slots = {one.name: one for one in found.buffers if one.stays}
    assert slots["weights of replicas"].bytes == [EXPERT] * 4
    assert set(slots) >= {"weights of replicas", "flags, plans and loads"}


def test_weights_stay_within_an_nvlink_domain() -> None:
    with pytest.raises(UserError, match="within an NVLink domain, and the GPUs are in 2"):
        Replicated(hot(16, rows=16), hwmodel.load("dgx-h100-x2"))


def test_a_replay_reports_weights_and_balance(synthetic) -> None:
    trace = synthetic(4, 64, "zipf", skew=1.2)
    settings = {"layer": 0, "scheme": "plain"}
    before = replay.run(trace, **settings).layers[0]
    after = replay.run(trace, placement="ultraep:96", **settings).layers[0]
    assert after.routing.rank_imbalance < 1.1 < before.routing.rank_imbalance
    assert after.routing.num_pairs == before.routing.num_pairs
    weights = after.measures.mechanisms.wire_bytes["weights"]
    assert sum(weights.uplink) == sum(weights.downlink) > 0
    assert "weights" not in before.measures.mechanisms.wire_bytes
    assert "placement" in after.measures.phases
    chained = replay.run(trace, placement="moonep", scheme="plain").chain
    assert chained is not None
    assert all("placement" in one.phases_us for one in chained.layers)
