"""One scheme on one small layer: its graph and schedule, made once for all checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

import hwmodel
from replay.chains.chain import ChainGraph, ChainLink, LayerGraph
from replay.chains.layer import build_layer
from replay.chains.replay import Replay
from replay.chains.results import layer_result
from replay.engine import GraphBuilder, schedule
from replay.model.compute.dense import Between
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.context import Context
from replay.schemes.contract.graph_facts import Dependencies
from replay.schemes.contract.layers import routing_of
from tracegen.models.schema import ModelShape

if TYPE_CHECKING:
    from hwmodel import System
    from replay.engine import Timeline
    from replay.measure.result import LayerResult
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.work.capacity import CarriedLayer
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme
    from replay.schemes.contract.byte_counts import RoutingLists


FAR_NS = 10_000_000  # the layers of the contract take some 100 us on few GPUs
PAIRS = 20_000_000  # of queries and keys: some 50 us of attention


SYSTEMS = {
    "cuda": ("dgx-h100", "gh200-nvl32", "dgx-h100"),
    "cann": ("atlas-800t-a2", "cloudmatrix384", "cloudmatrix384"),
}
"""Presets on which schemes of each platform are examined: up to 8 ranks, beyond, across domains."""


@cache
def system_for(num_ranks: int, domain_size: int | None = None, platform: str = "cuda") -> System:
    """A system with at least so many GPUs that supports what schemes need.

    Parameters
    ----------
    domain_size
        GPUs of an NVLink domain; None if all are in one.
    platform
        See `replay.schemes.ep.base.Scheme`.
    """
    small, large, several = SYSTEMS[platform or "cuda"]
    if domain_size is None:
        return hwmodel.load(small if num_ranks <= 8 else large)
    return hwmodel.load(several, _domains(domain_size, -(-num_ranks // domain_size)))


@cache
def far_system(platform: str = "cuda") -> System:
    """A system with links so long that a small layer's work is short beside their latency."""
    return hwmodel.load(SYSTEMS[platform or "cuda"][0], {"link.propagation_ns": FAR_NS})


def _domains(size: int, num: int) -> dict[str, int]:
    return {"fabric.num_gpus": size, "fabric.num_domains": num}


@cache
def one_flop_per_picosecond(domain_size: int = 32, num_domains: int = 1, platform: str = "cuda") -> System:
    """A system whose tiles take exactly a picosecond per operation."""
    name = SYSTEMS[platform or "cuda"][1]
    peak = float(hwmodel.load(name).sm.num_sms)
    return hwmodel.load(
        name,
        {
            **_domains(domain_size, num_domains),
            "cache.kept_share": 1.0,
            "cache.slices": 1,
            "compute.bf16_peak_TFLOP_per_s": peak,
            "compute.bf16_efficiency": 1.0,
            "compute.bf16_grouped_efficiency": 1.0,
            "compute.bf16_grouped_whole_tiles": False,
            "compute.fp8_peak_TFLOP_per_s": peak,
            "compute.fp8_efficiency": 1.0,
            "compute.fp8_step_ns": 0.0,
            "compute.fp32_peak_TFLOP_per_s": peak,
            "compute.fp32_efficiency": 1.0,
            "compute.mma_rows": 1,
            "compute.mma_sync_efficiency": 1.0,
            "compute.operand_bytes_per_clock": 1e6,
            "compute.register_bytes_per_clock": 1e6,
            "compute.tile_overhead_ns": 0.0,
            "compute.special_function_clocks": 0.0,
            "compute.multiplication_clocks": 0.0,
            "compute.shared_bytes_per_clock": 1e9,
            "gpu.l2_latency_ns": 0.0,
            "hbm.peak_GB_per_s": 1e9,  # sums of gradients pass at its rate while their SM multiplies nothing
        },
    )


class LayerRun:
    """Some equal layers in a row, built by a scheme and nobody else.

    Parameters
    ----------
    begins_ps
        (rank,): when each rank's rows are there.

    Attributes
    ----------
    first
        Number of the first task that the scheme added.
    ends
        (rank,): what it returned for the last layer.
    """

    def __init__(self, scheme: Any, work: Any, machine: Machine, begins_ps: Picoseconds, num_layers: int = 1) -> None:
        self.machine, self.begins_ps = machine, begins_ps
        at = machine.graph.add(
            machine.num_ranks,
            resource=-1,
            duration_ps=begins_ps,
            kind=Kind.BETWEEN,
            rank=machine.ranks,
        )
        self.first = machine.graph.num_tasks
        for _ in range(num_layers):
            at = np.asarray(scheme.build(work, machine, at))
        self.ends: Ints = at
        self.graph = machine.graph.build()

    @cached_property
    def timeline(self) -> Timeline:
        """The schedule."""
        return schedule(self.graph)


def one_after_another(num_ranks: int) -> Ints:
    """Times at which ranks begin, the last one first: (rank,)."""
    return 10_000_000 * np.arange(num_ranks, 0, -1, dtype=np.int64)


def chain_of(work: LayerWork, system: System, scheme: Scheme, num_layers: int = 3) -> LayerGraph:
    """A layer several times in a chain, with attention between that keeps some GPUs longer."""
    shape = ModelShape(
        name="between",
        hidden=work.shape.hidden,
        moe_intermediate=work.shape.intermediate,
        num_experts=max(work.num_experts, 1),
        topk=1,
        num_layers=num_layers,
        gated=True,
        num_heads=8,
        head_dim=64,
    )
    between = Between(shape, work.precision.gemm, is_backward=work.is_backward)
    tokens, ranks = np.diff(work.tokens_of_rank), np.arange(work.num_ranks, dtype=np.int64)
    links = [
        ChainLink(
            lambda: work,
            layer_index=layer,
            decoder_layer=layer,
            between=between,
            context=Context(tokens, tokens, PAIRS * ((5 * ranks + 3 * layer) % 7)),
        )
        for layer in range(num_layers)
    ]
    return Replay(links, system, scheme).build().built


class AnyCase(ABC):
    """One scheme of either kind on one layer: what is built of it is built once.

    Attributes
    ----------
    scheme, name, work
        The scheme; the layer's name in the contract; the layer.
    system
        The machine on which it is examined.
    aftermath
        Kinds of work that nobody waits for.
    """

    aftermath: frozenset[Kind]
    scheme: Any
    work: Any
    name: str
    system: System

    @property
    def num_ranks(self) -> int:
        """GPUs that have a part of the layer."""
        return int(self.work.num_ranks)

    @property
    def refusal(self) -> str:
        """Reason why the scheme cannot run the layer on the system; empty if it can."""
        return str(self.scheme.refuses(self.work))

    @property
    @abstractmethod
    def built(self) -> LayerGraph:
        """Graph, ends and machine."""

    @abstractmethod
    def under(self, scheme: Any) -> Self:
        """Make a case of another scheme on the same layer, or of the same one once more."""

    @property
    @abstractmethod
    def stated_sms(self) -> int | None:
        """SMs that only communicate, as the scheme states them; None for nothing to compare."""

    @property
    @abstractmethod
    def chain_run(self) -> tuple[Timeline, Machine]:
        """The layer three times in a chain whose GPUs come late by turns: schedule and machine."""

    def machine(self, system: System | None = None) -> Machine:
        """Make a machine for a graph of its own; on another system if one is given."""
        return Machine(system or self.system, GraphBuilder(KIND_NAMES), self.num_ranks)

    @cached_property
    def late(self) -> LayerRun:
        """The layer with ranks that begin at different times."""
        begins_ps = one_after_another(self.num_ranks)
        return LayerRun(self.scheme, self.work, self.machine(), begins_ps)

    @cached_property
    def timeline(self) -> Timeline:
        """The schedule."""
        return schedule(self.built.graph)

    @cached_property
    def waits(self) -> Dependencies:
        """Dependencies of the schedule: who waits for whom."""
        return Dependencies(self.timeline)


class Case(AnyCase):
    """One scheme on one layer.

    Parameters
    ----------
    name
        Name of the layer in `replay.schemes.contract.layers.LAYERS` or
        `replay.schemes.contract.layers.ACROSS`.
    domain_size
        GPUs of an NVLink domain; None if all are in one.
    """

    # Acknowledgements, and room given back when no row needs it any more.
    aftermath = frozenset(
        {
            Kind.DISPATCH_ACK_UP,
            Kind.DISPATCH_ACK_DOWN,
            Kind.COMBINE_ACK_UP,
            Kind.COMBINE_ACK_DOWN,
            Kind.COMBINE_SYNC,
            Kind.DISPATCH_SYNC,
        }
    )
    scheme: Scheme
    work: LayerWork

    def __init__(self, scheme: Scheme, name: str, work: LayerWork, domain_size: int | None = None) -> None:
        self.scheme, self.name, self.work = scheme, name, work
        self.domain_size = domain_size
        self.system = system_for(work.num_ranks, domain_size, scheme.platform)
        self.link = ChainLink(lambda: work, is_backward=work.is_backward)

    def under(self, scheme: Scheme) -> Case:
        """Make a case of another scheme on the same layer."""
        return Case(scheme, self.name, self.work, self.domain_size)

    def machine(self, system: System | None = None) -> Machine:
        """Make a machine whose uplinks are the scheme's."""
        builder = GraphBuilder(KIND_NAMES)
        return Machine(system or self.system, builder, self.num_ranks, self.scheme.uplinks)

    @property
    def stated_sms(self) -> int | None:
        """SMs that only communicate, as the scheme states them."""
        return self.scheme.communication_sms(self.system)

    @cached_property
    def far(self) -> LayerRun:
        """The layer on links whose ways alone take time; see `far_system`."""
        begins_ps = np.zeros(self.num_ranks, np.int64)
        return LayerRun(self.scheme, self.work, self.machine(far_system(self.scheme.platform)), begins_ps)

    @cached_property
    def carried_layer(self) -> CarriedLayer:
        """The layer as the scheme carries it out; `checks.check_carried` relates it to the layer."""
        return self.scheme.carries_on(self.work, self.system)

    @cached_property
    def routing(self) -> RoutingLists:
        """The routing that is carried out as plain lists."""
        return routing_of(self.carried_layer.work, self.domain_size)

    @property
    def refusal(self) -> str:
        """Reason why the scheme cannot run the layer on the system; empty if it can."""
        if self.domain_size is not None and not self.scheme.network:
            return "it knows one NVLink domain"
        return self.scheme.refuses(self.work) or self.scheme.refuses_on(self.work, self.system)

    @property
    def _without_overhead(self) -> System:
        platform = self.scheme.platform
        if self.domain_size is None:
            return one_flop_per_picosecond(platform=platform)
        domains = self.system.fabric.num_domains
        return one_flop_per_picosecond(self.domain_size, domains, platform)

    @cached_property
    def chain(self) -> ChainGraph:
        """The layer as a chain of its own, described by the scheme."""
        return Replay([self.link], self.system, self.scheme).build()

    @property
    def built(self) -> LayerGraph:
        """Graph, ends and machine."""
        return self.chain.built

    @cached_property
    def result(self) -> LayerResult:
        """Report of a replay of the layer, from the graph and schedule of all checks."""
        return layer_result(self.link, self.chain, self.timeline, self.scheme)

    @cached_property
    def chain_run(self) -> tuple[Timeline, Machine]:
        """The layer three times in a chain whose GPUs come late by turns: schedule and machine."""
        built = chain_of(self.work, self.system, self.scheme)
        return schedule(built.graph), built.machine

    @cached_property
    def carried_unpadded(self) -> CarriedLayer:
        """Layer that is carried out in `unpadded`."""
        scheme = self.scheme.with_options(self.scheme.unpadded)
        return scheme.carries_on(self.work, self._without_overhead)

    @cached_property
    def unpadded_layer(self) -> LayerGraph:
        """The layer without padding, on a system whose tiles take a picosecond per operation."""
        scheme = self.scheme.with_options(self.scheme.unpadded)
        return build_layer(self.work, self._without_overhead, scheme)

    def tasks_of_token(self, what: Literal["sent", "combined"], machine: Machine | None = None) -> dict[int, list[int]]:
        """Tasks that were followed, by token; `checks.tokens` says if their numbers differ."""
        tokens, tasks = (machine or self.built.machine).notes.remembered_tasks(what)
        found: defaultdict[int, list[int]] = defaultdict(list)
        for token, task in zip(tokens.tolist(), tasks.tolist(), strict=False):
            found[token].append(task)
        return found

    def gemm_tasks(self, kind: Kind) -> dict[int, list[int]]:
        """Tasks of one GEMM by expert."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        graph = self.built.graph
        for task in np.flatnonzero(graph.kind == kind).tolist():
            found[int(graph.tag[task])].append(task)
        return found

    def has_one_tile(self, expert: int) -> bool:
        """Tell whether all rows of an expert are in one row tile.

        Then its tiles read one block of rows, and no block of weights twice.
        """
        graph, notes = self.built.graph, self.built.machine.notes
        blocks = []
        for what in ("weights", "activations"):
            touches = np.r_[slice(0), *notes.reads.get(what, [])]
            tasks = graph.touches.task[touches]
            mine = touches[(graph.kind[tasks] == Kind.GEMM1) & (graph.tag[tasks] == expert)]
            blocks.append(np.unique(graph.touches.key[mine], return_counts=True)[1])
        weights, rows = blocks
        return len(rows) == 1 and int(weights.max()) == 1
