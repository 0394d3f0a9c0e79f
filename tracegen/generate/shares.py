"""From the load that is wanted to the weights that give it."""

import numpy as np
import numpy.typing as npt

from tracegen.errors import UserError


def weights_for_shares(shares: npt.NDArray[np.float64], topk: int) -> npt.NDArray[np.float64]:
    """Weights of successive draws whose expected load is (closely) the given one.

    Drawing without replacement flattens: a popular expert cannot be drawn twice. An
    expert that a fraction p of the tokens visits has won the exponential race by a
    time t with probability ``1 - exp(-w t)``, so ``w = -log(1 - p)``. That is exact
    for a fixed time and for equal shares, and off by the spread of the k-th arrival otherwise (the
    tests bound it).

    Parameters
    ----------
    shares
        Fraction of all token-expert pairs of each expert, shape (expert,).
    topk
        Experts per token.

    Returns
    -------
    Shape (expert,).

    Raises
    ------
    UserError
        If a share is larger than 1 / topk: a token visits an expert once.
    """
    total = shares.sum()
    visited = shares / total * topk
    worst = int(np.argmax(visited))
    if visited[worst] > 1 + 1e-9:
        msg = (
            f"expert {worst} would take {shares[worst] / total:.3f} of all token-expert pairs; "
            f"with top-{topk} no expert can take more than 1/{topk}"
        )
        raise UserError(msg)
    # An expert that every token visits would need an infinite weight.
    weights: npt.NDArray[np.float64] = -np.log1p(-np.minimum(visited, 1 - 1e-12))
    return weights
