"""DySHARP's rows on their way: pushed to all GPUs of a token, pulled back as one sum.

Source: arXiv 2605.05607, sections III-A to III-C. `Rows` does it with the switch
(`dymultimem.st`, `dymultimem.ld_reduce`) or with ordinary stores and loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.compute.casts import casting, tokens_read
from replay.machine.in_switch import UNNAMED, Eviction, Naming
from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.machine.times import NO_TIME, MemoryTraffic, Time
from replay.schemes.dysharp.options import RowOptions, SwitchOptions

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.machine.sms import Split
    from replay.schemes.dysharp.hub import Hub
    from replay.schemes.dysharp.units import Units
    from replay.work.layer import LayerWork

NOTIFY_BYTES = 8  # one counter update; the paper gives no size, a flit holds it
WEIGHT_BYTES = 4  # FP32
ID_BYTES = 2  # as in target lists
IDS_PER_FLIT = 8  # a target extension flit holds eight 16-bit expert ids (section III-B)


class Rows:
    """All movement of one layer's rows.

    Parameters
    ----------
    options
        `SwitchOptions` have the switch copy and add; with plain `RowOptions` it passes on what
        goes to, and comes from, each GPU.
    units
        What of each token is one message.
    hub
        Tables at the destinations.
    kernels
        SMs of the kernel that dispatches, and of the one that combines; they may be one kernel.
    """

    def __init__(
        self,
        work: LayerWork,
        machine: Machine,
        options: RowOptions,
        units: Units,
        hub: Hub,
        kernels: tuple[Split, Split],
    ) -> None:
        self._work, self._machine, self._units, self._hub = work, machine, units, hub
        self._options, self._kernels = options, kernels
        self._switch = options if isinstance(options, SwitchOptions) else None
        loops = self._switch is not None and self._switch.loopback
        self._through = np.flatnonzero(~units.in_place | loops)
        self._inside = np.flatnonzero(units.in_place & (not loops))
        self._for_others: list[tuple[Ints, Ints]] = []  # tasks for other domains' tokens, and ranks

    # ---- dispatch --------------------------------------------------------------------------------

    def push(self, begun: Ints) -> Ints:
        """Push every token: (copy,) tasks, visible when the copy is in its GPU's memory."""
        work, machine, units = self._work, self._machine, self._units
        sizes, packets = self._segments(work.dispatch_row_bytes)
        sends, of = self._messages()
        inside = units.of_copy[self._inside]
        num = len(sizes)
        # An SM takes one token after the other, and of a token what leaves before what stays.
        near, stays = sends < work.num_tokens, inside < work.num_tokens
        item = np.concatenate((units.abroad, sends[near], inside[stays]))
        order = np.argsort(units.token[item], kind="stable")
        token = units.token[item[order]]
        rank = work.source_rank[token]
        lanes = self._kernels[0].channels("dysharp-dispatch", self._options.dispatch_sms)
        posts, leaves = len(units.abroad), len(units.abroad) + int(near.sum())
        is_sent = np.repeat(order < leaves, num)
        # A row is cast once, by the SM that has the token: before what leaves first.
        cast = np.repeat(np.diff(token, prepend=-1) != 0, num)
        made = np.where(cast, np.tile(sizes, len(order)), 0)
        read = tokens_read(machine, work, begun)
        stored = machine.serve(
            np.repeat(lanes[rank, units.lane(token, lanes.shape[1])], num),
            machine.costs.sm_store(np.tile(sizes, len(order))) + casting(machine, work, made),
            late=Time.where(is_sent, NO_TIME, machine.costs.visible()),
            kind=DISPATCH.send,
            rank=np.repeat(rank, num),
            after=np.repeat(read[token], num),
        )
        machine.notes.follow("sent", np.repeat(token, num), stored)
        of_item = np.empty((len(order), num), np.int64)
        of_item[order] = stored.reshape(-1, num)
        issued, placed = (np.empty((len(of_units), num), np.int64) for of_units in (sends, inside))
        issued[near], placed[stays] = of_item[posts:leaves], of_item[leaves:]
        if posts:
            came = self._cross(of_item[:posts], begun)
            issued[~near], placed[~stays] = self._pass_on(came, sends[~near], inside[~stays])
        sm = lanes[units.place[sends], units.lane(sends, lanes.shape[1])]
        landed = self._send(sends, of, issued.ravel(), np.repeat(sm, num), sizes, packets)
        arrived = np.empty(len(work.copy_token), np.int64)
        for copies, tasks in ((self._through, landed), (self._inside, placed.ravel())):
            spread = np.repeat(copies, num)
            self._hub.translate(spread, tasks, np.tile(packets, len(copies)))
            self._hub.arrive(spread, tasks, np.tile(packets, len(copies)))
            arrived[copies] = self._joined(work.copy_rank[copies], tasks, num)
        return arrived

    def _cross(self, issued: Ints, begun: Ints) -> Ints:
        """Send rows to other domains: (unit, segment) tasks at which the GPU there knows of them.

        Parameters
        ----------
        issued
            (unit, segment): tasks of the owners' SMs.
        """
        work, machine, units = self._work, self._machine, self._units
        sizes, _ = self._segments(work.dispatch_row_bytes)
        num, abroad = len(sizes), units.abroad
        src, dst = work.source_rank[units.token[abroad]], units.place[abroad]
        # The GPU there is told the experts of its domain, and their weights.
        each = ID_BYTES + (WEIGHT_BYTES if self._options.gate_weights == "packets" else 0)
        beside = np.zeros((len(abroad), num), np.int64)
        beside[:, -1] = each * self._experts_of_unit[abroad]
        came = machine.transfers.store(
            DISPATCH, np.repeat(src, num), np.repeat(dst, num), np.tile(sizes, len(abroad)),
            issued.ravel(), machine.transfers.fan_out(src, dst), meta_bytes=beside.ravel(),
        ).arrived  # fmt: skip
        there = np.repeat(dst, num)
        known = machine.delay(DISPATCH.sync, machine.costs.poll(), came, there)
        machine.graph.edges(begun[there], known)
        return known.reshape(-1, num)

    def _pass_on(self, came: Ints, sends: Ints, inside: Ints) -> tuple[Ints, Ints]:
        """Push rows of other domains: tasks of the SMs by what leaves and by what stays.

        Parameters
        ----------
        came
            (unit abroad, segment): tasks at which the GPU knows of them.
        sends, inside
            Units whose rows leave the GPU that they have come to, and that have a copy there.
        """
        machine, units = self._machine, self._units
        sizes, _ = self._segments(self._work.dispatch_row_bytes)
        num, item = len(sizes), np.concatenate((sends, inside))
        order = np.argsort(item, kind="stable")
        unit = item[order]
        rank = units.place[unit]
        lanes = self._kernels[0].channels("dysharp-dispatch", self._options.dispatch_sms)
        is_sent = np.repeat(order < len(sends), num)
        stored = machine.serve(
            np.repeat(lanes[rank, units.lane(unit, lanes.shape[1])], num),
            machine.costs.sm_store(np.tile(sizes, len(order))),
            late=Time.where(is_sent, NO_TIME, machine.costs.visible()),
            kind=DISPATCH.send,
            rank=np.repeat(rank, num),
            after=came[unit - units.abroad[0]].ravel(),
        )
        self._for_others.append((stored, np.repeat(rank, num)))
        of_item = np.empty((len(order), num), np.int64)
        of_item[order] = stored.reshape(-1, num)
        return of_item[: len(sends)], of_item[len(sends) :]

    @property
    def _experts_of_unit(self) -> Ints:
        """(unit,): experts of the token in the domain."""
        units = self._units
        return np.bincount(units.of_copy, self._work.copy_pairs, len(units)).astype(np.int64)

    def _messages(self) -> tuple[Ints, Ints]:
        """Units of the messages to the switch (message,), and the message of each copy (copy,)."""
        unit = self._units.of_copy[self._through]
        if self._switch is None:
            return unit, np.arange(len(unit))
        sends, of = np.unique(unit, return_inverse=True)
        return sends, of

    def _send(
        self, sends: Ints, of: Ints, issued: Ints, sm: Ints, sizes: Ints, packets: Ints
    ) -> Ints:
        """Send the segments of messages: (copy x segment,) tasks at the destinations.

        Parameters
        ----------
        sends, of
            See `_messages`.
        issued, sm
            (message x segment,): tasks that issue them, and the SMs on which these run.
        sizes, packets
            See `_segments`.
        """
        work, machine, num = self._work, self._machine, len(sizes)
        src, dst = self._units.place[sends], work.copy_rank[self._through]
        nbytes, meta_bytes = np.tile(sizes, len(sends)), self._metadata(sends, of, num)
        if self._switch is None:
            return machine.transfers.store(
                DISPATCH, np.repeat(src, num), np.repeat(dst, num), nbytes, issued,
                machine.transfers.fan_out(src, dst), meta_bytes=meta_bytes,
                on=machine.buffers.outboxes(sm),
            ).arrived  # fmt: skip
        spread = machine.switch.multicast(
            DISPATCH,
            np.repeat(src, num),
            _spread(of, num),
            np.repeat(dst, num),
            nbytes,
            issued,
            meta_bytes=meta_bytes,
            naming=self._naming(sends, of, num),
            at_line_rate=self._switch.port_rate == "line",
        )
        self._queue("dispatch", sends, issued, spread.left, packets)
        return spread.arrived

    # ---- combine ---------------------------------------------------------------------------------

    def notify(self, ready: Ints) -> Ints:
        """Tell who pulls a token that a GPU's rows of it are `ready` (copy,): (copy,) tasks."""
        machine, units = self._machine, self._units
        place, remote = units.place[units.of_copy], np.flatnonzero(~units.in_place)
        noticed = ready.copy()
        noticed[remote] = machine.sync.notify(
            self._work.copy_rank[remote], place[remote], NOTIFY_BYTES, ready[remote]
        )
        counted = self._hub.count_ready(units.of_copy, noticed)
        return machine.delay(Kind.COMBINE_SYNC, machine.costs.poll(), counted, rank=place)

    def pull(self, begun: Ints, complete: Ints) -> Ints:
        """Pull the sums of tokens that are `complete` (unit,): (rank,) marks of the end."""
        work, machine, units = self._work, self._machine, self._units
        sizes, packets = self._segments(work.combine_row_bytes)
        num = len(sizes)
        pulled, of = self._messages()
        lanes = self._kernels[1].channels("dysharp-combine", self._options.combine_sms)
        place = units.place[pulled]
        lane = lanes[place, units.lane(pulled, lanes.shape[1])]
        # Rows of each copy that are added by nobody before they are pulled, which without the
        # switch is done one by one.
        rows = work.copy_pairs if self._options.answers == "expert" else work.copy_pairs.clip(max=1)
        answers = rows[self._through] if self._switch is None else np.ones(len(pulled), np.int64)
        asking = machine.serve(
            np.repeat(lane, num),
            machine.costs.sm_load(np.tile(sizes, len(pulled)) * np.repeat(answers, num)),
            kind=COMBINE.send,
            rank=np.repeat(place, num),
            after=np.repeat(complete[pulled], num),
        )
        unit, first = np.unique(pulled, return_index=True)
        # Sums of other domains are counted until the last has come.
        awaited = np.isin(unit, units.token[units.abroad])
        self._hub.combined(unit[~awaited], asking[first[~awaited] * num])
        fetched = self._fetch(pulled, of, asking, answers, sizes, packets)
        # Who pulls adds the row of its own experts (and, without the switch, all contributions).
        rows_in = np.zeros(len(units), np.int64)
        np.add.at(rows_in, units.of_copy[self._inside], rows[self._inside])
        np.add.at(rows_in, pulled, answers)
        came_back = self._sums_abroad(complete, pulled, fetched, rows_in, lanes)
        np.add.at(rows_in, units.token[units.abroad], 1)
        tokens = np.flatnonzero(rows_in[: work.num_tokens])
        added_at = np.full(len(units), -1, np.int64)
        added_at[tokens] = np.arange(len(tokens))
        rank = work.source_rank[tokens]
        row_bytes = work.combine_row_bytes
        added = machine.serve(
            lanes[rank, units.lane(tokens, lanes.shape[1])],
            machine.costs.sm_add(rows_in[tokens] * row_bytes, row_bytes),
            kind=COMBINE.receive,
            rank=rank,
            after=complete[tokens],
        )
        near = np.repeat(pulled < work.num_tokens, num)
        machine.graph.edges(fetched[near], np.repeat(added[added_at[pulled]], num)[near])
        pulled_by = added
        if len(units.abroad):
            summed, told = came_back
            machine.graph.edges(told, added[added_at[units.token[units.abroad]]])
            added_at[units.abroad] = len(added) + np.arange(len(summed))
            pulled_by = np.concatenate((added, summed))
        self._read_results(complete, pulled_by[added_at[units.of_copy]])
        # A token whose experts are all on its owner's GPU is not asked for.
        own = np.union1d(np.setdiff1d(tokens, pulled), unit[awaited])
        self._hub.combined(own, added[added_at[own]])
        sums = MemoryTraffic(read=0, written=np.full(len(tokens), row_bytes))
        written = machine.stream(COMBINE.memory, sums, rank, added)
        machine.notes.follow("combined", tokens, written)
        ends = machine.gather(written, rank, begun)
        for tasks, ranks in self._for_others:
            ends = machine.gather(tasks, ranks, ends)
        return ends

    def _sums_abroad(
        self, complete: Ints, pulled: Ints, fetched: Ints, rows_in: Ints, lanes: Ints
    ) -> tuple[Ints, Ints]:
        """Add tokens up in other domains and send the sums back: two (unit abroad,).

        Returns
        -------
        Tasks that add, and tasks at which the owner knows of the sum.
        """
        work, machine, units = self._work, self._machine, self._units
        abroad, row_bytes = units.abroad, work.combine_row_bytes
        if not len(abroad):
            return abroad, abroad
        place, owner = units.place[abroad], work.source_rank[units.token[abroad]]
        summed = machine.serve(
            lanes[place, units.lane(abroad, lanes.shape[1])],
            machine.costs.sm_add(rows_in[abroad] * row_bytes, row_bytes),
            kind=COMBINE.receive,
            rank=place,
            after=complete[abroad],
        )
        num = len(fetched) // max(len(pulled), 1)
        far = np.repeat(pulled >= work.num_tokens, num)
        machine.graph.edges(fetched[far], summed[np.repeat(pulled, num)[far] - abroad[0]])
        self._hub.combined(np.setdiff1d(abroad, pulled), summed[~np.isin(abroad, pulled)])
        back = machine.transfers.store(
            COMBINE, place, owner, row_bytes, summed, machine.transfers.fan_out(place, owner)
        )
        self._for_others.append((back.left, place))
        counted = self._hub.count_ready(units.token[abroad], back.arrived)
        return summed, machine.delay(COMBINE.sync, machine.costs.poll(), counted, owner)

    def _read_results(self, complete: Ints, added: Ints) -> None:
        """Read the rows of every copy from memory before its token is `added` (copy,)."""
        work, machine = self._work, self._machine
        if self._options.results == "memory":
            rows = MemoryTraffic(work.copy_pairs * work.combine_row_bytes, np.zeros_like(added))
            ready = complete[self._units.of_copy]
            read = machine.stream(COMBINE.memory, rows, work.copy_rank, ready)
            machine.graph.edges(read, added)

    def _fetch(
        self, pulled: Ints, of: Ints, asking: Ints, answers: Ints, sizes: Ints, packets: Ints
    ) -> Ints:
        """Pull the segments of messages: (message x segment,) tasks at the owners."""
        work, machine, num = self._work, self._machine, len(sizes)
        owner, target = self._units.place[pulled], work.copy_rank[self._through]
        readers, nbytes = np.repeat(owner, num), np.tile(sizes, len(pulled))
        copies = np.repeat(self._through, num)
        if self._switch is None:
            asked, arrived = machine.transfers.load(
                COMBINE, readers, np.repeat(target, num), nbytes, asking,
                machine.transfers.fan_out(owner, target), rows=np.repeat(answers, num),
            )  # fmt: skip
        else:
            switch, eviction = self._switch, None
            if switch.reduction == "evict":
                eviction = Eviction(
                    machine.costs.ns(switch.reduction_timeout_ns),
                    machine.caches.new_keys(len(readers)),
                )
            summed = machine.switch.reduce(
                COMBINE,
                readers,
                _spread(of, num),
                np.repeat(target, num),
                nbytes,
                asking,
                answers=self._answers(num),
                naming=self._naming(pulled, of, num),
                eviction=eviction,
                at_line_rate=switch.port_rate == "line",
            )
            asked, arrived = summed.asked, summed.total
            self._queue("combine", pulled, asking, summed.requested, packets)
        self._hub.translate(copies, asked, np.tile(packets, len(self._through)))
        return arrived

    def _answers(self, num: int) -> Ints | None:
        """(answer,): the request that each answer is to, with `num` segments a row."""
        if self._options.answers == "gpu":
            return None
        request = np.arange(len(self._through) * num)
        return np.repeat(request, np.repeat(self._work.copy_pairs[self._through], num))

    # ---- packets ---------------------------------------------------------------------------------

    def _segments(self, row_bytes: int) -> tuple[Ints, Ints]:
        """Bytes and packets of each segment of a row: two (segment,)."""
        payload = self._machine.transfers.packet_bytes
        size = self._options.segment_packets * payload or row_bytes
        sizes = np.full(-(-row_bytes // size), size, np.int64)
        sizes[-1] = row_bytes - size * (len(sizes) - 1)
        return sizes, -(-sizes // payload)

    def _metadata(self, sends: Ints, of: Ints, num: int) -> Ints:
        """Bytes behind the rows of messages of `num` segments each: (message x segment,).

        The last segment has the gate weights of the experts that the message is for, which GEMM-2
        applies. Without the switch's lists it has the experts' ids as well.
        """
        nbytes = np.zeros((len(sends), num), np.int64)
        if self._options.gate_weights == "packets":
            each = WEIGHT_BYTES + (ID_BYTES if self._switch is None else 0)
            experts = np.bincount(of, self._work.copy_pairs[self._through], len(sends))
            nbytes[:, -1] = each * experts.astype(np.int64)
        return nbytes.ravel()

    def _naming(self, sends: Ints, of: Ints, num: int) -> Naming:
        """Flits that name the targets of messages of `num` segments each."""
        work, switch = self._work, self._switch
        assert switch is not None
        if switch.addressing == "free":
            return UNNAMED
        if switch.addressing == "explicit":
            further = np.repeat(np.bincount(of, minlength=len(sends)) - 1, num)
            return Naming(at_source=further, answered=further)
        experts = work.copy_pairs[self._through]
        listed = np.bincount(of, weights=experts, minlength=len(sends)).astype(np.int64)
        at_source = -(-listed // IDS_PER_FLIT)
        at_target = {
            "trimmed": -(-experts // IDS_PER_FLIT),
            "kept": at_source[of],
            "stripped": np.zeros_like(experts),
        }[switch.target_lists]
        return Naming(np.repeat(at_source, num), np.repeat(at_target, num))

    def _queue(self, phase: str, sends: Ints, issued: Ints, sent: Ints, packets: Ints) -> None:
        """Hold places in the SMs' queues from the issue of packets until they have left."""
        work, switch = self._work, self._switch
        assert switch is not None
        if not switch.multimem_queue:
            return
        num_sms = switch.dispatch_sms if phase == "dispatch" else switch.combine_sms
        most = int(packets.max())
        room = most + max(switch.multimem_queue, most)
        pools = self._machine.buffers.pools(f"MultimemQ ({phase})", room, num_sms)
        lane = self._units.lane(sends, num_sms)
        pool = pools.reshape(work.num_ranks, num_sms)[self._units.place[sends], lane]
        units = np.tile(packets, len(sends))
        self._machine.graph.take(issued, np.repeat(pool, len(packets)), units, released_by=sent)

    def _joined(self, rank: Ints, tasks: Ints, num: int) -> Ints:
        """(copy,) tasks after all segments (copy x segment,) of each."""
        if num == 1:
            return tasks
        marks = self._machine.mark(rank)
        self._machine.graph.edges(tasks, np.repeat(marks, num))
        return marks


def _spread(of: Ints, num: int) -> Ints:
    """(copy x segment,): the message of each segment, messages having `num` segments."""
    spread: Ints = (of[:, None] * num + np.arange(num)).ravel()
    return spread
