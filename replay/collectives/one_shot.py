"""One-shot all-reduce: every rank reads everything, by loads or as sums that the switch makes.

By loads, a thread asks all peers for the same 16 bytes at once and adds what comes. In the switch
(``multimem.ld_reduce``) it asks once for the sum. There is one way there and back, and n times the
bytes that an all-reduce needs: the fastest for short buffers, the slowest for long ones.

Sources: vLLM ``csrc/custom_all_reduce.cuh`` (``cross_device_reduce_1stage``; SGLang's and
TensorRT-LLM's are alike); NVIDIA/nccl ``contrib/custom_algos/allreduce``
(``oneshot_mc_allreduce_kernel``); PyTorch ``CUDASymmetricMemoryOps.cu``
(``multimem_one_shot_all_reduce``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from replay.collectives import grids, multimem_kernels, peer_loads
from replay.collectives.grids import Grid, Style, Work

if TYPE_CHECKING:
    from replay.machine.kinds import PhaseKinds
    from replay.machine.machine import Ints, Machine

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
) -> Ints:
    """Read all peers' buffers of `nbytes` and add them up: (rank,) the last tasks.

    Parameters
    ----------
    begun
        (rank,): when each rank's kernel begins.
    payload
        Whether the bytes count as payload.
    """
    met = grids.meet_before(machine, kinds, style, begun)
    walked = peer_loads.add_up(machine, kinds, style.grid, nbytes, met, payload=payload)
    return grids.meet_after(machine, kinds, style, walked, stored=False)


def in_switch(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH_IN_SWITCH,
    *,
    payload: bool = False,
) -> Ints:
    """Read the sums of all ranks' buffers of `nbytes`: (rank,) the last tasks; see `by_loads`."""
    sums = partial(multimem_kernels.load_sums, machine, kinds, payload=payload)
    work = Work(sums, machine.costs.sm_load, kinds.receive)
    met = grids.meet_before(machine, kinds, style, begun)
    walked = grids.walk(machine, kinds, style.grid, nbytes, met, work)
    return grids.meet_after(machine, kinds, style, walked, stored=False)
