"""The operator of TensorRT-LLM: skewed rows, experts without gate, kernels chosen beforehand."""

import numpy as np
import pytest
from loops import every

import hwmodel
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape
from replay.studies.validate import compute
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import MeasurementRow


def row(tokens, distribution="balanced", **changes):
    setting = {
        "moe_dtype": "bfloat16",
        "distribution": distribution,
        "global_tokens": tokens,
        "hidden": 2688,
        "intermediate": 1856,
        "gated": "no",
        "topk": 6,
        "num_experts": 128,
        "ep_size": 8,
        **changes,
    }
    return MeasurementRow("made-up", 2, setting, 1.0)


def time_us(one):
    return compute.predict_moe(Bench(), one)


def test_experts_without_gate_read_one_projection_up():
    """Every expert has a row, so that all weights are read; 64 tokens are little beside them."""
    ungated, gated = time_us(row(64)), time_us(row(64, gated="yes"))
    per_expert = 2 * 1856 * 2688, 3 * 1856 * 2688
    assert ungated / gated == pytest.approx(per_expert[0] / per_expert[1], rel=0.1)
    gbps = hwmodel.load("dgx-h100").hbm.rate.units_per_second / 1e9
    assert ungated == pytest.approx(16 * 2 * per_expert[0] / gbps / 1e3, rel=0.25)


def test_a_skewed_row_is_the_mean_over_draws(monkeypatch):
    """Two draws, one with rows for one expert and one with rows for all; an expert's 30 MB stay in no cache."""
    one, every = np.array([96] + [0] * 15), np.full(16, 6)
    alone = []
    for rows in (one, every):
        monkeypatch.setattr(compute, "draws", lambda _, rows=rows: [rows])
        alone.append(time_us(row(128, distribution="power_law_1.2", hidden=4096)))
    monkeypatch.setattr(compute, "draws", lambda _: [one, every])
    assert alone[0] < 0.5 * alone[1]
    both = time_us(row(128, distribution="power_law_1.2", hidden=4096))
    assert both == pytest.approx(sum(alone) / 2, rel=1e-9)


def test_skew_takes_longer_than_even_routing():
    assert time_us(row(8192, distribution="power_law_1.2")) > 1.3 * time_us(row(8192))


@every(("tokens", "rows"), [(4096, 192), (6144, 192), (8191, 192), (8192, 384), (16384, 384), (1, 1)])
def test_kernels_are_chosen_for_the_next_lower_power_of_two(tokens, rows):
    assert compute._tuned_rows(row(tokens)) == rows


def test_more_tokens_take_less_time_where_their_tiles_suit_them_better():
    """288 rows per expert in tiles of 256 waste as much as 384 rows do not (measured: 329 and 316
    us, 216 us for 192)."""
    fit, more, most = (time_us(row(tokens)) for tokens in (4096, 6144, 8192))
    assert more > 1.3 * fit
    assert more > most


def test_balanced_tokens_begin_at_experts_one_after_the_other():
    """22 of 512 experts are 24 apart, the second token begins at 12, and its last one is 516 less 512."""
    few = {"num_experts": 512, "topk": 22, "ep_size": 32}
    assert np.flatnonzero(compute._even_rows(row(2, **few))).tolist() == [0, 4, 12]
    assert np.flatnonzero(compute._even_rows(row(2, **few | {"ep_size": 8}))).tolist() == [0, 4, 12, 24, 36, 48, 60]
    # 6 of 128 are 22 apart: one of 22 tokens each for the first 16 experts, and from 110 on round to the first four.
    assert compute._even_rows(row(22)).tolist() == [2] * 4 + [1] * 12
    # 8 of 128 are 16 apart, and leave nothing over.
    assert compute._even_rows(row(48, topk=8)).tolist() == [3] * 16
    assert compute._even_rows(row(1, topk=8, ep_size=64)).tolist() == [1, 0]


def test_calls_find_the_weights_of_few_experts_in_the_cache():
    """Experts of 9.4 MB: 28 MB stay of what one SM reads, 21 of what several do; five draws are read in turn."""
    shape = {"hidden": 2048, "intermediate": 768, "gated": "yes", "topk": 8}
    h100, found = hwmodel.load("dgx-h100"), {}
    for tokens, ep_size in ((4, 16), (8, 16), (1024, 64), (2048, 128)):
        one = row(tokens, ep_size=ep_size, **shape)
        works = [compute.one_rank(rows, ExpertShape(2048, 768), "bf16") for rows in compute._measured_rows(one)]
        found[tokens] = compute.found_weights(h100, works)
        assert compute.found_weights(h100, works * 5) == []
    assert found == {4: ["weights"], 8: [], 1024: ["weights"], 2048: ["weights"]}


def test_weights_that_are_found_are_not_read_from_memory_again(monkeypatch):
    """Two experts of 9.4 MB at 3.0 TB/s are 6.3 us, of which the tiles hide a part."""
    one = row(4, ep_size=16, hidden=2048, intermediate=768, gated="yes", topk=8)
    warm = time_us(one)
    monkeypatch.setattr(compute, "found_weights", lambda *_: [])
    assert 1.5 < time_us(one) - warm < 6.3


def test_outliers_are_told_by_the_column_of_the_size():
    rows = [row(tokens) for tokens in (512, 1024, 2048)]
    slow = [MeasurementRow("x", 2, one.setting, time) for one, time in zip(rows, (600, 700, 127), strict=True)]
    assert compute.skew_outliers(slow) == [True, True, False]


def test_more_than_256_tokens_are_sorted_by_two_kernels_more(monkeypatch):
    """The same rows on the rank: a small kernel of a graph is 1.2 us of gap and 1.4 us."""
    monkeypatch.setattr(compute, "_measured_rows", lambda _: [np.full(16, 12)])
    monkeypatch.setattr(compute, "_tuned_rows", lambda _: 16)
    few, more = time_us(row(256)), time_us(row(257))
    assert more - few == pytest.approx(2 * 2.6, abs=0.1)


def test_blocks_go_on_through_rows_that_are_wide(monkeypatch):
    """2048 values a step: 7168 take three more, expanded and finished, 5120 two more, activated; 730 ns each."""
    one = row(1, hidden=7168, intermediate=5120)
    wide = time_us(one)
    monkeypatch.setattr(compute, "STEP_NS", 0)
    assert wide - time_us(one) == pytest.approx((3 + 2 + 3) * 0.73, abs=0.1)


@every(
    ("tokens", "looks_us"),
    [
        (64, 8 * 0.415),  # eight loads of 415 ns, one after the other
        (8192, 8192 * 512 * 8 * 0.383e-3 / 132),  # 8 looks at each score, of 0.383 ns of an SM
    ],
)
def test_more_than_16_choices_are_five_kernels_of_pytorch(monkeypatch, tokens, looks_us):
    """Four small kernels more, of 1.2 us of gap and 1.4; one looks at scores, one sorts by eight loads."""
    monkeypatch.setattr(compute, "_measured_rows", lambda _: [np.full(16, 12)])
    monkeypatch.setattr(compute, "_tuned_rows", lambda _: 16)
    one, times = row(tokens, topk=22, num_experts=512, ep_size=32), []
    for most in (21, 22):
        monkeypatch.setattr(compute, "MOST_CHOICES", most)
        times.append(time_us(one))
    assert times[0] - times[1] == pytest.approx(4 * 2.6 + looks_us + 8 * 0.415, abs=1.5)


def test_experts_of_deepgemm_on_blackwell_move_rows_four_times_beside_the_gemms(monkeypatch):
    """Copied, quantised into the buffer, out of it again, and added: 16 bytes a value of a row.

    On Hopper the quantising kernels take nine times their bytes.
    """
    rows = np.full(16, 1024)
    monkeypatch.setattr(compute, "_measured_rows", lambda _: [rows])
    times = {}
    for system in ("dgx-h100", "hgx-b200"):
        found = []
        original = Machine.memory_kernel

        def noted(self, kind, nbytes, *given, original=original, found=found, **named):
            found.append(int(np.sum(getattr(nbytes, "both", nbytes))))
            return original(self, kind, nbytes, *given, **named)

        monkeypatch.setattr(Machine, "memory_kernel", noted)
        time_us(row(16384, system=system, moe_dtype="fp8_block", hidden=4096, topk=8, gated="yes"))
        monkeypatch.setattr(Machine, "memory_kernel", original)
        times[system] = found
    values = int(rows.sum()) * 4096
    assert sum(times["hgx-b200"]) == pytest.approx((4 + 3 + 4 + 2) * values + 2 * 16384 * 4096, rel=0.02)
    assert sum(times["dgx-h100"]) > 2 * sum(times["hgx-b200"])


def gemm_row(library="deepgemm-sglang", dtype="fp8_block", system="hgx-b200", m=64, n=128, k=8192):
    setting = {"system": system, "library": library, "gemm_dtype": dtype, "m": m, "n": n, "k": k}
    return MeasurementRow("made-up", 2, setting, 1.0)


def test_deepgemm_on_blackwell_brings_scales_into_order_in_four_kernels(monkeypatch):
    with_scales = [compute.predict_gemm(Bench(), gemm_row(system=s)) for s in ("hgx-b200", "hgx-h200")]
    monkeypatch.setattr(compute, "is_blackwell", lambda _: False)
    without = [compute.predict_gemm(Bench(), gemm_row(system=s)) for s in ("hgx-b200", "hgx-h200")]
    assert with_scales[0] - without[0] == pytest.approx(4 * 2.6, abs=0.1)
    assert with_scales[1] == without[1]


@every(
    ("row", "found"),
    [
        # 16.8 MB of rows, each for one SM, and a copy of the weights between; five with all rows.
        (gemm_row("cublas-trtllm", "bfloat16", "dgx-h100", m=1024), ["activations"]),
        # 4 x 16.8 MB: more than the 28 MB that stay of what is read once.
        (gemm_row("cublas-trtllm", "bfloat16", "dgx-h100", m=4096), []),
        # Five copies of 29 MB of weights, and the same rows each time: 29 + 0.1 MB between.
        (gemm_row("cublas-trtllm", "bfloat16", "dgx-h100", m=8, n=7168, k=2048), []),
        # Copies of the rows, too.
        (gemm_row(system="hgx-b200", m=256), ["weights", "activations"]),
        (gemm_row(system="hgx-b200", m=4096), []),
        # Five copies of 21 MB of weights: more than the 81 MB that stay of what is read once.
        (gemm_row("cublas-trtllm", "bfloat16", m=512, n=5120, k=2048), ["activations"]),
        (gemm_row("cublas-trtllm", "bfloat16", m=512, n=128), ["weights", "activations"]),
    ],
)
def test_a_loop_finds_what_little_was_read_after(row, found):
    assert compute.found_operands(hwmodel.load(row["system"]), row) == found


def test_rows_that_are_found_are_not_read_from_memory(monkeypatch):
    """16.8 MB of rows at 3.0 TB/s are 5.6 us, of which the tiles hide a part."""
    one = gemm_row("cublas-trtllm", "bfloat16", "dgx-h100", m=1024)
    warm = compute.predict_gemm(Bench(), one)
    monkeypatch.setattr(compute, "found_operands", lambda *_: [])
    assert 1.5 < compute.predict_gemm(Bench(), one) - warm < 5.6
