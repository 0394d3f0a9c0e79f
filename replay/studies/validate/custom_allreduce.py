"""All-reduce kernels of inference engines, in CUDA graphs, by each engine's own rule.

* vLLM's communicators are asked in turn, each up to a size (``all_reduce_utils.py``; those of
  symmetric memory with copies in and out, ``symm_mem.py``); its own kernels behind a copy.
* SGLang's second version (``custom_all_reduce_v2.py``) stores its second shot as PyTorch does, and
  leaves what is longer than 16 MiB to NCCL. Its kernel of the shortest buffers, which pushes, is
  modelled as one that loads.
* TensorRT-LLM changes to two shots from some number of values on, and to NCCL where its workspace
  is too small (``customAllReduceUtils.h``, `HeuristicThresholdLP` and
  `getMaxRequiredWorkspaceSize`). Its two-shot kernel is modelled as vLLM's.

The measured versions are not stated; the sizes at which kernels change in the rows fit these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from replay.errors import UserError
from replay.model.collectives import one_shot, two_shot
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.machine.kinds import DISPATCH, Kind
from replay.studies.validate import symmetric_memory
from replay.studies.validate.bench import Bench
from replay.studies.validate.nccl import time_collective
from replay.studies.validate.symmetric_memory import in_graph
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, Prediction, WorkKind, has
from tracegen.shared.errors import quote_names

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

SYSTEM = "dgx-h100"
KIB, MIB = 1 << 10, 1 << 20
COPIES = {"vllm"}  # into a registered buffer, first
ONE_SHOT, TWO_SHOT, STORES, MULTIMEM, NCCL = "one-shot", "two-shot", "two-shot by stores", "multimem", "NCCL"
KERNELS: dict[str, Callable[[CollectiveCall, Ints], Ints]] = {
    ONE_SHOT: one_shot.by_loads,
    TWO_SHOT: two_shot.all_reduce,
    STORES: partial(two_shot.all_reduce_by_stores, style=two_shot.SGLANG, turns=1),
}
VLLM_MOST = {2: 8 * MIB, 4: 8 * MIB, 8: MIB // 4}  # its own kernels take less
VLLM_SYMMETRIC_MOST = {2: 64 * MIB, 4: 32 * MIB, 8: 64 * MIB}
SGLANG_MOST = 16 * MIB
SGLANG_ONE_SHOT = {2: SGLANG_MOST, 4: 384 * KIB, 8: 160 * KIB}
TRTLLM_MOST = {2: 16_000_000, 4: 8_000_000, 8: 8_000_000}
TRTLLM_TWO_SHOT = {2: 32 * MIB, 4: 2 * MIB, 8: 512 * KIB}  # from so many bytes on


def choose_kernel(framework: str, num_gpus: int, nbytes: int) -> str:
    """Kernel that an engine takes for so many bytes.

    Raises
    ------
    UserError
        If it has no rule for so many GPUs.
    """
    if num_gpus not in VLLM_MOST:
        raise UserError(f"kernels of {framework} are known for {quote_names(map(str, VLLM_MOST))} GPUs, not {num_gpus}")
    if framework == "vllm":
        if nbytes < VLLM_MOST[num_gpus]:
            most = {2: nbytes, 4: 512 * KIB - 1, 8: 256 * KIB - 1}[num_gpus]
            return ONE_SHOT if nbytes <= most else TWO_SHOT
        symmetric = STORES if num_gpus == 2 else MULTIMEM
        return symmetric if nbytes <= VLLM_SYMMETRIC_MOST[num_gpus] else NCCL
    if framework == "sglang":
        if nbytes > SGLANG_MOST:
            return NCCL
        return ONE_SHOT if nbytes <= SGLANG_ONE_SHOT[num_gpus] else STORES
    if nbytes > TRTLLM_MOST[num_gpus]:
        return NCCL
    return ONE_SHOT if nbytes < TRTLLM_TWO_SHOT[num_gpus] else TWO_SHOT


def build(framework: str, name: str, nbytes: int, machine: Machine, start: Ints) -> Ints:
    """Add a kernel of an engine: (rank,) the last tasks."""
    if framework == "vllm" and name in (STORES, MULTIMEM):
        kernel = symmetric_memory.KERNELS["two-shot" if name == STORES else "multimem"]
        return kernel(machine, nbytes, start)
    begun = in_graph(machine, start)
    if framework in COPIES:
        copied = machine.stream(Kind.DISPATCH_MEMORY, 2 * nbytes, machine.ranks, begun)
        begun = in_graph(machine, copied)
    return KERNELS[name](CollectiveCall(machine, DISPATCH, "all_reduce", nbytes), begun)


def predict(bench: Bench, row: MeasurementRow) -> Prediction:
    """Predict a time in microseconds."""
    framework, n, nbytes = row["framework"], row["num_gpus"], row["bytes"]
    name = choose_kernel(framework, n, nbytes)
    if name == NCCL:
        alone = bench.once(("nccl", n, nbytes), lambda: time_collective(bench, SYSTEM, "all_reduce", n, nbytes))
        return alone._replace(kernel=f"NCCL {alone.kernel}")
    return Prediction(bench.time_us(bench.system(SYSTEM), n, partial(build, framework, name, nbytes)), name)


TABLE = MeasurementTable(
    name="custom_allreduce",
    title="One-shot, two-shot and NCCL all-reduce of inference engines, 2, 4 and 8 x H100",
    kind=WorkKind.COLLECTIVES,
    size="bytes",
    bounds=(Bound("all", 20, has()),),
    predict=predict,
)
