"""DySHARP: multicast to, and reduction from, a different set of GPUs for every token.

Source: arXiv 2605.05607 (ISCA 2026), sections III and IV; a proposal, no switch does this today.
Dispatch is a push: one packet stream leaves the source and the switch copies it once per port that
hosts an expert of the token. Combine is a pull by the token's owner: the request is copied to the
same GPUs, each answers with the sum of its experts' rows (weighted in GEMM-2's epilogue), the
switch adds the answers. Hardware allocates a dense slot for a row on arrival, so that nothing is
counted or exchanged beforehand. Token-centric fusion runs dispatch, both GEMMs and combine in one
kernel with persistent blocks in four groups: a tile of 128 rows starts when its slots are full, a
token is combined when its rows are ready.

The variants are instances of `DySharp` with different parts: `DYSHARP` (in-switch computing and
fusion), `DYSHARP_COMET` (in-switch computing, dispatch overlaps GEMM-1 and GEMM-2 overlaps
combine), `DYSHARP_BASIC` (in-switch computing, kernels one after the other) and
`DYSHARP_FUSION_ONLY` (fusion over ordinary stores and loads). `push.py` and `pull.py` move
the rows, `messages.py` has what they share, `hub.py` the tables at the destination.

A switch reaches the GPUs of its own domain. The paper replays several nodes and does not say how
rows get from one to another. Here they do as DeepEP's: once per (token, domain) to the GPU of the
owner's index, whose SMs push the row on through their switch, pull the domain's sum and send it
back (`units.py`).

The fused kernel keeps the SMs of both directions for the whole layer, and can be slower than two
kernels, which compute on all SMs but those that move their rows, where SMs are the bottleneck. What a
GPU answers with is read from memory: a token is asked for when its last expert is done, by when the
cache has lost the row of its first one (``results``). When the reduction buffer is full, the sum that
has waited longest is sent as it is: one more row on its reader's downlink (``reduction``).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from replay.model.compute.casts import cast_received
from replay.model.compute.experts import fused_tiles, separate_kernels
from replay.model.compute.gemm import Gemm
from replay.model.compute.row_tiles import RowTiles, row_tiles
from replay.model.compute.shared_experts import shared_kernels, shared_tiles
from replay.model.compute.tile_order import TRIED
from replay.model.compute.weight_gradients import join, weight_gradients_beside
from replay.model.machine.domains import Domains
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.work.ragged import firsts, order_by, places
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.dysharp.hub import Hub
from replay.schemes.ep.dysharp.options import (
    DySharpOptions,
    FusedOptions,
    RowOptions,
    SwitchOptions,
    TwoKernelOptions,
)
from replay.schemes.ep.dysharp.pull import Pull
from replay.schemes.ep.dysharp.push import Push
from replay.schemes.ep.dysharp.shares import row_sms
from replay.schemes.ep.dysharp.units import Units
from replay.schemes.ep.facts import Buffer

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Pools, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.resources import Discipline
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork

SLOT_BYTES = 4  # for each token in the Algebraic->Layout table: 4 MB for a million (section IV)
SM_CANDIDATES = (0, 2, 4, 6, 8, 12, 16, 24, 32)


IN_SWITCH = frozenset({"multicast", "reduction"})
OVERLAPS = {
    "layer": "whole layer",
    "kernels": "inside each of two kernels",
    "none": "none",
}


class DySharp(Scheme):
    """Dynamic multicast and in-switch reduction, fusion of the layer, or one of the two.

    Parameters
    ----------
    name, options, summary, assumes, wins, loses
        See `Scheme`. With `SwitchOptions` the switch copies and adds; with other options rows are
        stored to, and loaded from, each GPU.
    fusion
        "layer": one kernel from dispatch to combine. "kernels": one kernel of dispatch and GEMM-1,
        and one of GEMM-2 and combine. "none": dispatch, experts and combine one after the other.
    """

    source = "arXiv 2605.05607 sections III-IV"
    network = "node"
    full_nodes = "rows go to the GPU of the same index in others"
    validity = "simulated: 32 GPUs like those of a GH200 NVL32"
    spares = MappingProxyType(
        {
            "routing kernels": "hardware gives slots on arrival",
            "counts": "hardware gives slots on arrival",
            "host waits": "no count is needed, and the kernels schedule themselves",
            "permutes": "hardware gives slots on arrival",
            "copies in memory": "rows are stored to where tiles read them",
            "kernels for sums": "the hub gives the sum of its experts' rows, and SMs of the owner add",
        }
    )

    def __init__(
        self,
        name: str,
        options: RowOptions,
        *,
        summary: str,
        assumes: str,
        wins: str,
        loses: str,
        fusion: str = "layer",
    ) -> None:
        self.name, self.summary, self.assumes = name, summary, assumes
        self.wins, self.loses = wins, loses
        self.overlap = OVERLAPS[fusion]
        self.fusion = fusion
        self.two_kernels = fusion == "kernels"
        self.phases_separated = fusion == "none"
        self.fuses_activation = fusion != "none"
        if fusion != "none":
            self.unacknowledged = {"dispatch": "the hub of the receiving GPU counts rows as they come"}
        in_switch = isinstance(options, SwitchOptions)
        self.traffic = "switch" if in_switch else "copy"
        self.needs = IN_SWITCH if in_switch else frozenset()
        self.proposes = frozenset({"dynamic-multicast"} if in_switch else ())
        self.candidates = {
            "dispatch_sms": SM_CANDIDATES,
            "combine_sms": SM_CANDIDATES,
            **({"gemm2_sms": (0, 32, 44, 56)} if fusion == "layer" else {}),
            **({"tile_order": TRIED} if fusion != "none" else {}),
        }
        super().__init__(options)

    @property
    def uplinks(self) -> Discipline:
        """Discipline: virtual channels of requests and responses, served in turn (section V-A)."""
        return "turns"

    def communication_sms(self, system: System) -> int | None:
        """SMs of dispatch and combine: together in one kernel, else of the larger.

        None where the layer's rows decide.
        """
        sms: list[int] = [self.options.dispatch_sms, self.options.combine_sms]
        if not all(sms):
            return None
        return sum(sms) if self.fusion == "layer" else max(sms)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Rows in the slots of their experts, and the hub's tables, as large as they are in DRAM.

        How many slots an expert has room for is not said: here those that are filled.
        """
        received, tables = memory.received_rows(work), work.num_tokens * SLOT_BYTES
        cast = memory.cast_received(work, received)
        units = Units(work, Domains(system.fabric, work.num_ranks))
        passed = np.bincount(units.place[units.abroad], minlength=work.num_ranks)
        between = (
            Buffer("rows for others of the domain", passed * work.dispatch_row_bytes),
            Buffer("sums of the domain", passed * work.combine_row_bytes),
        )
        return (
            *(between if len(units.abroad) else ()),
            Buffer("received rows", received * work.dispatch_row_bytes),
            Buffer("slots of tokens", memory.on_each(work, tables), stays=True),
            Buffer("tokens of slots", received * SLOT_BYTES),
            *cast,
        )

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add the fused kernel, two of them, or kernels one after the other."""
        units = Units(work, machine.domains)
        fitted = self._fit_sms(work, machine, units)
        if self.fusion == "none":
            return fitted._in_sequence(work, machine, units, start)
        return fitted._fused(work, machine, units, start)

    def _fit_sms(self, work: LayerWork, machine: Machine, units: Units) -> Self:
        """The same with a number of SMs where an option leaves it to the layer's rows."""
        in_switch = isinstance(self.options, SwitchOptions)
        found = row_sms(work, machine, units, in_switch=in_switch)
        asked = ("dispatch_sms", "combine_sms")
        chosen = {name: sms for name, sms in zip(asked, found, strict=True) if not getattr(self.options, name)}
        return self.with_options(chosen)

    def _fused(self, work: LayerWork, machine: Machine, units: Units, start: Tasks) -> Ints:
        """Add the fused kernel, or two of them."""
        kernels = self._kernels(machine)
        begun = machine.kernel(start, "dispatch and gemm1" if self.two_kernels else "layer")
        hub = Hub(
            work,
            machine,
            units,
            tlb_entries=self.options.tlb_entries,
            tile_entries=self.options.tile_entries,
            readiness_entries=self.options.readiness_entries,
            tile_of_pair=_tiles_by_source(work, self.options.tile_rows) if self.options.slots == "source" else None,
        )
        arrived, passed_on = Push(work, machine, self.options, units, hub, kernels[0]).push(begun)
        ready, beside, begun = self._experts(work, machine, units, hub, kernels, begun, arrived)
        rows = Pull(work, machine, self.options, units, hub, kernels[1])
        notified = rows.notify(ready)
        complete = machine.join(notified, units.of_copy, units.place, begun[units.place])
        ends = rows.pull(begun, complete, passed_on)
        for tasks, ranks in beside:
            ends = machine.gather(tasks, ranks, ends)
        return ends

    def _in_sequence(self, work: LayerWork, machine: Machine, units: Units, start: Tasks) -> Ints:
        """Add the dispatch kernel, three expert kernels and the combine kernel."""
        begun = machine.kernel(start, "dispatch")
        hub = Hub(work, machine, units, tlb_entries=self.options.tlb_entries)
        kernels = self._in_turn(machine)
        arrived, passed_on = Push(work, machine, self.options, units, hub, kernels[0]).push(begun)
        landed = machine.gather(arrived, work.copy_rank, begun)
        dispatched = machine.sync.barrier(DISPATCH, landed, stored="multicast")
        dispatched = cast_received(machine, work, work.matrix("pairs").sum(axis=0), dispatched)
        in_turn = self._in_turn(machine)[0]
        dispatched = shared_kernels(machine, work, in_turn, start, dispatched)
        pool = machine.sms.pool("sm", machine.sms.count)
        # Rows were placed by expert on arrival: no permute before the GEMMs, none after.
        done = separate_kernels(machine, work, pool, dispatched)
        begun = machine.sync.barrier(COMBINE, machine.kernel(done, "combine"), stored="nothing")
        rows = Pull(work, machine, self.options, units, hub, kernels[1])
        return rows.pull(begun, machine.mark(units.place, begun[units.place]), passed_on)

    # ---- experts ---------------------------------------------------------------------------------

    def _kernels(self, machine: Machine) -> tuple[Split, Split]:
        """SMs of the kernel that dispatches and of the one that combines; they may be the same."""
        if self.two_kernels:
            return self._in_turn(machine, rest="multiply")
        kernel = self.split(machine, "dispatch_sms", "combine_sms", "gemm2_sms", rest="multiply")
        return kernel, kernel

    def _in_turn(self, machine: Machine, *, rest: str = "") -> tuple[Split, Split]:
        """SMs of two kernels of which one follows the other, those that move rows by option."""
        dispatch = self.split(machine, "dispatch_sms", rest=rest)
        return dispatch, self.split(machine, "combine_sms", rest=rest)

    def _pools(self, kernels: tuple[Split, Split]) -> tuple[Ints, Ints, int]:
        """SMs of the two GEMMs, which may be the same, and how many the first has."""
        first, last = kernels
        if self.two_kernels:  # each multiplies on all SMs but those that move its rows
            return first.pool("sm", first.left), last.pool("sm-2", last.left), first.left
        pool, second = first.pool("sm", first.left), self.options.gemm2_sms
        return pool, first.pool("sm-2", second) if second else pool, first.left

    def _experts(
        self,
        work: LayerWork,
        machine: Machine,
        units: Units,
        hub: Hub,
        kernels: tuple[Split, Split],
        begun: Tasks,
        arrived: Tasks,
    ) -> tuple[Ints, list[tuple[Ints, Ints]], Ints]:
        """Run tiles as their slots fill.

        Returns
        -------
        (copy,) marks: the rows of all the token's experts on that GPU are in its memory. What is
        to end beside the combine, see `_beside`. And (rank,) tasks that begin the kernel that
        combines.
        """
        graph = machine.graph
        pool, second_pool, num_computing = self._pools(kernels)
        gemm = Gemm.first(work, fused_activation=True)
        tiles = row_tiles(machine, work, gemm, num_computing, self.options.tile_rows)
        machine.notes.tile(tiles.rank, tiles.rows, self.options.tile_rows)
        full = machine.mark(tiles.rank, begun[tiles.rank])
        shared = shared_tiles(machine, work, pool, num_computing, begun, tile_rows=self.options.tile_rows)
        kernels_begun = [begun]

        def second(done: Ints) -> Ints:
            tasks, ranks = join([(done, tiles.rank), shared])
            kernels_begun.append(self._second_kernel(machine, begun, ranks, tasks, arrived, units))
            return kernels_begun[-1][tiles.rank]

        ends = fused_tiles(
            machine,
            work,
            tiles,
            pool,
            hub.tiles_full(tiles, full),
            tile_order=self.options.tile_order,
            second_pool=second_pool,
            between=second if self.two_kernels else None,
        )
        done = hub.tiles_done(tiles, ends.done)
        ready = machine.mark(work.copy_rank, arrived)
        if hub.tile_of_pair is None:
            by_expert = order_by(work.pair_expert)
            bounds = np.searchsorted(work.pair_expert[by_expert], np.arange(work.num_experts + 1))
            for expert in np.flatnonzero(work.rows_of_expert):
                members = work.pair_copy[by_expert[bounds[expert] : bounds[expert + 1]]]
                of_expert = slice(*tiles.first_of_expert[expert : expert + 2])
                graph.gate(
                    arrived[members],
                    ready[members],
                    tiles.rows[of_expert],
                    full[of_expert],
                    done[of_expert],
                )
        else:
            machine.order(arrived[work.pair_copy], full[hub.tile_of_pair])
            machine.order(done[hub.tile_of_pair], ready[work.pair_copy])
        last_pool = second_pool if self.two_kernels else pool
        beside = self._beside(work, machine, tiles, begun, done, last_pool, ends.behind)
        if work.shared is not None:
            beside.append(shared)
        return ready, beside, kernels_begun[-1]

    def _beside(
        self,
        work: LayerWork,
        machine: Machine,
        tiles: RowTiles,
        begun: Tasks,
        done: Ints,
        pool: Pools,
        behind: int,
    ) -> list[tuple[Ints, Ints]]:
        """Tasks that GPUs have to end beside their combine, and the rank of each.

        The kernel that combines ends with its GPU's tiles, too. Weight gradients run where SMs have
        nothing better to do.
        """
        return [
            (done, tiles.rank),
            *weight_gradients_beside(machine, work, pool, done, tiles.expert, priority=behind, begun=begun),
        ]

    def _second_kernel(
        self,
        machine: Machine,
        begun: Tasks,
        rank: Ranks,
        done: Ints,
        arrived: Tasks,
        units: Units,
    ) -> Tasks:
        """Begin the second kernel after the one with dispatch and the first GEMM: (rank,) tasks.

        Parameters
        ----------
        begun
            (rank,): begin of the first kernel.
        rank, done
            (task,): GPU of each tile, and the end of its first GEMM.
        arrived
            (copy,): what the dispatch has sent is there.
        """
        ended = machine.join(done, rank, machine.ranks)
        machine.order(arrived, ended[units.place[units.of_copy]])
        far = np.flatnonzero(np.isin(units.of_copy, units.abroad))
        machine.order(arrived[far], ended[units.owner[units.of_copy[far]]])
        idle = np.setdiff1d(machine.ranks, np.concatenate((rank, units.place, units.owner)))
        machine.order(begun[idle], ended[idle])
        return machine.kernel(ended, "gemm2 and combine")


def _tiles_by_source(work: LayerWork, tile_rows: int) -> Ints:
    """(pair,): the tile of each row where an expert's rows lie in order of source and token."""
    order = order_by(work.pair_expert)  # pairs are listed by source and token
    expert, rows = work.pair_expert[order], work.rows_of_expert
    tiles = -(-rows // tile_rows)
    tile = np.empty(len(order), np.int64)
    tile[order] = firsts(tiles)[expert] + places(rows) // tile_rows
    return tile


DYSHARP = DySharp(
    "dysharp",
    DySharpOptions(),
    summary="DySHARP: dynamic in-switch multicast and reduction, fused layer",
    assumes=(
        "proposed switch and GPU hardware; as many SMs dispatch and combine as keep up with the "
        "port; each GPU gets one notice and gives one answer; own copies stay local; a partial tile "
        "starts when all rows of its expert are there; in other domains the GPU of the owner's index pushes and pulls"
    ),
    wins=(
        "few tokens, hardly behind the experts alone; small experts with many tokens; skew, by less time than fusion "
        "alone"
    ),
    loses=(
        "large experts, where SMs that move rows are lacking to both GEMMs; tiles in order of arrival, which read "
        "weights again"
    ),
)
DYSHARP_FUSION_ONLY = DySharp(
    "dysharp-fusion-only",
    FusedOptions(),
    summary="DySHARP's fused layer without in-switch computing",
    assumes=(
        "proposed GPU hardware (slots on arrival, readiness counters); as many SMs dispatch and combine as keep up "
        "with the port"
    ),
    wins="many tokens, with tiles in units of 8",
    loses=(
        "few tokens, by SMs that only move rows; skew, which fills the hottest GPU's ports without sums in the switch"
    ),
)
DYSHARP_COMET = DySharp(
    "dysharp-comet",
    TwoKernelOptions(),
    fusion="kernels",
    summary="DySHARP in the switch; two kernels that overlap as COMET's do",
    assumes=(
        "proposed switch and GPU hardware; dispatch overlaps GEMM-1, GEMM-2 overlaps combine, with "
        "a kernel boundary between"
    ),
    wins="many tokens and skew, with tiles in units of 8: its kernels compute on all SMs but those that move rows",
    loses="few tokens, by a second kernel; layers whose wires bind both ways at once",
)
DYSHARP_BASIC = DySharp(
    "dysharp-basic",
    SwitchOptions(),
    fusion="none",
    summary="DySHARP's in-switch computing without overlap",
    assumes=("proposed switch and GPU hardware; a barrier over all GPUs ends dispatch and starts combine"),
    wins="kernels one by one of other schemes: copies and sums in the switch, GEMMs that read weights once",
    loses="wires that phases could share: directions are used one after the other, as by `deepep`",
)
