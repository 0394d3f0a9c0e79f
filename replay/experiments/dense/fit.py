"""Cost of a replay, found before it starts, from one of some of its tokens.

Tasks grow with the tokens, the layers and the passes. Memory follows from the tasks by the
constants of `replay.experiments.base.estimate`, time from what the sample took on this machine;
neither enters a result.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.experiments.base.estimate import Need, Size
from replay.experiments.dense.replay import replay_layers
from replay.model.work.transformer_layer import Enter, Leave, layer_of

if TYPE_CHECKING:
    from replay.experiments.dense.setup import DenseSetup

SAMPLE_TOKENS = 8192
"""Tokens of a sample, about."""
SURE_TOKENS = 4 * SAMPLE_TOKENS
"""Tokens of all layers and passes that fit into `SURE_BYTES`: with CAIS and 8192 values they are
6 million tasks, about 1 GB."""
SURE_BYTES = 2 << 30
LONG_TOKENS = 400_000
"""Tokens of all replays from which they take long enough to say so: 0.13 ms of CPU each under 12 schemes, where the
C++ heap loop of tests/bench takes 270 ms."""


@dataclass(frozen=True)
class TensorNeed(Need):
    """Cost of a replay, which grows with the tokens of all layers and passes.

    Attributes
    ----------
    tokens
        Tokens of all layers and passes.
    sample, sample_seconds
        What the graph of a sample holds, and what it took.
    factor
        Tokens over those of the sample.
    """

    unit = "tokens"

    scheme: str
    tokens: int
    sample: Size
    sample_seconds: float
    factor: float

    @property
    def number(self) -> int:
        """Tokens of all layers and passes."""
        return self.tokens

    @property
    def tasks(self) -> float:
        """Tasks of all tokens."""
        return self.sample.tasks * self.factor

    @property
    def memory_bytes(self) -> float:
        """Memory of the whole graph."""
        return self.sample.num_bytes * self.factor

    @property
    def seconds(self) -> float:
        """Time of all tokens."""
        return self.sample_seconds * self.factor

    def what_fits(self, most_bytes: float) -> str:
        """As many tokens as there is memory."""
        fit = int(self.tokens * most_bytes / self.memory_bytes)
        return f"about {fit:,} tokens of all layers and passes (--tokens, --layers)"


def tokens_of_all(setup: DenseSetup) -> int:
    """Count tokens of all layers and passes."""
    return setup.sizes.tokens * setup.spec.layers * len(setup.layers)


def estimate_of(setup: DenseSetup) -> TensorNeed:
    """Find out what a replay takes, by one of some of its tokens."""
    sample = _sample_of(setup)
    began = time.process_time()
    graph = replay_layers(sample, sample.scheme)[2].graph
    seconds = time.process_time() - began
    tokens = tokens_of_all(setup)
    size = Size.of(graph, rows_of(sample))
    return TensorNeed(setup.scheme.name, tokens, size, seconds, tokens / tokens_of_all(sample))


def rows_of(setup: DenseSetup) -> int:
    """Rows of all products of all GPUs, each of which its product knows one by one."""
    return setup.num_ranks * sum(
        step.product.rows
        for layer in setup.layers
        for step in layer.steps * setup.spec.layers
        if isinstance(step, Enter | Leave)
    )


def _sample_of(setup: DenseSetup) -> DenseSetup:
    """One layer, with as many of its tokens as GPUs can share equally."""
    n = setup.num_ranks
    tokens = min(setup.sizes.tokens, max(SAMPLE_TOKENS // n, 1) * n)
    sizes = dataclasses.replace(setup.sizes, tokens=tokens, sequence=min(setup.sizes.sequence, tokens))
    layers = tuple(
        layer_of(setup.shape, n, sizes, is_backward=one.is_backward, part=setup.spec.part) for one in setup.layers
    )
    return dataclasses.replace(setup, spec=setup.spec.changed(layers=1), sizes=sizes, layers=layers)
