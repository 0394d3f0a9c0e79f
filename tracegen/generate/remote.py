"""Routing of which a given share leaves its GPU, experts alike otherwise."""

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tracegen.generate.shares import weights_for_shares
from tracegen.shared.errors import UserError
from tracegen.shared.strict import Strict


class Remote(Strict):
    """Share of the token-expert pairs that goes to experts of other GPUs.

    Every GPU has equally many experts, in their order (contiguous placement). Those of the token's
    own GPU are equally likely, and so are all others. Uniform routing over N GPUs has a share of
    (N - 1) / N; less is what a placement or a router that knows the GPUs brings about.
    """

    remote_share: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    """Share of the pairs whose expert is not on the GPU of the token."""

    def weights_of_ranks(self, num_experts: int, topk: int, ranks: int) -> list[npt.NDArray[np.float64]]:
        """Weight of each expert for the tokens of each GPU, an array (expert,) for each.

        Raises
        ------
        UserError
            If the experts cannot be shared equally, or a token has more choices than experts.
        """
        if num_experts % ranks:
            msg = f"remote: {num_experts} experts cannot be shared equally by {ranks} ranks"
            raise UserError(msg)
        own = num_experts // ranks
        for share, count, where in (
            (1 - self.remote_share, own, "on its own rank"),
            (self.remote_share, num_experts - own, "on other ranks"),
        ):
            if share * topk > count:
                msg = (
                    f"remote: {share:g} of top-{topk} {where} is more than one choice "
                    f"for each of the {count} experts there"
                )
                raise UserError(msg)
        shares = np.full(num_experts, self.remote_share / max(num_experts - own, 1))
        shares[:own] = (1 - self.remote_share) / own
        weights = weights_for_shares(shares, topk)
        return [np.roll(weights, rank * own) for rank in range(ranks)]
