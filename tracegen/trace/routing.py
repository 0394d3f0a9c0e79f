"""The routing trace in memory: the experts that every token of every step chose, layer by layer."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tracegen import models
from tracegen.models import ModelShape
from tracegen.shared.display.exhibit import Exhibit
from tracegen.shared.errors import UserError
from tracegen.trace import checks
from tracegen.trace.arrays import Array
from tracegen.trace.content_id import content_id
from tracegen.trace.shapes import contradiction, shape_of
from tracegen.trace.tables import RequestTable, TokenTable, TraceData

if TYPE_CHECKING:
    import networkx


MAX_NETWORKX_EDGES = 20_000
"""Largest step that :meth:`RoutingTrace.to_networkx` turns into Python objects."""


class LayerDag(NamedTuple):
    """Edges token -> expert of one layer and step, grouped by expert (CSR)."""

    indptr: Array
    """First edge of each expert, and the number of edges at the end: int64, shape (expert + 1,)."""
    tokens: Array
    """Token row of each edge, int64; ascends within an expert."""
    slots: Array
    """Slot of each edge in its token's row, uint8."""


@dataclass(frozen=True)
class RoutingTrace(TraceData, Exhibit):
    """Expert choices of every token, layer by layer, with what made them.

    ``expert_ids[l, t, k]`` is the edge list of the token-expert graph: token row
    ``t`` visits that expert in MoE layer ``l``. All arrays are read-only.
    Dimensions: layer (MoE layers only), token (rows in step order), k (slots).

    Raises
    ------
    UserError
        On construction, if an array has the wrong type or shape; values are
        checked by :meth:`validate`.
    """

    PAGE: ClassVar[str] = "tracegen.stats.page:trace_page"

    def __post_init__(self) -> None:
        for name in ("moe_layer_index", "expert_ids", "steps_indptr", "gate_weights", "flags"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))
        object.__setattr__(self, "tokens", _read_only_columns(self.tokens))
        object.__setattr__(self, "requests", _read_only_columns(self.requests))
        checks.check_structure(self)

    @property
    def num_layers(self) -> int:
        """MoE layers in this trace."""
        return int(self.expert_ids.shape[0])

    @property
    def num_tokens(self) -> int:
        """Token rows in this trace, all steps together."""
        return int(self.expert_ids.shape[1])

    @property
    def topk(self) -> int:
        """Slots per token."""
        return int(self.expert_ids.shape[2])

    @property
    def num_experts(self) -> int:
        """Routed experts of a layer."""
        return self.model.num_experts

    @property
    def num_steps(self) -> int:
        """Steps with at least one token."""
        return int(self.steps_indptr.shape[0]) - 1

    @property
    def num_ranks(self) -> int | None:
        """Source GPUs the trace was made for, idle ones too; None without a ``rank`` column."""
        rank = self.tokens.rank
        if rank is None:
            return None
        return max(self.info.num_ranks, int(rank.max()) + 1 if rank.size else 0)

    @property
    def empty_slot(self) -> int:
        """Value of ``expert_ids`` that stands for no expert."""
        return int(np.iinfo(self.expert_ids.dtype).max)

    @functools.cached_property
    def content_id(self) -> str:
        """SHA-256 of the meaning of what is here: of the part, if part of a file was loaded."""
        # Never what a file says of itself: results are filed under it, and found by it again.
        return content_id(self)

    @functools.cached_property
    def model_shape(self) -> ModelShape:
        """Shape of the model: the one the trace carries, else the catalogue's.

        Raises
        ------
        UserError
            If the trace carries none, and names no model or one that the catalogue does not know,
            or knows with other sizes.
        """
        return shape_of(self)

    def with_shape(self, shape: ModelShape) -> "RoutingTrace":
        """Give the trace the shape of its model.

        Parameters
        ----------
        shape
            Of the model that was routed, complete.

        Returns
        -------
        This trace if it carries that shape or names a checkpoint of it; else one with the same
        routing that does, which has a content id of its own.

        Raises
        ------
        UserError
            If a model of this shape cannot have made this routing.
        """
        if wrong := contradiction(self, shape):
            raise UserError(wrong)
        carried = self.model.shape
        known = models.of_checkpoint(self.model.model_id) if carried is None else (carried,)
        if any(one.sizes() == shape.sizes() for one in known):
            return self
        model = dataclasses.replace(self.model, shape=shape)
        return dataclasses.replace(self, model=model, stored_content_id="")

    def layer_ids(self, layer: int) -> npt.NDArray[np.int32]:
        """Expert ids of one layer in a signed type.

        Parameters
        ----------
        layer
            Position among the MoE layers of this trace, from 0.

        Returns
        -------
        int32 (token, k), -1 in empty slots.

        Raises
        ------
        UserError
            If there is no such layer.
        """
        stored = self.expert_ids[self._layer(layer)]
        ids: npt.NDArray[np.int32] = stored.astype(np.int32)
        ids[stored == self.empty_slot] = -1
        return ids

    def load_per_expert(self) -> npt.NDArray[np.uint64]:
        """Tokens that chose each expert: uint64 (layer, expert)."""
        load = np.zeros((self.num_layers, self.num_experts), np.uint64)
        for layer in range(self.num_layers):
            counts = np.bincount(self.expert_ids[layer].ravel(), minlength=self.empty_slot + 1)
            load[layer] = counts[: self.num_experts]
        return load

    def step_rows(self, step: int) -> slice:
        """Token rows of one step.

        Parameters
        ----------
        step
            Position among the steps of this trace, from 0.

        Raises
        ------
        UserError
            If there is no such step.
        """
        if not 0 <= step < self.num_steps:
            msg = f"step {step} does not exist; the trace has steps 0 to {self.num_steps - 1}"
            raise UserError(msg)
        return slice(int(self.steps_indptr[step]), int(self.steps_indptr[step + 1]))

    def _rows(self) -> list[dict[str, Any]]:
        """One for each layer and expert: its tokens, and over the mean of the layer."""
        rows = []
        for layer, load in enumerate(self.load_per_expert().astype(np.int64)):
            mean = max(float(load.mean()), 1e-300)
            decoder = int(self.moe_layer_index[layer])
            for expert, tokens in enumerate(load.tolist()):
                rows.append(
                    {
                        "layer_index": layer,
                        "decoder_layer": decoder,
                        "expert": expert,
                        "tokens": tokens,
                        "load_over_mean": tokens / mean,
                    }
                )
        return rows

    def dag(self, layer: int, step: int) -> LayerDag:
        """Token-expert edges of one layer and step, by expert.

        Parameters
        ----------
        layer
            Position among the MoE layers, from 0.
        step
            Position among the steps, from 0.

        Returns
        -------
        CSR arrays over experts; within an expert by token row, then slot.

        Raises
        ------
        UserError
            If there is no such layer or step.
        """
        rows = self.step_rows(step)
        ids = self.expert_ids[self._layer(layer), rows].ravel()
        # Stable: edges of an expert keep token order. On 1- and 2-byte ids this is a radix sort.
        order = np.argsort(ids, kind="stable")
        counts = np.bincount(ids, minlength=self.empty_slot + 1)[: self.num_experts]
        indptr = np.zeros(self.num_experts + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        order = order[: indptr[-1]]  # empty slots sort last
        tokens, slots = np.divmod(order, self.topk)
        return LayerDag(indptr, tokens + rows.start, slots.astype(np.uint8))

    def to_networkx(self, layer: int, step: int) -> "networkx.DiGraph[Any]":
        """One layer and step as a graph of Python objects, for looking at small windows.

        `tracegen.expert_graph` goes from layer to layer and step to step.

        Nodes are ``("token", layer, row)`` and ``("expert", layer, expert, step)``,
        edges carry ``slot`` and, when recorded, ``weight``.

        Parameters
        ----------
        layer
            Position among the MoE layers, from 0.
        step
            Position among the steps, from 0.

        Raises
        ------
        UserError
            If the step has more than :data:`MAX_NETWORKX_EDGES` edges, or does not exist.
        """
        import networkx

        dag = self.dag(layer, step)
        if dag.tokens.size > MAX_NETWORKX_EDGES:
            msg = (
                f"layer {layer} of step {step} has {dag.tokens.size} edges; to_networkx is for "
                f"windows of at most {MAX_NETWORKX_EDGES}: use dag() instead"
            )
            raise UserError(msg)
        graph: networkx.DiGraph[Any] = networkx.DiGraph()
        rows = self.step_rows(step)
        graph.add_nodes_from(("token", layer, row) for row in range(rows.start, rows.stop))
        experts = np.repeat(np.arange(self.num_experts), np.diff(dag.indptr))
        for expert, row, slot in zip(experts.tolist(), dag.tokens.tolist(), dag.slots.tolist(), strict=True):
            edge: dict[str, Any] = {"slot": slot}
            if self.gate_weights is not None:
                edge["weight"] = float(self.gate_weights[layer, row, slot])
            graph.add_edge(("token", layer, row), ("expert", layer, expert, step), **edge)
        return graph

    def validate(self) -> None:
        """Check every value: ids in range and distinct per row, weights finite, steps in order.

        Raises
        ------
        UserError
            Naming the first offending layer and row.
        """
        checks.check_values(self)

    def _layer(self, layer: int) -> int:
        """Refuse a layer that does not exist, negative numbers included."""
        if not 0 <= layer < self.num_layers:
            msg = f"layer {layer} does not exist; the trace has layers 0 to {self.num_layers - 1}"
            raise UserError(msg)
        return layer


Table = TypeVar("Table", TokenTable, RequestTable)


def _read_only(array: Array | None) -> Array | None:
    """View of an array that cannot be written through."""
    if array is None:
        return None
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _read_only_columns(table: Table) -> Table:
    """Copy of a table with read-only columns."""
    columns: dict[str, Any] = {
        field.name: _read_only(getattr(table, field.name)) for field in dataclasses.fields(table)
    }
    return dataclasses.replace(table, **columns)
