"""Traces and systems that many tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

import hwmodel
import tracegen


@cache
def _system(num_ranks: int) -> hwmodel.System:
    return hwmodel.load("dgx-h100" if num_ranks <= 8 else "gh200-nvl32")


@pytest.fixture(scope="session")
def system_for() -> Callable[[int], hwmodel.System]:
    """A system with at least so many GPUs that supports every scheme."""
    return _system


def _recorded(
    lengths: Sequence[int], *, prompts: Sequence[int] | None = None, shuffled: bool = False
) -> tracegen.RoutingTrace:
    """One request after the other, as public traces are: no ranks, one layer, top-2 of 8.

    Request r is numbered 10 + r and has `lengths[r]` tokens, of which `prompts[r]` (none unless
    given) are prefill rows.
    """
    prompts = prompts or [0] * len(lengths)
    request = np.repeat(np.arange(len(lengths)) + 10, lengths)
    position = np.concatenate([np.arange(n) for n in (0, *lengths)])
    phase = np.concatenate(
        [(np.arange(n) >= prompt).astype(np.uint8) for n, prompt in zip((0, *lengths), (0, *prompts), strict=True)]
    )
    if shuffled:
        order = np.random.default_rng(7).permutation(len(request))
        request, position, phase = request[order], position[order], phase[order]
    count = len(request)
    ids = np.stack([np.arange(count) % 8, (np.arange(count) + 3) % 8], axis=1).astype(np.uint8)
    return tracegen.RoutingTrace(
        model=tracegen.TraceModel(num_experts=8, top_k=2, hidden_size=64, model_id="by hand"),
        moe_layer_index=np.array([0], np.uint16),
        expert_ids=ids[None],
        tokens=tracegen.TokenTable(
            step=np.arange(count, dtype=np.uint32),
            request=request.astype(np.uint32),
            position=position.astype(np.uint32),
            phase=phase,
        ),
        steps_indptr=np.arange(count + 1, dtype=np.uint64),
    )


@pytest.fixture(scope="session")
def recorded() -> Callable[..., tracegen.RoutingTrace]:
    """Make a trace without ranks from the lengths of its requests."""
    return _recorded


@pytest.fixture(scope="session")
def synthetic() -> Callable[..., tracegen.RoutingTrace]:
    """Make a trace that carries ranks: OLMoE's 64 experts, top-8, two layers."""

    @cache
    def make(ranks: int = 4, tokens_per_rank: int = 6, kind: str = "uniform", **more: object) -> tracegen.RoutingTrace:
        settings = {"layers": 2, "seed": 3, **more}
        return tracegen.generate.generate(kind, "olmoe-1b-7b", ranks=ranks, tokens_per_rank=tokens_per_rank, **settings)

    return make
