"""Utilisation by windows of time, of a schedule that may come in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.engine.sums import busy_by_window
from replay.measure.parts import UtilisationOverTime

if TYPE_CHECKING:
    from replay.measure.pools import Pools
    from replay.measure.progress import TaskProgress
    from replay.model.arrays import Ints

NUM_WINDOWS = 64  # at most
SHORTEST_PS = 1000


class OverTime:
    """Time in service by window, whose length doubles when there would be too many."""

    def __init__(self) -> None:
        self._window_ps = SHORTEST_PS
        self._last_ps = 0
        # By group and by how many queues of a server: see `Pools.parts`.
        self._rows: dict[tuple[str, int], int] = {}
        self._busy = np.zeros((0, NUM_WINDOWS), np.int64)

    def add(self, progress: TaskProgress, pools: Pools) -> None:
        """Go on with a piece."""
        timeline, is_done = progress.timeline, progress.is_done
        over = timeline.visible_ps if is_done is None else timeline.visible_ps[is_done]
        self._last_ps = int(over.max(initial=self._last_ps))
        while self._last_ps > NUM_WINDOWS * self._window_ps:
            self._window_ps *= 2
            if len(self._busy):
                pairs = self._busy.reshape(-1, NUM_WINDOWS // 2, 2).sum(axis=2)
                self._busy = np.concatenate((pairs, np.zeros_like(pairs)), axis=1)
        row = self._row_of_resource(pools)
        more = np.zeros((len(self._rows) - len(self._busy), NUM_WINDOWS), np.int64)
        self._busy = np.concatenate((self._busy, more))
        drawn = timeline.drawn
        of = None if is_done is None else is_done[timeline.graph.touches.task[drawn.touch]]
        services = [
            (timeline.graph.resource, timeline.start_ps, timeline.end_ps, is_done),
            (drawn.resource, drawn.start_ps, drawn.end_ps, of),
        ]
        # One window more, in which services of no time end.
        shape = (len(self._rows), NUM_WINDOWS + 1)
        self._busy += busy_by_window(services, self._window_ps, row, shape)[:, :NUM_WINDOWS]

    def result(self, pools: Pools) -> UtilisationOverTime:
        """Share of the servers of each group in service; the pools are those of the whole graph."""
        count = max(1, -(-self._last_ps // self._window_ps))
        names = sorted(set(pools.groups))
        servers, busy = dict.fromkeys(names, 0), np.zeros((len(names), count), np.int64)
        for group, capacity in zip(pools.groups, pools.capacity.tolist(), strict=True):
            servers[group] += capacity
        for (group, parts), row in self._rows.items():
            busy[names.index(group)] += pools.whole // parts * self._busy[row, :count]
        window = self._window_ps * pools.whole  # a Python int: many parts of long windows exceed 64 bits
        offered = np.array([num_servers * window for num_servers in servers.values()], np.float64)
        shares = np.round(busy / offered[:, None], 6).tolist()
        return UtilisationOverTime(window_us=self._window_ps / 1e6, groups=dict(zip(names, shares, strict=True)))

    def _row_of_resource(self, pools: Pools) -> Ints:
        """(resource,): the row that its services are added to."""
        names = list(dict.fromkeys(pools.groups))
        number = {name: index for index, name in enumerate(names)}
        group = np.array([number[name] for name in pools.groups], np.int64)[pools.pool]
        width = int(pools.parts.max()) + 1
        key = group * width + pools.parts
        # Keys are few and small: counting finds those that occur without a sort.
        has_key = np.bincount(key) > 0
        row = np.zeros(has_key.size, np.int64)
        for one in has_key.nonzero()[0].tolist():
            row[one] = self._rows.setdefault((names[one // width], one % width), len(self._rows))
        of_resource: Ints = row[key]
        return of_resource
