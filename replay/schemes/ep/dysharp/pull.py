"""The pull of DySHARP: a token's owner asks for its rows and gets their sum.

With `dymultimem.ld_reduce` the switch copies the request and adds the answers; without, ordinary
loads fetch every row and the owner's SMs add. In other domains the GPU of the owner's
index does so, and sends the sum back (`units.py`).

Source: arXiv 2605.05607, sections III-A to III-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.in_switch import Eviction
from replay.model.machine.kinds import COMBINE, Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep.dysharp.messages import Messages, of_segments

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks

NOTIFY_BYTES = 8  # one counter update; the paper gives no size, a flit holds it


class Pull(Messages):
    """The way of one layer's results back to the tokens' owners, as sums."""

    def notify(self, ready: Tasks) -> Tasks:
        """Tell who pulls a token that a GPU's rows of it are `ready` (copy,): (copy,) tasks."""
        machine, units = self._machine, self._units
        place, remote = units.place[units.of_copy], np.flatnonzero(~units.in_place)
        noticed = ready.copy()
        noticed[remote] = machine.sync.notify(self._work.copy_rank[remote], place[remote], NOTIFY_BYTES, ready[remote])
        counted = self._hub.count_ready(units.of_copy, noticed)
        return machine.delay(Kind.COMBINE_SYNC, machine.costs.poll(), counted, rank=place)

    def pull(self, begun: Tasks, complete: Ints, passed_on: tuple[Ints, Ints]) -> Ints:
        """Pull the sums of tokens: (rank,) marks of the end.

        Parameters
        ----------
        begun
            (rank,): the kernel has begun.
        complete
            (unit,): the rows to be added are there.
        passed_on
            See `PushTasks`: what the GPUs have to end, too.
        """
        work, machine, units = self._work, self._machine, self._units
        sizes, packets = self._segments(work.combine_row_bytes)
        num = len(sizes)
        pulled, of = self._messages()
        lanes = self._kernel.channels("dysharp-combine", self._options.combine_sms)
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
        self._hub.forget_complete(unit[~awaited], asking[first[~awaited] * num])
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
        machine.order(fetched[near], np.repeat(added[added_at[pulled]], num)[near])
        pulled_by = added
        if len(units.abroad):
            summed, told, left = came_back
            machine.order(told, added[added_at[units.token[units.abroad]]])
            added_at[units.abroad] = len(added) + np.arange(len(summed))
            pulled_by = np.concatenate((added, summed))
        self._read_results(complete, pulled_by[added_at[units.of_copy]])
        # A token whose experts are all on its owner's GPU is not asked for.
        is_own = np.zeros(len(units), np.bool_)
        is_own[tokens], is_own[pulled], is_own[unit[awaited]] = True, False, True
        own = is_own.nonzero()[0]
        self._hub.forget_complete(own, added[added_at[own]])
        sums = MemoryTraffic(read=0, written=np.full(len(tokens), row_bytes))
        written = machine.stream(COMBINE.memory, sums, rank, added)
        machine.notes.follow("combined", tokens, written)
        ends = machine.gather(written, rank, begun)
        if len(units.abroad):
            ends = machine.gather(*passed_on, ends)
            ends = machine.gather(left, units.place[units.abroad], ends)
        return ends

    def _sums_abroad(
        self, complete: Ints, pulled: Ints, fetched: Ints, rows_in: Ints, lanes: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Add tokens up in other domains and send the sums back: three (unit abroad,).

        Returns
        -------
        Tasks that add, tasks at which the owner knows of the sum, and tasks at which it has left.
        """
        work, machine, units = self._work, self._machine, self._units
        abroad, row_bytes = units.abroad, work.combine_row_bytes
        if not len(abroad):
            return abroad, abroad, abroad
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
        machine.order(fetched[far], summed[np.repeat(pulled, num)[far] - abroad[0]])
        self._hub.forget_complete(np.setdiff1d(abroad, pulled), summed[~np.isin(abroad, pulled)])
        back = machine.transfers.store(COMBINE, place, owner, row_bytes, summed)
        counted = self._hub.count_ready(units.token[abroad], back.arrived)
        told = machine.delay(COMBINE.sync, machine.costs.poll(), counted, owner)
        return summed, told, back.left

    def _read_results(self, complete: Ints, added: Ints) -> None:
        """Read the rows of every copy from memory before its token is `added` (copy,)."""
        work, machine = self._work, self._machine
        if self._options.results == "memory":
            rows = MemoryTraffic(work.copy_pairs * work.combine_row_bytes, np.zeros_like(added))
            ready = complete[self._units.of_copy]
            read = machine.stream(COMBINE.memory, rows, work.copy_rank, ready)
            machine.order(read, added)

    def _fetch(self, pulled: Ints, of: Ints, asking: Ints, answers: Ints, sizes: Ints, packets: Ints) -> Ints:
        """Pull the segments of messages: (message x segment,) tasks at the owners."""
        work, machine, num = self._work, self._machine, len(sizes)
        owner, target = self._units.place[pulled], work.copy_rank[self._through]
        readers, nbytes = np.repeat(owner, num), np.tile(sizes, len(pulled))
        copies = np.repeat(self._through, num)
        if self._switch is None:
            asked, arrived = machine.transfers.load(
                COMBINE,
                readers,
                np.repeat(target, num),
                nbytes,
                asking,
                rows=np.repeat(answers, num),
            )
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
                of_segments(of, num),
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
