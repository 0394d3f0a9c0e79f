"""Merge units of a proposed switch: requests of several GPUs for one address become one.

Computing kernels load rows from a *home* GPU and push sums to it by instructions whose packets
carry a flag. Behind the ports of each home the switch keeps a table of what is under way:

- *Loads*: the first request goes on to the home, and its answer leaves the home once. Later
  requests find the entry and are answered from it. The entry goes when all have been answered.
- *Reductions*: parts add up in the entry. One write goes to the home when all have come.

A full table lets the entry go that was asked for longest ago. A load that comes after that goes to
the home again. A sum that had to go is written as far as it has come; the rest follows as a write
of its own, which leaves when the entry's timer is over, since it never becomes complete.

Entries hold 128 bytes; here they come in *pieces* of many, which all requests cut alike. A
message of a piece looks its entry up at the home's port, ahead of the messages that wait there,
and waits for the one that is being sent.

Left out of account: that entries which wait for their data cannot leave (the newcomer then passes
the unit by, which costs another answer as well); memory traffic at the home for what is fetched or
written again; that timers end entries while there is room.

Source: arXiv 2605.05628 (CAIS), section III-A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.kinds import Kind, flags_of
from replay.model.machine.times import Time
from replay.model.machine.transfers import REQUESTS_FIRST

if TYPE_CHECKING:
    from hwmodel import System
    from replay.engine import GraphBuilder
    from replay.model.arrays import Bytes, Counts, Ints, Ranks, Tasks
    from replay.model.machine.caches import Caches
    from replay.model.machine.in_switch import InSwitch, Way
    from replay.model.machine.input_buffers import InputBuffers
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.resources import Resources
    from replay.model.machine.transfers import Transfers

MERGE_UNIT = "merge unit"
ENTRY_BYTES = 128


class MergedLoads(NamedTuple):
    """Tasks of merged loads.

    Attributes
    ----------
    requested
        (request,): the request on its reader's uplink.
    arrived
        (request,): visible when the data is in the reader's SM.
    """

    requested: Ints
    arrived: Tasks


class SwitchMeeting(NamedTuple):
    """Tasks of GPUs that wait for one another at the switch: two (rank, meeting).

    Attributes
    ----------
    registered
        The packet of each GPU on its uplink.
    released
        Visible when the switch's packet is back, which it sends when all have come.
    """

    registered: Ints
    released: Ints


class MergedSums(NamedTuple):
    """Tasks of merged reductions.

    Attributes
    ----------
    pushed
        (part,): the part on its source's uplink.
    written
        (piece,): visible when the sum of all parts is in the home's memory.
    """

    pushed: Ints
    written: Ints


@dataclass(frozen=True)
class MergeUnit:
    """Tables of the merge units, and what is asked of them.

    Attributes
    ----------
    tables
        (rank,): of the ports of each home, all switches together: addresses are spread over them.
    num_bytes
        Room of each.
    timeout
        How long an entry that never becomes complete stays after its last part.
    at_line_rate
        Whether ports reach their full rate, and not what is left of it for NVLS today.
    requests_first
        Whether requests of loads pass what waits in the same ports; see `Transfers.load`.
    """

    tables: Ints
    num_bytes: int
    timeout: Time
    at_line_rate: bool
    requests_first: bool


@dataclass(frozen=True)
class Pieces:
    """Data of home GPUs, in pieces that are asked for, or added up, as a whole.

    Attributes
    ----------
    home
        (piece,): the rank whose memory it is in.
    rows, row_bytes
        (piece,): rows, each in packets of its own, and bytes of a row.
    """

    home: Ints
    rows: Counts
    row_bytes: Bytes

    def __len__(self) -> int:
        return len(self.home)

    @property
    def nbytes(self) -> Bytes:
        """(piece,): bytes."""
        return self.rows * self.row_bytes


class MergeUnits:
    """Loads, reductions and meetings of GPUs at merge units."""

    def __init__(
        self,
        system: System,
        graph: GraphBuilder,
        resources: Resources,
        transfers: Transfers,
        switch: InSwitch,
        caches: Caches,
        input_buffers: InputBuffers,
    ) -> None:
        self._system, self._graph, self._resources = system, graph, resources
        self._transfers, self._switch = transfers, switch
        self._caches, self._input_buffers = caches, input_buffers

    def unit(
        self,
        port_bytes: int,
        timeout: Time,
        *,
        at_line_rate: bool = False,
        requests_first: bool = False,
    ) -> MergeUnit:
        """Merge units of so many bytes behind each port of a GPU, one a switch."""
        num_bytes = port_bytes * self._system.fabric.num_planes
        tables = self._caches.tables(MERGE_UNIT, num_bytes)
        return MergeUnit(tables, num_bytes, timeout, at_line_rate, requests_first)

    # ---- loads -----------------------------------------------------------------------------------

    def load(
        self,
        kinds: PhaseKinds,
        unit: MergeUnit,
        pieces: Pieces,
        of: Ints,
        reader: Ranks,
        after: Tasks,
    ) -> MergedLoads:
        """Load pieces from their homes, each once for all readers.

        Parameters
        ----------
        of, reader
            (request,): the piece, and the rank that loads it, which is not its home. Each piece has
            one request of each reader, and at least one.
        after
            (request,) task that each request waits for.
        """
        self._switch.refuse_other_domains(reader, pieces.home[of])
        graph, link, fabric = self._graph, self._system.link, self._system.fabric
        hop, line = self._switch.hop, unit.at_line_rate
        home, ports = pieces.home, self._resources.uplink
        priority = REQUESTS_FIRST if unit.requests_first else 0
        ask = link.request_wire_bytes(pieces.row_bytes, pieces.rows)
        answer = link.response_wire_bytes(pieces.row_bytes, pieces.rows)
        requested = hop(
            "out",
            kinds.request_up,
            reader,
            ask[of],
            0,
            after,
            line,
            channel="requests",
            priority=priority,
        )
        there_and_back = fabric.downlink_latency_ps + fabric.uplink_latency_ps
        first_key = self._caches.new_keys(len(pieces))
        found = self._look_up(
            kinds.up,
            unit,
            ports,
            pieces,
            of,
            first_key,
            requested,
            again=answer,
            late=Time(there_and_back + fabric.read_access_ps),
        )
        self._input_buffers.hold("requests", reader, ask[of], requested, found)
        asked = hop(
            "in",
            kinds.request_down,
            home,
            ask,
            0,
            None,
            line,
            late_ps=fabric.read_access_ps,
            priority=priority,
        )
        read = graph.add(
            len(home),
            resource=self._resources.hbm[home],
            duration_ps=self._system.hbm.stream_ps(pieces.nbytes),
            kind=kinds.memory,
            rank=home,
            after=asked,
        )
        left = hop(
            "out",
            kinds.up,
            home,
            answer,
            pieces.nbytes,
            read,
            line,
            channel="responses",
            late_ps=self._system.switch.merge_latency_ps,
        )
        self._input_buffers.hold("responses", home, answer, left, left)  # entries take it in
        arrived = hop("in", kinds.down, reader, answer[of], pieces.nbytes[of], found, line)
        graph.edges(left[of], arrived)
        complete = self._drop(kinds.up, unit, ports, pieces, of, first_key, found)
        graph.edges(left, complete)
        self._first_goes_on(of, found, asked, complete)
        return MergedLoads(requested, arrived)

    def _first_goes_on(self, of: Ints, found: Ints, asked: Ints, complete: Ints) -> None:
        """Let the first request (request,) of each piece ask the home, whichever it is."""
        order = np.argsort(of, kind="stable")
        nobody, members = np.full(len(of), -1, np.int64), found[order]
        ends = np.cumsum(np.bincount(of, minlength=len(asked)))
        for piece, (first, end) in enumerate(zip((0, *ends[:-1].tolist()), ends.tolist(), strict=True)):
            tiles = np.array([1, end - first - 1])[: min(2, end - first)]
            tasks = np.array([asked[piece], complete[piece]])[: len(tiles)]
            self._graph.gate(members[first:end], nobody[first:end], tiles, tasks, tasks)

    # ---- reductions ------------------------------------------------------------------------------

    def reduce(
        self,
        kinds: PhaseKinds,
        unit: MergeUnit,
        pieces: Pieces,
        of: Ints,
        src: Ranks,
        after: Tasks,
    ) -> MergedSums:
        """Push parts of sums, which are written to the homes of their pieces once.

        Parameters
        ----------
        of, src
            (part,): the piece that it is a part of, and the rank that pushes it, which is not its
            home. Each piece has at least one part.
        after
            (part,) task that each part waits for.
        """
        self._switch.refuse_other_domains(src, pieces.home[of])
        link, fabric = self._system.link, self._system.fabric
        hop, line = self._switch.hop, unit.at_line_rate
        home, ports = pieces.home, self._resources.downlink
        wire = link.write_wire_bytes(pieces.row_bytes, pieces.rows)
        pushed = hop(
            "out",
            kinds.up,
            src,
            wire[of],
            pieces.nbytes[of],
            after,
            line,
            channel="requests",
            late_ps=self._system.switch.merge_latency_ps,
        )
        added = self._switch.add(home, of, pushed, pieces.nbytes)
        self._input_buffers.hold("requests", src, wire[of], pushed, added)
        first_key = self._caches.new_keys(len(pieces))
        found = self._look_up(kinds.down, unit, ports, pieces, of, first_key, added, again=wire, late=unit.timeout)
        complete = self._drop(kinds.down, unit, ports, pieces, of, first_key, found)
        written = hop(
            "in",
            kinds.down,
            home,
            wire,
            pieces.nbytes,
            complete,
            line,
            late_ps=fabric.write_visibility_ps,
        )
        acks = link.ack_wire_bytes(pieces.row_bytes, pieces.rows)
        self._acknowledge("in", kinds.ack_down, src, wire[of], acks[of], added)  # by the switch
        self._acknowledge("out", kinds.ack_up, home, wire, acks, written)
        return MergedSums(pushed, written)

    def _acknowledge(self, way: Way, kind: Kind, rank: Ranks, wire: Ints, acks: Ints, after: Tasks) -> None:
        """Send acknowledgements of messages (message,) over the ports of `rank`, in batches."""
        batch = self._transfers.ack_batches(rank, wire, acks)
        rank, after = rank[batch.last], after[batch.last]
        acked = self._switch.hop(way, kind, rank, batch.nbytes, 0, after, True)
        if way == "out":
            self._input_buffers.hold("responses", rank, batch.nbytes, acked, acked)

    # ---- coordination ----------------------------------------------------------------------------

    def meet(self, kinds: PhaseKinds, after: Tasks) -> SwitchMeeting:
        """Let all GPUs wait for all at the switch, by an empty packet there and one back.

        Parameters
        ----------
        after
            (rank, meeting) tasks that precede the packets.
        """
        up, down = flags_of(kinds.sync)
        link = self._system.link
        rank, meeting = (each.ravel() for each in np.indices(after.shape))
        wire = np.full(len(rank), link.header_flits * link.flit_bytes, np.int64)
        hop = self._switch.hop
        registered = hop("out", up, rank, wire, 0, after.ravel(), True, channel="requests")
        self._input_buffers.hold("requests", rank, wire, registered, registered)
        met = self._graph.add(after.shape[1], resource=-1, kind=Kind.MARK)
        self._graph.edges(registered, met[meeting])
        released = hop("in", down, rank, wire, 0, met[meeting], True)
        return SwitchMeeting(registered.reshape(after.shape), released.reshape(after.shape))

    # ---- both ------------------------------------------------------------------------------------

    def _look_up(
        self,
        kind: Kind,
        unit: MergeUnit,
        ports: Ints,
        pieces: Pieces,
        of: Ints,
        first_key: int,
        after: Tasks,
        *,
        again: Ints,
        late: Time,
    ) -> Ints:
        """Look entries up as messages (message,) arrive at the ports of the homes.

        Parameters
        ----------
        again, late
            (piece,) wire bytes that an entry which had to leave puts on the home's port, and how
            much later the message that finds this out can go on.
        """
        home = pieces.home[of]
        found = self._graph.add(len(of), resource=ports[home], priority=-1, kind=kind, rank=home, after=after)
        self._caches.touch(
            MERGE_UNIT,
            found,
            unit.tables[home],
            first_key + of,
            room=self._room(unit, pieces)[of],
            miss=late,
            miss_service=Time(self._switch.port_ps(again, unit.at_line_rate)[of]),
            miss_wire_bytes=again[of],
        )
        return found

    def _drop(
        self,
        kind: Kind,
        unit: MergeUnit,
        ports: Ints,
        pieces: Pieces,
        of: Ints,
        first_key: int,
        found: Ints,
    ) -> Tasks:
        """Let entries go when all their messages have come: (piece,) tasks."""
        home = pieces.home
        complete = self._graph.add(len(pieces), resource=ports[home], priority=-2, kind=kind, rank=home)
        self._graph.edges(found, complete[of])
        self._caches.touch(
            MERGE_UNIT,
            complete,
            unit.tables[home],
            first_key + np.arange(len(pieces)),
            room=self._room(unit, pieces),
            lookups=0,
            drops=True,
        )
        return complete

    def _room(self, unit: MergeUnit, pieces: Pieces) -> Ints:
        """(piece,): bytes of its entries; a piece larger than the table is as large as that."""
        packets = self._system.link.packets(pieces.row_bytes)
        room: Ints = np.minimum(packets * pieces.rows * ENTRY_BYTES, unit.num_bytes)
        return room
