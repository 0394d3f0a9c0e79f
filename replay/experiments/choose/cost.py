"""Cost of one simulated step of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from replay.experiments.train.result import TrainResult


class Cost(Strict):
    """Cost of a simulated step.

    Attributes
    ----------
    step_us
        The step.
    spent_us
        Mean over GPUs by cause; they add up to the step.
    tokens_per_s, mfu, flop_per_token
        As of `replay.experiments.train.result.Efficiency`.
    memory_gib
        Device memory of the stage that needs most.
    """

    step_us: float
    spent_us: dict[str, float]
    tokens_per_s: float
    mfu: float
    flop_per_token: int
    memory_gib: float

    @classmethod
    def of(cls, result: TrainResult) -> Cost:
        """Take it from a training step."""
        from replay.steps.memory import GIB

        return cls(
            step_us=result.step_us,
            spent_us={cause: result.mean_us(cause) for cause in result.spent_us},
            tokens_per_s=result.efficiency.tokens_per_s,
            mfu=result.efficiency.mfu,
            flop_per_token=result.efficiency.flop_per_token,
            memory_gib=max(sum(stage.values()) for stage in result.memory) / GIB,
        )
