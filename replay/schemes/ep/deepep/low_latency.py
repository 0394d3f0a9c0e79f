"""DeepEP, first version, low-latency kernels, with masked grouped GEMMs between them.

One row per (token, expert) goes straight into a fixed slot at the expert's GPU, so that no count is
needed before; a count per (expert, source) follows as flag. One kernel's SMs first send and then,
after a barrier of the grid, receive:

- dispatch, send: token t on SM ``t mod SMs``, whose warps read it, cast it into a staging buffer,
  and copy it from there, a warp for each of its experts, which first asks for a slot there and then
  counts it, with a release. One warp of the first SM meanwhile clears
  the signals of the buffer that is used next, and says so for every expert.
- dispatch, receive: the group of warps of (expert, source) waits for its flag and packs the rows.
- combine, send: the group of (expert, owner) copies its rows, a row a warp, into the owner's slots,
  and flags its expert.
- combine, receive: blocks wait for the flags of all experts, the grid for all blocks; then token t
  is added up, weighted, on SM ``t mod SMs``, which waits for its rows in turn. They have just come,
  and are in the L2 cache as far as it has room.

A flag is a release of system scope, which takes longer the more peers its GPU stores to.

Buffers are doubled, for odd and even calls. A call writes into the buffer of the call before the
last, whose rows a peer has read before it flags those of the last: no barrier is needed.

With n ranks, e(t) remote pairs of token t and Ein(g) foreign pairs of GPU g's experts, the payload
of GPU g's port is

    dispatch: up B_d x sum of e(t) over g's tokens, down B_d x Ein(g)
    combine:  up B_c x Ein(g), down B_c x sum of e(t) over g's tokens

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/internode_ll.cu`` and the layout of
the buffers in ``config.hpp``. The combine's grid is that of versions before c5facf5 (August 2025),
which widened it to the tokens where these are more than experts: H100 was measured without that.

The module is long because the four halves share slots, counts and flags of one buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from replay.errors import UserError
from replay.model.compute import masked_gemms
from replay.model.compute.casts import cast_received, cast_results
from replay.model.compute.list_rows import ListedPart
from replay.model.compute.masked_tiles import MASKED_ROWS
from replay.model.compute.shared_experts import shared_kernels
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.work.ragged import places
from replay.model.work.stacks import ListOption
from replay.schemes.ep import memory
from replay.schemes.ep.deepep.beside_gemm import send
from replay.schemes.ep.deepep.buffers import HEADER_BYTES, low_latency_bytes
from replay.schemes.ep.deepep.flags import FlaggedRows, KernelFlags, store_flags, store_rows
from replay.schemes.ep.deepep.grid import HIDDEN_SIZES, Flows, WarpGrid, padded_bytes
from replay.schemes.ep.deepep.messages import TokenMessages, blocks_of_tokens
from replay.schemes.ep.facts import FORWARD, LIBRARY_WEIGHTS, Buffer
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmodel import System
    from replay.model.arrays import Bytes, Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Interleave, Stages

MOST_BLOCKS = 64  # blocks of tokens, per rank: what goes to one peer together in the model

CAST, SIGNALS = "topk_ids.to(int64)", "torch.zeros of signals"
SIGNAL_BYTES = 4
OVERLAP_SMS = 3  # on Hopper (compute_overlap_args)
LANES = 32
SOURCE_BYTES = 4  # index of a packed row at its source
SEND_UNROLL, PACK_UNROLL = 8, 7  # loads of a lane in flight (UNROLLED_WARP_COPY)
BULK_UNROLL = 4  # the same for rows that go through shared memory (TMA)
LOOK_UNROLL = 8  # the same where a block looks for the rows of its experts
COUNT_NS = 10  # of each expert, its rows counted by all blocks; fitted to 4096/8 up to 16 tokens

MOST_GROUPS = 14  # named barriers of a block
MOST_TOKENS = 1024  # FINISHED_SUM_TAG; SGLang refuses more


@dataclass(frozen=True)
class LowLatencyOptions(Options):
    """Options of the low-latency kernels."""

    hook: bool = option(
        False,
        "Whether dispatch and combine are two kernels each, one that sends and one that receives, "
        "so that no SM is held between them.",
        "return_recv_hook of deepseek-ai/DeepEP, off unless it is asked for",
    )
    overlap_sms: int = option(
        0,
        "SMs that send results while GEMM-2 runs on the others (needs `hook`); 0: results are sent after GEMM-2.",
        "SGLANG_DEEPEP_LL_COMBINE_SEND_NUM_SMS of sgl-project/sglang, 3 on Hopper where overlap is asked for",
        unit="SMs",
    )
    max_tokens: int = option(
        128,
        "Tokens per rank that the buffers have room for. The kernel that brings scales into order "
        "passes over all of the room. Layers with more tokens take what they need.",
        "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK of sgl-project/sglang",
        most=MOST_TOKENS,
    )


class LowLatencyDeepEp(StagedScheme):
    """One row per (token, expert) into fixed slots, masked GEMMs, rows back into fixed slots."""

    name = "deepep-ll"
    summary = "DeepEP V1 low-latency kernels: a row per expert into fixed slots"
    source = "deepseek-ai/DeepEP dd758ca, csrc/kernels/legacy/internode_ll.cu; SGLang's experts"
    assumes = (
        "the buffers of earlier calls are there and clean; rows are padded to the next hidden size "
        "that kernels are compiled for, GEMMs are not"
    )
    wins = (
        "few tokens: slots are fixed, nothing is counted, no host waits and a graph holds all; with `overlap_sms`, "
        "most of the sending hides behind GEMM-2"
    )
    loses = (
        "many tokens, by a row per expert and two kernels behind flags of everybody; with few `overlap_sms` and many "
        "tokens, sends that end far behind GEMM-2"
    )
    spares = MappingProxyType(
        {
            "host waits": "buffers have room for the worst case",
            "tokens cast": "the dispatch casts as it stages a token",
            "permutes": "rows have fixed slots",
            "kernels for sums": "rows go back as they are, and SMs of the owner add",
        }
    )
    traffic = "pair"
    weight_types = LIBRARY_WEIGHTS
    network = "direct"
    phases_separated = False
    gemm_types = dispatch_types = frozenset({"bf16", "fp8"})
    combine_types = frozenset({"bf16"})
    passes = FORWARD
    most_topk = 11  # kNumMaxTopK
    releases = "hook"
    interleaves = frozenset({"tbo", "dbo", "sbo"})
    validity = "decoding: up to 1024 tokens per GPU, 11 experts per token"
    options: LowLatencyOptions = LowLatencyOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say what of a layer the kernels have no code for; empty if nothing."""
        tokens = int(np.diff(work.tokens_of_rank).max(initial=0))
        hidden = work.shape.hidden
        if reason := super().refuses(work):
            return reason
        if tokens > MOST_TOKENS:
            return f"its kernels take {MOST_TOKENS} tokens per rank at most, a rank has {tokens}"
        if hidden > HIDDEN_SIZES[-1]:
            return f"its kernels take {HIDDEN_SIZES[-1]} values per row at most, not {hidden}"
        if self.options.overlap_sms and work.precision.gemm != "fp8":
            return f"results leave beside GEMM-2 where its kernel signals them, which is FP8, not {work.precision.gemm}"
        return ""

    def communication_sms(self, system: System) -> int | None:
        """All: as many blocks as there are experts, or a few experts a block."""
        return system.sm.num_sms

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """The library's buffer, which stays; rows packed by expert, with all their room."""
        symmetric = low_latency_bytes(self._room(work), work.shape.hidden, work.num_experts)
        slots = self._slots(work)
        packed = padded_bytes(work.dispatch_row_bytes, work.shape.hidden) + SOURCE_BYTES
        return (
            Buffer("symmetric buffer", memory.on_each(work, symmetric), stays=True),
            Buffer("packed rows", slots * packed),
            *((Buffer("signals of GEMM-2", self._signal_bytes(work)),) if self.options.overlap_sms else ()),
            *memory.cast_received(work, slots),
            *memory.cast_results(work, slots),
        )

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Outputs of the experts, with room for rows that do not come."""
        return memory.intermediates(work, self._slots(work))

    def _room(self, work: LayerWork) -> int:
        """Tokens of a rank that the buffers have room for."""
        return max(int(memory.tokens(work).max(initial=0)), self.options.max_tokens)

    def _slots(self, work: LayerWork) -> Ints:
        """(rank,): rows that the buffers of each rank's experts have room for."""
        experts = np.array([len(experts) for experts in work.experts_of_rank], np.int64)
        return experts * self._room(work) * work.num_ranks

    @property
    def list_options(self) -> Mapping[str, ListOption]:
        """Type and signals of masked experts; layers in FP8 do not run by the list, which is of BF16."""
        return {
            "fp8_experts": ListOption(False, "the type of products (--precision)"),
            "signals": ListOption(bool(self.options.overlap_sms), "its option overlap_sms"),
        }

    def interleave(self, kind: Interleave) -> Self:
        """The scheme with hooks; for "sbo", with a combine beside GEMM-2."""
        if kind == "sbo":
            return self.with_options({"overlap_sms": self.options.overlap_sms or OVERLAP_SMS})
        return self.with_options({"hook": True, "overlap_sms": 0})

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add the cast of expert ids, dispatch, masked experts and combine."""
        cast = ListedPart(machine, work, masked_gemms.IN_BF16, "dispatch").launch(CAST, start)
        received = yield (yield from self.dispatch(work, machine, cast))
        if self.options.overlap_sms:
            part = masked_gemms.listed_experts(machine, work)
            received = part.launch(SIGNALS, received, self._signal_bytes(work))
        slots = self._slots(work)
        rows, pool = work.matrix("pairs").sum(axis=0), machine.sms.for_kernels()
        ready = cast_received(machine, work, rows, received)
        # A group of warps per expert leaves hardly an SM: shared experts run behind the kernel.
        every = self.split(machine, blocks=machine.sms.count)
        ready = shared_kernels(machine, work, every, start, ready)
        expected = masked_gemms.expected_rows(work)
        if self.options.overlap_sms:
            operands = yield masked_gemms.masked_operands(
                machine, work, pool, ready, slots, scales_in_order=True, expected=expected
            )
            return (yield from self.combine_beside(work, machine, operands))
        done = masked_gemms.masked_kernels(machine, work, pool, ready, slots, scales_in_order=True, expected=expected)
        results = yield cast_results(machine, work, rows, done)
        return (yield from self.combine(work, machine, results))

    # ---- dispatch --------------------------------------------------------------------------------

    def dispatch(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add the dispatch kernel, or two: (rank,) marks of the end."""
        grid, n = self._grid(work, machine), work.num_ranks
        lanes, blocks = self._sms(machine, "ll-dispatch", grid)
        begun = machine.kernel(start, "dispatch")
        block = blocks_of_tokens(work, MOST_BLOCKS)
        messages = TokenMessages(work, work.pair_token, work.pair_rank, block)
        row = padded_bytes(work.dispatch_row_bytes, work.shape.hidden) + HEADER_BYTES
        ready = self._cast(work, machine, blocks, messages, block, row, begun)
        owner = np.arange(len(ready)) // messages.num_blocks
        src, dst = messages.owner, messages.other
        pair_src, pair_dst = np.divmod(np.arange(n * n), n)
        told = store_rows(
            machine,
            DISPATCH,
            FlaggedRows(
                src,
                dst,
                messages.rows,
                ready[src * messages.num_blocks + messages.block],
                group=src * n + dst,
            ),
            (work.dispatch_row_bytes, row - work.dispatch_row_bytes),
            (pair_src, pair_dst),
            self._look(work, machine, grid, begun),
            "stores",
        )
        # Threads that each have an expert poll its count until all blocks have added to it.
        costs, experts = machine.costs, grid.experts * n
        counted = machine.delay(
            DISPATCH.sync,
            costs.visible() + costs.poll() + costs.ns(COUNT_NS) * experts,
            told.groups,
            pair_src,
        )
        flows = Flows.of(work, grid)
        seen = store_flags(
            machine,
            DISPATCH,
            (Kind.SIGNAL_UP, Kind.SIGNAL_DOWN),
            flows.owner,
            flows.expert_rank,
            counted[flows.owner * n + flows.expert_rank],
        )
        sent = yield machine.gather(ready, owner, machine.gather(counted, pair_src, begun))
        met = (
            machine.kernel(sent, "dispatch, receive")
            if self._has_hook
            else machine.delay(DISPATCH.sync, costs.grid_barrier(), sent)
        )
        met = machine.gather(told.from_cards, machine.ranks, met)
        return self._pack(machine, grid, flows, lanes, row, seen, met)

    def _cast(
        self,
        work: LayerWork,
        machine: Machine,
        blocks: Ints,
        messages: TokenMessages,
        block: Ints,
        row: int,
        begun: Tasks,
    ) -> Ints:
        """Cast and copy tokens on the SMs: (rank x block,) marks when rows of a block can leave."""
        costs, source = machine.costs, work.source_rank
        # Read from memory, cast into the staging buffer, copied from the cache that it is in.
        a_token = costs.memory_load() + costs.warp_copy(row, unroll=SEND_UNROLL, readers=math.inf)
        chosen = np.bincount(work.pair_token, minlength=work.num_tokens)
        sent = machine.serve(
            blocks[source, places(np.diff(work.tokens_of_rank)) % blocks.shape[1]],
            a_token + costs.choices(chosen),
            kind=Kind.DISPATCH_SEND,
            rank=source,
            after=begun[source],
        )
        machine.notes.follow("sent", np.arange(work.num_tokens), sent)
        owner = np.arange(len(messages.tokens)) // messages.num_blocks
        moved = messages.tokens * (2 * work.shape.hidden + row)
        staged = machine.stream(DISPATCH.memory, moved, owner, begun[owner])
        return machine.join(sent, source * messages.num_blocks + block, owner, staged)

    def _look(self, work: LayerWork, machine: Machine, grid: WarpGrid, begun: Tasks) -> Tasks:
        """(rank,) tasks when each block knows the counts of its experts.

        One warp of every block looks at all choices. That of the first SM first clears the signals
        of the next buffer, and says so for 32 experts at a time, with a release each.
        """
        costs, experts = machine.costs, grid.experts * work.num_ranks
        choices = np.diff(work.tokens_of_rank) * work.expert_ids.shape[1]
        looking = costs.cache_load() * -(-choices // (LANES * LOOK_UNROLL))
        clearing = costs.memory_load() * -(-experts // LANES)
        return machine.delay(DISPATCH.sync, clearing + looking, begun)

    def _pack(
        self,
        machine: Machine,
        grid: WarpGrid,
        flows: Flows,
        lanes: Ints,
        row: int,
        seen: Ints,
        met: Ints,
    ) -> Ints:
        """Copy rows to where the GEMM reads them: (rank,) marks of the end."""
        full = np.flatnonzero(flows.rows)
        rank, rows = flows.expert_rank[full], flows.rows[full]
        sm, group = (each[full] for each in flows.group(grid))
        a_row = machine.costs.warp_copy(row, unroll=PACK_UNROLL)
        packed = machine.serve(
            lanes[rank, sm, group],
            a_row * -(-rows // grid.warps),
            kind=Kind.DISPATCH_RECEIVE,
            rank=rank,
            after=seen[full],
        )
        moved = machine.stream(DISPATCH.memory, 2 * rows * row, rank, seen[full])
        machine.order(met[rank], packed)
        machine.order(met[rank], moved)
        return machine.gather(
            np.concatenate((packed, moved, seen)),
            np.concatenate((rank, rank, flows.expert_rank)),
            met,
        )

    # ---- combine ---------------------------------------------------------------------------------

    def combine(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add the combine kernel, or two: (rank,) marks of the end."""
        grid, costs = self._grid(work, machine), machine.costs
        lanes, blocks = self._sms(machine, "ll-combine", grid)
        flows, begun = Flows.of(work, grid), machine.kernel(start, "combine")
        row = padded_bytes(work.combine_row_bytes, work.shape.hidden)
        messages = self._copy(machine, grid, flows, lanes, row, begun)
        told = self._send(work, machine, messages, row, flows.expert_rank, begun)
        # The warps of a group meet, then one of them flags.
        met = machine.delay(COMBINE.sync, costs.cache_load(), told.groups, flows.expert_rank)
        seen = self._flag(machine, flows, met)
        sent = yield machine.gather(met, flows.expert_rank, told.from_cards)
        if self.options.hook:
            sent = machine.kernel(sent, "combine, receive")
        return self._receive(work, machine, blocks, row, flows, seen, sent)

    def combine_beside(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add GEMM-2, the kernel that sends beside it, and the combine: (rank,) marks of the end.

        `start` are the (rank,) tasks after which GEMM-2 has its operands.
        """
        grid, costs, num_sms = self._grid(work, machine), machine.costs, self.options.overlap_sms
        split = self.split(machine, "overlap_sms", rest="multiply")
        pool = split.pool("sm-beside-combine", split.left)
        sms = split.channels("ll-combine-beside", num_sms)
        gemm = masked_gemms.signalling_kernel(machine, work, pool, start, split.left)
        flows, begun = Flows.of(work, grid), machine.kernel(start, "combine")
        row = padded_bytes(work.combine_row_bytes, work.shape.hidden)
        a_row = costs.warp_copy(row, unroll=BULK_UNROLL, readers=math.inf)
        out = send(machine, work, grid, flows, gemm, sms, a_row, row, begun)
        rank = np.arange(work.num_ranks * grid.experts) // grid.experts
        told = self._send(work, machine, out.rows, row, rank, begun)
        # Whoever counts the expert's last unit flags it to every rank.
        met = machine.delay(COMBINE.sync, costs.cache_load(), told.groups, rank)
        machine.order(out.ended, met[out.slot])
        flagged = met[flows.expert_rank * grid.experts + flows.local]
        seen = self._flag(machine, flows, flagged)
        over = machine.gather(gemm.end, machine.ranks, told.from_cards)
        sent = yield machine.gather(met, rank, over)
        sent = machine.kernel(sent, "combine, receive")
        _, blocks = self._sms(machine, "ll-combine", grid)
        return self._receive(work, machine, blocks, row, flows, seen, sent)

    def _send(
        self,
        work: LayerWork,
        machine: Machine,
        rows: FlaggedRows,
        row: int,
        of_group: Ints,
        begun: Tasks,
    ) -> KernelFlags:
        """Send rows of groups of ranks `of_group` (group,); signals are cleared meanwhile."""
        cleared = machine.delay(COMBINE.sync, machine.costs.memory_load(), begun)
        return store_rows(
            machine,
            COMBINE,
            rows,
            (work.combine_row_bytes, row - work.combine_row_bytes),
            (of_group, of_group),
            cleared,
            "bulk",
        )

    def _flag(self, machine: Machine, flows: Flows, after: Tasks) -> Tasks:
        """Flag every (expert, owner), with rows or without: (flow,) tasks when it is seen."""
        ways = (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN)
        return store_flags(machine, COMBINE, ways, flows.expert_rank, flows.owner, after)

    def _receive(
        self,
        work: LayerWork,
        machine: Machine,
        blocks: Ints,
        row: int,
        flows: Flows,
        seen: Ints,
        sent: Ints,
    ) -> Ints:
        """Wait for the flags, and add up: (rank,) marks of the end."""
        # A token's rows come behind several flags, so that all of them are waited for.
        all_seen = machine.gather(seen, flows.owner, sent)
        together = machine.delay(COMBINE.sync, machine.costs.grid_barrier(), all_seen)
        return self._add(work, machine, blocks, row, together)

    def _copy(self, machine: Machine, grid: WarpGrid, flows: Flows, lanes: Ints, row: int, begun: Tasks) -> FlaggedRows:
        """Copy rows on the SMs: messages that may leave.

        The warps of a group copy a row each, at the same time. The first rows are through after the
        time of one copy, and all of them when the SM could store so many bytes.
        """
        costs, pieces = machine.costs, flows.pieces()
        src, dst = flows.expert_rank[pieces.flow], flows.owner[pieces.flow]
        sm, group = (each[pieces.flow] for each in flows.group(grid))
        stored = machine.serve(
            lanes[src, sm, group],
            costs.sm_store(pieces.rows * row * grid.groups),
            kind=Kind.COMBINE_SEND,
            rank=src,
            after=begun[src],
        )
        read = machine.stream(COMBINE.memory, pieces.rows * row, src, begun[src])
        turn = pieces.before // grid.warps
        turns = int(turn.max(initial=0)) + 1
        rank, number = np.divmod(np.arange(machine.num_ranks * turns), turns)
        a_row = costs.warp_copy(row, unroll=BULK_UNROLL, readers=math.inf)
        copied = machine.delay(COMBINE.sync, a_row * (1 + number), begun[rank], rank)
        ready = machine.mark(src, copied[src * turns + turn])
        machine.order(stored, ready)
        machine.order(read, ready)
        return FlaggedRows(src, dst, pieces.rows, ready, group=pieces.flow)

    def _add(self, work: LayerWork, machine: Machine, blocks: Ints, row: int, together: Ints) -> Ints:
        """Add up the rows of each token, weighted: (rank,) marks of the end."""
        costs, owner = machine.costs, work.source_rank
        sources = np.bincount(work.pair_token, minlength=work.num_tokens)
        added = machine.serve(
            blocks[owner, places(np.diff(work.tokens_of_rank)) % blocks.shape[1]],
            costs.sm_add(sources * row, row),
            late=costs.memory_load() + costs.choices(sources),
            kind=Kind.COMBINE_RECEIVE,
            rank=owner,
            after=together[owner],
        )
        block = owner * MOST_BLOCKS + blocks_of_tokens(work, MOST_BLOCKS)
        rank = np.arange(work.num_ranks * MOST_BLOCKS) // MOST_BLOCKS
        rows, sums = np.zeros(len(rank), np.int64), np.bincount(block, minlength=len(rank))
        np.add.at(rows, block, sources)
        waiting = rows.reshape(work.num_ranks, -1).sum(axis=1) * row
        moved = costs.missed_bytes(rows * row, waiting[rank]) + sums * row
        streamed = machine.stream(COMBINE.memory, moved, rank, together[rank])
        done = machine.join(added, block, rank, streamed)
        machine.notes.follow("combined", np.arange(work.num_tokens), done[block])
        return machine.gather(done, rank, together)

    # ---- both ------------------------------------------------------------------------------------

    @property
    def _has_hook(self) -> bool:
        """Tell whether sending and receiving are kernels of their own."""
        return self.options.hook or self.options.overlap_sms > 0

    def _signal_bytes(self, work: LayerWork) -> Bytes:
        """(rank,): bytes of the signals that are cleared, one per block of the lowest tiles."""
        rows = self._room(work) * work.num_ranks
        experts = np.array([len(experts) for experts in work.experts_of_rank], np.int64)
        return SIGNAL_BYTES * experts * -(-rows // MASKED_ROWS[0])

    def _grid(self, work: LayerWork, machine: Machine) -> WarpGrid:
        """Grid of either kernel.

        Raises
        ------
        UserError
            If the GPU's blocks cannot serve so many experts.
        """
        grid = WarpGrid.of(work, machine)
        if grid.groups > MOST_GROUPS:
            message = (
                f"scheme {self.name!r}: {grid.experts * work.num_ranks} experts on "
                f"{machine.sms.count} SMs; its kernels serve {MOST_GROUPS} on each at most"
            )
            raise UserError(message)
        return grid

    def _sms(self, machine: Machine, group: str, grid: WarpGrid) -> tuple[Ints, Ints]:
        """(rank, SM, group) groups of warps, and (rank, SM) whole blocks, of the same SMs."""
        split = self.split(machine)
        lanes = split.warp_lanes(group, grid.num_sms, grid.groups)
        return lanes, split.channels(f"{group}-block", grid.num_sms, on=group)
