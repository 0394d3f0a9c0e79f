"""The push of DySHARP: every token goes to all GPUs that have experts of it.

With `dymultimem.st` one packet stream leaves the owner and the switch copies it once per port;
without, ordinary stores go to each GPU. Rows for other domains cross to the GPU of the owner's
index there, whose SMs push them on (`units.py`).

Source: arXiv 2605.05607, sections III-A to III-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.casts import casting, tokens_read
from replay.model.machine.kinds import DISPATCH
from replay.model.machine.times import NO_TIME, Time
from replay.schemes.ep.dysharp.messages import Messages, of_segments

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks

WEIGHT_BYTES = 4  # FP32
ID_BYTES = 2  # as in target lists


class PushTasks(NamedTuple):
    """Tasks of the push.

    Attributes
    ----------
    arrived
        (copy,): visible when the copy is in its GPU's memory.
    passed_on
        Two (task,): tasks of SMs that push rows of other domains on, and the rank of each.
    """

    arrived: Tasks
    passed_on: tuple[Ints, Ints]


class Push(Messages):
    """The way of one layer's rows to their experts."""

    def push(self, begun: Tasks) -> PushTasks:
        """Push every token, once the kernel has `begun` (rank,)."""
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
        lanes = self._kernel.channels("dysharp-dispatch", self._options.dispatch_sms)
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
        passed_on = units.abroad, units.abroad  # empty where nothing is for other domains
        if posts:
            came = self._cross(of_item[:posts], begun)
            issued[~near], placed[~stays], passed_on = self._pass_on(came, sends[~near], inside[~stays])
        sm = lanes[units.place[sends], units.lane(sends, lanes.shape[1])]
        landed = self._send(sends, of, issued.ravel(), np.repeat(sm, num), sizes, packets)
        arrived = np.empty(len(work.copy_token), np.int64)
        for copies, tasks in ((self._through, landed), (self._inside, placed.ravel())):
            spread = np.repeat(copies, num)
            self._hub.translate(spread, tasks, np.tile(packets, len(copies)))
            self._hub.arrive(spread, tasks, np.tile(packets, len(copies)))
            arrived[copies] = self._join(work.copy_rank[copies], tasks, num)
        return PushTasks(arrived, passed_on)

    def _cross(self, issued: Ints, begun: Tasks) -> Tasks:
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
            DISPATCH,
            np.repeat(src, num),
            np.repeat(dst, num),
            np.tile(sizes, len(abroad)),
            issued.ravel(),
            meta_bytes=beside.ravel(),
        ).arrived
        there = np.repeat(dst, num)
        known = machine.delay(DISPATCH.sync, machine.costs.poll(), came, there)
        machine.order(begun[there], known)
        return known.reshape(-1, num)

    def _pass_on(self, came: Ints, sends: Ints, inside: Ints) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
        """Push rows of other domains: tasks of the SMs by what leaves and by what stays.

        Last come all these tasks, in the order in which the SMs take them, and their ranks.

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
        lanes = self._kernel.channels("dysharp-dispatch", self._options.dispatch_sms)
        is_sent = np.repeat(order < len(sends), num)
        stored = machine.serve(
            np.repeat(lanes[rank, units.lane(unit, lanes.shape[1])], num),
            machine.costs.sm_store(np.tile(sizes, len(order))),
            late=Time.where(is_sent, NO_TIME, machine.costs.visible()),
            kind=DISPATCH.send,
            rank=np.repeat(rank, num),
            after=came[unit - units.abroad[0]].ravel(),
        )
        of_item = np.empty((len(order), num), np.int64)
        of_item[order] = stored.reshape(-1, num)
        passed_on = stored, np.repeat(rank, num)
        return of_item[: len(sends)], of_item[len(sends) :], passed_on

    @property
    def _experts_of_unit(self) -> Ints:
        """(unit,): experts of the token in the domain."""
        units = self._units
        return np.bincount(units.of_copy, self._work.copy_pairs, len(units)).astype(np.int64)

    def _send(self, sends: Ints, of: Ints, issued: Ints, sm: Ints, sizes: Ints, packets: Ints) -> Ints:
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
                DISPATCH,
                np.repeat(src, num),
                np.repeat(dst, num),
                nbytes,
                issued,
                meta_bytes=meta_bytes,
                on=sm,
            ).arrived
        spread = machine.switch.multicast(
            DISPATCH,
            np.repeat(src, num),
            of_segments(of, num),
            np.repeat(dst, num),
            nbytes,
            issued,
            meta_bytes=meta_bytes,
            naming=self._naming(sends, of, num),
            at_line_rate=self._switch.port_rate == "line",
        )
        self._queue("dispatch", sends, issued, spread.left, packets)
        return spread.arrived

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

    def _join(self, rank: Ranks, tasks: Tasks, num: int) -> Tasks:
        """(copy,) tasks after all segments (copy x segment,) of each."""
        if num == 1:
            return tasks
        marks = self._machine.mark(rank)
        self._machine.order(tasks, np.repeat(marks, num))
        return marks
