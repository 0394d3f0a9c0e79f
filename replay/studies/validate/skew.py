"""Rows of experts under skewed routing, drawn from the law that the benchmarks draw from.

The collectors of ai-dynamo/aiconfigurator draw the loads of all experts from a power law, give the
busiest rank's experts to the measured rank, and take the mean time over five draws per size
(``_generate_power_law_distribution`` in ``collector/helper.py``; ``num_iter`` in
``collector/trtllm/collect_moe.py``). The seeds are not published. Predicted is the mean over draws
from the same law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints
    from replay.studies.validate.table import MeasurementRow

SEED, NUM_DRAWS = 20260821, 10
# Of the power law, the collector's; the largest load is in units of the number of tokens.
SMALLEST_LOAD, LARGEST_LOAD = 1.0, 0.8
SCARCE_LOADS = (0.01, 2.0)  # the same where there are no more pairs than experts


def power_law(quantile: npt.NDArray[np.float64], alpha: float, low: float, high: float) -> npt.NDArray[np.float64]:
    """Loads of experts with density proportional to ``load ** -alpha`` between two bounds.

    Parameters
    ----------
    quantile
        (expert,): share of the distribution below each load. Uniform random numbers make a draw.
    alpha
        Exponent, not 1.
    low, high
        Smallest and largest load.

    Returns
    -------
    (expert,) loads, from the inverse of the distribution function.
    """
    power = 1 - alpha
    bottom, top = low**power, high**power
    loads: npt.NDArray[np.float64] = ((top - bottom) * quantile + bottom) ** (1 / power)
    return loads


def power_law_rows(row: MeasurementRow, rng: np.random.Generator) -> Ints:
    """Rows of the busiest rank's experts in one draw, without padding: (local expert,)."""
    tokens, experts, topk = row["global_tokens"], row["num_experts"], row["topk"]
    low, high = (SMALLEST_LOAD, LARGEST_LOAD * tokens) if tokens * topk > experts else SCARCE_LOADS
    alpha = float(row["distribution"].rsplit("_", maxsplit=1)[-1])
    load = power_law(rng.random(experts), alpha, low, high)
    rows = np.rint(load / load.sum() * tokens * topk).astype(np.int64)
    rows = np.minimum(rows, tokens).reshape(row["ep_size"], -1)  # a token has an expert once
    _even_out(rows, tokens * topk - int(rows.sum()), tokens)
    busiest: Ints = rows[rows.sum(axis=1).argmax()]
    return busiest


def _even_out(rows: Counts, missing: int, most: int) -> None:
    """Add `missing` rows one at a time, rank by rank, to the expert with the fewest rows.

    If it is negative, rows are taken from the expert with the most. An expert has at most `most`.
    """
    step = 1 if missing > 0 else -1
    while missing:
        for rank_rows in rows:
            expert = rank_rows.argmin() if step > 0 else rank_rows.argmax()
            if missing and 0 <= rank_rows[expert] + step <= most:
                rank_rows[expert] += step
                missing -= step


def draws(row: MeasurementRow) -> list[Ints]:
    """Rows of the measured rank's experts, (local expert,), one array per draw."""
    rng = np.random.default_rng(SEED)
    return [power_law_rows(row, rng) for _ in range(NUM_DRAWS)]
