"""What each tile draws from the L2 cache where blocks of a cluster share a load, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replay.engine import GraphBuilder
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape
from replay.schemes.contract import layers as small_layers
from tests.replay.compute.test_l2 import INNER, TILE, machine_of

ROW = 2 * INNER  # bytes of a row of activations, or of a column of weights
Drawn = dict[str, list[tuple[int, int]]]


def drawn(
    monkeypatch: pytest.MonkeyPatch,
    rows: list[int],
    cluster: int,
    *,
    intermediate: int = 128,
    clusters: bool = True,
) -> Drawn:
    """Rows, or columns, that tiles load and that each draws: summed over the steps of a tile."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(machine_of(compute__cluster_tiles=cluster), graph, 1)
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows)[:, None]
    work = small_layers.work(ids, 1, len(rows), shape=ExpertShape(INNER, intermediate))
    seen: dict[str, list[Any]] = {"weights": [], "activations": []}

    def note(
        self: Any, what: str, tasks: Any, rank: Any, block: Any, nbytes: Any, *, drawn_bytes: Any, **_: Any
    ) -> None:
        seen[what].append((nbytes, drawn_bytes))

    monkeypatch.setattr(type(machine.l2), "read", note)
    gemm = Gemm.first(work, fused_activation=False)
    tiles = row_tiles(machine, work, gemm, 8)
    gemm_tasks(
        machine,
        work,
        gemm,
        tiles,
        machine.sms.pool("sm", 8),
        machine.mark(tiles.rank),
        clusters=clusters,
    )
    found: Drawn = {}
    for what, steps in seen.items():
        whole, own = (sum(each) for each in zip(*steps, strict=True))
        found[what] = list(zip((whole // ROW).tolist(), (own // ROW).tolist(), strict=True))
    return found


@pytest.mark.parametrize(
    ("rows", "cluster", "weights", "activations"),
    [
        # Two row tiles share weights where these are no smaller.
        ([2 * TILE], 2, [(128, 64)] * 4, [(128, 128)] * 4),
        # A row tile alone shares its rows with the next column.
        ([TILE], 2, [(128, 128)] * 2, [(128, 64)] * 2),
        ([TILE // 2], 2, [(128, 128)] * 2, [(64, 32)] * 2),
        # Clusters of four need four row tiles to share weights.
        ([2 * TILE], 4, [(128, 128)] * 4, [(128, 32)] * 4),
        ([4 * TILE], 4, [(128, 32)] * 8, [(128, 128)] * 8),
        # Of two experts, the one with a tile alone shares rows.
        ([2 * TILE, TILE], 2, [(128, 64)] * 4 + [(128, 128)] * 2, [(128, 128)] * 4 + [(128, 64)] * 2),
        ([2 * TILE], 1, [(128, 128)] * 4, [(128, 128)] * 4),
    ],
)
def test_the_larger_operand_is_loaded_once_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
    rows: list[int],
    cluster: int,
    weights: list[tuple[int, int]],
    activations: list[tuple[int, int]],
) -> None:
    found = drawn(monkeypatch, rows, cluster)
    assert sorted(found["weights"]) == sorted(weights)
    assert sorted(found["activations"]) == sorted(activations)


def test_rows_are_the_larger_operand_of_a_narrow_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 192 columns the last 64 make half a tile, sharing its 128 rows, no weights."""
    found = drawn(monkeypatch, [2 * TILE], 2, intermediate=96)
    pairs = sorted(zip(found["weights"], found["activations"], strict=True))
    assert pairs == [((64, 64), (128, 64))] * 2 + [((128, 64), (128, 128))] * 2


def test_blocks_without_clusters_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(monkeypatch, [2 * TILE], 2, clusters=False)
    assert found == {"weights": [(128, 128)] * 4, "activations": [(128, 128)] * 4}
