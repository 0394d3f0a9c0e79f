"""One-sided: rows are put into the receiver's memory, and results got from there.

A block takes a token. Its first thread reserves a place at each GPU of the token's experts, by an
atomic on a counter of its own GPU, one after the other; the block then reads each of the token's
fields - row, scales, ids, gate weights - once and stores it to all these GPUs, its own included.
The last block that is done tells every peer how many rows it has, and behind a fence that it is
done, and waits for all of theirs. Back, every block waits for the flags of all peers, reads the
token's rows from where they are and adds them up in registers.

Source: NVIDIA/TensorRT-LLM at 01f0021, ``moeAlltoAllKernels.cu``: `moeA2APrepareDispatchKernel`,
`moeA2ADispatchKernel`, `moeA2ASanitizeExpertIdsKernel`, `moeA2APrepareCombineKernel`,
`moeA2ACombineKernel`; sizes: `calculate_required_workspace_size` of ``nvlink_one_sided.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.list_rows import ListedPart, Software
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import places
from replay.schemes.ep import memory
from replay.schemes.ep.deepep.pushes import Pushes
from replay.schemes.ep.facts import Buffer

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Stored
    from replay.model.work.layer import LayerWork

LISTED = Software("tensorrt-llm", (("fused_sum", False),))
ID_BYTES, WEIGHT_BYTES, FLAG_BYTES = 4, 4, 4
BLOCKS = 8  # of 256 threads on an SM; no more for registers, which are not published
FIELDS = 2  # of a row beside it and its scales: ids, gate weights
ALIGNED = 128  # fields of the workspace

# Every other row of trtllm_alltoall.csv (replay/studies/validate/measurements) that is one-sided.
ATOMIC_NS = 2  # fitted to these: an atomic on counters that lie beside one another
ACQUIRE_NS = 15_000  # fitted to these: a fence that acquires, of each block of the combine

PREPARE, PUT = "clearing of counters", Operation("dispatch", moves="tokens")
SANITISE = "ids of no expert here"
READY = "results to where others read"
GET = Operation("combine", moves="a row of each GPU for each token, their sums")


def buffers(work: LayerWork) -> tuple[Buffer, ...]:
    """The workspace: room for all tokens of all GPUs, unquantised, both ways."""
    topk = work.expert_ids.shape[1]
    places_of = int(memory.tokens(work).max(initial=0)) * work.num_ranks
    row, beside = places_of * work.token_row_bytes, places_of * topk * ID_BYTES
    fields = (row, beside, beside, row)
    nbytes = sum(-(-one // ALIGNED) * ALIGNED for one in fields)
    return (Buffer("workspace", memory.on_each(work, nbytes), stays=True),)


def beside_bytes(work: LayerWork) -> int:
    """Bytes of the ids and gate weights beside a row."""
    return int(work.expert_ids.shape[1]) * (ID_BYTES + WEIGHT_BYTES)


def dispatch(work: LayerWork, machine: Machine, channels: Ints, start: Tasks) -> Ints:
    """Put tokens to their GPUs: (rank,) when all rows of all peers are there.

    Parameters
    ----------
    channels
        (rank, SM) resources.
    start
        (rank,): what the first kernel waits for.
    """
    costs, n = machine.costs, work.num_ranks
    reset = ListedPart(machine, work, LISTED, "dispatch").launch(PREPARE, start)
    begun = machine.kernel(reset, PUT)
    sm = places(memory.tokens(work)) % machine.sms.count
    pushes = Pushes.of(work.copy_source, work.copy_rank, sm[work.copy_token], n)
    row, beside = work.dispatch_row_bytes, beside_bytes(work)
    # Places are reserved one after the other, before anything is stored; other blocks go on.
    first = np.flatnonzero(np.diff(work.copy_token, prepend=-1))
    copies, owner = np.diff(np.append(first, len(work.copy_token))), work.copy_source[first]
    served = np.cumsum(copies)  # atomics of its GPU until a token has its places
    served -= (served - copies)[np.searchsorted(owner, owner)]
    looked = costs.memory_load() + costs.cache_load() * copies
    reserved = machine.delay(DISPATCH.send, looked + costs.ns(ATOMIC_NS) * served, begun[owner], rank=owner)
    pushed, arrived = pushes.push(machine, DISPATCH, channels, costs.sm_store(pushes.rows * (row + beside)), row, begun)
    machine.order(np.repeat(reserved, copies), pushed[pushes.of_row])
    machine.notes.follow("sent", work.copy_token, pushed[pushes.of_row])
    # Ids and weights are fields, and so packets, of their own.
    there = arrived.copy()
    away = np.flatnonzero(pushes.src != pushes.dst)
    src, dst, pairs = pushes.src[away], pushes.dst[away], pushes.rows[away]
    there[away] = machine.transfers.store(
        DISPATCH, src, dst, 0, pushed[away], rows=FIELDS * pairs, meta_bytes=beside // FIELDS
    ).arrived
    arrived = np.concatenate([arrived, there])
    machine.charge_copy(DISPATCH, memory.tokens(work) * (row + beside), machine.ranks, begun)
    # The last block of a GPU: counts and, when all has been acknowledged, flags.
    landed = machine.gather(arrived, np.tile(pushes.src, 2), begun)
    last = machine.delay(DISPATCH.sync, costs.cache_load(), landed)
    return _tell(machine, last, is_combine=False)


def _tell(machine: Machine, last: Ints, *, is_combine: bool) -> Ints:
    """Tell every peer, and wait for all: (rank,) marks."""
    costs, n = machine.costs, machine.num_ranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    if not is_combine:
        last = machine.delay(DISPATCH.sync, costs.release(n), last)
    kinds = (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN) if is_combine else (Kind.SIGNAL_UP, Kind.SIGNAL_DOWN)
    stored: Stored = "nothing" if is_combine else "each"  # results are read from where they lie
    told = machine.sync.flag(src, dst, FLAG_BYTES, last[src], stored=stored, kinds=kinds)
    return machine.gather(told, dst, last)


def sanitise(work: LayerWork, machine: Machine, arrived: Tasks) -> Tasks:
    """Write ids that are none into places without a token: (rank,) tasks."""
    most, topk = int(memory.tokens(work).max(initial=0)), work.expert_ids.shape[1]
    free = most * work.num_ranks - work.matrix("copies").sum(axis=0)
    return ListedPart(machine, work, LISTED, "dispatch").launch(SANITISE, arrived, free * topk * ID_BYTES)


def make_ready(work: LayerWork, machine: Machine, done: Ints, *, copies: bool) -> Tasks:
    """Begin the round in which peers read the experts' sums: (rank,) tasks.

    Parameters
    ----------
    copies
        Whether sums are copied to where peers read them.
    """
    part = ListedPart(machine, work, LISTED, "combine")
    if not copies:
        return part.launch(READY, done, memory.on_each(work, FLAG_BYTES))
    nbytes = work.matrix("copies").sum(axis=0) * work.combine_row_bytes
    return part.launch(READY, done, MemoryTraffic(nbytes, nbytes), Kind.UNPERMUTE)


def combine(work: LayerWork, machine: Machine, channels: Ints, done: Ints) -> Tasks:
    """Get each token's rows and add them up: (rank,) tasks.

    Parameters
    ----------
    channels
        (rank, SM) resources.
    done
        (rank,): results are where peers read them.
    """
    costs, back = machine.costs, work.combine_row_bytes
    met = _tell(machine, machine.kernel(done, GET), is_combine=True)
    owner, target, token = work.copy_source, work.copy_rank, work.copy_token
    sm = places(memory.tokens(work)) % machine.sms.count
    used, which = np.unique(token, return_inverse=True)
    of = work.source_rank[used].astype(np.int64)
    rows = np.bincount(which, minlength=len(used))
    # A block sees the flags, acquires what they tell of, and looks up where its rows are.
    looked = costs.ns(ACQUIRE_NS) + costs.cache_load()
    begins = machine.delay(COMBINE.send, looked, met[of], rank=of)
    asked, there = begins[which], begins[which]
    away = np.flatnonzero(owner != target)
    there[away] = machine.transfers.load(COMBINE, owner[away], target[away], back, asked[away]).arrived
    loaded = machine.join(there, which, of, met[of])
    added = machine.serve(
        channels[of, sm[used]],
        costs.sm_add(rows * back, back),
        kind=COMBINE.receive,
        rank=of,
        after=loaded,
    )
    number = places(np.bincount(of, minlength=work.num_ranks))
    waits = np.flatnonzero(number >= BLOCKS * machine.sms.count)
    machine.order(added[waits - BLOCKS * machine.sms.count], begins[waits])
    sums = np.full(len(used), work.result_row_bytes)
    written = machine.stream(COMBINE.memory, MemoryTraffic(0 * sums, sums), of, added)
    own = np.bincount(owner[owner == target], minlength=work.num_ranks) * back
    machine.charge_copy(COMBINE, own, machine.ranks, met)
    return machine.gather(written, of, met)
