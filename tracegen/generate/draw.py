"""Drawing top-k experts without replacement, reproducibly and in blocks."""

import numpy as np
import numpy.typing as npt

from tracegen.shared.least import least
from tracegen.trace.tables import expert_dtype

ROWS_PER_BLOCK = 2048
"""Rows worked on at a time; 2048 x 256 experts x 8 B stay in a core's cache."""

SHAPE_STREAM = 0
"""Key of the stream that decides a layer's popularities; step s draws from key s + 1."""


def stream(seed: int, layer: int, key: int) -> np.random.Generator:
    """Independent random stream of one layer and purpose.

    Keyed by number, not by order of use: layer 7 draws the same whether 8 or 58
    layers are made, and step 3 whether 4 or 400 steps are.

    Parameters
    ----------
    seed
        Of the trace.
    layer
        Position among the MoE layers.
    key
        :data:`SHAPE_STREAM`, or step + 1.
    """
    # PCG64 by name: numpy may change the default one day, and traces must not change with it.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(layer, key))))


def topk_without_replacement(
    rng: np.random.Generator,
    weights: npt.NDArray[np.float64],
    topk: int,
    num_tokens: int,
    groups: tuple[int, int] | None = None,
) -> npt.NDArray[np.unsignedinteger]:
    """Choose distinct experts for each token, in order of choice.

    Successive draws without replacement with probability proportional to weight
    (Plackett-Luce), by the exponential race: the ``topk`` smallest of
    ``-log(1 - u) / weight``. Its negative logarithm is the Gumbel top-k trick
    (Kool, van Hoof, Welling, 2019, section 3); the order is the same, one logarithm less.

    Parameters
    ----------
    rng
        Consumed row by row: more tokens extend the result, they do not change it.
    weights
        Non-negative, at least ``topk`` of them positive, shape (expert,).
    topk
        Experts per token.
    num_tokens
        Rows.
    groups
        Number of equal groups of neighbouring experts, and how many of them a token may
        choose from; None for no limit.

    Returns
    -------
    Ids (token, k), first choice first, in :func:`tracegen.trace.tables.expert_dtype`.
    """
    num_experts = weights.size
    out = np.empty((num_tokens, topk), expert_dtype(num_experts))
    # All weights equal: the race is decided by the uniform numbers themselves.
    is_uniform = bool((weights == weights[0]).all()) and groups is None
    with np.errstate(divide="ignore", over="ignore"):  # next to nothing is as rare as nothing
        per_weight = 1.0 / weights
    for begin in range(0, num_tokens, ROWS_PER_BLOCK):
        rows = min(ROWS_PER_BLOCK, num_tokens - begin)
        # float64: near ties are so rare that a last-bit difference of log between
        # machines does not show in the ids.
        race = rng.random((rows, num_experts))
        if not is_uniform:
            np.subtract(1.0, race, out=race)
            np.log(race, out=race)
            race *= -per_weight
        if groups is not None:
            _leave_groups(race, *groups)
        chosen = least(race, topk)
        times = np.take_along_axis(race, chosen, axis=1)
        order = np.argsort(times, axis=1, kind="stable")
        out[begin : begin + rows] = np.take_along_axis(chosen, order, axis=1)
    return out


def _leave_groups(race: npt.NDArray[np.float64], num_groups: int, topk_group: int) -> None:
    """Take experts outside each token's best groups out of the race, in place.

    A group's score is the sum of its two best logits, as in DeepSeek-V3
    (arXiv 2412.19437, section 2.1.2, and its gate's code); the perturbed logit of an expert is
    minus the logarithm of its time.

    Parameters
    ----------
    race
        Arrival times, shape (token, expert); those that are out become infinite.
    num_groups
        Equal groups of neighbouring experts.
    topk_group
        Groups that stay.
    """
    by_group = race.reshape(race.shape[0], num_groups, -1)
    best = min(2, by_group.shape[2])
    fastest = np.partition(by_group, best - 1, axis=2)[:, :, :best]
    with np.errstate(divide="ignore"):
        score = -np.log(fastest).sum(axis=2)
    out = np.argsort(-score, axis=1, kind="stable")[:, topk_group:]
    np.put_along_axis(by_group, out[:, :, None], np.inf, axis=1)
