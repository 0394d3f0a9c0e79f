"""Expert shares drawn from a normal distribution of given relative spread."""

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from tracegen.generate.shares import weights_for_shares
from tracegen.shared.errors import UserError
from tracegen.shared.strict import Strict

FLOOR = 0.01
"""Smallest share, in units of the mean share: no expert is dead in recorded traces."""


class Normal(Strict):
    """Normally distributed shares of a layer's experts, of a given coefficient of variation.

    COMET (arXiv 2502.19811, figure 14) states skew as the standard deviation of an
    expert's share of the tokens *with 8 experts*, 0.032 on average in production.
    The mean share is then 1/8, so the coefficient of variation is 8 x 0.032 = 0.256,
    and that is what carries over to other expert counts: at 256 experts an absolute
    standard deviation of 0.032 would be eight times the mean. Give either
    ``skew`` (the coefficient) or ``share_std_e8`` (as papers print it).
    """

    skew: float = Field(default=0.256, ge=0, allow_inf_nan=False)
    """Coefficient of variation of the experts' shares; 0 is uniform."""
    share_std_e8: float | None = Field(default=None, ge=0, le=0.5, allow_inf_nan=False)
    """Standard deviation of the share with 8 experts; sets ``skew`` to 8 times this."""

    @model_validator(mode="before")
    @classmethod
    def _convert(cls, given: object) -> object:
        """One of the two parameters, not both."""
        if isinstance(given, dict) and given.get("share_std_e8") is not None:
            if "skew" in given and given["skew"] != 8 * given["share_std_e8"]:
                msg = "skew and share_std_e8 say the same thing: give one"
                raise ValueError(msg)
            return {**given, "skew": 8 * given["share_std_e8"]}
        return given

    def weights(self, num_experts: int, topk: int, layer: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Weight of each expert of a layer, shape (expert,)."""
        deviate = rng.standard_normal(num_experts)
        if not self.skew or num_experts == 1:
            return np.ones(num_experts)
        return weights_for_shares(_shares(deviate, self.skew, topk), topk)


def _shares(deviate: npt.NDArray[np.float64], skew: float, topk: int) -> npt.NDArray[np.float64]:
    """Shares with exactly this coefficient of variation, shape (expert,).

    Shares must stay above :data:`FLOOR` and below 1 / topk; clipping narrows them, so
    the scale is found by bisection.
    """
    deviate = (deviate - deviate.mean()) / deviate.std()
    cap = deviate.size / topk

    def clip(scale: float) -> npt.NDArray[np.float64]:
        raw = np.clip(1 + scale * deviate, FLOOR, cap)
        shares: npt.NDArray[np.float64] = np.clip(raw / raw.mean(), FLOOR, cap)
        return shares

    low, high = 0.0, skew
    while clip(high).std() / clip(high).mean() < skew:
        high *= 2
        if high > 1e4 * skew:
            most = clip(high).std() / clip(high).mean()
            msg = (
                f"skew {skew:g} cannot be reached with {deviate.size} experts and top-{topk}: a "
                f"normal distribution cut off at 0 and at 1/{topk} reaches about {most:.2f}"
            )
            raise UserError(msg)
    for _ in range(60):
        middle = (low + high) / 2
        shares = clip(middle)
        low, high = (middle, high) if shares.std() / shares.mean() < skew else (low, middle)
    return clip(high)
