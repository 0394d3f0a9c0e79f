"""The operator of TensorRT-LLM: skewed rows, experts without gate, kernels chosen beforehand."""

import numpy as np
import pytest
from loops import every

import hwmodel
from replay.studies.validate import compute
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Row


def row(tokens, hidden=2688, distribution="balanced", **changes):
    setting = {
        "moe_dtype": "bfloat16", "distribution": distribution, "global_tokens": tokens,
        "hidden": hidden, "intermediate": 1856, "topk": 6, "num_experts": 128, "ep_size": 8,
        **changes,
    }  # fmt: skip
    return Row("made-up", 2, setting, 1.0)


def time_us(one):
    return compute.predict_moe(Bench(), one)


def test_experts_without_gate_read_one_projection_up():
    """Every expert has a row, so that all weights are read; 64 tokens are little beside them."""
    ungated, gated = time_us(row(64)), time_us(row(64, hidden=2688 + 128))
    per_expert = 2 * 1856 * 2688, 3 * 1856 * (2688 + 128)
    assert ungated / gated == pytest.approx(per_expert[0] / per_expert[1], rel=0.1)
    gbps = hwmodel.load("dgx-h100").hbm.rate.units_per_second / 1e9
    assert ungated == pytest.approx(16 * 2 * per_expert[0] / gbps / 1e3, rel=0.25)


def test_a_skewed_row_is_the_mean_over_draws(monkeypatch):
    """Two draws, one with rows for one expert and one with rows for all."""
    one, every = np.array([96] + [0] * 15), np.full(16, 6)
    alone = []
    for rows in (one, every):
        monkeypatch.setattr(compute, "draws", lambda _, rows=rows: [rows])
        alone.append(time_us(row(128, distribution="power_law_1.2")))
    monkeypatch.setattr(compute, "draws", lambda _: [one, every])
    assert alone[0] < 0.5 * alone[1]
    both = time_us(row(128, distribution="power_law_1.2"))
    assert both == pytest.approx(sum(alone) / 2, rel=1e-9)


def test_skew_takes_longer_than_even_routing():
    assert time_us(row(8192, distribution="power_law_1.2")) > 1.3 * time_us(row(8192))


@every(
    ("tokens", "rows"), [(4096, 192), (6144, 192), (8191, 192), (8192, 384), (16384, 384), (1, 1)]
)
def test_kernels_are_chosen_for_the_next_lower_power_of_two(tokens, rows):
    assert compute._tuned_rows(row(tokens)) == rows


def test_more_tokens_take_less_time_where_their_tiles_suit_them_better():
    """288 rows per expert in tiles of 256 waste as much as 384 rows do not (measured: 329 and 316
    us, 216 us for 192)."""
    fit, more, most = (time_us(row(tokens)) for tokens in (4096, 6144, 8192))
    assert more > 1.3 * fit
    assert more > most


def test_outliers_are_told_by_the_column_of_the_size():
    rows = [row(tokens) for tokens in (512, 1024, 2048)]
    slow = [Row("x", 2, one.setting, time) for one, time in zip(rows, (600, 700, 127), strict=True)]
    assert compute.skew_outliers(slow) == [True, True, False]
