"""Rules by which a serving engine makes iterations out of requests.

They are those of vLLM's V1 scheduler (``vllm/v1/core/sched/scheduler.py``) and of SGLang's
(``sglang/srt/managers/schedule_policy.py``), less what needs the text of prompts (prefix caching)
or priorities. INFERENCE.md says which is whose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Ints

Policy = Literal["mixed", "prefill-first", "whole-prompts"]
"""*mixed*: all running requests are decoded in every iteration, and what is left of its tokens goes
to pieces of prompts (vLLM V1; SGLang with ``--enable-mixed-chunk``). *prefill-first*: an iteration
prefills as long as a request waits that fits, and decodes otherwise; prompts are cut where the
tokens of an iteration end (SGLang). *whole-prompts*: likewise, and prompts are not cut; one that is
longer than an iteration has one of its own (SGLang with ``--chunked-prefill-size -1``)."""

Router = Literal["round-robin", "least-requests", "least-waiting"]
"""To which worker a request goes that arrives: to each in turn (SGLang); where the fewest requests
wait and run; where 4 x waiting + running is least (vLLM). The first of several equal ones."""


@dataclass(frozen=True)
class BatchRule:
    """Rule by which a worker batches.

    Attributes
    ----------
    cache_tokens, block
        Positions that a worker's cache holds, and those of a block of it.
    max_batched_tokens
        Tokens of an iteration; of its prefills, where these come first.
    max_requests
        Requests that run on a worker at a time.
    reserve
        Share of the output still to come, of running requests and the next, that must fit beside
        its prompt before it is taken in. 1: none is ever put back.
    """

    cache_tokens: int
    max_batched_tokens: int
    max_requests: int
    policy: Policy = "mixed"
    block: int = 16
    reserve: float = 0.0

    @property
    def blocks(self) -> int:
        """Blocks of a worker's cache."""
        return self.cache_tokens // self.block

    def blocks_of(self, positions: int) -> int:
        """Blocks that hold the positions of one request."""
        return -(-positions // self.block)


@dataclass(frozen=True)
class Drafts:
    """Speculative decoding: tokens that are proposed, and verified with each decoded token.

    Drafts are accepted one after another, each with the same probability, until the first that is
    not; one token more is the model's own (Leviathan et al., arXiv 2211.17192).

    Attributes
    ----------
    count
        Proposed per iteration.
    acceptance
        Probability that one is right if those before it are, from 0 to 1.
    seed
        Of the random numbers.
    """

    count: int = 0
    acceptance: float = 0.0
    seed: int = 0

    @property
    def queries(self) -> int:
        """Tokens that a decoded request brings to an iteration."""
        return self.count + 1

    @property
    def tokens_per_step(self) -> float:
        """Tokens that an iteration adds to a request, mean (equation 1 of the paper)."""
        if self.acceptance == 1:
            return self.count + 1.0
        return (1 - self.acceptance ** (self.count + 1)) / (1 - self.acceptance)

    def tokens(self, request: Ints, generated: Ints) -> Ints:
        """Draw the tokens of a step of every request.

        What is drawn depends on the request and on how much is generated of it, not on when or
        beside whom it is decoded, so that schemes and rates are compared on the same draws.

        Parameters
        ----------
        request
            (request,): number of the request.
        generated
            (request,): tokens generated before, 1 or more.
        """
        drawn = _uniform(self.seed, request, generated)
        accepted = [drawn < self.acceptance**i for i in range(1, self.count + 1)]
        sampled: Ints = np.sum(accepted, axis=0, dtype=np.int64) + np.ones_like(generated)
        return sampled


NO_DRAFTS = Drafts()


def _uniform(seed: int, request: Ints, generated: Ints) -> npt.NDArray[np.float64]:
    """(request,): numbers from 0 to 1, by SplitMix64 (Steele et al., OOPSLA 2014) of all three."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = np.full(request.shape, seed, np.uint64)
    for value in (request, generated):
        state = (state ^ value.astype(np.uint64)) + golden
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
