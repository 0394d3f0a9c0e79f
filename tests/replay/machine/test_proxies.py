"""Threads of the host that post a GPU's writes, on round numbers, added up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from loops import every
from machine_alone import ints
from round_machine import NS, ROUND
from round_nodes import CARDS

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.arrays import Ints, Ranks
from replay.model.machine.host import FREE_HOSTS
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.proxies import Proxies, locked_adds

NETWORK = {
    **CARDS,
    "host.locked_add_ns": 1000.0,
}
COMMAND = 100
TOLD = 4000  # overheads.poll_pinned_us
WAY = 3 * 500 + 20 + 1000 + 20 + 500  # a packet: doorbell and data, out, across, in, to the GPU
BACK = 1000 + 500  # the completion


def make(**given: Any) -> Machine:
    return Machine(hwmodel.load("dgx-h100-x2", {**ROUND, **NETWORK}), GraphBuilder(KIND_NAMES), 16, **given)


def proxies(machine: Machine, in_flight: int = 100, command: int = COMMAND) -> Proxies:
    return Proxies("library", 2, 4, in_flight, machine.costs.ns(command))


def arrivals_ns(machine: Machine, by: Proxies, src: Ranks, queue: Ints, nbytes: int = 1000) -> list[float]:
    """Arrivals of rows at the GPU of the same index, all ready at 0."""
    ready = machine.mark(machine.ranks)[src]
    arrived = by.write(machine, DISPATCH, (src, (src + 8) % 16), queue, np.ones_like(src), (nbytes, 0), ready)
    return ns(schedule(machine.graph.build()), arrived)


def ns(timeline: Timeline, tasks: Ints) -> list[float]:
    return [ps / NS for ps in timeline.visible_ps[tasks].tolist()]


def test_a_write_waits_for_its_command_and_the_host_s_doorbell() -> None:
    machine = make()
    assert arrivals_ns(machine, proxies(machine), ints(0), ints(0)) == [TOLD + COMMAND + WAY]


@every(("in_flight", "at_once"), [(1, 1), (2, 2), (3, 3), (100, 10)])
def test_writes_in_flight_bound_a_queue_by_the_round_trip(in_flight: int, at_once: int) -> None:
    """So many of them, in the time of a command, the way there and the completion's way back."""
    machine = make()
    took = arrivals_ns(machine, proxies(machine, in_flight), np.zeros(10, np.int64), np.zeros(10, np.int64))
    round_trip = COMMAND + WAY + BACK
    first = TOLD + COMMAND + WAY
    assert took == [first + turn // at_once * round_trip + turn % at_once * COMMAND for turn in range(10)]


def test_a_queue_that_waits_for_completions_holds_up_no_other() -> None:
    machine = make()
    # Queues 0 and 2 are of one thread, queue 1 of the other.
    took = arrivals_ns(machine, proxies(machine, 1), np.zeros(4, np.int64), ints(0, 0, 2, 1))
    first = TOLD + COMMAND + WAY
    assert took == [first, first + COMMAND + WAY + BACK, first + COMMAND, first + 20]  # the last behind one on the card


def test_a_thread_takes_one_command_after_the_other() -> None:
    machine = make()
    many = np.arange(8)
    took = arrivals_ns(machine, proxies(machine, command=1000), np.zeros(8, np.int64), 2 * (many % 2))
    assert took == [TOLD + 1000 + WAY + 1000 * turn for turn in range(8)]
    machine = make()
    ranks = arrivals_ns(machine, proxies(machine, command=1000), ints(0, 1, 9), ints(0, 0, 0))
    assert ranks == [TOLD + 1000 + WAY] * 3


def test_few_bytes_are_commands_like_others() -> None:
    machine = make()
    ready = machine.mark(ints(0, 0, 0))
    ends = ints(0, 0, 0), ints(8, 8, 8)
    ways = Kind.NOTIFY_UP, Kind.NOTIFY_DOWN
    told = proxies(machine, 2).tell(machine, DISPATCH, ways, ends, ints(0, 0, 0), 8, ready)
    took = ns(schedule(machine.graph.build()), told)
    assert took[1] - took[0] == COMMAND
    assert took[2] - took[0] == COMMAND + (took[0] - TOLD - COMMAND) + BACK


def test_adds_that_lock_the_bus_take_turns_in_a_node() -> None:
    machine = make()
    rank = ints(0, 3, 7, 8, 12)
    added = locked_adds(machine, DISPATCH, rank, machine.mark(rank))
    assert ns(schedule(machine.graph.build()), added) == [1000, 2000, 3000, 1000, 2000]


def test_hosts_of_a_node_stand_still_while_its_bus_is_locked() -> None:
    """A lock stops a thread at once, also where it has work: both adds go before its second work."""
    machine = make()
    rank = ints(3, 3)
    locked_adds(machine, DISPATCH, rank, machine.mark(rank))
    launched = machine.host.work(Kind.HOST, machine.costs.ns(1500), machine.mark(machine.ranks))
    second = machine.host.work(Kind.HOST, machine.costs.ns(10), launched)
    timeline = schedule(machine.graph.build())
    assert ns(timeline, second) == [1500 + 2 * 1000 + 10] * 8 + [1510] * 8


def test_hosts_that_cost_nothing_do_not_stand_still() -> None:
    machine = make(launch="eager", lead=FREE_HOSTS)
    locked_adds(machine, DISPATCH, ints(3), machine.mark(ints(3)))
    told = machine.host.poll(DISPATCH, machine.delay(Kind.MARK, machine.costs.ns(1500), machine.mark(machine.ranks)))
    assert ns(schedule(machine.graph.build()), told) == [1500] * 16
