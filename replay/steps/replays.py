"""Times of a training step's parts, by exact replays of layers.

A few of the MoE layers are replayed, and every other one takes the times of that whose busiest GPU
has most nearly as many rows. All else is the same in all layers and micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.chains.chain import check_code_for
from replay.experiments.layer.setup import Setup, check_all, set_up, spec_of
from replay.steps.layer_passes import LayerPasses
from replay.steps.parameters import left_out
from replay.steps.routing import Routing
from replay.steps.shared import Shared
from replay.steps.slicing import check_slices
from replay.steps.times import PartTimes, StepTimes
from tracegen.generate import generate

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.replay import Replay
    from replay.schemes import Scheme
    from replay.steps.layer_passes import Pairing
    from replay.steps.plan import Plan
    from replay.steps.times import Ints
    from tracegen import ModelShape, RoutingTrace

MOST_EXACT = 64
"""GPUs of a group of experts whose nodes are all replayed; of larger ones `SAMPLED_NODES` are."""

SAMPLED_NODES = 2


@dataclass(frozen=True)
class Facts:
    """What times were replayed from.

    Attributes
    ----------
    sequence, tokens_per_gpu
        Tokens of a sequence; rows of a micro-batch that a GPU owns.
    gpus, expert_gpus
        GPUs that meet, and those that routed experts are spread over.
    moe_layers, replayed_layers
        MoE layers of the model, and by sample of routing the places of those that were replayed.
    sampled_nodes
        Nodes that are replayed in full; None for all.
    routing
        Where the routing comes from.
    left_out
        Parts of the model that no time is charged for.
    """

    sequence: int
    tokens_per_gpu: int
    gpus: int
    expert_gpus: int
    moe_layers: int
    replayed_layers: tuple[tuple[int, ...], ...]
    sampled_nodes: int | None
    routing: str
    left_out: tuple[str, ...]


class StepReplays:
    """Replays of a step's parts for one model, system and plan, under one scheme after the other.

    Parameters
    ----------
    sequence
        Tokens of every sequence; attention is over whole sequences, whatever requests a trace has.
    precision
        Number type of GEMMs and rows; None for the model's own.
    trace
        Routing of the MoE layers; sample s of it are tokens that follow those of the samples
        before. None generates as many layers as are replayed, which the model's layers take in
        turn.
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
    settings
        Other fields of `replay.experiments.layer.spec.RunSpec`, such as ``placement``.

    Raises
    ------
    UserError
        If model, system and plan do not fit together.
    """

    def __init__(
        self,
        shape: ModelShape,
        system: System,
        plan: Plan,
        *,
        sequence: int = 4096,
        precision: str | None = None,
        trace: RoutingTrace | None = None,
        routing: Routing | None = None,
        layers: int = 2,
        samples: int = 1,
        sample_nodes: int | None = None,
        splits_backward: bool = False,
        beside: Pairing | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        check_slices(shape, system, plan, sequence)
        self._shape, self._system, self._plan, self._sequence = shape, system, plan, sequence
        self._precision = precision or shape.default_precision
        self._splits_backward, self._beside = splits_backward, beside
        self._num_layers, self._num_samples, self._settings = layers, samples, settings
        self._tokens = plan.tokens_per_gpu(sequence)
        self._shared = Shared(
            shape, system, plan, sequence, self._precision, splits_backward=splits_backward
        )
        self._nodes = sample_nodes or self._nodes_by_size()
        self._given = trace is not None
        made = routing or Routing()
        self._routing = "trace" if self._given else f"{made.kind} {dict(made.parameters)}".strip()
        self._trace = trace or generate(
            made.kind,
            shape,
            ranks=plan.ep,
            tokens_per_rank=self._tokens,
            layers=min(layers, shape.num_moe_layers),
            seed=seed,
            steps=samples,
            **made.parameters,
        )
        self._places: tuple[Ints, ...] | None = None

    def _nodes_by_size(self) -> int | None:
        ranks, size = self._plan.ep, self._system.fabric.gpus_per_domain
        several = ranks > MOST_EXACT and ranks % size == 0 and ranks // size > SAMPLED_NODES
        return SAMPLED_NODES if several else None

    # ---- under a scheme --------------------------------------------------------------------------

    def under(self, scheme: str | Scheme, options: Mapping[str, Any] | None = None) -> StepTimes:
        """Replay the parts under a scheme.

        Parameters
        ----------
        scheme, options
            As of `replay.run`.

        Raises
        ------
        LayerRefusedError
            If the scheme cannot train such layers.
        UserError
            If scheme, system and trace do not fit together.
        """
        ready, links = self._prepared(scheme, dict(options or {}))
        for link in (links[0, False, 0], links[0, True, 0]):
            check_code_for(ready.scheme, link.work(), self._system)
        shared = self._shared
        passes = LayerPasses(
            self._system,
            ready.tuned(self._settings.get("tune"))[0].scheme,
            ready.launch,
            shared.parts,
            shared.context,
            self._plan.recompute,
            self._splits_backward,
            self._beside,
        )
        return StepTimes(
            num_ranks=self._plan.peers,
            layers=self._layers(passes, links),
            embedding=shared.embedding,
            head=shared.head,
            hop=shared.hop,
            synchronise=shared.synchronise,
            update=shared.update,
        )

    @property
    def facts(self) -> Facts:
        """What was replayed; complete once a scheme has been."""
        shape, plan = self._shape, self._plan
        places = self._places or ()
        return Facts(
            sequence=self._sequence,
            tokens_per_gpu=self._tokens,
            gpus=plan.peers,
            expert_gpus=plan.ep,
            moe_layers=shape.num_moe_layers,
            replayed_layers=tuple(tuple(np.unique(one).tolist()) for one in places),
            sampled_nodes=self._nodes,
            routing=self._routing,
            left_out=left_out(shape),
        )

    def _prepared(
        self, scheme: str | Scheme, options: dict[str, Any]
    ) -> tuple[Replay, dict[tuple[int, bool, int], ChainLink]]:
        """A replay of both passes made ready, and its links by sample, pass and place."""
        settings = {
            "scheme": scheme,
            "system": self._system,
            "direction": "training",
            "barrier": True,
            "ranks": self._plan.ep,
            "tokens_per_rank": self._tokens,
            "phase": "prefill",
            "steps": self._num_samples,
            "sample_nodes": self._nodes,
            "precision": self._precision,
            **({"options": options} if options else {}),
            **self._settings,
        }
        spec, system, found = spec_of(None, settings)
        setup: Setup = set_up(spec, {"content_id": self._trace.content_id}, system, found)
        check_all(setup, self._trace)
        ready = setup.prepared(self._trace)
        links = {(one.step, one.is_backward, one.layer_index): one for one in ready.links}
        return ready, links

    def _layers(
        self, passes: LayerPasses, links: Mapping[tuple[int, bool, int], ChainLink]
    ) -> list[list[PartTimes]]:
        dense = passes.dense() if self._shape.dense_layers else None
        if self._places is None:
            self._places = tuple(self._stand_ins(links, s) for s in range(self._num_samples))
        return [self._sample(passes, links, sample, dense) for sample in range(self._num_samples)]

    def _sample(
        self,
        passes: LayerPasses,
        links: Mapping[tuple[int, bool, int], ChainLink],
        sample: int,
        dense: PartTimes | None,
    ) -> list[PartTimes]:
        """Passes over all layers, with one sample of routing."""
        assert self._places is not None
        stands_for, shape = self._places[sample], self._shape
        known: dict[tuple[int, bool], PartTimes] = {}
        layers: list[PartTimes] = []
        place = 0
        for layer in range(shape.num_layers + self._plan.mtp):
            if layer in shape.dense_layers:
                assert dense is not None
                layers.append(dense)
                continue
            key = int(stands_for[place % len(stands_for)]), layer >= shape.num_layers
            if key not in known:
                both = [links[sample, is_backward, key[0]] for is_backward in (False, True)]
                known[key] = passes.moe(*both, is_mtp=key[1])
            layers.append(known[key])
            place += 1
        return layers

    def _stand_ins(self, links: Mapping[tuple[int, bool, int], ChainLink], sample: int) -> Ints:
        """(place,): the MoE layer of the trace that is replayed for each.

        Layers in order of their busiest GPU's rows are cut into as many groups of neighbours as
        layers are replayed; the middle one of each group stands for all of it.
        """
        count = self._trace.num_layers
        stands_for = np.arange(count)
        if self._num_layers >= count:
            return stands_for
        busiest = [_busiest(links[sample, False, place]) for place in range(count)]
        for group in np.array_split(np.argsort(busiest, kind="stable"), self._num_layers):
            stands_for[group] = group[len(group) // 2]
        return stands_for


def _busiest(link: ChainLink) -> int:
    """Rows of the GPU of a layer that has most."""
    work = link.work()
    if work.sample is not None:
        return int(work.sample.summary["num_pairs"] * work.sample.summary["rank_imbalance"])
    return int(np.bincount(work.pair_rank, minlength=work.num_ranks).max())
