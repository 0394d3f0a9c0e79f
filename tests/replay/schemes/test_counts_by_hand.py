"""What single steps of schemes move, and in which order, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hwmodel
from replay.engine import GraphBuilder
from replay.model.machine.domains import Domains
from replay.model.machine.host import Operation
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine, MemoryTraffic
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.hybrid_ep.between import Relays
from replay.schemes.ep.pangu.routes import Routes
from replay.schemes.ep.tutel import sparse

HIDDEN = 256


def domains(num_nodes: int, gpus_per_node: int) -> Domains:
    system = hwmodel.load("dgx-h100", {"fabric.num_gpus": gpus_per_node, "fabric.num_domains": num_nodes})
    return Domains(system.fabric, num_nodes * gpus_per_node)


def work(ids: list[list[int]], tokens_of_rank: list[int], **given: Any) -> LayerWork:
    """One expert a rank."""
    ranks = len(tokens_of_rank)
    return small_layers.work(
        np.array(ids, np.int32),
        ranks,
        ranks,
        tokens_of_rank=tokens_of_rank,
        shape=ExpertShape(HIDDEN, 64),
        **given,
    )


def test_pangu_copies_its_own_part_of_what_is_gathered_and_sends_itself_no_sum() -> None:
    """Three nodes of two GPUs: rails join the GPUs of one index."""
    routes = Routes(work([[0]] * 6, [1] * 6), domains(3, 2), 1)
    rail = np.array([[1, 0] * 3, [0, 1] * 3] * 3)
    assert (routes.rails(100) == 100 * rail).all()
    assert (routes.rails(100, back=True) == 100 * (rail - np.eye(6, dtype=int))).all()
    alone = Routes(work([[0]] * 2, [1] * 2), domains(1, 2), 1)
    assert not alone.rails(100).any()


def test_hybrid_ep_begins_with_the_next_node_and_goes_round() -> None:
    """Four nodes of one GPU, two chunks. Every chunk goes first to the node behind its own, then to
    the one behind that; of GPUs that send as far, the first is first."""
    ids = [[1, 2, 3], [3, 1, 2], [0, 3, 2], [0, 1, 2]]  # of tokens of GPUs 0, 0, 1 and 3
    layer = work(ids, [2, 1, 0, 1])
    found = Relays.of(layer, domains(4, 1), np.array([0, 1, 0, 0]))
    sent = list(zip(found.chunk.tolist(), found.owner.tolist(), found.relay.tolist(), strict=True))
    assert sent == [
        (0, 0, 1),
        (0, 1, 2),
        (0, 3, 0),  # to the next node
        (0, 0, 2),
        (0, 1, 3),
        (0, 3, 1),  # two further on
        (0, 0, 3),
        (0, 1, 0),
        (0, 3, 2),
        (1, 0, 1),
        (1, 0, 2),
        (1, 0, 3),
    ]
    assert found.rows.tolist() == [1] * 12
    assert found.token.tolist() == [0, 2, 3] * 3 + [1, 1, 1]


def test_tutel_reads_both_factors_of_gate_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each (token, choice) the kept result, in FP32, and of each row in the buffer its gradient;
    a number of each choice is written. Tutel multiplies and sums them up choice by choice."""
    seen: dict[str, tuple[MemoryTraffic, int]] = {}

    def note(self: Machine, kind: Any, moved: Any, after: Any, what: Operation) -> Any:
        seen[what.name] = (moved, what.launches)
        return after

    monkeypatch.setattr(Machine, "small_kernels", note)
    layer = work([[0, 1], [2, 1], [3, 0], [1, 3], [2, 0]], [2, 1, 1, 1], is_backward=True)
    machine = Machine(hwmodel.load("dgx-h100"), GraphBuilder(KIND_NAMES), 4)
    carried = SCHEMES["tutel"].carries(layer)
    sparse.encode(machine, layer, carried, machine.mark(machine.ranks))
    moved, launches = seen[sparse.GATE_GRADIENTS.name]
    tokens, kept = np.array([2, 1, 1, 1]), sparse._rows_kept(layer, carried)
    assert kept.tolist() == (2 * tokens).tolist()  # nothing is dropped
    assert moved.read.tolist() == ((2 * tokens + kept) * HIDDEN * 4).tolist()
    assert moved.written.tolist() == (2 * tokens * 4).tolist()
    assert launches == 2
