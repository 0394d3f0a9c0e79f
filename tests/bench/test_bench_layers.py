"""How fast whole layers are scheduled: what takes turns, credits and tables beside what does not.

Run with ``pytest -m bench -s tests/bench``. Rates are printed and never asserted.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import schedule
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import place
from replay.schemes import SCHEMES

pytestmark = pytest.mark.bench


def _uniform_layer(num_ranks: int = 8, tokens: int = 4096) -> LayerWork:
    """DeepSeek-V3's shape: every token goes to eight of 256 experts, all sets equally likely."""
    rng = np.random.default_rng(0)
    experts = np.empty((num_ranks * tokens, 8), np.int32)
    for rank in range(num_ranks):
        score = rng.random((tokens, 256))
        experts[rank * tokens : (rank + 1) * tokens] = np.argpartition(score, 8, axis=1)[:, :8]
    owner = np.repeat(np.arange(num_ranks), tokens).astype(np.int32)
    return LayerWork(
        experts,
        owner,
        place("contiguous", 256, num_ranks),
        ExpertShape(7168, 2048),
        Precision("fp8"),
    )


@pytest.mark.parametrize("name", ["deepep", "flashdmoe", "moe-hub", "dysharp"])
def test_layer_of_a_scheme(name: str) -> None:
    work, system = _uniform_layer(), hwmodel.load("dgx-h100")
    graph = build_layer(work, system, SCHEMES[name].with_options({})).graph
    schedule(graph)
    times = []
    for _ in range(5):
        begin = time.process_time()
        schedule(graph)
        times.append(time.process_time() - begin)
    rate = graph.num_tasks / min(times) / 1e6
    print(  # noqa: T201
        f"{name:12s} {graph.num_tasks:>10,} tasks {len(graph.takes):>10,} takes "
        f"{len(graph.touches):>10,} touches {min(times) * 1e3:8.1f} ms {rate:5.1f} M tasks/s"
    )
