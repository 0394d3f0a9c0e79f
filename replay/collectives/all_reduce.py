"""All-reduce kernels of inference frameworks: one-shot and two-shot, over loads.

One-shot: after a barrier every rank reads all others' buffers and adds. Two-shot: every rank reads
and adds its share, then all read the shares. vLLM first copies into a registered buffer.

Sources: vLLM, SGLang and TensorRT-LLM custom all-reduce kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import DISPATCH, Kind
from replay.machine.times import Time

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

PIECE_BYTES, MOST_PIECES = 16384, 32
COPIES = {"vllm"}


def _read_all(machine: Machine, start: Ints, nbytes: int) -> Ints:
    """Every rank reads `nbytes` of every other: (rank,) marks."""
    n = machine.num_ranks
    reader, target = np.nonzero(~np.eye(n, dtype=bool))
    pieces = int(min(MOST_PIECES, max(1, nbytes // PIECE_BYTES)))
    reader, target = np.tile(reader, pieces), np.tile(target, pieces)
    fan_out = machine.transfers.fan_out(reader, target)
    data = machine.transfers.load(
        DISPATCH, reader, target, -(-nbytes // pieces), start[reader], fan_out
    ).arrived
    return machine.gather(data, reader, start)


def _kernel(machine: Machine, start: Ints, framework: str, nbytes: int) -> Ints:
    gap = Time(machine.system.overheads.kernel_gap_ps("graph"))
    begun = machine.delay(Kind.LAUNCH, gap, start)
    if framework in COPIES:
        copied = machine.stream(Kind.DISPATCH_MEMORY, 2 * nbytes, machine.ranks, begun)
        begun = machine.delay(Kind.LAUNCH, gap, copied)
    return machine.sync.barrier(DISPATCH, begun)


def one_shot(framework: str, nbytes: int, machine: Machine, start: Ints) -> Ints:
    """Read everything and add: (rank,) marks of the end."""
    return _read_all(machine, _kernel(machine, start, framework, nbytes), nbytes)


def two_shot(framework: str, nbytes: int, machine: Machine, start: Ints) -> Ints:
    """Read and add a share, meet, read the others' shares: (rank,) marks of the end."""
    share = -(-nbytes // machine.num_ranks)
    added = _read_all(machine, _kernel(machine, start, framework, nbytes), share)
    return _read_all(machine, machine.sync.barrier(DISPATCH, added), share)
