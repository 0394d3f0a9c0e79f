"""Demand for experts, step by step: by the tokens of a trace, or as counted elsewhere.

Of counts, the rows of an expert are divided evenly among its replicas, as EPLB assumes: which
replica a row finds depends on its GPU, which counts do not tell. Nor do they tell which experts a
token has together, so rows between nodes are not known, and no placement can be fitted to them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from replay.chains.preparation import experts_of, loads_of, together_of, which_layer
from replay.errors import UserError
from replay.model.work import replicas
from replay.model.work.batch import form_batch
from tracegen.stats.sample import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.place.spec import PlaceSpec
    from replay.model.arrays import Counts, Ints
    from replay.model.work.batch import Batch
    from replay.model.work.map_arrays import WhichLayer
    from replay.model.work.placement import Placement
    from tracegen import RoutingTrace

Window = TypeVar("Window")


class ExpertDemand(ABC, Generic[Window]):
    """Demand for experts over the steps of a recording.

    Attributes
    ----------
    title, content_id
        Of the recording.
    num_layers, num_experts
        Layers with experts, and experts of each that have weights.
    has_tokens
        Whether it tells which experts a token has together.
    """

    title: str
    content_id: str
    num_layers: int
    num_experts: int
    has_tokens: bool

    @abstractmethod
    def window(self, first: int, behind: int) -> Window:
        """Demand of the steps from `first` to before `behind`.

        Raises
        ------
        UserError
            If there are no such steps.
        """

    @abstractmethod
    def loads(self, window: Window | None, layer: int) -> Ints:
        """(expert,): rows to each expert of a layer, in a window or, for None, altogether."""

    @abstractmethod
    def together(self, window: Window | None, layer: int) -> Ints | None:
        """(expert, expert): how often tokens choose both; None where that is not known."""

    @abstractmethod
    def which(self, layer: int) -> WhichLayer:
        """Numbers of a layer in files of expert maps."""

    @abstractmethod
    def imbalance(self, window: Window, placed: Sequence[Placement]) -> list[float]:
        """(layer,): rows of the busiest GPU over the mean, averaged over the steps."""

    @abstractmethod
    def rows_between(self, window: Window, placed: Sequence[Placement], num_nodes: int) -> list[float]:
        """(layer,): distinct other nodes that have experts of a token, mean of all tokens."""


class TokenDemand(ExpertDemand["list[Batch]"]):
    """Demand of the tokens of a trace, in the batches that a replay forms.

    Parameters
    ----------
    spec
        Its `tokens_per_rank` and `phase` form the batches, its `replicas` chooses among replicas.
    """

    has_tokens = True

    def __init__(self, trace: RoutingTrace, spec: PlaceSpec, num_ranks: int) -> None:
        self._trace, self._spec, self._num_ranks = trace, spec, num_ranks
        self._rule = spec.replicas or "same-gpu"
        self.title, self.content_id = trace.info.title, trace.content_id
        self.num_layers, self.num_experts = trace.num_layers, trace.model.num_ffn_experts

    def window(self, first: int, behind: int) -> list[Batch]:
        """Batch of each step."""
        spec = self._spec
        return [
            form_batch(
                self._trace,
                num_ranks=self._num_ranks,
                tokens_per_rank=spec.tokens_per_rank,
                phase=spec.phase,
                step=step,
            )
            for step in range(first, behind)
        ]

    def loads(self, window: list[Batch] | None, layer: int) -> Ints:
        """Counted in the trace."""
        return loads_of(self._trace, layer, _rows(window))

    def together(self, window: list[Batch] | None, layer: int) -> Ints | None:
        """Counted in the trace."""
        return together_of(self._trace, layer, _rows(window))

    def which(self, layer: int) -> WhichLayer:
        """As the trace numbers it."""
        return which_layer(self._trace, layer)

    def imbalance(self, window: list[Batch], placed: Sequence[Placement]) -> list[float]:
        """Imbalance if each row goes to the replica that the engine's rule gives its GPU."""
        found = []
        for layer, placement in enumerate(placed):
            ratios = []
            for batch in window:
                slots = self._slots(batch, placement, layer)
                ranks = placement.expert_rank[slots[slots >= 0]]
                rows = np.bincount(ranks, minlength=placement.num_ranks)
                busiest = float(rows.max()) / max(float(rows.mean()), 1e-300)
                ratios.append(busiest if len(ranks) else 1)
            found.append(float(np.mean(ratios)))
        return found

    def rows_between(self, window: list[Batch], placed: Sequence[Placement], num_nodes: int) -> list[float]:
        """Nodes counted token by token."""
        found = []
        for layer, placement in enumerate(placed):
            counts = []
            for batch in window:
                slots = self._slots(batch, placement, layer)
                nodes = placement.expert_rank[slots] * num_nodes // placement.num_ranks
                own = batch.source_rank * num_nodes // placement.num_ranks
                is_away = (slots >= 0) & (nodes != own[:, None])
                counts.append(distinct(np.where(is_away, nodes, num_nodes), num_nodes))
            found.append(float(np.concatenate(counts).mean()) if counts else 0.0)
        return found

    def _slots(self, batch: Batch, placement: Placement, layer: int) -> Any:
        """(token, k): slot of each row, -1 where a token has no expert."""
        ids = experts_of(self._trace, layer, batch.rows)
        return replicas.choose(ids, batch.source_rank, placement, self._rule, layer)


def _rows(window: Sequence[Batch] | None) -> Ints | slice:
    """Rows of the trace that a window has; all for None."""
    return slice(None) if window is None else np.concatenate([one.rows for one in window])


class CountedDemand(ExpertDemand["Ints"]):
    """Demand that was counted elsewhere.

    Parameters
    ----------
    counts
        (step, layer, expert): tokens of each expert.
    title
        Origin of the counts.
    layers
        Numbers of each layer.
    """

    has_tokens = False

    def __init__(self, counts: Counts, title: str, layers: Sequence[WhichLayer]) -> None:
        self._counts, self._layers = counts, layers
        self.title, self.content_id = title, _content_id(counts)
        self.num_layers, self.num_experts = counts.shape[1:]

    def window(self, first: int, behind: int) -> Ints:
        """(step, layer, expert): counts of the steps."""
        num_steps = len(self._counts)
        if behind > num_steps:
            message = f"the loads have {num_steps} steps; steps {first} to {behind - 1} were asked for"
            raise UserError(message)
        return self._counts[first:behind]

    def loads(self, window: Ints | None, layer: int) -> Ints:
        """The sum over the steps."""
        counts = self._counts if window is None else window
        total: Ints = counts[:, layer].sum(axis=0)
        return total

    def together(self, window: Ints | None, layer: int) -> Ints | None:
        """None: counts do not tell."""
        return None

    def which(self, layer: int) -> WhichLayer:
        """As the loads number it."""
        return self._layers[layer]

    def imbalance(self, window: Ints, placed: Sequence[Placement]) -> list[float]:
        """Imbalance if the rows of an expert are divided evenly among its replicas."""
        found = []
        for layer, placement in enumerate(placed):
            experts = placement.logical
            if experts is None:
                experts = np.arange(placement.num_experts)
            copies = np.bincount(experts, minlength=window.shape[2])
            rows = window[:, layer, experts] / copies[experts]
            of_rank = np.zeros((len(rows), placement.num_ranks))
            for step, one in enumerate(rows):
                of_rank[step] = np.bincount(placement.expert_rank, weights=one, minlength=placement.num_ranks)
            mean = of_rank.mean(axis=1)
            # A step in which nothing was counted is as even as any.
            ratio = np.where(mean > 0, of_rank.max(axis=1) / np.where(mean > 0, mean, 1), 1)
            found.append(float(ratio.mean()))
        return found

    def rows_between(self, window: Ints, placed: Sequence[Placement], num_nodes: int) -> list[float]:
        """Zeros: not known."""
        return [0.0] * self.num_layers


def _content_id(counts: Counts) -> str:
    """SHA-256 of the counts and their shape."""
    shape = ",".join(map(str, counts.shape))
    return hashlib.sha256(shape.encode() + counts.astype("<i8").tobytes()).hexdigest()
