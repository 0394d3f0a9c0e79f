"""Whether a replay fits into memory: found out before it starts, from one of some of its tokens.

Tasks grow with the tokens, the layers and the passes. Memory follows from the tasks by the
constants of `replay.experiments.base.estimate`, time from what the sample took on this machine;
neither enters a result.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from replay.experiments.base.estimate import (
    LONG_SECONDS,
    Size,
    UnfitError,
    duration_text,
    size_text,
)
from replay.model.work.transformer_layer import Enter, Leave, layer_of

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.experiments.dense.setup import Setup

SAMPLE_TOKENS = 8192
"""Tokens of a sample, about."""
SURE_TOKENS = 4 * SAMPLE_TOKENS
"""Tokens of all layers and passes that fit anywhere: 5 million tasks of CAIS with 8192 values."""


class Need(NamedTuple):
    """What a replay takes: tasks, bytes of memory, and seconds on one core."""

    num_tasks: float
    num_bytes: float
    seconds: float


def check_fit(
    setups: Sequence[Setup],
    scheduled: Callable[[Setup], Timeline],
    most: float,
    report: Callable[[str], object] | None = None,
) -> None:
    """Refuse replays of which one needs more memory than there is, before the first begins.

    Parameters
    ----------
    scheduled
        Schedules the layers of a setup.
    most
        Bytes that one may take.
    report
        Told in a line what long replays take.

    Raises
    ------
    UnfitError
        Saying what it needs, what is there and what would fit.
    """
    needs = []
    for setup in setups:
        if (need := _need(setup, scheduled)) is None:
            continue
        needs.append(need)
        if need.num_bytes > most:
            tokens = _tokens_of_all(setup)
            message = (
                f"scheme {setup.scheme.name!r}: {tokens:,} tokens of all layers and passes take "
                f"about {size_text(need.num_bytes)} of memory; there are {size_text(most)}. What "
                f"fits: about {int(tokens * most / need.num_bytes):,} (--tokens, --layers)"
            )
            raise UnfitError(message)
    seconds = sum(need.seconds for need in needs)
    if report and seconds >= LONG_SECONDS:
        size = size_text(max(need.num_bytes for need in needs))
        report(f"about {size} of memory and {duration_text(seconds)}")


def _tokens_of_all(setup: Setup) -> int:
    return setup.sizes.tokens * setup.spec.layers * len(setup.layers)


def _need(setup: Setup, scheduled: Callable[[Setup], Timeline]) -> Need | None:
    """What a replay takes; None where it surely fits."""
    return None if _tokens_of_all(setup) <= SURE_TOKENS else _sampled(setup, scheduled)


def in_words(setup: Setup, scheduled: Callable[[Setup], Timeline]) -> tuple[str, str, str]:
    """Tasks, memory and time of a replay, from one of some of its tokens."""
    need = _sampled(setup, scheduled)
    return f"{round(need.num_tasks):,}", size_text(need.num_bytes), duration_text(need.seconds)


def _sampled(setup: Setup, scheduled: Callable[[Setup], Timeline]) -> Need:
    """What a replay takes, from one of some of its tokens."""
    sample = _sample_of(setup)
    began = time.process_time()
    graph = scheduled(sample).graph
    seconds = time.process_time() - began
    factor = _tokens_of_all(setup) / _tokens_of_all(sample)
    size = Size.of(graph, _rows(sample))
    return Need(graph.num_tasks * factor, size.num_bytes * factor, seconds * factor)


def _rows(setup: Setup) -> int:
    """Rows of all products of all GPUs, each of which its product knows one by one."""
    return setup.num_ranks * sum(
        step.product.rows
        for layer in setup.layers
        for step in layer.steps * setup.spec.layers
        if isinstance(step, Enter | Leave)
    )


def _sample_of(setup: Setup) -> Setup:
    """One layer, with as many of its tokens as GPUs can share equally."""
    n = setup.num_ranks
    tokens = min(setup.sizes.tokens, max(SAMPLE_TOKENS // n, 1) * n)
    sizes = dataclasses.replace(
        setup.sizes, tokens=tokens, sequence=min(setup.sizes.sequence, tokens)
    )
    layers = tuple(
        layer_of(setup.shape, n, sizes, is_backward=one.is_backward, part=setup.spec.part)
        for one in setup.layers
    )
    return dataclasses.replace(setup, spec=setup.spec.changed(layers=1), sizes=sizes, layers=layers)
