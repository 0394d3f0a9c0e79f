"""Popularity that falls as a power of its rank, experts shuffled independently per layer."""

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tracegen.shared.strict import Strict


class Zipf(Strict):
    """Zipf's law: the r-th most popular expert is a first choice with probability ~ r^-skew.

    Maximum-likelihood exponents of recorded traces lie between 0.15 (balanced:
    Mixtral, Qwen1.5-MoE), 0.4 (a mixed load on DeepSeek-V2-Lite), 0.6 (gpt-oss-20b)
    and 0.8 (a single narrow domain); 1 and above lie outside them.
    """

    skew: float = Field(default=0.6, ge=0, le=10, allow_inf_nan=False)
    """Exponent; 0 is uniform."""

    def weights(self, num_experts: int, topk: int, layer: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Weight of each expert of a layer, shape (expert,)."""
        # Loads of neighbouring layers are unrelated by expert number in recorded traces.
        rank = rng.permutation(num_experts) + 1
        return np.power(rank.astype(np.float64), -self.skew)
