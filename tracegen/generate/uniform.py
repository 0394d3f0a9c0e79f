"""Every expert equally likely: the control, and what a perfect balancing loss would give."""

import numpy as np
import numpy.typing as npt

from tracegen.shared.strict import Strict


class Uniform(Strict):
    """Equal weights of all experts; no parameters."""

    def weights(self, num_experts: int, topk: int, layer: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Weight of each expert of a layer, shape (expert,): all one."""
        return np.ones(num_experts)
