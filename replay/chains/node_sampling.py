"""Errors of replays that carry out only some of the nodes in full.

`replay.model.work.thinning` says which nodes these are and what is left of the others, and
`replay.model.machine.pace` when the others do it. The error is against exact replays of all nodes.
``node_errors.csv`` lists it, and ``scripts/node_errors.py`` finds it anew.
"""

from __future__ import annotations

import csv
import functools
from importlib import resources
from typing import NamedTuple


class NodeError(NamedTuple):
    """Error of replays of some nodes against those of all.

    Attributes
    ----------
    largest, mean
        Largest and mean relative error of the layer's time, without sign, as shares.
    replays
        Number of exact replays compared with.
    most_gpus
        GPUs of the largest of these replays.
    is_own
        Whether these replays are of the scheme itself, not of all schemes in the table.
    """

    largest: float
    mean: float
    replays: int
    most_gpus: int
    is_own: bool


@functools.cache
def error_of(scheme: str, num_sampled: int) -> NodeError:
    """Error of the replay of so many nodes under a scheme, or of the most that were measured."""
    text = (resources.files("replay.chains") / "node_errors.csv").read_text("utf-8")
    every = list(csv.DictReader(text.splitlines()))
    most = min(num_sampled, max(int(row["sampled_nodes"]) for row in every))
    rows = [row for row in every if int(row["sampled_nodes"]) == most]
    own = [row for row in rows if row["scheme"] == scheme]
    errors = [abs(float(row["sampled_us"]) / float(row["whole_us"]) - 1) for row in own or rows]
    return NodeError(
        largest=max(errors),
        mean=sum(errors) / len(errors),
        replays=len(errors),
        most_gpus=max(int(row["gpus"]) for row in own or rows),
        is_own=bool(own),
    )
