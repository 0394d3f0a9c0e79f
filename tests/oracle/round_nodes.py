"""Nodes of the machine of round numbers, joined by network cards of round numbers."""

from __future__ import annotations

from functools import cache

import numpy as np
from round_machine import ROUND, US

import hwmodel
from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes.contract import layers as small_layers

HOST_FLAG, STEP = 4 * US, US // 4  # a flag between GPU and host, a step of a proxy
WAY = 2 * US  # over the network, on one rail
NIC = 10  # ps a byte

CARDS = {
    "nic.bandwidth_GB_per_s": 50.0,
    "nic.efficiency": 1.0,  # 20 ps a byte
    "nic.write_ns": 10.0,
    "pcie.bandwidth_GB_per_s": 100.0,
    "pcie.latency_ns": 500.0,
    "network.leaf_ns": 1000.0,
    "network.packet_bytes": 1000,
}
"""Slower cards than those of `two_nodes`, with a time for each step of a message."""


@cache
def two_nodes(size: int = 2, num: int = 2) -> hwmodel.System:
    return hwmodel.load(
        "dgx-h100",
        {
            **ROUND,
            "fabric.num_gpus": size,
            "fabric.num_domains": num,
            "fabric.links_per_plane": [2] * 4,
            "nic.bandwidth_GB_per_s": 100.0,
            "nic.efficiency": 1.0,
            "nic.write_ns": 0.0,
            "pcie.bandwidth_GB_per_s": 1000.0,
            "pcie.latency_ns": 0.0,
            "nccl.proxy_step_us": 0.25,
            "network.leaf_ns": 2000.0,
            "network.spine_ns": 500.0,
            "network.rails": size,
            "network.packet_bytes": 1 << 30,  # whole messages
        },
    )


def nodes(count: int, **changes: float) -> hwmodel.System:
    """So many nodes of the DGX H100 that ships."""
    return hwmodel.load("dgx-h100", {"fabric.num_domains": count, **changes})


def rows_to(expert: int, count: int = 1, ranks: int = 16) -> LayerWork:
    """Tokens of GPU 0 whose expert is on the GPU of its number."""
    return small_layers.work(
        np.full((count, 1), expert, np.int32),
        ranks,
        ranks,
        tokens_of_rank=[count] + [0] * (ranks - 1),
        shape=ExpertShape(1024, 64),
    )


def put_ps(system: hwmodel.System, nbytes: int) -> int:
    """A message to the other node alone, posting included; `test_rdma` has its parts."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, 16)
    one = np.zeros(1, np.int64)
    machine.sync.notify(one, one + 8, nbytes, machine.mark(one))
    return schedule(graph.build()).makespan_ps


def leaving(graph: TaskGraph, machine: Machine) -> np.ndarray:
    """(task,): whether it brings rows from a GPU to its network card."""
    of_pcie = machine.resources.classes(graph)[graph.resource] == ResourceClass.PCIE_OUT
    return of_pcie & (graph.resource >= 0) & (graph.payload_bytes > 0)
