"""Rows that experts multiply where ranks have different numbers of tokens, or none.

Schemes pad as their libraries do, and no scheme pads who says nothing of it.
"""

from __future__ import annotations

import numpy as np
from loops import every

from replay.chains.layer import build_layer
from replay.model.machine.kinds import Kind
from replay.model.work.layer import LayerWork
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.case import one_flop_per_picosecond

SENT = np.array(  # rows of each rank for the expert of each rank
    [[0, 0, 0, 0], [144, 103, 79, 74], [25, 13, 14, 8], [1, 1, 0, 0]]
)
ROWS = SENT.sum(axis=0)


def padded(rows: np.ndarray, to: int) -> np.ndarray:
    return -(-rows // to) * to


PADDED = {
    # Every expert to whole tiles of DeepGEMM's contiguous layout, which SGLang multiplies.
    "deepep sglang": padded(ROWS, 128),
    # Tiles of 128 rows whole, whatever is in them.
    "megamoe-hopper": padded(ROWS, 128),
    # Whole tiles of every (expert, source): they are made before the next source's rows come.
    "flashdmoe": padded(SENT, 128).sum(axis=0),
    # Blocks of 64 rows of every (expert, source).
    "ccfuser": padded(SENT, 64).sum(axis=0),
    # All of them to the most rows that any rank has for any expert.
    "tutel": np.full(4, 4 * 144),
}
OPTIONS = {
    "deepep sglang": {"stack": "sglang"},
    "ccfuser": {"loads_ahead": True, "repeats": False},  # what its tiles take beside their rows
}


def uneven() -> LayerWork:
    ids = small_layers.draw(231, 4, 2, skew=0.8, seed=4)
    work = small_layers.work(ids, 4, 4, tokens_of_rank=[0, 200, 30, 1])
    assert (work.matrix("pairs") == SENT).all()
    return work


@every("name", sorted({*SCHEMES, *PADDED}))
def test_experts_multiply_their_rows_and_the_padding_of_the_library(name: str) -> None:
    scheme, work = find(name.partition(" ")[0]).with_options(OPTIONS.get(name, {})), uneven()
    graph, _, machine = build_layer(work, one_flop_per_picosecond(), scheme)
    on_sm = np.isin(graph.resource, machine.sms.resources)
    for kind, flops in ((Kind.GEMM1, 2 * 96 * 128), (Kind.GEMM2, 2 * 96 * 64)):
        chosen = on_sm & (graph.kind == kind)
        time_ps = np.bincount(graph.rank[chosen], graph.duration_ps[chosen], 4)
        # What else warps do for a tile takes less than a picosecond, rounded up to one.
        assert (time_ps // flops).tolist() == PADDED.get(name, ROWS).tolist()
