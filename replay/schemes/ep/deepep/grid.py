"""Roles in DeepEP's low-latency kernels: blocks, groups of warps, and the rows of each.

The grid is made for E experts, as many on every rank: ``groups = ceil(E / SMs)`` groups of
``32 // groups`` warps in a block, and ``ceil(E / groups)`` blocks. Each group has one (expert,
peer): it packs what the peer sent to the expert, and sends it the results. So E decides how many
SMs work, not the number of tokens.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/internode_ll.cu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.work.ragged import cut_runs, places_in_runs

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

BLOCK_WARPS = 32  # 1024 threads
MOST_PIECES = 8  # of the rows between an expert and a rank, in the model of the combine

# Sizes that kernels are compiled for (SWITCH_HIDDEN); vLLM pads others to the next
# (DeepEPLLPrepareAndFinalize.maybe_roundup_layer_hidden_size).
HIDDEN_SIZES = (2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)


class WarpGrid(NamedTuple):
    """Blocks of a kernel, and what each of them is for.

    Attributes
    ----------
    experts
        Experts of every rank; ranks that have fewer have empty ones.
    groups, warps
        Groups of warps in a block, and warps of a group.
    num_sms
        Blocks, an SM each.
    """

    experts: int
    groups: int
    warps: int
    num_sms: int

    @classmethod
    def of(cls, work: LayerWork, machine: Machine) -> WarpGrid:
        """Grid for the experts of a layer."""
        experts = max((len(local) for local in work.experts_of_rank), default=0) or 1
        total = experts * work.num_ranks
        groups = -(-total // machine.sms.count)
        return cls(experts, groups, BLOCK_WARPS // groups, -(-total // groups))


class FlowPieces(NamedTuple):
    """Rows of flows that travel together in the model, in the order in which they are sent.

    Attributes
    ----------
    flow, rows
        (piece,): flow and rows of each.
    before
        (piece,): rows of the flow before it.
    """

    flow: Ints
    rows: Counts
    before: Ints


class Flows(NamedTuple):
    """Pairs by their (expert, owner): all of these, those without pairs too, since each has a flag.

    Attributes
    ----------
    expert_rank, owner
        (flow,): rank of the expert, and rank of the tokens.
    local
        (flow,): place of the expert on its rank.
    rows
        (flow,): pairs.
    """

    expert_rank: Ints
    owner: Ranks
    local: Ints
    rows: Counts

    @classmethod
    def of(cls, work: LayerWork, grid: WarpGrid) -> Flows:
        """Flows of a layer."""
        n, place = work.num_ranks, place_on_rank(work)
        expert_rank, owner, local = (axis.ravel() for axis in np.indices((n, n, grid.experts), np.int64))
        of_pair = (work.pair_rank * n + work.pair_source) * grid.experts + place[work.pair_expert]
        return cls(expert_rank, owner, local, np.bincount(of_pair, minlength=len(owner)))

    def group(self, grid: WarpGrid) -> tuple[Ints, Ints]:
        """SM, and group of its warps, that have a flow on the rank of the expert: two (flow,)."""
        return np.divmod(self.owner * grid.experts + self.local, grid.groups)

    def pieces(self) -> FlowPieces:
        """Cut flows, and order the pieces as groups of warps send that all begin at once.

        The first pieces of all flows come first, and each rank begins with another peer.
        """
        flow = np.repeat(np.arange(len(self.rows)), self.rows)
        cut = cut_runs(flow, -(-int(self.rows.max(initial=1)) // MOST_PIECES))
        before, flow = places_in_runs(flow)[cut.first], flow[cut.first]
        turn = (self.owner - self.expert_rank) % (int(self.owner.max()) + 1)
        order = np.lexsort((turn[flow], self.local[flow], before))
        return FlowPieces(flow[order], cut.size[order], before[order])


def place_on_rank(work: LayerWork) -> Ints:
    """(expert,): place of each among the experts of its rank."""
    place = np.zeros(work.num_experts, np.int64)
    for experts in work.experts_of_rank:
        place[experts] = np.arange(len(experts))
    return place


def padded_bytes(row_bytes: int, hidden: int) -> int:
    """Bytes of a row of `hidden` values in the next size that kernels are compiled for."""
    size = next((size for size in HIDDEN_SIZES if hidden <= size), hidden)
    return -(-row_bytes * size // hidden)
