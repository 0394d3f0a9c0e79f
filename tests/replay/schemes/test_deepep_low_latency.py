"""DeepEP's low-latency kernels: their costs added up by hand, on a machine of round numbers.

Every number here follows from the source of the kernels and the sizes of the layer; nothing is
taken from the code under test.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from loops import every
from moments import begin, finish, tasks
from one_layer import replay_layer
from packets import write_packets
from round_machine import NS, ROUND, US, round_machine

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, Timeline, schedule
from replay.errors import UserError
from replay.model.compute.masked_gemms import expected_rows
from replay.model.compute.masked_tiles import masked_tile
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.graph_facts import Dependencies
from replay.schemes.ep.base import LayerRefusedError

UP, DOWN, VISIBLE, POLL = 150 * NS, 100 * NS, 30 * NS, 5 * NS
CHOICE, RELEASE = 7 * NS, 9 * NS  # of a row; of a release, for each peer
ACKNOWLEDGED = UP + DOWN + RELEASE  # of two GPUs
MEMORY, CACHE, GAP, GRID_BARRIER = 60 * NS, 20 * NS, 2 * US, 100 * NS
SMALL_KERNEL = 300 * NS
HIDDEN = 2048
BF16_ROW, FP8_ROW = 2 * HIDDEN, HIDDEN + HIDDEN // 128 * 4
HEADER, FLAG = 16, write_packets(4)
COUNTED_EACH = 10 * NS  # of every expert


@pytest.fixture(scope="module")
def machine() -> hwmodel.System:
    """Ports that lose nothing, whoever stores."""
    free = {"link.fan_out_efficiency": 1.0, "link.scatter_efficiency": 1.0}
    return hwmodel.load(
        "dgx-h100",
        {
            **ROUND,
            **free,
            "link.bulk_scatter_efficiency": 1.0,
            "overheads.grid_barrier_us": 0.1,
            "warp.choice_ns": 7.0,
            "warp.release_ns": 9.0,
        },
    )


def run(layer: LayerWork, system: hwmodel.System, **options: Any) -> Timeline:
    return schedule(build_layer(layer, system, SCHEMES["deepep-ll"].with_options(options)).graph)


def busy(timeline: Timeline, kind: Kind, rank: int) -> int:
    return int(timeline.graph.duration_ps[tasks(timeline, kind, rank)].sum())


def to_rank(target: int, tokens: int = 1, num_ranks: int = 2, **more: Any) -> LayerWork:
    """Tokens of rank 0, all for the only expert of another rank."""
    ids = np.full((tokens, 1), target, np.int32)
    return small_layers.work(
        ids,
        num_ranks,
        num_ranks,
        tokens_of_rank=[tokens] + [0] * (num_ranks - 1),
        shape=ExpertShape(HIDDEN, 64),
        **more,
    )


def copied(row_bytes: int, unroll: int, latency: int) -> int:
    """A warp copies a row: it begins, then waits for rounds of so many loads of 512 bytes."""
    return 40 * NS + round(row_bytes / (512 * unroll) * (100 * NS + latency))


def begun(slots: int) -> int:
    """When the dispatch kernel runs: behind a kernel that casts expert ids from 4 to 8 bytes."""
    return GAP + -(-12 * slots // 5) + SMALL_KERNEL + GAP


def dispatched(row: int) -> int:
    """From the beginning of the kernel until rank 1's GEMM could read the only row."""
    message = row + HEADER
    wire = write_packets(message)
    cast = MEMORY + copied(message, 8, CACHE) + CHOICE
    landed = cast + wire + UP + wire + DOWN + VISIBLE
    # The source learns of it, its count is seen, the flag follows.
    counted = landed + ACKNOWLEDGED + VISIBLE + POLL + 2 * COUNTED_EACH
    seen = counted + FLAG + UP + FLAG + DOWN + VISIBLE + POLL
    return seen + copied(message, 7, MEMORY)


@pytest.mark.parametrize(("precision", "row"), [("bf16", BF16_ROW), ("fp8", FP8_ROW)])
def test_one_row_is_dispatched_in_the_sum_of_its_steps(precision: str, row: int, machine: hwmodel.System) -> None:
    timeline = run(to_rank(1, precision=precision), machine)
    received = begun(1) + dispatched(row)
    assert finish(timeline, Kind.DISPATCH_RECEIVE) == received
    assert len(tasks(timeline, Kind.DISPATCH_UP)) == 1
    # Memory is read and written from the flag on, while the warps copy.
    copies = tasks(timeline, Kind.DISPATCH_MEMORY, 1)
    assert timeline.start_ps[copies].max() == received - copied(row + HEADER, 7, MEMORY)


def test_one_row_is_combined_in_the_sum_of_its_steps(machine: hwmodel.System) -> None:
    timeline = run(to_rank(1), machine)
    sends = begin(timeline, Kind.COMBINE_SEND)
    wire = write_packets(BF16_ROW)
    # One round of four loads, 512 bytes each, a warp: longer than the SM's 100 GB/s.
    sent = copied(BF16_ROW, 4, CACHE)
    assert sent > BF16_ROW * 10
    landed = sent + wire + UP + wire + DOWN + VISIBLE
    seen = landed + ACKNOWLEDGED + CACHE + FLAG + UP + FLAG + DOWN + VISIBLE + POLL
    added = BF16_ROW * 5 + BF16_ROW * 20 + MEMORY + CHOICE  # read at 200, written at 50 GB/s
    assert timeline.makespan_ps == sends + seen + GRID_BARRIER + added


def test_results_leave_when_they_have_come_from_memory() -> None:
    slow = hwmodel.load("dgx-h100", {**ROUND, "hbm.peak_GB_per_s": 1.0})
    timeline = run(to_rank(1), slow)
    [row] = tasks(timeline, Kind.COMBINE_UP)
    memory = tasks(timeline, Kind.COMBINE_MEMORY, 1)
    read = timeline.visible_ps[memory[timeline.graph.duration_ps[memory] > 0]].max()
    assert timeline.start_ps[row] == read > begin(timeline, Kind.COMBINE_SEND) + US


@pytest.mark.parametrize("choices", [1, 3, 8])
def test_every_choice_of_a_token_takes_its_block_longer(choices: int, machine: hwmodel.System) -> None:
    ids = np.arange(choices, dtype=np.int32)[None]
    layer = small_layers.work(ids, 8, 8, tokens_of_rank=[1] + [0] * 7, shape=ExpertShape(HIDDEN, 64))
    timeline = run(layer, machine)
    cast = MEMORY + copied(BF16_ROW + HEADER, 8, CACHE) + choices * CHOICE
    assert busy(timeline, Kind.DISPATCH_SEND, 0) == cast
    [added] = tasks(timeline, Kind.COMBINE_RECEIVE, 0)
    assert timeline.graph.duration_ps[added] == BF16_ROW * (5 * choices + 20)
    assert timeline.visible_ps[added] - timeline.end_ps[added] == MEMORY + choices * CHOICE


def test_a_release_takes_longer_with_every_peer_of_the_domain() -> None:
    # The only row is flagged behind a release, in the dispatch and in the combine.
    def took(num_ranks: int, release_ns: float, **changes: Any) -> int:
        system = hwmodel.load("dgx-h100", {**ROUND, "warp.release_ns": release_ns, **changes})
        return run(to_rank(1, num_ranks=num_ranks), system).makespan_ps

    for num_ranks in (2, 4, 8):
        longer = took(num_ranks, 2e4) - took(num_ranks, 1e4)
        assert longer == 2 * (num_ranks - 1) * 10 * US
    nodes = {"fabric.num_domains": 2}
    assert took(16, 2e4, **nodes) - took(16, 1e4, **nodes) == 2 * 7 * 10 * US
    # Nobody has measured more than 8 GPUs of a domain.
    wide = {"fabric.num_gpus": 16}
    assert took(16, 2e4, **wide) - took(16, 1e4, **wide) == 2 * 7 * 10 * US


@every(("room", "read"), [(1, 12), (12, 12), (24, 6), (1200, 0)])
def test_sums_read_from_memory_what_the_cache_has_no_room_for(room: int, read: int) -> None:
    # 12 rows come back to GPU 0; of a cache of `room` rows, a share is taken that it fills.
    system = hwmodel.load("dgx-h100", {**ROUND, "gpu.l2_bytes": room * BF16_ROW})
    timeline = run(to_rank(1, tokens=12), system)
    memory = tasks(timeline, Kind.COMBINE_MEMORY, 0)
    moved = timeline.graph.duration_ps[memory].sum() * 5 / BF16_ROW
    assert moved == pytest.approx(12 + read, abs=0.2)


def test_a_row_of_the_own_gpu_stays_there(machine: hwmodel.System) -> None:
    timeline = run(to_rank(0), machine)
    message = BF16_ROW + HEADER
    cast = MEMORY + copied(message, 8, CACHE) + CHOICE
    counted = cast + VISIBLE + POLL + 2 * COUNTED_EACH
    # Nobody is told; the grid meets, which takes longer than to see the flag.
    met = counted + GRID_BARRIER
    assert finish(timeline, Kind.DISPATCH_RECEIVE) == begun(1) + met + copied(message, 7, MEMORY)
    assert not len(tasks(timeline, Kind.DISPATCH_UP)) and not len(tasks(timeline, Kind.COMBINE_UP))


def test_every_expert_is_flagged_to_and_from_every_rank(machine: hwmodel.System) -> None:
    # Three ranks with four experts each: a flag per (expert, other rank), both ways.
    layer = small_layers.work(small_layers.draw(9, 12, 2), 3, 12, shape=ExpertShape(HIDDEN, 64))
    timeline = run(layer, machine)
    graph = timeline.graph
    for kind in (Kind.SIGNAL_UP, Kind.SIGNAL_DOWN, Kind.NOTIFY_UP, Kind.NOTIFY_DOWN):
        of_kind = tasks(timeline, kind)
        assert Counter(graph.rank[of_kind].tolist()) == {0: 8, 1: 8, 2: 8}
        assert set(graph.wire_bytes[of_kind].tolist()) == {FLAG}


def test_a_rank_without_tokens_is_waited_for(machine: hwmodel.System) -> None:
    # Rank 2 has neither tokens nor rows; it begins late, and everybody waits for its flags.
    late = 50 * US
    builder = GraphBuilder(KIND_NAMES)
    made = Machine(machine, builder, 3, "voq")
    start = builder.add(3, resource=-1, duration_ps=np.array([0, 0, late]), kind=Kind.BETWEEN, rank=made.ranks)
    SCHEMES["deepep-ll"].build(to_rank(1, num_ranks=3), made, start)
    timeline = schedule(builder.build())
    flags = timeline.start_ps[tasks(timeline, Kind.SIGNAL_UP, 2)]
    assert flags.min() >= late + GAP
    assert begin(timeline, Kind.GEMM1) > late + GAP
    # The next phase again: its flags follow a dispatch that ended late.
    assert timeline.start_ps[tasks(timeline, Kind.NOTIFY_UP, 2)].min() > late


def test_bytes_of_memory(machine: hwmodel.System) -> None:
    # FP8, 6 tokens of rank 0, 4 of them for one expert of rank 1 and 2 for the other.
    ids = np.array([[2], [2], [2], [2], [3], [3]], np.int32)
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[6, 0], shape=ExpertShape(HIDDEN, 256), precision="fp8")
    timeline = run(layer, machine, max_tokens=16)
    message = FP8_ROW + HEADER
    # 5 TB/s: five bytes a picosecond. Rows of six blocks of one token are rounded up apart.
    per_byte = 1 / 5
    cast = 6 * (BF16_ROW + message)  # read, and written into the staging buffer
    packed = 2 * 6 * message
    # Sums are written; of the rows hardly any is more than the L2 cache has room for.
    sent, added = 6 * BF16_ROW, 6 * BF16_ROW + (6 * BF16_ROW) ** 2 // machine.l2.num_bytes
    slots = 2 * 2 * 16  # two experts, sixteen tokens of two ranks each
    expected = {
        (Kind.LAYOUT, 0): 6 * (4 + 8),
        (Kind.LAYOUT, 1): 0,
        (Kind.DISPATCH_MEMORY, 0): cast,
        (Kind.DISPATCH_MEMORY, 1): packed,
        (Kind.COMBINE_MEMORY, 0): added,
        (Kind.COMBINE_MEMORY, 1): sent,
        # 6 rows of gate and up in BF16 in, of FP8 with scales out; scales of all slots in and out.
        (Kind.ACTIVATION, 1): 6 * (512 * 2 + 256 + 2 * 4) + 2 * 4 * slots * 256 // 128,
        (Kind.PERMUTE, 1): 0,
    }
    hbm = np.array(["hbm" in name for name in [*timeline.graph.resources.names, ""]])
    for (kind, rank), nbytes in expected.items():
        of = tasks(timeline, kind, rank)
        of = of[hbm[timeline.graph.resource[of]]]
        assert timeline.graph.duration_ps[of].sum() == pytest.approx(nbytes * per_byte, abs=8), kind


@pytest.mark.parametrize(("hook", "kernels"), [(False, 7), (True, 9)])
def test_kernels_and_waits_of_the_host(hook: bool, kernels: int, machine: hwmodel.System) -> None:
    # Cast of ids, dispatch, GEMM-1, activation, scales, GEMM-2, combine.
    timeline = run(to_rank(1, precision="fp8"), machine, hook=hook)
    for rank in range(2):
        # Each GEMM looks at the count of its expert.
        assert len(tasks(timeline, Kind.LAUNCH, rank)) == kernels + 2
        assert busy(timeline, Kind.LAUNCH, rank) == kernels * GAP + 2 * CACHE
    hosts = [name.startswith("host") for name in timeline.graph.resources.names]
    assert not np.isin(timeline.graph.resource, np.flatnonzero(hosts)).any()
    assert not len(tasks(timeline, Kind.COUNT_UP))


def test_a_hook_puts_a_gap_in_place_of_a_barrier_of_the_grid(machine: hwmodel.System) -> None:
    message = BF16_ROW + HEADER
    own = [run(to_rank(0), machine, hook=hook) for hook in (False, True)]
    cast = MEMORY + copied(message, 8, CACHE) + CHOICE
    counted = begun(1) + cast + VISIBLE + POLL + 2 * COUNTED_EACH
    packed = copied(message, 7, MEMORY)
    assert finish(own[0], Kind.DISPATCH_RECEIVE) == counted + GRID_BARRIER + packed
    assert finish(own[1], Kind.DISPATCH_RECEIVE) == counted + GAP + packed
    # In the combine the gap comes beside the barrier, behind which the rows are added.
    met = [begin(one, Kind.COMBINE_RECEIVE) - begin(one, Kind.COMBINE_SEND) for one in own]
    sent = copied(BF16_ROW, 4, CACHE) + CACHE
    assert met == [sent + VISIBLE + POLL + GRID_BARRIER, sent + GAP + GRID_BARRIER]


def test_time_of_the_sms(machine: hwmodel.System) -> None:
    # 8 ranks, an expert each: 8 SMs, one group of 32 warps. 80 tokens of rank 0 for rank 1.
    timeline = run(to_rank(1, tokens=80, num_ranks=8), machine)
    message = BF16_ROW + HEADER
    cast = MEMORY + copied(message, 8, CACHE) + CHOICE
    assert busy(timeline, Kind.DISPATCH_SEND, 0) == 80 * cast
    sms = timeline.graph.resource[tasks(timeline, Kind.DISPATCH_SEND, 0)]
    assert sorted(Counter(sms.tolist()).values()) == [10] * 8
    # One group packs all rows, 32 at a time; another sends them back at the rate of its SM.
    assert busy(timeline, Kind.DISPATCH_RECEIVE, 1) == 3 * copied(message, 7, MEMORY)
    assert len(tasks(timeline, Kind.DISPATCH_RECEIVE, 1)) == 1
    assert busy(timeline, Kind.COMBINE_SEND, 1) == 80 * BF16_ROW * 10
    assert busy(timeline, Kind.COMBINE_RECEIVE, 0) == 80 * BF16_ROW * (5 + 20)
    sums = timeline.graph.resource[tasks(timeline, Kind.COMBINE_RECEIVE, 0)]
    assert sorted(Counter(sums.tolist()).values()) == [10] * 8


def test_groups_share_an_sm(machine: hwmodel.System) -> None:
    # 2 ranks with 128 experts each on 100 SMs: three groups of ten warps in 86 blocks.
    ids = np.zeros((30, 1), np.int32)
    layer = small_layers.work(ids, 2, 256, tokens_of_rank=[30, 0], shape=ExpertShape(HIDDEN, 64))
    timeline = run(layer, machine)
    assert busy(timeline, Kind.DISPATCH_RECEIVE, 0) == 3 * copied(BF16_ROW + HEADER, 7, MEMORY)
    assert busy(timeline, Kind.COMBINE_SEND, 0) == 30 * 3 * BF16_ROW * 10
    names = timeline.graph.resources.names
    blocks = {name.rpartition(" ")[2] for name in names if name.startswith("ll-dispatch-block")}
    assert len(blocks) == 2 * 86


def test_rows_of_a_group_take_turns(machine: hwmodel.System) -> None:
    # 64 rows for 32 warps: the last rows begin when their warps have copied the first.
    timeline = run(to_rank(1, tokens=64), machine)
    sends = begin(timeline, Kind.COMBINE_SEND)
    copy = copied(BF16_ROW, 4, CACHE)
    # Eight pieces; by SM the last eight rows are through after all 64, by warps after two copies.
    by_sm, by_warps = 64 * BF16_ROW * 10, 2 * copy
    ups = tasks(timeline, Kind.COMBINE_UP)
    assert len(ups) == 8
    assert timeline.start_ps[ups].max() == sends + max(by_sm, by_warps)
    slow = hwmodel.load("dgx-h100", {**ROUND, "warp.row_ns": 2000.0})
    late = run(to_rank(1, tokens=64), slow)
    sends = begin(late, Kind.COMBINE_SEND)
    ups = tasks(late, Kind.COMBINE_UP)
    turns = sends + 1960 * NS + copy, sends + 2 * (1960 * NS + copy)
    assert turns[1] > sends + by_sm
    assert late.start_ps[ups].min() == turns[0]
    assert np.sort(late.start_ps[ups])[4] == turns[1]


def test_signals_are_cleared_and_choices_looked_at_before_a_flag(machine: hwmodel.System) -> None:
    # 512 experts: 16 releases of the first SM's last warp, longer than a token's cast.
    ids = np.zeros((1, 1), np.int32)
    layer = small_layers.work(ids, 2, 512, tokens_of_rank=[1, 0], shape=ExpertShape(HIDDEN, 64))
    timeline = run(layer, machine)
    looked = 16 * MEMORY + CACHE
    assert looked > MEMORY + copied(BF16_ROW + HEADER, 8, CACHE)
    counted = begun(1) + looked + VISIBLE + POLL + 512 * COUNTED_EACH
    assert timeline.start_ps[tasks(timeline, Kind.SIGNAL_UP, 0)].min() == counted
    # Rank 1 has no choices to look at, nor ids to cast.
    assert timeline.start_ps[tasks(timeline, Kind.SIGNAL_UP, 1)].min() == counted - CACHE - 3


def test_the_combine_clears_a_signal_before_it_flags(machine: hwmodel.System) -> None:
    # GPU 0 has no rows to send back: its flag waits for nothing else.
    timeline = run(to_rank(1), machine)
    begun_ps = timeline.end_ps[tasks(timeline, Kind.LAUNCH, 0)].max()
    [flag] = tasks(timeline, Kind.NOTIFY_UP, 0)
    assert timeline.start_ps[flag] == begun_ps + MEMORY + CACHE


@every(("hidden", "sent"), [(96, 2048), (2048, 2048), (2880, 3072), (4097, 5120), (8192, 8192)])
def test_rows_are_padded_to_a_size_that_is_compiled(hidden: int, sent: int, machine: hwmodel.System) -> None:
    layer = small_layers.work(np.full((1, 1), 1, np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(hidden, 64))
    graph = run(layer, machine).graph
    [out], [back] = (np.flatnonzero(graph.kind == kind) for kind in (Kind.DISPATCH_UP, Kind.COMBINE_UP))
    assert graph.payload_bytes[out] == graph.payload_bytes[back] == 2 * hidden
    assert graph.wire_bytes[out] == write_packets(2 * sent + HEADER)
    assert graph.wire_bytes[back] == write_packets(2 * sent)


def test_between_domains_a_flag_leaves_behind_its_rows() -> None:
    two = hwmodel.load("dgx-h100", {"fabric.num_domains": 2})
    ids = np.full((1, 1), 8, np.int32)
    layer = small_layers.work(ids, 16, 16, tokens_of_rank=[1] + [0] * 15, shape=ExpertShape(HIDDEN, 64))
    timeline = run(layer, two)
    graph = timeline.graph
    ports = graph.resource[tasks(timeline, Kind.DISPATCH_UP)]
    assert {graph.resources.names[port] for port in ports} == {"pcie-out 0", "nic-out 0"}
    arrived = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_DOWN)].max()
    # The put's latency is paid once: rows and flag are under way together.
    packed = timeline.start_ps[tasks(timeline, Kind.DISPATCH_RECEIVE)]
    assert arrived <= packed.min() <= arrived + 3 * US
    # Packing depends on the rows themselves, not on the order of one queue alone.
    waits = Dependencies(timeline)
    for received, arriving in (
        (Kind.DISPATCH_RECEIVE, Kind.DISPATCH_DOWN),
        (Kind.COMBINE_RECEIVE, Kind.COMBINE_DOWN),
    ):
        for last in tasks(timeline, received).tolist():
            assert set(tasks(timeline, arriving).tolist()) <= waits.before([last])


def test_hosts_expect_of_every_expert_what_their_own_tokens_let_them(machine: hwmodel.System) -> None:
    """Two ranks with 200 tokens: (200 x 2 + 4) // 4 rows are expected of the expert that has one, too."""
    ids = np.array([0] * 399 + [3], np.int32)[:, None]
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[200, 200], shape=ExpertShape(HIDDEN, 1024), precision="fp8")
    assert expected_rows(layer).tolist() == [101, 101]
    timeline = run(layer, machine)
    for kind, n, k in ((Kind.GEMM1, 2048, HIDDEN), (Kind.GEMM2, HIDDEN, 1024)):
        width = masked_tile(101, n, k, 2, 1, machine.compute.num_sms).columns
        assert width != masked_tile(1, n, k, 2, 1, machine.compute.num_sms).columns
        assert len(tasks(timeline, kind, 1)) == -(-n // width)


def test_the_activation_starts_blocks_for_experts_without_rows(machine: hwmodel.System) -> None:
    # 64 experts a rank with 2 x 128 columns, one of them with a row: 64 x 2 x 32 blocks of 1 ns.
    layer = small_layers.work(
        np.full((1, 1), 64, np.int32),
        2,
        128,
        tokens_of_rank=[1, 0],
        shape=ExpertShape(HIDDEN, 256),
    )
    timeline = run(layer, machine)
    for rank in range(2):
        last = timeline.visible_ps[tasks(timeline, Kind.ACTIVATION, rank)].max()
        first = timeline.start_ps[tasks(timeline, Kind.ACTIVATION, rank)].min()
        assert last - first == 64 * 2 * 32 * NS
    second = timeline.start_ps[tasks(timeline, Kind.GEMM2, 1)].min()
    assert second >= timeline.visible_ps[tasks(timeline, Kind.ACTIVATION, 1)].max() + GAP
    # Fewer than four experts have 64 blocks each.
    few = run(to_rank(1), machine)
    started = busy(few, Kind.ACTIVATION, 0)
    assert started == 64 * NS


@pytest.mark.extended
@pytest.mark.parametrize("launch", ["eager", "graph"])
def test_it_is_ahead_with_few_tokens_and_behind_with_many(launch: Any) -> None:
    def times(tokens: int) -> list[float]:
        ids = small_layers.draw(8 * tokens, 64, 8)
        layer = small_layers.work(ids, 8, 64, shape=ExpertShape(7168, 512), precision="fp8")
        return [
            replay_layer(layer, system, SCHEMES[name], launch).measures.makespan_us for name in ("deepep-ll", "deepep")
        ]

    system = hwmodel.load("dgx-h100")
    few, many = times(64), times(1024)
    assert few[0] < 0.7 * few[1]
    assert many[0] > 1.03 * many[1]


REFUSED: dict[str, tuple[LayerWork, str]] = {
    "tokens": (to_rank(1, tokens=1025), "1024 tokens per rank at most, a rank has 1025"),
    "experts per token": (
        small_layers.work(small_layers.draw(4, 16, 12), 2, 16),
        "11 experts per token at most, not 12",
    ),
    "rows": (
        small_layers.work(small_layers.draw(4, 4, 1), 2, 4, shape=ExpertShape(8193, 16)),
        "8192 values per row at most, not 8193",
    ),
    "fp32": (to_rank(1, precision="fp32"), "GEMMs are bf16 or fp8, not fp32"),
    "backward": (to_rank(1, is_backward=True), "no backward pass"),
}


@every(("layer", "said"), REFUSED.values(), ids=REFUSED)
def test_what_the_kernels_have_no_code_for_is_refused_in_one_line(layer: LayerWork, said: str) -> None:
    scheme = SCHEMES["deepep-ll"]
    assert said in scheme.refuses(layer)
    with pytest.raises(LayerRefusedError, match=said):
        build_layer(layer, round_machine(), scheme)


def test_more_experts_than_blocks_can_serve_are_refused(machine: hwmodel.System) -> None:
    layer = small_layers.work(small_layers.draw(2, 1402, 1), 2, 1402)
    with pytest.raises(UserError, match="1402 experts on 100 SMs; its kernels serve 14 on each"):
        run(layer, machine)
