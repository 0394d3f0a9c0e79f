"""Times of schemes on a drawn machine, by replays that record the end time alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.chains.host_program import is_captured
from replay.engine.taskgraph import slow_down
from replay.experiments.layer.setup import LayerSetup, find_scheme
from replay.measure.token_latency import us
from replay.schemes.ep.base import LayerRefusedError

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.replay import Replay
    from replay.experiments.layer.result import Result
    from replay.model.machine.host import Calls
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
        self._ready: list[tuple[bool, Replay]] = []  # whether it is a chain
        self._software: dict[int, list[str]] = {}
        for result in results:
            found = known.get(result.scheme.name) or find_scheme(result.spec.scheme, allow_code=False)
            scheme = found.with_options(result.scheme.options)
            setup = LayerSetup(result.spec, {}, system, scheme)
            ready, _ = setup.prepare(trace).with_sample(result.spec.sample_layers)
            if len(ready.links) <= MOST_KEPT:
                links = [self._keeping(link, result.spec.placement) for link in ready.links]
                ready = dataclasses.replace(ready, links=links)
            is_chain = setup.chain_settings.makes_chain(len(ready.links))
            self._ready.append((is_chain, ready))

    def software(self, index: int) -> list[str]:
        """Keys of the costs of calls that a result's layers pay: none where graphs hold all of them."""
        if index not in self._software:
            self._software[index] = _paid(self._ready[index][1])
        return self._software[index]

    def time_us(
        self,
        index: int,
        system: System,
        factors: npt.NDArray[np.float64],
        deviation: Callable[[str], float] | None = None,
    ) -> float | None:
        """Time of all layers of a result, in microseconds.

        Parameters
        ----------
        index
            Which result.
        system
            The machine.
        factors
            (kind,): factor on the times of tasks of each kind.
        deviation
            Draws what calls of hosts take, see `CallCosts.draw`.

        Returns
        -------
        None where the scheme cannot carry the layers, as may happen with drawn routing.
        """
        is_chain, ready = self._ready[index]
        ready = ready.under(ready.scheme, system, deviation)
        change = functools.partial(slow_down, factors=factors)
        try:
            if is_chain:
                return us(ready.makespan_ps(change))
            return sum(us(ready.alone(link).makespan_ps(change)) for link in ready.links)
        except LayerRefusedError:
            return None

    def _keeping(self, link: ChainLink, placement: str) -> ChainLink:
        """A layer whose work is made once for all schemes."""
        key = (placement, link.step, link.layer_index, link.is_backward)
        work = self._works.setdefault(key, functools.cache(link.work))
        return dataclasses.replace(link, work=work)


def _paid(ready: Replay) -> list[str]:
    """Keys of costs that change what hosts do where they alone are drawn."""
    stack, calls_of = ready.stack, ready.calls_of
    if stack is None or calls_of is None:
        return []
    passes = {link.is_backward for link in ready.links}
    if ready.launch == "graph" and is_captured(ready.scheme, passes, ready.system):
        return []

    def calls(key: str) -> Calls:
        costs = stack.costs.draw(lambda one: float(one == key))
        return calls_of(dataclasses.replace(stack, costs=costs))

    whole = calls_of(stack)
    return [key for key in stack.costs.uncertain if calls(key) != whole]
