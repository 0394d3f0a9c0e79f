"""One-shot all-reduce: every rank reads everything, by loads or as sums that the switch makes.

By loads, a thread asks all peers for the same 16 bytes at once and adds what comes. In the switch
(``multimem.ld_reduce``) it asks once for the sum. There is one way there and back; the bytes are
n - 1 buffers each way by loads, and n buffers out of every GPU in the switch. That is the quickest
for short buffers, and the slowest for long ones.

Sources: vLLM ``csrc/custom_all_reduce.cuh`` (``cross_device_reduce_1stage``; SGLang's and
TensorRT-LLM's are alike); NVIDIA/nccl ``contrib/custom_algos/allreduce``
(``oneshot_mc_allreduce_kernel``); PyTorch ``CUDASymmetricMemoryOps.cu``
(``multimem_one_shot_all_reduce``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.model.collectives import multimem_kernels, peer_loads
from replay.model.collectives.algorithm import Algorithm, CollectiveCall
from replay.model.collectives.grids import BlockGrid, Kernel, Style

if TYPE_CHECKING:
    from replay.model.arrays import Tasks

ENGINE = Style(BlockGrid(blocks=36, threads=512), meets_after=False)
"""vLLM's and SGLang's: at most 36 blocks. That all have read is signalled at the end, and waited
for by the last block, beside the launch of the next kernel."""
SAMPLE = Style(BlockGrid(blocks=4, threads=1024), meets_before=False, meets_after=False)
"""NVIDIA's sample of NCCL's device API, as it was measured: who calls sees to it that all is written."""
TORCH_IN_SWITCH = Style(BlockGrid(blocks=8, threads=1024))


def by_loads(call: CollectiveCall, begun: Tasks, style: Style = ENGINE) -> Tasks:
    """Read all peers' buffers and add them up: (rank,) the last tasks.

    Parameters
    ----------
    begun
        (rank,): when each rank's kernel begins.
    """
    kernel = Kernel(call, style, call.nbytes)
    walked = kernel.walk(kernel.begin(begun), peer_loads.add_up(kernel, touched=2))
    return kernel.end(walked, stored="nothing")


def in_switch(call: CollectiveCall, begun: Tasks, style: Style = TORCH_IN_SWITCH) -> Tasks:
    """Read the sums of all ranks' buffers: (rank,) the last tasks; see `by_loads`."""
    kernel = Kernel(call, style, call.nbytes)
    work = multimem_kernels.sums(kernel, touched=2)
    return kernel.end(kernel.walk(kernel.begin(begun), work), stored="nothing")


ONE_SHOT = Algorithm(
    name="one-shot",
    collectives=("all_reduce",),
    summary="every GPU loads all buffers and adds them up",
    source="vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_1stage",
    ways=lambda call: ENGINE.ways("one-shot", call, call.nbytes, by_loads),
)
ONE_SHOT_IN_SWITCH = Algorithm(
    name="multimem-one-shot",
    collectives=("all_reduce",),
    summary="every GPU loads the sum of all buffers, which the switch makes",
    source="PyTorch CUDASymmetricMemoryOps.cu, multimem_one_shot_all_reduce",
    ways=lambda call: TORCH_IN_SWITCH.ways("multimem-one-shot", call, call.nbytes, in_switch),
    needs=("reduction",),
)
