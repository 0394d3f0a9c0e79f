"""FasterMoE: a group of GPUs after the other, and a call for each expert beside it.

GPUs are in groups, and in step s each sends to the group s behind its own: 8 GPUs in groups of 4
have two steps. A step is an NCCL kernel for each expert of a GPU, with its sends and receives,
those to itself among them. One stream has all dispatches before all combines, S0 .. Sn-1, R0 ..
Rn-1. On another the experts of a step run when its rows have come, one call after the other; its
combine follows them. GEMMs have the SMs that NCCL's kernels leave.

Left out: the bias of its linear layers. Its backward pass forgets to let combines wait for experts;
here they do. A GPU without rows for a part launches nothing for it.

Sources: laekov/fastmoe ``cuda/fastermoe/smart_schedule.h`` and ``.cpp``,
``fmoe/fastermoe/schedule.py``, ``config.py``, ``fmoe/functions.py``; NCCL.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives import point_to_point
from replay.model.compute import shadows
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.compute.weight_copies import expert_bytes
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, PhaseKinds
from replay.model.work.capacity import first_shadow, with_shadows
from replay.model.work.ragged import order_by, places
from replay.schemes.ep.facts import Buffer
from replay.schemes.ep.fastermoe import around
from replay.schemes.ep.fastermoe.experts import Experts
from replay.schemes.ep.fastermoe.shadows import (
    Shadows,
    calls_of,
    decide,
)
from replay.schemes.ep.fastermoe.steps import StepPart, rows_by_source, steps_of
from replay.schemes.ep.nccl import NcclOptions, SendsByNccl
from replay.schemes.options import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.capacity import CarriedLayer
    from replay.model.work.layer import LayerWork

ROWS = Operation("sends and receives of rows", moves="rows of one step for one expert")


@dataclass(frozen=True)
class FasterMoeOptions(NcclOptions):
    """Size of a group, and settings of NCCL."""

    group_size: int = option(
        4,
        "GPUs of a group, which exchange rows in the first step; all, if there are fewer. As many steps as groups.",
        "FMOE_FASTER_GROUP_SIZE, fmoe/fastermoe/config.py and cuda/fastermoe",
    )
    shadowing: bool = option(
        False,
        "Whether all GPUs get the weights of experts with many rows, where its policy says that "
        "this is quicker; each then multiplies its own rows for them.",
        "FMOE_FASTER_SHADOW_ENABLE, off by default",
    )
    network_GB_per_s: float = option(
        0.0,
        "What the policy takes for the rate of a GPU's links. 0: the system's.",
        "FMOE_FASTER_GLBPLC_NETBW, 6.25 by default; the system's own is comparable",
        least=0,
        unit="GB/s",
    )
    gemm_TFLOP_per_s: float = option(
        0.0,
        "What the policy takes for the rate of a GPU's GEMMs. 0: the system's.",
        "FMOE_FASTER_GLBPLC_GPUTP, 11.5 by default; the system's own is comparable",
        least=0,
        unit="TFLOP/s",
    )


class FasterMoe(SendsByNccl):
    """Steps by groups of GPUs, a kernel and a call for each expert in each."""

    name = "fastermoe"
    summary = "FasterMoE: steps by groups of GPUs, NCCL and calls for each expert"
    source = "laekov/fastmoe cuda/fastermoe/smart_schedule.h, fmoe/fastermoe/schedule.py; NCCL"
    assumes = (
        "gate and up projection are one GEMM; GEMMs have the SMs that NCCL's kernels leave; "
        "combines wait for their experts backward too; the policy of shadows adds counts up by "
        "expert, as its documents say, where the code adds them up by source; its loop on the host "
        "takes no time"
    )
    wins = "one large expert per GPU over slow links, which steps hide; shadowing, where few experts have most rows"
    loses = (
        "many experts: calls and copies for each, step by step; fast links, since NCCL's channels are kept from the "
        "GEMMs"
    )
    overlap = "experts of a step beside the next dispatches and earlier combines"
    traffic = "pair"
    phases_separated = False
    even_experts = True
    gemm_types = dispatch_types = combine_types = frozenset({"bf16", "fp32"})
    candidates = MappingProxyType({"channels": (0, 4, 8, 16, 32), "group_size": (1, 2, 4, 8)})
    options: FasterMoeOptions = FasterMoeOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say if rows differ from GEMMs in type, or groups in size."""
        if reason := super().refuses(work):
            return reason
        types, size = work.precision, self.options.group_size
        if {types.dispatch, types.combine} != {types.gemm}:
            return f"its rows have the type of its GEMMs, {types.gemm}"
        if work.num_ranks > size and work.num_ranks % size:
            return f"its groups have {size} GPUs each, and {work.num_ranks} are not so many groups"
        return ""

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """Say if weights would be broadcast between nodes."""
        if reason := super().refuses_on(work, system):
            return reason
        several = work.num_ranks > system.fabric.gpus_per_domain
        if several and self.options.shadowing:
            return "broadcasts of shadowed experts between nodes are not modelled (shadowing=false)"
        return ""

    def carries_on(self, work: LayerWork, system: System) -> CarriedLayer:
        """Layer whose rows for shadowed experts go to the copy on their GPU."""
        return with_shadows(work, self._shadow(work, partial(shadows.rates_on, system)))

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """NCCL's FIFOs; a row for each (token, expert), at its owner and at its expert."""
        pairs, row = work.matrix("pairs"), work.dispatch_row_bytes
        owned, got = pairs.sum(axis=1) * row, pairs.sum(axis=0) * row
        shadowed = self._shadow(work, partial(shadows.rates_on, system))
        copies = len(shadowed) + bool(len(shadowed))  # and the weights that make room for them
        nbytes = np.full(work.num_ranks, copies * sum(expert_bytes(work, system)))
        return (
            self.options.fifos(work.num_ranks, system),
            *([Buffer("weights of shadowed experts", nbytes)] if copies else []),
            Buffer("scattered rows", owned),
            Buffer("received rows", got),
            Buffer("copied results", got),
            Buffer("returned rows", owned),
            Buffer("gathered rows", owned),
        )

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add counts, scatter, dispatches, calls, combines, gather."""
        shadowed = self._shadow(work, partial(shadows.rates_of, machine))
        shared = shared_before_wait(machine, work, self.channels(machine), start)
        carried, split = with_shadows(work, shadowed).work, self.channels(machine)
        steps = steps_of(work, carried, self.options.group_size)
        own = calls_of(work, carried, len(shadowed))
        experts = Experts(
            machine,
            carried,
            split.pool("fastermoe-experts", split.left),
            [*(part.call for parts in steps for part in parts), *own],
        )
        beside = Shadows(machine, work, carried, shadowed, self.options.rules(machine).num_channels, experts, own)
        known = around.scatter(machine, work, self._count(work, machine, start))
        begun = beside.fetch(known)
        machine.host.wait(DISPATCH, begun, around.SCATTERED)

        arrived = self._send_rows(carried, machine, steps, begun)
        stays = np.flatnonzero(carried.pair_expert >= first_shadow(work))
        machine.notes.follow("sent", carried.pair_token[stays], begun[carried.pair_source[stays]])
        sent, done = arrived[-1], shared(begun)
        ends: list[Ints] = []
        came: list[Ints] = []
        sums: list[Ints] = []
        if work.is_backward:
            done, sums, sent = beside.backward(done, sent)
        else:
            came = beside.broadcast(sent)
            sent = came[-1] if came else sent
        for parts, there in zip(steps, arrived, strict=True):
            done = machine.gather(done, machine.ranks, there)
            for part in parts:
                done = experts.compute(part.call, done)
            ends.append(done)
        done = beside.add(sums, done) if work.is_backward else beside.forward(came, done)
        experts.read()
        back = sent
        for parts, ended in zip(steps, ends, strict=True):
            back = machine.gather(ended, machine.ranks, back)
            for part in parts if machine.num_ranks > 1 else ():
                back = self._rows(work, machine, COMBINE, part.pairs.T, back).done
        gathered = around.gather(machine, work, back, done if len(shadowed) else None)
        machine.notes.follow("combined", np.arange(work.num_tokens), gathered[work.source_rank])
        return gathered

    def _shadow(self, work: LayerWork, rates: Callable[..., shadows.Rates]) -> Ints:
        """Experts whose weights go to all GPUs."""
        options = self.options
        if not options.shadowing or work.num_ranks == 1:
            return np.zeros(0, np.int64)
        known = rates(work, options.network_GB_per_s, options.gemm_TFLOP_per_s)
        return shadows.choose(work, known)

    def _count(self, work: LayerWork, machine: Machine, start: Tasks) -> Ints:
        known = around.count(machine, work, start, partial(self.exchange, machine, COUNTS))
        if self.options.shadowing and machine.num_ranks > 1:
            known = decide(machine, work, known)
        return around.tokens_of(machine, work, known)

    def _send_rows(self, work: LayerWork, machine: Machine, steps: list[list[StepPart]], begun: Tasks) -> list[Ints]:
        """Send the rows of one step after the other: (rank,) tasks of each when it has come."""
        if machine.num_ranks == 1:
            machine.notes.follow("sent", work.pair_token, begun[work.pair_source])
            return [begun]
        row_bytes, ends = work.dispatch_row_bytes, []
        offset = places_of_pairs(work) * row_bytes
        src, dst = work.pair_source, work.pair_rank
        by_expert = order_by(work.pair_expert)
        first = np.searchsorted(work.pair_expert[by_expert], np.arange(work.num_experts + 1))
        for parts in steps:
            for part in parts:
                exchanged = self._rows(work, machine, DISPATCH, part.pairs, begun)
                begun = exchanged.done
                experts = part.call.expert[part.call.expert >= 0]
                some = [by_expert[first[one] : first[one + 1]] for one in experts.tolist()]
                mine = np.sort(np.concatenate([np.zeros(0, np.int64), *some]))
                mine = mine[part.pairs[src[mine], dst[mine]] > 0]
                if len(mine):
                    leaves = exchanged.leaves(src[mine], dst[mine], offset[mine])
                    machine.notes.follow("sent", work.pair_token[mine], leaves)
            ends.append(begun)
        return ends

    def _rows(
        self, work: LayerWork, machine: Machine, kinds: PhaseKinds, pairs: Ints, after: Tasks
    ) -> point_to_point.ExchangeTasks:
        """One kernel of NCCL's that sends `pairs` rows (source, destination)."""
        takes_part = (pairs.sum(axis=0) + pairs.sum(axis=1)) > 0
        begun = machine.kernel(after, ROWS, on=takes_part)
        return self.exchange(machine, kinds, pairs * work.dispatch_row_bytes, begun)

    def channels(self, machine: Machine, rest: str = "compute") -> Split:
        """See `SendsByNccl`; experts run beside the kernels."""
        return super().channels(machine, rest)


def places_of_pairs(work: LayerWork) -> Ints:
    """(pair,): place of a row among those of its source for its expert."""
    order = order_by(work.pair_source * work.num_experts + work.pair_expert)
    found = np.empty(len(order), np.int64)
    found[order] = places(rows_by_source(work).ravel())
    return found
