"""Acknowledgements of stores, gathered by flow, against a slow twin."""

from __future__ import annotations

import numpy as np
import pytest

import hwmodel
from replay.engine import GraphBuilder
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.transfers import ACK_BATCH_BYTES


def slow_batches(flow: list[int], wire: list[int], acks: list[int]) -> list[tuple[int, int]]:
    """The last message of each batch and the bytes of its acknowledgements, flow by flow."""
    found = []
    for one in sorted(set(flow)):
        sent = owed = 0
        batch, last = 0, -1
        for place in (place for place, of in enumerate(flow) if of == one):
            sent += wire[place]
            now = (sent - 1) // ACK_BATCH_BYTES
            if last >= 0 and now != batch:
                found.append((last, owed))
                owed = 0
            batch, last = now, place
            owed += acks[place]
        found.append((last, owed))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_batches_are_those_of_a_slow_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    machine = Machine(hwmodel.load("dgx-h100"), GraphBuilder(KIND_NAMES), 8)
    count = int(rng.integers(1, 300))
    flow = rng.integers(0, int(rng.integers(1, 64)), count)
    wire = rng.integers(1, [200, 40_000][seed % 2], count)
    acks = rng.integers(0, 400, count)
    found = machine.transfers.ack_batches(flow, wire, acks)
    expected = slow_batches(flow.tolist(), wire.tolist(), acks.tolist())
    assert list(zip(found.last.tolist(), found.nbytes.tolist(), strict=True)) == expected
