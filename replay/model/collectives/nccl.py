"""NCCL's collectives of whole groups: which algorithm and protocol runs, and its kernel.

NCCL takes the algorithm and protocol that its own formulas say are the quickest; here the formulas
are ours (`ways`). Within a domain there are rings (`replay.model.collectives.ring`), and
all-reduce in the switch (`replay.model.collectives.nvls`). Several nodes have a ring for each rail
(`replay.model.collectives.node_rings`), and trees for sums (`replay.model.collectives.node_trees`).

Grouped sends and receives are `replay.model.collectives.point_to_point`.

Sources: NVIDIA/nccl (``src/graph/tuning.cc`` for the choice); nccl-tests' definition of sizes.
"""

from __future__ import annotations

from functools import partial

from replay.model.collectives import node_rings, node_trees, nvls, ring
from replay.model.collectives.algorithm import (
    COLLECTIVES,
    Algorithm,
    CollectiveCall,
    Way,
)
from replay.model.collectives.pair_rules import CHANNELS_OF_NIC


def ways(call: CollectiveCall) -> list[Way]:
    """Every algorithm and protocol of a collective."""
    machine = call.machine
    if machine.num_domains > 1:
        return _across(call)
    found = ring.ways(call)
    if call.collective == "all_reduce" and machine.num_ranks >= nvls.LEAST_RANKS and machine.system.switch.reduction:
        found += nvls.ways(call)
    return found


def _across(call: CollectiveCall) -> list[Way]:
    """Rings of rails, and for sums trees, whose tasks do not tell payload apart."""
    machine, kinds, nbytes = call.machine, call.kinds, call.nbytes
    steps, part = ring.steps_of(call.collective, machine.num_ranks), ring.part_of(call)
    blocks = CHANNELS_OF_NIC * machine.domains.size
    found = [
        Way(
            f"ring {protocol.name}",
            blocks,
            node_rings.ring_ps(machine, part, protocol, steps, payload=call.payload),
            partial(
                node_rings.ring,
                machine,
                kinds,
                nbytes=part,
                protocol=protocol,
                steps=steps,
                payload=call.carries_payload,
            ),
        )
        for protocol in machine.system.nccl.protocols
    ]
    if call.collective == "all_reduce" and not call.payload:
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


NCCL = Algorithm(
    ways=ways,
    name="nccl",
    collectives=COLLECTIVES,
    summary="what NCCL chooses by size among its algorithms and protocols",
    needs=("cuda",),
    source="NVIDIA/nccl src/graph/tuning.cc",
    crosses=COLLECTIVES,
)
