"""The small kernels before DeepEP's normal kernels between nodes.

They do what those inside a node do (`notify`), and between nodes besides: one thread meets the GPUs
of the same index in all nodes over the NICs, while the others go on. Where a barrier inside the
node follows a fence, the block waits for that thread first, then fences, then meets the node; the
first barrier of a kernel has no fence, so that both go on at once.

=====================  =============================================  ============================
kernel                 barriers                                       beside them, in other blocks
=====================  =============================================  ============================
notify                 nodes | node; counts to the nodes, completed;  tokens of every channel
                       nodes; counts inside the node; fenced node;    counted, by node
                       the host may read; nodes, fenced node
cached notify          nodes | node; rings cleaned; nodes, fenced     nothing
                       node
combine's notify       the same                                       heads walked, from a
                                                                      channel's end
=====================  =============================================  ============================

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/internode.cu`` (``notify_dispatch``,
``cached_notify``); ``barrier_block`` in ``utils.cuh``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.deepep.notify import CACHED_NOTIFY, COMBINE_NOTIFY, COUNT_BYTES, LANES
from replay.schemes.ep.deepep.transport import WarpTransport, others

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

NOTIFY_WARPS = 16  # of a block that counts the tokens of one node
HEAD_NS = 52  # a walking warp's load, test and store of a token's head; fitted to notify times
HEAD_BYTES, LINE_BYTES = 4, 128
WAYS = (Kind.COUNT_UP, Kind.COUNT_DOWN)
WARPS = WarpTransport()


def notify(work: LayerWork, machine: Machine, channels: int, start: Tasks, transport: WarpTransport = WARPS) -> Tasks:
    """Exchange counts, and launch the next kernel when the host knows them: (rank,) tasks."""
    domains, costs = machine.domains, machine.costs
    begun = machine.kernel(start, "notify")
    # A block for each node: a mark for each of its GPUs and token, 32 tokens in a look.
    in_channel = -(-np.diff(work.tokens_of_rank) // channels)
    looks = -(-in_channel // LANES) * -(-channels // NOTIFY_WARPS)
    channels_counted = machine.delay(DISPATCH.sync, costs.cache_load() * looks, begun)
    met = _first_barrier(machine, transport, DISPATCH, begun)
    most = max((len(experts) for experts in work.experts_of_rank), default=0)
    told = transport.tell_nodes(machine, WAYS, others(machine), COUNT_BYTES * (NODE_GPUS * (1 + most) + 1), met)
    met = transport.meet(machine, DISPATCH, told)
    arrived = machine.sync.exchange_counts(met, COUNT_BYTES * (domains.num + most), inside=True)
    summed = machine.sync.barrier(DISPATCH, arrived, stored="any", inside=True)
    machine.host.poll(DISPATCH, summed)
    cleaned = _last_barrier(machine, transport, DISPATCH, summed)
    return machine.kernel(machine.gather(channels_counted, machine.ranks, cleaned), "dispatch")


def cached_notify(machine: Machine, start: Tasks, transport: WarpTransport = WARPS) -> Tasks:
    """Clean the dispatch's rings between two barriers: (rank,) tasks of the kernel's end."""
    return _clean(machine, transport, DISPATCH, machine.kernel(start, CACHED_NOTIFY))


def combine_notify(
    tokens: Counts, channels: int, machine: Machine, start: Tasks, transport: WarpTransport = WARPS
) -> Tasks:
    """Clean the rings, and say of each token which rows it must wait for: (rank,) tasks.

    A warp for each channel walks through its tokens from the last to the first, a lane for each
    node; a line of the cache has the heads of several tokens.

    Parameters
    ----------
    tokens
        (rank,): tokens that each rank owns.
    """
    costs = machine.costs
    begun = machine.kernel(start, COMBINE_NOTIFY)
    cleaned = _clean(machine, transport, COMBINE, begun)
    in_channel = -(-tokens // channels)
    lines = -(-in_channel * machine.domains.num * HEAD_BYTES // LINE_BYTES)
    walk = costs.ns(HEAD_NS) * in_channel + costs.memory_load() * lines
    walked = machine.delay(COMBINE.sync, walk, begun)
    return machine.gather(walked, machine.ranks, cleaned)


def _clean(machine: Machine, transport: WarpTransport, kinds: PhaseKinds, begun: Tasks) -> Ints:
    return _last_barrier(machine, transport, kinds, _first_barrier(machine, transport, kinds, begun))


def _first_barrier(machine: Machine, transport: WarpTransport, kinds: PhaseKinds, after: Tasks) -> Ints:
    """Meet the GPUs of the index in all nodes, and those of the node, at once."""
    quiet = transport.quiet(machine, kinds, after)
    inside = machine.sync.barrier(kinds, quiet, stored="nothing", inside=True)
    return machine.gather(transport.meet(machine, kinds, quiet), machine.ranks, inside)


def _last_barrier(machine: Machine, transport: WarpTransport, kinds: PhaseKinds, after: Tasks) -> Ints:
    """Meet the GPUs of the index in all nodes, then those of the node behind a fence."""
    return machine.sync.barrier(kinds, transport.meet(machine, kinds, after), stored="any", inside=True)
