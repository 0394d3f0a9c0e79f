"""Workloads W0 to W7 of the token-imbalance benchmark that was proposed for Megatron-LM.

NVIDIA/Megatron-LM pull request 7488 (benchmarks/moe/token_imbalance, read at commits 8a2f5bd and
f5c5024). The constructions are restated here and the tokens drawn with numpy, so that rows differ
from those of the benchmark, which draws with torch; no code of it is here.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from pydantic import field_validator

from tracegen.generate.draw import topk_without_replacement
from tracegen.shared.errors import UserError, unknown
from tracegen.shared.strict import Strict
from tracegen.trace.arrays import Array

Workload = Literal[
    "W0_balanced",
    "W1_hot_expert_set",
    "W2_hot_rank",
    "W3_spread_hot_experts",
    "W4_source_ragged",
    "W5_zero_expert_rank",
    "W6_rotating_hotspot",
    "W7_burst",
]
WORKLOADS: tuple[str, ...] = get_args(Workload)
HOT_SHARE = 4
"""One expert in so many is hot, but no fewer than a token chooses."""
MOVES_AFTER = 3
"""Steps after which the hot experts of W6 are others."""
BURST_EVERY = 4
"""Steps of which W7 has a burst in the last."""


class TokenImbalance(Strict):
    """A workload of Megatron-LM's token-imbalance benchmark (pull request 7488).

    Every rank has the same rows, as in the benchmark, so that a workload does not depend on how
    many ranks there are; all layers have the same hot experts.

    - W0: experts in turn, all alike.
    - W1, W2: 3 tokens of 4 keep to the first quarter of the experts (no fewer than top-k), others
      choose from all. The code of both is the same: contiguous placement makes it a hot rank.
    - W3: 3 tokens of 4 keep to every other expert.
    - W4: all experts alike; source ranks have different numbers of tokens. The benchmark says so
      and gives no numbers, and its code gives each rank as many. Here rank r of N has
      2 T (N - 1 - r) / (N - 1), so that the mean is T and the last rank is idle; a list of tokens
      per rank says otherwise.
    - W5: the first half of the experts is never chosen, so that their ranks receive nothing.
    - W6: as W1, and every 3 steps the next quarter of the experts is hot.
    - W7: as W4 with equal ranks; in the last of 4 steps every other token keeps to the first
      quarter.
    """

    workload: Workload = "W1_hot_expert_set"
    """Name of the workload, or the first two characters of it."""

    @field_validator("workload", mode="before")
    @classmethod
    def _workload_number(cls, given: Any) -> Any:
        """Take the number of a workload for its name."""
        text = str(given)
        found = [name for name in WORKLOADS if text.lower() in (name.lower(), name[:2].lower())]
        if not found:
            raise unknown("workload", text, WORKLOADS)
        return found[0]

    def tokens_of_ranks(self, ranks: int, tokens_per_rank: int) -> Array:
        """Tokens of each rank where one number is given, integer (rank,)."""
        if self.workload != "W4_source_ragged" or ranks == 1:
            return np.full(ranks, tokens_per_rank)
        # Differences of the rounded sum, so that the total is that of equal ranks.
        before = np.arange(ranks + 1)
        share = before * (2 * ranks - 1 - before)
        return np.diff(tokens_per_rank * share // (ranks - 1))

    def rows(self, num_experts: int, topk: int, tokens: Array, step: int, draws: np.random.Generator) -> Array:
        """Ids (token, k) of one layer and step, ascending in each row.

        Parameters
        ----------
        num_experts, topk
            Of the model.
        tokens
            Of each rank, integer (rank,); each has the first so many of the same rows.
        step
            Forward pass, from 0.
        draws
            Stream of the layer and step.

        Raises
        ------
        UserError
            If a token has more choices than experts that it may choose.
        """
        rows, number = int(tokens.max(initial=0)), WORKLOADS.index(self.workload)
        place = np.arange(rows)
        if number == 0:
            ids = (place[:, None] * topk + np.arange(topk)) % num_experts
        else:
            pool, is_kept = self._pool(num_experts, topk, step, place)
            streams = draws.spawn(len(WORKLOADS))[number].spawn(2)
            free, kept = (
                topk_without_replacement(stream, allowed, topk, rows).astype(np.int64)
                for stream, allowed in zip(streams, (np.ones(num_experts), pool), strict=True)
            )
            ids = np.where(is_kept[:, None], kept, free)
        ids = np.sort(ids, axis=1)
        return np.concatenate([ids[:count] for count in tokens])

    def remark(self, num_experts: int, topk: int, tokens: Array) -> str:
        """Sentence on what was drawn; parameters as those of `rows`."""
        numbers = sorted(set(tokens.tolist()))
        each = (
            f"Every rank has the same {numbers[0]} rows"
            if len(numbers) == 1
            else f"Ranks have the first {', '.join(map(str, tokens.tolist()))} of the same rows"
        )
        return (
            f"{self.workload} of Megatron-LM's token-imbalance benchmark (pull request 7488), "
            f"top-{topk} of {num_experts} experts, drawn with numpy: rows differ from the "
            f"benchmark's own. {each}."
        )

    def _pool(self, num_experts: int, topk: int, step: int, place: Array) -> tuple[Array, Array]:
        """Experts that some tokens keep to, float (expert,), and whether each does, (token,)."""
        hot = max(topk, num_experts // HOT_SHARE)
        experts = np.arange(num_experts)
        three_of_four = place % 4 != 0
        number = WORKLOADS.index(self.workload)
        if number == 3:
            pool = experts % 2 == 0
            if pool.sum() < topk:
                pool = experts >= 0
        elif number == 5:
            pool, three_of_four = experts >= num_experts // 2, place >= 0
        elif number == 6:
            base = step // MOVES_AFTER * hot % num_experts
            pool = (experts - base) % num_experts < hot
        else:
            pool = experts < hot
        if number == 4:
            three_of_four = place < 0
        if number == 7:
            three_of_four = (place % 2 == 0) & (step % BURST_EVERY == BURST_EVERY - 1)
        if pool.sum() < topk:
            msg = f"{self.workload}: top-{topk} of {int(pool.sum())} experts that may be chosen"
            raise UserError(msg)
        return pool.astype(np.float64), three_of_four
