"""How often weights are read, and how many row tiles share them."""

from __future__ import annotations

import numpy as np
import pytest

import replay
from replay.experiments.layer.result import Result
from replay.report.mechanisms import expert_table, expert_use
from replay.schemes import SCHEMES
from tracegen import RoutingTrace

TILE_ROWS = 128
ALONE = {"dispatch_sms": 1, "combine_sms": 1}
ONE_SM = {"gpu.num_sms": 3, "gpu.l2_bytes": 1, "cache.kept_share": 1.0, "cache.slices": 1}
"""One SM multiplies beside those of `ALONE`, and a cache keeps the block alone that came last."""


def run(trace: RoutingTrace, scheme: str, overrides: dict[str, object], **settings: object) -> Result:
    return replay.run(trace, scheme=scheme, overrides=overrides, barrier=True, tune=False, **settings)


def tiles_of_layer(trace: RoutingTrace, layer: int) -> np.ndarray:
    """(expert,): row tiles of those that have rows."""
    rows = np.bincount(trace.expert_ids[layer].ravel())
    return -(-rows[rows > 0] // TILE_ROWS)


def test_a_cache_that_keeps_nothing_reads_weights_for_every_row_tile(synthetic) -> None:
    """Weights of all experts are alike, so that the mean over bytes is that over experts."""
    trace = synthetic(ranks=4, tokens_per_rank=512)
    tiles = np.concatenate([tiles_of_layer(trace, layer) for layer in (0, 1)])
    for overrides, reads in ((ONE_SM, tiles.mean()), ({**ONE_SM, "gpu.l2_bytes": 1 << 40}, 1)):
        result = run(trace, "dysharp", overrides, options={**ALONE, "tile_order": "arrival"})
        of_layers = [one.mechanisms.experts for one in result.schedules]
        assert [use.most_row_tiles for use in of_layers] == [tiles_of_layer(trace, layer).max() for layer in (0, 1)]
        use = expert_use([one.mechanisms for one in result.schedules])
        assert use.num_experts == 2 * len(tiles)  # two GEMMs
        assert use.mean_row_tiles == pytest.approx(tiles.mean())
        assert use.most_row_tiles == tiles.max()
        assert use.weight_reads == pytest.approx(reads)
        table = expert_table([result.schedules], ["dysharp"])
        assert table.rows == [("dysharp", use.weight_reads, use.mean_row_tiles, tiles.max())]


def test_row_tiles_of_a_unit_share_weights(synthetic) -> None:
    """A cache for a column and the rows of a unit: each unit reads the weights once."""
    trace = synthetic(ranks=4, tokens_per_rank=1024)
    rows = np.bincount(trace.expert_ids[0].ravel())
    tiles, units = -(-rows // TILE_ROWS), -(-rows // (2 * TILE_ROWS))
    overrides = {**ONE_SM, "gpu.l2_bytes": 3 << 20}
    slots = {**ALONE, "slots": "source"}
    times = {
        order: run(trace, "dysharp", overrides, layer=0, options={**slots, "tile_order": order})
        for order in ("arrival", "unit:2")
    }
    reads = {order: result.schedules[0].mechanisms.experts.weight_reads for order, result in times.items()}
    assert reads["unit:2"] < reads["arrival"] <= tiles.mean()
    assert reads["unit:2"] == pytest.approx(units.mean(), rel=0.1)


@pytest.mark.parametrize("scheme", [*SCHEMES])
def test_every_scheme_that_multiplies_says_how_often_it_reads(scheme: str, synthetic) -> None:
    trace = synthetic(ranks=4, tokens_per_rank=64)
    result = run(trace, scheme, {}, layer=0)
    use = result.schedules[0].mechanisms.experts
    assert (use is not None) == (scheme != "ideal")  # which has no tiles
