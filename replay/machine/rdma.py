"""Writes to other NVLink domains: what RDMA costs, and how messages pass the ports of the network.

A warp posts a write; the card fetches entry and data over PCIe, and its packets follow one another
over all ports of the way (`hwmodel.network`). So a port begins with a message when its first packet
is there, and the message is there when the slowest of the ports is through with it. Each of the
ports that others may use too is a task for the first packet, which the next port waits for, and one
for all others. The ports between a GPU and its card see the same messages in the same order as the
card; they work beside it, from the same moment on.

Where a library allows so many writes in flight only, they are credits of the card, given back when
the completion is back at the sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import Kind, sync_of
from replay.machine.resources import Ints, IntsLike, ResourceClass
from replay.machine.times import Time

if TYPE_CHECKING:
    import numpy.typing as npt

    from hwmodel import System
    from hwmodel.network import Poster
    from replay.graph import GraphBuilder
    from replay.machine.buffers import Buffers
    from replay.machine.mirror import Mirror
    from replay.machine.paths import Hop, Path

    Bools = npt.NDArray[np.bool_]
    _Message = tuple[Kind, Ints, Ints]  # what messages are, their wire bytes, their payload


@dataclass(frozen=True)
class Writes:
    """How a library writes messages to other domains.

    Attributes
    ----------
    each
        Writes that a message is posted as: (message,) or the same for all.
    in_flight
        Writes of a rank that may be under way at a time, posting and completion included; 0 where
        nothing but the depth of the queues bounds them. (Depths are 1024 and more, and DeepEP does
        not look; deepseek-ai/DeepEP issue 180.)
    by
        Who posts them: a warp, a warp whose time for it the scheme counts itself (`Costs.post`), or
        a thread of the host for its GPU.
    """

    each: IntsLike = 1
    in_flight: int = 0
    by: Poster = "gpu"


ONE_WRITE = Writes()

_PORTS_OF_RAIL = 4  # of a way that does not lead over the spine


class Rdma:
    """Messages over network cards."""

    def __init__(
        self, system: System, graph: GraphBuilder, buffers: Buffers, mirror: Mirror | None = None
    ) -> None:
        self._network = system.fabric.network
        self._graph, self._buffers, self._mirror = graph, buffers, mirror

    def write(
        self,
        path: Path,
        kinds: tuple[Kind, Kind],
        wire_bytes: IntsLike,
        payload_bytes: IntsLike,
        after: Ints,
        *,
        late_ps: int = 0,
        priority: int = 0,
        writes: Writes = ONE_WRITE,
    ) -> tuple[Ints, Ints]:
        """Send messages over the hops of a path: (message,) tasks, as `Stored` has them.

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
        away, back = self._stand_ins(src, dst)
        out, into = _own(away), _own(back)
        posted = self._graph.add(
            len(src[out]), resource=-1, duration_ps=network.fetched_ps(writes.by),
            kind=sync_of(kinds[0]), rank=src[out], after=after[out],
        )  # fmt: skip
        arrived = self._mark(dst[into], late_ps=late_ps)
        rest = sum(hop.latency_ps for hop in (*ports, nic_in))  # of the way, behind the port
        reached = _spread(posted, away)
        left = self._pass(pcie_out, (kinds[0], wire, payload), reached, rest, away, priority)
        # Only the last port on the way out tells the other side of bytes, which exports count.
        sent = self._mark(src[out], after=left[out])
        self._graph.edges(_spread(sent, away)[into], arrived)
        for hop in ports:
            is_card = hop.of == ResourceClass.NIC_OUT
            least = network.write_ps * np.asarray(writes.each) if is_card else 0
            message = (kinds[0] if hop.is_way_out else kinds[1], wire, payload)
            reached, last, cut = self._pass_in_packets(
                hop, message, reached, rest, away if hop.is_way_out else back,
                np.broadcast_to(least, count), priority if is_card else 0,
            )  # fmt: skip
            if is_card:
                left = last
            if is_card and over_spine:
                self._graph.edges(last[out][cut[out]], sent[cut[out]])
            else:
                self._graph.edges(last[into][cut[into]], arrived[cut[into]])
            if hop.is_way_out and not (is_card and over_spine):
                reached = _spread(self._mark(dst[into], after=reached[into]), back)
            rest -= hop.latency_ps
        for hop in (nic_in, pcie_in):
            entered = self._pass(hop, (kinds[1], wire, payload), reached, rest, back)
            self._graph.edges(entered[into], arrived)
        arrived = _spread(arrived, back)
        if writes.in_flight:
            units = np.broadcast_to(np.clip(writes.each, 1, writes.in_flight), count)
            self._wait_for_completions(
                src[out], posted, arrived[out], units[out], writes.in_flight, self.completed(path)
            )
        return left, arrived

    def _mark(self, rank: Ints, *, after: Ints | None = None, late_ps: int = 0) -> Ints:
        return self._graph.add(
            len(rank), resource=-1, latency_ps=late_ps, kind=Kind.MARK, rank=rank, after=after
        )

    def _stand_ins(self, src: Ints, dst: Ints) -> tuple[Ints | None, Ints | None]:
        """Messages that stand for others on the way out and in; None if each is itself."""
        if self._mirror is None:
            return None, None
        mirrored = self._mirror(src, dst)
        return mirrored.leaves, mirrored.arrives

    def completed(self, path: Path) -> Time:
        """From the arrival of a path's messages until their sender knows."""
        return Time(self._network.completion_ps(over_spine=len(path.hops) > _PORTS_OF_RAIL))

    def _pass(
        self, hop: Hop, message: _Message, after: Ints, rest_ps: int, stands: Ints | None,
        priority: int = 0,
    ) -> Ints:  # fmt: skip
        """Occupy a port for whole messages: (message,) tasks.

        Parameters
        ----------
        stands
            (message,): the one whose task is taken for each; None for its own.
        """
        kind, wire, payload = message
        own = _own(stands)
        tasks = self._graph.add(
            len(after[own]),
            resource=hop.resource[own],
            duration_ps=np.broadcast_to(hop.duration_ps(wire), wire.shape)[own],
            latency_ps=rest_ps,
            priority=priority,
            kind=kind,
            payload_bytes=payload[own],
            wire_bytes=wire[own],
            rank=hop.rank[own],
            after=after[own],
        )
        return _spread(tasks, stands)

    def _pass_in_packets(
        self, hop: Hop, message: _Message, after: Ints, rest_ps: int, stands: Ints | None,
        least_ps: Ints, priority: int,
    ) -> tuple[Ints, Ints, Bools]:  # fmt: skip
        """Occupy a port for first packets, and at once for the rest of each message.

        Parameters
        ----------
        rest_ps
            From leaving this port to the target.
        stands
            See `_pass`.
        least_ps
            (message,): what the port needs for a message, however few its bytes: its writes, which
            it works off beside the bytes of others.

        Returns
        -------
        Three (message,): tasks of the first packet and of the last, which are the same where a
        message is one packet; whether it is several.
        """
        kind, wire, payload = message
        own = _own(stands)
        first = np.minimum(wire, self._network.packet_bytes)
        first_ps, whole_ps = (
            np.broadcast_to(hop.duration_ps(nbytes), wire.shape)[own] for nbytes in (first, wire)
        )
        whole_ps = np.maximum(whole_ps, least_ps[own])
        if self._mirror is not None and hop.is_shared:
            # It serves the nodes that have no messages of their own in the meantime.
            first_ps, whole_ps = (self._mirror.of_all_nodes(ps) for ps in (first_ps, whole_ps))
        cut = (wire > first)[own]
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
            resource=hop.resource[own][of],
            duration_ps=split(whole_ps, first_ps),
            latency_ps=latency,
            priority=priority,
            kind=kind,
            payload_bytes=split(payload[own], np.minimum(payload, first)[own]),
            wire_bytes=split(wire[own], first[own]),
            rank=hop.rank[own][of],
            after=after[own][of],
        )
        is_cut: Bools = cut if stands is None else (wire > first)[stands]
        return _spread(tasks[head], stands), _spread(tasks[head + cut], stands), is_cut

    def _wait_for_completions(
        self, src: Ints, posted: Ints, arrived: Ints, units: Ints, in_flight: int, late: Time
    ) -> None:
        """Let writes be posted only while fewer than the most are in flight."""
        pools = self._buffers.unnamed("writes in flight of {rank}", in_flight)
        completed = self._graph.add(
            len(src), resource=-1, duration_ps=late.ps, kind=Kind.MARK, rank=src, after=arrived
        )
        self._graph.take(posted, pools[src], units, released_by=completed)


def _own(stands: Ints | None) -> Ints | slice:
    """Messages that have tasks of their own: an index of (message,) arrays."""
    return slice(None) if stands is None else np.flatnonzero(stands == np.arange(len(stands)))


def _spread(tasks: Ints, stands: Ints | None) -> Ints:
    """(message,) tasks, from those of the messages that have their own."""
    if stands is None:
        return tasks
    found = np.empty(len(stands), np.int64)
    found[_own(stands)] = tasks
    return found[stands]
