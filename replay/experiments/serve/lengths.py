"""Lengths of the requests of a batch, and who has which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.errors import UserError
from replay.experiments.serve.requests import lengths_of

if TYPE_CHECKING:
    from replay.experiments.serve.spec import InferSpec
    from replay.model.machine.machine import Ints
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class BatchLengths:
    """Tokens of requests, which are dealt to workers in turn.

    Attributes
    ----------
    prompt, output
        (request,).
    """

    prompt: Ints
    output: Ints

    def of_workers(self, count: int) -> tuple[list[Ints], list[Ints]]:
        """Prompts and outputs: (worker,) of (request,) each."""
        return (
            [self.prompt[worker::count] for worker in range(count)],
            [self.output[worker::count] for worker in range(count)],
        )

    def prompts_of(self, count: int) -> Ints:
        """(worker,): tokens of all prompts of each."""
        return np.array([one.sum() for one in self.of_workers(count)[0]], np.int64)


def of_batch(spec: InferSpec, trace: RoutingTrace | None, num_gpus: int) -> BatchLengths:
    """Give every request its lengths.

    Raises
    ------
    UserError
        If they are to be those of a trace and there is none.
    """
    count = spec.requests * num_gpus
    if spec.lengths == "even":
        return BatchLengths(np.full(count, spec.prompt), np.full(count, spec.output))
    if trace is None:
        message = "lengths trace: no trace is given, whose requests have lengths"
        raise UserError(message)
    prompt, output = lengths_of(trace)
    behind = np.maximum(output - 1, 1)  # the first is of the prefill
    return BatchLengths(np.resize(prompt, count), np.resize(behind, count))
