"""A time that no training step can beat: its multiplications at the peak rate, in a pipeline.

Of each stage: the forward passes that must be over before it can begin, all that it multiplies
itself, and the backward passes that follow its last one. A GPU has the mean of its stage's tokens,
and the busiest no less. Nothing is counted for bytes, kernels, recomputation and updates, so that
the bound holds for every scheme and every value of the hardware but the peak.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.experiments.train.schedules import registry
from replay.experiments.train.schedules.base import ScheduleShape
from replay.steps.chunks import chunks_of
from replay.steps.parameters import key_and_value, of_embedding, weights_used

if TYPE_CHECKING:
    from replay.steps.plan import ParallelPlan
    from tracegen.models import ModelShape

FORWARD, BOTH, INPUTS, WEIGHTS = "F", "B", "I", "W"


class _Stage(NamedTuple):
    """Work of a stage: passes by kind and chunk, and chunks of its first and last."""

    passes: dict[tuple[str, int], int]
    first: int
    last: tuple[str, int]


def least_us(shape: ModelShape, plan: ParallelPlan, schedule: str, sequence: int, peak_tflop_per_s: float) -> float:
    """Give the bound in microseconds.

    Parameters
    ----------
    sequence
        Tokens of a sequence.
    peak_tflop_per_s
        Peak rate of a GPU, for the number type of its GEMMs.
    """
    products, attended = (np.array(one, float) for one in _chunks(shape, plan, sequence))
    cost = {
        FORWARD: products + attended,
        BOTH: 2 * (products + attended),
        INPUTS: products + 2 * attended,  # attention has no weights of its own
        WEIGHTS: products,
    }
    ahead = np.append(0, np.cumsum(cost[FORWARD]))
    split = registry.find(schedule).splits_backward  # gradients of weights may come last
    back = np.append(0, np.cumsum(cost[INPUTS if split else BOTH]))
    longest = 0.0
    for stage in _stages(schedule, ScheduleShape.of(plan)):
        own = sum(number * cost[kind][chunk] for (kind, chunk), number in stage.passes.items())
        kind, chunk = stage.last
        after = 0.0 if kind == WEIGHTS else back[chunk]
        longest = max(longest, float(ahead[stage.first] + own + after))
    return longest * plan.tokens_per_gpu(sequence) / peak_tflop_per_s / 1e6


def _chunks(shape: ModelShape, plan: ParallelPlan, sequence: int) -> tuple[list[int], list[int]]:
    """Operations of a token on the way forward by chunk: with weights, and of attention alone."""
    attention = sequence * (shape.num_heads or 0) * sum(key_and_value(shape))
    weights, chunks = weights_used(shape, shape.num_layers + plan.mtp), chunks_of(shape, plan)
    products = [2 * sum(weights[layers.start : layers.stop]) for layers in chunks]
    products[-1] += 2 * (1 + plan.mtp) * of_embedding(shape)
    return products, [len(layers) * attention for layers in chunks]


@functools.lru_cache(maxsize=1024)
def _stages(schedule: str, sizes: ScheduleShape) -> tuple[_Stage, ...]:
    found = []
    for slots in registry.find(schedule).order(sizes):
        ops = [op for slot in slots for op in slot]
        last = slots[-1][-1]
        passes: dict[tuple[str, int], int] = dict(Counter((op.kind, op.chunk) for op in ops))
        found.append(_Stage(passes, slots[0][0].chunk, (last.kind, last.chunk)))
    return tuple(found)
