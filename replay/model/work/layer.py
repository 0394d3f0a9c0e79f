"""The work of one MoE layer in one step, which every scheme is given.

Everything here is counted from the routing; nothing here knows time. The closed forms of traffic
that the tests check are sums over these arrays.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Ints
from replay.model.work.placement import Placement
from replay.model.work.precision import Precision
from replay.model.work.step_plan import StepPlan

if TYPE_CHECKING:
    from replay.model.work.node_sample import NodeSample

__all__ = ["ExpertShape", "LayerWork", "Precision"]


@dataclass(frozen=True)
class ExpertShape:
    """Sizes of one expert.

    Attributes
    ----------
    hidden, intermediate
        Length of a token row, and of the row between the two GEMMs.
    gated
        Whether the first GEMM computes gate and up projections (twice `intermediate` columns).
    """

    hidden: int
    intermediate: int
    gated: bool = True

    @property
    def gemm1_columns(self) -> int:
        """Output columns of the first GEMM."""
        return (2 if self.gated else 1) * self.intermediate


class LayerWork:
    """One layer of one step: routing, placement, expert shape, precision.

    Parameters
    ----------
    expert_ids
        (token, k): experts of each token, distinct within a row; -1 for an empty slot.
    source_rank
        (token,): the rank that owns each token, ascending.
    placement
        Rank of every expert.
    shape
        Sizes of one expert.
    precision
        Number types of GEMMs and rows.
    is_backward
        Whether this is the backward pass: gradients of the tokens' outputs are dispatched, and
        those of their inputs are combined. The routing is known from the forward pass, so that no
        kernel counts it.
    shared
        Work of the shared experts, if it is done beside the dispatch: see `with_shared`.
    step_plan
        How `placement` and `expert_ids` were planned after the gate, where they were.
    sample
        The nodes whose ranks have all their rows, where not all have: see
        `replay.model.work.thinning`.
    puts_off_weights
        Whether the backward pass leaves the gradients of the experts' weights for later.
    num_slices
        Ranks that share an expert, whose slices are the experts here: see
        `replay.model.work.expert_slices`.

    Notes
    -----
    A *pair* is one (token, expert); a *copy* is one (token, rank that hosts at least one of the
    token's experts). Both are listed token-major, pairs in slot order, copies by rank.
    """

    def __init__(
        self,
        expert_ids: npt.NDArray[np.int32],
        source_rank: npt.NDArray[np.int32],
        placement: Placement,
        shape: ExpertShape,
        precision: Precision,
        *,
        is_backward: bool = False,
        shared: LayerWork | None = None,
        step_plan: StepPlan | None = None,
        sample: NodeSample | None = None,
        puts_off_weights: bool = False,
        num_slices: int = 1,
    ) -> None:
        assert is_backward or not puts_off_weights, "gradients are of a backward pass"
        assert expert_ids.shape[0] == len(source_rank), "one owner a token"
        assert (np.diff(source_rank) >= 0).all(), "tokens are ordered by owner"
        self.expert_ids = expert_ids
        self.source_rank = source_rank.astype(np.int64)
        self.placement = placement
        self.shape = shape
        self.precision = precision
        self.is_backward = is_backward
        self.shared = shared
        self.step_plan = step_plan
        self.sample = sample
        self.puts_off_weights = puts_off_weights
        self.num_slices = num_slices
        self.num_ranks = placement.num_ranks
        self.num_experts = placement.num_experts

    @property
    def has_weight_gradients(self) -> bool:
        """Tell whether the pass makes gradients of the experts' weights."""
        return self.is_backward and not self.puts_off_weights

    @property
    def num_tokens(self) -> int:
        """Tokens over all ranks."""
        return len(self.source_rank)

    @property
    def whole_choices(self) -> int:
        """Experts that a token may choose, k: whole ones, however many ranks share each."""
        return int(self.expert_ids.shape[1]) // self.num_slices

    @property
    def whole_experts(self) -> int:
        """Experts of the layer, each once, however many ranks share it."""
        return self.num_experts // self.num_slices

    def of_tokens(self, tokens: Ints) -> LayerWork:
        """The same layer for some of its tokens (token,), in order."""
        return self.with_tokens(self.expert_ids[tokens], self.source_rank[tokens])

    def with_tokens(self, expert_ids: npt.NDArray[np.integer[Any]], source_rank: Ints) -> LayerWork:
        """The same layer for other tokens; nothing that was derived from its own is kept.

        Parameters
        ----------
        expert_ids, source_rank
            (token, k) and (token,), see `LayerWork`.
        """
        ids, nothing = expert_ids.astype(np.int32), dict.fromkeys(("shared", "step_plan", "sample"))
        return self.with_changes(expert_ids=ids, source_rank=source_rank, **nothing)

    def with_changes(self, **changes: Any) -> LayerWork:
        """The same layer with some of its fields replaced."""
        return LayerWork(**{name: getattr(self, name) for name in MADE_FROM} | changes)

    def putting_off_weights(self) -> LayerWork:
        """The same layer, backward, without the gradients of the experts' weights."""
        shared = None if self.shared is None else self.shared.putting_off_weights()
        return self.with_changes(is_backward=True, shared=shared, puts_off_weights=True)

    def with_shared(self, intermediate: int) -> LayerWork:
        """Add the work of shared experts beside the dispatch.

        Parameters
        ----------
        intermediate
            Width between the two GEMMs, that of all shared experts together.

        Returns
        -------
        The same layer whose `shared` is a layer of its own: every rank has one more expert, which
        all tokens of the rank go to. Those experts are numbered behind the routed ones.
        """
        ranks = np.concatenate((self.placement.expert_rank, np.arange(self.num_ranks)))
        placed = Placement(ranks.astype(np.int32), self.num_ranks, self.placement.description)
        shape = ExpertShape(self.shape.hidden, intermediate, self.shape.gated)
        ids = (self.num_experts + self.source_rank)[:, None].astype(np.int32)
        types = self.precision
        precision = Precision(types.gemm, weights=types.weights)  # its rows do not travel
        shared = self.with_changes(
            expert_ids=ids,
            placement=placed,
            shape=shape,
            precision=precision,
            step_plan=None,
            num_slices=1,
        )
        return self.with_changes(shared=shared)

    @property
    def dispatch_row_bytes(self) -> int:
        """Bytes of one row of the dispatch."""
        return self.precision.dispatch_row_bytes(self.shape.hidden)

    @property
    def token_row_bytes(self) -> int:
        """Bytes of one token as the layer is given it."""
        return self.precision.token_row_bytes(self.shape.hidden)

    @property
    def operand_row_bytes(self) -> int:
        """Bytes of one dispatched row as the first GEMM reads it."""
        return self.precision.operand_row_bytes(self.shape.hidden)

    @property
    def result_row_bytes(self) -> int:
        """Bytes of one row as the last GEMM writes it, and of a token's sum."""
        return self.precision.result_row_bytes(self.shape.hidden)

    @property
    def combine_row_bytes(self) -> int:
        """Bytes of one row of the combine."""
        return self.precision.combine_row_bytes(self.shape.hidden)

    @cached_property
    def tokens_of_rank(self) -> Ints:
        """(rank + 1,): offsets t; the tokens of rank r are ``[t[r], t[r + 1])``."""
        return np.searchsorted(self.source_rank, np.arange(self.num_ranks + 1)).astype(np.int64)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        token, slot = np.nonzero(self.expert_ids >= 0)
        return token, self.expert_ids[token, slot].astype(np.int64)

    @property
    def pair_token(self) -> Ints:
        """(pair,): token of each pair."""
        return self._pairs[0]

    @property
    def pair_expert(self) -> Ints:
        """(pair,): expert of each pair."""
        return self._pairs[1]

    @cached_property
    def pair_rank(self) -> Ints:
        """(pair,): rank that hosts the expert."""
        return self.placement.expert_rank[self.pair_expert].astype(np.int64)

    @cached_property
    def pair_source(self) -> Ints:
        """(pair,): rank that owns the token."""
        return self.source_rank[self.pair_token]

    @cached_property
    def _copies(self) -> tuple[Ints, Ints, Ints]:
        key = self.pair_token * self.num_ranks + self.pair_rank
        is_wanted = np.zeros(self.num_tokens * self.num_ranks, np.bool_)
        is_wanted[key] = True
        copy, pair_copy = np.flatnonzero(is_wanted), np.cumsum(is_wanted)[key] - 1
        return copy // self.num_ranks, copy % self.num_ranks, pair_copy

    @property
    def copy_token(self) -> Ints:
        """(copy,): token of each copy."""
        return self._copies[0]

    @property
    def copy_rank(self) -> Ints:
        """(copy,): rank that hosts experts of the token."""
        return self._copies[1]

    @property
    def pair_copy(self) -> Ints:
        """(pair,): copy that brings the token to the expert's rank."""
        return self._copies[2]

    @cached_property
    def copy_source(self) -> Ints:
        """(copy,): rank that owns the token."""
        return self.source_rank[self.copy_token]

    @cached_property
    def copy_is_remote(self) -> npt.NDArray[np.bool_]:
        """(copy,): whether the copy leaves the owner's GPU."""
        remote: npt.NDArray[np.bool_] = self.copy_source != self.copy_rank
        return remote

    @cached_property
    def copy_pairs(self) -> Ints:
        """(copy,): number of the token's experts on the rank."""
        return np.bincount(self.pair_copy, minlength=len(self.copy_token))

    @cached_property
    def rows_of_expert(self) -> Ints:
        """(expert,): number of rows routed to each expert."""
        return np.bincount(self.pair_expert, minlength=self.num_experts)

    @cached_property
    def experts_of_rank(self) -> list[Ints]:
        """Experts of each rank, ascending."""
        return [np.flatnonzero(self.placement.expert_rank == rank).astype(np.int64) for rank in range(self.num_ranks)]

    def matrix(self, what: str) -> Ints:
        """Rows between ranks: (source rank, expert rank), read-only.

        Parameters
        ----------
        what
            Unit that is counted, ``"pairs"`` or ``"copies"``.
        """
        assert what in ("pairs", "copies"), what
        return self._pair_matrix if what == "pairs" else self._copy_matrix

    @cached_property
    def _pair_matrix(self) -> Ints:
        return self._between(self.pair_source, self.pair_rank)

    @cached_property
    def _copy_matrix(self) -> Ints:
        return self._between(self.copy_source, self.copy_rank)

    def _between(self, source: Ints, rank: Ints) -> Ints:
        """Number of rows (row,) from each rank to each: (source rank, rank)."""
        n = self.num_ranks
        rows = np.bincount(source * n + rank, minlength=n * n).reshape(n, n)
        rows.flags.writeable = False
        return rows

    def summary(self) -> dict[str, Any]:
        """Counts that explain a result: tokens, pairs, copies, fan-out, imbalance.

        They are of the whole layer where only some nodes have all their rows.
        """
        return {**self._summary}

    @cached_property
    def _summary(self) -> dict[str, Any]:
        if self.sample is not None:
            return self.sample.summary
        rows_of_rank = np.bincount(self.pair_rank, minlength=self.num_ranks)
        tokens = max(self.num_tokens, 1)
        mean_rows = max(float(rows_of_rank.mean()), 1e-300)
        return {
            "num_tokens": self.num_tokens,
            "num_pairs": len(self.pair_token),
            "num_copies": len(self.copy_token),
            "mean_distinct_ranks": len(self.copy_token) / tokens,
            "mean_distinct_remote_ranks": float(self.copy_is_remote.sum()) / tokens,
            "mean_remote_pairs": float((self.pair_source != self.pair_rank).sum()) / tokens,
            "rank_imbalance": float(rows_of_rank.max(initial=0)) / mean_rows if len(self.pair_token) else 1.0,
        }


MADE_FROM = tuple(inspect.signature(LayerWork).parameters)
"""What a layer's work is made from; everything else follows from it."""
