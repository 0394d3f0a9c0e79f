"""Machines drawn from the stated uncertainty of their values.

The value of a preset is the median of its distribution. Its logarithm is normal on either side, as
wide as a range that nine of ten draws keep to: rates and latencies are positive, and a factor of
two up is as likely as one down. A share of something stays at 1 where a draw would exceed it. A
draw beyond `MOST_DEVIATIONS` is moved there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from hwmodel.quantity import Quantity, Range
from hwmodel.specs import SystemSpec
from hwmodel.system import System

INSIDE = 0.9
"""Share of the draws that lie within a range."""

MOST_DEVIATIONS = 3.0

FACTORS = {"high": 1.02, "medium": 1.1, "low": 1.3, "recalled": 1.3, "user": 1.3}
"""Range of a value whose source gives none, up and down, by its confidence.

A judgement, checked against the ranges that sources do give: at least half of those with the same
confidence are no wider (``tests/hwmodel/test_draws.py``).
"""

DIGITS = 6  # of a drawn value, so that rates stay simple fractions

SUMS: Mapping[str, Mapping[str, float]] = {
    "gpu.remote_read_access_ns": {"link.propagation_ns": 4, "switch.traversal_ns": 2},
    "gpu.write_visibility_ns": {"link.propagation_ns": 2, "switch.traversal_ns": 1},
    "nic.post_ns": {"pcie.latency_ns": 6, "network.leaf_ns": 1},
}
"""Values that are what a measured sum leaves of others, and how often each of these is in it.

A load goes to its target and back, over four links and twice through the switch; a store goes once.
Times of both are measured as a whole, so that a slower link leaves less time at the target. A put
over the network passes PCIe six times (`hwmodel.network`), and is measured as a whole too.
"""

_DEVIATIONS_INSIDE = NormalDist().inv_cdf(0.5 + INSIDE / 2)
_SHARES = ("efficiency", "share")  # names of values that cannot exceed 1 end so

Deviation = Callable[[str], float]


@dataclass(frozen=True)
class Uncertain:
    """A value that is drawn.

    Attributes
    ----------
    key
        Such as ``hbm.latency_ns``.
    value
        Its median.
    low, high
        Where nine of ten draws lie, before a share is held at 1.
    """

    key: str
    value: float
    low: float
    high: float

    def at(self, deviations: float) -> float:
        """The value so many standard deviations of its logarithm above the median."""
        some = max(-MOST_DEVIATIONS, min(MOST_DEVIATIONS, deviations))
        edge = self.high if some > 0 else self.low
        drawn = self.value * math.exp(abs(some) / _DEVIATIONS_INSIDE * math.log(edge / self.value))
        return min(drawn, 1.0) if self.key.endswith(_SHARES) else drawn


def uncertain(spec: SystemSpec) -> list[Uncertain]:
    """Values of a description that are drawn by themselves, sorted by key."""
    found = []
    for key, entry in _numbers(spec):
        if isinstance(entry.spread, Range) or (entry.spread == "by confidence" and entry.value):
            found.append(Uncertain(key, float(entry.value), *range_of(entry)))
    return found


def range_of(entry: Quantity[Any]) -> tuple[float, float]:
    """Range that nine of ten draws of a number lie in: that of its source, or of its confidence."""
    if isinstance(entry.spread, Range):
        return entry.spread.low, entry.spread.high
    factor = FACTORS[entry.confidence]
    return float(entry.value) / factor, float(entry.value) * factor


def spreads(spec: SystemSpec) -> dict[str, str]:
    """Words on the uncertainty of each value, by key: ``63.1 to 107``, or its spread's own word."""
    found = {}
    for key in spec.present():
        spread = spec.entry(key).spread
        found[key] = spread if isinstance(spread, str) else "not stated"
    return found | {one.key: f"{one.low:.3g} to {one.high:.3g}" for one in uncertain(spec)}


def keys_without_spread(spec: SystemSpec) -> list[str]:
    """Keys whose entries do not say how uncertain they are, which a file may leave out."""
    return [key for key in spec.present() if spec.entry(key).spread is None]


def draw(system: System, deviation: Deviation) -> tuple[System, dict[str, float]]:
    """Draw a machine.

    Parameters
    ----------
    system
        Its values are the medians.
    deviation
        Gives for each key of `uncertain` how many standard deviations its logarithm is off.

    Returns
    -------
    The machine, and the values that were drawn by key.
    """
    spec = system.spec
    drawn = {one.key: one.at(deviation(one.key)) for one in uncertain(spec)}
    for key, terms in SUMS.items():
        taken = sum(
            times * (drawn[other] - spec.entry(other).value) for other, times in terms.items() if other in drawn
        )
        if key in drawn or (taken and spec.entry(key).spread == "rest"):
            drawn[key] = max(0.0, drawn.get(key, spec.entry(key).value) - taken)
    for key, entry in _numbers(spec):
        if isinstance(entry.spread, str) and entry.spread.startswith("as "):
            leader = entry.spread.removeprefix("as ")
            if leader in drawn:
                drawn[key] = entry.value * drawn[leader] / spec.entry(leader).value
    values: dict[str, Any] = spec.model_dump()
    for key, value in drawn.items():
        section, _, leaf = key.partition(".")
        is_whole = isinstance(spec.entry(key).value, int)
        drawn[key] = max(1, round(value)) if is_whole else float(f"{value:.{DIGITS}g}")
        values[section][leaf] |= {"value": drawn[key], "spread": "exact"}
    return System.from_spec(SystemSpec.model_validate(values), system.num_gpus), drawn


def _numbers(spec: SystemSpec) -> Iterator[tuple[str, Quantity[Any]]]:
    """Entries that are numbers: the others are choices, and no draw changes them."""
    for key in spec.present():
        entry = spec.entry(key)
        if isinstance(entry.value, int | float) and not isinstance(entry.value, bool):
            yield key, entry
