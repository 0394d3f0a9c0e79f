"""Random delays of GPUs at the beginning of layers.

What holds a GPU up for a while is not modelled: a host that is late, a clock that falls, a page
that is moved, somebody else's message. What is modelled is whom it holds up further: others wait
for the one that is late as their scheme lets them wait. Delays are drawn for each GPU in each layer
of each pass and step, one by one, so none depends on how many layers or GPUs are replayed beside
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replay.errors import UserError, value_text
from replay.model.arrays import Picoseconds

OFF = "off"
MOST_US = 1e9
"""Of a delay: a quarter of an hour."""
MOST_SPREAD = 10.0


class Jitter(NamedTuple):
    """Delays whose logarithms are normally distributed.

    Attributes
    ----------
    median_us
        Half of the delays are longer.
    spread
        Standard deviation of their natural logarithms.
    seed
        Seed of the random numbers.
    """

    median_us: float
    spread: float
    seed: int = 0

    def delays_ps(self, num_gpus: int, key: Sequence[int]) -> Picoseconds:
        """(GPU,): how long each is held up, in picoseconds, for one thing that all of them do.

        Parameters
        ----------
        key
            Numbers, none below 0, that say which thing it is.
        """
        sequence = np.random.SeedSequence(self.seed, spawn_key=tuple(key))
        drawn = np.random.default_rng(sequence).standard_normal(num_gpus)
        late_us = np.minimum(self.median_us * np.exp(self.spread * drawn), MOST_US)
        return np.rint(late_us * 1e6).astype(np.int64)


def read(text: str, seed: int = 0) -> Jitter | None:
    """Read a distribution of delays: "lognormal:MEDIAN_US:SPREAD", or "off".

    Raises
    ------
    UserError
        If it is neither.
    """
    if text == OFF:
        return None
    kind, *numbers = text.split(":")
    try:
        median, spread = map(float, numbers)
    except ValueError:
        median = spread = math.nan
    if kind != "lognormal" or not (0 < median <= MOST_US and 0 <= spread <= MOST_SPREAD):
        message = (
            f"jitter {value_text(text)}: possible are off and lognormal:MEDIAN_US:SPREAD, the median "
            f"above 0, the standard deviation of the natural logarithm 0 to {MOST_SPREAD:g}"
        )
        raise UserError(message)
    return Jitter(median, spread, seed)


def normal_form(text: str) -> str:
    """Give the same distribution the same text; raises as `read` does."""
    jitter = read(text)
    if jitter is None:
        return OFF
    numbers = (repr(one).removesuffix(".0") for one in (jitter.median_us, jitter.spread))
    return ":".join(["lognormal", *numbers])
