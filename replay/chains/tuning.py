"""Choosing among the options that a scheme offers for its machine: how it splits the SMs, and more.

Libraries profile a few compiled variants on the machine and keep the best one (COMET, arXiv
2502.19811v3, section 3.2: kernels with several numbers of communicating blocks are compiled
beforehand, profiled for a set-up, and looked up at run time). Here the replay takes the place of
the profile: `tune` looks for the options with the shortest makespan on one layer. A scheme whose
library does so is tuned unless it is refused (`Scheme.tuned_by_default`), any other with candidates
if it is asked for.

The search is a descent along one option at a time. It begins with the scheme's own options; for
one option after the other, in the order of `Scheme.candidates`, all candidates are replayed and the
best one is kept; this is repeated until a whole round changes nothing. Every step shortens the
makespan and there are finitely many settings, so that it ends; where options influence each other
it may miss the best combination. Of equally good values the one already held stays, else the
first listed. An option that was given a value, other than its default, keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.engine.engine import makespan_ps
from replay.errors import UserError
from replay.measure.token_latency import us
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.engine import TaskGraph
    from replay.schemes import Scheme


class Trial(Strict):
    """Options that were tried: the values of those searched, and the layer's time.

    `makespan_us` is None where the scheme cannot run with them, such as a split of more SMs than
    the GPU has.
    """

    options: dict[str, int | str]
    makespan_us: float | None


class Tuning(NamedTuple):
    """The scheme with the best options found, and all trials in order."""

    scheme: Scheme
    trials: list[Trial]


def tune(scheme: Scheme, described: Callable[[Scheme], TaskGraph]) -> Tuning:
    """Search the options that a scheme declares in `Scheme.candidates`.

    Parameters
    ----------
    scheme
        Where the search begins. Options that are not candidates, or have not their default, stay
        as they are.
    described
        Gives the graph of what is replayed for each trial, such as a layer.

    Returns
    -------
    The scheme itself, with no trials, if nothing is left to choose.

    Raises
    ------
    UserError
        If the scheme cannot run with the options that it begins with.
    """
    defaults = type(scheme.options)()
    candidates = {
        name: values
        for name, values in scheme.candidates.items()
        if getattr(scheme.options, name) == getattr(defaults, name)
    }
    if not candidates:
        return Tuning(scheme, [])
    known: dict[tuple[int | str, ...], int | None] = {}
    trials: list[Trial] = []

    def time_ps(chosen: dict[str, int | str], *, must_run: bool = False) -> int | None:
        """Time of the layer, or None where the scheme refuses the options; found once."""
        key = tuple(chosen.values())
        if key not in known:
            known[key] = None
            try:
                known[key] = makespan_ps(described(scheme.with_options(chosen)))
            except UserError:
                if must_run:
                    raise
            found = known[key]
            trials.append(Trial(options=chosen, makespan_us=None if found is None else us(found)))
        return known[key]

    best = {name: getattr(scheme.options, name) for name in candidates}
    best_ps = time_ps(best, must_run=True)
    improved = True
    while improved:
        improved = False
        for name, values in candidates.items():
            for value in values:
                other = {**best, name: value}
                other_ps = time_ps(other)
                if other_ps is not None and best_ps is not None and other_ps < best_ps:
                    best, best_ps, improved = other, other_ps, True
    return Tuning(scheme.with_options(best), trials)
