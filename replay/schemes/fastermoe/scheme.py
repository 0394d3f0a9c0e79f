"""FasterMoE: a group of GPUs after the other, and a call for each expert beside it.

GPUs are in groups, and in step s each sends to the group s behind its own: 8 GPUs in groups of 4
have two steps. A step is an NCCL kernel for each expert of a GPU, with its sends and receives,
those to itself among them. One stream has all dispatches before all combines, S0 .. Sn-1, R0 ..
Rn-1; on another, the experts of a step, one call after the other, follow when it has come, and its
combine follows them. GEMMs have the SMs that NCCL's kernels leave.

Sources: laekov/fastmoe ``cuda/fastermoe/smart_schedule.h`` and ``.cpp``,
``fmoe/fastermoe/schedule.py``, ``config.py``, ``fmoe/functions.py``; NCCL.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.shared import shared_before_wait
from replay.machine import point_to_point
from replay.machine.kinds import COMBINE, DISPATCH, PhaseKinds
from replay.schemes.base import Scheme
from replay.schemes.facts import Buffer
from replay.schemes.fastermoe import around
from replay.schemes.fastermoe.experts import compute, computed
from replay.schemes.fastermoe.steps import Part, num_steps, rows_by_source, steps_of
from replay.schemes.nccl import NcclOptions
from replay.schemes.options import option
from replay.schemes.software import TYPICAL, Listed, Outline
from replay.work.ragged import places

if TYPE_CHECKING:
    from hwmodel import System
    from replay.machine.machine import Ints, Machine
    from replay.machine.sms import Split
    from replay.work.layer import LayerWork

ROWS = "sends and receives of rows"


@dataclass(frozen=True)
class FasterMoeOptions(NcclOptions):
    """Size of a group, and settings of NCCL."""

    group_size: int = option(
        4,
        least=1,
        help="GPUs of a group, which exchange rows in the first step; all, if there are fewer. As "
        "many steps as groups.",
        source="FMOE_FASTER_GROUP_SIZE, fmoe/fastermoe/config.py and cuda/fastermoe",
    )


class FasterMoe(Scheme):
    """Steps by groups of GPUs, a kernel and a call for each expert in each."""

    name = "fastermoe"
    summary = "FasterMoE: steps by groups of GPUs, NCCL and calls for each expert"
    source = "laekov/fastmoe cuda/fastermoe/smart_schedule.h, fmoe/fastermoe/schedule.py; NCCL"
    assumes = (
        "gate and up projection are one GEMM; GEMMs have the SMs that NCCL's kernels leave; "
        "combines wait for their experts backward too; no shadowed experts, which are off by "
        "default"
    )
    overlap = "experts of a step beside the next dispatches and earlier combines"
    traffic = "pair"
    phases_separated = False
    gemm_types = dispatch_types = combine_types = frozenset({"bf16", "fp32"})
    candidates = MappingProxyType({"channels": (0, 4, 8, 16, 32), "group_size": (1, 2, 4, 8)})
    options: FasterMoeOptions = FasterMoeOptions()

    def refuses(self, work: LayerWork) -> str:
        """One type of rows, groups of one size, and equally many experts on all GPUs."""
        if reason := super().refuses(work):
            return reason
        types, size = work.precision, self.options.group_size
        if {types.dispatch, types.combine} != {types.gemm}:
            return f"its rows have the type of its GEMMs, {types.gemm}"
        if work.num_ranks > size and work.num_ranks % size:
            return f"its groups have {size} GPUs each, and {work.num_ranks} are not so many groups"
        if len({len(own) for own in work.experts_of_rank}) > 1:
            return "its ranks have equally many experts"
        return ""

    def communication_sms(self, system: System) -> int | None:
        """One a channel."""
        return self.options.num_channels(system)

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """NCCL's FIFOs; a row for each (token, expert), at its owner and at its expert."""
        pairs, row = work.matrix("pairs"), work.dispatch_row_bytes
        owned, got = pairs.sum(axis=1) * row, pairs.sum(axis=0) * row
        return (
            self.options.fifos(work.num_ranks, system),
            Buffer("scattered rows", owned),
            Buffer("received rows", got),
            Buffer("copied results", got),
            Buffer("returned rows", owned),
            Buffer("gathered rows", owned),
        )

    def operations(self, layer: Outline = TYPICAL) -> tuple[Listed, ...]:
        """Counts, scatter; dispatches, calls, combines; gather."""
        steps = num_steps(layer.num_ranks, self.options.group_size)
        each = -(-layer.num_experts // layer.num_ranks)
        ways: tuple[Listed, ...] = ()
        if layer.num_ranks > 1:
            ways = (Listed(ROWS, steps * each, "rows of one step for one expert"),)
        return (
            *around.counted(layer), *around.scattered(layer), *ways,
            *computed(is_backward=layer.is_backward) * (steps * each),
            *ways, *around.gathered(layer),
        )  # fmt: skip

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add counts, scatter, dispatches, calls, combines, gather."""
        shared = shared_before_wait(machine, work, self._split(machine), start)
        begun = around.scatter(machine, work, self._counted(work, machine, start))
        steps = steps_of(work, self.options.group_size)
        arrived = self._dispatched(work, machine, steps, begun)
        pool, done, ends = self._pool(machine), shared(begun), []
        for parts, came in zip(steps, arrived, strict=True):
            done = machine.gather(done, machine.ranks, came)
            for part in parts:
                done = compute(machine, work, part.call, pool, done)
            ends.append(done)
        back = arrived[-1]
        for parts, done in zip(steps, ends, strict=True):
            back = machine.gather(done, machine.ranks, back)
            for part in parts if machine.num_ranks > 1 else ():
                back = self._exchange(work, machine, COMBINE, part.pairs.T, back).done
        gathered = around.gather(machine, work, back)
        machine.notes.follow("combined", np.arange(work.num_tokens), gathered[work.source_rank])
        return gathered

    def _counted(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        rules = self.options.rules(machine)
        return around.count(machine, work, rules, self._channels(machine), start)

    def _dispatched(
        self, work: LayerWork, machine: Machine, steps: list[list[Part]], begun: Ints
    ) -> list[Ints]:
        """Send the rows of one step after the other: (rank,) tasks of each when it has come."""
        if machine.num_ranks == 1:
            machine.notes.follow("sent", work.pair_token, begun[work.pair_source])
            return [begun]
        row_bytes, ends = work.dispatch_row_bytes, []
        offset = places_of_pairs(work) * row_bytes
        for parts in steps:
            for part in parts:
                exchanged = self._exchange(work, machine, DISPATCH, part.pairs, begun)
                begun = exchanged.done
                src, dst = work.pair_source, work.pair_rank
                is_part = (part.pairs[src, dst] > 0) & (part.call.expert[dst] == work.pair_expert)
                mine = np.flatnonzero(is_part)
                if len(mine):
                    leaves = exchanged.leaves(src[mine], dst[mine], offset[mine])
                    machine.notes.follow("sent", work.pair_token[mine], leaves)
            ends.append(begun)
        return ends

    def _exchange(
        self, work: LayerWork, machine: Machine, kinds: PhaseKinds, pairs: Ints, after: Ints
    ) -> point_to_point.Exchanged:
        """One kernel of NCCL's that sends `pairs` rows (source, destination)."""
        rules = self.options.rules(machine)
        takes_part = (pairs.sum(axis=0) + pairs.sum(axis=1)) > 0
        begun = machine.kernel(after, ROWS, on=takes_part)
        return point_to_point.all_to_all(
            machine, kinds, self._channels(machine), rules, pairs * work.dispatch_row_bytes, begun,
            payload=True,
        )  # fmt: skip

    def _channels(self, machine: Machine) -> Ints:
        """(rank, channel): SMs of NCCL's kernels; a rank alone has none."""
        if machine.num_ranks == 1:
            return np.empty((1, 0), np.int64)
        num_channels = self.options.rules(machine).num_channels
        return self._split(machine).channels("nccl", num_channels)

    def _pool(self, machine: Machine) -> Ints:
        split = self._split(machine)
        return split.pool("fastermoe-experts", split.left)

    def _split(self, machine: Machine) -> Split:
        """SMs of NCCL's kernels, and those that they leave; a rank alone runs none."""
        alone = machine.num_ranks == 1
        shares = {} if alone else {"channels": self.options.rules(machine).num_channels}
        return machine.sms.split(f"scheme {self.name!r}", shares, rest="compute")


def places_of_pairs(work: LayerWork) -> Ints:
    """(pair,): place of a row among those of its source for its expert."""
    order = np.argsort(work.pair_source * work.num_experts + work.pair_expert, kind="stable")
    found = np.empty(len(order), np.int64)
    found[order] = places(rows_by_source(work).ravel())
    return found
