"""Copies and sums made by the switch: one message in, several out, and the other way round.

Used by today's fixed groups (NVLS) and by packets that name their targets themselves (DySHARP).

The module is long because copies and sums share their hops: names, rates, room and acknowledgements
of a message are the same in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from replay.errors import UserError
from replay.model.arrays import Bytes, Counts, Ints, Picoseconds, Ranks, Tasks
from replay.model.machine.kinds import Kind
from replay.model.machine.resources import IntsLike, ResourceClass
from replay.model.machine.times import Time
from replay.model.machine.transfers import REQUESTS_FIRST

if TYPE_CHECKING:
    from hwmodel import System
    from replay.engine import GraphBuilder
    from replay.model.machine.buffers import Buffers
    from replay.model.machine.caches import Caches
    from replay.model.machine.input_buffers import InputBuffers
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.paths import Paths
    from replay.model.machine.resources import Resources
    from replay.model.machine.transfers import Transfers

REDUCTION_BUFFER = "reduction buffer"

Way = Literal["in", "out"]
"""Into a GPU, or out of it."""


@dataclass(frozen=True)
class NamingFlits:
    """Flits with which the packets of a message name their targets.

    Attributes
    ----------
    at_source
        (message,): flits added to each packet between the GPU that begins and the switch.
    at_target
        (copy,): the same between the switch and each target.
    answered
        (message,): flits added to what answers each packet on the way back to that GPU: to the
        acknowledgement of a store, to a packet of the sum of a load.
    """

    at_source: IntsLike = 0
    at_target: IntsLike = 0
    answered: IntsLike = 0


UNNAMED = NamingFlits()


@dataclass(frozen=True)
class Eviction:
    """A reduction buffer that sends partial sums early rather than let requests wait for room.

    Attributes
    ----------
    patience
        For how long after its last part a sum may not be sent early. The part that needs its room
        waits meanwhile, and so do all parts behind it.
    first_key
        Keys ``first_key + message`` name the sums in the buffers (`Caches.new_keys`).
    """

    patience: Time
    first_key: int


class MulticastTasks(NamedTuple):
    """Tasks of a multicast: (message,) on the uplinks, (copy,) visible at the targets."""

    left: Ints
    arrived: Tasks


class ReductionTasks(NamedTuple):
    """Tasks of a reduction.

    Attributes
    ----------
    requested
        (message,): the request on the reader's uplink.
    asked
        (copy,): the request on each target's downlink.
    total
        (message,): visible when the sum is in the reader's SM.
    """

    requested: Ints
    asked: Ints
    total: Ints


class InSwitch:
    """Abilities of a domain's switch beyond passing messages on."""

    def __init__(
        self,
        system: System,
        graph: GraphBuilder,
        resources: Resources,
        paths: Paths,
        transfers: Transfers,
        buffers: Buffers,
        caches: Caches,
        input_buffers: InputBuffers,
    ) -> None:
        self._system, self._graph, self._resources = system, graph, resources
        self._paths, self._transfers = paths, transfers
        self._up_ps = system.fabric.uplink_latency_ps
        self._down_ps = system.fabric.downlink_latency_ps
        self._buffers, self._caches = buffers, caches
        self._input_buffers = input_buffers
        self._num_ranks = resources.num_ranks

    # ---- what there is ---------------------------------------------------------------------------

    def port_ps(self, wire: Ints, at_line_rate: bool) -> Picoseconds:
        """Time that messages (message,) of so many wire bytes occupy a port at its full rate."""
        system = self._system
        timed = system.link.port_duration_ps if at_line_rate else system.switch.multimem_duration_ps
        return timed(wire)

    def _on_channel(self, tasks: Tasks, rank: Ranks, name: str) -> None:
        """Send messages (message,) on a virtual channel of the uplinks of `rank` (message,).

        Uplinks that serve in turn go from channel to channel, which the room of the switch's input
        buffers tells apart. Where that is not finite, a message occupies its channel while it is
        served.
        """
        if self._resources.uplinks_take_turns and not self._input_buffers.are_finite and len(tasks):
            self._graph.take(tasks, self._buffers.reserve_unlisted(f"uplink {{rank}} {name}", 1)[rank])

    @property
    def _adders(self) -> Ints:
        """(rank,): what adds up in the ports of each reader."""
        return self._resources.once(
            "adders",
            REDUCTION_BUFFER,
            lambda: self._resources.each("switch-merge", ResourceClass.SWITCH),
        )

    def refuse_other_domains(self, src: Ranks, dst: Ranks) -> None:
        """Refuse messages (message,) between NVLink domains."""
        if self._paths.domains.num > 1 and self._paths.domains.crosses(src, dst).any():
            message = "a switch copies to, and adds from, the GPUs of its own NVLink domain only"
            raise UserError(message)

    # ---- copies ----------------------------------------------------------------------------------

    def multicast(
        self,
        kinds: PhaseKinds,
        src: Ranks,
        of: Ints,
        dst: Ranks,
        row_bytes: IntsLike,
        after: Tasks,
        *,
        rows: IntsLike = 1,
        meta_bytes: IntsLike = 0,
        naming: NamingFlits = UNNAMED,
        on: Ints | None = None,
        at_line_rate: bool = False,
        first: bool = False,
    ) -> MulticastTasks:
        """Store rows once into the switch, which copies them to several GPUs.

        Parameters
        ----------
        src
            (message,) source ranks.
        of, dst
            (copy,): the message each copy belongs to, and its destination; the source itself may be
            one.
        row_bytes, rows
            (message,) or the same for all: payload of a row, and rows.
        meta_bytes
            Bytes that travel with each row and are not payload.
        naming
            Flits that name the targets.
        on
            (message,): SMs that issue them; see `Transfers.store`.
        at_line_rate
            Whether ports reach their full rate, and not what is left of it for NVLS today.
        first
            Whether stores pass the answers that wait to leave the same GPU; see `REQUESTS_FIRST`.
        """
        self.refuse_other_domains(src[of], dst)
        link = self._system.link
        rows = np.broadcast_to(rows, src.shape)
        payload = np.broadcast_to(row_bytes, src.shape) * rows
        nbytes = np.broadcast_to(row_bytes + meta_bytes, src.shape)
        wire = link.write_wire_bytes(nbytes, rows, extra_flits=naming.at_source)
        left = self.hop(
            "out",
            kinds.up,
            src,
            wire,
            payload,
            after,
            at_line_rate,
            channel="requests",
            priority=REQUESTS_FIRST if first else 0,
        )
        copied = link.write_wire_bytes(nbytes[of], rows[of], extra_flits=naming.at_target)
        arrived = self.hop(
            "in",
            kinds.down,
            dst,
            copied,
            payload[of],
            left[of],
            at_line_rate,
            late_ps=self._system.fabric.write_visibility_ps + self._system.switch.multicast_ps,
        )
        self._input_buffers.hold("requests", src, wire, left, arrived, of)
        if on is not None and after is not None:
            self._input_buffers.hold_on(after, on, left)
        self._acknowledge_copies(kinds, src, of, dst, nbytes, rows, naming, arrived)
        return MulticastTasks(left, arrived)

    def hop(
        self,
        way: Way,
        kind: Kind,
        rank: Ranks,
        wire: Ints,
        payload: IntsLike,
        after: Tasks | None,
        at_line_rate: bool,
        *,
        channel: str = "",
        late_ps: int = 0,
        priority: int = 0,
    ) -> Tasks:
        """Send messages between switch and GPUs: (message,) tasks on the ports of `rank`."""
        is_out = way == "out"
        ports = self._resources.uplink if is_out else self._resources.downlink
        tasks = self._graph.add(
            len(rank),
            resource=ports[rank],
            duration_ps=self._paths.on_nvlink_ps(rank, self.port_ps(wire, at_line_rate)),
            latency_ps=(self._up_ps if is_out else self._down_ps) + late_ps,
            priority=priority,
            kind=kind,
            payload_bytes=payload,
            wire_bytes=wire,
            rank=rank,
            after=after,
        )
        if channel:
            self._on_channel(tasks, rank, channel)
        return tasks

    def _acknowledge_copies(
        self,
        kinds: PhaseKinds,
        src: Ranks,
        of: Ints,
        dst: Ranks,
        nbytes: Bytes,
        rows: Counts,
        naming: NamingFlits,
        arrived: Tasks,
    ) -> None:
        """Charge what the targets of a multicast send back, and what of it the source gets.

        The switch passes all acknowledgements on, or merges those of a packet into one.
        """
        if not len(dst):
            return
        link, switch = self._system.link, self._system.switch
        acks, wire = link.ack_wire_bytes(nbytes, rows), link.write_wire_bytes(nbytes, rows)
        up = self._transfers.ack_batches(dst * self._num_ranks + src[of], wire[of], acks[of])
        acked = self.hop("out", kinds.ack_up, dst[up.last], up.nbytes, 0, arrived[up.last], True)
        # The switch collects them as they come.
        self._input_buffers.hold("responses", dst[up.last], up.nbytes, acked, acked)
        copies = np.bincount(of, minlength=len(src))
        packets = link.packets(nbytes) * rows
        received = acks * (np.minimum(copies, 1) if switch.multicast_acks_merged else copies)
        received = received + packets * naming.answered * link.flit_bytes
        # The last copy of each message stands for all of them: nobody waits for acknowledgements.
        last_copy = np.zeros(len(src), np.int64)
        last_copy[of] = arrived
        copied = np.flatnonzero(copies)
        down = self._transfers.ack_batches(src[copied], (wire * copies)[copied], received[copied])
        chosen = copied[down.last]
        self.hop("in", kinds.ack_down, src[chosen], down.nbytes, 0, last_copy[chosen], True)

    # ---- sums ------------------------------------------------------------------------------------

    def reduce(
        self,
        kinds: PhaseKinds,
        reader: Ranks,
        of: Ints,
        target: Ints,
        row_bytes: IntsLike,
        after: Tasks,
        *,
        rows: IntsLike = 1,
        answers: Ints | None = None,
        naming: NamingFlits = UNNAMED,
        eviction: Eviction | None = None,
        at_line_rate: bool = False,
        payload: bool = True,
        requests_first: bool = False,
    ) -> ReductionTasks:
        """Load the sum of several GPUs' rows, added up in the switch.

        The request is copied to every target, each answers, and the switch adds the answers in the
        reader's port, whose buffer holds the sum. Without `eviction` a request waits in the
        reader's uplink until there is room, and the room is held until the sum has left. With it a
        sum takes room from its first part to its last; a part that finds none has the sum that
        has waited longest for a part sent to the reader as it is, whose rest follows later.

        Parameters
        ----------
        reader
            (message,) ranks that want the sum.
        of, target
            (copy,): the message, and the rank that is asked; the reader itself may be one.
        row_bytes, rows
            (message,) or the same for all: payload of a row, and rows.
        answers
            (answer,): the copy of the request that each answer belongs to; None is one each.
        naming
            Flits that name the targets.
        eviction
            How the buffer makes room.
        at_line_rate
            Whether ports reach their full rate, and not what is left of it for NVLS today.
        payload
            Whether the bytes are token rows.
        requests_first
            See `Transfers.load`.
        """
        self.refuse_other_domains(reader[of], target)
        graph, link = self._graph, self._system.link
        rows = np.broadcast_to(rows, reader.shape)
        row_bytes = np.broadcast_to(row_bytes, reader.shape)
        nbytes = row_bytes * rows
        carried = nbytes * payload
        priority = REQUESTS_FIRST if requests_first else 0
        asked_wire = link.request_wire_bytes(row_bytes, rows, extra_flits=naming.at_source)
        requested = self.hop(
            "out",
            kinds.request_up,
            reader,
            asked_wire,
            0,
            after,
            at_line_rate,
            channel="requests",
            priority=priority,
        )
        passed_wire = link.request_wire_bytes(row_bytes[of], rows[of], extra_flits=naming.at_target)
        asked = self.hop(
            "in",
            kinds.request_down,
            target,
            passed_wire,
            0,
            requested[of],
            at_line_rate,
            late_ps=self._system.fabric.read_access_ps,
            priority=priority,
        )
        self._input_buffers.hold("requests", reader, asked_wire, requested, asked, of)
        copy = np.arange(len(target)) if answers is None else answers
        of_part = of[copy]
        part_wire = link.response_wire_bytes(row_bytes, rows)[of_part]
        part = self.hop(
            "out",
            kinds.up,
            target[copy],
            part_wire,
            carried[of_part],
            asked[copy],
            at_line_rate,
            channel="responses",
            late_ps=self._system.switch.merge_latency_ps,
        )
        total_wire = link.response_wire_bytes(row_bytes, rows, extra_flits=naming.answered)
        total = self.hop("in", kinds.down, reader, total_wire, carried, None, at_line_rate)
        if eviction is None:
            added = self.add(reader, of_part, part, nbytes) if self._takes_in else part
            graph.edges(added, total[of_part])
            room = self._system.switch.reduction_buffer_total_bytes()
            pools = self._buffers.pools(REDUCTION_BUFFER, room)
            graph.take(requested, pools[reader], np.minimum(nbytes, room), released_by=total)
        else:
            added = self._merge(eviction, reader, of_part, part, total, nbytes, at_line_rate)
        self._input_buffers.hold("responses", target[copy], part_wire, part, added)
        return ReductionTasks(requested, asked, total)

    @property
    def _takes_in(self) -> bool:
        """Tell whether somebody cares when a part has been added."""
        return self._input_buffers.are_finite or self._system.switch.adder_rate is not None

    def add(self, reader: Ranks, of: Ints, part: Ints, nbytes: Bytes) -> Tasks:
        """Add parts (part,) up in the ports of their readers: (part,) tasks that take them in.

        Parameters
        ----------
        reader, nbytes
            (message,): who wants the sum, and its bytes.
        of
            (part,): the message that each is a part of.
        """
        # n parts are n - 1 additions. Which comes first, and waits for the second, is not known
        # beforehand: each takes its share of them.
        parts = np.bincount(of, minlength=len(reader))[of]
        added = -(-nbytes[of] * (parts - 1) // parts)
        return self._graph.add(
            len(part),
            resource=self._adders[reader[of]],
            duration_ps=self._system.switch.adding_ps(added),
            kind=Kind.MARK,
            rank=reader[of],
            after=part,
        )

    def _merge(
        self,
        eviction: Eviction,
        reader: Ranks,
        of: Ints,
        part: Ints,
        total: Ints,
        nbytes: Bytes,
        at_line_rate: bool,
    ) -> Ints:
        """Add parts (part,) up in the readers' ports; what is evicted occupies their downlinks."""
        if not len(reader):
            return part
        graph, link = self._graph, self._system.link
        # Room is counted in sums of the largest size, and what leaves early is charged at the size
        # of the part that takes its place: only the last segment of a row is smaller than others.
        room = self._system.switch.reduction_buffer_total_bytes()
        entries = max(1, room // int(nbytes.max()))
        tables = self._caches.tables(REDUCTION_BUFFER, entries, patience=eviction.patience)
        merged = self.add(reader, of, part, nbytes)
        early = link.response_wire_bytes(nbytes)
        self._caches.touch(
            REDUCTION_BUFFER,
            merged,
            tables[reader[of]],
            eviction.first_key + of,
            charged=total[of],
            evict=Time(self.port_ps(early, at_line_rate)[of]),
            evict_wire_bytes=early[of],
        )
        # A sum leaves the buffer the moment its last part has come, before any other part is added.
        complete = graph.add(
            len(reader),
            resource=self._adders[reader],
            priority=-1,
            kind=Kind.MARK,
            rank=reader,
        )
        graph.edges(merged, complete[of])
        graph.edges(complete, total)
        self._caches.touch(
            REDUCTION_BUFFER,
            complete,
            tables[reader],
            eviction.first_key + np.arange(len(reader)),
            lookups=0,
            drops=True,
        )
        return merged
