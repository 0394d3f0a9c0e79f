"""NCCL's grouped sends and receives: what a pair gets, and times that can be added up by hand."""

from __future__ import annotations

import numpy as np
from loops import every
from machine_alone import machine_of
from packets import write_packets
from round_machine import NS, US, round_machine

from replay.engine import Timeline, schedule
from replay.model.collectives.pair_rules import PairRules
from replay.model.collectives.point_to_point import ExchangeTasks, all_to_all
from replay.model.machine.kinds import DISPATCH, Kind

UP, DOWN, VISIBLE, POLL = 150 * NS, 100 * NS, 30 * NS, 5 * NS
ACKNOWLEDGED, FLAG = UP + DOWN, UP + DOWN + VISIBLE + POLL
LL_START, SIMPLE_START = 2 * US, 4 * US
PUSH, LL_PASS, COPY = 10, 100, 40  # ps a byte: 100, 10 and 25 GB/s
KIB, MIB = 1 << 10, 1 << 20


@every(
    ("nbytes", "num_ranks", "channels", "is_ll"),
    [
        (1, 8, 1, True),
        (16 * KIB, 8, 1, True),
        (16 * KIB + 1, 8, 1, False),
        (64 * KIB, 8, 1, False),
        (64 * KIB + 1, 8, 2, False),
        (256 * KIB, 8, 4, False),
        (64 * MIB, 8, 4, False),  # 16 MiB a channel
        (64 * MIB + 1, 8, 8, False),
        (2000 * MIB, 8, 32, False),  # there are no more
        (1 * MIB, 2, 16, False),
        (1 * MIB, 64, 1, False),
    ],
)
def test_a_pair_gets_channels_and_protocol_by_its_bytes(
    nbytes: int, num_ranks: int, channels: int, is_ll: bool
) -> None:
    found, ll = PairRules(32).of_pairs(np.array([nbytes]), num_ranks)
    assert (found.tolist(), ll.tolist()) == ([channels], [is_ll])


def test_pairs_between_nodes_have_other_chunks() -> None:
    sizes = np.array([64 * KIB, 64 * KIB + 1, 300 * KIB])
    found, _ = PairRules(32).of_pairs(sizes, 16, is_one_node=False)
    assert found.tolist() == [1, 2, 2]


def test_peers_of_eight_ranks_share_no_channel() -> None:
    first = PairRules(32).first_channel(np.arange(8))
    assert first.tolist() == [0, 16, 8, 24, 4, 20, 12, 28]
    assert PairRules(20).num_channels == 32
    assert PairRules(1).first_channel(np.arange(3)).tolist() == [0, 0, 0]


def run(sizes: list[list[int]], rules: PairRules | None = None) -> tuple[Timeline, ExchangeTasks]:
    machine = machine_of(round_machine(), len(sizes))
    rules = rules or PairRules(32)
    channels = machine.sms.channels("nccl", rules.num_channels)
    exchanged = all_to_all(
        machine,
        DISPATCH,
        channels,
        rules,
        np.array(sizes),
        machine.mark(machine.ranks),
        payload=True,
    )
    return schedule(machine.graph.build()), exchanged


def test_a_short_message_has_a_flag_beside_every_four_bytes() -> None:
    timeline, exchanged = run([[0, 8192], [0, 0]])
    wire = write_packets(2 * 8192)
    known = LL_START + 8192 * LL_PASS + 2 * wire + UP + DOWN + VISIBLE + POLL
    written = -(-2 * 8192 // 5)  # read out of the buffer and written, at five bytes a picosecond
    assert timeline.visible_ps[exchanged.done].tolist() == [
        LL_START + 8192 * LL_PASS,
        known + written,
    ]


def test_a_long_message_is_fenced_told_and_copied() -> None:
    # Two channels: 53,248 and 46,752 bytes. The smaller one is on its way before.
    timeline, exchanged = run([[0, 100_000], [0, 0]])
    part = 53_248
    known = SIMPLE_START + part * PUSH + 2 * write_packets(part) + UP + DOWN + VISIBLE + ACKNOWLEDGED + FLAG
    assert timeline.visible_ps[exchanged.done][1] == known + part * COPY
    assert (timeline.graph.kind == Kind.DISPATCH_UP).sum() == 2


def test_a_fifo_has_room_for_its_slots() -> None:
    chunk = 4096
    rules = PairRules(1, chunk_bytes=chunk, slots=2, ll_bytes=0)
    timeline, _ = run([[0, 5 * chunk], [0, 0]], rules)
    sends = np.flatnonzero(timeline.graph.kind == Kind.DISPATCH_SEND)
    copies = np.flatnonzero(timeline.graph.kind == Kind.DISPATCH_RECEIVE)
    assert len(sends) == len(copies) == 5
    assert timeline.start_ps[sends[1]] == timeline.end_ps[sends[0]]
    room = timeline.end_ps[copies[:3]] + FLAG
    assert timeline.start_ps[sends[2:]].tolist() == room.tolist()


def test_the_own_share_is_copied_in_memory_beside_the_others() -> None:
    timeline, exchanged = run([[64 * KIB, 0], [0, 0]])
    assert not len(timeline.graph.wire_bytes.nonzero()[0])
    copied = LL_START + 64 * KIB * 20  # a block that does nothing else copies at 50 GB/s
    assert timeline.visible_ps[exchanged.done].tolist() == [copied, 0]


def test_an_sm_sends_and_receives_in_turn() -> None:
    # One channel, two ranks that send each other two chunks: 2 x 256 KiB.
    rules = PairRules(1, chunk_bytes=128 * KIB)
    timeline, _ = run([[0, 256 * KIB], [256 * KIB, 0]], rules)
    graph = timeline.graph
    on_sm = np.array(graph.resources.groups)[graph.resource] == "nccl"
    used = graph.duration_ps * (on_sm & (graph.resource >= 0)) * (graph.rank == 0)
    assert used.sum() == 256 * KIB * (PUSH + COPY)
    assert len({int(resource) for resource in graph.resource[used > 0]}) == 1


def test_bytes_leave_in_the_message_that_holds_them() -> None:
    timeline, exchanged = run([[9, 300 * KIB, 5], [0, 0, 7], [0, 0, 0]])
    ends = np.array([0, 300 * KIB - 1])
    tasks = exchanged.leaves(np.zeros(2, np.int64), np.ones(2, np.int64), ends)
    graph = timeline.graph
    assert (graph.kind[tasks] == Kind.DISPATCH_SEND).all() and tasks[0] != tasks[1]
    assert graph.duration_ps[tasks].tolist() == [60 * KIB * PUSH] * 2  # the first of five, the last
    own = exchanged.leaves(np.array([0]), np.array([0]), np.array([3]))
    assert timeline.visible_ps[own].tolist() == [LL_START]


def test_nobody_is_everybodys_first_target() -> None:
    timeline, _ = run([[0 if src == dst else 64 * KIB for dst in range(4)] for src in range(4)])
    graph = timeline.graph
    downs = np.flatnonzero(graph.kind == Kind.DISPATCH_DOWN)
    first = downs[np.argsort(timeline.start_ps[downs], kind="stable")[:4]]
    assert sorted(graph.rank[first].tolist()) == [0, 1, 2, 3]
