"""The resources of a modelled system in a task graph, and what is remembered of the tokens."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from replay.errors import UserError
from replay.machine.notes import Notes, TouchNotes

if TYPE_CHECKING:
    from hwmodel import System
    from replay.graph import GraphBuilder

Ints = npt.NDArray[np.int64]
IntsLike = Ints | int
Discipline = Literal["fifo", "voq", "turns"]


class Resources:
    """Resources of one system in one task graph.

    Parameters
    ----------
    system
        The hardware model.
    graph
        Builder that receives the resources and tasks.
    num_ranks
        Ranks in use; rank r runs on GPU r.
    uplinks
        Discipline of the uplinks.

    Attributes
    ----------
    uplink, downlink
        (rank,): the port GPU -> switch and switch -> GPU.
    hbm, host
        (rank,): the memory system of the GPU, and the host thread that launches its kernels.
    """

    def __init__(
        self, system: System, graph: GraphBuilder, num_ranks: int, uplinks: Discipline = "voq"
    ) -> None:
        self.system = system
        self.graph = graph
        self.num_ranks = num_ranks
        self.ranks: Ints = np.arange(num_ranks, dtype=np.int64)
        # Requests and responses have virtual channels of their own: a request that waits for room
        # in a reduction buffer does not hold up what others asked for.
        self.uplink = self._each("uplink", discipline=uplinks)
        self._takes_turns = uplinks == "turns"
        self._channels: dict[str, Ints] = {}
        self.downlink = self._each("downlink")
        self.hbm = self._each("hbm")
        self.host = self._each("host")
        fabric = system.fabric
        self._up_latency = fabric.uplink_latency_ps
        self._down_latency = fabric.downlink_latency_ps
        self._write_latency = fabric.downlink_latency_ps + fabric.write_visibility_ps
        self._nics: tuple[Ints, Ints] | None = None
        self._sms: dict[tuple[str, int], Ints] = {}
        self._rings: dict[tuple[int, int], Ints] = {}
        self._tables: dict[tuple[str, int, str, int], Ints] = {}
        self._buffers: dict[tuple[str, int, int], Ints] = {}
        self._num_touches = 0
        self._num_keys = 0
        self._followed: dict[str, list[tuple[Ints, Ints]]] = {"sent": [], "combined": []}
        self.notes = Notes(num_ranks)

    @cached_property
    def hub(self) -> Ints:
        """(rank,): the logic in front of a GPU's memory that keeps its tables."""
        return self._each("hub")

    def _each(self, group: str, servers: int = 1, discipline: Discipline = "fifo") -> Ints:
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

    def count(self, name: str, rank: Ints, amount: IntsLike = 1) -> None:
        """Count something that a result shall report; see `Notes.count`."""
        self.notes.count(name, rank, amount)

    def note_tiles(self, rank: Ints, rows: Ints, tile_rows: int) -> None:
        """Remember how full row tiles are.

        Parameters
        ----------
        rank, rows
            (tile,): whose it is, and rows in it.
        tile_rows
            Rows of a full tile.
        """
        self.notes.tiles.append((rank, rows, tile_rows))

    def note_polling(self, held: Ints, begun: Ints, rank: Ints) -> None:
        """Remember blocks that hold an SM while they wait for data.

        Parameters
        ----------
        held, begun
            (block,): the task whose start takes the SM, and the one whose start is the end of the
            wait.
        rank
            (block,): the GPU.
        """
        self.notes.polls.append((held, begun, rank))

    # ---- tables and buffers ----------------------------------------------------------------------

    def tables(
        self,
        group: str,
        entries: int,
        *,
        policy: Literal["lru", "fifo"] = "lru",
        patience_ps: int = 0,
    ) -> Ints:
        """Associative memories of every GPU: (rank,) tables.

        The same group, size, policy and patience are the same tables, in whichever layer; keys of
        different layers must differ (`new_keys`).
        """
        key = (group, entries, policy, patience_ps)
        if key not in self._tables:
            self._tables[key] = np.array(
                [
                    self.graph.table(
                        f"{group} {rank}",
                        entries,
                        group=group,
                        policy=policy,
                        patience_ps=patience_ps,
                    )
                    for rank in range(self.num_ranks)
                ],
                dtype=np.int64,
            )
        return self._tables[key]

    def new_keys(self, count: int) -> int:
        """First of so many keys that no table has seen."""
        first = self._num_keys
        self._num_keys += count
        return first

    def touch(
        self,
        group: str,
        tasks: Ints,
        table: Ints,
        key: Ints,
        *,
        lookups: IntsLike = 1,
        miss_latency_ps: int = 0,
        evict_duration_ps: IntsLike = 0,
        evict_wire_bytes: IntsLike = 0,
        charged: Ints | None = None,
        drops: bool = False,
    ) -> None:
        """Look keys up in tables when tasks start; see `GraphBuilder.touch`.

        Parameters
        ----------
        group
            Group of the tables, for reports.
        tasks, table, key
            (touch,).
        lookups
            Lookups in a row that a touch stands for; 0 for one that only forgets.
        evict_wire_bytes
            What an eviction puts on the port that `charged` occupies.
        """
        self.graph.touch(
            tasks,
            table,
            key,
            miss_latency_ps=miss_latency_ps,
            evict_duration_ps=evict_duration_ps,
            charged=charged,
            drops=drops,
        )
        count = len(tasks)
        self.notes.touches.setdefault(group, []).append(
            TouchNotes(
                np.arange(self._num_touches, self._num_touches + count),
                np.broadcast_to(np.asarray(lookups, np.int64), count),
                np.broadcast_to(np.asarray(evict_wire_bytes, np.int64), count),
            )
        )
        self._num_touches += count

    def buffers(self, group: str, capacity: int, per_rank: int = 1) -> Ints:
        """Finite buffers of every GPU: credit pools (rank, buffer), or (rank,) where it has one.

        The same group and sizes are the same buffers, in whichever layer.
        """
        key = (group, capacity, per_rank)
        if key not in self._buffers:
            several = per_rank > 1
            pools = [
                self.graph.credit_pool(
                    f"{group} {rank}.{index}" if several else f"{group} {rank}",
                    capacity,
                    group=group,
                )
                for rank in range(self.num_ranks)
                for index in range(per_rank)
            ]
            shape = (self.num_ranks, per_rank) if several else (self.num_ranks,)
            self._buffers[key] = np.array(pools, np.int64).reshape(shape)
        return self._buffers[key]

    def channel(self, tasks: Ints, rank: Ints, name: str) -> None:
        """Send messages (message,) on a virtual channel of the uplinks of `rank` (message,).

        Uplinks that serve in turn go from channel to channel. A message occupies its channel at the
        port while it is served; what the switch has room for is another matter.
        """
        if not self._takes_turns or not len(tasks):
            return
        if name not in self._channels:
            pools = [
                self.graph.credit_pool(f"uplink {rank} {name}", 1) for rank in range(self.num_ranks)
            ]
            self._channels[name] = np.array(pools, np.int64)
        self.graph.take(tasks, self._channels[name][rank])

    def arbiters(self, group: str, per_rank: int, discipline: Discipline) -> Ints:
        """Units of every GPU that decide who is next, in no time: (rank, unit) resources.

        The same group and number are the same units, in whichever layer.
        """
        key = (group, per_rank)
        if key not in self._sms:
            self._sms[key] = np.array(
                [
                    self.graph.resource(f"{group} {rank}.{unit}", group, 1, discipline, rank)
                    for rank in range(self.num_ranks)
                    for unit in range(per_rank)
                ],
                dtype=np.int64,
            ).reshape(self.num_ranks, per_rank)
        return self._sms[key]

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
