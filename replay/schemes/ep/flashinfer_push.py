"""FlashInfer's push MegaMoE for Hopper: some twenty kernels, a row for each (token, GPU) both ways.

A round, in its order: the inbox of results is cleared, a counter goes up, and the last round's
acknowledgements are waited for; tokens count their experts and GPUs; one block reserves rows of
every peer's pool by an atomic there; a block for each token casts it and stores it to every GPU
that wants it, with a record for each of its experts, and whoever stores the last row of an (expert,
source) flags it. One block waits for all flags and adds counts up; rows are expanded, a copy for
each of their experts; the experts run as grouped GEMMs. Back, rows are grouped by (token, GPU), a
block adds up each group in FP32 and stores the sum to the token's owner, and the last for an owner
flags it; a warp waits for all flags, a block for each token adds up its rows, and the round is
acknowledged. No host waits.

With n ranks, r(t) remote GPUs of token t and In(g) foreign tokens for GPU g's experts, the payload
of GPU g's port is

    dispatch: up B_d x sum of r(t) over g's tokens, down B_d x In(g)
    combine:  up B_c x In(g), down B_c x sum of r(t) over g's tokens

``grouped_combine`` is an option behind BF16 GEMMs, off by default; here it is on. Left out: messages
that acknowledge a round, for which nobody waits within a layer; schedules that BF16 GEMMs prepare;
launches that a GPU without tokens leaves out. Blocks are taken to be one an SM, which stores and adds
at its rate.

Source: flashinfer-ai/flashinfer at 50fe366, ``flashinfer/moe_ep``:
``kernel_src/sm90/push_style_megamoe`` (``shim/protocol.py``, ``runner.py``, ``bf16_runner.py``,
``src/a2a/sm90_push_a2a_ops.cu``), with the options that
``backends/mega/kernel/sm90/fp8_fp8_bf16_push_cuda/config.py`` has by default.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import casting, tokens_read
from replay.model.compute.experts import separate_kernels
from replay.model.compute.replication import SHARED_NS
from replay.model.compute.shared_experts import shared_kernels
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.precision import SCALE_BLOCK, SCALE_BYTES
from replay.model.work.ragged import places
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.deepep.pushes import Pushes
from replay.schemes.ep.facts import FORWARD, Buffer

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

ID_BYTES, RECORD_BYTES, FLAG_BYTES = 4, 16, 8  # of an expert id or place, SlotMeta, a cell

ZEROES = Operation("zeroes of the inbox", moves="scales, or rows, of all (token, GPU)")
ROUND, ACKNOWLEDGED = "round", "acknowledgements of the last round"
COUNT = Operation("counts", moves="ids of experts, two places for each")
RESERVE, WAIT_ROWS, WAIT_RESULTS = "reservation", "wait for rows", "wait for results"
DISPATCHED = Operation("dispatch", moves="tokens")
EXPAND = Operation("expansion", moves="a row for each (token, expert), read and written")
CLEAR = Operation("groups cleared", 4, "a count for each (token, GPU)")
GROUP = Operation("groups", moves="a record for each row, its place in a group")
COMBINED = Operation("combine", moves="every result")
SUM = Operation("unpermute", moves="a row of each GPU for each token, their sums")
ACKNOWLEDGE = "acknowledgement"


class FlashInferPush(Scheme):
    """Rows pushed once to each GPU, expanded there, added up there, pushed back."""

    name = "flashinfer-push"
    summary = "FlashInfer's push MegaMoE: a row per GPU, expanded there"
    source = "flashinfer-ai/flashinfer 50fe366, moe_ep/kernel_src/sm90/push_style_megamoe"
    assumes = (
        "rows back are grouped in BF16 too, where that is an option; rows need not be of whole "
        "blocks of 128 values; acknowledgements of the last round have come; sums are BF16"
    )
    wins = "all-to-alls and `deepep`, by one row per GPU and no wait of the host"
    loses = (
        "one kernel that overlaps what its twenty do in turn, with copies for experts; many tokens against "
        "`deepep-v2`, by an inbox that is cleared and added up whole"
    )
    spares = MappingProxyType(
        {
            "host waits": "buffers have room for the worst case",
            "copies in memory": "rows are stored to where the expansion reads them",
        }
    )
    traffic = "copy"
    phases_separated = False
    gemm_types = dispatch_types = combine_types = frozenset({"bf16", "fp8"})
    passes = FORWARD
    most_ranks, most_topk = 32, 8  # kMaxEpSize, kMaxTopK
    even_experts = True
    validity = "Hopper, one node; all types FP8, or all BF16; up to 8 experts a token"

    def refuses(self, work: LayerWork) -> str:
        """Say if rows back, or rows to BF16 GEMMs, have another type than the GEMMs."""
        types = work.precision
        if reason := super().refuses(work):
            return reason
        if types.combine != types.gemm:
            return f"its rows back are {types.gemm} like its GEMMs, not {types.combine}"
        if types.gemm == "bf16" and types.dispatch != "bf16":
            return f"its bf16 GEMMs read rows as they come, which are {types.dispatch}"
        return ""

    def communication_sms(self, system: System) -> int | None:
        """All: a block for each token, or four on each SM."""
        return system.sm.num_sms

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """The symmetric window, with room for the worst case; expanded rows."""
        most = int(memory.tokens(work).max(initial=0)) * work.num_ranks
        topk = work.expert_ids.shape[1]
        window = most * (work.dispatch_row_bytes + topk * RECORD_BYTES + work.combine_row_bytes)
        rows = memory.on_each(work, most * topk)
        return (
            Buffer("symmetric window", memory.on_each(work, window), stays=True),
            Buffer("expanded rows", rows * work.operand_row_bytes, stays=True),
            Buffer("records", rows * RECORD_BYTES, stays=True),
        )

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Outputs of the experts, with room for the worst case."""
        most = int(memory.tokens(work).max(initial=0)) * work.num_ranks
        return memory.intermediates(work, memory.on_each(work, most * work.expert_ids.shape[1]))

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add a round."""
        begun, reserved = self._reserve(work, machine, start)
        flags = self._dispatch(work, machine, begun)
        ready = self._expand(work, machine, machine.gather(reserved, machine.ranks, flags))
        # Blocks of tokens leave hardly an SM: shared experts run behind the kernel.
        every = self.split(machine, blocks=machine.sms.count)
        ready = shared_kernels(machine, work, every, start, ready)
        pool = machine.sms.pool("sm", machine.sms.count)
        done = separate_kernels(machine, work, pool, ready)
        returned = self._combine(work, machine, done)
        return self._sum_up(work, machine, returned)

    # ---- dispatch --------------------------------------------------------------------------------

    def _reserve(self, work: LayerWork, machine: Machine, start: Tasks) -> tuple[Ints, Ints]:
        """Count rows and reserve room: (rank,) end of this, and when all peers' room is known."""
        costs, tokens, n = machine.costs, memory.tokens(work), work.num_ranks
        zeroes = MemoryTraffic(0 * tokens, memory.on_each(work, self._inbox(work)))
        cleared = machine.memory_kernel(Kind.LAYOUT, zeroes, start, ZEROES)
        counted = machine.small_kernels(Kind.LAYOUT, 0 * tokens, cleared, ROUND)
        known = machine.kernel(counted, ACKNOWLEDGED)
        known = machine.delay(DISPATCH.sync, costs.cache_load() + costs.poll(), known)
        choices = tokens * work.expert_ids.shape[1]
        counted = machine.small_kernels(Kind.LAYOUT, 3 * ID_BYTES * choices, known, COUNT)
        # Counts of the experts are read, an atomic goes there and back, places are written.
        began = machine.kernel(counted, RESERVE)
        taken = costs.remote_load() if n > 1 else costs.cache_load()
        done = machine.delay(DISPATCH.sync, 2 * costs.cache_load() + taken, began)
        src, dst = np.nonzero(~np.eye(n, dtype=bool))
        kinds = (Kind.COUNT_UP, Kind.COUNT_DOWN)
        told = machine.sync.flag(src, dst, FLAG_BYTES, done[src], stored="nothing", kinds=kinds)
        return done, machine.gather(told, dst, done)

    def _inbox(self, work: LayerWork) -> int:
        """Bytes that are cleared before a round: scales of FP8 rows, or whole rows."""
        most, row = int(memory.tokens(work).max(initial=0)), work.combine_row_bytes
        if work.precision.combine == "fp8":
            row = -(-work.shape.hidden // SCALE_BLOCK) * SCALE_BYTES
        return most * work.num_ranks * row

    def _dispatch(self, work: LayerWork, machine: Machine, reserved: Ints) -> Ints:
        """Store tokens to their GPUs: (rank,) when all rows for a GPU have been flagged."""
        begun, costs = machine.kernel(reserved, DISPATCHED), machine.costs
        sm = places(memory.tokens(work)) % machine.sms.count
        pushes = Pushes.of(work.copy_source, work.copy_rank, sm[work.copy_token], work.num_ranks)
        row, records = work.dispatch_row_bytes, pushes.total(work.copy_pairs) * RECORD_BYTES
        is_first = np.diff(work.copy_token, prepend=-1) != 0  # a token is cast once
        busy = casting(machine, work, pushes.total(is_first) * row)
        busy += costs.sm_store(pushes.rows * row + records)
        channels = self._channels(machine, "push-dispatch")
        pushed, arrived = pushes.push(machine, DISPATCH, channels, busy, row, begun)
        machine.order(tokens_read(machine, work, begun)[work.copy_token], pushed[pushes.of_row])
        machine.notes.follow("sent", work.copy_token, pushed[pushes.of_row])
        there = arrived.copy()
        away = np.flatnonzero(pushes.src != pushes.dst)
        src, dst = pushes.src[away], pushes.dst[away]
        there[away] = machine.transfers.store(
            DISPATCH,
            src,
            dst,
            0,
            pushed[away],
            meta_bytes=records[away],
        ).arrived
        group = pushes.of_row[work.pair_copy]
        key = work.pair_source * work.num_experts + work.pair_expert
        kinds = Kind.SIGNAL_UP, Kind.SIGNAL_DOWN
        used, which = np.unique(key, return_inverse=True)
        source, expert = np.divmod(used, work.num_experts)
        whole = machine.join(arrived[group], which, source, begun[source])
        machine.order(there[group], whole[which])
        home = work.placement.expert_rank[expert].astype(np.int64)
        return self._flag(machine, source, home, whole, kinds, begun)

    def _flag(
        self,
        machine: Machine,
        src: Ranks,
        dst: Ranks,
        whole: Ints,
        kinds: tuple[Kind, Kind],
        begun: Tasks,
    ) -> Ints:
        """Flag (flag,) what has been stored, behind a fence: (rank,) when all flags are seen."""
        costs = machine.costs
        phase = DISPATCH if kinds[0] == Kind.SIGNAL_UP else COMBINE
        seen = machine.delay(phase.sync, costs.visible() + costs.poll(), whole, dst)
        away = np.flatnonzero(src != dst)
        known = machine.sync.fence(phase, whole[away], src[away], stored="each")
        seen[away] = machine.sync.flag(src[away], dst[away], FLAG_BYTES, known, stored="nothing", kinds=kinds)
        sent = machine.gather(whole, src, begun)
        return machine.gather(seen, dst, sent)

    def _expand(self, work: LayerWork, machine: Machine, flagged: Ints) -> Tasks:
        """Add counts up and copy rows to their experts: (rank,) tasks."""
        each = work.num_experts // work.num_ranks
        begun = machine.kernel(flagged, WAIT_ROWS)
        adding = machine.costs.ns(SHARED_NS * each * work.num_ranks)
        counted = machine.delay(DISPATCH.sync, adding, begun)
        rows = memory.received_rows(work)
        moved = MemoryTraffic(
            rows * (work.dispatch_row_bytes + RECORD_BYTES),
            rows * (work.operand_row_bytes + RECORD_BYTES),
            rows,
        )
        return machine.memory_kernel(Kind.PERMUTE, moved, counted, EXPAND)

    # ---- combine ---------------------------------------------------------------------------------

    def _combine(self, work: LayerWork, machine: Machine, done: Ints) -> Ints:
        """Add results up by (token, GPU) and store sums to owners: (rank,) when all are flagged."""
        costs, rows = machine.costs, memory.received_rows(work)
        slots = memory.on_each(work, int(memory.tokens(work).max(initial=0)) * work.num_ranks)
        cleared = machine.small_kernels(Kind.UNPERMUTE, ID_BYTES * slots, done, CLEAR)
        moved = rows * (RECORD_BYTES + 2 * ID_BYTES)
        grouped = machine.small_kernels(Kind.UNPERMUTE, moved, cleared, GROUP)
        begun = machine.kernel(grouped, COMBINED)
        order = np.argsort(work.copy_rank, kind="stable")
        sm = np.empty(len(order), np.int64)
        sm[order] = places(np.bincount(work.copy_rank, minlength=work.num_ranks))
        pushes = Pushes.of(work.copy_rank, work.copy_source, sm % machine.sms.count, work.num_ranks)
        added = pushes.total(work.copy_pairs) * work.result_row_bytes
        back = work.combine_row_bytes
        busy = costs.sm_add(added, 0) + costs.sm_store(pushes.rows * back)
        channels = self._channels(machine, "push-combine")
        _, arrived = pushes.push(machine, COMBINE, channels, busy, back, begun)
        read = machine.stream(COMBINE.memory, added, pushes.src, begun[pushes.src])
        key, which = np.unique(pushes.src * work.num_ranks + pushes.dst, return_inverse=True)
        src, dst = np.divmod(key, work.num_ranks)
        whole = machine.join(arrived, which, src, begun[src])
        machine.order(read, whole[which])
        kinds = Kind.NOTIFY_UP, Kind.NOTIFY_DOWN
        return self._flag(machine, src, dst, whole, kinds, begun)

    def _sum_up(self, work: LayerWork, machine: Machine, returned: Ints) -> Tasks:
        """Add up the rows of each token, and end the round: (rank,) tasks."""
        tokens, owner = memory.tokens(work), work.source_rank
        seen = machine.kernel(returned, WAIT_RESULTS)
        read = np.bincount(work.copy_source, minlength=work.num_ranks) * work.combine_row_bytes
        if work.precision.combine != "fp8":  # whose scales say which rows have come
            read = tokens * work.num_ranks * work.combine_row_bytes
        moved = MemoryTraffic(read, tokens * work.result_row_bytes)
        summed = machine.memory_kernel(Kind.UNPERMUTE, moved, seen, SUM)
        machine.notes.follow("combined", np.arange(work.num_tokens), summed[owner])
        return machine.small_kernels(Kind.LAYOUT, 0 * tokens, summed, ACKNOWLEDGE)

    # ---- both ------------------------------------------------------------------------------------

    def _channels(self, machine: Machine, name: str) -> Ints:
        split = self.split(machine)
        return split.channels(name, machine.sms.count)
