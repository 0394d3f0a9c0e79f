"""Some of the nodes replayed in full in place of all: which, when, and how good that is.

`replay.work.thinned` says which nodes these are and what is left of the others, and
`replay.machine.mirror` what is taken for what the others do. Here it is asked for, refused where it
does not hold, and its error is stated: that of exact replays of all nodes beside it, which
``node_errors.csv`` lists and ``scripts/node_errors.py`` makes anew.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.errors import UserError
from replay.machine.domains import Domains
from replay.schemes.base import LayerRefusedError
from replay.work.thinned import choose, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmodel import System
    from replay.machine.machine import Machine
    from replay.machine.resources import Ints
    from replay.run.chain import ChainLink
    from replay.run.spec import RunSpec
    from replay.schemes import Scheme
    from replay.work.layer import LayerWork

MOST_LOST = 0.01
"""Share of the messages into the sampled nodes that may be without a counterpart."""


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
def error_of(scheme: str) -> NodeError:
    """Error of the replay of some nodes under a scheme, as it was measured."""
    text = (resources.files("replay.run") / "node_errors.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    own = [row for row in rows if row["scheme"] == scheme]
    errors = [abs(float(row["sampled_us"]) / float(row["whole_us"]) - 1) for row in own or rows]
    return NodeError(
        largest=max(errors),
        mean=sum(errors) / len(errors),
        replays=len(errors),
        most_gpus=max(int(row["gpus"]) for row in own or rows),
        is_own=bool(own),
    )


def check_nodes(spec: RunSpec, system: System, num_ranks: int, *, is_chain: bool) -> None:
    """Refuse a sample of the nodes where it means nothing.

    Raises
    ------
    UserError
        Saying why, and what there is.
    """
    if spec.sample_nodes is None:
        return
    domains, asked = Domains(system.fabric, num_ranks), f"--sample-nodes {spec.sample_nodes}"
    message = ""
    if domains.num == 1:
        message = f"{asked}: all {num_ranks} GPUs are in one NVLink domain of {domains.size}"
    elif not domains.even:
        message = f"{asked}: {num_ranks} GPUs are no whole nodes of {domains.size}"
    elif is_chain:
        message = (
            f"{asked}: the busiest nodes differ from layer to layer, so that a chain has no others "
            "to go on with; --layer N replays one, --barrier replays layers by themselves"
        )
    elif spec.interleave != "off":
        message = f"{asked} and --interleave {spec.interleave}: nodes are sampled of whole batches"
    if message:
        raise UserError(message)


def with_sampled_nodes(
    links: Sequence[ChainLink], number: int | None, system: System, num_ranks: int
) -> Sequence[ChainLink]:
    """Let layers have the work of some nodes; all as they are where there are no others."""
    domains = Domains(system.fabric, num_ranks)
    if number is None or number >= domains.num:
        return links
    of_rank = domains.of(np.arange(num_ranks))
    return [
        dataclasses.replace(link, work=functools.partial(_sampled, link, of_rank, number))
        for link in links
    ]


def _sampled(link: ChainLink, of_rank: Ints, number: int) -> LayerWork:
    work = link.work()
    return thinned(work, choose(work, of_rank, number))


def check_mirrored(machine: Machine, scheme: Scheme) -> None:
    """Refuse a scheme whose messages are not alike from node to node.

    Raises
    ------
    LayerRefusedError
        Saying how many are without a counterpart.
    """
    mirror = machine.mirror
    if mirror is None or mirror.num_lost <= MOST_LOST * mirror.num_into_sample:
        return
    message = (
        f"scheme {scheme.name!r}: {mirror.num_lost:,} of {mirror.num_into_sample:,} messages into "
        "the sampled nodes have no counterpart among those that these send; replay all nodes"
    )
    raise LayerRefusedError(message)
