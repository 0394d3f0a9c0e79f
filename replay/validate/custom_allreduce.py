"""All-reduce kernels of inference frameworks, in CUDA graphs.

One-shot: after a barrier every rank reads all others' buffers and adds. Two-shot: every rank
reads and adds its share, then all read the shares. Frameworks take one or the other by size and
NCCL beyond; here it is whichever is quickest. vLLM first copies into a registered buffer.

Sources: vLLM, SGLang and TensorRT-LLM custom all-reduce kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import DISPATCH, Kind
from replay.validate.bench import Bench
from replay.validate.nccl import nccl_us
from replay.validate.table import Bound, Row, Table

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

SYSTEM = "dgx-h100"
PIECE_BYTES, MOST_PIECES = 16384, 32
MOST_BYTES = 64 << 20  # beyond, frameworks leave it to NCCL
COPIES = {"vllm"}


def _read_all(machine: Machine, start: Ints, nbytes: int) -> Ints:
    """Every rank reads `nbytes` of every other: (rank,) marks."""
    n = machine.num_ranks
    reader, target = np.nonzero(~np.eye(n, dtype=bool))
    pieces = int(min(MOST_PIECES, max(1, nbytes // PIECE_BYTES)))
    reader, target = np.tile(reader, pieces), np.tile(target, pieces)
    data = machine.read(DISPATCH, reader, target, -(-nbytes // pieces), start[reader])
    return machine.gather(data, reader, start)


def _kernel(machine: Machine, start: Ints, framework: str, nbytes: int) -> Ints:
    gap = machine.system.overheads.kernel_gap_ps("graph")
    begun = machine.delay(Kind.LAUNCH, gap, start)
    if framework in COPIES:
        copied = machine.graph.add(
            resource=machine.hbm,
            duration_ps=machine.system.hbm.stream_ps(np.full(machine.num_ranks, 2 * nbytes)),
            kind=Kind.DISPATCH_MEMORY, rank=machine.ranks, after=begun,
        )  # fmt: skip
        begun = machine.delay(Kind.LAUNCH, gap, copied)
    return machine.barrier(DISPATCH, begun)


def one_shot(framework: str, nbytes: int, machine: Machine, start: Ints) -> Ints:
    """Read everything, add."""
    return _read_all(machine, _kernel(machine, start, framework, nbytes), nbytes)


def two_shot(framework: str, nbytes: int, machine: Machine, start: Ints) -> Ints:
    """Read and add a share, meet, read the others' shares."""
    share = -(-nbytes // machine.num_ranks)
    added = _read_all(machine, _kernel(machine, start, framework, nbytes), share)
    return _read_all(machine, machine.barrier(DISPATCH, added), share)


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds."""
    found, system = [], bench.system(SYSTEM)
    nccl: dict[tuple[int, int], float] = {}
    for row in rows:
        n, nbytes = row["num_gpus"], row["bytes"]
        if (n, nbytes) not in nccl:
            nccl[n, nbytes] = nccl_us(bench, SYSTEM, "all_reduce", n, nbytes)
        times = [nccl[n, nbytes]]
        if nbytes < MOST_BYTES:
            times += [
                bench.time_us(system, n, partial(shot, row["framework"], nbytes))
                for shot in (one_shot, two_shot)
            ]
        found.append(min(times))
    return found


TABLE = Table(
    name="custom_allreduce",
    title="One-shot, two-shot and NCCL all-reduce of inference frameworks, 2, 4 and 8 x H100",
    unit="us",
    size="bytes",
    bounds=(Bound("all", 20, lambda row: True),),
    predict=predict,
)
