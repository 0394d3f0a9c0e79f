"""CAIS: products that load their rows from, and push their sums to, other GPUs through the switch.

With sequence parallelism each half of a layer begins with a product that needs the rows of all
GPUs and ends with one whose sums belong to all. Here the tiles of these products load the rows and
push the sums themselves, and there is no collective. Three parts can be switched off:

- `merge`: the switch makes one of what several GPUs ask for (`replay.model.machine.merging`). Rows
  leave their owner once and sums reach it once, so that a gather loads downlinks, a reduction
  uplinks.
- `coordination`: blocks of one number on all GPUs are launched, and access addresses, together.
- `overlap`: the last product of a half, the norm, and the first product of the next are one kernel,
  in which tiles of both alternate: both directions of the links are in use.

How far apart GPUs access an address follows from their blocks alone: tiles of own rows wait for
nobody, ports and memory have queues, and the grid has an order.

Source: arXiv 2605.05628 (HPCA 2026).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.work.transformer_layer import Enter, Leave, Norm
from replay.schemes.tp.base import GATHER, REDUCE, TensorScheme, is_plain
from replay.schemes.tp.cais.grid import CaisGrid
from replay.schemes.tp.cais.kernels import CaisBlocks
from replay.schemes.tp.cais.moves import Moves
from replay.schemes.tp.cais.norms import blocks_to_follow, normalise
from replay.schemes.tp.cais.options import CaisOptions
from replay.schemes.tp.traffic import TensorTraffic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.transformer_layer import Product, Step, TensorLayer
    from replay.schemes.tp.cais.kernels import LoadingBlocks, PushingBlocks
    from replay.schemes.tp.kernels import TensorKernels


class Cais(TensorScheme):
    """Computing kernels whose loads and reductions the switch merges."""

    name = "cais"
    summary = "products load rows and push sums, which the switch merges"
    source = "arXiv 2605.05628 (HPCA 2026)"
    assumes = (
        "a GPU loads a row once, by the first block that needs it; other blocks find it in the L2 "
        "cache or in memory. Loads and reductions share queues of ports, where the paper adds "
        "virtual channels that take turns. The switch lets entries of its tables go in the order "
        "of their last use, also those that wait for data"
    )
    traffic = TensorTraffic("merged", "merged")
    needs = frozenset({"multicast", "reduction"})
    proposes = frozenset({"request-merging"})
    options: CaisOptions = CaisOptions()

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """The scheme with some options replaced; without the merge unit every GPU gets all rows."""
        changed = super().with_options(given)
        way = "merged" if changed.options.merge else "direct"
        changed.traffic = TensorTraffic(way, way)
        return changed

    # ---- a layer ---------------------------------------------------------------------------------

    def build(self, layer: TensorLayer, machine: Machine, start: Tasks) -> Tasks:
        """Add the tasks of a layer, which GPUs begin up to `launch_skew_us` apart."""
        last = max(machine.num_ranks - 1, 1)
        late = machine.costs.ns(round(self.options.launch_skew_us * 1000)) * machine.ranks
        if self.options.launch_skew_us:
            start = machine.delay(Kind.LAUNCH, late.shared_by(last), start)
        return super().build(layer, machine, start)

    def carry_out(self, kernels: TensorKernels, steps: tuple[Step, ...], after: Tasks) -> Ints:
        """Carry out steps; with overlap, product, norm and product become one kernel."""
        place = 0
        while place < len(steps):
            three = _in_one(steps[place : place + 3])
            if self.options.overlap and kernels.layer.num_ranks > 1 and three is not None:
                after = self._across(kernels, *three, after)
                place += 3
            else:
                after = self.step(kernels, steps[place], after)
                place += 1
        return after

    def gather_and_multiply(self, kernels: TensorKernels, product: Product, after: Tasks) -> Ints:
        """Multiply rows that tiles load."""
        return self._load(kernels, "ag-gemm", lambda blocks: blocks.load_and_multiply(product), after)

    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Load the rows of all tokens, in a kernel of its own."""
        return self._load(kernels, "all-gather", CaisBlocks.load_alone, after)

    def _load(
        self, kernels: TensorKernels, name: str, load: Callable[[CaisBlocks], LoadingBlocks], after: Tasks
    ) -> Tasks:
        """Launch a kernel of blocks that load rows: (rank,) tasks of its end."""
        machine = kernels.machine
        begun = machine.kernel(machine.sync.barrier(GATHER, after, stored="nothing"), name)
        loading = load(self._blocks(kernels))
        grid = self._grid(machine, loading.resident)
        grid.add(loading.first, loading.end, loading.place)
        grid.launch(begun)
        return _mark_end(machine, loading.end, begun)

    def leave(self, kernels: TensorKernels, step: Any, after: Tasks) -> Ints:
        """Multiply and add up; backward, rows for the weights' gradient are loaded behind."""
        assert isinstance(step, Leave)
        layer = kernels.layer
        if layer.num_ranks == 1 or not layer.is_backward or not is_plain(step):
            return super().leave(kernels, step, after)
        done = self.multiply_and_reduce(kernels, step.product, after)
        return kernels.gradient(step.product, self.gather(kernels, done))

    def multiply_and_reduce(self, kernels: TensorKernels, product: Product, after: Tasks) -> Ints:
        """Push sums tile by tile."""
        begun = kernels.machine.kernel(after, "gemm-rs")
        pushing = self._blocks(kernels).multiply_and_push(product, begun)
        return self._sum_up(kernels.machine, pushing, begun)

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Push the sums of all tokens, in a kernel of its own."""
        begun = kernels.machine.kernel(after, "reduce-scatter")
        return self._sum_up(kernels.machine, self._blocks(kernels).push_alone(), begun)

    def _sum_up(self, machine: Machine, pushing: PushingBlocks, begun: Tasks) -> Tasks:
        """Launch a kernel of blocks that push: (rank,) tasks at which all GPUs have their sums."""
        grid = self._grid(machine, pushing.resident)
        grid.add(pushing.first, pushing.end, pushing.place)
        grid.launch(begun)
        done = _mark_end(machine, pushing.end, begun)
        machine.order(pushing.added.tasks, done[pushing.added.rank])
        return machine.sync.barrier(REDUCE, done, stored="each")

    # ---- product, norm and product ---------------------------------------------------------------

    def _across(self, kernels: TensorKernels, leave: Leave, norm: Norm, enter: Enter, after: Tasks) -> Tasks:
        """Product, norm and product in one kernel: (rank,) tasks."""
        blocks, machine, layer = self._blocks(kernels), kernels.machine, kernels.layer
        begun = machine.kernel(after, "gemm-rs, norm, ag-gemm")
        pushing = blocks.multiply_and_push(leave.product, begun)
        loading = blocks.load_and_multiply(enter.product)
        norming = normalise(kernels, norm, pushing, loading)
        # All blocks of a kernel take what its largest ones need.
        resident = min(pushing.resident, loading.resident)
        grid = self._grid(machine, resident)
        ahead = self.options.ahead_blocks or machine.sms.compute * resident
        grid.add(pushing.first, pushing.end, 2 * pushing.place)
        grid.add(norming.first, norming.end, 2 * (norming.follows + ahead))
        grid.add(loading.first, loading.end, 2 * (blocks_to_follow(loading, norming) + ahead) + 1)
        ends = [loading.end, pushing.end]
        if layer.is_backward:  # rows of the forward pass, for the gradient of the first weights
            again = blocks.load_alone()
            count = len(again.tile)
            spread = np.arange(count) * len(pushing.tile) // count
            grid.add(again.first, again.end, np.tile(2 * spread + 1, (machine.num_ranks, 1)))
            ends.append(again.end)
        grid.launch(begun)
        done = _mark_end(machine, np.concatenate(ends, axis=1), begun)
        machine.order(pushing.added.tasks, done[pushing.added.rank])
        if layer.is_backward:
            done = kernels.gradient(leave.product, done)
            done = kernels.gradient(enter.product, done)
        return done

    # ---- parts -----------------------------------------------------------------------------------

    @property
    def _is_coordinated(self) -> bool:
        return self.options.merge and self.options.coordination

    def _blocks(self, kernels: TensorKernels) -> CaisBlocks:
        order = self.options.order
        if order == "auto":
            order = "spread" if self.options.merge else "rotated"
        return CaisBlocks(
            kernels,
            Moves(kernels.machine, self.options),
            self.options,
            is_coordinated=self._is_coordinated,
            order=order,
        )

    def _grid(self, machine: Machine, resident: int) -> CaisGrid:
        group = self.options.group_blocks if self._is_coordinated else 0
        return CaisGrid(machine, GATHER, group, resident)


def _mark_end(machine: Machine, tasks: Tasks, begun: Tasks) -> Tasks:
    """(rank,) marks; all tasks (rank, block) are over."""
    rank = np.repeat(machine.ranks, tasks.shape[1])
    return machine.gather(tasks.ravel(), rank, begun)


def _in_one(steps: tuple[Step, ...]) -> tuple[Leave, Norm, Enter] | None:
    """A product, a norm and a product that can be one kernel; None if steps are anything else."""
    match steps:
        case (Leave() as leave, Norm() as norm, Enter() as enter):
            return (leave, norm, enter) if is_plain(leave) and is_plain(enter) else None
    return None
