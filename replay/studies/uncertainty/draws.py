"""Random numbers by draw and by what is drawn, so that nothing depends on what else is drawn.

Draw n of a seed is the same whatever the number of draws, and a value of it is the same whatever
other values are drawn.
"""

from __future__ import annotations

import zlib
from statistics import NormalDist

import numpy as np


def stream(seed: int, number: int, name: str) -> np.random.Generator:
    """Random numbers of one thing in one draw."""
    key = (number, zlib.crc32(name.encode()))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def share(seed: int, number: int, name: str) -> float:
    """A number between 0 and 1, both excluded, evenly distributed."""
    drawn = float(stream(seed, number, name).random())
    return min(max(drawn, 2**-53), 1 - 2**-53)


def deviation(seed: int, number: int, name: str) -> float:
    """A number of standard deviations, normally distributed."""
    return NormalDist().inv_cdf(share(seed, number, name))
