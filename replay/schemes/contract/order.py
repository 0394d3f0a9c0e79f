"""Checks of who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.schemes.contract import basics
from replay.schemes.contract.bytes_on_ports import row_bytes
from replay.schemes.contract.case import Case
from replay.schemes.contract.graph_facts import Dependencies

if TYPE_CHECKING:
    from replay.engine import TaskGraph

WAYS_OUT, WAYS_IN = ("uplink", "nic-out"), ("downlink", "nic-in")
GEMMS = {Kind.GEMM1: "GEMM-1", Kind.GEMM2: "GEMM-2"}


def experts_wait(case: Case) -> Iterator[str]:
    """Waits of experts for their rows, and of owners for their experts' results."""
    work, waits, sizes = case.work, case.waits, row_bytes(case)
    carried = case.carried_layer.work
    first, second = case.gemm_tasks(Kind.GEMM1), case.gemm_tasks(Kind.GEMM2)
    ends = case.built.ends.tolist()
    before_end = [waits.before([end]) for end in ends]
    before_expert = {expert: waits.before(tasks) for expert, tasks in first.items()}
    after_expert = {expert: waits.after(tasks) for expert, tasks in second.items()}
    for owner, expert in np.ndindex(work.num_ranks, carried.num_experts):
        rows = int((carried.expert_ids[carried.source_rank == owner] == expert).sum())
        rank = int(carried.placement.expert_rank[expert])
        if not rows:
            continue
        before, end = before_expert.get(expert, set()), before_end[owner]
        who = f"expert {expert} of GPU {rank}"
        if owner not in before:  # the first tasks are the starts
            yield f"{who} does not wait for the start of GPU {owner}, whose rows it multiplies"
        if not end & set(second[expert]):
            yield f"GPU {owner} ends without waiting for {who}, which has rows of it"
        elif case.has_one_tile(expert) and not end.issuperset(first[expert] + second[expert]):
            yield f"GPU {owner} ends without waiting for all GEMM tasks of {who}"
        if rank == owner or case.scheme.traffic == "none":
            continue
        way_back = after_expert.get(expert, set()) & end
        for tasks, kind, gpu, ports, phase in (
            (before, Kind.DISPATCH_UP, owner, WAYS_OUT, "dispatch"),
            (before, Kind.DISPATCH_DOWN, rank, WAYS_IN, "dispatch"),
            (way_back, Kind.COMBINE_UP, rank, WAYS_OUT, "combine"),
            (way_back, Kind.COMBINE_DOWN, owner, WAYS_IN, "combine"),
        ):
            found = payload_over(case.built.graph, tasks, kind, gpu, ports)
            if found < rows * sizes[phase]:
                waiter = who if phase == "dispatch" else f"the end of GPU {owner}"
                where = ports[0] if len(case.routing.domains) == 1 else " or ".join(ports)
                yield (
                    f"{phase}: {waiter} waits for {found:,} bytes on the {where} of GPU "
                    f"{gpu}; the rows of GPU {owner} for {who} are {rows * sizes[phase]:,} bytes"
                )


def payload_over(graph: TaskGraph, tasks: set[int], kind: Kind, gpu: int, ports: tuple[str, ...]) -> int:
    """Payload of those of the tasks that are of a kind and on one of a GPU's ports."""
    ids = np.fromiter(tasks, np.int64, len(tasks))
    groups = np.array([*graph.resources.groups, "none"])[graph.resource[ids]]
    owner = np.append(graph.resources.owner, -1)[graph.resource[ids]]
    is_meant = (graph.kind[ids] == int(kind)) & np.isin(groups, ports) & (owner == gpu)
    return int(graph.payload_bytes[ids[is_meant]].sum())


def tokens_wait(case: Case) -> Iterator[str]:
    """Waits of experts for each token, and of each token's sum for all its experts."""
    waits = case.waits
    sent, combined = case.tasks_of_token("sent"), case.tasks_of_token("combined")
    tiles = {kind: case.gemm_tasks(kind) for kind in GEMMS}
    for token, row in enumerate(case.carried_layer.work.expert_ids[case.carried_layer.token].tolist()):
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
    """Wait of a rank's only token for every row that comes back to the rank."""
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


def stores_known(case: Case) -> Iterator[str]:
    """Stored rows that are used before the storing GPU knows that they are there, without a reason.

    To know takes a way back at least, also before a barrier or flag that claims to stand behind the
    rows. On `Case.far` nothing else takes as long. Rows that were asked for need none of it.
    """
    far, scheme = case.far, case.scheme
    graph, timeline, fabric = far.graph, far.timeline, far.machine.system.fabric
    waits, way_ps = Dependencies(timeline), fabric.uplink_latency_ps + fabric.downlink_latency_ps
    enters = np.isin(np.array([*graph.resources.groups, "none"])[graph.resource], WAYS_IN) & (graph.payload_bytes > 0)
    on_sm = np.isin(graph.resource, far.machine.sms.resources)
    multiplied = np.flatnonzero(on_sm & (graph.kind == int(Kind.GEMM1)))
    token, combined = far.machine.notes.remembered_tasks("combined")
    for phase, users, ranks, asked, kind in (
        ("dispatch", multiplied, graph.rank[multiplied], Kind.DISPATCH_REQUEST_UP, Kind.DISPATCH_DOWN),
        ("combine", combined, case.work.source_rank[token], Kind.COMBINE_REQUEST_UP, Kind.COMBINE_DOWN),
    ):
        if phase in scheme.unacknowledged or (graph.kind == int(asked)).any():
            continue
        rows = np.flatnonzero(enters & (graph.kind == int(kind)))
        for user, rank in sorted(set(zip(users.tolist(), ranks.tolist(), strict=True))):
            came = [row for row in waits.before([user]).intersection(rows.tolist()) if graph.rank[row] == rank]
            after_ps = min((int(timeline.start_ps[user] - timeline.visible_ps[row]) for row in came), default=way_ps)
            if after_ps < way_ps:
                yield (
                    f"{phase}: GPU {rank} uses a row {after_ps / way_ps:.2f} ways after it came, before who stored it "
                    "can know and tell: sync.barrier and sync.flag have stored='each'; unacknowledged says why not"
                )
                break


def starts(case: Case) -> Iterator[str]:
    """Tasks before `start`, and tokens that are sent before their rank begins."""
    yield from basics.starts(case)
    late = case.late
    added = np.arange(late.graph.num_tasks) >= late.first
    # A start itself may be followed: the rank begins when it is over.
    start_ps = np.where(added, late.timeline.start_ps, late.timeline.visible_ps)
    for token, tasks in case.tasks_of_token("sent", late.machine).items():
        rank = int(case.work.source_rank[token])
        leaves = min(int(start_ps[task]) for task in tasks)
        if leaves < late.begins_ps[rank]:
            yield (f"token {token} is sent at {leaves:,} ps; its rank {rank} starts at {late.begins_ps[rank]:,} ps")
