"""DySHARP: multicast to, and reduction from, a different set of GPUs for every token.

Source: arXiv 2605.05607 (ISCA 2026), sections III and IV; a proposal, no switch does this today.
Dispatch is a push: one packet stream leaves the source and the switch copies it once per port that
hosts an expert of the token. Combine is a pull by the token's owner: the request is copied to the
same GPUs, each answers with the sum of its experts' rows (weighted in GEMM-2's epilogue), the
switch adds the answers. Hardware allocates a dense slot for a row on arrival, so that nothing is
counted or exchanged beforehand. Token-centric fusion runs dispatch, both GEMMs and combine in one
kernel with persistent blocks: a tile of 128 rows starts when its slots are full, a token is
combined when its rows are ready.

Three variants, one mechanism: `DySharp` (in-switch computing and fusion), `DySharpBasic` (in-switch
computing, kernels one after the other), `DySharpFusionOnly` (fusion over ordinary stores and
loads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from replay.errors import UserError, unknown
from replay.in_switch import Naming
from replay.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.base import NoOptions, Scheme, at_least
from replay.schemes.experts import Gemm, fused_tiles, row_tiles, separate_kernels
from replay.schemes.weight_gradients import DOWN, UP, weight_gradient_tasks

if TYPE_CHECKING:
    from replay.machine import Ints, Machine
    from replay.work import LayerWork

SLOTS = ("arrival", "source")
TILE_ORDERS = ("arrival", "expert")
TILE_ROWS = 128  # rows of a tile (section IV)
NOTIFY_BYTES = 8  # one counter update; the paper gives no size, a flit holds it


@dataclass(frozen=True)
class BasicOptions(NoOptions):
    """Options of the variant without overlap.

    Attributes
    ----------
    dispatch_sms, combine_sms
        SMs that push and pull; in the fused variants the two GEMM groups share the rest. The paper
        gives no numbers.
    target_flits
        Flits of target lists added to every dispatch packet and combine request, on every leg: one
        holds the expert ids of eight targets. Whether the switch strips it is not stated.
    """

    dispatch_sms: int = 8
    combine_sms: int = 8
    target_flits: int = 1

    def check(self) -> None:
        """See `NoOptions.check`."""
        at_least("dysharp-basic", 1, dispatch_sms=self.dispatch_sms, combine_sms=self.combine_sms)
        at_least("dysharp-basic", 0, target_flits=self.target_flits)


@dataclass(frozen=True)
class FusedOptions(NoOptions):
    """Options of the fused kernel.

    Attributes
    ----------
    dispatch_sms, combine_sms
        See `BasicOptions`. Without the switch each row is stored once for every GPU: twelve SMs, as
        many as DeepEP's kernels have senders, keep the port busy.
    slots
        How rows get their slots in the tiles: ``"arrival"`` (the proposal: the first free one) or
        ``"source"`` (fixed beforehand, in order of source and token, as software would).
    tile_order
        Which ready tile goes first: ``"expert"`` (lowest expert, so that its tiles share weights in
        the L2 cache) or ``"arrival"`` (see `fused_tiles`). The paper does not say.
    weight_passes
        How often an expert's weights are read from HBM (see `gemm_tasks`).
    """

    dispatch_sms: int = 12
    combine_sms: int = 8
    slots: str = "arrival"
    tile_order: str = "expert"
    weight_passes: int = 1

    def check(self) -> None:
        """See `NoOptions.check`."""
        at_least(
            "dysharp", 1, dispatch_sms=self.dispatch_sms, combine_sms=self.combine_sms,
            weight_passes=self.weight_passes,
        )  # fmt: skip
        for name, known in (("slots", SLOTS), ("tile_order", TILE_ORDERS)):
            value = getattr(self, name)
            if value not in known:
                raise unknown(f"{name} of scheme 'dysharp'", value, known)


@dataclass(frozen=True)
class DySharpOptions(FusedOptions):
    """Options of the fused kernel with in-switch computing.

    Attributes
    ----------
    dispatch_sms, target_flits
        See `BasicOptions`; a row is stored once for all GPUs.
    """

    dispatch_sms: int = 8
    target_flits: int = 1

    def check(self) -> None:
        """See `NoOptions.check`."""
        super().check()
        at_least("dysharp", 0, target_flits=self.target_flits)


class DySharp(Scheme):
    """Dynamic multicast, in-switch reduction, token-centric fusion of the whole layer."""

    name: ClassVar[str] = "dysharp"
    summary: ClassVar[str] = "DySHARP: dynamic in-switch multicast and reduction, fused layer"
    source: ClassVar[str] = "arXiv 2605.05607 sections III-IV"
    assumes: ClassVar[str] = (
        "proposed switch and GPU hardware; 8 + 8 SMs for dispatch and combine; one answer a GPU; "
        "own copies stay local; a partial tile starts when its expert's rows are all there"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"multicast", "reduction"})
    proposes: ClassVar[frozenset[str]] = frozenset({"dynamic-multicast"})
    traffic: ClassVar[str] = "switch"
    phases_separated: ClassVar[bool] = False
    Options: ClassVar[type[NoOptions]] = DySharpOptions

    in_switch: ClassVar[bool] = True

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add the fused kernel."""
        begun = machine.kernel(start)
        arrived = self._dispatch(work, machine, begun)
        ready, leftover = self._experts(work, machine, begun, arrived)
        ends = self._combine(work, machine, begun, ready)
        return machine.gather(*leftover, ends) if work.is_backward else ends

    # ---- dispatch --------------------------------------------------------------------------------

    def _dispatch(self, work: LayerWork, machine: Machine, begun: Ints) -> Ints:
        """Push every token: (copy,) tasks, visible when the copy is in its GPU's memory."""
        graph, row_bytes = machine.graph, work.dispatch_row_bytes
        pool = machine.sm_pool("dysharp-dispatch", self.options.dispatch_sms)
        remote = np.flatnonzero(work.copy_is_remote)
        if self.in_switch:
            sends, of = np.unique(work.copy_token[remote], return_inverse=True)
        else:
            sends, of = work.copy_token[remote], np.arange(len(remote))
        src = work.source_rank[sends]
        stored = graph.add(
            len(sends),
            resource=pool[src],
            duration_ps=machine.system.sm.push_ps(np.full(len(sends), row_bytes)),
            kind=DISPATCH.send,
            rank=src,
            after=begun[src],
        )
        machine.follow("sent", sends, stored)
        arrived = np.empty(len(work.copy_token), np.int64)
        if self.in_switch:
            arrived[remote] = machine.multicast(
                DISPATCH, src, of, work.copy_rank[remote], row_bytes, stored,
                naming=Naming(self.options.target_flits, self.options.target_flits),
            ).arrived  # fmt: skip
        else:
            arrived[remote] = machine.push(DISPATCH, src, work.copy_rank[remote], row_bytes, stored)
        # The own copy is written to the own memory; the same SMs do it.
        local = np.flatnonzero(~work.copy_is_remote)
        rank = work.copy_rank[local]
        arrived[local] = graph.add(
            len(local),
            resource=pool[rank],
            duration_ps=machine.system.sm.push_ps(np.full(len(local), row_bytes)),
            latency_ps=machine.system.fabric.write_visibility_ps,
            kind=DISPATCH.send,
            rank=rank,
            after=begun[rank],
        )
        machine.follow("sent", work.copy_token[local], arrived[local])
        return arrived

    # ---- experts ---------------------------------------------------------------------------------

    def _experts(
        self, work: LayerWork, machine: Machine, begun: Ints, arrived: Ints
    ) -> tuple[Ints, tuple[Ints, Ints]]:
        """Run tiles as their slots fill.

        Returns
        -------
        (copy,) marks: the rows of all the token's experts on that GPU are in its memory. And the
        tasks that nothing else waits for (weight gradients, where SMs have nothing better to do),
        with their ranks.
        """
        graph = machine.graph
        used = self.options.dispatch_sms + self.options.combine_sms
        num_sms = machine.system.sm.num_sms
        if used >= num_sms:
            message = (
                f"options dispatch_sms and combine_sms of scheme {self.name!r} take {used} SMs; "
                f"the GPU has {num_sms}, and some must compute"
            )
            raise UserError(message)
        pool = machine.sm_pool("sm", num_sms - used)
        gemm = Gemm.first(work, fused_activation=True)
        tiles = row_tiles(machine, work, gemm, num_sms - used, TILE_ROWS)
        full = machine.mark(tiles.rank, begun[tiles.rank])
        # The scheduler blocks poll the tile counters.
        seen = machine.delay(
            Kind.DISPATCH_SYNC, machine.system.overheads.poll_ps, full, rank=tiles.rank
        )
        done = fused_tiles(
            machine, work, tiles, pool, seen,
            tile_order=self.options.tile_order, weight_passes=self.options.weight_passes,
        )  # fmt: skip
        ready = machine.mark(work.copy_rank, arrived)
        by_expert = np.argsort(work.pair_expert, kind="stable")
        bounds = np.searchsorted(work.pair_expert[by_expert], np.arange(work.num_experts + 1))
        for expert in np.flatnonzero(work.rows_of_expert):
            members = work.pair_copy[by_expert[bounds[expert] : bounds[expert + 1]]]
            mine = slice(tiles.first_of_expert[expert], tiles.first_of_expert[expert + 1])
            if self.options.slots == "arrival":
                rows = tiles.rows[mine]
                graph.gate(arrived[members], ready[members], rows, full[mine], done[mine])
            else:  # pairs are listed by source and token
                tile = np.arange(len(members)) // TILE_ROWS
                graph.edges(arrived[members], full[mine][tile])
                graph.edges(done[mine][tile], ready[members])
        nothing = np.zeros(0, np.int64)
        if not work.is_backward:
            return ready, (nothing, nothing)
        rank_of = work.placement.expert_rank.astype(np.int64)
        complete = machine.mark(rank_of, begun[rank_of])
        graph.edges(done, complete[tiles.expert])
        tasks, ranks = zip(
            *(
                weight_gradient_tasks(
                    machine, work, projection, pool, complete, priority=work.num_experts
                )
                for projection in (DOWN, UP)
            ),
            strict=True,
        )
        return ready, (np.concatenate(tasks), np.concatenate(ranks))

    # ---- combine ---------------------------------------------------------------------------------

    def _combine(self, work: LayerWork, machine: Machine, begun: Ints, ready: Ints) -> Ints:
        """Pull every token's sum: (rank,) marks when all of a rank's tokens are combined."""
        notified = self._notify(work, machine, ready)
        complete = machine.mark(work.source_rank, begun[work.source_rank])
        machine.graph.edges(notified, complete[work.copy_token])
        return self._pull(work, machine, begun, complete)

    def _notify(self, work: LayerWork, machine: Machine, ready: Ints) -> Ints:
        """Tell the owner that a GPU's rows of the token are ready: (copy,) tasks."""
        remote = np.flatnonzero(work.copy_is_remote)
        poll = machine.system.overheads.poll_ps
        told = ready.copy()
        arrived = machine.notify(
            work.copy_rank[remote], work.copy_source[remote], NOTIFY_BYTES, ready[remote]
        )
        told[remote] = arrived
        return machine.delay(Kind.COMBINE_SYNC, poll, told, rank=work.copy_source)

    def _pull(self, work: LayerWork, machine: Machine, begun: Ints, complete: Ints) -> Ints:
        """Pull the remote sums of tokens that are `complete` (token,), and add the own rows."""
        graph, row_bytes, sm = machine.graph, work.combine_row_bytes, machine.system.sm
        pool = machine.sm_pool("dysharp-combine", self.options.combine_sms)
        remote = np.flatnonzero(work.copy_is_remote)
        pulled, of = np.unique(work.copy_token[remote], return_inverse=True)
        owner = work.source_rank[pulled]
        if self.in_switch:
            asked = graph.add(
                len(pulled),
                resource=pool[owner],
                duration_ps=sm.pull_ps(np.full(len(pulled), row_bytes)),
                kind=COMBINE.send,
                rank=owner,
                after=complete[pulled],
            )
            total = machine.reduce_read(
                COMBINE, owner, of, work.copy_rank[remote], row_bytes, asked,
                naming=Naming(self.options.target_flits, self.options.target_flits),
            ).total  # fmt: skip
            summed, last_of = total, pulled
        else:
            asked = graph.add(
                len(remote),
                resource=pool[owner[of]],
                duration_ps=sm.pull_ps(np.full(len(remote), row_bytes)),
                kind=COMBINE.send,
                rank=owner[of],
                after=complete[work.copy_token[remote]],
            )
            summed = machine.read(COMBINE, owner[of], work.copy_rank[remote], row_bytes, asked)
            last_of = work.copy_token[remote]
        # The owner adds its own experts' row (and, without the switch, all contributions) and
        # writes.
        here = work.copy_token[~work.copy_is_remote]
        rows_in = np.bincount(here, minlength=work.num_tokens) + np.bincount(
            last_of, minlength=work.num_tokens
        )
        tokens = np.flatnonzero(rows_in)
        place = np.full(work.num_tokens, -1, np.int64)
        place[tokens] = np.arange(len(tokens))
        rank = work.source_rank[tokens]
        written = graph.add(
            len(tokens),
            resource=pool[rank],
            duration_ps=sm.reduce_ps(rows_in[tokens] * row_bytes, np.full(len(tokens), row_bytes)),
            kind=COMBINE.receive,
            rank=rank,
            after=complete[tokens],
        )
        graph.edges(summed, written[place[last_of]])
        machine.follow("combined", tokens, written)
        return machine.gather(written, rank, begun)


class DySharpFusionOnly(DySharp):
    """The fused kernel over ordinary stores and loads: one copy per GPU each way."""

    name: ClassVar[str] = "dysharp-fusion-only"
    summary: ClassVar[str] = "DySHARP's fused layer without in-switch computing"
    assumes: ClassVar[str] = (
        "proposed GPU hardware (slots on arrival, readiness counters); "
        "12 + 8 SMs for dispatch and combine"
    )
    needs: ClassVar[frozenset[str]] = frozenset()
    proposes: ClassVar[frozenset[str]] = frozenset()
    traffic: ClassVar[str] = "copy"
    Options: ClassVar[type[NoOptions]] = FusedOptions
    in_switch: ClassVar[bool] = False


class DySharpBasic(DySharp):
    """Dynamic in-switch multicast and reduction, with dispatch, experts and combine in sequence."""

    name: ClassVar[str] = "dysharp-basic"
    summary: ClassVar[str] = "DySHARP's in-switch computing without overlap"
    assumes: ClassVar[str] = (
        "proposed switch and GPU hardware; a barrier over all GPUs ends dispatch and starts combine"
    )
    phases_separated: ClassVar[bool] = True
    Options: ClassVar[type[NoOptions]] = BasicOptions

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add the dispatch kernel, three expert kernels and the combine kernel."""
        begun = machine.kernel(start)
        arrived = self._dispatch(work, machine, begun)
        dispatched = machine.barrier(DISPATCH, machine.gather(arrived, work.copy_rank, begun))
        pool = machine.sm_pool("sm", machine.system.sm.num_sms)
        # Rows were placed by expert on arrival: no permute before the GEMMs, none after.
        done = separate_kernels(machine, work, pool, dispatched)
        begun = machine.barrier(COMBINE, machine.kernel(done))
        return self._pull(
            work, machine, begun, machine.mark(work.source_rank, begun[work.source_rank])
        )
