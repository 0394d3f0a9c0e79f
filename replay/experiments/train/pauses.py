"""Pauses of hosts beside a step: Python's collection of garbage, and the data of micro-batches.

A full collection visits every object that Python tracks: 0.12 us each, in one of 0.2 to 1.6 million
of dictionaries, lists and tuples (Python 3.11, a busy AMD EPYC, 2026-11-27; `gc.collect` by
processor time); PyTorch 2.13 alone has 166,000 of them, 20 ms. Megatron-LM by default leaves it to
Python, and with ``--manual-gc --manual-gc-interval N`` makes one on all hosts behind every N-th
step (d98e8a64dd, megatron/training/training.py:4027); Megatron-Bridge's benchmarks have N = 100
(067f987df, scripts/performance/utils/overrides.py:64).

Loaders are processes of their own (Megatron-LM ``--num-workers``), which bring the micro-batches of
the next step while this one runs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hwmodel.units import PS_PER_S
from replay.errors import UserError, value_text

OFF = "off"
MOST_MS = 1e6
"""Of a collection, and of a micro-batch's data: a quarter of an hour."""
MOST_STEPS = 10**9
PS_PER_MS = PS_PER_S // 1000


class Collections(NamedTuple):
    """Collections of garbage.

    Attributes
    ----------
    together
        Whether all hosts collect at once, behind a step; else each when Python finds it time.
    each_ms
        What one takes a host.
    steps
        Steps from one to the next of a host.
    """

    together: bool
    each_ms: float
    steps: int

    def each_step_ps(self, hosts: int) -> int:
        """Mean time that collections add to a step.

        Pauses that hosts make on their own add up, since all that meet wait for the one that
        collects. Pauses that coincide, and what a host's lead hides, are not taken off.

        Parameters
        ----------
        hosts
            Hosts that wait for each other in a step.
        """
        count = 1 if self.together else hosts
        return round(count * self.each_ms * PS_PER_MS / self.steps)


def read(text: str) -> Collections | None:
    """Read how garbage is collected: "manual:MS:STEPS", "automatic:MS:STEPS", or "off".

    Raises
    ------
    UserError
        If it is none of them.
    """
    if text == OFF:
        return None
    kind, *numbers = text.split(":")
    try:
        each, steps = float(numbers[0]), int(numbers[1]) if len(numbers) == 2 else 0
    except (ValueError, IndexError):
        each, steps = math.nan, 0
    if kind not in ("manual", "automatic") or not (0 < each <= MOST_MS and 1 <= steps <= MOST_STEPS):
        message = (
            f"collections {value_text(text)}: possible are off, manual:MS:STEPS and automatic:MS:STEPS, "
            "milliseconds of one, above 0, and steps from one to the next"
        )
        raise UserError(message)
    return Collections(kind == "manual", each, steps)


def check(text: str) -> str:
    """Give the text, if it can be read."""
    read(text)
    return text


def waited_for_data_ps(step_ps: int, micro_batches: int, data_ms: float) -> int:
    """Time that a step waits for its micro-batches' data, which are brought while it runs."""
    return max(0, round(micro_batches * data_ms * PS_PER_MS) - step_ps)
