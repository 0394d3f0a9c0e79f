"""Checks that schemes of both kinds must pass: ends, starts, SMs, options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replay.engine import schedule
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.schemes.contract.sms import most_in_use, only_communicating
from replay.schemes.options import about
from replay.schemes.outside import SchemeFailure, failure

if TYPE_CHECKING:
    from replay.engine import TaskGraph, Timeline
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.schemes.contract.case import AnyCase


class Check(NamedTuple):
    """One demand of the contract.

    Attributes
    ----------
    about
        What is demanded, in one line.
    layers
        Names of the layers on which it is checked.
    find
        Yields a sentence for everything that is wrong with a case of the scheme's kind.
    """

    about: str
    layers: tuple[str, ...]
    find: Callable[[Any], Iterator[str]]


def ends(case: AnyCase) -> Iterator[str]:
    """Tasks that `build` returned."""
    found, graph = np.asarray(case.built.ends), case.built.graph
    ranks = case.num_ranks
    if found.shape != (ranks,) or not np.issubdtype(found.dtype, np.integer):
        yield (
            f"build must return one task per rank, whole numbers of shape ({ranks},); it returned "
            f"{found.dtype} of shape {found.shape}"
        )
    elif ((found < 0) | (found >= graph.num_tasks)).any():
        yield f"build returned numbers that are no tasks; the graph has {graph.num_tasks}"


def starts(case: AnyCase) -> Iterator[str]:
    """Tasks before `start`, where the ranks begin at different times."""
    late = case.late
    graph, start_ps = late.graph, late.timeline.start_ps
    works = (graph.duration_ps > 0) | (graph.resource >= 0)
    works[: late.first] = False
    early = np.flatnonzero(works & (start_ps < late.begins_ps.min()))
    if len(early):
        kind = Kind(int(graph.kind[early[0]])).name
        yield (f"{len(early)} tasks, such as one of kind {kind}, begin before any rank's start: they wait for nothing")
    owner = np.append(graph.resources.owner, 0)[graph.resource]
    is_sm = np.isin(graph.resource, late.machine.sms.resources) & (graph.duration_ps > 0)
    early = np.flatnonzero(is_sm & (start_ps < late.begins_ps[owner]))
    if len(early):
        yield (
            f"{len(early)} tasks, such as one of kind {Kind(int(graph.kind[early[0]])).name}, are "
            f"on an SM of GPU {owner[early[0]]} before the start of that rank"
        )


def aftermath(case: AnyCase) -> Iterator[str]:
    """Work after the last rank's end."""
    timeline = case.timeline
    late = timeline.visible_ps > timeline.visible_ps[case.built.ends].max()
    kinds = {Kind(kind) for kind in case.built.graph.kind[late].tolist()} - case.aftermath
    if kinds:
        names = ", ".join(sorted(kind.name for kind in kinds))
        yield f"tasks of kind {names} end after the last rank does: the ends must wait for them"


def frees(case: AnyCase) -> Iterator[str]:
    """Findings on SMs against the ends of their ranks."""
    built = case.built
    yield from _busy_after(built.graph, case.timeline, built.machine, built.ends)


def late_frees(case: AnyCase) -> Iterator[str]:
    """Findings on SMs against the ends of ranks that began at different times."""
    late = case.late
    yield from _busy_after(late.graph, late.timeline, late.machine, late.ends)


def _busy_after(graph: TaskGraph, timeline: Timeline, machine: Machine, of: Ints) -> Iterator[str]:
    of_sm = np.isin(graph.resource, machine.sms.resources)
    rank = np.append(graph.resources.owner, 0)[graph.resource]
    ends_ps = timeline.visible_ps[of]
    late = np.flatnonzero(of_sm & (timeline.end_ps > ends_ps[rank]))
    if len(late):
        task = int(late[timeline.end_ps[late].argmax()])
        yield (
            f"GPU {rank[task]} ends at {ends_ps[rank[task]]:,} ps, and its SMs still work at "
            f"{timeline.end_ps[task]:,} ps, on a task of kind {Kind(int(graph.kind[task])).name}: "
            "what build returns must wait for it"
        )


def sms(case: AnyCase) -> Iterator[str]:
    """SMs in use at every instant of a chain."""
    timeline, machine = case.chain_run
    most = most_in_use(timeline, machine)
    if most.sms > machine.sms.count:
        yield (
            f"in a chain of three such layers GPU {most.rank} uses {most.sms} SMs at "
            f"{most.time_ps:,} ps, and has {machine.sms.count}: a kernel must wait for its rank's "
            "start, and what build returns for all that its rank's SMs do"
        )


def communication(case: AnyCase) -> Iterator[str]:
    """SMs that only communicate, against the number that the scheme states."""
    stated, machine = case.stated_sms, case.built.machine
    found, every = only_communicating(case.built.graph, machine), machine.sms.count
    # A kernel that may take all SMs takes as many as the layer has work for.
    if stated is None or found == stated or (stated == every and 0 < found <= every):
        return
    yield (
        f"communication_sms states {stated} SMs that only communicate; tasks that move rows hold "
        f"{found} SMs on which nothing computes"
    )


def same_again(case: AnyCase) -> Iterator[str]:
    """Schedule of a second build against that of the first."""
    again = case.under(case.scheme)
    if again.built.graph.num_tasks != case.built.graph.num_tasks:
        yield (
            f"the same layer has {case.built.graph.num_tasks:,} tasks when built first, "
            f"{again.built.graph.num_tasks:,} when built again"
        )
    elif not all(
        np.array_equal(getattr(again.timeline, name), getattr(case.timeline, name)) for name in ("start_ps", "end_ps")
    ):
        yield "the same layer gives another schedule when it is built again"


def values(case: AnyCase) -> Iterator[str]:
    """Other values that options name: each runs, or is refused in words."""
    for one in about(case.scheme.options):
        tried: list[object] = [*one.examples]
        if isinstance(one.default, bool):
            tried = [True, False]
        elif one.least is not None:
            tried = [type(one.default)(one.least)]
        own = getattr(case.scheme.options, one.name)
        for value in dict.fromkeys([*tried, *case.scheme.candidates.get(one.name, ())]):
            if value == own:
                continue  # all other checks run with it
            try:
                changed = case.under(case.scheme.with_options({one.name: value}))
                if not changed.refusal:
                    schedule(changed.built.graph)
            except SchemeFailure as error:
                yield f"with {one.name}={value}, {error.sentence}"
            except UserError:
                continue
            except Exception as error:  # whatever a scheme's own code does wrong is a finding
                yield f"with {one.name}={value}, {failure(case.scheme, error)}"
    for name, candidates in case.scheme.candidates.items():
        if getattr(case.scheme.options, name, None) not in candidates:
            yield f"candidates of {name} do not hold its default, or there is no such option"
