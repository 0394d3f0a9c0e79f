"""Rules by which a serving engine makes iterations out of requests.

They are those of vLLM's V1 scheduler (``vllm/v1/core/sched/scheduler.py``) and of SGLang's
(``sglang/srt/managers/schedule_policy.py``), less what needs the text of prompts (prefix caching)
or priorities. INFERENCE.md says which is whose.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from replay.errors import UserError, shown, unknown
from tracegen.shared.strict import StrictDocument

Ints = npt.NDArray[np.int64]

Policy = Literal["mixed", "prefill-first", "whole-prompts"]
"""*mixed*: all running requests are decoded in every iteration, and what is left of its tokens goes
to pieces of prompts (vLLM V1; SGLang with ``--enable-mixed-chunk``). *prefill-first*: an iteration
prefills as long as a request waits that fits, and decodes otherwise; prompts are cut where the
tokens of an iteration end (SGLang). *whole-prompts*: likewise, and prompts are not cut; one that is
longer than an iteration has one of its own (SGLang with ``--chunked-prefill-size -1``)."""

Router = Literal["round-robin", "least-requests", "least-waiting"]
"""To which worker a request goes that arrives: to each in turn (SGLang); where the fewest requests
wait and run; where 4 x waiting + running is least (vLLM). The first of several equal ones."""


ROUNDING = 1e-9
"""Of tokens and steps, as floats."""


class Settings(StrictDocument):
    """Settings whose mistakes are the user's; `called` is what a message calls them."""

    called: ClassVar[str]

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _mistake(type(self), error) from None


class Batching(Settings):
    """How a worker batches.

    Raises
    ------
    UserError
        If a setting does not exist or is not possible.
    """

    called: ClassVar[str] = "batching"

    policy: Policy = Field("mixed", description="mixed, prefill-first or whole-prompts.")
    cache_tokens: int = Field(ge=1, description="Positions that a worker's cache holds.")
    block: int = Field(16, ge=1, description="Positions of a block of the cache.")
    max_batched_tokens: int = Field(
        8192, ge=1, description="Tokens of an iteration; of its prefills, where these come first."
    )
    max_requests: int = Field(256, ge=1, description="Requests that run on a worker at a time.")
    reserve: float = Field(
        0.0,
        ge=0,
        le=1,
        description=(
            "Share of the output still to come, of running requests and the next, that must "
            "fit beside its prompt before it is taken in. 1: none is ever put back."
        ),
    )

    @property
    def blocks(self) -> int:
        """Blocks of a worker's cache."""
        return self.cache_tokens // self.block

    def blocks_of(self, positions: int) -> int:
        """Blocks that hold the positions of one request."""
        return -(-positions // self.block)


class Speculation(Settings):
    """Drafts that are verified with each decoded token (Leviathan et al., arXiv 2211.17192).

    Drafts are accepted one after another, each with the same probability, until the first that is
    not; one token more is the model's own. The cost of drafting itself is not part of it.
    """

    called: ClassVar[str] = "speculation"

    drafts: int = Field(ge=1, le=64, description="Tokens drafted per step.")
    acceptance: float = Field(ge=0, le=1, description="Probability that a draft is accepted.")
    is_sampled: bool = Field(True, description="Drawn for every step; else their mean, evenly.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of the random numbers.")

    @property
    def mean(self) -> float:
        """Tokens of a step in the mean: (1 - a^(d+1)) / (1 - a)."""
        return sum(self.acceptance**i for i in range(self.drafts + 1))

    def tokens(self, request: Ints, generated: Ints) -> Ints:
        """Tokens of a step of every request.

        What is drawn depends on the request and on how much is generated of it, not on when or
        beside whom it is decoded, so that schemes and rates are compared on the same draws.

        Parameters
        ----------
        request
            (request,): number of the request.
        generated
            (request,): tokens generated before, 1 or more.
        """
        if self.is_sampled:
            drawn = _uniform(self.seed, request, generated)
            accepted = [drawn < self.acceptance**i for i in range(1, self.drafts + 1)]
            sampled: Ints = np.sum(accepted, axis=0, dtype=np.int64) + np.ones_like(generated)
            return sampled
        # Behind s steps there are 1 + floor(s * mean): the next s is the first that adds a token.
        # A multiple that is whole may be a little less as a float, and a token would be lost.
        steps = np.ceil(generated / self.mean - ROUNDING)
        after = np.floor(steps * self.mean + ROUNDING).astype(np.int64)
        evenly: Ints = np.maximum(after - generated + 1, 1)
        return evenly


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


def _mistake(kind: type[Settings], error: ValidationError) -> UserError:
    first = error.errors(include_url=False)[0]
    word, given = str(first["loc"][0]), first["input"]
    if first["type"] == "extra_forbidden":
        return unknown(f"setting of {kind.called}", word, kind.model_fields)
    if first["type"] == "missing":
        return UserError(f"{kind.called} needs {word}")
    return UserError(f"{kind.called}: {word} = {shown(given)}: {first['msg'].lower()}")
