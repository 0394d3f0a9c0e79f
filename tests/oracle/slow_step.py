"""A training step in plain words: every GPU's clock is moved on, pass by pass; no graph, no engine.

Messages have a latency and take no time at a port.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from replay.experiments.train.schedules.base import Op, Schedule, ScheduleShape, Slot
from replay.steps.times import PassTime, PassTimes, StepParts


class Step(NamedTuple):
    """When each GPU of each stage ended its last pass, and what it waited for its neighbours."""

    ends: list[list[int]]
    peers: list[list[int]]


def run(schedule: Schedule, shape: ScheduleShape, times: StepParts, chunks: Sequence[range]) -> Step:
    ranks = range(times.num_ranks)
    orders = schedule.order(shape)
    clocks = [[0 for _ in ranks] for _ in range(shape.stages)]
    peers = [[0 for _ in ranks] for _ in range(shape.stages)]
    done: dict[Op, list[int]] = {}
    turn = [0] * shape.stages

    def stage_of(op: Op) -> int:
        return schedule.stage_of(shape, op.chunk, op.micro_batch)

    def needs(op: Op) -> list[Op]:
        kind, chunk, m = op
        if kind == "F":
            return [Op("F", chunk - 1, m)] if chunk > 0 else []
        if kind == "W":
            return [Op("I", chunk, m)]
        if chunk == len(chunks) - 1:
            return [Op("F", chunk, m)]
        above = [Op(kind, chunk + 1, m) for kind in ("B", "I")]
        return [Op("F", chunk, m), next((one for one in above if one in done), above[0])]

    def carry_out(stage: int, timed: PassTime) -> None:
        clock = clocks[stage]
        for rank in ranks:
            clock[rank] += int(timed.own[rank])
        if timed.meets:
            last = max(clock)
            for rank in ranks:
                peers[stage][rank] += last - clock[rank]
                clock[rank] = last + int(timed.met[rank])

    def part(op: Op, number: int) -> PassTimes:
        if number == -1:
            return times.embedding
        if number == len(times.layers[0]):
            return times.head
        return times.layers[op.micro_batch % len(times.layers)][number]

    def parts(op: Op) -> tuple[list[int], list[int], list[int]]:
        before = [-1] if op.chunk == 0 else []
        behind = [len(times.layers[0])] if op.chunk == len(chunks) - 1 else []
        layers = list(chunks[op.chunk])
        return (before, layers, behind) if op.kind == "F" else (behind, layers[::-1], before)

    def alone(stage: int, op: Op, number: int) -> None:
        has = part(op, number)
        if op.kind == "F":
            carry_out(stage, has.forward)
        elif op.kind == "B" or (op.kind == "I" and has.inputs is None):
            carry_out(stage, has.backward)
        elif op.kind == "I" and has.inputs is not None:
            carry_out(stage, has.inputs)
        elif has.weights is not None:
            carry_out(stage, has.weights)

    def work(stage: int, slot: Slot) -> None:
        if [op.kind for op in slot] != ["F", "B"]:
            for op in slot:
                for number in chain(*parts(op)):
                    alone(stage, op, number)
            return
        one, other = slot
        before, ahead, behind = parts(one)
        first, back, last = parts(other)
        joint = [
            part(one, a).beside if part(other, b).beside is not None else None
            for a, b in zip(ahead, back, strict=False)
        ]
        if not any(joint):
            work(stage, (one,))
            work(stage, (other,))
            return
        for op, numbers in ((one, before), (other, first)):
            for number in numbers:
                alone(stage, op, number)
        for place in range(max(len(ahead), len(back))):
            pair = joint[place] if place < len(joint) else None
            if pair is not None:
                carry_out(stage, pair)
                continue
            if place < len(ahead):
                alone(stage, one, ahead[place])
            if place < len(back):
                alone(stage, other, back[place])
        for op, numbers in ((one, behind), (other, last)):
            for number in numbers:
                alone(stage, op, number)

    while any(turn[stage] < len(orders[stage]) for stage in range(shape.stages)):
        moved = False
        for stage in range(shape.stages):
            if turn[stage] == len(orders[stage]):
                continue
            slot = orders[stage][turn[stage]]
            before = [one for op in slot for one in needs(op) if one not in slot]
            if any(one not in done for one in before):
                continue
            for one in before:
                lag = times.hop.latency_ps if stage_of(one) != stage else 0
                for rank in ranks:
                    clocks[stage][rank] = max(clocks[stage][rank], done[one][rank] + lag)
            work(stage, slot)
            for op in slot:
                done[op] = list(clocks[stage])
            turn[stage] += 1
            moved = True
        assert moved, "every stage waits"
    return Step(clocks, peers)
