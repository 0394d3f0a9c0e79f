"""Every schedule: each pass once and in its place, no deadlock, and its published bubble."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import product, starmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every
from slow_pipeline import Deadlock, run

from replay.errors import UserError
from replay.experiments.train.schedules.base import Op, ScheduleShape, Slot
from replay.experiments.train.schedules.registry import SCHEDULES, find
from replay.experiments.train.schedules.straight import OneFOneB

NAMES = pytest.mark.parametrize("name", SCHEDULES)
TIMES = {"F": 10, "B": 21, "I": 11, "W": 10, "FB": 27}


@cache
def shapes(name: str) -> list[ScheduleShape]:
    """Small shapes that a schedule can be made for."""
    every = product((1, 2, 3, 4, 6), (1, 2, 3), range(1, 17))
    return [shape for shape in starmap(ScheduleShape, every) if not SCHEDULES[name].refuses(shape)]


@st.composite
def passes(draw: st.DrawFn) -> dict[str, int]:
    """Times of passes; a pair takes no less than its longer, no more than both."""
    forward, inputs, weights = (draw(st.integers(1, 30)) for _ in range(3))
    both = forward + inputs + weights
    pair = draw(st.integers(max(forward, inputs + weights), both))
    return {"F": forward, "I": inputs, "W": weights, "B": inputs + weights, "FB": pair}


@NAMES
@settings(max_examples=15)
@given(data=st.data())
def test_every_pass_is_made_once_and_on_its_stage(name: str, data: st.DataObject) -> None:
    schedule = SCHEDULES[name]
    shape = data.draw(st.sampled_from(shapes(name)))
    seen: Counter[Op] = Counter()
    for stage, slots in enumerate(schedule.order(shape)):
        for slot in slots:
            assert "".join(op.kind for op in slot) in TIMES
            for op in slot:
                assert schedule.stage_of(shape, op.chunk, op.micro_batch) == stage
                seen.update(op._replace(kind=kind) for kind in ("IW" if op.kind == "B" else op.kind))
                assert op.kind not in "IW" or schedule.splits_backward
    each = [(c, m) for c in range(shape.stages * shape.chunks) for m in range(shape.micro_batches)]
    assert seen == {Op(kind, c, m): 1 for kind in ("F", "I", "W") for c, m in each}


@NAMES
@settings(max_examples=15)
@given(data=st.data(), times=passes(), hop=st.integers(0, 20))
def test_no_deadlock_and_no_less_than_the_work(name: str, data: st.DataObject, times: dict[str, int], hop: int) -> None:
    schedule = SCHEDULES[name]
    shape = data.draw(st.sampled_from(shapes(name)))
    ran = run(schedule, shape, times, hop)
    one_there_and_back = shape.stages * shape.chunks * (times["F"] + times["I"])
    assert max(ran.finishes) >= max(*ran.busy, one_there_and_back)


@NAMES
@settings(max_examples=15)
@given(data=st.data())
def test_what_is_kept_is_what_ran_ahead(name: str, data: st.DataObject) -> None:
    """Counted over time: made when a forward pass starts, freed when B or W ends."""
    schedule = SCHEDULES[name]
    shape = data.draw(st.sampled_from(shapes(name)))
    ran = run(schedule, shape, TIMES)
    for stage, slots in enumerate(schedule.order(shape)):
        changes = []
        for slot in slots:
            time = TIMES["".join(op.kind for op in slot)]
            for op in slot:
                end = ran.ends[op]
                changes += [(end - time, 1, 1)] if op.kind == "F" else []
                changes += [(end, 0, -1)] if op.kind in "BW" else []
        kept = [sum(change for _, _, change in sorted(changes)[: n + 1]) for n in range(len(changes))]
        assert schedule.retention(shape)[stage].in_flight == max(kept)


@settings(max_examples=12)
@given(stages=st.integers(1, 6), rounds=st.integers(1, 3), chunks=st.integers(2, 4))
def test_memory_as_published(stages: int, rounds: int, chunks: int) -> None:
    def kept(name: str, shape: ScheduleShape) -> list[float]:
        return [stage.in_flight for stage in SCHEDULES[name].retention(shape)]

    one = ScheduleShape(stages, 1, rounds * stages)
    assert kept("gpipe", one) == [rounds * stages] * stages
    assert kept("1f1b", one) == [stages - stage for stage in range(stages)]
    assert kept("zb-h1", one) == [stages] * stages
    two = ScheduleShape(stages, 2, 2 * rounds * stages)
    assert kept("zb-v", two) == [2 * stages] * stages  # halves of a stage: as 1f1b's first stage
    both = ScheduleShape(2 * stages, 1, 4 * rounds * stages)
    assert kept("dualpipe", both) == [2 * stages + 1] * (2 * stages)
    if stages > 1:
        many = ScheduleShape(stages, chunks, rounds * stages)
        ahead = [(chunks - 1) * stages + 2 * (stages - 1 - stage) for stage in range(stages)]
        total = chunks * rounds * stages
        assert kept("interleaved", many) == [min(n + 1, total) for n in ahead]
        assert kept("megatron-overlap", many) == [min(n + 2, total) for n in ahead]


FEW = settings(max_examples=12)


@FEW
@given(times=passes(), stages=st.integers(1, 6), rounds=st.integers(1, 3))
def test_bubble_of_one_chunk_a_stage(times: dict[str, int], stages: int, rounds: int) -> None:
    """(p - 1)(F + B), whether or not passes take turns (arXiv 2104.04473, section 2.2.1)."""
    shape = ScheduleShape(stages, 1, rounds * stages)
    for name in ("gpipe", "1f1b"):
        assert run(SCHEDULES[name], shape, times).bubble == (stages - 1) * (times["F"] + times["B"])


@FEW
@given(times=passes(), data=st.data())
def test_bubble_of_many_chunks_a_stage(times: dict[str, int], data: st.DataObject) -> None:
    """(p - 1)(F + B) / v, with F and B of a whole stage: v chunks (arXiv 2104.04473, 2.2.2)."""
    stages, chunks, rounds = (data.draw(st.integers(*ends)) for ends in ((2, 5), (2, 4), (1, 3)))
    shape = ScheduleShape(stages, chunks, rounds * stages)
    ran = run(SCHEDULES["interleaved"], shape, times)
    whole_stage = chunks * (times["F"] + times["B"])
    assert ran.bubble * chunks == (stages - 1) * whole_stage


@FEW
@given(times=passes(), data=st.data())
def test_time_of_paired_turns(times: dict[str, int], data: st.DataObject) -> None:
    """All turns as pairs, (p - 1)(F + B) to fill the pipeline, and (v - 1)p + 1 turns unpaired.

    Derived here: stage 0 makes (v - 1)p + 2(p - 1) + 1 forward passes, and as many backward passes,
    alone; and waits p - 1 times for a pair of the next stage in place of its own F and B.
    """
    stages, chunks, rounds = (data.draw(st.integers(*ends)) for ends in ((2, 5), (2, 4), (3, 5)))
    shape = ScheduleShape(stages, chunks, rounds * stages)
    alone, pair = times["F"] + times["B"], times["FB"]
    fill, unpaired = (stages - 1) * alone, ((chunks - 1) * stages + 1) * (alone - pair)
    ran = run(SCHEDULES["megatron-overlap"], shape, times)
    assert max(ran.finishes) == chunks * shape.micro_batches * pair + fill + unpaired


def test_a_single_stage_pairs_all_but_the_first_and_the_last_pass() -> None:
    """The example of Megatron-LM's combined_1f1b.py: five phases of four micro-batches."""
    slots = SCHEDULES["megatron-overlap"].order(ScheduleShape(1, 1, 4))[0]
    turns: list[Slot] = [(Op("F", 0, m + 1), Op("B", 0, m)) for m in range(3)]
    assert slots == [(Op("F", 0, 0),), *turns, (Op("B", 0, 3),)]


@FEW
@given(times=passes(), stages=st.integers(1, 6), rounds=st.integers(2, 3))
def test_bubble_of_zb_h1(times: dict[str, int], stages: int, rounds: int) -> None:
    """(p - 1)(F + I - W), written F + B - 2W with B = I + W (arXiv 2401.10241, table 2).

    The paper's passes are measured ones, with W the shortest. Where W is longer than F or I, a
    stage waits for the longer of both instead: filling the pipeline takes that long.
    """
    forward, inputs, weights = times["F"], times["I"], times["W"]
    bubble = run(SCHEDULES["zb-h1"], ScheduleShape(stages, 1, rounds * stages), times).bubble
    assert bubble == (stages - 1) * max(forward + inputs - weights, forward, inputs)


@FEW
@given(each=st.integers(1, 30), stages=st.integers(1, 6), more=st.integers(0, 6))
def test_zb_v_never_waits_where_passes_are_equal(each: int, stages: int, more: int) -> None:
    """Zero between a stage's first and last pass (arXiv 2401.10241, section 6).

    Stages start and end one after another, (p - 1)F apart; who waits for all stages, as a norm of
    all gradients does, waits so long.
    """
    times = {"F": each, "I": each, "W": each}
    ran = run(SCHEDULES["zb-v"], ScheduleShape(stages, 2, 2 * stages - 1 + more), times)
    assert ran.spans == [0] * stages
    assert ran.bubble == (stages - 1) * each


@FEW
@given(times=passes(), half=st.integers(1, 4), rounds=st.integers(2, 3))
def test_bubble_of_dualpipe(times: dict[str, int], half: int, rounds: int) -> None:
    """(p / 2 - 1)(F&B + B - 3W) (arXiv 2412.19437, table 2), on the stages that pair the most.

    It assumes F = I, and W no longer. Stages at the ends pair p/2 - 2 passes fewer than those in
    the middle, so they work longer and idle less.
    """
    forward, weights = times["F"], min(times["F"], times["W"])
    backward = forward + weights
    pair = min(max(times["FB"], backward), forward + backward)
    exact = {"F": forward, "I": forward, "W": weights, "B": backward, "FB": pair}
    ran = run(SCHEDULES["dualpipe"], ScheduleShape(2 * half, 1, 2 * rounds * half), exact)
    bubble = max(ran.finishes) - min(ran.busy)
    assert bubble == (half - 1) * (pair + backward - 3 * weights)
    assert max(ran.busy) - min(ran.busy) == max(half - 2, 0) * (forward + backward - pair)


def test_steps_of_dualpipe() -> None:
    """Stage 1 of 8 with 20 micro-batches, as its published picture shows it, in words."""
    slots = SCHEDULES["dualpipe"].order(ScheduleShape(8, 1, 20))[1]
    near, far = 1, 6
    told = " ".join("&".join(op.kind + {near: "0", far: "1"}[op.chunk] for op in slot) for slot in slots)
    steps = [
        ["F0"] * 4,
        ["F0 F1"] * 2,
        ["I1 W1 F1"] * 2,
        ["F0&B1 F1&B0"] * 4,
        ["B1 F1&B0"] * 2,
        ["B1 B0", "I1 I0"],
        ["W1 I0", "W0 I0"],
        ["W0 W0"],
    ]
    assert told == " ".join(" ".join(step) for step in steps)


def test_turns_of_interleaved() -> None:
    """As in Megatron-LM's example of a table, in groups of as many micro-batches as stages."""
    slots = SCHEDULES["interleaved"].order(ScheduleShape(3, 2, 6))[0]
    ahead = [op for slot in slots for op in slot if op.kind == "F"]
    assert [op.micro_batch for op in ahead] == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert [op.chunk // 3 for op in ahead] == [0, 0, 0, 1, 1, 1] * 2


@every(
    ("name", "shape", "told"),
    [
        ("1f1b", ScheduleShape(4, 2, 8), "one chunk per stage, not 2"),
        ("zb-h1", ScheduleShape(4, 2, 8), "one chunk per stage, not 2"),
        ("interleaved", ScheduleShape(4, 1, 8), "at least 2 chunks each"),
        ("interleaved", ScheduleShape(1, 2, 8), "at least 2 stages"),
        (
            "interleaved",
            ScheduleShape(4, 2, 10),
            "4 .* in a row over a chunk; .* multiples of that, not 10",
        ),
        ("interleaved", ScheduleShape(4, 2, 3), "multiples of that, not 3"),
        ("megatron-overlap", ScheduleShape(1, 2, 8), "one chunk .* if it has one stage"),
        ("megatron-overlap", ScheduleShape(2, 1, 8), "at least 2 chunks each"),
        ("zb-v", ScheduleShape(4, 1, 8), "two chunks per stage"),
        ("zb-v", ScheduleShape(4, 2, 6), "at least 7 micro-batches"),
        ("dualpipe", ScheduleShape(3, 1, 8), "even number of stages"),
        ("dualpipe", ScheduleShape(4, 1, 6), "at least 8 for 4 stages"),
        ("dualpipe", ScheduleShape(4, 1, 9), "even number of micro-batches"),
        ("dualpipe", ScheduleShape(4, 2, 8), "one chunk per stage and direction"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, shape: ScheduleShape, told: str) -> None:
    assert re.search(told, SCHEDULES[name].refuses(shape))


def test_names() -> None:
    assert find("1f1b") is SCHEDULES["1f1b"]
    with pytest.raises(UserError, match="dualpipe"):
        find("dualpip")


def test_the_slow_pipeline_finds_a_deadlock() -> None:
    class Backwards(OneFOneB):
        def order(self, shape: ScheduleShape) -> list[list[Slot]]:
            return [list(reversed(slots)) for slots in super().order(shape)]

    with pytest.raises(Deadlock):
        run(Backwards(), ScheduleShape(2, 1, 2), TIMES)
