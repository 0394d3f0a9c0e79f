"""Two-shot collectives over loads and stores: every rank adds up a share, which all then get.

In the first shot a rank loads its share of the buffer from all peers and adds. In the second, the
engines' kernels load the others' shares, for which all ranks meet in between; PyTorch's kernel
stores its share into all peers' memory, and all meet behind. Either moves 2 (n - 1) / n of the
buffer each way. The halves by themselves are a reduce-scatter and an all-gather.

Sources: vLLM ``csrc/custom_all_reduce.cuh`` (``cross_device_reduce_2stage``; SGLang's and
TensorRT-LLM's are alike); PyTorch ``torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu``
(``two_shot_all_reduce_kernel_inplace``, ``reduce_scatter_out``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from replay.collectives import grids, peer_loads
from replay.collectives.grids import Grid, Style, Work
from replay.collectives.one_shot import ENGINE

if TYPE_CHECKING:
    from replay.machine.kinds import PhaseKinds
    from replay.machine.machine import Ints, Machine
    from replay.machine.times import Time

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
) -> Ints:
    """Loads of a share, then of all shares: (rank,) the last tasks; see `one_shot.by_loads`."""
    share = -(-nbytes // machine.num_ranks)
    met = grids.meet_before(machine, kinds, style, begun)
    added = peer_loads.add_up(machine, kinds, style.grid, share, met, payload=payload)
    between = machine.sync.barrier(kinds, added.left)
    walked = peer_loads.read_all(machine, kinds, style.grid, share, between, payload=payload)
    return grids.meet_after(machine, kinds, style, walked, stored=False)


def reduce_scatter(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
) -> Ints:
    """The first shot alone: (rank,) the last tasks; `nbytes` is what every rank brings."""
    share = -(-nbytes // machine.num_ranks)
    met = grids.meet_before(machine, kinds, style, begun)
    walked = peer_loads.add_up(machine, kinds, style.grid, share, met, payload=payload)
    return grids.meet_after(machine, kinds, style, walked, stored=False)


def all_gather(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
) -> Ints:
    """The second shot alone: (rank,) the last tasks; `nbytes` is what every rank gets."""
    share = -(-nbytes // machine.num_ranks)
    met = grids.meet_before(machine, kinds, style, begun)
    walked = peer_loads.read_all(machine, kinds, style.grid, share, met, payload=payload)
    return grids.meet_after(machine, kinds, style, walked, stored=False)


def all_reduce_by_stores(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
) -> Ints:
    """Loads of a share, whose sums are stored to all: (rank,) the last tasks."""
    n, fan_out = machine.num_ranks, peer_loads.all_pairs(machine)
    in_turn = n not in UNROLLED

    def busy(nbytes: int) -> Time:
        return machine.costs.sm_add(n * nbytes, 0) + machine.costs.sm_store(n * nbytes)

    work = Work(
        partial(peer_loads.load, machine, kinds, fan_out=fan_out, payload=payload, in_turn=in_turn),
        busy,
        kinds.send,
        partial(peer_loads.store, machine, kinds, fan_out=fan_out, payload=payload),
        trips=n - 1 if in_turn else 1,
    )
    met = grids.meet_before(machine, kinds, style, begun)
    walked = grids.walk(machine, kinds, style.grid, -(-nbytes // n), met, work)
    return grids.meet_after(machine, kinds, style, walked, stored=True)
