"""The checks: each looks at one case and says in sentences what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.contract import counting
from replay.contract.case import Case
from replay.contract.layers import LAYERS, ONE_SENDER, ONE_TOKEN, TINY_NAMES, WAITED, WIDE
from replay.contract.reading import port_bytes
from replay.graph import schedule
from replay.machine.kinds import Kind
from replay.run.layer import replay_layer

if TYPE_CHECKING:
    from replay.graph import TaskGraph

PORTS = {
    ("dispatch", "uplink"): ("sends", "the rows of its tokens"),
    ("dispatch", "downlink"): ("receives", "its experts' rows"),
    ("combine", "uplink"): ("sends", "its experts' results"),
    ("combine", "downlink"): ("receives", "the results of its tokens"),
}
GEMMS = {Kind.GEMM1: "GEMM-1", Kind.GEMM2: "GEMM-2"}

# Work that nobody waits for: acknowledgements, and room given back when no row needs it any more.
AFTERMATH = {
    Kind.DISPATCH_ACK_UP, Kind.DISPATCH_ACK_DOWN, Kind.COMBINE_ACK_UP, Kind.COMBINE_ACK_DOWN,
    Kind.COMBINE_SYNC, Kind.DISPATCH_SYNC,
}  # fmt: skip

HEADER = 9 / 8  # every 128 bytes of data have a header flit of 16
LEAST_CONTROL = 0.22 / 9  # flits that come back for a packet: an acknowledgement's share of one


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
    """What `build` returned."""
    found, graph = np.asarray(case.built.ends), case.built.graph
    ranks = case.work.num_ranks
    if found.shape != (ranks,) or not np.issubdtype(found.dtype, np.integer):
        yield (
            f"build must return one task per rank, whole numbers of shape ({ranks},); it returned "
            f"{found.dtype} of shape {found.shape}"
        )
    elif ((found < 0) | (found >= graph.num_tasks)).any():
        yield f"build returned numbers that are no tasks; the graph has {graph.num_tasks}"


def payload(case: Case) -> Iterator[str]:
    """Payload of every port against a count token by token."""
    sizes = row_bytes(case)
    got = port_bytes(case.built.graph)
    wanted = counting.port_rows(case.routing, case.scheme.traffic)
    for (phase, direction), (verb, rows) in PORTS.items():
        for gpu in range(case.work.num_ranks):
            carried = got[phase][direction, gpu]
            expected = wanted[phase][direction, gpu] * sizes[phase]
            if carried != expected:
                yield (
                    f"{phase}: GPU {gpu} {verb} {carried:,} bytes, {rows} are {expected:,} bytes: "
                    f"{_difference(expected - carried, sizes[phase])}"
                )
    graph = case.built.graph
    groups = np.array([*graph.resources.groups, "none"])
    off = (graph.payload_bytes > 0) & ~np.isin(groups[graph.resource], ("uplink", "downlink"))
    if off.any():
        yield (
            f"{off.sum()} tasks carry payload on {groups[graph.resource[off][0]]!r}: payload is "
            "counted on uplinks and downlinks alone"
        )


def row_bytes(case: Case) -> dict[str, int]:
    """Bytes of a row each way, from the definition of the precisions."""
    hidden, name = case.work.shape.hidden, case.work.precision.name
    scales = 4 * -(-hidden // 128)
    return {
        "dispatch": {"bf16": 2 * hidden, "fp8": hidden + scales, "fp32": 4 * hidden}[name],
        "combine": {"bf16": 2 * hidden, "fp8": 2 * hidden, "fp32": 4 * hidden}[name],
    }


def _difference(missing: int, row: int) -> str:
    rows, rest = divmod(abs(missing), row)
    amount = f"{abs(missing):,} bytes" if rest else "a row" if rows == 1 else f"{rows:,} rows"
    verb = "is" if amount == "a row" or abs(missing) == 1 else "are"
    amount = amount.removesuffix("s") if abs(missing) == 1 else amount
    return f"{amount} {verb} {'missing' if missing > 0 else 'too many'}"


def wire(case: Case) -> Iterator[str]:
    """Wire bytes against payload."""
    graph = case.built.graph
    carried = port_bytes(graph, "wire")
    for phase, ports in port_bytes(graph).items():
        for (direction, gpu), nbytes in ports.items():
            if carried[phase][direction, gpu] < nbytes * HEADER:
                yield (
                    f"{phase}: the {direction} of GPU {gpu} carries {nbytes:,} bytes of payload in "
                    f"{carried[phase][direction, gpu]:,} bytes on the wire: headers are missing"
                )


def control(case: Case) -> Iterator[str]:
    """Acknowledgements of stores, requests of loads."""
    graph = case.built.graph
    for phase, there, back in (
        ("dispatch", "DISPATCH_UP", ("DISPATCH_ACK_DOWN", "DISPATCH_REQUEST_DOWN")),
        ("combine", "COMBINE_UP", ("COMBINE_ACK_DOWN", "COMBINE_REQUEST_DOWN")),
    ):
        sends = graph.kind == Kind[there]
        against = np.isin(graph.kind, [Kind[name] for name in back])
        for gpu in range(case.work.num_ranks):
            data = int(graph.wire_bytes[sends & (graph.rank == gpu)].sum())
            answers = int(graph.wire_bytes[against & (graph.rank == gpu)].sum())
            if answers < LEAST_CONTROL * data:
                yield (
                    f"{phase}: GPU {gpu} sends {data:,} bytes on the wire, and {answers:,} bytes "
                    "of acknowledgements or requests come to it: stores are acknowledged, loads "
                    "are requested"
                )


def multiplied(case: Case) -> Iterator[str]:
    """Rows that each expert's GEMMs multiply."""
    graph, shape = case.unpadded.graph, case.work.shape
    rank_of, rows = case.work.placement.expert_rank, case.by_expert()
    flops_of_row = {
        Kind.GEMM1: 2 * shape.hidden * shape.intermediate * (2 if shape.gated else 1),
        Kind.GEMM2: 2 * shape.intermediate * shape.hidden,
    }
    for kind, name in GEMMS.items():
        done: Counter[tuple[int, int]] = Counter()
        for task in np.flatnonzero(graph.kind == kind).tolist():
            done[int(graph.tag[task]), int(graph.rank[task])] += int(graph.duration_ps[task])
        for expert, count in enumerate(rows.tolist()):
            flops = done.pop((expert, int(rank_of[expert])), 0)
            if flops != count * flops_of_row[kind]:
                said = flops / flops_of_row[kind]
                yield (
                    f"{name}: expert {expert} multiplies {said:g} rows, {count} are routed to it: "
                    + (f"{count - said:g} forgotten" if said < count else "too many")
                )
        for expert, gpu in done:
            yield (
                f"{name}: GPU {gpu} multiplies for expert {expert} (the tag of its tasks), which "
                "it does not have"
            )


def tokens(case: Case) -> Iterator[str]:
    """Every token leaves, and is combined before its rank ends."""
    timeline, work = case.timeline, case.work
    sent, combined = case.tasks_of_token("sent"), case.tasks_of_token("combined")
    for what in ("sent", "combined"):
        given = [len(ids) for ids in case.built.machine.notes.followed(what)]
        if given[0] != given[1]:
            yield f'notes.follow("{what}", ...) was given {given[0]} tokens and {given[1]} tasks'
            return
    routed = np.flatnonzero((work.expert_ids >= 0).any(axis=1)).tolist()
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


def aftermath(case: Case) -> Iterator[str]:
    """What comes after the last rank's end."""
    timeline = case.timeline
    late = timeline.visible_ps > timeline.visible_ps[case.built.ends].max()
    kinds = {Kind(kind) for kind in case.built.graph.kind[late].tolist()} - AFTERMATH
    if kinds:
        names = ", ".join(sorted(kind.name for kind in kinds))
        yield f"tasks of kind {names} end after the last rank does: the ends must wait for them"


def experts_wait(case: Case) -> Iterator[str]:
    """Experts wait for their rows, and owners for their experts' results."""
    work, waits, sizes = case.work, case.waits, row_bytes(case)
    first, second = case.gemm_tasks(Kind.GEMM1), case.gemm_tasks(Kind.GEMM2)
    ends = case.built.ends.tolist()
    for owner, expert in np.ndindex(work.num_ranks, work.num_experts):
        rows = int((work.expert_ids[work.source_rank == owner] == expert).sum())
        rank = int(work.placement.expert_rank[expert])
        if not rows:
            continue
        before, end = waits.before(first[expert]), waits.before([ends[owner]])
        who = f"expert {expert} of GPU {rank}"
        if owner not in before:  # the first tasks are the starts
            yield f"{who} does not wait for the start of GPU {owner}, whose rows it multiplies"
        if not end & set(second[expert]):
            yield f"GPU {owner} ends without waiting for {who}, which has rows of it"
        elif case.has_one_tile(expert) and not end.issuperset(first[expert] + second[expert]):
            yield f"GPU {owner} ends without waiting for all GEMM tasks of {who}"
        if rank == owner or case.scheme.traffic == "none":
            continue
        way_back = waits.after(second[expert]) & end
        for tasks, kind, gpu, direction, phase in (
            (before, Kind.DISPATCH_UP, owner, "uplink", "dispatch"),
            (before, Kind.DISPATCH_DOWN, rank, "downlink", "dispatch"),
            (way_back, Kind.COMBINE_UP, rank, "uplink", "combine"),
            (way_back, Kind.COMBINE_DOWN, owner, "downlink", "combine"),
        ):
            carried = payload_over(case.built.graph, tasks, kind, gpu, direction)
            if carried < rows * sizes[phase]:
                waiter = who if phase == "dispatch" else f"the end of GPU {owner}"
                yield (
                    f"{phase}: {waiter} waits for {carried:,} bytes on the {direction} of GPU "
                    f"{gpu}; the rows of GPU {owner} for {who} are {rows * sizes[phase]:,} bytes"
                )


def payload_over(graph: TaskGraph, tasks: set[int], kind: Kind, gpu: int, direction: str) -> int:
    """Payload of those of the tasks that are of a kind and on a port."""
    port = graph.resources.names.index(f"{direction} {gpu}")
    return sum(
        int(graph.payload_bytes[task])
        for task in tasks
        if graph.kind[task] == kind and graph.resource[task] == port
    )


def tokens_wait(case: Case) -> Iterator[str]:
    """Experts wait for each token, and each token's sum for all its experts."""
    waits = case.waits
    sent, combined = case.tasks_of_token("sent"), case.tasks_of_token("combined")
    tiles = {kind: case.gemm_tasks(kind) for kind in GEMMS}
    for token, row in enumerate(case.work.expert_ids.tolist()):
        if token not in sent or token not in combined:
            continue  # `tokens` says so
        after, before = waits.after(sent[token]), waits.before(combined[token])
        for expert in (expert for expert in row if expert >= 0):
            for kind, name in GEMMS.items():
                of_expert = set(tiles[kind][expert])
                whole = case.has_one_tile(expert)
                if not (of_expert & after and (not whole or of_expert <= after)):
                    yield f"{name} of expert {expert} does not wait until token {token} is sent"
                elif not (of_expert & after & before and (not whole or of_expert <= before)):
                    yield f"token {token} is combined before {name} of its expert {expert}"


def rows_return(case: Case) -> Iterator[str]:
    """The only token of a rank waits for every row that comes back to the rank."""
    graph, waits, combined = case.built.graph, case.waits, case.tasks_of_token("combined")
    back = np.flatnonzero((graph.kind == Kind.COMBINE_DOWN) & (graph.payload_bytes > 0)).tolist()
    for token, rank in enumerate(case.work.source_rank.tolist()):
        arriving = {task for task in back if graph.rank[task] == rank}
        if token not in combined:
            continue  # `tokens` says so
        unheeded = arriving - waits.before(combined[token])
        if unheeded:
            yield (
                f"token {token} is combined without waiting for {len(unheeded)} of "
                f"{len(arriving)} messages with its results"
            )


def starts(case: Case) -> Iterator[str]:
    """Nothing begins before `start`, where the ranks begin at different times."""
    late = case.late
    graph = late.timeline.graph
    added = np.arange(graph.num_tasks) >= late.first
    # A start itself may be followed: the rank begins when it is over.
    start_ps = np.where(added, late.timeline.start_ps, late.timeline.visible_ps)
    works = (graph.duration_ps > 0) | (graph.resource >= 0)
    early = np.flatnonzero(added & works & (start_ps < late.begins_ps.min()))
    if len(early):
        kind = Kind(int(graph.kind[early[0]])).name
        yield (
            f"{len(early)} tasks, such as one of kind {kind}, begin before any rank's start: they "
            "wait for nothing"
        )
    for token, tasks in case.tasks_of_token("sent", late.machine).items():
        rank = int(case.work.source_rank[token])
        leaves = min(int(start_ps[task]) for task in tasks)
        if leaves < late.begins_ps[rank]:
            yield (
                f"token {token} is sent at {leaves:,} ps; its rank {rank} starts at "
                f"{late.begins_ps[rank]:,} ps"
            )


def bounds(case: Case) -> Iterator[str]:
    """The layer's time against the bounds that no schedule can beat."""
    measures = replay_layer(case.work, case.system, case.scheme).measures
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


def same_again(case: Case) -> Iterator[str]:
    """A second build gives the same schedule."""
    again = Case(case.scheme, case.name, case.work)
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


def ways(case: Case) -> Iterator[str]:
    """Payload from GPU to GPU, where every message has one source and one destination."""
    if case.scheme.traffic not in ("pair", "copy"):
        return
    sent = counting.messages(case.routing, case.scheme.traffic)
    there = Counter((source, ranks[0]) for source, ranks in sent)
    back = Counter({(rank, source): rows for (source, rank), rows in there.items()})
    sizes = row_bytes(case)
    for phase, rows in (("dispatch", there), ("combine", back)):
        got = _payload_by_way(case.built.graph, phase)
        for way in sorted(got.keys() | rows.keys()):
            expected = rows[way] * sizes[phase]
            if got[way] != expected:
                yield (
                    f"{phase}: GPU {way[0]} sends {got[way]:,} bytes to GPU {way[1]}, the rows "
                    f"from the one to the other are {expected:,} bytes"
                )


def _payload_by_way(graph: TaskGraph, phase: str) -> Counter[tuple[int, int]]:
    up_kind, down_kind = Kind[f"{phase.upper()}_UP"], Kind[f"{phase.upper()}_DOWN"]
    source = {}
    for src, dst in zip(*(ids.tolist() for ids in graph.edges()), strict=True):
        if graph.kind[src] == up_kind and graph.kind[dst] == down_kind:
            source[dst] = int(graph.resources.owner[graph.resource[src]])
    found: Counter[tuple[int, int]] = Counter()
    for task in np.flatnonzero((graph.kind == down_kind) & (graph.payload_bytes > 0)).tolist():
        reached = int(graph.resources.owner[graph.resource[task]])
        found[source.get(task, -1), reached] += int(graph.payload_bytes[task])
    return found


def values(case: Case) -> Iterator[str]:
    """Every value that an option names runs, or is refused in words."""
    from replay.contract.examine import failure
    from replay.errors import UserError
    from replay.schemes.options import about

    for one in about(case.scheme.options):
        tried: list[object] = [*one.choices]
        if isinstance(one.default, bool):
            tried = [True, False]
        elif one.least is not None:
            tried = [type(one.default)(one.least)]
        for value in [*tried, *case.scheme.candidates.get(one.name, ())]:
            try:
                changed = case.scheme.with_options({one.name: value})
                schedule(Case(changed, case.name, case.work).built.graph)
            except UserError:
                continue
            except Exception as error:  # whatever a scheme's own code does wrong is a finding
                yield f"with {one.name}={value}, {failure(case.scheme, error)}"
    for name, candidates in case.scheme.candidates.items():
        if getattr(case.scheme.options, name, None) not in candidates:
            yield f"candidates of {name} do not hold its default, or there is no such option"


EVERY = tuple(name for name in LAYERS if name != ONE_SENDER)  # whose size only the bounds need

CHECKS = {
    "ends": Check("a layer is built, a task per rank returned", tuple(LAYERS), ends),
    "payload": Check("every port carries its rows, to the byte", EVERY, payload),
    "ways": Check("rows go from owner to expert and back", EVERY, ways),
    "wire": Check("packets have headers", EVERY, wire),
    "control": Check("stores are acknowledged, loads requested", (WIDE,), control),
    "rows": Check("experts multiply exactly their rows", EVERY, multiplied),
    "tokens": Check("every token is sent and combined", EVERY, tokens),
    "waits": Check("experts wait for rows, owners for results", WAITED, experts_wait),
    "sums": Check("a token's sum waits for all its experts", TINY_NAMES, tokens_wait),
    "returns": Check("a sum waits for all rows that come back", (ONE_TOKEN,), rows_return),
    "starts": Check("nothing begins before its start", WAITED, starts),
    "aftermath": Check("nothing that matters ends last", EVERY, aftermath),
    "bounds": Check("no layer is faster than its bounds", tuple(LAYERS), bounds),
    "same": Check("the same layer gives the same schedule", (ONE_TOKEN, WIDE), same_again),
    "options": Check("every value of an option runs or is refused", (ONE_TOKEN,), values),
}
