"""Steps composed of the times of their parts: closed forms, a slow twin, and who pays for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

from replay.chains.jitter import Jitter
from replay.errors import UserError
from replay.experiments.train.composition import SPENT, StepComposition, compose
from replay.experiments.train.schedules.base import Op, Schedule, ScheduleShape, Slot
from replay.experiments.train.schedules.registry import SCHEDULES
from replay.measure.activity import Activity
from replay.model.arrays import Picoseconds
from replay.steps.times import PassTime, PassTimes, StageHop, StepParts
from tests.oracle import slow_pipeline, slow_step

F, B, HEAD, RANKS = 30, 70, 11, 3
NO_HOP = StageHop(0, 0)


def timed(own: Sequence[int], met: Sequence[int], before: str = "attention") -> PassTime:
    """A pass that computes, then exchanges."""
    first, second = np.array(own, np.int64), np.array(met, np.int64)
    activity = Activity(first, second, 0 * first)
    return PassTime(first, second, {before: first, "exchange": second}, activity)  # type: ignore[dict-item]  # a word


def even(own: int, met: int = 0, before: str = "attention", ranks: int = RANKS) -> PassTime:
    return timed([own] * ranks, [met] * ranks, before)


def layer(forward: int = F, backward: int = B) -> PassTimes:
    """Alike on all GPUs; a forward pass is free beside a backward pass."""
    half = backward // 2
    return PassTimes(
        forward=even(forward - 10, 10),
        backward=even(backward - 10, 10),
        inputs=even(half - 10, 10),
        weights=even(backward - half),
        beside=even(backward - 10, 10),
    )


def nothing() -> PassTimes:
    return PassTimes(even(0, 0, "head"), even(0, 0, "head"))


def times(layers: int, hop: StageHop = NO_HOP, head: int = 0, **others: object) -> StepParts:
    return StepParts(
        num_ranks=RANKS,
        layers=[[layer() for _ in range(layers)]],
        embedding=nothing(),
        head=PassTimes(even(head, 0, "head"), even(2 * head, 0, "head")),
        hop=hop,
        **others,  # type: ignore[arg-type]  # other fields of it
    )


def chunks(shape: ScheduleShape, each: int = 1) -> list[range]:
    return [range(each * chunk, each * (chunk + 1)) for chunk in range(shape.stages * shape.chunks)]


def shapes(schedule: Schedule) -> ScheduleShape:
    """A small shape that a schedule accepts."""
    for count in (1, 2):
        for batches in (8, 9):
            shape = ScheduleShape(4, count, batches)
            if not schedule.refuses(shape):
                return shape
    raise AssertionError(schedule.name)


def adds_up(made: StepComposition) -> None:
    assert set(made.spent) == set(SPENT)
    assert all((of >= 0).all() for of in made.spent.values())
    assert (sum(made.spent.values()) == made.step_ps).all()
    activity, parts = made.activity, (made.activity.computing, made.activity.communicating)
    assert (activity.active <= made.step_ps).all()
    assert (activity.both >= 0).all()
    assert all((activity.both <= one).all() for one in parts)


# ---- closed forms --------------------------------------------------------------------------------


@every(("stages", "batches"), [(1, 5), (4, 4), (4, 9), (3, 2)])
def test_one_forward_one_backward(stages: int, batches: int) -> None:
    """(m + p - 1) passes of both kinds, of which p - 1 are a bubble (arXiv 2104.04473)."""
    shape = ScheduleShape(stages, 1, batches)
    made = compose(SCHEDULES["1f1b"], shape, times(2 * stages), chunks(shape, 2))
    assert made.step_ps == (batches + stages - 1) * 2 * (F + B)
    assert (made.spent["pipeline"] == (stages - 1) * 2 * (F + B)).all()
    adds_up(made)


def test_messages_hold_up_the_first_micro_batch_at_each_stage_and_gradients_likewise() -> None:
    shape = ScheduleShape(4, 1, 1)
    plain = compose(SCHEDULES["1f1b"], shape, times(4), chunks(shape))
    late = compose(SCHEDULES["1f1b"], shape, times(4, StageHop(5, 2)), chunks(shape))
    assert late.step_ps == plain.step_ps + 2 * 3 * (5 + 2)
    assert (late.spent["pipeline"] - plain.spent["pipeline"] == 2 * 3 * 7).all()
    adds_up(late)


class TwoMessages(Schedule):
    """A chunk sends two micro-batches in turn, which the next stage takes both together."""

    name = summary = source = "two messages"

    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        return chunk

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        batches = range(shape.micro_batches)
        if stage == 0:
            return [*((Op("F", 0, m),) for m in batches), *((Op("B", 0, m),) for m in batches)]
        return [tuple(Op("F", 1, m) for m in batches), tuple(Op("B", 1, m) for m in batches)]


def test_a_gpu_sends_one_message_after_the_other() -> None:
    shape, long = ScheduleShape(2, 1, 2), 1000
    made = compose(TwoMessages(), shape, times(2, StageHop(long, 7)), chunks(shape))
    there = F + 2 * long + 7  # the second waits for the first at the port
    assert made.step_ps == there + 2 * (F + B) + 2 * long + 7 + B
    adds_up(made)


class BothWays(Schedule):
    """Three stages; the one in the middle makes rows and gradients at the same time."""

    name = summary = source = "both ways"

    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        return chunk

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        one, two = ((Op("F", stage, m), Op("B", stage, m)) for m in range(2))
        turns: tuple[Slot, ...] = (
            ((one[0],), (two[0],), (one[1],), (two[1],)),
            ((one[0],), (two[0], one[1]), (two[1],)),
            ((one[0],), (one[1],), (two[0],), (two[1],)),
        )[stage]
        return list(turns)


def test_rows_and_gradients_of_a_gpu_share_its_port() -> None:
    shape, long = ScheduleShape(3, 1, 2), 1000
    made = compose(BothWays(), shape, times(3, StageHop(long, 0)), chunks(shape))
    # The first micro-batch goes up, its gradients come down to the stage in the middle.
    both_made = 3 * F + B + 3 * long + B
    # Which sends them on, and then the rows of the second.
    gone = both_made + 2 * long
    assert made.step_ps == gone + F + B + 2 * (long + B)
    adds_up(made)


def test_embedding_comes_before_the_first_layer_and_the_head_behind_the_last() -> None:
    shape = ScheduleShape(2, 1, 1)
    made = compose(SCHEDULES["1f1b"], shape, times(2, head=HEAD), chunks(shape))
    assert made.step_ps == 2 * (F + B) + 3 * HEAD
    assert made.spent["head"][1].tolist() == [3 * HEAD] * RANKS
    assert not made.spent["head"][0].any()
    ahead = replace(times(2), embedding=PassTimes(even(4, 0, "head"), even(9, 0, "head")))
    made = compose(SCHEDULES["1f1b"], shape, ahead, chunks(shape))
    assert made.spent["head"][:, 0].tolist() == [13, 0]


def test_a_last_chunk_may_have_the_head_alone() -> None:
    shape = ScheduleShape(2, 1, 3)
    made = compose(SCHEDULES["1f1b"], shape, times(1, head=HEAD), [range(1), range(1, 1)])
    # The layer makes the second forward pass while the head is at work for the first.
    assert made.step_ps == 3 * (F + B) + 3 * HEAD - F
    adds_up(made)


# ---- gradients and weights -----------------------------------------------------------------------


def test_gradients_are_summed_and_weights_updated_when_a_stage_is_done() -> None:
    shape = ScheduleShape(2, 1, 4)
    sums, updates = {(0, 1): 100, (1, 2): 40}, {(0, 1): 5, (1, 2): 500}
    made = compose(SCHEDULES["1f1b"], shape, times(2, synchronise=sums, update=updates), chunks(shape))
    first = 5 * (F + B)
    second = first - B  # its last backward pass is the first stage's last input
    assert made.step_ps == max(first + 100 + 5, second + 40 + 500)
    assert made.spent["synchronise"][:, 0].tolist() == [100, 40]
    assert made.spent["optimiser"][:, 0].tolist() == [5, 500]
    adds_up(made)


def test_gradients_of_one_chunk_are_summed_while_the_stage_works_on_another() -> None:
    schedule = SCHEDULES["interleaved"]
    shape = ScheduleShape(2, 2, 2)
    sums = {(chunk, chunk + 1): B for chunk in range(4)}
    updates = {(chunk, chunk + 1): 10**chunk for chunk in range(4)}
    made = compose(schedule, shape, times(4, synchronise=sums, update=updates), chunks(shape))
    assert made.spent["synchronise"][0].tolist() == [B] * RANKS  # of the lower chunk alone
    assert made.spent["optimiser"][:, 0].tolist() == [101, 1010]  # of both
    adds_up(made)


class Copies(Schedule):
    """Both stages hold the one chunk, and take micro-batches in turn."""

    name = summary = source = "copies"
    copies = 2

    def __init__(self, first: int) -> None:
        self.first = first

    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        return (self.first + micro_batch) % 2

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        return [
            (Op(kind, 0, m),)  # type: ignore[arg-type]  # a letter of the two
            for m in range(shape.micro_batches)
            if self.stage_of(shape, 0, m) == stage
            for kind in "FB"
        ]


@every("first", [0, 1])
def test_a_chunk_that_two_stages_hold_is_summed_when_both_are_done(first: int) -> None:
    step = times(1, synchronise={(0, 1): 400})
    made = compose(Copies(first), ScheduleShape(2, 1, 3), step, [range(1)])
    assert made.step_ps == 2 * (F + B) + 400
    assert made.spent["synchronise"].tolist() == [[400] * RANKS] * 2
    waited = made.spent["pipeline"][:, 0]
    assert (waited[first], waited[1 - first]) == (0, F + B)
    adds_up(made)


# ---- waiting -------------------------------------------------------------------------------------


def test_who_comes_early_waits_for_its_neighbours() -> None:
    uneven = PassTimes(timed([10, 4, 7], [5, 5, 6]), timed([20, 20, 26], [1, 1, 1]))
    step = replace(times(1), layers=[[uneven]])
    made = compose(SCHEDULES["1f1b"], ScheduleShape(1, 1, 1), step, [range(1)])
    # Forward: 10, then 15 15 16; backward: 35 35 42, then 43 on all.
    assert made.step_ps == 43
    assert made.spent["peers"].tolist() == [[0 + 7, 6 + 7, 3 + 0]]
    assert made.spent["attention"].tolist() == [[30, 24, 33]]
    assert not made.spent["pipeline"].any()
    adds_up(made)


@every("stages", [1, 4])
def test_gpus_that_never_meet_are_pipelines_of_their_own(stages: int) -> None:
    """A dense model: each GPU waits for its like on the next stage alone, whoever is slower."""
    ahead, back, batches = np.array([30, 33, 41]), np.array([70, 61, 82]), 6
    dense = PassTimes(timed(ahead.tolist(), [0] * RANKS), timed(back.tolist(), [0] * RANKS))
    shape = ScheduleShape(stages, 1, batches)
    step = replace(times(stages), layers=[[dense] * stages])
    made = compose(SCHEDULES["1f1b"], shape, step, chunks(shape))
    ends = (batches + stages - 1) * (ahead + back)
    assert made.step_ps == ends.max()
    busy = batches * (ahead + back)
    assert (made.spent["attention"] == busy).all()
    # All of a stage have come when gradients are added up: until then the first wait for the last.
    bubble = (stages - 1) * (ahead + back)
    assert (made.spent["pipeline"][0] == bubble).all()
    assert (made.spent["peers"][0] == ends.max() - ends).all()
    adds_up(made)
    late = replace(step, hop=StageHop(0, 7))
    one = compose(SCHEDULES["1f1b"], ScheduleShape(stages, 1, 1), late, chunks(shape))
    assert one.step_ps == (stages * (ahead + back)).max() + 2 * (stages - 1) * 7


def test_micro_batches_have_the_routing_of_their_sample_in_turn() -> None:
    step = replace(times(1), layers=[[layer()], [layer(F + 9, B + 1)]])
    made = compose(SCHEDULES["1f1b"], ScheduleShape(1, 1, 5), step, [range(1)])
    assert made.step_ps == 5 * (F + B) + 2 * 10


def test_random_delays_are_a_cause_of_their_own() -> None:
    class Late(Jitter):
        def delays_ps(self, num_gpus: int, key: Sequence[int]) -> Picoseconds:
            return np.array([0, 5, 0]) * (key[0] == 1)

    shape = ScheduleShape(2, 1, 1)
    made = compose(SCHEDULES["1f1b"], shape, times(2), chunks(shape), Late(1.0, 1.0))
    assert made.step_ps == 2 * (F + B) + 2 * 5
    assert made.spent["jitter"].tolist() == [[0, 0, 0], [0, 10, 0]]
    assert made.spent["peers"].tolist() == [[0, 0, 0], [10, 0, 10]]
    adds_up(made)


# ---- kernels -------------------------------------------------------------------------------------


def test_kernels_of_parts_run_as_often_as_the_parts_are_made() -> None:
    """All of a pass is kernels here; what is left of the step is the bubble."""
    shape = ScheduleShape(3, 1, 5)
    made = compose(SCHEDULES["1f1b"], shape, times(3, head=HEAD), chunks(shape))
    every_pass, own_head = 5 * (F + B), np.array([[0], [0], [5 * 3 * HEAD]])
    assert (made.activity.active == every_pass + own_head).all()
    assert (made.activity.communicating == 5 * 2 * 10).all()
    assert not made.activity.both.any()
    assert (made.step_ps - made.activity.active == made.spent["pipeline"]).all()
    adds_up(made)


def test_who_waits_for_its_neighbours_waits_in_a_kernel() -> None:
    uneven = PassTimes(timed([10, 4, 7], [5, 5, 6]), timed([20, 20, 26], [1, 1, 1]))
    step = replace(times(1), layers=[[uneven]])
    made = compose(SCHEDULES["1f1b"], ScheduleShape(1, 1, 1), step, [range(1)])
    assert made.activity.communicating.tolist() == [[5 + 1 + 7, 5 + 1 + 13, 6 + 1 + 3]]
    assert (made.activity.active == made.step_ps).all()
    alone = compose(
        SCHEDULES["1f1b"],
        ScheduleShape(1, 1, 1),
        replace(step, layers=[[PassTimes(timed([1, 2, 4], [0] * RANKS), timed([1, 1, 1], [0] * RANKS))]]),
        [range(1)],
    )
    assert alone.activity.active.tolist() == [[2, 3, 5]]  # there is no kernel to wait in


def test_what_is_hidden_in_a_pass_is_hidden_in_the_step() -> None:
    rows = Activity(*np.array([[20] * RANKS, [25] * RANKS, [15] * RANKS]))
    both = replace(even(30), activity=rows)
    step = replace(times(1), layers=[[PassTimes(both, both)]])
    made = compose(SCHEDULES["1f1b"], ScheduleShape(1, 1, 4), step, [range(1)])
    found = made.activity
    assert (found.active == 8 * 30).all()
    assert (found.both == 8 * 15).all()


def test_sums_of_gradients_are_hidden_but_for_their_own_cause() -> None:
    """Of the upper chunk's the stage still makes the lower one's last backward pass."""
    shape = ScheduleShape(2, 2, 2)
    sums = {(chunk, chunk + 1): B for chunk in range(4)}
    updates = {(chunk, chunk + 1): 50 for chunk in range(4)}
    handed = dict.fromkeys(updates, 20)
    step = times(4, synchronise=sums, update=updates, hand_out=handed)
    made = compose(SCHEDULES["interleaved"], shape, step, chunks(shape))
    passes = 4 * 2 * 10  # exchanges of two chunks and micro-batches, both ways
    found = made.activity
    assert (found.both + made.spent["synchronise"] == 2 * B).all()
    assert (found.communicating == passes + 2 * B + 2 * 20).all()
    assert (found.computing == 4 * (F + B) - passes + 2 * 30).all()
    adds_up(made)


def test_no_more_is_hidden_than_computes() -> None:
    """Beside rows that travel, sums hide nothing."""
    none = np.zeros(RANKS, np.int64)
    rows = replace(even(40), activity=Activity(none, none + 40, none))
    step = times(4, synchronise={(chunk, chunk + 1): 10 for chunk in range(4)})
    step = replace(step, layers=[[PassTimes(rows, rows)] * 4])
    made = compose(SCHEDULES["interleaved"], ScheduleShape(2, 2, 2), step, chunks(ScheduleShape(2, 2, 2)))
    assert not made.activity.both.any()
    assert (made.activity.active == 8 * 40 + made.spent["synchronise"]).all()
    adds_up(made)


# ---- the slow twin -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_times_give_the_ends_of_the_slow_twin(name: str, seed: int) -> None:
    """GPUs and layers that differ, not all of which meet or can be paired; two samples."""
    draw = np.random.default_rng(seed)
    meeting = draw.integers(0, 3)  # of the layers: none, some, all
    schedule = SCHEDULES[name]
    shape = shapes(schedule)

    def some(meets: bool = True) -> PassTime:
        meets = meets and bool(draw.integers(0, 2) < meeting)
        return timed(draw.integers(0, 50, RANKS).tolist(), (draw.integers(1, 50, RANKS) * meets).tolist())

    def part(splits: bool = True) -> PassTimes:
        pairs = bool(draw.integers(0, 3))
        return PassTimes(
            some(),
            some(),
            some() if splits else None,
            some(False) if splits else None,
            some() if pairs else None,
        )

    num_layers = 2 * shape.stages * shape.chunks - 1
    cut = [range(2 * c, min(2 * c + 2, num_layers)) for c in range(shape.stages * shape.chunks)]
    layers = [[part() for _ in range(num_layers)] for _ in range(2)]
    step = StepParts(RANKS, layers, part(splits=False), part(splits=False), StageHop(0, 13))
    slow = slow_step.run(schedule, shape, step, cut)
    made = compose(schedule, shape, step, cut)
    adds_up(made)
    assert made.step_ps == max(map(max, slow.ends))
    last = made.timeline.end_ps
    owners = made.timeline.graph.rank
    for stage, ends in enumerate(slow.ends):
        own = stage * RANKS
        found = [int(last[owners == own + rank].max()) for rank in range(RANKS)]
        assert found == ends
        over = max(ends)
        tail = [over - end for end in ends]  # until the last has come, to add up gradients
        assert (made.spent["peers"][stage] <= np.array(slow.peers[stage]) + tail).all()
        assert (made.spent["peers"][stage] >= slow.peers[stage]).all()


def test_layers_are_paired_where_both_can_be() -> None:
    """A forward pass is free beside a backward pass; without a joint replay it is not."""
    schedule = SCHEDULES["dualpipe"]
    shape = shapes(schedule)
    alone = replace(layer(), beside=None)
    joint = compose(schedule, shape, times(4), chunks(shape))
    apart = compose(schedule, shape, replace(times(4), layers=[[alone] * 4]), chunks(shape))
    assert joint.step_ps < apart.step_ps
    assert (joint.is_paired, apart.is_paired) == (True, False)


def test_gradients_of_weights_that_cannot_be_put_off_are_refused() -> None:
    whole = replace(layer(), inputs=None, weights=None)
    shape = shapes(SCHEDULES["zb-h1"])
    with pytest.raises(UserError, match="puts gradients of weights off"):
        compose(SCHEDULES["zb-h1"], shape, replace(times(4), layers=[[whole] * 4]), chunks(shape))


def test_sizes_that_a_schedule_refuses_are_refused() -> None:
    with pytest.raises(UserError, match="one chunk per stage"):
        shape = ScheduleShape(2, 2, 4)
        compose(SCHEDULES["1f1b"], shape, times(4), chunks(shape))


@every("hop", [0, 17])
@every("name", SCHEDULES)
def test_equal_times_give_the_ends_of_the_plain_executor_of_schedules(name: str, hop: int) -> None:
    schedule = SCHEDULES[name]
    shape = shapes(schedule)
    one = layer()
    assert one.inputs is not None
    assert one.weights is not None
    assert one.beside is not None
    each = {"F": one.forward, "B": one.backward, "I": one.inputs, "W": one.weights}
    spans = {kind: int(of.own[0] + of.met[0]) for kind, of in each.items()}
    spans["FB"] = int(one.beside.own[0] + one.beside.met[0])
    ran = slow_pipeline.run(schedule, shape, spans, hop)
    made = compose(schedule, shape, times(shape.stages * shape.chunks, StageHop(0, hop)), chunks(shape))
    assert made.step_ps == max(ran.finishes)
    assert (made.spent["pipeline"] == made.step_ps - np.array(ran.busy)[:, None]).all()
