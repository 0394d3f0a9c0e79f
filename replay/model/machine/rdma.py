"""Writes to other NVLink domains: what RDMA costs, and how messages pass the ports of the network.

A warp posts a write; the card fetches entry and data over PCIe, and its packets follow one another
over all ports of the way (`hwmodel.network`). So a port begins with a message when its first packet
is there, and the message is there when the slowest of the ports is through with it. Each of the
ports that others may use too is a task for the first packet, which the next port waits for, and one
for all others. The ports between a GPU and its card see the same messages in the same order as the
card; they work beside it, from the same moment on.

Nothing but the depth of queues bounds the writes of a warp that are under way (1024 and more, and DeepEP does not look;
deepseek-ai/DeepEP issue 180). Libraries whose hosts post and count them are in `proxies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.arrays import Ints, Picoseconds, Ranks, Tasks
from replay.model.machine.kinds import Kind, sync_of
from replay.model.machine.resources import IntsLike, ResourceClass
from replay.model.machine.times import Time

if TYPE_CHECKING:
    import numpy.typing as npt

    from hwmodel import System
    from hwmodel.network import Poster
    from replay.engine import GraphBuilder
    from replay.model.machine.paths import Hop, Path
    from replay.model.work.node_sample import NodeSample

    Bools = npt.NDArray[np.bool_]
    _Message = tuple[Kind, Ints, Ints]  # what messages are, their wire bytes, their payload


@dataclass(frozen=True)
class Writes:
    """Way in which a library writes messages to other domains.

    Attributes
    ----------
    each
        Writes that a message is posted as: (message,) or the same for all.
    by
        Who posts them: a warp, a warp whose time for it the scheme counts itself (`Costs.post`), or
        a thread of the host for its GPU.
    """

    each: IntsLike = 1
    by: Poster = "gpu"


ONE_WRITE = Writes()

_PORTS_OF_RAIL = 4  # of a way that does not lead over the spine


class Rdma:
    """Messages over network cards."""

    def __init__(
        self,
        system: System,
        graph: GraphBuilder,
        sample: NodeSample | None = None,
    ) -> None:
        self._network = system.fabric.network
        self._graph, self._sample = graph, sample

    def write(
        self,
        path: Path,
        kinds: tuple[Kind, Kind],
        wire_bytes: IntsLike,
        payload_bytes: IntsLike,
        after: Tasks,
        *,
        late_ps: int = 0,
        priority: int = 0,
        writes: Writes = ONE_WRITE,
    ) -> tuple[Ints, Ints]:
        """Send messages over the hops of a path: (message,) tasks, as `StoreTasks` has them.

        Parameters
        ----------
        kinds
            What the messages are on the way out and on the way in.
        late_ps
            From the arrival until whoever waits for the message can use it.
        priority
            Order at the source's card.
        writes
            `each` is of the path's messages.
        """
        network, count = self._network, len(after)
        wire, payload = (np.broadcast_to(each, count) for each in (wire_bytes, payload_bytes))
        pcie_out, *ports, nic_in, pcie_in = path.hops
        src, dst, over_spine = pcie_out.rank, pcie_in.rank, len(ports) > 1
        posted = self._graph.add(
            count,
            resource=-1,
            duration_ps=network.fetched_ps(writes.by),
            kind=sync_of(kinds[0]),
            rank=src,
            after=after,
        )
        arrived = self._mark(dst, late_ps=late_ps)
        rest = sum(hop.latency_ps for hop in (*ports, nic_in))  # of the way, behind the port
        reached = posted
        left = self._pass(pcie_out, (kinds[0], wire, payload), reached, rest, priority)
        # Only the last port on the way out tells the other side of bytes, which exports count.
        sent = self._mark(src, after=left)
        self._graph.edges(sent, arrived)
        for hop in ports:
            is_card = hop.of == ResourceClass.NIC_OUT
            least = network.write_ps * np.asarray(writes.each) if is_card else 0
            message = (kinds[0] if hop.is_way_out else kinds[1], wire, payload)
            reached, last, cut = self._pass_in_packets(
                hop,
                message,
                reached,
                rest,
                np.broadcast_to(least, count),
                priority if is_card else 0,
            )
            if is_card:
                left = last
            if is_card and over_spine:
                self._graph.edges(last[cut], sent[cut])
            else:
                self._graph.edges(last[cut], arrived[cut])
            if hop.is_way_out and not (is_card and over_spine):
                reached = self._mark(dst, after=reached)
            rest -= hop.latency_ps
        for hop in (nic_in, pcie_in):
            entered = self._pass(hop, (kinds[1], wire, payload), reached, rest)
            self._graph.edges(entered, arrived)
        return left, arrived

    def _mark(self, rank: Ranks, *, after: Tasks | None = None, late_ps: int = 0) -> Ints:
        return self._graph.add(len(rank), resource=-1, latency_ps=late_ps, kind=Kind.MARK, rank=rank, after=after)

    def completion_time(self, path: Path) -> Time:
        """Time from the arrival of a path's messages until their sender knows."""
        return Time(self._network.completion_ps(over_spine=len(path.hops) > _PORTS_OF_RAIL))

    def crossing_time(self, path: Path) -> Time:
        """Time from the moment a warp has posted a path's empty writes until they are there."""
        return Time(self._network.put_ps(over_spine=len(path.hops) > _PORTS_OF_RAIL, by="warp"))

    def _pass(self, hop: Hop, message: _Message, after: Tasks, rest_ps: int, priority: int = 0) -> Tasks:
        """Occupy a port for whole messages: (message,) tasks."""
        kind, wire, payload = message
        return self._graph.add(
            len(after),
            resource=hop.resource,
            duration_ps=np.broadcast_to(hop.duration_ps(wire), wire.shape),
            latency_ps=rest_ps,
            priority=priority,
            kind=kind,
            payload_bytes=payload,
            wire_bytes=wire,
            rank=hop.rank,
            after=after,
        )

    def _pass_in_packets(
        self, hop: Hop, message: _Message, after: Tasks, rest_ps: int, least_ps: Picoseconds, priority: int
    ) -> tuple[Ints, Ints, Bools]:
        """Occupy a port for first packets, and at once for the rest of each message.

        Parameters
        ----------
        rest_ps
            From leaving this port to the target.
        least_ps
            (message,): what the port needs for a message, however few its bytes: its writes, which
            it works off beside the bytes of others.

        Returns
        -------
        Three (message,): tasks of the first packet and of the last, which are the same where a
        message is one packet; whether it is several.
        """
        kind, wire, payload = message
        first = np.minimum(wire, self._network.packet_bytes)
        first_ps, whole_ps = (np.broadcast_to(hop.duration_ps(nbytes), wire.shape) for nbytes in (first, wire))
        whole_ps = np.maximum(whole_ps, least_ps)
        if self._sample is not None and hop.is_shared:
            # It serves others in the meantime, whose messages to each other are left out.
            first_ps, whole_ps = (self._sample.of_all_nodes(ps) for ps in (first_ps, whole_ps))
        cut: Bools = wire > first
        first_ps = np.where(cut, first_ps, whole_ps)
        pieces = 1 + cut
        of = np.repeat(np.arange(len(cut)), pieces)
        head = np.cumsum(pieces) - pieces
        tail = head[cut] + 1

        def split(whole: Ints, of_first: Ints) -> Ints:
            found = of_first[of]
            found[tail] = (whole - of_first)[cut]
            return found

        latency = np.full(len(of), hop.latency_ps)
        latency[tail] = rest_ps
        tasks = self._graph.add(
            len(of),
            resource=hop.resource[of],
            duration_ps=split(whole_ps, first_ps),
            latency_ps=latency,
            priority=priority,
            kind=kind,
            payload_bytes=split(payload, np.minimum(payload, first)),
            wire_bytes=split(wire, first),
            rank=hop.rank[of],
            after=after[of],
        )
        return tasks[head], tasks[head + cut], cut
