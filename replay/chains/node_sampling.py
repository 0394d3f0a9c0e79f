"""Some of the nodes replayed in full in place of all: which, when, and how good that is.

`replay.model.work.thinned` says which nodes these are and what is left of the others, and
`replay.model.machine.pace` when the others do it. Here it is asked for, refused where it does not
hold, and its error is stated: that of exact replays of all nodes beside it, which
``node_errors.csv`` lists and ``scripts/node_errors.py`` makes anew.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.jitter import OFF
from replay.errors import UserError
from replay.model.machine.domains import Domains
from replay.model.work.thinned import choose, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.settings import ChainSettings
    from replay.model.work.layer import LayerWork


class NodeError(NamedTuple):
    """How far replays of some nodes were from those of all.

    Attributes
    ----------
    largest, mean
        Of the relative errors of the layer's time, without their signs.
    replays
        Exact replays that they are of.
    most_gpus
        GPUs of the largest of these.
    is_own
        Whether they are of the scheme itself; of all schemes in the table otherwise.
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


def check_nodes(settings: ChainSettings, system: System, num_ranks: int, *, is_chain: bool) -> None:
    """Refuse a sample of the nodes where it means nothing.

    Raises
    ------
    UserError
        Saying why, and what there is.
    """
    if settings.sample_nodes is None:
        return
    domains, asked = Domains(system.fabric, num_ranks), f"--sample-nodes {settings.sample_nodes}"
    message, values = "", system.describe()
    if domains.num == 1:
        message = f"{asked}: all {num_ranks} GPUs are in one NVLink domain of {domains.size}"
    elif not domains.even:
        message = f"{asked}: {num_ranks} GPUs are no whole nodes of {domains.size}"
    elif values.get("network.oversubscription", 1) > 1 or values.get("fabric.slow"):
        message = (
            f"{asked}: nodes have to be alike and not in each other's way; leave out "
            "network.oversubscription and fabric.slow, or replay all nodes"
        )
    elif domains.size % settings.expert_tp:
        message = (
            f"{asked}: nodes have to be alike; {settings.expert_tp} GPUs that share an expert do "
            f"not divide the {domains.size} of a node"
        )
    elif is_chain:
        message = (
            f"{asked}: the busiest nodes differ from layer to layer, so that a chain has no others "
            "to go on with; --layer N replays one, --barrier replays layers by themselves"
        )
    elif settings.interleave != "off":
        message = (
            f"{asked} and --interleave {settings.interleave}: nodes are sampled of whole batches"
        )
    elif settings.jitter != OFF:
        given = f"{asked} and --jitter {settings.jitter}"
        message = f"{given}: nodes that are not replayed would never be late"
    if message:
        raise UserError(message)


def with_sampled_nodes(
    links: Sequence[ChainLink], number: int | None, system: System, num_ranks: int
) -> Sequence[ChainLink]:
    """Let layers have the work of some nodes; all as they are where there are no others."""
    domains = Domains(system.fabric, num_ranks)
    if number is None or number >= domains.num:
        return links
    return [
        dataclasses.replace(link, work=functools.partial(_sampled, link, domains, number))
        for link in links
    ]


def _sampled(link: ChainLink, domains: Domains, number: int) -> LayerWork:
    work = link.work()
    ranks = np.arange(work.num_ranks)
    return thinned(work, choose(work, domains.of(ranks), domains.local(ranks), number))
