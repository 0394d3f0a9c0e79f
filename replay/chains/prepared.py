"""A replay made ready: the layers of its batches, how they are launched and in which turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.chains.chain_results import build, lead_of, replay_apart, replay_chain
from replay.chains.layer import placement_of
from replay.chains.links import batch_of, links_of, steps_of
from replay.chains.node_sampling import with_sampled_nodes
from replay.chains.sampling import Sample, choose
from replay.chains.strategies import (
    ORDERS,
    PairOrder,
    Strategy,
    check_interleaved,
    staged,
    strategy_of,
)
from replay.chains.tune import Tuned, tune
from replay.experiments.layer.spec import PASSES
from replay.model.machine.domains import Domains
from replay.model.machine.times import NO_TIME
from replay.model.work.precision import Precision
from replay.model.work.sliced import num_groups
from replay.schemes.ep.software import Outline

if TYPE_CHECKING:
    from replay.chains.chain import ChainLink
    from replay.engine import TaskGraph
    from replay.experiments.layer.setup import Setup
    from replay.measure.replayed import Replayed
    from replay.measure.result import ChainResult, LayerResult
    from replay.model.machine.host import Launch
    from replay.model.work.batch import Batch
    from replay.schemes import Scheme
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class Prepared:
    """Everything that replays need and that schemes with other options share.

    Attributes
    ----------
    setup
        What was asked for.
    links
        The layers, in order.
    launch
        How hosts launch kernels.
    strategy
        How micro-batches alternate or passes run side by side, where they do.
    """

    setup: Setup
    links: Sequence[ChainLink]
    launch: Launch
    strategy: Strategy | PairOrder | None

    @property
    def is_apart(self) -> bool:
        """Whether each layer is replayed by itself."""
        return not self.setup.spec.makes_chain(len(self.links))

    def sampled(self) -> tuple[Prepared, Sample | None]:
        """Leave only some of the layers, where that is asked for: see `replay.chains.sampling`."""
        number = self.setup.spec.sample_layers
        if number is None or number >= len(self.links):
            return self, None
        sample = choose([_key(link) for link in self.links], number)
        links = [self.links[place] for place in sample.places]
        return dataclasses.replace(self, links=links), sample

    def tuned(self) -> Tuned:
        """Choose the scheme's options on the first layer, where they are to be chosen."""
        scheme, system = self.setup.scheme, self.setup.system
        if not scheme.is_tuned(self.setup.spec.tune):
            return Tuned(scheme, [])
        first, launch = self.links[0], self.launch
        lead, alone = NO_TIME, list(self.links[:2])  # a pair has what lies between in it
        if not isinstance(self.strategy, PairOrder):
            lead, work = lead_of(first, system, launch), first.work()
            # All trials are of one work, so that what is derived from it is derived once.
            alone = [dataclasses.replace(first.alone(), work=lambda: work)]

        def described(trial: Scheme) -> TaskGraph:
            return build(
                alone, system, trial, launch, lead=lead, strategy=self.strategy
            ).built.graph

        return tune(scheme, described)

    def replayed(
        self,
        scheme: Scheme,
        *,
        progress: Callable[[], object] | None = None,
        observe: Callable[[Replayed], object] | None = None,
        is_chain: bool | None = None,
    ) -> tuple[list[LayerResult], ChainResult | None]:
        """Replay under a scheme with its options chosen: layers by themselves, or a chain.

        Parameters
        ----------
        is_chain
            Whether it is a chain, even of one layer; None leaves it to what was asked for.
        """
        spec, system = self.setup.spec, self.setup.system
        if (not self.is_apart) if is_chain is None else is_chain:
            chain = replay_chain(
                self.links,
                system,
                scheme,
                self.launch,
                strategy=self.strategy,
                # Micro-batches in turns cross from layer to layer.
                compare_barrier=spec.compare_barrier and self.strategy is None,
                progress=progress,
                observe=observe,
            )
            return [], chain
        apart = replay_apart(
            self.links,
            system,
            scheme,
            self.launch,
            strategy=self.strategy,
            progress=progress,
            observe=observe,
        )
        return list(apart), None


def precision_of(setup: Setup, trace: RoutingTrace) -> Precision:
    """Number types of a replay: those asked for, else the model's."""
    spec = setup.spec
    return Precision(
        spec.precision or trace.model_shape.default_precision,
        gemm=spec.gemm_type,
        dispatch=spec.dispatch_rows,
        combine=spec.combine_rows,
    )


def prepare(setup: Setup, trace: RoutingTrace, batches: Sequence[Batch] | None = None) -> Prepared:
    """Make a replay ready.

    Parameters
    ----------
    batches
        Batch of every step; None forms them.

    Raises
    ------
    UserError
        If what is asked for does not fit together.
    """
    spec, system, scheme = setup.spec, setup.system, setup.scheme
    check_interleaved(spec)
    if batches is None:
        batches = [batch_of(spec, trace, system, step) for step in steps_of(spec)]
    precision, phase = precision_of(setup, trace), batches[0].phase
    ranks = batches[0].num_ranks
    every = links_of(spec, trace, batches, system, precision)
    links = with_sampled_nodes(every, spec.sample_nodes, system, ranks)
    width = trace.model_shape.moe_intermediate
    groups = num_groups(spec.expert_tp, ranks, width, spec.placement)
    placed = placement_of(trace, spec.placement, groups, links[0].layer_index)
    num_experts = placed.num_experts * spec.expert_tp
    domains = Domains(system.fabric, ranks).num
    outline = Outline(ranks, num_experts, precision, num_domains=domains)
    passes = [outline._replace(is_backward=one) for one in PASSES[spec.direction]]
    strategy: Strategy | PairOrder | None = None
    if (kind := spec.interleave) != "off":
        releases = staged(scheme, kind).releases
        strategy = ORDERS.get(kind) or strategy_of(kind, phase, releases)
    return Prepared(setup, links, spec.launch or _launch(scheme, phase, passes), strategy)


def _key(link: ChainLink) -> tuple[float, ...]:
    """What a layer is put in order by for a sample: its pass, and rows of its busiest GPU."""
    asks = link.work().summary()
    return float(link.is_backward), asks["num_pairs"] * asks["rank_imbalance"]


def _launch(scheme: Scheme, phase: str, layers: Sequence[Outline]) -> Launch:
    """How kernels are launched where it is not said: decode is captured if it can be."""
    captured = all(scheme.can_be_captured(layer) for layer in layers)
    return "graph" if phase == "decode" and captured else "eager"
