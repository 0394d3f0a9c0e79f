"""The checks of the contract; each looks at one case and says in sentences what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.schemes.contract import basics
from replay.schemes.contract.basics import Check
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
    experts_wait,
    rows_return,
    starts,
    stores_known,
    tokens_wait,
)
from replay.schemes.ep.base import DROPPED, PADDED

if TYPE_CHECKING:
    from replay.model.work.layer import ExpertShape


def check_multiplied(case: Case) -> Iterator[str]:
    """Rows that each expert's GEMMs multiply."""
    graph, machine = case.unpadded_layer.graph, case.unpadded_layer.machine
    on_sm = np.isin(graph.resource, machine.sms.resources)
    for kind, name in GEMMS.items():
        done: Counter[tuple[int, int]] = Counter()
        tiles: Counter[tuple[int, int]] = Counter()
        for task in np.flatnonzero(on_sm & (graph.kind == kind)).tolist():
            done[int(graph.tag[task]), int(graph.rank[task])] += int(graph.duration_ps[task])
            tiles[int(graph.tag[task]), int(graph.rank[task])] += 1
        for expert, rank, rows, flops_of_row, what in _experts(case, kind):
            flops = done.pop((expert, rank), 0)
            # What else warps do for a tile takes less than a picosecond here, rounded up to one.
            if not 0 <= flops - rows * flops_of_row <= tiles[expert, rank]:
                found = flops / flops_of_row
                yield (
                    f"{name}: {what} {expert} multiplies {found:g} rows, {rows} are routed to it: "
                    + (f"{rows - found:g} forgotten" if found < rows else "too many")
                )
        for expert, gpu in done:
            yield (f"{name}: GPU {gpu} multiplies for expert {expert} (the tag of its tasks), which it does not have")


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


def check_carried(case: Case) -> Iterator[str]:
    """Rows that are carried out against those of the layer, and what is noted of the others."""
    work, done = case.work, case.carried_layer
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
        given = [len(ids) for ids in case.built.machine.notes.remembered_tasks(what)]
        if given[0] != given[1]:
            yield f'notes.follow("{what}", ...) was given {given[0]} tokens and {given[1]} tasks'
            return
    ids = case.carried_layer.work.expert_ids[case.carried_layer.token]
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


def values(case: Case) -> Iterator[str]:
    """Values of options, across domains on one layer."""
    smallest = TINY_ACROSS[0]
    if case.name in TINY_ACROSS[1:]:
        smaller = Case(case.scheme, smallest, ACROSS[smallest].make(), ACROSS[smallest].domain_size)
        if not smaller.refusal:
            return
    yield from basics.values(case)


EXCHANGED = ("zipf 8 ranks", "backward zipf fp8", WIDE)  # rows go between all GPUs
ALL = (*LAYERS, *ACROSS)
EVERY = tuple(name for name in ALL if name != ONE_SENDER)  # whose size only the bounds need

CHECKS = {
    "ends": Check("a layer is built, a task per rank returned", ALL, basics.ends),
    "payload": Check("every port carries its rows, to the byte", EVERY, payload),
    "ways": Check("rows go from owner to expert and back", EVERY, ways),
    "wire": Check("packets have headers", EVERY, wire),
    "control": Check("stores are acknowledged, loads requested", (WIDE,), control),
    "carried": Check("what is padding, or dropped, is counted", EVERY, check_carried),
    "rows": Check("experts multiply exactly their rows", EVERY, check_multiplied),
    "tokens": Check("every token is sent and combined", EVERY, tokens),
    "waits": Check("experts wait for rows, owners for results", WAITED, experts_wait),
    "sums": Check("a token's sum waits for all its experts", (*TINY_NAMES, *TINY_ACROSS), tokens_wait),
    "returns": Check("a sum waits for all rows that come back", (ONE_TOKEN,), rows_return),
    "told": Check("stored rows are used when their GPU has been told", (ONE_TOKEN, TINY_NAMES[0]), stores_known),
    "starts": Check("nothing begins before its start", WAITED, starts),
    "aftermath": Check("nothing that matters ends last", EVERY, basics.aftermath),
    "bounds": Check("no layer is faster than its bounds", ALL, bounds),
    "frees": Check("a rank ends when its SMs are free", EVERY, basics.frees),
    "sms": Check("no GPU uses more SMs than it has, in a chain", CHAINED, basics.sms),
    "communication": Check("as many SMs communicate as are stated", EXCHANGED, basics.communication),
    "same": Check("the same layer gives the same schedule", (ONE_TOKEN, WIDE, *TINY_ACROSS), basics.same_again),
    "options": Check("every value of an option runs or is refused", (ONE_TOKEN, *TINY_ACROSS), values),
}
"""What a scheme must keep, by name, in the order in which it is examined."""
