"""Times of iterations: MoE layers by replay, everything beside them added up kernel by kernel.

Workers meet in every MoE layer. Each layer therefore takes the longest time that any worker is busy
before it, and then that of the MoE layer itself, whose experts compute what all workers send, while
its rows have to leave the fullest worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from replay.experiments.serve.iteration import Load
from replay.experiments.serve.layers import first_launch_ps
from replay.experiments.serve.parts import EngineParts, ListedEngineParts, LoadRows
from replay.experiments.serve.room import ServingRoom, least_room_of
from replay.experiments.serve.stream import KernelTotals, Spent
from replay.model.compute.dense_kernels import BF16
from replay.model.work.stacks import even_sizes
from replay.steps.groups import GroupTimes

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.serve.engines import EngineHost
    from replay.experiments.serve.layers import Moe, ServedLayers
    from replay.model.work.batch import Phase
    from tracegen import ModelShape

SPENT: tuple[Spent, ...] = ("attention", "dense", "experts", "exchange", "head", "launches")


@dataclass
class ReplayedTimes:
    """Times of iterations, by replay.

    Attributes
    ----------
    system
        The machine.
    shape
        Shape of the model.
    layers
        MoE layers where any worker has a piece of a prompt, ``prefill``, and where none has,
        ``decode``: an engine's ranks agree on one kind of kernels per iteration (SGLang's
        ``is_extend_in_batch``).
    parts
        What workers do beside them, with the heads of one GPU.
    num_workers
        Groups of GPUs with requests of their own.
    tp
        GPUs of each.
    engine
        Its host, and the batch sizes that it has graphs for; None where neither is heeded.
    uncaptured
        MoE layers of decoding that is launched kernel by kernel, which engines with captured sizes
        have for larger batches.
    """

    system: System
    shape: ModelShape
    layers: Mapping[Phase, ServedLayers]
    parts: EngineParts
    num_workers: int
    tp: int
    engine: EngineHost | None = None
    uncaptured: ServedLayers | None = None
    _listed: dict[tuple[str, str], ListedEngineParts] = field(default_factory=dict, init=False, repr=False)

    def room(self, phases: Sequence[Phase], capacity: int, num_drafting: int) -> ServingRoom:
        """Memory of a GPU, once the largest iteration of each of some phases is replayed.

        Parameters
        ----------
        capacity
            Bytes of a GPU.
        num_drafting
            Layers of multi-token prediction.
        """
        experts = needed = 0
        for layers in (self.layers[phase] for phase in phases):
            layers.near(layers.most, layers.positions)
            memory = layers.memory
            assert memory is not None
            experts = max(experts, *memory.weight_bytes)
            rest = np.subtract(memory.total_bytes, memory.weight_bytes)
            needed = max(needed, int(rest.max()))
        shape, gemm_type = self.shape, self.parts.precision
        least = least_room_of(shape, capacity, None, self.tp, gemm_type, num_drafting)
        weights = least.weights + (shape.num_moe_layers + num_drafting) * experts
        return replace(least, weights=weights, iteration=needed)

    def time_ps(self, loads: Sequence[Load]) -> int:
        """Time of an iteration: (worker,) loads; nothing where all are empty.

        Where requests bring more than one token each, the layers of multi-token prediction that
        proposed them are part of it.
        """
        return sum(self.spent_ps(loads).values())

    def spent_ps(self, loads: Sequence[Load]) -> dict[Spent, int]:
        """Time of an iteration, by what it is spent on."""
        spent = dict.fromkeys(SPENT, 0)
        if not any(load.tokens for load in loads):
            return spent
        layers, engine = self._layers(loads), self.engine
        if engine is None:
            spent["launches"] += first_launch_ps(layers.setup, layers.launch)
            self._add_step(spent, loads)
            return spent
        kernels = self._add_step(spent, self._pad(loads))
        launch_ps = None if layers.launch == "graph" else layers.call_ps or self.system.overheads.launch_ps
        spent["host"] = engine.exposed_ps(sum(spent.values()), kernels, launch_ps)
        return spent

    def _pad(self, loads: Sequence[Load]) -> Sequence[Load]:
        """Batches of decoding as graphs have them: all workers run the graph of the fullest one."""
        assert self.engine is not None
        if self._layers(loads).launch != "graph":
            return loads
        most = self.engine.pad(max(load.decoding for load in loads))
        return [replace(load, decoding=most, idle=most - load.decoding) for load in loads]

    def _add_step(self, spent: dict[Spent, int], loads: Sequence[Load]) -> int:
        """Add what GPUs do in an iteration; the kernels that they run."""
        spent["exchange"] += round(self._moe(loads).once)
        shape = self.shape
        kernels = self._add_layers(spent, loads, EngineParts.moe, shape.num_moe_layers)
        kernels += self._add_beside(spent, loads, EngineParts.dense, len(shape.dense_layers), slices=True)
        kernels += self._add_beside(spent, loads, EngineParts.ends, 1)
        queries = max(load.queries for load in loads if load.decoding or load.prefill)
        for draft in range(1, queries):  # the first takes all verified tokens, the others one each
            one = [replace(load, queries=1 if draft > 1 else load.queries, prefill=()) for load in loads]
            kernels += self._add_layers(spent, one, EngineParts.draft, 1)
        return kernels

    def _layers(self, loads: Sequence[Load]) -> ServedLayers:
        if any(load.prefill for load in loads):
            return self.layers["prefill"]
        most = max(load.decoding for load in loads)
        if self.engine is None or self.engine.is_captured(most) or self.uncaptured is None:
            return self.layers["decode"]
        return self.uncaptured

    def parts_behind(self, layers: ServedLayers) -> EngineParts:
        """Parts beside layers that were replayed.

        In decoding, kernels are those of the stack's list. They are bare where no stack launches
        them, or its list has no such attention.
        """
        stack, shape, precision = layers.stack, self.shape, self.parts.precision
        if stack is None or layers.phase == "prefill":
            return self.parts
        if not ListedEngineParts.has_kernels_of(stack, shape, precision, self.tp):
            return self.parts
        key = stack.name, layers.setup.scheme.name
        if key not in self._listed:
            sizes = replace(even_sizes(shape, tokens=1, ranks=self.num_workers), sms=self.system.compute.num_sms)
            self._listed[key] = ListedEngineParts(shape, precision, stack=stack, sizes=sizes, scheme=key[1])
        return self._listed[key]

    def _add_layers(
        self,
        spent: dict[Spent, int],
        loads: Sequence[Load],
        part: Callable[[EngineParts, KernelTotals, LoadRows], None],
        count: int,
    ) -> int:
        """Add so many MoE layers with what lies before each; the kernels that are in them."""
        kernels = self._add_beside(spent, loads, part, count, slices=True)
        moe = self._moe(loads)
        spent["exchange"] += count * round(moe.exchange)
        spent["experts"] += count * round(moe.experts)
        return kernels + (count * self._layers(loads).kernels if self.engine is not None else 0)

    def _moe(self, loads: Sequence[Load]) -> Moe:
        """An MoE layer: experts of the mean of the rows, exchange of the fullest worker's."""
        travel = self.engine is None or self.engine.pads_travel
        tokens = [(load.tokens - (not travel) * load.padding) / self.tp for load in loads]
        layers, positions = self._layers(loads), _positions(loads)
        mean = layers.near(sum(tokens) / len(tokens), positions)
        fullest = layers.near(max(tokens), positions)
        return mean._replace(exchange=fullest.exchange)

    def _add_beside(
        self,
        spent: dict[Spent, int],
        loads: Sequence[Load],
        part: Callable[[EngineParts, KernelTotals, LoadRows], None],
        count: int,
        *,
        slices: bool = False,
    ) -> int:
        """Add so often a part that every worker does by itself: the time of the slowest.

        Returns
        -------
        Its kernels.
        """
        if not count:
            return 0
        tile = (self.system.attention.tile_rows, self.system.attention.tile_keys)
        rows = LoadRows.of_loads(list(dict.fromkeys(loads)), tile, self.tp)
        stream = KernelTotals(self.system, self._layers(loads).launch, len(rows.tokens))
        part(self.parts_behind(self._layers(loads)), stream, rows)
        slowest = int(stream.total_ps.argmax())
        for what, time_ps in stream.spent_ps.items():
            spent[what] += count * int(time_ps[slowest])
        if slices:
            nbytes = int(rows.worker.max()) * self.shape.hidden * BF16
            spent["attention"] += count * self.slicing_ps(nbytes)
        return count * (stream.num_kernels + 2 * (slices and self.tp > 1))

    def slicing_ps(self, nbytes: int) -> int:
        """Time to gather rows of so many bytes in all before attention, and to sum and scatter them behind.

        An all-gather and a reduce-scatter, each a kernel, over the GPUs of a worker: neighbours, in
        one NVLink domain.
        """
        if self.tp == 1 or not nbytes:
            return 0
        gathered = self.groups.collective_ps("all_gather", nbytes, self.tp)
        scattered = self.groups.collective_ps("reduce_scatter", nbytes, self.tp)
        return 2 * self.groups.gap_ps + gathered + scattered

    @cached_property
    def groups(self) -> GroupTimes:
        """Collectives of a worker's GPUs."""
        return GroupTimes(self.system)


def _positions(loads: Sequence[Load]) -> int:
    """Positions before a token: mean over the pieces of prompts, or over decoded requests."""
    if pieces := [piece for load in loads for piece in load.prefill]:
        before = sum(piece.tokens * piece.before for piece in pieces)
        return before // max(sum(piece.tokens for piece in pieces), 1)
    decoding = sum(load.decoding for load in loads)
    return sum(load.positions for load in loads) // max(decoding, 1)
