"""Every expert equally likely: the control, and what a perfect balancing loss would give."""

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict


class Uniform(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def weights(
        self, num_experts: int, topk: int, layer: int, rng: np.random.Generator
    ) -> npt.NDArray[np.float64]:
        """Weight of each expert of a layer, shape (expert,): all one."""
        return np.ones(num_experts)
