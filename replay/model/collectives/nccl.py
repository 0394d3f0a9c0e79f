"""NCCL's collectives of whole groups: which algorithm and protocol runs, and its kernel.

NCCL takes the algorithm and protocol that its own formulas say are the quickest; here the formulas
are ours (`quickest`). Within a domain there are rings (`replay.model.collectives.ring`), and
all-reduce in the switch (`replay.model.collectives.nvls`). Several nodes have a ring for each rail
(`replay.model.collectives.node_rings`), and trees for sums (`replay.model.collectives.node_trees`).

Grouped sends and receives are `replay.model.collectives.point_to_point`.

Sources: NVIDIA/nccl (``src/graph/tuning.cc`` for the choice); nccl-tests' definition of sizes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from replay.model.collectives import algorithm, node_rings, node_trees, nvls, ring
from replay.model.collectives.algorithm import COLLECTIVES, Collective, Way, quickest_of
from replay.model.collectives.pair_rules import CHANNELS_OF_NIC

if TYPE_CHECKING:
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Ints, Machine
    from replay.model.machine.sms import Split

__all__ = ["NCCL", "Collective", "quickest", "run", "ways"]


def run(
    machine: Machine,
    kinds: PhaseKinds,
    collective: Collective,
    nbytes: int,
    begun: Ints,
    *,
    payload: bool = False,
) -> Ints:
    """Run what NCCL chooses: (rank,) the last task of every rank; see `Algorithm.build`."""
    return NCCL.build(machine, kinds, collective, nbytes, begun, payload=payload)


def quickest(machine: Machine, kinds: PhaseKinds, collective: Collective, nbytes: int) -> Way:
    """Choose an algorithm and a protocol as NCCL does: by formulas, from the size alone."""
    return algorithm.quickest(ways(machine, kinds, collective, nbytes))


def ways(
    machine: Machine,
    kinds: PhaseKinds,
    collective: Collective,
    nbytes: int,
    blocks: int | None = None,
    beside: Split | None = None,
    *,
    payload: bool = False,
) -> list[Way]:
    """Every algorithm and protocol of a collective; see `Algorithm.build`."""
    if machine.num_domains > 1:
        return _across(machine, kinds, collective, nbytes, payload=payload)
    found = ring.ways(machine, kinds, collective, nbytes, blocks, beside)
    if (
        collective == "all_reduce"
        and machine.num_ranks >= nvls.LEAST_RANKS
        and machine.system.switch.reduction
    ):
        found += nvls.ways(machine, kinds, collective, nbytes, blocks, beside)
    return found


def _across(
    machine: Machine, kinds: PhaseKinds, collective: Collective, nbytes: int, *, payload: bool
) -> list[Way]:
    """Rings of rails, and for sums trees, whose tasks do not tell payload apart."""
    steps = ring.steps_of(collective, machine.num_ranks)
    part = max(1, nbytes // machine.num_ranks)
    blocks = CHANNELS_OF_NIC * machine.domains.size
    found = [
        Way(
            f"ring {protocol.name}",
            blocks,
            node_rings.ring_ps(machine, part, protocol, steps, payload=payload),
            partial(node_rings.ring, machine, kinds, nbytes=part, protocol=protocol, steps=steps),
        )
        for protocol in machine.system.nccl.protocols
    ]
    if collective == "all_reduce" and not payload:
        found += [
            Way(
                f"tree {protocol.name}",
                blocks,
                node_trees.all_reduce_ps(machine, nbytes, protocol),
                partial(node_trees.all_reduce, machine, kinds, nbytes=nbytes, protocol=protocol),
            )
            for protocol in machine.system.nccl.protocols
        ]
    return found


NCCL = quickest_of(
    ways,
    name="nccl",
    collectives=COLLECTIVES,
    summary="what NCCL chooses by size among its algorithms and protocols",
    needs=("cuda",),
    source="NVIDIA/nccl src/graph/tuning.cc",
    crosses=COLLECTIVES,
)
