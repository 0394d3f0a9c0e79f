"""Moving bytes between GPUs: stores and loads as tasks on ports.

Every transfer occupies the ports it passes for its flits, and what it causes the other way
(acknowledgements, requests) occupies those of the opposite direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.machine.kinds import Kind, PhaseKinds
from replay.machine.resources import Ints, IntsLike, Resources

if TYPE_CHECKING:
    from hwmodel.link import Engine

ACK_BATCH_BYTES = 32 * 1024
"""Acknowledgements between two GPUs are charged to the opposite direction once per this many bytes.

The flits are all there; only their number of tasks is reduced. A row of acknowledgements is a
flit per several packets, far below the resolution of anything that is read off a result.
"""


class AckBatches(NamedTuple):
    """(batch,): the last message of each batch of acknowledgements, and their bytes."""

    last: Ints
    flits: Ints


class Transfers(Resources):
    """What can be moved over the resources of a system."""

    def push(
        self,
        kinds: PhaseKinds,
        src: Ints,
        dst: Ints,
        row_bytes: IntsLike,
        after: Ints,
        *,
        rows: IntsLike = 1,
        meta_bytes: IntsLike = 0,
        engine: Engine = "sm",
    ) -> Ints:
        """Store rows into a peer's memory.

        Parameters
        ----------
        src, dst
            (message,) ranks, nowhere equal.
        row_bytes
            Payload of a row.
        after
            (message,) task each message waits for.
        rows
            Rows of each message; every row begins a packet of its own.
        meta_bytes
            Bytes that travel with each row and are not payload (indices, weights).
        engine
            Who makes the packets.

        Returns
        -------
        (message,) tasks, visible when the data is visible to a reader at the destination.
        """
        return self.store(
            kinds, src, dst, row_bytes, after, rows=rows, meta_bytes=meta_bytes, engine=engine
        )[1]

    def store(
        self,
        kinds: PhaseKinds,
        src: Ints,
        dst: Ints,
        row_bytes: IntsLike,
        after: Ints,
        *,
        rows: IntsLike = 1,
        meta_bytes: IntsLike = 0,
        engine: Engine = "sm",
        scattered: bool = False,
        packet_bytes: int | None = None,
        priority: int = 0,
        ack_priority: int = 0,
    ) -> tuple[Ints, Ints]:
        """Store rows as `push` does: tasks after which they have left, and are visible.

        `scattered` says that all SMs store single rows to whatever peer is next; `packet_bytes` is
        the data of a packet where it is less than what the engine could fill; `priority` and
        `ack_priority` order the messages and their acknowledgements on their uplinks.
        """
        link = self.system.link
        wire = link.write_wire_bytes(
            row_bytes + meta_bytes, rows, engine=engine, packet_bytes=packet_bytes
        )
        up, down = self._hop_pair(
            kinds.up,
            kinds.down,
            src,
            dst,
            wire,
            row_bytes * rows,
            after,
            several=self._has_several(src, dst) if engine == "sm" else None,
            scattered=scattered,
            priority=priority,
        )
        acks = link.ack_wire_bytes(
            row_bytes + meta_bytes, rows, engine=engine, packet_bytes=packet_bytes
        )
        self._acknowledge(kinds, src, dst, wire, acks, down, ack_priority)
        return up, down

    def put(self, kinds: PhaseKinds, src: Ints, dst: Ints, nbytes: IntsLike, after: Ints) -> Ints:
        """Send messages to another NVLink domain by the GPUs' NICs: (message,) tasks."""
        if self._nics is None:
            self._nics = self._each("nic-out"), self._each("nic-in")
        fabric = self.system.fabric
        latency = np.array(
            [fabric.path_latency_ps(int(s), int(d)) for s, d in zip(src, dst, strict=True)],
            dtype=np.int64,
        )
        duration = fabric.nic.duration_ps(nbytes)
        out = self.graph.add(
            len(src),
            resource=self._nics[0][src],
            duration_ps=duration,
            latency_ps=latency,
            kind=kinds.up,
            payload_bytes=nbytes,
            wire_bytes=nbytes,
            rank=src,
            after=after,
        )
        return self.graph.add(
            len(dst),
            resource=self._nics[1][dst],
            duration_ps=duration,
            kind=kinds.down,
            payload_bytes=nbytes,
            wire_bytes=nbytes,
            rank=dst,
            after=out,
        )

    def _has_several(self, here: Ints, there: Ints) -> npt.NDArray[np.bool_]:
        """(message,): whether the rank `here` has messages to or from more than one `there`."""
        met = np.zeros((self.num_ranks, self.num_ranks), bool)
        met[here, there] = True
        several: npt.NDArray[np.bool_] = (met.sum(axis=1) > 1)[here]
        return several

    def _hop_pair(
        self,
        up_kind: Kind,
        down_kind: Kind,
        src: Ints,
        dst: Ints,
        wire: IntsLike,
        payload: IntsLike,
        after: Ints,
        down_latency: int | None = None,
        several: npt.NDArray[np.bool_] | None = None,
        several_in: npt.NDArray[np.bool_] | None = None,
        scattered: bool = False,
        priority: int = 0,
    ) -> tuple[Ints, Ints]:
        """One message over one uplink and one downlink.

        `several` marks the messages whose uplink alternates between the peers an SM stores to,
        `several_in` those whose downlink alternates between the peers an SM loads from; `priority`
        holds on the uplink.
        """
        link = self.system.link
        duration = leaving = entering = link.port_duration_ps(wire)
        if several is not None and several.any():
            slower = link.fan_out_duration_ps(wire, scattered=scattered)
            leaving = np.where(several, slower, duration)
        if several_in is not None and several_in.any():
            entering = np.where(several_in, link.fan_out_duration_ps(wire), duration)
        up = self.graph.add(
            len(src),
            resource=self.uplink[src],
            duration_ps=leaving,
            latency_ps=self._up_latency,
            priority=priority,
            kind=up_kind,
            payload_bytes=payload,
            wire_bytes=wire,
            rank=src,
            after=after,
        )
        down = self.graph.add(
            len(dst),
            resource=self.downlink[dst],
            duration_ps=entering,
            latency_ps=self._write_latency if down_latency is None else down_latency,
            kind=down_kind,
            payload_bytes=payload,
            wire_bytes=wire,
            rank=dst,
            after=up,
        )
        return up, down

    def _acknowledge(
        self,
        kinds: PhaseKinds,
        src: Ints,
        dst: Ints,
        wire: IntsLike,
        acks: IntsLike,
        arrived: Ints,
        priority: int = 0,
    ) -> None:
        """Charge the acknowledgements of stores to the opposite direction, batched per GPU pair."""
        if not len(src):
            return
        batches = self._ack_batches(
            src * self.num_ranks + dst,
            np.broadcast_to(wire, src.shape),
            np.broadcast_to(acks, src.shape),
        )
        self._hop_pair(
            kinds.ack_up,
            kinds.ack_down,
            dst[batches.last],
            src[batches.last],
            batches.flits,
            0,
            arrived[batches.last],
            self._down_latency,
            priority=priority,
        )

    def _ack_batches(self, flow: Ints, wire: Ints, acks: Ints) -> AckBatches:
        """Gather the acknowledgements of each flow until so many bytes have been acknowledged.

        Parameters
        ----------
        flow, wire, acks
            (message,): what belongs together, bytes acknowledged, bytes of acknowledgements.
        """
        order = np.argsort(flow, kind="stable")
        flow = flow[order]
        sent = np.cumsum(wire[order])
        is_first = np.diff(flow, prepend=-1) != 0
        before = np.where(is_first, np.concatenate(([0], sent[:-1])), 0)
        batch = (sent - 1 - np.maximum.accumulate(before)) // ACK_BATCH_BYTES
        is_last = np.append((np.diff(flow) != 0) | (np.diff(batch) != 0), True)
        total = np.cumsum(acks[order])[is_last]
        return AckBatches(order[is_last], np.diff(total, prepend=0))

    def read(
        self,
        kinds: PhaseKinds,
        reader: Ints,
        target: Ints,
        row_bytes: IntsLike,
        after: Ints,
        *,
        rows: IntsLike = 1,
        engine: Engine = "sm",
    ) -> Ints:
        """Load rows from a peer's memory: requests one way, data the other.

        Returns
        -------
        (message,) tasks, visible when the data is in the reader's SM.
        """
        return self.load(kinds, reader, target, row_bytes, after, rows=rows, engine=engine)[1]

    def load(
        self,
        kinds: PhaseKinds,
        reader: Ints,
        target: Ints,
        row_bytes: IntsLike,
        after: Ints,
        *,
        rows: IntsLike = 1,
        engine: Engine = "sm",
    ) -> tuple[Ints, Ints]:
        """Load rows as `read` does: tasks that bring the request to the target, and the data."""
        link = self.system.link
        asked = link.request_wire_bytes(row_bytes, rows, engine=engine)
        _, request = self._hop_pair(
            kinds.request_up,
            kinds.request_down,
            reader,
            target,
            asked,
            0,
            after,
            self._down_latency + self.system.fabric.read_access_ps,
        )
        wire = link.response_wire_bytes(row_bytes, rows, engine=engine)
        _, data = self._hop_pair(
            kinds.up,
            kinds.down,
            target,
            reader,
            wire,
            row_bytes * rows,
            request,
            self._down_latency,
            several_in=self._has_several(reader, target) if engine == "sm" else None,
        )
        return request, data
