"""The scene of a replay: what a picture shows beside tasks; see `replay.engine.export.scene`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.engine.covers import Intervals
from replay.engine.export.scene import Gauge, Journey, Scene, Stage
from replay.errors import UserError
from replay.measure.pools import SMS, Pools
from replay.model.machine.kinds import PHASE_OF_KIND, PHASES
from replay.model.machine.resources import ResourceClass

if TYPE_CHECKING:
    from replay.engine import TaskGraph
    from replay.measure.schedule import ReplayedSchedule
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.machine import Machine
    from replay.model.machine.notes import Way

_OF = ResourceClass
ORDER = (
    _OF.SM,
    _OF.VECTOR,
    _OF.ARBITER,
    _OF.HBM,
    _OF.L2,
    _OF.HUB,
    _OF.UPLINK,
    _OF.DOWNLINK,
    _OF.LINK,
    _OF.HOST,
    _OF.PROXY,
    _OF.PCIE_OUT,
    _OF.NIC_OUT,
    _OF.LEAF_UP,
    _OF.SWITCH,
    _OF.LEAF_DOWN,
    _OF.NIC_IN,
    _OF.PCIE_IN,
    _OF.OTHER,
)
"""Classes of resources in the order in which a GPU's rows are shown: what computes, memory, ports,
the host, and the network in the order of a message's way."""

SHARES = {
    _OF.VECTOR: "vector cores",
    _OF.HBM: "HBM",
    _OF.L2: "L2",
    _OF.UPLINK: "uplink",
    _OF.DOWNLINK: "downlink",
    _OF.NIC_OUT: "NIC out",
    _OF.NIC_IN: "NIC in",
}
"""Classes of which utilisation is drawn over time, by the name that it gets."""


def scene(replayed: ReplayedSchedule, token: int | None = None) -> Scene:
    """Say what is known of a replay's graph.

    Parameters
    ----------
    replayed
        The schedule.
    token
        The token whose way is followed, by its place in the batch; None takes the one that took
        longest from its dispatch, as results name it (of several layers, in any).

    Raises
    ------
    UserError
        If no such token was followed.
    """
    graph, machine = replayed.graph, replayed.machine
    classes = machine.resources.classes(graph)
    place = np.array([ORDER.index(_OF(one)) for one in classes.tolist()], np.int64)
    ways = _ways_of_tokens(replayed)
    gauges = [_sms(graph, machine)]
    gauges += [Gauge.share(name, graph, classes == of) for of, name in SHARES.items() if of in classes]
    if ways.token.size:
        gpus = np.arange(machine.num_ranks)
        spans = Intervals(ways.gpu, ways.begin_ps, ways.finish_ps)
        gauges.append(Gauge.number("tokens", "in flight", gpus, spans))
    return Scene(
        place=place,
        gauges=gauges,
        phases=PHASES,
        phase=PHASE_OF_KIND.astype(np.int64),
        layers=replayed.layers,
        layer=replayed.layer,
        journey=_journey(replayed, ways, token),
        processes=_names(machine),
        shared="switch and network",
    )


def _names(machine: Machine) -> dict[int, str]:
    """Names of GPUs where there are several nodes."""
    if machine.domains.num == 1:
        return {}
    nodes = machine.domains.of(machine.ranks).tolist()
    return {gpu: f"GPU {gpu}, node {node}" for gpu, node in enumerate(nodes)}


def _sms(graph: TaskGraph, machine: Machine) -> Gauge:
    """SMs in service on each GPU, under whatever names kernels hold them."""
    pools = Pools.of(graph, machine)
    is_sm = np.array([group == SMS for group in pools.groups])[pools.pool]
    gpus = np.arange(machine.num_ranks)
    level = np.where(is_sm, pools.pool, -1)
    weight = pools.whole // pools.parts
    return Gauge("SMs", "in use", gpus, np.ones_like(gpus), level, weight, unit=pools.whole)


# ---- tokens --------------------------------------------------------------------------------------


_BOTH: tuple[Way, Way] = ("sent", "combined")


class _Ends(NamedTuple):
    """Tasks of tokens, two (entry,), and whose they are: a number for each layer and token."""

    key: Ints
    task: Ints


class _Ways(NamedTuple):
    """Tokens that were sent and combined in a layer, by layer and then token, all (way,)."""

    layer: Ints
    token: Ints
    gpu: Ints
    begin_ps: Picoseconds
    finish_ps: Picoseconds
    key: Ints
    sent: _Ends
    combined: _Ends


def _ways_of_tokens(replayed: ReplayedSchedule) -> _Ways:
    """Send and combine times of each token in each layer, with its owner."""
    notes = replayed.machine.notes
    both = [(notes.layers_followed(what), *notes.remembered_tasks(what)) for what in _BOTH]
    size = 1 + max(int(tokens.max(initial=-1)) for _, tokens, _ in both)
    sent, combined = (_Ends(layers * size + tokens, tasks) for layers, tokens, tasks in both)
    key = np.intersect1d(sent.key, combined.key)
    if replayed.travels is not None:
        key = key[replayed.travels[key % size]]
    begin = np.full(key.size, np.iinfo(np.int64).max)
    finish = np.full(key.size, -1, np.int64)
    gpu = np.zeros(key.size, np.int64)
    at, task = _places(sent, key)
    np.minimum.at(begin, at, replayed.start_ps[task])
    at, task = _places(combined, key)
    np.maximum.at(finish, at, replayed.visible_ps[task])
    gpu[at] = _gpu_of(replayed.graph, task)
    layer, token = np.divmod(key, max(size, 1))
    return _Ways(layer, token, gpu, begin, finish, key, sent, combined)


def _places(ends: _Ends, key: Ints) -> tuple[Ints, Ints]:
    """Places among keys, and the tasks there; entries of no key are left out."""
    is_known = np.isin(ends.key, key)
    return np.searchsorted(key, ends.key[is_known]), ends.task[is_known]


def _gpu_of(graph: TaskGraph, task: Ints) -> Ints:
    """(task,): the rank that each works for, else the GPU that it is on."""
    rank = graph.rank[task].astype(np.int64)
    resource = graph.resource[task]
    owner = np.where(resource >= 0, graph.resources.owner[np.maximum(resource, 0)], 0)
    return np.where(rank >= 0, rank, owner).astype(np.int64)


def _journey(replayed: ReplayedSchedule, ways: _Ways, token: int | None) -> Journey | None:
    """The way of a token, or of the slowest, through all layers."""
    if token is None:
        if not ways.token.size:
            return None
        token = int(ways.token[np.argmax(ways.finish_ps - ways.begin_ps)])
    of_token = np.flatnonzero(ways.token == token)
    if not of_token.size:
        raise UserError(_unknown(ways, token))
    stages = []
    for way in of_token.tolist():
        mine = [ends.task[ends.key == ways.key[way]] for ends in (ways.sent, ways.combined)]
        number = int(ways.layer[way])
        name = replayed.layers[number] if len(replayed.layers) > 1 else ""
        stages.append(Stage(name, int(ways.gpu[way]), mine[0], mine[1]))
    return Journey(f"token {token}", stages)


def _unknown(ways: _Ways, token: int) -> str:
    """Sentence on a token that was not followed."""
    if not ways.token.size:
        return f"token {token} cannot be followed: this replay follows none"
    known = np.unique(ways.token)
    return f"token {token} takes no way through this replay; {known.size} tokens do, from {known[0]} to {known[-1]}"
