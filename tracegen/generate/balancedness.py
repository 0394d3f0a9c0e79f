"""Routing whose GPUs have a stated balancedness: the mean of their loads over the largest.

vLLM's EPLB logs it, SGLang's recorder reports it as utilization rate, and vllm-plugin-das of Hygon
(pull request 69) routes simulated tokens by it; its inverse is the busiest GPU over the mean.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from tracegen.shared.errors import UserError
from tracegen.shared.strict import Strict
from tracegen.trace.arrays import Array


class Balancedness(Strict):
    """Loads of GPUs that have the wanted balancedness in every layer and step, to the nearest row.

    Experts lie contiguously (expert e of E on GPU floor(e N / E) of N). Some GPUs are equally hot,
    drawn anew for each layer and the same in all steps; the others share the rest evenly, and so do
    the experts of a GPU. Tokens choose at random among what gives exactly these loads.
    """

    balancedness: float = Field(default=0.6, gt=0, le=1, allow_inf_nan=False)
    """Mean of the GPUs' rows over those of the busiest; 1 is even, 1/N is all rows on one of N."""
    hot_ranks: int = Field(default=1, ge=1)
    """GPUs that are the busiest together."""

    def rank_loads(self, num_experts: int, topk: int, ranks: int, tokens: int) -> Array:
        """Rows of each GPU, the hot ones first, integer (rank,).

        Parameters
        ----------
        num_experts, topk
            Of the model.
        ranks, tokens
            GPUs, and tokens of all of them.

        Raises
        ------
        UserError
            If the GPUs cannot be so uneven, or so many cannot be hot.
        """
        pairs, hot = tokens * topk, self.hot_ranks
        if hot > ranks or ranks > num_experts:
            msg = f"balancedness: {hot} hot ranks of {ranks}, with {num_experts} experts; each rank needs an expert"
            raise UserError(msg)
        # A GPU takes a token once for each of its experts at most; the smallest GPU may be hot.
        most = min(pairs // hot, tokens * min(topk, num_experts // ranks))
        wanted = pairs / (ranks * self.balancedness)
        if pairs and pairs / (ranks * most) > self.balancedness + 1 / most:
            msg = (
                f"balancedness {self.balancedness:g}: with {ranks} ranks of "
                f"{num_experts // ranks} experts, {hot} hot and top-{topk}, at least "
                f"{pairs / (ranks * most):.4g} is possible"
            )
            raise UserError(msg)
        near = {max(-(-pairs // ranks), min(most, rounded(wanted))) for rounded in (math.floor, math.ceil)}
        largest = min(near, key=lambda load: (abs(pairs / (ranks * max(load, 1)) - self.balancedness), load))
        if hot == ranks:
            return _divide(pairs, ranks)
        return np.concatenate([np.full(hot, largest), _divide(pairs - hot * largest, ranks - hot)])

    def expert_loads(self, num_experts: int, topk: int, tokens: Array, shape: np.random.Generator) -> Array:
        """Rows of each expert of one layer, integer (expert,).

        Parameters
        ----------
        num_experts, topk
            Of the model.
        tokens
            Of each GPU, integer (rank,).
        shape
            Stream of the layer's shape, which draws the hot GPUs.

        Raises
        ------
        UserError
            If the GPUs cannot be so uneven.
        """
        ranks = len(tokens)
        loads = self.rank_loads(num_experts, topk, ranks, int(tokens.sum()))
        host = np.arange(num_experts) * ranks // num_experts
        counts = np.zeros(num_experts, np.int64)
        for rank, load in zip(shape.permutation(ranks), loads, strict=True):
            own = shape.permutation(np.flatnonzero(host == rank))
            counts[own] = _divide(int(load), own.size)
        return counts

    def remark(self, num_experts: int, topk: int, tokens: Array) -> str:
        """Sentence on the balancedness that was reached, and on the hot GPUs.

        Parameters
        ----------
        num_experts, topk
            Of the model.
        tokens
            Of each GPU, integer (rank,).
        """
        ranks, total = len(tokens), int(tokens.sum())
        loads = self.rank_loads(num_experts, topk, ranks, total)
        reached = loads.mean() / loads.max() if total else 1.0
        return (
            f"Balancedness {reached:.6g} of {self.balancedness:g} was reached in every layer and "
            f"step: {self.hot_ranks} of {ranks} ranks, drawn for each layer, have {loads.max()} of "
            f"{loads.sum()} rows, the others {loads.min()} or more; experts of a rank are alike."
        )


def _divide(whole: int, parts: int) -> Array:
    """A whole in parts that differ by one at most, the larger first."""
    return np.full(parts, whole // parts) + (np.arange(parts) < whole % parts)
