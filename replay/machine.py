"""The modelled system as resources of a task graph, and the transfers it can make.

`Machine` is the only place where a scheme's wish ("store these rows from here to there") meets
hardware numbers: it asks `hwmodel` how long the work takes on an idle resource and adds the
tasks. Schemes see ranks, rows and bytes; the engine sees durations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from replay.errors import UserError
from replay.kinds import Kind, PhaseKinds

if TYPE_CHECKING:
    from hwmodel import System
    from hwmodel.link import Engine
    from replay.graph import GraphBuilder

Ints = npt.NDArray[np.int64]
IntsLike = Ints | int

ACK_BATCH_BYTES = 32 * 1024
"""Acknowledgements between two GPUs are charged to the opposite direction once per this many bytes.

The flits are all there; only their number of tasks is reduced. A row of acknowledgements is a
flit per several packets, far below the resolution of anything that is read off a result.
"""


class Machine:
    """Resources of one system in one task graph.

    Parameters
    ----------
    system
        The hardware model.
    graph
        Builder that receives the resources and tasks.
    num_ranks
        Ranks in use; rank r runs on GPU r.

    Attributes
    ----------
    uplink, downlink
        (rank,): the port GPU -> switch and switch -> GPU.
    hbm, host
        (rank,): the memory system of the GPU, and the host thread that launches its kernels.
    """

    def __init__(self, system: System, graph: GraphBuilder, num_ranks: int) -> None:
        self.system = system
        self.graph = graph
        self.num_ranks = num_ranks
        self.ranks: Ints = np.arange(num_ranks, dtype=np.int64)
        # Requests and responses have virtual channels of their own: a request that waits for room
        # in a reduction buffer does not hold up what others asked for.
        self.uplink = self._each("uplink", discipline="voq")
        self.downlink = self._each("downlink")
        self.hbm = self._each("hbm")
        self.host = self._each("host")
        fabric = system.fabric
        self._up_latency = fabric.uplink_latency_ps
        self._down_latency = fabric.downlink_latency_ps
        self._write_latency = fabric.downlink_latency_ps + fabric.write_visibility_ps
        self._reduction_buffers: Ints | None = None
        self._nics: tuple[Ints, Ints] | None = None
        self._sms: dict[tuple[str, int], Ints] = {}
        self._rings: dict[tuple[int, int], Ints] = {}
        self._followed: dict[str, list[tuple[Ints, Ints]]] = {"sent": [], "combined": []}

    def _each(
        self, group: str, servers: int = 1, discipline: Literal["fifo", "voq"] = "fifo"
    ) -> Ints:
        return np.array(
            [
                self.graph.resource(
                    f"{group} {rank}", group, servers=servers, discipline=discipline, owner=rank
                )
                for rank in range(self.num_ranks)
            ],
            dtype=np.int64,
        )

    # ---- following tokens ------------------------------------------------------------------------

    def follow(self, what: Literal["sent", "combined"], token: Ints, task: Ints) -> None:
        """Remember tasks in which tokens are sent, or after which they are combined.

        Parameters
        ----------
        what
            ``"sent"``: the token's way begins when the first of its tasks starts. ``"combined"``:
            it ends when the last of them is visible.
        token, task
            (entry,): a token may have several tasks, and a task several tokens.
        """
        self._followed[what].append((token, task))

    def followed(self, what: Literal["sent", "combined"]) -> tuple[Ints, Ints]:
        """Tokens and tasks of all that was remembered: two (entry,)."""
        nothing = np.zeros(0, np.int64)
        tokens, tasks = zip((nothing, nothing), *self._followed[what], strict=True)
        return np.concatenate(tokens), np.concatenate(tasks)

    # ---- SMs -------------------------------------------------------------------------------------

    def sm_pool(self, group: str, num_sms: int) -> Ints:
        """SMs of every GPU that take tasks from one queue: (rank,) resources.

        The same group and size is the same pool, in whichever layer it is asked for.
        """
        key = (group, num_sms)
        self._check_sms(group, num_sms)
        if key not in self._sms:
            self._sms[key] = self._each(group, servers=num_sms)
        return self._sms[key]

    def sm_channels(self, group: str, num_channels: int) -> Ints:
        """SMs that each serve their own queues: (rank, channel) resources.

        Whatever waits for buffer space does not hold up the SM's other queues, since different
        warps serve them. The same group and size is the same SMs, in whichever layer.
        """
        key = (group, num_channels)
        self._check_sms(group, num_channels)
        if key not in self._sms:
            self._sms[key] = np.array(
                [
                    self.graph.resource(
                        f"{group} {rank}.{channel}", group, discipline="voq", owner=rank
                    )
                    for rank in range(self.num_ranks)
                    for channel in range(num_channels)
                ],
                dtype=np.int64,
            ).reshape(self.num_ranks, num_channels)
        return self._sms[key]

    def _check_sms(self, group: str, num_sms: int) -> None:
        has = self.system.sm.num_sms
        if num_sms > has:
            message = f"{num_sms} SMs were asked for as {group!r}; the GPU has {has}"
            raise UserError(message)

    def rings(self, num_channels: int, rows: int) -> Ints:
        """Ring buffers in the receivers' memory: credit pools (source, destination, channel).

        They are allocated once and used by one kernel after the other, in whichever layer.
        """
        key = (num_channels, rows)
        if key not in self._rings:
            shape = (self.num_ranks, self.num_ranks, num_channels)
            self._rings[key] = np.array(
                [
                    self.graph.credit_pool(f"ring {src}->{dst} channel {channel}", rows)
                    for src, dst, channel in np.ndindex(*shape)
                ],
                dtype=np.int64,
            ).reshape(shape)
        return self._rings[key]

    # ---- transfers over the switch ---------------------------------------------------------------

    def push(
        self,
        kinds: PhaseKinds,
        src: Ints,
        dst: Ints,
        row_bytes: int,
        after: Ints,
        *,
        rows: IntsLike = 1,
        meta_bytes: int = 0,
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
        meta_bytes: int = 0,
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
        pools = self._buffers()
        room = self.system.switch.reduction_buffer_total_bytes(0)
        held = np.minimum(np.broadcast_to(row_bytes * rows, reader.shape), room)
        graph.take(request, pools[reader], held, released_by=total)
        return total

    def _buffers(self) -> Ints:
        if self._reduction_buffers is None:
            self._reduction_buffers = np.array(
                [
                    self.graph.credit_pool(
                        f"reduction buffer of port {rank}",
                        self.system.switch.reduction_buffer_total_bytes(rank),
                    )
                    for rank in range(self.num_ranks)
                ],
                dtype=np.int64,
            )
        return self._reduction_buffers

    # ---- synchronisation and kernels, on all ranks at once ---------------------------------------

    def warp_lanes(self, group: str, num_channels: int, num_peers: int) -> Ints:
        """Warps of SMs that each serve one peer: (rank, channel, peer) resources.

        The same group and sizes are the same warps, in whichever layer.
        """
        key = (f"{group}/{num_peers}", num_channels)
        if key not in self._sms:
            self._sms[key] = np.array(
                [
                    self.graph.resource(f"{group} {rank}.{channel}<->{peer}", group, owner=rank)
                    for rank in range(self.num_ranks)
                    for channel in range(num_channels)
                    for peer in range(num_peers)
                ],
                dtype=np.int64,
            ).reshape(self.num_ranks, num_channels, num_peers)
        return self._sms[key]

    def mark(self, rank: Ints, after: Ints | None = None) -> Ints:
        """Add tasks that take no time, one for each entry of `rank`."""
        return self.graph.add(len(rank), resource=-1, kind=Kind.MARK, rank=rank, after=after)

    def gather(self, ids: Ints, rank: Ints, after: Ints) -> Ints:
        """One mark a rank that waits for `after` and for all of `ids` that belong to the rank."""
        marks = self.mark(self.ranks, after)
        self.graph.edges(ids, marks[rank])
        return marks

    def delay(self, kind: Kind, duration_ps: int, after: Ints, rank: Ints | None = None) -> Ints:
        """Pass time without occupying anything."""
        rank = self.ranks if rank is None else rank
        return self.graph.add(
            len(rank), resource=-1, duration_ps=duration_ps, kind=kind, rank=rank, after=after
        )

    def kernel(self, after: Ints) -> Ints:
        """Begin a kernel that was launched ahead: (rank,) tasks after the gap between kernels."""
        return self.delay(Kind.LAUNCH, self.system.overheads.kernel_gap_ps(), after)

    def launch(self, after: Ints) -> Ints:
        """Begin a kernel that the host could not launch ahead: (rank,) tasks."""
        return self.graph.add(
            resource=self.host,
            duration_ps=self.system.overheads.launch_ps,
            kind=Kind.LAUNCH,
            rank=self.ranks,
            after=after,
        )

    def host_wait(self, kinds: PhaseKinds, duration_ps: int, after: Ints) -> Ints:
        """The host thread waits for the device: (rank,) tasks."""
        return self.graph.add(
            resource=self.host,
            duration_ps=duration_ps,
            kind=kinds.sync,
            rank=self.ranks,
            after=after,
        )

    def barrier(self, kinds: PhaseKinds, after: Ints) -> Ints:
        """All ranks wait for all ranks inside running kernels: (rank,) tasks."""
        meeting = self.graph.join(after, resource=-1, kind=Kind.MARK)
        return self.delay(
            kinds.sync,
            self.system.overheads.barrier_ps(self.num_ranks),
            np.full(self.num_ranks, meeting, np.int64),
        )

    def exchange_counts(self, after: Ints, bytes_to_each: int) -> Ints:
        """Every rank stores a few bytes into every other: (rank,) marks when all have arrived."""
        src, dst = np.nonzero(~np.eye(self.num_ranks, dtype=bool))
        wire = self.system.link.write_wire_bytes(bytes_to_each, 1)
        _, down = self._hop_pair(Kind.COUNT_UP, Kind.COUNT_DOWN, src, dst, wire, 0, after[src])
        return self.gather(down, dst, after)

    def notify(self, src: Ints, dst: Ints, nbytes: int, after: Ints) -> Ints:
        """Store a counter update into a peer's memory: (message,) tasks, visible to a poll."""
        wire = self.system.link.write_wire_bytes(nbytes, 1)
        return self._hop_pair(Kind.NOTIFY_UP, Kind.NOTIFY_DOWN, src, dst, wire, 0, after)[1]

    def memory_kernel(self, kind: Kind, nbytes: Ints, after: Ints) -> Ints:
        """Run an elementwise kernel that is limited by HBM: (rank,) tasks.

        Parameters
        ----------
        nbytes
            (rank,): bytes read plus bytes written.
        """
        return self.graph.add(
            resource=self.hbm,
            duration_ps=self.system.hbm.stream_ps(nbytes),
            latency_ps=self.system.overheads.small_kernel_ps,
            kind=kind,
            rank=self.ranks,
            after=self.kernel(after),
        )


def _pick(values: IntsLike, index: Ints) -> IntsLike:
    """Entries of a per-message quantity for each copy; a scalar holds for all."""
    return values[index] if isinstance(values, np.ndarray) else values
