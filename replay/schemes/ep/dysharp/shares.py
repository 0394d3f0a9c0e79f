"""SMs that move rows, where options leave their number open.

DySHARP's paper gives none. Assumed are as many as keep up with the port: more would wait for it,
and fewer let it wait. With the switch a row leaves once for all GPUs, so that few SMs fill the
downlinks of many. The time of GEMMs has no part in it: where they take far longer, fewer SMs are
better. On eight H20 a fused layer of DeepSeek-V3 with 4096 tokens takes 17.2 ms with this number,
17.0 ms with four SMs each way and 15.7 ms with one; on H100 3.43, 3.41 and 4.04 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import casting

if TYPE_CHECKING:
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.dysharp.units import Units


def row_sms(work: LayerWork, machine: Machine, units: Units, *, in_switch: bool) -> tuple[int, int]:
    """SMs that push rows, and SMs that pull them, as fast as the busiest port carries them.

    Parameters
    ----------
    in_switch
        Whether a row leaves once for all GPUs, and one sum comes back.
    """
    costs, num = machine.costs, machine.num_ranks
    place, through = units.place[units.of_copy], ~units.in_place
    copies, stays = (np.bincount(place[which], minlength=num) for which in (through, ~through))
    moved = copies
    if in_switch:
        leaves = np.zeros(len(units), np.bool_)
        leaves[units.of_copy[through]] = True
        moved = np.bincount(units.place[leaves], minlength=num)
    arrive = np.bincount(work.copy_rank[through], minlength=num)
    tokens = np.diff(work.tokens_of_rank)
    most = np.maximum(moved, arrive)
    out, back = work.dispatch_row_bytes, work.combine_row_bytes
    pushed = costs.sm_store((moved + stays) * out) + casting(machine, work, tokens * out)
    pulled = costs.sm_load(moved * back) + costs.sm_add((moved + stays) * back, tokens * back)
    return machine.keeping_up(pushed, most * out), machine.keeping_up(pulled, most * back)
