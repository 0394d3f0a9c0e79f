"""Moving bytes between GPUs: stores, loads, multicasts and reductions as tasks on ports.

Every transfer occupies the ports it passes for its flits, and what it causes the other way
(acknowledgements, requests) occupies those of the opposite direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.kinds import Kind, PhaseKinds
from replay.resources import Ints, IntsLike, Resources

if TYPE_CHECKING:
    from hwmodel.link import Engine

ACK_BATCH_BYTES = 32 * 1024
"""Acknowledgements between two GPUs are charged to the opposite direction once per this many bytes.

The flits are all there; only their number of tasks is reduced. A row of acknowledgements is a
flit per several packets, far below the resolution of anything that is read off a result.
"""


class Transfers(Resources):
    """What can be moved over the resources of a system."""

    def push(
        self,
        kinds: PhaseKinds,
        src: Ints,
        dst: Ints,
        row_bytes: int,
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
        row_bytes: int,
        after: Ints,
        *,
        rows: IntsLike = 1,
        meta_bytes: IntsLike = 0,
        engine: Engine = "sm",
        scattered: bool = False,
    ) -> tuple[Ints, Ints]:
        """Store rows as `push` does: tasks after which they have left, and are visible.

        `scattered` says that all SMs store single rows to whatever peer is next.
        """
        link = self.system.link
        wire = link.write_wire_bytes(row_bytes + meta_bytes, rows, engine=engine)
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
        )
        acks = link.ack_wire_bytes(row_bytes + meta_bytes, rows, engine=engine)
        self._acknowledge(kinds, src, dst, wire, acks, down)
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
    ) -> tuple[Ints, Ints]:
        """One message over one uplink and one downlink.

        `several` marks the messages whose uplink alternates between the peers an SM stores to,
        `several_in` those whose downlink alternates between the peers an SM loads from.
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
    ) -> None:
        """Charge the acknowledgements of stores to the opposite direction, batched per GPU pair."""
        if not len(src):
            return
        pair = src * self.num_ranks + dst
        order = np.argsort(pair, kind="stable")
        pair = pair[order]
        sent = np.cumsum(np.broadcast_to(wire, pair.shape)[order])
        is_first = np.diff(pair, prepend=-1) != 0
        before = np.where(is_first, np.concatenate(([0], sent[:-1])), 0)
        batch = (sent - 1 - np.maximum.accumulate(before)) // ACK_BATCH_BYTES
        is_last = np.append((np.diff(pair) != 0) | (np.diff(batch) != 0), True)
        total = np.cumsum(np.broadcast_to(acks, pair.shape)[order])[is_last]
        flits = np.diff(total, prepend=0)
        chosen = order[is_last]
        self._hop_pair(
            kinds.ack_up,
            kinds.ack_down,
            dst[chosen],
            src[chosen],
            flits,
            0,
            arrived[chosen],
            self._down_latency,
        )

    def _in_switch_ps(self, wire: IntsLike, fixed_group: bool) -> IntsLike:
        system = self.system
        timed = system.switch.multimem_duration_ps if fixed_group else system.link.port_duration_ps
        return timed(wire)

    def multicast(
        self,
        kinds: PhaseKinds,
        src: Ints,
        of: Ints,
        dst: Ints,
        row_bytes: int,
        after: Ints,
        *,
        rows: IntsLike = 1,
        meta_bytes: int = 0,
        extra_flits: int = 0,
        fixed_group: bool = False,
    ) -> Ints:
        """Store rows once into the switch, which copies them to several GPUs.

        Parameters
        ----------
        src
            (message,) source ranks.
        of, dst
            (copy,): the message each copy belongs to, and its destination.
        extra_flits
            Flits added to every packet, on every leg (a list of targets).
        fixed_group
            Whether these are today's multicast objects, at the rate NVLS reaches.

        Returns
        -------
        (copy,) tasks, visible when the copy is visible at its destination.
        """
        link = self.system.link
        wire = link.write_wire_bytes(row_bytes + meta_bytes, rows, extra_flits=extra_flits)
        duration = self._in_switch_ps(wire, fixed_group)
        payload = row_bytes * rows
        up = self.graph.add(
            len(src),
            resource=self.uplink[src],
            duration_ps=duration,
            latency_ps=self._up_latency,
            kind=kinds.up,
            payload_bytes=payload,
            wire_bytes=wire,
            rank=src,
            after=after,
        )
        down = self.graph.add(
            len(dst),
            resource=self.downlink[dst],
            duration_ps=_pick(duration, of),
            latency_ps=self._write_latency,
            kind=kinds.down,
            payload_bytes=_pick(payload, of),
            wire_bytes=_pick(wire, of),
            rank=dst,
            after=up[of],
        )
        acks = link.ack_wire_bytes(row_bytes + meta_bytes, rows)
        self._acknowledge(kinds, src[of], dst, _pick(wire, of), _pick(acks, of), down)
        return down

    def read(
        self,
        kinds: PhaseKinds,
        reader: Ints,
        target: Ints,
        row_bytes: int,
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
        return data

    def reduce_read(
        self,
        kinds: PhaseKinds,
        reader: Ints,
        of: Ints,
        target: Ints,
        row_bytes: int,
        after: Ints,
        *,
        rows: IntsLike = 1,
        extra_flits: int = 0,
        fixed_group: bool = False,
    ) -> Ints:
        """Load the sum of several GPUs' rows, added up in the switch.

        The request is copied to every target, each answers with its row, and the switch adds them
        in the reader's port. The port's reduction buffer holds a row's accumulator from the
        request's passage until the sum has left; a request waits in the reader's uplink until
        there is room.

        Parameters
        ----------
        reader
            (message,) ranks that want the sum.
        of, target
            (contribution,): the message, and the rank that contributes.

        Returns
        -------
        (message,) tasks, visible when the sum is in the reader's SM.
        """
        graph, link = self.graph, self.system.link
        asked = link.request_wire_bytes(row_bytes, rows, extra_flits=extra_flits)
        asking = self._in_switch_ps(asked, fixed_group)
        request = graph.add(
            len(reader),
            resource=self.uplink[reader],
            duration_ps=asking,
            latency_ps=self._up_latency,
            kind=kinds.request_up,
            wire_bytes=asked,
            rank=reader,
            after=after,
        )
        forwarded = graph.add(
            len(target),
            resource=self.downlink[target],
            duration_ps=_pick(asking, of),
            latency_ps=self._down_latency + self.system.fabric.read_access_ps,
            kind=kinds.request_down,
            wire_bytes=_pick(asked, of),
            rank=target,
            after=request[of],
        )
        wire = link.response_wire_bytes(row_bytes, rows)
        duration = self._in_switch_ps(wire, fixed_group)
        payload = row_bytes * rows
        part = graph.add(
            len(target),
            resource=self.uplink[target],
            duration_ps=_pick(duration, of),
            latency_ps=self._up_latency + self.system.switch.merge_latency_ps,
            kind=kinds.up,
            payload_bytes=_pick(payload, of),
            wire_bytes=_pick(wire, of),
            rank=target,
            after=forwarded,
        )
        total = graph.add(
            len(reader),
            resource=self.downlink[reader],
            duration_ps=duration,
            latency_ps=self._down_latency,
            kind=kinds.down,
            payload_bytes=payload,
            wire_bytes=wire,
            rank=reader,
        )
        graph.edges(part, total[of])
        pools = self.reduction_buffers()
        room = self.system.switch.reduction_buffer_total_bytes(0)
        held = np.minimum(np.broadcast_to(row_bytes * rows, reader.shape), room)
        graph.take(request, pools[reader], held, released_by=total)
        return total


def _pick(values: IntsLike, index: Ints) -> IntsLike:
    """Entries of a per-message quantity for each copy; a scalar holds for all."""
    return values[index] if isinstance(values, np.ndarray) else values
