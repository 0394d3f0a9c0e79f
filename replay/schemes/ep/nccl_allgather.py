"""Dense exchange of serving engines by NCCL: all tokens' rows to all GPUs, sums scattered back.

vLLM exchanges rows like this by default (``allgather_reducescatter``,
``distributed/device_communicators/all2all.py``): rows, ids and weights are gathered in a group,
which is one kernel of NCCL's, and sums of all tokens are scattered by another. Megatron-Core's
inference dispatcher without the switch gathers them by three (``token_dispatcher_inference.py``,
``NCCLAllGatherDispatcher``). What lies between is `replay.schemes.ep.dense_exchange`. Nobody
waits for counts, so that a CUDA graph can hold a layer; in return all ranks have as many tokens.
NCCL itself chooses between rings and the switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.collectives.ring_chunks import most_channels
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.schemes.ep.dense_exchange import (
    ALL_GATHER,
    GATHERS,
    ID_BYTES,
    SUM,
    WEIGHT_BYTES,
    DenseExchange,
)
from replay.schemes.ep.facts import LIBRARY_WEIGHTS
from replay.schemes.ep.nccl import FLAGS_IN_DATA
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.collectives.algorithm import Collective
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork


@dataclass(frozen=True)
class NcclAllGatherOptions(Options):
    """Options of the dense exchange, by another library."""

    gathers_at_once: bool = option(
        True,
        "Whether rows, ids and weights are gathered by one kernel, not by three.",
        "vLLM all2all.py: a group of gathers; Megatron-Core's dispatcher has three",
    )


class NcclAllGather(DenseExchange):
    """NCCL's all-gather, experts, NCCL's reduce-scatter; dense buffers."""

    name = "nccl-allgather"
    summary = "NCCL's all-gather and reduce-scatter of all tokens, as vLLM has them"
    source = "Megatron-Core token_dispatcher_inference.py, NCCLAllGatherDispatcher; vLLM all2all.py"
    wins = "few tokens, without counts or a wait of the host"
    loses = "many tokens: everybody receives everything"
    spares = MappingProxyType(
        {
            "counts": "each GPU has the ids of all tokens",
            "host waits": "buffers have room for the worst case",
        }
    )
    unacknowledged = FLAGS_IN_DATA
    traffic = "ring"
    weight_types = LIBRARY_WEIGHTS
    validity = "inference; gradients are assumed to take the same kernels"
    interleaves = frozenset()
    options: NcclAllGatherOptions = NcclAllGatherOptions()

    def communication_sms(self, system: System) -> int | None:
        """Nothing is stated: rings hold no SMs that others would have."""
        return None

    def refuses(self, work: LayerWork) -> str:
        """Say if ranks have unequal numbers of tokens."""
        if len(set(np.diff(work.tokens_of_rank).tolist())) > 1:
            return "its ranks have equally many tokens"
        return super().refuses(work)

    def _sms(self, machine: Machine) -> Split:
        return self.split(machine, ring_channels=most_channels(machine))

    def _all_gather(self, work: LayerWork, machine: Machine, after: Tasks) -> Ints:
        if machine.num_ranks == 1:
            machine.notes.follow("sent", np.arange(work.num_tokens), after[work.source_rank])
            return after
        tokens, choices = work.num_tokens, work.num_tokens * work.whole_choices
        rows, meta = tokens * work.dispatch_row_bytes, (ID_BYTES * choices, WEIGHT_BYTES * choices)
        at_once = self.options.gathers_at_once and not work.is_backward
        begun = machine.kernel(after, ALL_GATHER if at_once else GATHERS[0])
        machine.notes.follow("sent", np.arange(tokens), begun[work.source_rank])
        gathered = self._run(machine, DISPATCH, "all_gather", rows, begun)
        if work.is_backward:  # ids and weights are known
            return gathered
        if at_once:
            told = self._run(machine, DISPATCH, "all_gather", sum(meta), begun, payload=False)
            both = np.concatenate((gathered, told))
            return machine.gather(both, np.tile(machine.ranks, 2), begun)
        for nbytes, name in zip(meta, GATHERS[1:], strict=True):
            begun = machine.kernel(gathered, name)
            gathered = self._run(machine, DISPATCH, "all_gather", nbytes, begun, payload=False)
        return gathered

    def _reduce_scatter(self, work: LayerWork, machine: Machine, after: Tasks) -> Ints:
        if machine.num_ranks == 1:
            machine.notes.follow("combined", np.arange(work.num_tokens), after[work.source_rank])
            return after
        nbytes = work.num_tokens * work.combine_row_bytes
        begun = machine.kernel(after, SUM)
        done = self._run(machine, COMBINE, "reduce_scatter", nbytes, begun)
        machine.notes.follow("combined", np.arange(work.num_tokens), done[work.source_rank])
        return done

    def _run(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        what: Collective,
        nbytes: int,
        begun: Tasks,
        *,
        payload: bool = True,
    ) -> Ints:
        """Run a collective of `nbytes` of all ranks, in FIFOs from which it is copied: (rank,)."""
        done = NCCL.build(machine, kinds, what, nbytes, begun, payload=payload)
        copied = np.full(machine.num_ranks, 2 * nbytes)
        memory = machine.stream(kinds.memory, copied, machine.ranks, begun)
        return machine.gather(np.concatenate((done, memory)), np.tile(machine.ranks, 2), begun)
