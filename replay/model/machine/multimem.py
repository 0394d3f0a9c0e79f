"""Accesses to memory that a group of GPUs has mapped together (``multimem.st``, ``.ld_reduce``).

A store to such an address goes to the switch once, which writes it into the memory of every member;
a load is answered by every member, and the switch adds the answers up. The caller is a member like
any other: its own copy, and its own part of a sum, pass the switch too. Byte counters of H20 show
that (NVIDIA developer forum, thread 356726); accounting that leaves it out is an option of who
calls.

Sources: PTX ISA, ``multimem``; NVIDIA/nccl ``src/device/prims_simple.h``; Megatron-LM
``megatron/core/inference/communication/torch_symm_triton``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import IntsLike, Machine


class MulticastStores(NamedTuple):
    """Multicast stores.

    Attributes
    ----------
    arrived, member
        (copy,): task after which it is visible at a member, and the member's rank.
    left
        (block,): task with which it leaves its owner.
    """

    arrived: Tasks
    member: Ints
    left: Ints


def _members(machine: Machine, owner: Ranks, *, loops: bool) -> tuple[Ints, Ints]:
    """Copies of each block (copy,): the block, and a rank of its owner's domain that it is on."""
    domains = machine.domains
    group = np.tile(machine.ranks, (len(owner), 1))
    if domains.num > 1:  # which are full: a group of today is one of whole domains
        of = np.stack([domains.members(domain) for domain in range(domains.num)])
        group = of[domains.of(owner)]
    block, rank = np.repeat(np.arange(len(owner)), group.shape[1]), group.ravel()
    keep = loops | (rank != owner[block])
    return block[keep], rank[keep]


def multicast(
    machine: Machine,
    kinds: PhaseKinds,
    owner: Ranks,
    nbytes: IntsLike,
    after: Tasks,
    *,
    rows: IntsLike = 1,
    meta_bytes: IntsLike = 0,
    on: Ints | None = None,
    loops: bool = True,
    first: bool = False,
) -> MulticastStores:
    """Store blocks into every member's memory.

    Parameters
    ----------
    owner
        (block,): who stores it.
    nbytes, rows, meta_bytes
        (block,) or the same for all: payload of a row, rows, and bytes that are not payload.
    after
        (block,): the task of the storing SM.
    on
        (block,): the storing SMs; see `Transfers.store`.
    loops
        Whether the owner's own copy passes the switch.
    first
        See `InSwitch.multicast`.
    """
    block, member = _members(machine, owner, loops=loops)
    left, arrived = machine.switch.multicast(
        kinds,
        owner,
        block,
        member,
        nbytes,
        after,
        rows=rows,
        meta_bytes=meta_bytes,
        on=on,
        first=first,
    )
    return MulticastStores(arrived, member, left)


def reduce(
    machine: Machine,
    kinds: PhaseKinds,
    owner: Ranks,
    nbytes: IntsLike,
    after: Tasks,
    *,
    rows: IntsLike = 1,
    loops: bool = True,
    payload: bool = True,
    requests_first: bool = False,
) -> Tasks:
    """Load the sums of all members' blocks: (block,) tasks, visible in the owner's SM.

    Parameters
    ----------
    payload
        Whether the bytes are token rows.
    requests_first
        See `Transfers.load`.

    See Also
    --------
    multicast : the other parameters.
    """
    block, member = _members(machine, owner, loops=loops)
    return machine.switch.reduce(
        kinds,
        owner,
        block,
        member,
        nbytes,
        after,
        rows=rows,
        payload=payload,
        requests_first=requests_first,
    ).total
