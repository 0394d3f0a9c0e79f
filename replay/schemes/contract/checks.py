"""The checks of the contract; each looks at one case and says in sentences what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.engine import schedule
from replay.errors import UserError
from replay.model.machine.kinds import Kind
from replay.schemes.contract.bytes_on_ports import control, payload, ways, wire
from replay.schemes.contract.case import Case
from replay.schemes.contract.layers import (
    ACROSS,
    CHAINED,
    LAYERS,
    ONE_SENDER,
    ONE_TOKEN,
    TINY_ACROSS,
    TINY_NAMES,
    WAITED,
    WIDE,
)
from replay.schemes.contract.order import (
    GEMMS,
    aftermath,
    experts_wait,
    rows_return,
    starts,
    tokens_wait,
)
from replay.schemes.contract.sms import most_in_use, only_communicating
from replay.schemes.ep.base import DROPPED, PADDED
from replay.schemes.ep.software import Outline, as_program, launched
from replay.schemes.options import about
from replay.schemes.outside import BuildFailed, failure

if TYPE_CHECKING:
    from replay.model.machine.host import Operation
    from replay.model.work.layer import ExpertShape


class Check(NamedTuple):
    """One demand of the contract.

    Attributes
    ----------
    about
        What is demanded, in one line.
    layers
        Names of the layers on which it is checked.
    find
        Yields a sentence for everything that is wrong.
    """

    about: str
    layers: tuple[str, ...]
    find: Callable[[Case], Iterator[str]]


def ends(case: Case) -> Iterator[str]:
    """Tasks that `build` returned."""
    found, graph = np.asarray(case.built.ends), case.built.graph
    ranks = case.work.num_ranks
    if found.shape != (ranks,) or not np.issubdtype(found.dtype, np.integer):
        yield (
            f"build must return one task per rank, whole numbers of shape ({ranks},); it returned "
            f"{found.dtype} of shape {found.shape}"
        )
    elif ((found < 0) | (found >= graph.num_tasks)).any():
        yield f"build returned numbers that are no tasks; the graph has {graph.num_tasks}"


def multiplied(case: Case) -> Iterator[str]:
    """Rows that each expert's GEMMs multiply."""
    graph, machine = case.unpadded.graph, case.unpadded.machine
    on_sm = np.isin(graph.resource, machine.sms.resources)
    for kind, name in GEMMS.items():
        done: Counter[tuple[int, int]] = Counter()
        for task in np.flatnonzero(on_sm & (graph.kind == kind)).tolist():
            done[int(graph.tag[task]), int(graph.rank[task])] += int(graph.duration_ps[task])
        for expert, rank, rows, flops_of_row, what in _experts(case, kind):
            flops = done.pop((expert, rank), 0)
            if flops != rows * flops_of_row:
                found = flops / flops_of_row
                yield (
                    f"{name}: {what} {expert} multiplies {found:g} rows, {rows} are routed to it: "
                    + (f"{rows - found:g} forgotten" if found < rows else "too many")
                )
        for expert, gpu in done:
            yield (
                f"{name}: GPU {gpu} multiplies for expert {expert} (the tag of its tasks), which "
                "it does not have"
            )


def _experts(case: Case, kind: Kind) -> Iterator[tuple[int, int, int, int, str]]:
    """Number, rank, rows, operations of a row in one GEMM, and what it is, of every expert."""
    work, shared = case.work, case.work.shared

    def flops(shape: ExpertShape) -> int:
        gate = 2 if shape.gated and kind == Kind.GEMM1 else 1
        return 2 * shape.hidden * shape.intermediate * gate

    done = case.carried_unpadded
    for expert, rows in enumerate(done.work.rows_of_expert.tolist()):
        rank = int(done.work.placement.expert_rank[expert])
        if done.expert is None or done.expert[expert] >= 0:
            yield expert, rank, rows, flops(work.shape), "expert"
    if shared is not None:
        for rank, rows in enumerate(np.bincount(work.source_rank, minlength=work.num_ranks)):
            expert = work.num_experts + rank
            yield expert, rank, int(rows), flops(shared.shape), "shared expert"


def carried(case: Case) -> Iterator[str]:
    """Rows that are carried out against those of the layer, and what is noted of the others."""
    work, done = case.work, case.carried
    noted = case.built.machine.notes.counters
    if done.token.shape != (work.num_tokens,) or len(np.unique(done.token)) != work.num_tokens:
        yield "carries: each token of the layer has a place of its own among those carried out"
        return
    if (done.work.source_rank[done.token] != work.source_rank).any():
        yield "carries: a token has another owner than in the layer"
    ids = done.experts_of_layer()
    if ids.shape != work.expert_ids.shape or ((ids != work.expert_ids) & (ids >= 0)).any():
        yield "carries: a token's slot has an expert that it does not have in the layer"
        return
    of_nobody = np.ones(done.work.num_tokens, np.bool_)
    of_nobody[done.token] = False
    padding = (done.work.expert_ids[of_nobody] >= 0).sum(axis=1)
    lost = ((ids < 0) & (work.expert_ids >= 0)).sum(axis=1)
    for name, rank, rows in (
        (PADDED, done.work.source_rank[of_nobody], padding),
        (DROPPED, work.source_rank, lost),
    ):
        counted = np.bincount(rank, rows, work.num_ranks).astype(np.int64)
        said = noted.get(name, np.zeros_like(counted))
        if (counted != said).any():
            yield f"{name}: {counted.tolist()} by rank, noted are {said.tolist()}"


def tokens(case: Case) -> Iterator[str]:
    """Every token leaves, and is combined before its rank ends."""
    timeline, work = case.timeline, case.work
    sent, combined = case.tasks_of_token("sent"), case.tasks_of_token("combined")
    for what in ("sent", "combined"):
        given = [len(ids) for ids in case.built.machine.notes.followed(what)]
        if given[0] != given[1]:
            yield f'notes.follow("{what}", ...) was given {given[0]} tokens and {given[1]} tasks'
            return
    ids = case.carried.work.expert_ids[case.carried.token]
    routed = np.flatnonzero((ids >= 0).any(axis=1)).tolist()
    for what, found in (("sent", sent), ("combined", combined)):
        missing = [token for token in routed if token not in found]
        if missing:
            some = "any of" if len(missing) == len(routed) else f"{len(missing)} of"
            yield (
                f'notes.follow("{what}", ...) was not called for {some} the {len(routed)} tokens '
                f"with experts, such as token {missing[0]} of rank {work.source_rank[missing[0]]}"
            )
    for token in routed:
        if token not in sent or token not in combined:
            continue
        leaves = min(int(timeline.start_ps[task]) for task in sent[token])
        returns = max(int(timeline.visible_ps[task]) for task in combined[token])
        end = int(timeline.visible_ps[case.built.ends[work.source_rank[token]]])
        if not 0 <= leaves < returns:
            yield f"token {token} is combined at {returns:,} ps, and sent only at {leaves:,} ps"
        elif returns > end:
            yield (
                f"token {token} is combined at {returns:,} ps, after its rank's end at {end:,} ps: "
                "the task that build returns must wait for it"
            )


def bounds(case: Case) -> Iterator[str]:
    """The layer's time against the bounds that no schedule can beat."""
    measures = case.result.measures
    bound = measures.bounds_us
    if bound.largest_us <= measures.makespan_us:
        return
    why = ""
    if bound.phases_us == bound.largest_us:
        why = (
            ": the scheme says that a barrier over all ranks lies between dispatch and combine "
            "(phases_separated), and they overlap"
        )
    takes, least = measures.makespan_us, bound.largest_us
    yield f"the layer takes {takes:,.3f} us, at least {least:,.3f} us{why}"


def frees(case: Case) -> Iterator[str]:
    """What SMs do against the ends of their ranks."""
    graph, timeline = case.built.graph, case.timeline
    of_sm = np.isin(graph.resource, case.built.machine.sms.resources)
    rank = np.append(graph.resources.owner, 0)[graph.resource]
    ends = timeline.visible_ps[case.built.ends]
    late = np.flatnonzero(of_sm & (timeline.end_ps > ends[rank]))
    if len(late):
        task = int(late[timeline.end_ps[late].argmax()])
        yield (
            f"GPU {rank[task]} ends at {ends[rank[task]]:,} ps, and its SMs still work at "
            f"{timeline.end_ps[task]:,} ps, on a task of kind {Kind(int(graph.kind[task])).name}: "
            "what build returns must wait for it"
        )


def sms(case: Case) -> Iterator[str]:
    """SMs in use at every instant of a chain."""
    timeline, machine = case.chained
    most = most_in_use(timeline, machine)
    if most.sms > machine.sms.count:
        yield (
            f"in a chain of three such layers GPU {most.rank} uses {most.sms} SMs at "
            f"{most.time_ps:,} ps, and has {machine.sms.count}: a kernel must wait for its rank's "
            "start, and what build returns for all that its rank's SMs do"
        )


def communication(case: Case) -> Iterator[str]:
    """SMs that only communicate, against the number that the scheme states."""
    stated, machine = case.scheme.communication_sms(case.system), case.built.machine
    found, every = only_communicating(case.built.graph, machine), machine.sms.count
    # A kernel that may take all SMs takes as many as the layer has work for.
    if stated is None or found == stated or (stated == every and 0 < found <= every):
        return
    yield (
        f"communication_sms states {stated} SMs that only communicate; tasks that move rows hold "
        f"{found} SMs on which nothing computes"
    )


def same_again(case: Case) -> Iterator[str]:
    """A second build gives the same schedule."""
    again = Case(case.scheme, case.name, case.work, case.domain_size)
    if again.built.graph.num_tasks != case.built.graph.num_tasks:
        yield (
            f"the same layer has {case.built.graph.num_tasks:,} tasks when built first, "
            f"{again.built.graph.num_tasks:,} when built again"
        )
    elif not all(
        np.array_equal(getattr(again.timeline, name), getattr(case.timeline, name))
        for name in ("start_ps", "end_ps")
    ):
        yield "the same layer gives another schedule when it is built again"


def values(case: Case) -> Iterator[str]:
    """Every value that an option names, beside its own, runs, or is refused in words."""
    smallest = TINY_ACROSS[0]
    if case.name in TINY_ACROSS[1:]:
        smaller = Case(case.scheme, smallest, ACROSS[smallest].make(), ACROSS[smallest].domain_size)
        if not smaller.refused:
            return  # across domains one layer is enough
    for one in about(case.scheme.options):
        tried: list[object] = [*one.choices]
        if isinstance(one.default, bool):
            tried = [True, False]
        elif one.least is not None:
            tried = [type(one.default)(one.least)]
        own = getattr(case.scheme.options, one.name)
        for value in dict.fromkeys([*tried, *case.scheme.candidates.get(one.name, ())]):
            if value == own:
                continue  # all other checks run with it
            try:
                changed = case.scheme.with_options({one.name: value})
                schedule(Case(changed, case.name, case.work, case.domain_size).built.graph)
            except BuildFailed as error:
                yield f"with {one.name}={value}, {error.sentence}"
            except UserError:
                continue
            except Exception as error:  # whatever a scheme's own code does wrong is a finding
                yield f"with {one.name}={value}, {failure(case.scheme, error)}"
    for name, candidates in case.scheme.candidates.items():
        if getattr(case.scheme.options, name, None) not in candidates:
            yield f"candidates of {name} do not hold its default, or there is no such option"


def software(case: Case) -> Iterator[str]:
    """Kernels and waits of the host, against the list that the scheme gives."""
    listed = case.scheme.operations(
        Outline.of(case.work, case.carried, case.built.machine.domains.num)
    )
    if not listed or case.work.shared is not None:
        return  # the scheme states nothing, or kernels of shared experts stand between its own
    expected, found = as_program(listed), launched(case.built.machine.host.program)
    for place, (one, other) in enumerate(zip_longest(expected, found)):
        if one != other:
            yield f"operation {place + 1} is listed as {_said(one)}; build has {_said(other)}"
            return


def _said(one: Operation | None) -> str:
    if one is None:
        return "nothing"
    if not one.launches:
        return f"a wait of the host, {one.name!r}"
    return f"{one.launches} x {one.name!r}"


EXCHANGED = ("zipf 8 ranks", "backward zipf fp8", WIDE)  # rows go between all GPUs
ALL = (*LAYERS, *ACROSS)
EVERY = tuple(name for name in ALL if name != ONE_SENDER)  # whose size only the bounds need

CHECKS = {
    "ends": Check("a layer is built, a task per rank returned", ALL, ends),
    "payload": Check("every port carries its rows, to the byte", EVERY, payload),
    "ways": Check("rows go from owner to expert and back", EVERY, ways),
    "wire": Check("packets have headers", EVERY, wire),
    "control": Check("stores are acknowledged, loads requested", (WIDE,), control),
    "carried": Check("what is padding, or dropped, is counted", EVERY, carried),
    "rows": Check("experts multiply exactly their rows", EVERY, multiplied),
    "tokens": Check("every token is sent and combined", EVERY, tokens),
    "waits": Check("experts wait for rows, owners for results", WAITED, experts_wait),
    "sums": Check(
        "a token's sum waits for all its experts", (*TINY_NAMES, *TINY_ACROSS), tokens_wait
    ),
    "returns": Check("a sum waits for all rows that come back", (ONE_TOKEN,), rows_return),
    "starts": Check("nothing begins before its start", WAITED, starts),
    "aftermath": Check("nothing that matters ends last", EVERY, aftermath),
    "bounds": Check("no layer is faster than its bounds", ALL, bounds),
    "software": Check("the host launches what is listed", ALL, software),
    "frees": Check("a rank ends when its SMs are free", EVERY, frees),
    "sms": Check("no GPU uses more SMs than it has, in a chain", CHAINED, sms),
    "communication": Check("as many SMs communicate as are stated", EXCHANGED, communication),
    "same": Check(
        "the same layer gives the same schedule", (ONE_TOKEN, WIDE, *TINY_ACROSS), same_again
    ),
    "options": Check(
        "every value of an option runs or is refused", (ONE_TOKEN, *TINY_ACROSS), values
    ),
}
"""What a scheme must keep, by name, in the order in which it is examined."""
