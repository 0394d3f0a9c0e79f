"""Small layers to replay: ordinary ones, and every way in which one can be degenerate."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.work.expert_slices import slice_experts
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import Placement, place
from replay.schemes.contract.byte_counts import RoutingLists

SHAPE = ExpertShape(hidden=96, intermediate=64)

Ids = npt.NDArray[np.int32]


def draw(num_tokens: int, num_experts: int, k: int, *, skew: float = 0.0, groups: int = 1, seed: int = 0) -> Ids:
    """Distinct experts per token: weights 1 / (1 + e)^skew; from half of the groups if several."""
    rng = np.random.default_rng(seed)
    score = rng.gumbel(size=(num_tokens, num_experts))
    score -= skew * np.log1p(np.arange(num_experts))
    if groups > 1:
        by_group = rng.random((num_tokens, groups))
        closed = by_group < np.sort(by_group, axis=1)[:, [groups // 2]]
        score[np.repeat(closed, num_experts // groups, axis=1)] = -np.inf
    return np.argsort(-score, axis=1)[:, :k].astype(np.int32)


def work(
    ids: Ids,
    num_ranks: int,
    num_experts: int,
    *,
    tokens_of_rank: list[int] | None = None,
    placement: str | list[int] = "contiguous",
    precision: str | Precision = "bf16",
    shape: ExpertShape = SHAPE,
    is_backward: bool = False,
) -> LayerWork:
    """A layer; tokens are shared out evenly unless stated."""
    if tokens_of_rank is None:
        owner = np.arange(len(ids)) * num_ranks // max(len(ids), 1)
    else:
        owner = np.repeat(np.arange(num_ranks), tokens_of_rank)
    placed = (
        place(placement, num_experts, num_ranks)
        if isinstance(placement, str)
        else Placement(np.array(placement, np.int32), num_ranks, "by hand")
    )
    types = Precision(precision) if isinstance(precision, str) else precision
    return LayerWork(ids, owner.astype(np.int32), placed, shape, types, is_backward=is_backward)


def routing_of(layer: LayerWork, domain_size: int | None = None) -> RoutingLists:
    """The routing that was given to the layer, as plain lists."""
    return RoutingLists(
        layer.expert_ids.tolist(),
        layer.source_rank.tolist(),
        layer.placement.expert_rank.tolist(),
        layer.num_ranks,
        domain_size,
    )


def _slice(ids: Ids, num_groups: int, num_experts: int, num_slices: int, *, is_backward: bool = False) -> LayerWork:
    """A layer whose experts are placed on groups of ranks, each rank with a slice of them."""
    groups = place("round-robin", num_experts, num_groups)
    chosen, placed, shape = slice_experts(ids, groups, SHAPE, num_slices)
    owner = np.arange(len(ids), dtype=np.int32) * placed.num_ranks // len(ids)
    return LayerWork(chosen, owner, placed, shape, Precision("bf16"), is_backward=is_backward)


def _empty(ids: Ids, share: float) -> Ids:
    holes = ids.copy()
    holes[np.random.default_rng(5).random(ids.shape) < share] = -1
    return holes


#: Ordinary layers on up to 8 GPUs.
ORDINARY: dict[str, Callable[[], LayerWork]] = {
    "uniform 2 ranks": lambda: work(draw(10, 4, 2), 2, 4),
    "uniform 4 ranks": lambda: work(draw(40, 16, 4), 4, 16),
    "uniform 8 ranks fp8": lambda: work(draw(64, 32, 8), 8, 32, precision="fp8"),
    "zipf 8 ranks": lambda: work(draw(96, 64, 6, skew=1.2), 8, 64),
    "zipf 4 ranks fp8": lambda: work(draw(50, 8, 2, skew=1.0), 4, 8, precision="fp8"),
    "zipf 4 ranks fp32": lambda: work(draw(50, 8, 2, skew=1.0), 4, 8, precision="fp32"),
    "fp8 rows into bf16 GEMMs": lambda: work(draw(40, 16, 4), 4, 16, precision=Precision("fp8", gemm="bf16")),
    "bf16 rows into fp8 GEMMs, fp32 rows back": lambda: work(
        draw(40, 16, 4), 4, 16, precision=Precision("bf16", gemm="fp8", combine="fp32")
    ),
    "one expert a rank": lambda: work(draw(30, 4, 2), 4, 4),
    "groups": lambda: work(draw(48, 32, 4, groups=8), 8, 32),
    "round robin": lambda: work(draw(40, 16, 4), 4, 16, placement="round-robin"),
    "random placement": lambda: work(draw(40, 16, 4, skew=0.8), 4, 16, placement="random:3"),
    "experts do not divide": lambda: work(draw(33, 10, 3), 3, 10),
    "several tiles": lambda: work(draw(600, 4, 2, skew=0.5), 2, 4),
    "odd row": lambda: work(draw(24, 8, 3), 4, 8, shape=ExpertShape(100, 40, gated=False)),
    "experts in two slices": lambda: _slice(_empty(draw(41, 6, 3, skew=0.8), 0.2), 2, 6, 2),
}

#: Gradients on their way back.
BACKWARD: dict[str, Callable[[], LayerWork]] = {
    "backward": lambda: work(draw(40, 16, 4), 4, 16, is_backward=True),
    "backward zipf fp8": lambda: work(draw(96, 64, 6, skew=1.2), 8, 64, precision="fp8", is_backward=True),
    "backward fp32": lambda: work(draw(60, 16, 3, skew=0.5), 4, 16, precision="fp32", is_backward=True),
    "backward several tiles": lambda: work(
        draw(600, 4, 2, skew=0.5), 2, 4, shape=ExpertShape(200, 72, gated=False), is_backward=True
    ),
    "backward, uneven ranks": lambda: work(
        draw(30, 8, 2, skew=0.8), 4, 8, tokens_of_rank=[0, 21, 1, 8], is_backward=True
    ),
    "backward, no tokens": lambda: work(draw(0, 8, 2), 4, 8, is_backward=True),
    "backward, experts without tokens": lambda: work(draw(20, 3, 2), 4, 12, is_backward=True),
}

#: Layers in which something is missing or extreme.
DEGENERATE: dict[str, Callable[[], LayerWork]] = {
    "no tokens": lambda: work(draw(0, 8, 2), 4, 8),
    "one gpu": lambda: work(draw(20, 8, 2), 1, 8),
    "one gpu, no tokens": lambda: work(draw(0, 8, 2), 1, 8),
    "one token": lambda: work(draw(1, 8, 2), 4, 8),
    "all to one expert": lambda: work(np.full((200, 1), 5, np.int32), 4, 8),
    "all experts": lambda: work(draw(20, 8, 8), 4, 8),
    "one rank owns all tokens": lambda: work(draw(20, 8, 2), 4, 8, tokens_of_rank=[0, 0, 20, 0]),
    "uneven ranks": lambda: work(draw(44, 16, 4, skew=0.8), 8, 16, tokens_of_rank=[0, 25, 1, 0, 9, 0, 8, 1]),
    "a rank without tokens": lambda: work(draw(20, 8, 2), 3, 8, tokens_of_rank=[11, 0, 9]),
    "experts without tokens": lambda: work(draw(20, 3, 2), 4, 12),
    "one rank has all experts": lambda: work(draw(20, 4, 2), 3, 4, placement=[1, 1, 1, 1]),
    "more ranks than experts": lambda: work(draw(24, 3, 2), 6, 3),
    "own rank only": lambda: work(
        np.repeat(np.arange(4, dtype=np.int32), 5)[:, None], 4, 4, tokens_of_rank=[5, 5, 5, 5]
    ),
    "other ranks only": lambda: work((np.repeat(np.arange(4, dtype=np.int32), 5)[:, None] + 1) % 4, 4, 4),
    "all slots empty": lambda: work(np.full((20, 3), -1, np.int32), 4, 8),
    "some slots empty": lambda: work(_empty(draw(40, 8, 4), 0.5), 4, 8),
}

#: Layers on more GPUs than one board has.
LARGE: dict[str, Callable[[], LayerWork]] = {
    "16 ranks": lambda: work(draw(64, 64, 8, skew=0.6), 16, 64),
    "32 ranks fp8": lambda: work(draw(96, 64, 8), 32, 64, precision="fp8"),
}

ALL = {**ORDINARY, **BACKWARD, **DEGENERATE, **LARGE}

#: Shared experts beside the dispatch.
SHARED: dict[str, Callable[[], LayerWork]] = {
    "shared experts": lambda: work(draw(40, 16, 4), 4, 16).with_shared(48),
    "shared experts fp8": lambda: work(
        draw(300, 8, 2, skew=0.8), 4, 8, tokens_of_rank=[0, 250, 49, 1], precision="fp8"
    ).with_shared(80),
    "backward, shared experts": lambda: work(
        draw(300, 8, 2), 2, 8, shape=ExpertShape(200, 72, gated=False), is_backward=True
    ).with_shared(144),
}

ALL |= SHARED

#: Small enough for the engine's slow twin.
TINY: dict[str, Callable[[], LayerWork]] = {
    "two ranks": lambda: work(draw(6, 4, 2), 2, 4),
    "three ranks, several tiles": lambda: work(draw(130, 2, 1), 3, 2, tokens_of_rank=[60, 60, 10]),
    "skewed": lambda: work(draw(12, 6, 3, skew=1.5), 3, 6),
    "backward": lambda: work(draw(9, 4, 2), 2, 4, is_backward=True),
    "holes": lambda: work(_empty(draw(8, 4, 2), 0.4), 2, 4),
}

#: Four ranks with a token each, five experts per token.
ONE_TOKEN = "one token per rank"
#: Rows of many packets.
WIDE = "wide rows"
#: So many rows of one rank that its ports take longer than all latencies.
ONE_SENDER = "one rank sends much"

#: All layers of the contract by name.
LAYERS: dict[str, Callable[[], LayerWork]] = {
    **ALL,
    **{f"tiny, {name}": make for name, make in TINY.items()},
    ONE_TOKEN: lambda: work(draw(4, 12, 5, seed=3), 4, 12),
    WIDE: lambda: work(draw(60, 8, 3), 4, 8, shape=ExpertShape(1024, 32)),
    ONE_SENDER: lambda: work(draw(1500, 8, 1), 4, 8, tokens_of_rank=[0, 0, 1500, 0], shape=ExpertShape(4096, 16)),
}


class Across(NamedTuple):
    """A layer on several NVLink domains.

    Attributes
    ----------
    domain_size
        GPUs of a domain.
    make
        Makes the layer.
    """

    domain_size: int
    make: Callable[[], LayerWork]


#: Layers on several NVLink domains, for schemes that know a network between them. Some schemes
#: take domains of 8 GPUs only.
ACROSS: dict[str, Across] = {
    "2 domains of 2": Across(2, lambda: work(draw(40, 16, 4), 4, 16)),
    "3 domains of 2, zipf fp8": Across(2, lambda: work(draw(60, 24, 6, skew=1.0), 6, 24, precision="fp8")),
    "2 domains of 3, uneven ranks": Across(
        3,
        lambda: work(_empty(draw(43, 12, 4, skew=0.8), 0.3), 6, 12, tokens_of_rank=[0, 25, 1, 9, 8, 0]),
    ),
    "4 domains of 2, round robin": Across(2, lambda: work(draw(40, 16, 4), 8, 16, placement="round-robin")),
    "3 domains of 1": Across(1, lambda: work(draw(30, 6, 3), 3, 6)),
    "backward, 2 domains of 2": Across(2, lambda: work(draw(40, 16, 4, skew=0.5), 4, 16, is_backward=True)),
    "2 domains of 8": Across(8, lambda: work(draw(96, 64, 8, skew=0.6), 16, 64)),
    "3 domains of 8, fp8": Across(8, lambda: work(draw(72, 48, 6), 24, 48, precision="fp8")),
    "2 domains of 8, uneven ranks": Across(
        8,
        lambda: work(
            draw(67, 32, 4, skew=0.8),
            16,
            32,
            tokens_of_rank=[0, 25, 1, 0, 9, 0, 8, 1, 0, 0, 0, 3, 0, 0, 20, 0],
        ),
    ),
    "2 domains of 8, own domain only": Across(
        8,
        lambda: work(np.repeat([[0, 1], [9, 12]], 20, axis=0).astype(np.int32), 16, 16),
    ),
    "2 domains of 8, other domain only": Across(
        8,
        lambda: work(np.repeat([[9, 12], [0, 1]], 20, axis=0).astype(np.int32), 16, 16),
    ),
    "2 domains of 8, no tokens": Across(8, lambda: work(draw(0, 16, 2), 16, 16)),
    "backward, 2 domains of 8": Across(8, lambda: work(draw(64, 32, 4), 16, 32, is_backward=True)),
    "tiny, 2 domains of 2": Across(2, lambda: work(draw(7, 4, 2), 4, 4)),
    "tiny, 2 domains of 8": Across(8, lambda: work(draw(9, 16, 3), 16, 16)),
}

TINY_NAMES = tuple(f"tiny, {name}" for name in TINY)
#: Layers whose tasks are followed from end to end.
TINY_ACROSS = tuple(name for name in ACROSS if name.startswith("tiny"))
WAITED = (*TINY_NAMES, "all experts", "a rank without tokens", *TINY_ACROSS, "2 domains of 2")
#: Layers that are put into chains.
CHAINED = (
    *("several tiles", "backward several tiles", "one rank owns all tokens", "zipf 8 ranks"),
    *SHARED,
    *("2 domains of 2", "2 domains of 8"),
)
