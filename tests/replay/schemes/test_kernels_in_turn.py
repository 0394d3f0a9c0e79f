"""Kernels of one stream take turns: between two of them a GPU's SMs and memory do nothing."""

from __future__ import annotations

import numpy as np
from loops import every
from round_machine import US
from spending import GPUS, Spent, layer, replay

from replay.model.machine.kinds import Kind
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import Precision

# Schemes with kernels one after the other, with FP8 rows made and unmade by some of them.
IN_TURN = {
    "plain": {},
    "nccl-alltoall": {},
    "deepep bare": {"stack": "bare"},
    "deepep sglang": {"stack": "sglang"},
    "deepep vllm": {"stack": "vllm"},
    "deepep-ll": {},
    "deepep-v2": {},
    "deepep-v2 compact": {"do_expand": False},
    "hybrid-ep": {},
    "nccl-ep-ht": {},
    "nvls": {},
    "flux": {},
    "comet": {},
    "ccfuser": {},
    "dysharp-basic": {},
    "dysharp-comet": {},
    "moe-hub without counters": {"dam": False},
}
TYPES = [Precision("fp8"), Precision("fp8", dispatch="bf16"), Precision("bf16", dispatch="fp8")]


def replayed(label: str, types: Precision, *, is_backward: bool) -> Spent:
    work = layer(types, is_backward=is_backward)
    return replay(work, label.partition(" ")[0], **IN_TURN[label])


@every(("types", "is_backward"), [*((types, False) for types in TYPES), (TYPES[0], True)], ids=str)
@every("label", IN_TURN)
def test_nothing_works_in_the_gap_between_kernels(label: str, types: Precision, is_backward: bool) -> None:
    if label == "deepep-ll" and is_backward:
        return
    spent = replayed(label, types, is_backward=is_backward)
    timeline, graph = spent.timeline, spent.timeline.graph
    classes = spent.machine.resources.classes(graph)[graph.resource]
    works = (graph.resource >= 0) & np.isin(classes, [ResourceClass.SM, ResourceClass.HBM])
    gap = (graph.kind == Kind.LAUNCH) & (graph.resource < 0) & (graph.duration_ps == 2 * US)
    waits = (graph.resource >= 0) & (classes == ResourceClass.HOST) & (graph.kind != Kind.HOST)
    for gpu in range(GPUS):
        mine = graph.rank == gpu
        gaps, working = np.flatnonzero(gap & mine), np.flatnonzero(works & mine)
        if label == "nccl-alltoall":  # copies of splits have a stream of their own up to the wait
            since = timeline.end_ps[waits & mine].max(initial=0)
            gaps = gaps[timeline.start_ps[gaps] >= since]
        assert len(gaps) and len(working)
        gaps = gaps[np.argsort(timeline.start_ps[gaps])]
        begin, end = timeline.start_ps[gaps][:, None], timeline.end_ps[gaps][:, None]
        assert (begin[1:] >= end[:-1]).all()
        inside = (timeline.start_ps[working] < end) & (timeline.visible_ps[working] > begin)
        names = [(Kind(graph.kind[working[b]]).name, int(begin[a, 0])) for a, b in np.argwhere(inside)]
        assert not names
