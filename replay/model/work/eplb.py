"""Placement of experts in slots by their loads: DeepSeek's EPLB, and a greedy rule.

A *slot* is room for the weights of one expert on one GPU. There are at least as many slots as
experts; an expert in several slots has *replicas*, among which its rows are divided
(`replay.model.work.replicas`). Slot s of S lies on GPU floor(s G / S).

Sources: deepseek-ai/EPLB, README (inputs, outputs, both policies and the worked example that the
tests check) and eplb.py for the order in which ties are decided.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from replay.errors import UserError
from replay.model.arrays import Ints

Loads = npt.NDArray[np.int64] | npt.NDArray[np.float64]

MOST_SLOTS = 2**16
"""Slots of a layer, of which no engine has more than a few thousand; each is placed by itself."""


def rebalance_experts(loads: Loads, num_slots: int, num_groups: int, num_nodes: int, num_gpus: int) -> Ints:
    """Place the experts of a layer as DeepSeek's EPLB does: (slot,) experts, ``phy2log``.

    Where the nodes divide the groups of experts, groups are dealt to nodes, experts are replicated
    within their node, and slots are dealt to the GPUs of the node (the hierarchical policy).
    Otherwise experts are replicated and dealt to GPUs whatever their group (the global policy).

    Parameters
    ----------
    loads
        (expert,): rows of each expert, or an estimate of them.
    num_slots
        Slots of all GPUs.
    num_groups
        Groups of experts that group-limited routing chooses from; 1 without such.
    num_nodes, num_gpus
        Servers, and GPUs of all of them.

    Raises
    ------
    UserError
        If slots, groups, nodes and GPUs do not divide each other as the policy needs it.
    """
    num_experts = len(loads)
    check_slots(num_slots, num_experts, num_gpus)
    if num_groups < 1 or num_experts % num_groups:
        message = f"{num_groups} groups do not divide {num_experts} experts"
        raise UserError(message)
    check_nodes(num_nodes, num_gpus)
    if num_groups % num_nodes:
        num_groups = num_nodes = 1
    group_size = num_experts // num_groups
    group_load = loads.reshape(num_groups, group_size).sum(axis=1)
    nodes = [
        (groups[:, None] * group_size + np.arange(group_size)).ravel() for groups in pack_items(group_load, num_nodes)
    ]
    return within_nodes(loads, nodes, num_slots, num_gpus)


def greedy(loads: Loads, num_slots: int, num_gpus: int) -> Ints:
    """Replicate the hottest experts, deal slots to the GPU with the least load: (slot,) experts.

    Replicas are made as EPLB makes them. Slots are dealt from the heaviest down, each to the least
    loaded GPU with room that has no replica of the expert yet, if there is one; EPLB's packing does
    not ask where the other replicas are.

    Parameters
    ----------
    loads, num_slots, num_gpus
        As in `rebalance_experts`.

    Raises
    ------
    UserError
        If there are fewer slots than experts, or GPUs do not divide the slots.
    """
    check_slots(num_slots, len(loads), num_gpus)
    experts = replicate(loads, num_slots)
    share = (loads / np.bincount(experts, minlength=len(loads)))[experts]
    held: list[list[int]] = [[] for _ in range(num_gpus)]
    total = np.zeros(num_gpus)
    for slot in np.argsort(-share, kind="stable").tolist():
        expert = int(experts[slot])
        free = [gpu for gpu in range(num_gpus) if len(held[gpu]) < num_slots // num_gpus]
        gpu = min(free, key=lambda one: (expert in held[one], total[one], one))
        held[gpu].append(expert)
        total[gpu] += share[slot]
    return np.array([expert for gpu in held for expert in sorted(gpu)], np.int64)


def check_nodes(num_nodes: int, num_gpus: int) -> None:
    """Refuse nodes that have different numbers of GPUs.

    Raises
    ------
    UserError
        Saying so.
    """
    if num_nodes < 1 or num_gpus % num_nodes:
        message = f"{num_nodes} nodes do not divide {num_gpus} GPUs"
        raise UserError(message)


def check_slots(num_slots: int, num_experts: int, num_gpus: int) -> None:
    """Refuse a number of slots that cannot hold all experts, or differs from GPU to GPU.

    Raises
    ------
    UserError
        Naming the nearest number that is possible.
    """
    if num_slots < num_experts or num_slots % num_gpus:
        least = -(-max(num_slots, num_experts) // num_gpus) * num_gpus
        message = (
            f"{num_slots} slots on {num_gpus} GPUs for {num_experts} experts: expected a multiple "
            f"of {num_gpus} that is at least {num_experts}, such as {least}"
        )
        raise UserError(message)
    if num_slots > MOST_SLOTS:
        message = f"{num_slots} slots; a layer has at most {MOST_SLOTS}"
        raise UserError(message)


def within_nodes(load: Loads, nodes: Sequence[Ints], num_slots: int, num_gpus: int) -> Ints:
    """Replicate the experts of each node, and deal their slots to its GPUs: (slot,) experts.

    Parameters
    ----------
    load
        (expert,): rows of each expert.
    nodes
        Experts of each node, which divide slots and GPUs.
    """
    slots = []
    for experts in nodes:
        local = replicate(load[experts], num_slots // len(nodes))
        share = load[experts] / np.bincount(local, minlength=len(experts))
        packs = pack_items(share[local], num_gpus // len(nodes))
        slots += [experts[local[gpu]] for gpu in packs]
    return np.concatenate(slots)


def pack_items(weights: npt.ArrayLike, num_packs: int) -> list[Ints]:
    """Deal items to packs of equal size and nearly equal weight.

    The heaviest item comes first; each goes to the lightest pack that has room. Of packs of equal
    weight the first takes it, as does the first of items of equal weight. Where a pack has one item
    there is nothing to weigh, and item i is pack i.

    Parameters
    ----------
    weights
        (item,).

    Returns
    -------
    Items of each pack, in the order in which they were dealt.
    """
    given = np.asarray(weights, np.float64)
    room = len(given) // num_packs
    if room == 1:
        return list(np.arange(num_packs, dtype=np.int64)[:, None])
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    total = np.zeros(num_packs)
    for item in np.argsort(-given, kind="stable").tolist():
        pack = int(np.argmin(total))
        packs[pack].append(item)
        total[pack] += given[item]
        if len(packs[pack]) == room:
            total[pack] = np.inf
    return [np.array(pack, np.int64) for pack in packs]


def replicate(load: Loads, num_slots: int) -> Ints:
    """(slot,): expert of each slot; all experts once, then the one with most load per replica."""
    count = np.ones(len(load), np.int64)
    slots = list(range(len(load)))
    for _ in range(num_slots - len(load)):
        hottest = int(np.argmax(load / count))
        slots.append(hottest)
        count[hottest] += 1
    return np.array(slots, np.int64)
