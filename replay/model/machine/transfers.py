"""Moving bytes between GPUs: stores and loads as tasks on the ports of their paths.

Every transfer over NVLink occupies the ports it passes for its flits, and what it causes the other
way (acknowledgements, requests) occupies those of the opposite direction. Stores to other domains
are writes of network cards (rdma.py).

The module is long because stores and loads share their hops, rates and acknowledgements, and most
of it says what their parameters mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.errors import UserError
from replay.model.arrays import Bytes, Counts, Ints, Ranks, Tasks
from replay.model.machine.rdma import ONE_WRITE, Writes
from replay.model.machine.resources import IntsLike
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmodel import System
    from hwmodel.link import Engine, Scattered
    from replay.engine import GraphBuilder
    from replay.model.machine.input_buffers import InputBuffers, Traffic
    from replay.model.machine.kinds import Kind, PhaseKinds
    from replay.model.machine.paths import Path, Paths
    from replay.model.machine.rdma import Rdma

ACK_BATCH_BYTES = 32 * 1024
"""Acknowledgements between two GPUs are charged to the opposite direction once per this many bytes.

All their bytes are charged; only the number of tasks is smaller. The acknowledgements of a row are
one flit per several packets, far below the resolution of anything that is read off a result.
"""

REQUESTS_FIRST = -1
"""Order of requests, and of stores, that pass answers on their way.

The switch has virtual channels for requests apart from those for responses (NVIDIA
open-gpu-kernel-modules, LS10), and ports go from channel to channel by the packet. A message here
is many packets: what waits behind it would wait for all of them. It matters to threads that ask for
their next bytes when the last have come, and not to those that have asked for everything before.
"""


class AckBatches(NamedTuple):
    """(batch,): the last message of each batch of acknowledgements, and their bytes."""

    last: Ints
    nbytes: Bytes


class StoreTasks(NamedTuple):
    """(message,) tasks: the message has left its GPU; its data is visible at the destination."""

    left: Ints
    arrived: Tasks


class LoadTasks(NamedTuple):
    """(message,) tasks: the request is at its target; the data is in the reader's SM."""

    asked: Ints
    arrived: Tasks


@dataclass(frozen=True)
class FanOut:
    """Pairs of ranks that exchange messages in one kernel.

    A port whose packets alternate between several peers reaches a lower rate than one with a single
    peer, even while the peers take turns by the message.

    Attributes
    ----------
    pairs
        (rank, rank): whether the first stores to, or loads from, the second.
    scattered
        How all SMs store single rows to whatever peer is next, which is slower still; "no" where
        they do not.
    """

    pairs: npt.NDArray[np.bool_]
    scattered: Scattered = "no"

    def alternates(self, rank: Ranks, same_way: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
        """Tell whether `rank` (message,) has several peers among those that are reached the same way."""
        if same_way is None:
            return self._several[rank]
        several: npt.NDArray[np.bool_] = (self.pairs & same_way).sum(axis=1) > 1
        return several[rank]

    @cached_property
    def _several(self) -> npt.NDArray[np.bool_]:
        """(rank,): whether each has several peers."""
        several: npt.NDArray[np.bool_] = self.pairs.sum(axis=1) > 1
        return several


def _of_each(value: IntsLike, rank: Ranks) -> Ints:
    """(message,): a value of each message, or one for all."""
    if isinstance(value, np.ndarray) and value.shape == rank.shape:  # NumPy takes long to see it
        return value
    return np.broadcast_to(value, rank.shape)


class Transfers:
    """Stores and loads over the ports of a system.

    Parameters
    ----------
    memory
        (rank,): memory of every GPU, which a message that is stored occupies where it is written,
        and where a network card reads it; None where nothing else asks for it meanwhile.
    """

    def __init__(
        self,
        system: System,
        graph: GraphBuilder,
        paths: Paths,
        input_buffers: InputBuffers,
        rdma: Rdma,
        memory: Ints | None = None,
    ) -> None:
        self._system = system
        self._graph = graph
        self._paths = paths
        self._input_buffers = input_buffers
        self._rdma = rdma
        self._memory = memory
        self._num_ranks = len(paths.ranks)
        # Of numbers of 16 bits, the order is found by counting.
        self._flow_type = np.min_scalar_type(self._num_ranks**2 - 1)

    # ---- packets ---------------------------------------------------------------------------------

    @property
    def packet_bytes(self) -> int:
        """Most data of a packet that an SM makes."""
        return self._system.link.rules().payload_bytes

    @property
    def line_GB_per_s(self) -> float:
        """All links of a GPU in one direction as sold, which libraries ask the driver for."""
        return self._system.link.line_GB_per_s

    @property
    def card_GB_per_s(self) -> float:
        """A network card in one direction as sold, which libraries ask the driver for."""
        return self._system.fabric.network.card_GB_per_s

    def packets(self, nbytes: IntsLike, packet_bytes: int | None = None) -> IntsLike:
        """Packets of a row of `nbytes`, each holding at most `packet_bytes`."""
        return self._system.link.packets(nbytes, packet_bytes=packet_bytes)

    @property
    def holds_back(self) -> bool:
        """Tell whether a message that cannot leave keeps its issuer waiting."""
        return self._input_buffers.are_finite

    def fan_out(self, rank: Ranks, peer: Ranks, scattered: Scattered = "no") -> FanOut:
        """Pairs (message,) of one kernel: all its messages, in however many calls they are sent."""
        pairs = np.zeros((self._num_ranks, self._num_ranks), bool)
        pairs[rank, peer] = True
        return FanOut(pairs, scattered)

    # ---- stores ----------------------------------------------------------------------------------

    def store(
        self,
        kinds: PhaseKinds,
        src: Ranks,
        dst: Ranks,
        row_bytes: IntsLike,
        after: Tasks,
        fan_out: FanOut | None = None,
        *,
        rows: IntsLike = 1,
        meta_bytes: IntsLike = 0,
        on: Ints | None = None,
        lanes: bool = False,
        engine: Engine = "sm",
        packet_bytes: int | None = None,
        priority: int = 0,
        ack_priority: int = 0,
        writes: Writes = ONE_WRITE,
    ) -> StoreTasks:
        """Store rows into other GPUs' memory.

        Parameters
        ----------
        src, dst
            (message,) ranks, nowhere equal. Other domains are reached by network card.
        row_bytes
            Payload of a row.
        after
            (message,) task each message waits for.
        fan_out
            Pairs of ranks between which the SMs of the kernel store, in all its calls; None if it
            makes this one alone. The rate of copy engines does not depend on it.
        rows
            Rows of each message; every row begins a packet of its own.
        meta_bytes
            Bytes that travel with each row and are not payload (indices, weights).
        on
            (message,): SMs, or pools of SMs, on which the tasks `after` run, which issue a message
            each and hold on to what cannot leave (`Buffers.outboxes_of`). None if nobody waits,
            `NOBODY` for messages that nobody waits for.
        lanes
            Whether `on` numbers warps that serve one peer each.
        engine
            Who makes the packets.
        packet_bytes
            Data of a packet where it is less than what the engine could fill.
        priority, ack_priority
            Order of the messages, and of their acknowledgements, on the way out of their GPUs.
        writes
            How messages to other domains are written there.
        """
        link, fabric = self._system.link, self._system.fabric
        if engine == "sm" and fan_out is None:
            fan_out = self.fan_out(src, dst)
        left, arrived = np.empty(len(src), np.int64), np.empty(len(src), np.int64)
        for path in self._paths(src, dst):
            row, count = path.of_like(row_bytes), path.of_like(rows)
            nbytes, ready = row + path.of_like(meta_bytes), path.of(after)
            if path.is_nvlink:
                wire = link.write_wire_bytes(nbytes, count, engine=engine, packet_bytes=packet_bytes)
                tasks = self.send(
                    path,
                    (kinds.up, kinds.down),
                    wire,
                    row * count,
                    ready,
                    late_ps=fabric.write_visibility_ps,
                    leaving=fan_out if engine == "sm" else None,
                    priority=priority,
                )
                acks = link.ack_wire_bytes(nbytes, count, engine=engine, packet_bytes=packet_bytes)
                ends = path.hops[0].rank, path.hops[-1].rank
                self._acknowledge(kinds, *ends, wire, acks, tasks[-1], ack_priority)
                gone, there = tasks[0], tasks[-1]
            else:
                self._in_memory(kinds, nbytes * count, path.of(src), ready)
                gone, there = self._rdma.write(
                    path,
                    (kinds.up, kinds.down),
                    nbytes * count,
                    row * count,
                    ready,
                    priority=priority,
                    writes=replace(writes, each=path.of_like(writes.each)),
                )
            path.assign(left, gone)
            path.assign(arrived, there)
            self._in_memory(kinds, nbytes * count, path.of(dst), there)
        if on is not None:
            self._input_buffers.hold_on(after, on, left, lanes=lanes)
        return StoreTasks(left, arrived)

    def _in_memory(self, kinds: PhaseKinds, nbytes: IntsLike, rank: Ranks, after: Tasks) -> None:
        """Occupy memory with messages, which nobody waits for; see `Machine.charge_copy`."""
        if self._memory is None:
            return
        time_ps = self._system.hbm.stream_ps(np.broadcast_to(nbytes, rank.shape))
        self._graph.add(
            len(rank),
            resource=self._memory[rank],
            duration_ps=time_ps,
            kind=kinds.memory,
            rank=rank,
            after=after,
        )

    def completion_time(self, src: Ranks, dst: Ranks) -> Time:
        """Time from the arrival of messages (message,) in other domains until their sources know."""
        return self._of_paths(src, dst, self._rdma.completion_time)

    def crossing_time(self, src: Ranks, dst: Ranks) -> Time:
        """Time from the posting of empty writes (message,) to other domains until they are there."""
        return self._of_paths(src, dst, self._rdma.crossing_time)

    def _of_paths(self, src: Ranks, dst: Ranks, time: Callable[[Path], Time]) -> Time:
        late = np.empty(len(src), np.int64)
        for path in self._paths(src, dst):
            path.assign(late, np.full(len(path.of(src)), time(path).ps))
        return Time(late)

    def _acknowledge(
        self,
        kinds: PhaseKinds,
        src: Ranks,
        dst: Ranks,
        wire: IntsLike,
        acks: IntsLike,
        arrived: Tasks,
        priority: int,
    ) -> None:
        """Charge the acknowledgements of a path's stores to its opposite, batched per GPU pair."""
        batches = self.ack_batches(
            src * self._num_ranks + dst,
            _of_each(wire, src),
            _of_each(acks, src),
        )
        self.send(
            self._paths.alike(dst[batches.last], src[batches.last]),
            (kinds.ack_up, kinds.ack_down),
            batches.nbytes,
            0,
            arrived[batches.last],
            traffic="responses",
            priority=priority,
        )

    def ack_batches(self, flow: Ints, wire: Ints, acks: Ints) -> AckBatches:
        """Gather the acknowledgements of each flow until so many bytes have been acknowledged.

        Parameters
        ----------
        flow, wire, acks
            (message,): number of the flow that the message belongs to, bytes that are acknowledged,
            bytes of the acknowledgements.
        """
        order = flow.astype(self._flow_type).argsort(kind="stable")
        flow, wire = flow[order], wire[order]
        is_first = np.empty(len(flow), np.bool_)
        is_first[:1] = True
        np.not_equal(flow[1:], flow[:-1], out=is_first[1:])
        sent = wire.cumsum()
        before = np.maximum.accumulate((sent - wire) * is_first)
        batch = (sent - 1 - before) // ACK_BATCH_BYTES
        is_last = np.empty(len(flow), np.bool_)
        is_last[-1:] = True
        np.logical_or(is_first[1:], batch[1:] != batch[:-1], out=is_last[:-1])
        last = is_last.nonzero()[0]
        total = acks[order].cumsum()[last]
        total[1:] -= total[:-1]
        return AckBatches(order[last], total)

    # ---- loads -----------------------------------------------------------------------------------

    def load(
        self,
        kinds: PhaseKinds,
        reader: Ranks,
        target: Ints,
        row_bytes: IntsLike,
        after: Tasks,
        fan_out: FanOut | None = None,
        *,
        rows: IntsLike = 1,
        meta_bytes: IntsLike = 0,
        engine: Engine = "sm",
        requests_first: bool = False,
    ) -> LoadTasks:
        """Load rows from other GPUs' memory: requests one way, data the other.

        Parameters
        ----------
        reader, target
            (message,) ranks, nowhere equal, in one NVLink domain.
        fan_out
            Pairs of ranks between which the SMs of the kernel load, in all its calls; None if it
            makes this one alone.
        requests_first
            Whether requests pass the data that waits in the same ports, as those do that have
            virtual channels of their own; see `REQUESTS_FIRST`.

        Raises
        ------
        UserError
            If a target is in another domain: no measurement of such loads is known.

        See Also
        --------
        store : the other parameters.
        """
        link, fabric = self._system.link, self._system.fabric
        if self._paths.domains.num > 1 and self._paths.domains.crosses(reader, target).any():
            message = "loads between NVLink domains are not modelled; rows can be stored there"
            raise UserError(message)
        if engine == "sm" and fan_out is None:
            fan_out = self.fan_out(reader, target)
        requested, arrived = np.empty(len(reader), np.int64), np.empty(len(reader), np.int64)
        for path in self._paths(reader, target):
            row, count = path.of_like(row_bytes), path.of_like(rows)
            nbytes = row + path.of_like(meta_bytes)
            path.assign(
                requested,
                self.send(
                    path,
                    (kinds.request_up, kinds.request_down),
                    link.request_wire_bytes(nbytes, count, engine=engine),
                    0,
                    path.of(after),
                    late_ps=fabric.read_access_ps,
                    priority=REQUESTS_FIRST if requests_first else 0,
                    at_all_ports=requests_first,
                )[-1],
            )
        for path in self._paths(target, reader):
            row, count = path.of_like(row_bytes), path.of_like(rows)
            nbytes = row + path.of_like(meta_bytes)
            path.assign(
                arrived,
                self.send(
                    path,
                    (kinds.up, kinds.down),
                    link.response_wire_bytes(nbytes, count, engine=engine),
                    row * count,
                    path.of(requested),
                    traffic="responses",
                    entering=fan_out if engine == "sm" else None,
                )[-1],
            )
        return LoadTasks(requested, arrived)

    # ---- one path --------------------------------------------------------------------------------

    def at_line_rate(self, kinds: PhaseKinds, rows: Counts, row_bytes: int, after: Tasks, *, outwards: bool) -> Tasks:
        """Occupy the NVLink ports of all GPUs with nothing but rows in full packets: (rank,) tasks.

        Latency, acknowledgements and changes of the peer are left out.

        Parameters
        ----------
        kinds
            What the rows are on a way out of a GPU, and on a way in.
        rows
            (rank,): how many pass the port of each.
        after
            (rank,): what each port waits for.
        outwards
            Whether these are the ports out of the GPUs, or into them.
        """
        ports, rate = self._paths.nvlink_ports(outwards=outwards)
        ranks = self._paths.ranks
        wire = self._system.link.write_wire_bytes(row_bytes, rows)
        return self._graph.add(
            len(ranks),
            resource=ports,
            duration_ps=self._paths.on_nvlink_ps(ranks, rate.duration_ps(wire)),
            kind=kinds.up if outwards else kinds.down,
            payload_bytes=row_bytes * rows,
            wire_bytes=wire,
            rank=ranks,
            after=after,
        )

    def send(
        self,
        path: Path,
        kinds: tuple[Kind, Kind],
        wire_bytes: IntsLike,
        payload_bytes: IntsLike,
        after: Tasks,
        *,
        traffic: Traffic = "requests",
        late_ps: int = 0,
        leaving: FanOut | None = None,
        entering: FanOut | None = None,
        priority: int = 0,
        at_all_ports: bool = False,
    ) -> list[Ints]:
        """Send NVLink messages over the hops of a path: (message,) tasks of each hop.

        Parameters
        ----------
        kinds
            What the messages are on a way out of a GPU, and on a way in.
        traffic
            Whose room of the switch's input buffers the messages take.
        late_ps
            From the arrival until whoever waits for the message can use it.
        leaving, entering
            Pairs of ranks between which the first port, or the last, alternates.
        priority, at_all_ports
            Order on the first port, or on all of them.
        """
        tasks: list[Tasks] = []
        last = len(path.hops) - 1
        same_way = None
        if self._paths.domains.num > 1:
            ranks = self._paths.ranks
            same_way = ~self._paths.domains.crosses(ranks[:, None], ranks)
        rate = path.hops[0].rate
        port_ps = least = rate.duration_ps(wire_bytes)
        for index, hop in enumerate(path.hops):
            if hop.rate != rate:
                rate, least = hop.rate, hop.rate.duration_ps(wire_bytes)
            duration = least
            fan_out = leaving if index == 0 else entering if index == last else None
            if fan_out is not None:
                slow = fan_out.alternates(hop.rank, same_way)
                if slow.any():
                    slower = self._system.link.fan_out_duration_ps(wire_bytes, fan_out.scattered)
                    duration = np.where(slow, slower, duration)
            if hop.slower:
                duration = self._paths.on_nvlink_ps(hop.rank, duration)
            after = self._graph.add(
                len(hop.rank),
                resource=hop.resource,
                duration_ps=duration,
                latency_ps=hop.latency_ps + (late_ps if index == last else 0),
                priority=priority if index == 0 or at_all_ports else 0,
                kind=kinds[0] if hop.is_way_out else kinds[1],
                payload_bytes=payload_bytes if hop.is_port else 0,
                wire_bytes=wire_bytes,
                rank=hop.rank,
                after=after,
            )
            tasks.append(after)
        rank = path.hops[0].rank
        self._input_buffers.hold(traffic, rank, wire_bytes, tasks[0], tasks[-1], port_ps=port_ps)
        return tasks
