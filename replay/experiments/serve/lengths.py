"""Lengths of the requests of a batch, and who has which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.errors import UserError
from replay.model.work.batch import DECODE_ROW

if TYPE_CHECKING:
    from replay.experiments.serve.spec import InferSpec
    from replay.model.machine.machine import Ints
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class Lengths:
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


def lengths_of(spec: InferSpec, trace: RoutingTrace | None, num_gpus: int) -> Lengths:
    """Give every request its lengths.

    Raises
    ------
    UserError
        If they are to be those of a trace and there is none.
    """
    count = spec.requests * num_gpus
    if spec.lengths == "even":
        return Lengths(np.full(count, spec.prompt), np.full(count, spec.output))
    if trace is None:
        message = "lengths trace: no trace is given, whose requests have lengths"
        raise UserError(message)
    prompt, output = recorded(trace)
    return Lengths(np.resize(prompt, count), np.resize(output, count))


def recorded(trace: RoutingTrace) -> tuple[Ints, Ints]:
    """Prompts and outputs of a trace's requests: (request,) tokens, at least one each.

    A prompt is as long as the position of the first decoded token, which is also known where a
    trace holds decoded tokens alone.
    """
    _, request = np.unique(trace.tokens.request, return_inverse=True)
    num, position = int(request.max(initial=-1)) + 1, trace.tokens.position.astype(np.int64)
    is_decoded = trace.tokens.phase == DECODE_ROW
    output = np.bincount(request[is_decoded], minlength=num)
    first = np.full(num, np.iinfo(np.int64).max)
    np.minimum.at(first, request[is_decoded], position[is_decoded])
    rows = np.bincount(request[~is_decoded], minlength=num)
    return np.maximum(np.where(output > 0, first, rows), 1), np.maximum(output, 1)
