"""Bounds that no way to run a layer can beat, in three readings of the word ideal.

* **The experts' work alone** (``form=least``): rows are where they are wanted, at once. A layer
  takes at least as long as the least work of its experts does on the busiest GPU
  (`replay.model.compute.least`): the tensor cores' time on all SMs, or the weights' through device
  memory. No scheme can beat this.
* **The communication alone** (``form=communication``): the least rows that an exchange sends, at
  the line rate of the ports, headers of full packets included. Each GPU that has experts of a token
  gets its row once, and adds up its results before one row goes back (``rows=copy``). Dispatch and
  combine are in no order, so that the busiest port of one direction decides, with what it carries
  of both. With ``rows=switch`` the switch copies rows and adds results up, so that a token leaves
  its GPU once and comes back once: what schemes in the switch are measured by.
* **The busiest resource** (``form=busiest``): both at once, and neither waits for the other. A
  layer takes as long as its busiest tensor cores, memory or port does.

Nothing is launched, and what is not named here takes no time: latencies, acknowledgements, control,
rows through device memory. The last two readings are bounds for schemes that send no less.

In a replay of the communication alone (``--communication-only``) there are no experts, and the
ideal is that of the communication.

Two ways to run the experts without an exchange are options, to see what is lost between the bound
and them: one fused kernel, and the kernels of separate GEMMs with their gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.errors import UserError
from replay.model.compute.experts import fused_tiles, separate_kernels
from replay.model.compute.gemm import Gemm
from replay.model.compute.least import least_experts
from replay.model.compute.row_tiles import row_tiles
from replay.model.compute.shared_experts import PLACED, shared_kernels, shared_tiles
from replay.model.compute.weight_gradients import join, weight_gradients_beside
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.work.precision import NUMBER_TYPES
from replay.schemes.ep import memory
from replay.schemes.ep.base import LayerRefusedError, Scheme
from replay.schemes.ep.facts import LIBRARY_WEIGHTS
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.facts import Buffer


@dataclass(frozen=True)
class IdealOptions(Options):
    """Reading of the word ideal."""

    form: str = option(
        "least",
        "What counts as the layer's time. least: the experts' least work, without kernels. busiest: "
        "the busiest of tensor cores, memory and ports for the least work of experts and rows "
        "together. communication: that of the rows alone, dispatch beside combine. fused: the "
        "experts alone, tiles of both GEMMs in one kernel. kernels: the experts alone, as GEMM, "
        "activation, GEMM.",
        "definition",
        choices=("least", "busiest", "communication", "fused", "kernels"),
    )
    rows: str = option(
        "copy",
        "Rows that forms busiest and communication count. copy: one for each (token, GPU) each way, the "
        "results of a GPU added up. switch: the switch copies rows and adds results up, so that a "
        "token leaves its GPU once and comes back once.",
        "definition",
        choices=("copy", "switch"),
    )


class Ideal(Scheme):
    """The least that a layer takes."""

    name = "ideal"
    weight_types = LIBRARY_WEIGHTS
    summary = "the experts' least work alone; no scheme is faster"
    source = "definition"
    platform = ""
    overlap = "nothing to overlap"
    phases_separated = False
    unacknowledged = MappingProxyType({"dispatch": "a bound", "combine": "a bound"})
    combine_types = frozenset(NUMBER_TYPES)
    options: IdealOptions = IdealOptions()

    @property
    def traffic(self) -> str:  # type: ignore[override]  # an option decides; nobody sets it
        """Class of the rows that are counted."""
        return self.options.rows if self.options.form in ("busiest", "communication") else "none"

    @property
    def network(self) -> str:  # type: ignore[override]  # likewise
        """Class of its rows between domains; empty where rows are counted, which is in one domain."""
        return "free" if self.traffic == "none" else ""

    def communication_sms(self, system: System) -> int | None:
        """None: rows move in no time."""
        return 0

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Nothing where it is a bound; else what the form writes."""
        if self.options.form not in ("fused", "kernels"):
            return ()
        fused = self.options.form == "fused"
        return memory.intermediates(work, memory.received_rows(work), fuses_activation=fused)

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add the experts of each rank on all its SMs, its ports, or both.

        A rank begins when all whose tokens it serves have begun, and ends when all that serve its
        tokens have ended.

        Raises
        ------
        LayerRefusedError
            If ranks lie in several NVLink domains where rows are counted.
        UserError
            If there are no experts for forms of them.
        """
        source, expert_rank = np.nonzero(work.matrix("copies"))
        begun = machine.gather(start[source], expert_rank, start)
        form = self._form(machine)
        if form == "communication":
            done = self._rows(work, machine, start, begun)
            if work.shared is not None:
                machine.notes.count(PLACED, machine.ranks, np.diff(work.tokens_of_rank))
        else:
            pool = machine.sms.pool("sm", machine.sms.count)
            run = {"fused": self._fused, "kernels": self._kernels}.get(form, self._least)
            done = run(work, machine, pool, start, begun)
        if form == "busiest":
            rows = self._rows(work, machine, start, begun)
            done = machine.gather(rows, machine.ranks, done)
        ends = machine.gather(done[expert_rank], source, done)
        token = np.arange(work.num_tokens)
        machine.notes.follow("sent", token, start[work.source_rank])
        machine.notes.follow("combined", token, ends[work.source_rank])
        return ends

    def _form(self, machine: Machine) -> str:
        """Part of the layer that there is."""
        form = self.options.form
        if not machine.has_experts:
            if form in ("fused", "kernels"):
                message = (
                    f"ideal: form={form} is the experts alone, of which --communication-only has "
                    "nothing; possible are communication, busiest and least, which are the same"
                )
                raise UserError(message)
            return "communication"
        return form

    def _rows(self, work: LayerWork, machine: Machine, start: Tasks, begun: Tasks) -> Ints:
        """Keep the ports busy with the least rows of both phases: (rank,) marks of the end."""
        if machine.num_domains > 1:
            message = (
                "scheme 'ideal': the rows of an exchange are counted in one NVLink domain; "
                f"{machine.num_ranks} ranks lie in {machine.num_domains} (form=least counts none)"
            )
            raise LayerRefusedError(message)
        remote, n = work.copy_is_remote, machine.num_ranks
        inwards = np.bincount(work.copy_rank[remote], minlength=n)
        leaving = np.bincount(work.copy_source[remote], minlength=n)
        if self.options.rows == "switch":
            tokens = np.unique(work.copy_token[remote])
            leaving = np.bincount(work.source_rank[tokens], minlength=n)
        done = begun
        for kinds, row_bytes, back in (
            (DISPATCH, work.dispatch_row_bytes, False),
            (COMBINE, work.combine_row_bytes, True),
        ):
            for outwards in (True, False):
                at_owner = outwards is not back
                passed = machine.transfers.at_line_rate(
                    kinds,
                    leaving if at_owner else inwards,
                    row_bytes,
                    start if at_owner else begun,
                    outwards=outwards,
                )
                done = machine.gather(passed, machine.ranks, done)
        return done

    def _least(self, work: LayerWork, machine: Machine, pool: Pools, start: Tasks, begun: Tasks) -> Ints:
        done = least_experts(machine, work, pool, begun)
        if work.shared is None:
            return done
        machine.notes.count(PLACED, machine.ranks, np.diff(work.tokens_of_rank))
        return machine.gather(least_experts(machine, work.shared, pool, start), machine.ranks, done)

    def _fused(self, work: LayerWork, machine: Machine, pool: Pools, start: Tasks, begun: Tasks) -> Ints:
        every = machine.sms.count
        tiles = row_tiles(machine, work, Gemm.first(work, fused_activation=True), every)
        ready = begun[tiles.rank]
        done, behind = fused_tiles(machine, work, tiles, pool, ready, tile_order="expert")
        beside = weight_gradients_beside(machine, work, pool, done, tiles.expert, priority=behind, begun=begun)
        tasks, rank = join([(done, tiles.rank), *beside, shared_tiles(machine, work, pool, every, start)])
        return machine.gather(tasks, rank, begun)

    def _kernels(self, work: LayerWork, machine: Machine, pool: Pools, start: Tasks, begun: Tasks) -> Ints:
        none = self.split(machine)
        begun = shared_kernels(machine, work, none, start, begun)
        return separate_kernels(machine, work, pool, begun)
