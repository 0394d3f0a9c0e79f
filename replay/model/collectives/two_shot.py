"""Two-shot collectives over loads and stores: every rank adds up a share, which all then get.

In the first shot a rank loads its share of the buffer from all peers and adds. In the second, the
engines' kernels load the others' shares, for which all ranks meet in between; PyTorch's kernel
stores its share into all peers' memory, and all meet behind. Either moves 2 (n - 1) / n of the
buffer each way. The halves by themselves are a reduce-scatter and an all-gather.

Sources: vLLM ``csrc/custom_all_reduce.cuh`` (``cross_device_reduce_2stage``; SGLang's and
TensorRT-LLM's are alike); PyTorch ``CUDASymmetricMemoryOps.cu`` (``two_shot_all_reduce_`` and
``reduce_scatter_out``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from replay.model.collectives import peer_loads
from replay.model.collectives.algorithm import COLLECTIVES, Algorithm, Collective
from replay.model.collectives.grids import Grid, Kernel, Style, Work
from replay.model.collectives.one_shot import ENGINE

if TYPE_CHECKING:
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Ints, Machine
    from replay.model.machine.sms import Split
    from replay.model.machine.times import Time

TORCH = Style(Grid(blocks=24, threads=1024))
UNROLLED = (2, 4, 8)
"""Numbers of GPUs for which PyTorch's kernel is compiled: its threads ask all peers at once. With
others they ask one after the other."""


def all_reduce(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = ENGINE,
    *,
    payload: bool = False,
    beside: Split | None = None,
) -> Ints:
    """Loads of a share, then of all shares: (rank,) the last tasks; see `one_shot.by_loads`."""
    n, share = machine.num_ranks, -(-nbytes // machine.num_ranks)
    kernel = Kernel(machine, kinds, style, share, payload=payload, beside=beside)
    added = kernel.walk(kernel.begin(begun), peer_loads.add_up(kernel, touched=n + 1))
    walked = kernel.walk(kernel.meet(added.left), peer_loads.read_all(kernel))
    return kernel.end(walked)


def half(
    machine: Machine,
    kinds: PhaseKinds,
    collective: Collective,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
    beside: Split | None = None,
) -> Ints:
    """One of the shots by itself: (rank,) the last tasks; see `one_shot.by_loads`.

    Parameters
    ----------
    collective
        ``"reduce_scatter"`` for the first, ``"all_gather"`` for the second.
    nbytes
        What every rank brings, or gets.
    """
    n, share = machine.num_ranks, -(-nbytes // machine.num_ranks)
    kernel = Kernel(machine, kinds, style, share, payload=payload, beside=beside)
    adds = collective == "reduce_scatter"
    work = peer_loads.add_up(kernel, touched=n + 1) if adds else peer_loads.read_all(kernel)
    return kernel.end(kernel.walk(kernel.begin(begun), work))


def all_reduce_by_stores(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
    beside: Split | None = None,
) -> Ints:
    """Loads of a share, whose sums are stored to all: (rank,) the last tasks."""
    n, share = machine.num_ranks, -(-nbytes // machine.num_ranks)
    kernel = Kernel(machine, kinds, style, share, payload=payload, beside=beside)
    fan_out, in_turn = peer_loads.all_pairs(machine), n not in UNROLLED

    def busy(of_block: int) -> Time:
        return machine.costs.sm_add(n * of_block, 0) + machine.costs.sm_store(n * of_block)

    work = Work(
        kinds.send,
        busy,
        touched=2 * n,
        load=partial(peer_loads.load, kernel, fan_out=fan_out, in_turn=in_turn),
        store=partial(peer_loads.store, kernel, fan_out=fan_out),
        trips=n - 1 if in_turn else 1,
    )
    return kernel.end(kernel.walk(kernel.begin(begun), work), "each")


def _add(
    machine: Machine, kinds: PhaseKinds, collective: Collective, nbytes: int, begun: Ints, *,
    blocks: int | None, payload: bool, beside: Split | None,
) -> Ints:  # fmt: skip
    style = _style(collective).with_blocks(blocks)
    if collective == "all_reduce":
        return all_reduce(machine, kinds, nbytes, begun, style, payload=payload, beside=beside)
    return half(machine, kinds, collective, nbytes, begun, style, payload=payload, beside=beside)


def _add_by_stores(
    machine: Machine, kinds: PhaseKinds, collective: Collective, nbytes: int, begun: Ints, *,
    blocks: int | None, payload: bool, beside: Split | None,
) -> Ints:  # fmt: skip
    style = TORCH.with_blocks(blocks)
    return all_reduce_by_stores(
        machine, kinds, nbytes, begun, style, payload=payload, beside=beside
    )


def _style(collective: Collective) -> Style:
    return ENGINE if collective == "all_reduce" else TORCH


def _blocks(machine: Machine, collective: Collective, nbytes: int) -> int:
    return _style(collective).grid.used(-(-nbytes // machine.num_ranks))


TWO_SHOT = Algorithm(
    name="two-shot",
    collectives=COLLECTIVES,
    summary="every GPU loads and adds up a share, then loads the shares of all",
    source="vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_2stage",
    add=_add,
    default_blocks=_blocks,
)
TWO_SHOT_STORES = Algorithm(
    name="two-shot-stores",
    collectives=("all_reduce",),
    summary="every GPU loads and adds up a share, and stores it to all",
    source="PyTorch CUDASymmetricMemoryOps.cu, two_shot_all_reduce_",
    add=_add_by_stores,
    default_blocks=lambda machine, _, nbytes: TORCH.grid.used(-(-nbytes // machine.num_ranks)),
)
