"""No communication: every row is where it is wanted, at once.

A layer takes at least as long as the least work of its experts does on the busiest GPU
(`replay.model.compute.least`): the tensor cores' time on all SMs, or the weights' through device
memory. Nothing is launched and no port carries a byte. It is a bound rather than a way to run a
layer: any tiles in any order may be beaten by others, if only by a better order, and no scheme can
beat this.

Two ways to run the experts without an exchange are options, to see what is lost between the bound
and them: one fused kernel, and the kernels of separate GEMMs with their gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.experts import fused_tiles, separate_kernels
from replay.model.compute.gemm import Gemm
from replay.model.compute.least import least_experts
from replay.model.compute.row_tiles import row_tiles
from replay.model.compute.shared import PLACED, shared_kernels, shared_tiles
from replay.model.compute.weight_gradients import joined, weight_gradients_beside
from replay.model.work.precision import NUMBER_TYPES
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.facts import Buffer


@dataclass(frozen=True)
class IdealOptions(Options):
    """What the experts do once all rows are there."""

    form: str = option(
        "least",
        "least: the work that no kernels do with less. fused: tiles of both GEMMs in one kernel. "
        "kernels: GEMM, activation, GEMM.",
        "definition",
        choices=("least", "fused", "kernels"),
    )


class Ideal(Scheme):
    """Only the experts; rows and results move in no time."""

    name = "ideal"
    summary = "the experts' least work alone; no scheme is faster"
    source = "definition"
    traffic = "none"
    network = "free"
    platform = ""
    overlap = "nothing to overlap"
    phases_separated = False
    combine_types = frozenset(NUMBER_TYPES)
    options: IdealOptions = IdealOptions()

    def communication_sms(self, system: System) -> int | None:
        """None: rows move in no time."""
        return 0

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Nothing but weights, where it is a bound; else what the form writes."""
        if self.options.form == "least":
            return ()
        fused = self.options.form == "fused"
        return memory.intermediates(work, memory.received(work), fuses_activation=fused)

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add the experts of each rank on all its SMs.

        A rank begins when all whose tokens it serves have begun, and ends when all that serve its
        tokens have ended.
        """
        pool = machine.sms.pool("sm", machine.sms.count)
        source, expert_rank = np.nonzero(work.matrix("copies"))
        begun = machine.gather(start[source], expert_rank, start)
        done = {
            "least": self._least,
            "fused": self._fused,
            "kernels": self._kernels,
        }[self.options.form](work, machine, pool, start, begun)
        ends = machine.gather(done[expert_rank], source, done)
        token = np.arange(work.num_tokens)
        machine.notes.follow("sent", token, start[work.source_rank])
        machine.notes.follow("combined", token, ends[work.source_rank])
        return ends

    def _least(
        self, work: LayerWork, machine: Machine, pool: Ints, start: Ints, begun: Ints
    ) -> Ints:
        done = least_experts(machine, work, pool, begun)
        if work.shared is None:
            return done
        machine.notes.count(PLACED, machine.ranks, np.diff(work.tokens_of_rank))
        return machine.gather(least_experts(machine, work.shared, pool, start), machine.ranks, done)

    def _fused(
        self, work: LayerWork, machine: Machine, pool: Ints, start: Ints, begun: Ints
    ) -> Ints:
        every = machine.sms.count
        tiles = row_tiles(machine, work, Gemm.first(work, fused_activation=True), every)
        ready = begun[tiles.rank]
        done, behind = fused_tiles(machine, work, tiles, pool, ready, tile_order="expert")
        beside = weight_gradients_beside(
            machine, work, pool, done, tiles.expert, priority=behind, begun=begun
        )
        tasks, rank = joined(
            [(done, tiles.rank), *beside, shared_tiles(machine, work, pool, every, start)]
        )
        return machine.gather(tasks, rank, begun)

    def _kernels(
        self, work: LayerWork, machine: Machine, pool: Ints, start: Ints, begun: Ints
    ) -> Ints:
        none = self.split(machine)
        begun = shared_kernels(machine, work, none, start, begun)
        return separate_kernels(machine, work, pool, begun)
