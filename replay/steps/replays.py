"""Times of a training step's parts, by exact replays of layers.

A few of the MoE layers are replayed, and every other one takes the times of that whose busiest GPU
has most nearly as many rows. All else is the same in all layers and micro-batches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.chains.chain import check_code_for
from replay.chains.host_program import outline_layer
from replay.chains.stack_calls import stage_calls
from replay.experiments.layer.setup import TracedSetup, set_up, spec_of
from replay.model.work.precision import Precision
from replay.model.work.stacks import BARE, Stack
from replay.schemes.ep.staged_schemes import ListedExchanges
from replay.steps.chunks import chunks_of
from replay.steps.kernel_sizes import check_stack
from replay.steps.layer_passes import NO_HOPS, Hops, LayerPasses
from replay.steps.parameters import left_out
from replay.steps.routing import DrawnRouting
from replay.steps.shared_times import SharedTimes
from replay.steps.times import PassTimes, StepParts
from tracegen.generate import generate

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.replay import Replay
    from replay.model.arrays import Ints
    from replay.model.machine.host import Calls
    from replay.model.machine.host_script import HostScript
    from replay.model.work.kernel_lists.lists import Pass
    from replay.schemes import Scheme
    from replay.steps.layer_passes import Pairing
    from replay.steps.plan import ParallelPlan
    from tracegen import ModelShape, RoutingTrace

Links = Mapping[tuple[int, bool, int], "ChainLink"]
"""Passes over layers by sample, whether they are backward, and place among the MoE layers."""

MOST_EXACT = 64
"""GPUs of a group of experts whose nodes are all replayed; of larger ones `SAMPLED_NODES` are."""

SAMPLED_NODES = 2


@dataclass(eq=False)
class StepReplays:
    """Replays of a step's parts for one model, system and plan, under one scheme after the other.

    Attributes
    ----------
    sequence
        Tokens of every sequence; attention is over whole sequences, whatever requests a trace has.
    precision
        Number type of GEMMs and rows.
    dispatch_type
        Number type of rows to experts; None as of the precision.
    trace
        Trace whose routing the MoE layers have; sample s of it are tokens that follow those of the
        samples before. None generates as many layers as are replayed, which the model's layers take
        in turn.
    routing, seed
        What is generated.
    layers
        MoE layers that are replayed of each sample.
    samples
        Samples of routing, which micro-batches take in turn.
    sample_nodes
        Nodes that are replayed in full; None for all up to `MOST_EXACT` GPUs, and for
        `SAMPLED_NODES` beyond.
    splits_backward
        Whether backward passes are also made in two parts, where the scheme can.
    beside
        How forward passes run beside backward passes; None for not at all. Parts of a scheme that
        has no code for it, and those whose backward pass makes its forward pass again, have no such
        times.
    placement
        As of `replay.experiments.layer.spec.RunSpec`.
    stack
        What launches the kernels; None for the bare ones of schemes and models.
    host_spread
        Of hosts' times under it, as of `replay.model.machine.host.Calls`.

    Raises
    ------
    UserError
        If the stack's list has no kernels of the model.
    """

    shape: ModelShape
    system: System
    plan: ParallelPlan
    sequence: int
    precision: str
    trace: RoutingTrace | None = None
    routing: DrawnRouting = field(default_factory=DrawnRouting)
    layers: int = 2
    samples: int = 1
    sample_nodes: int | None = None
    splits_backward: bool = False
    beside: Pairing | None = None
    seed: int = 0
    placement: str = "contiguous"
    stack: Stack | None = None
    host_spread: float = 0.0
    dispatch_type: str | None = None
    _places: tuple[Ints, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.stack is not None:
            check_stack(self.stack, self.shape, self.plan, Precision(self.precision).gemm)

    def on(self, system: System) -> StepReplays:
        """The same on another system."""
        return dataclasses.replace(self, system=system)

    @property
    def _tokens(self) -> int:
        return self.plan.tokens_per_gpu(self.sequence)

    @property
    def _nodes(self) -> int | None:
        ranks, size = self.plan.ep, self.system.fabric.gpus_per_domain
        several = ranks > MOST_EXACT and ranks % size == 0 and ranks // size > SAMPLED_NODES
        return self.sample_nodes or (SAMPLED_NODES if several else None)

    @functools.cached_property
    def _shared_times(self) -> SharedTimes:
        return SharedTimes(
            self.shape,
            self.system,
            self.plan,
            self.sequence,
            self.precision,
            self.splits_backward,
            self.stack,
        )

    @functools.cached_property
    def _routing(self) -> RoutingTrace:
        """Routing of all samples, which is not generated before something is replayed."""
        if self.trace is not None:
            return self.trace
        return generate(
            self.routing.kind,
            self.shape,
            ranks=self.plan.ep,
            tokens_per_rank=self._tokens,
            layers=min(self.layers, self.shape.num_moe_layers),
            seed=self.seed,
            steps=self.samples,
            **self.routing.parameters,
        )

    @property
    def rows(self) -> int:
        """Rows of all passes that are replayed under a scheme: a measure of how long that takes.

        Both passes; the backward pass again where gradients of weights are put off, and both again
        beside each other. What hosts take is found by replaying every pass twice.
        """
        layers = self.shape.num_moe_layers if self.trace is None else self.trace.num_layers
        passes = 2 + self.splits_backward + 2 * (self.beside is not None)
        pairs = self.plan.ep * self._tokens * self.shape.topk * min(self.layers, layers)
        nodes, size = self._nodes, self.system.fabric.gpus_per_domain
        if nodes is not None:  # rows between two others are left out
            pairs = int(pairs * (1 - (1 - min(nodes * size / self.plan.ep, 1)) ** 2))
        return pairs * self.samples * passes * (1 if self.stack is None else 2)

    # ---- under a scheme --------------------------------------------------------------------------

    def under(self, scheme: str | Scheme, progress: Callable[[], object] = lambda: None) -> StepParts:
        """Replay the parts under a scheme.

        Parameters
        ----------
        scheme
            As of `replay.run`, with its options.
        progress
            Called for each MoE layer that was replayed.

        Raises
        ------
        LayerRefusedError
            If the scheme cannot train such layers.
        UserError
            If scheme, system and trace do not fit together.
        """
        ready, links = self._prepare(scheme)
        for link in (links[0, False, 0], links[0, True, 0]):
            check_code_for(ready.scheme, link.work(), self.system)
        shared, chosen = self._shared_times, ready.tune(None)[0].scheme
        passes = LayerPasses(
            self.system,
            chosen,
            ready.launch,
            shared.parts,
            shared.context,
            self.plan.recompute,
            self.splits_backward,
            self.beside,
            self._calls(chosen, links),
            self._with_list(chosen),
        )
        return StepParts(
            num_ranks=self.plan.peers,
            layers=self._layers(passes, links, progress),
            embedding=shared.embedding,
            head=shared.head,
            hop=shared.hop,
            synchronise=shared.synchronise,
            update=shared.update,
            hand_out=shared.hand_out,
        )

    def _with_list(self, scheme: Scheme) -> Scheme:
        """Give a scheme that runs the stack's kernels in pairs of passes, if its list has them."""
        name = "" if self.stack is None else self.stack.kernels.name
        if isinstance(scheme, ListedExchanges) and name in scheme.lists:
            return scheme.with_options({"stack": name})
        return scheme

    def _calls(self, scheme: Scheme, links: Links) -> Calls | None:
        """Calls of the stack around the scheme's kernels; None without one."""
        if self.stack is None:
            return None

        def script(*, is_backward: bool) -> HostScript:
            return outline_layer(scheme, links[0, is_backward, 0].work(), self.system).host.script

        scripts: dict[Pass, Callable[[], HostScript]] = {
            "forward": functools.partial(script, is_backward=False),
            "backward": functools.partial(script, is_backward=True),
        }
        stack = self.stack.with_dispatcher(scheme.name, scheme.list_options)
        found = stage_calls(stack, scheme, self._shared_times.sizes, scripts, self.system)
        return dataclasses.replace(found, spread=self.host_spread, seed=self.seed)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the replays behind times, as JSON; complete once a scheme has been replayed.

        *sequence*, *tokens_per_gpu*: tokens of a sequence; rows of a micro-batch that a GPU owns.
        *gpus*, *expert_gpus*: GPUs that meet, and those that routed experts are spread over.
        *moe_layers*, *replayed_layers*: MoE layers of the model, and by sample of routing the
        places of those that were replayed. *sampled_nodes*: nodes that are replayed in full; None
        for all. *routing*: where it comes from. *left_out*: parts of the model that no time is
        charged for. *stack*, where one is given: its name, and the value of every option.
        """
        drawn = f"{self.routing.kind} {dict(self.routing.parameters)}"
        return {
            "sequence": self.sequence,
            "tokens_per_gpu": self._tokens,
            "gpus": self.plan.peers,
            "expert_gpus": self.plan.ep,
            "moe_layers": self.shape.num_moe_layers,
            "replayed_layers": [np.unique(one).tolist() for one in self._places or ()],
            "sampled_nodes": self._nodes,
            "routing": drawn if self.trace is None else "trace",
            "left_out": list(left_out(self.shape)),
            **({} if self.stack is None else {"stack": self.stack.facts}),
        }

    def _prepare(self, scheme: str | Scheme) -> tuple[Replay, Links]:
        """A replay of both passes made ready, and its links by sample, pass and place."""
        settings = {
            "scheme": scheme,
            "system": self.system,
            "direction": "training",
            "barrier": True,
            "ranks": self.plan.ep,
            "tokens_per_rank": self._tokens,
            "phase": "prefill",
            "steps": self.samples,
            "sample_nodes": self._nodes,
            "precision": self.precision,
            "dispatch_type": self.dispatch_type,
            "placement": self.placement,
            "stack": BARE,  # calls of another are the step's
        }
        spec, system, found = spec_of(None, settings)
        setup = set_up(spec, {"content_id": self._routing.content_id}, system, found)
        ready = TracedSetup.on(setup, self._routing).prepare()
        links = {(one.step, one.is_backward, one.layer_index): one for one in ready.links}
        return ready, links

    def _layers(self, passes: LayerPasses, links: Links, progress: Callable[[], object]) -> list[list[PassTimes]]:
        if self._places is None:
            self._places = tuple(self._stand_ins(links, s) for s in range(self.samples))
        dense: dict[Hops, PassTimes] = {}
        return [self._sample(passes, links, sample, dense, progress) for sample in range(self.samples)]

    @functools.cached_property
    def _hops(self) -> Mapping[int, Hops]:
        """Passes of a stage that begin with a layer, where a stack's host sends and receives."""
        if not self._shared_times.calls_at_hops:
            return {}
        chunks = chunks_of(self.shape, self.plan)  # of which the first and the last may be ends alone
        ahead = {chunk.start for chunk in chunks[1:] if chunk}
        back = {chunk.stop - 1 for chunk in chunks[:-1] if chunk}
        return {layer: Hops(layer in ahead, layer in back) for layer in ahead | back}

    def _sample(
        self,
        passes: LayerPasses,
        links: Links,
        sample: int,
        dense: dict[Hops, PassTimes],
        progress: Callable[[], object],
    ) -> list[PassTimes]:
        """Passes over all layers, with one sample of routing; dense layers are added to `dense`."""
        assert self._places is not None
        stands_for, shape = self._places[sample], self.shape
        known: dict[tuple[int, bool, Hops], PassTimes] = {}
        layers: list[PassTimes] = []
        place = 0
        for layer in range(shape.num_layers + self.plan.mtp):
            hops = self._hops.get(layer, NO_HOPS)
            if layer in shape.dense_layers:
                if hops not in dense:
                    dense[hops] = passes.dense(hops=hops)
                layers.append(dense[hops])
                continue
            key = int(stands_for[place % len(stands_for)]), layer >= shape.num_layers, hops
            if key not in known:
                is_first = key[0] not in {done[0] for done in known}
                both = [links[sample, is_backward, key[0]] for is_backward in (False, True)]
                known[key] = passes.moe(*both, is_mtp=key[1], hops=hops)
                if is_first:
                    progress()
            layers.append(known[key])
            place += 1
        return layers

    def _stand_ins(self, links: Links, sample: int) -> Ints:
        """(place,): the MoE layer of the trace that is replayed for each.

        Layers in order of their busiest GPU's rows are cut into as many groups of neighbours as
        layers are replayed; the middle one of each group stands for all of it.
        """
        count = self._routing.num_layers
        stands_for = np.arange(count)
        if self.layers >= count:
            return stands_for
        busiest = [_busiest(links[sample, False, place]) for place in range(count)]
        for group in np.array_split(np.argsort(busiest, kind="stable"), self.layers):
            stands_for[group] = group[len(group) // 2]
        return stands_for


def _busiest(link: ChainLink) -> int:
    """Rows of the GPU of a layer that has most."""
    work = link.work()
    if work.sample is not None:
        return int(work.sample.summary["num_pairs"] * work.sample.summary["rank_imbalance"])
    return int(np.bincount(work.pair_rank, minlength=work.num_ranks).max())
