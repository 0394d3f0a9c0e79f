"""Two-shot collectives over loads and stores: every rank adds up a share, which all then get.

In the first shot a rank loads its share of the buffer from all peers and adds. In the second, the
engines' kernels load the others' shares, for which all ranks meet in between; PyTorch's kernel
stores its share into all peers' memory, and all meet behind. Either moves 2 (n - 1) / n of the
buffer each way. The halves by themselves are a reduce-scatter and an all-gather.

What a thread asks for at once is what the compiled kernel does. Each load of the engines' second
shot is followed by the store of what came, behind a condition, so that a thread asks one GPU after
the other. PyTorch's first shot keeps what comes in an array with an index that is known at run time,
in local memory, and stores some of it before it has asked everyone.

Sources: vLLM ``csrc/custom_all_reduce.cuh`` (``cross_device_reduce_2stage``; TensorRT-LLM's is
alike); PyTorch ``CUDASymmetricMemoryOps.cu`` (``two_shot_all_reduce_`` and ``reduce_scatter_out``);
SGLang ``custom_all_reduce_pull.cuh``, ``all_reduce.py``. The order of loads and stores is that of
these loops compiled for sm_90 and sm_100 by NVRTC 12.8 and 13.0.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from replay.model.collectives import peer_loads
from replay.model.collectives.algorithm import COLLECTIVES, Algorithm, CollectiveCall, Way
from replay.model.collectives.grids import BlockGrid, BlockWork, Kernel, Style
from replay.model.collectives.one_shot import ENGINE

if TYPE_CHECKING:
    from replay.model.arrays import Tasks
    from replay.model.machine.times import Time

TORCH = Style(BlockGrid(blocks=24, threads=1024))
SGLANG = Style(BlockGrid(blocks=132, threads=512))
"""SGLang's second version on Hopper: blocks on all SMs, and all loads of a thread in registers."""
TURNS = {2: 1, 4: 2, 8: 3}
"""Ways there and back of a sum of PyTorch's, by the numbers of GPUs for which it is compiled. With
others its threads ask one peer after the other. On sm_100 four GPUs need one way alone, not two."""


def all_reduce(call: CollectiveCall, begun: Tasks, style: Style = ENGINE) -> Tasks:
    """Loads of a share, then of all shares: (rank,) the last tasks; see `one_shot.by_loads`."""
    n, kernel = call.machine.num_ranks, Kernel(call, style, call.share)
    added = kernel.walk(kernel.begin(begun), peer_loads.add_up(kernel, touched=n + 1))
    others = peer_loads.read_all(kernel, turns=n - 1)
    walked = kernel.walk(kernel.meet(added.left, stored="nothing"), others)
    return kernel.end(walked, stored="nothing")


def half(call: CollectiveCall, begun: Tasks, style: Style = TORCH) -> Tasks:
    """One of the shots by itself: (rank,) the last tasks; see `one_shot.by_loads`.

    The first is a reduce-scatter, the second an all-gather.
    """
    n, kernel = call.machine.num_ranks, Kernel(call, style, call.share)
    adds = call.collective == "reduce_scatter"
    work = peer_loads.add_up(kernel, touched=n + 1, turns=_turns(n)) if adds else peer_loads.read_all(kernel)
    return kernel.end(kernel.walk(kernel.begin(begun), work), stored="nothing")


def all_reduce_by_stores(call: CollectiveCall, begun: Tasks, style: Style = TORCH, turns: int | None = None) -> Tasks:
    """Loads of a share, whose sums are stored to all: (rank,) the last tasks.

    Parameters
    ----------
    turns
        See `peer_loads.load`; None is what PyTorch's kernel needs.
    """
    n, kernel = call.machine.num_ranks, Kernel(call, style, call.share)
    machine = call.machine
    fan_out, turns = peer_loads.all_pairs(machine), _turns(n) if turns is None else turns

    def busy(of_block: int) -> Time:
        return machine.costs.sm_add(n * of_block, 0) + machine.costs.sm_store(n * of_block)

    work = BlockWork(
        call.kinds.send,
        busy,
        touched=2 * n,
        load=partial(peer_loads.load, kernel, fan_out=fan_out, turns=turns),
        store=partial(peer_loads.store, kernel, fan_out=fan_out),
        trips=turns,
    )
    return kernel.end(kernel.walk(kernel.begin(begun), work), stored="each")


def _turns(num_ranks: int) -> int:
    return TURNS.get(num_ranks, num_ranks - 1)


def _ways(call: CollectiveCall) -> list[Way]:
    if call.collective == "all_reduce":
        return ENGINE.ways("two-shot", call, call.share, all_reduce)
    return TORCH.ways("two-shot", call, call.share, half)


TWO_SHOT = Algorithm(
    name="two-shot",
    collectives=COLLECTIVES,
    summary="every GPU loads and adds up a share, then loads the shares of all",
    source="vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_2stage",
    ways=_ways,
)
TWO_SHOT_STORES = Algorithm(
    name="two-shot-stores",
    collectives=("all_reduce",),
    summary="every GPU loads and adds up a share, and stores it to all",
    source="PyTorch CUDASymmetricMemoryOps.cu, two_shot_all_reduce_",
    ways=lambda call: TORCH.ways("two-shot-stores", call, call.share, all_reduce_by_stores),
)
