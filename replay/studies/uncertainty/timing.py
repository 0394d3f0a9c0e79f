"""Times of schemes on a drawn machine: replays of which nothing but the end is looked at."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.chains.chain_results import build, lead_of
from replay.chains.prepared import Prepared, prepare
from replay.chains.streamed import Makespan, follow
from replay.engine import schedule
from replay.engine.scheduler import OutOfOrderError
from replay.engine.slow import slowed
from replay.experiments.layer.setup import Setup, find_scheme
from replay.measure.token_latency import us
from replay.schemes.ep.base import LayerRefusedError

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.engine import TaskGraph
    from replay.experiments.layer.result import Result
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme
    from tracegen import RoutingTrace

MOST_KEPT = 4
"""Layers up to which what is counted from routing is kept for all schemes and draws. A chain of
more counts it anew, as a replay of it does, so that only one layer is in memory."""

Key = tuple[str, int, int, bool]


class Timer:
    """Times the results of a comparison again, on other machines.

    Parameters
    ----------
    results
        Their specs are replayed, with the options that tuning chose.
    trace
        The routing.
    system
        The comparison's machine, without a draw: batches are formed for it.
    schemes
        Schemes that no reference leads to.
    """

    def __init__(
        self,
        results: Sequence[Result],
        trace: RoutingTrace,
        system: System,
        schemes: Sequence[Scheme] = (),
    ) -> None:
        known = {scheme.name: scheme for scheme in schemes}
        self._works: dict[Key, Callable[[], LayerWork]] = {}
        self._ready: list[tuple[Scheme, Prepared]] = []
        for result in results:
            found = known.get(result.scheme.name) or find_scheme(
                result.spec.scheme, allow_code=False
            )
            scheme = found.with_options(result.scheme.options)
            ready, _ = prepare(Setup(result.spec, {}, system, scheme), trace).sampled()
            if len(ready.links) <= MOST_KEPT:
                links = [self._keeping(link, result.spec.placement) for link in ready.links]
                ready = dataclasses.replace(ready, links=links)
            self._ready.append((scheme, ready))

    def __len__(self) -> int:
        return len(self._ready)

    def time_us(self, index: int, system: System, factors: npt.NDArray[np.float64]) -> float | None:
        """Time of all layers of a result, in microseconds.

        Parameters
        ----------
        index
            Which result.
        system
            The machine.
        factors
            (kind,): on the times of its tasks.

        Returns
        -------
        None where the scheme has no code for the layers, which other routing may give.
        """
        scheme, ready = self._ready[index]
        change = functools.partial(slowed, factors=factors)
        try:
            if not ready.is_apart:
                return us(_chain_ps(ready, system, scheme, change))
            return sum(us(_layer_ps(ready, link, system, scheme, change)) for link in ready.links)
        except LayerRefusedError:
            return None

    def _keeping(self, link: ChainLink, placement: str) -> ChainLink:
        """A layer whose work is made once for all schemes."""
        key = (placement, link.step, link.layer_index, link.is_backward)
        work = self._works.setdefault(key, functools.cache(link.work))
        return dataclasses.replace(link, work=work)


Change = Callable[["TaskGraph"], "TaskGraph"]


def _layer_ps(
    ready: Prepared, link: ChainLink, system: System, scheme: Scheme, change: Change
) -> int:
    """Makespan of one layer by itself."""
    lead = lead_of(link, system, ready.launch)
    alone = [link.alone()]
    chain = build(alone, system, scheme, ready.launch, lead=lead, strategy=ready.strategy)
    return schedule(change(chain.built.graph)).makespan_ps


def _chain_ps(ready: Prepared, system: System, scheme: Scheme, change: Change) -> int:
    """Makespan of a chain: layer by layer, as a replay does."""
    with suppress(OutOfOrderError):
        met = Makespan()
        follow(
            ready.links, system, scheme, ready.launch, strategy=ready.strategy, observers=[met],
            changed=change,
        )  # fmt: skip
        return met.ps
    chain = build(ready.links, system, scheme, ready.launch, strategy=ready.strategy)
    return schedule(change(chain.built.graph)).makespan_ps
