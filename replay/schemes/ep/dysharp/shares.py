"""SMs that move rows, where options leave their number open.

DySHARP's paper gives none. Assumed are as many as keep up with the port, or, where products run
beside and take longer, with these: more would wait, and fewer let others wait. With the switch a
row leaves once for all GPUs, so that few SMs fill the downlinks of many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import casting
from replay.model.compute.least import experts_time
from replay.model.machine.times import NO_TIME

if TYPE_CHECKING:
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.dysharp.units import Units


def row_sms(
    work: LayerWork, machine: Machine, units: Units, *, in_switch: bool, beside_experts: bool
) -> tuple[int, int]:
    """SMs that push rows, and SMs that pull them, as fast as the busiest port carries them.

    Parameters
    ----------
    in_switch
        Whether a row leaves once for all GPUs, and one sum comes back.
    beside_experts
        Whether the experts' products run meanwhile.
    """
    costs, num = machine.costs, machine.num_ranks
    place, through = units.place[units.of_copy], ~units.in_place
    copies, stays = (np.bincount(place[which], minlength=num) for which in (through, ~through))
    moved = copies
    if in_switch:
        moved = np.bincount(units.place[np.unique(units.of_copy[through])], minlength=num)
    arrive = np.bincount(work.copy_rank[through], minlength=num)
    tokens = np.diff(work.tokens_of_rank)
    most = np.maximum(moved, arrive)
    out, back = work.dispatch_row_bytes, work.combine_row_bytes
    pushed = costs.sm_store((moved + stays) * out) + casting(machine, work, tokens * out)
    pulled = costs.sm_load(moved * back) + costs.sm_add((moved + stays) * back, tokens * back)
    beside = experts_time(machine, work) if beside_experts else NO_TIME
    return (
        machine.keeping_up(pushed, most * out, beside),
        machine.keeping_up(pulled, most * back, beside),
    )
