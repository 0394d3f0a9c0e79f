# mypy: allow-untyped-defs, allow-untyped-calls
"""Before the layout: what is to be known of each resource."""

from __future__ import annotations

import numpy as np

from replay.engine.kernels.compiling import entry
from replay.engine.kernels.layout import SURVEY
from replay.engine.kernels.memory import Fixed, Memory, Records, Stepped, Vector


class Surveyed(Memory):
    """Columns that the survey reads, and the resources, the null one last."""

    num_tasks = Fixed()
    num_touches = Fixed()
    null = Fixed()
    has_credits = Fixed()
    has_levels = Fixed()  # whether tasks have different priorities
    resource = Stepped()
    priority = Stepped()
    duration = Stepped()
    latency = Stepped()
    take_indptr = Vector(np.int32)
    give_indptr = Vector(np.int32)
    toucher = Stepped()  # of each touch
    charged = Stepped()
    miss_latency = Stepped()
    resources = Records(SURVEY)


@entry(Surveyed)
def survey(s):
    """Count tasks per resource and note what keeps a resource from being a simple stream."""
    for task in range(s.num_tasks):
        where = s.resource[task]
        is_null = where < 0
        if is_null:
            where = s.null
        found = s.resources[where]
        if found.tasks == 0:
            found.first_priority = s.priority[task]
        elif s.has_levels != 0 and found.first_priority != s.priority[task]:
            found.is_mixed = 1
        found.tasks += 1
        takes = 0
        if s.has_credits != 0:
            takes = s.take_indptr[task + 1] - s.take_indptr[task]
            gives = s.give_indptr[task + 1] - s.give_indptr[task]
            if takes > 0:
                found.takers += 1
            elif gives > 0:
                found.givers += 1
            if takes > found.most_takes:
                found.most_takes = takes
            if gives > found.most_gives:
                found.most_gives = gives
        if s.duration[task] == 0 and (takes > 0 or not is_null):
            found.zero += 1
            if s.latency[task] == 0:
                found.instant += 1
    for touch in range(s.num_touches):  # tasks that touch or are charged hold a server
        found = s.resources[s.resource[s.toucher[touch]]]
        found.looks_up = 1
        if s.miss_latency[touch] > 0:
            found.late += 1
        s.resources[s.resource[s.charged[touch]]].looks_up = 1
