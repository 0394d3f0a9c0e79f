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
from replay.model.collectives.algorithm import Algorithm, Collective
from replay.model.collectives.grids import Grid, Kernel, Style

if TYPE_CHECKING:
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Ints, Machine
    from replay.model.machine.sms import Split

ENGINE = Style(Grid(blocks=36, threads=512), meets_after=False)
"""vLLM's and SGLang's: at most 36 blocks. That all have read is signalled at the end, and waited
for by the last block, beside the launch of the next kernel."""
TORCH_IN_SWITCH = Style(Grid(blocks=8, threads=1024))


def by_loads(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = ENGINE,
    *,
    payload: bool = False,
    beside: Split | None = None,
) -> Ints:
    """Read all peers' buffers of `nbytes` and add them up: (rank,) the last tasks.

    Parameters
    ----------
    begun
        (rank,): when each rank's kernel begins.
    payload, beside
        See `Algorithm.build`.
    """
    kernel = Kernel(machine, kinds, style, nbytes, payload=payload, beside=beside)
    walked = kernel.walk(kernel.begin(begun), peer_loads.add_up(kernel, touched=2))
    return kernel.end(walked)


def in_switch(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH_IN_SWITCH,
    *,
    payload: bool = False,
    beside: Split | None = None,
) -> Ints:
    """Read the sums of all ranks' buffers of `nbytes`: (rank,) the last tasks; see `by_loads`."""
    kernel = Kernel(machine, kinds, style, nbytes, payload=payload, beside=beside)
    work = multimem_kernels.sums(kernel, touched=2)
    return kernel.end(kernel.walk(kernel.begin(begun), work))


def _add_by_loads(
    machine: Machine, kinds: PhaseKinds, collective: Collective, nbytes: int, begun: Ints, *,
    blocks: int | None, payload: bool, beside: Split | None,
) -> Ints:  # fmt: skip
    style = ENGINE.with_blocks(blocks)
    return by_loads(machine, kinds, nbytes, begun, style, payload=payload, beside=beside)


def _add_in_switch(
    machine: Machine, kinds: PhaseKinds, collective: Collective, nbytes: int, begun: Ints, *,
    blocks: int | None, payload: bool, beside: Split | None,
) -> Ints:  # fmt: skip
    style = TORCH_IN_SWITCH.with_blocks(blocks)
    return in_switch(machine, kinds, nbytes, begun, style, payload=payload, beside=beside)


ONE_SHOT = Algorithm(
    name="one-shot",
    collectives=("all_reduce",),
    summary="every GPU loads all buffers and adds them up",
    source="vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_1stage",
    add=_add_by_loads,
    default_blocks=lambda machine, collective, nbytes: ENGINE.grid.used(nbytes),
)
ONE_SHOT_IN_SWITCH = Algorithm(
    name="multimem-one-shot",
    collectives=("all_reduce",),
    summary="every GPU loads the sum of all buffers, which the switch makes",
    source="PyTorch CUDASymmetricMemoryOps.cu, multimem_one_shot_all_reduce",
    add=_add_in_switch,
    default_blocks=lambda machine, collective, nbytes: TORCH_IN_SWITCH.grid.used(nbytes),
    needs=("reduction",),
)
