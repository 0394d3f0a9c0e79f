"""Fit the constants of the DGX H100 preset that no primary source gives, and write them into it.

Every fit starts from the values given here, whatever the preset holds, and is rounded to three
digits, so that running it again writes the same file. Each constant is fitted on one part of a
table and checked on the rest; both errors are printed.

Usage: python scripts/calibrate.py [--check] [--leave-one-out]
    --check           write nothing; exit code 1 if the preset holds other values
    --leave-one-out   fit DeepEP's constants on each shape alone and predict the other four
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replay.validate.bench import Bench
from replay.validate.catalog import TABLES
from replay.validate.table import Row, predict

PRESET = Path(__file__).resolve().parent.parent / "hwmodel" / "presets" / "dgx-h100.toml"
SOURCE = "ai-dynamo/aiconfigurator performance data"
STEP = 0.05  # of a constant, for slopes
ROUNDS = 4
SOFT = 0.06  # larger relative errors count linearly, not squared
LARGEST_MOVE = 0.4  # of a constant in one round


@dataclass(frozen=True)
class Fit:
    """Constants that are fitted together, from their starting values.

    `used` holds for the rows that are fitted, `checked` for those that are then predicted. `says`
    is the source that the preset gives for the constants.
    """

    table: str
    start: dict[str, float]
    used: Callable[[Row], bool]
    checked: Callable[[Row], bool]
    says: str


SHAPES = ((2048, 8), (4096, 6), (5120, 1), (6144, 4), (7168, 8))
FITTED_SHAPES = {(2048, 8), (5120, 1), (7168, 8)}
SMS, TOKENS = (4, 12, 24), (1, 8, 32, 128, 512, 2048, 8192, 65536)


def shape(row: Row) -> tuple[int, int]:
    return row["hidden"], row["topk"]


def sampled(row: Row) -> bool:
    return row["num_sms"] in SMS and row["tokens_per_rank"] in TOKENS


def partial_fp8(row: Row) -> bool:
    return row["gemm_dtype"] == "fp8_block" and row["m"] >= 256 and row["m"] % 128 != 0


DEEPEP = Fit(
    "deepep_normal",
    {
        "warp.scan_ns": 200.0,
        "warp.row_ns": 500.0,
        "warp.round_ns": 700.0,
        "warp.reduce_step_ns": 25.0,
        "warp.reduce_source_ns": 5.0,
        "warp.reduce_wait_ns": 75.0,
        "overheads.fence_us": 5.0,
    },
    lambda row: sampled(row) and shape(row) in FITTED_SHAPES,
    lambda row: shape(row) not in FITTED_SHAPES,
    "fitted to DeepEP normal dispatch and combine, EP8, 8 x H100, shapes 2048/8, 5120/1 and "
    "7168/8 (hidden/top-k), 4, 12 and 24 SMs",
)
FITS = (
    DEEPEP,
    Fit(
        "deepep_low_latency",
        {"link.scatter_efficiency": 0.7},
        lambda row: row["hidden"] == 4096 and row["tokens_per_rank"] >= 64,
        lambda row: row["hidden"] != 4096,
        "fitted to DeepEP low-latency dispatch and combine, EP8, 8 x H100, shape 4096/8 from 64 "
        "tokens a rank",
    ),
    Fit(
        "gemm",
        {"compute.bf16_efficiency": 0.85},
        lambda row: row["gemm_dtype"] == "bfloat16" and row["m"] >= 256 and row["m"] % 2 == 0,
        lambda row: row["gemm_dtype"] == "bfloat16" and row["m"] >= 256 and row["m"] % 2 == 1,
        "fitted to cuBLAS, H100, even m from 256",
    ),
    Fit(
        "gemm",
        {"compute.fp8_absent_row_ns": 2.0},
        lambda row: partial_fp8(row) and row["library"] == "cublas-trtllm",
        lambda row: partial_fp8(row) and row["library"] != "cublas-trtllm",
        "fitted to FP8 GEMMs of TensorRT-LLM, H100, m from 256 that is no multiple of 128",
    ),
    Fit(
        "moe_compute",
        {"overheads.small_kernel_us": 1.5},
        lambda row: row["global_tokens"] <= 16 and row["ep_size"] == 64,
        lambda row: row["global_tokens"] <= 16 and row["ep_size"] in (32, 128),
        "fitted to MoE expert computation of up to 16 tokens at EP64, H100",
    ),
)  # fmt: skip


def errors(table: str, rows: list[Row], values: dict[str, float]) -> np.ndarray:
    outcome = predict(TABLES[table], Bench(values), rows)
    return outcome.errors_percent[~outcome.left_out] / 100


def rows_of(table: str, holds: Callable[[Row], bool]) -> list[Row]:
    return [row for row in TABLES[table].rows() if holds(row)]


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


def fitted(fit: Fit, rows: list[Row], fixed: dict[str, float]) -> dict[str, float]:
    """Fit by Gauss-Newton on relative errors, and return the best round's values."""
    values, best, least = dict(fit.start), dict(fit.start), np.inf
    for _ in range(ROUNDS):
        now = errors(fit.table, rows, {**fixed, **values})
        if np.abs(now).mean() < least:
            best, least = dict(values), float(np.abs(now).mean())
        slopes = np.array([
            (errors(fit.table, rows, {**fixed, **values, key: value * (1 + STEP)}) - now) / STEP
            for key, value in values.items()
        ]).T  # fmt: skip
        weight = np.minimum(1, SOFT / np.maximum(np.abs(now), 1e-9))
        move = np.linalg.lstsq(slopes * weight[:, None], -now * weight, rcond=None)[0]
        for key, change in zip(values, np.clip(move, -LARGEST_MOVE, LARGEST_MOVE), strict=True):
            values[key] = rounded(values[key] * (1 + float(change)))
            if key.endswith("efficiency"):
                values[key] = min(values[key], 1.0)
    if np.abs(errors(fit.table, rows, {**fixed, **values})).mean() < least:
        best = values
    return best


def mean_percent(found: np.ndarray) -> str:
    return f"{100 * np.abs(found).mean():.1f} % of {len(found)} rows"


def written(text: str, key: str, value: float, source: str) -> str:
    """Replace one constant and its source in the preset's text."""
    section, _, leaf = key.partition(".")
    head, table, tail = re.split(rf"^(\[{section}\]\n)", text, maxsplit=1, flags=re.M)
    line = f'{leaf} = {{ value = {value!r}, source = "{source}", confidence = "medium" }}'
    tail, count = re.subn(rf"^{leaf} = .*$", lambda _: line, tail, count=1, flags=re.M)
    if count != 1:
        sys.exit(f"{PRESET}: no {key}")
    return head + table + tail


def leave_one_out() -> None:
    print("DeepEP fitted on one shape (hidden/top-k), mean absolute error in percent")
    print("fitted on | itself: dispatch, combine | the other four: dispatch, combine")
    for one in SHAPES:
        used = rows_of("deepep_normal", lambda row, one=one: sampled(row) and shape(row) == one)
        values = fitted(DEEPEP, used, {})
        numbers = []
        for inside in (True, False):
            for phase in ("dispatch", "combine"):
                part = rows_of(
                    "deepep_normal",
                    lambda row, one=one, inside=inside, phase=phase: (
                        (shape(row) == one) == inside and row["phase"] == phase
                    ),
                )
                numbers.append(100 * np.abs(errors("deepep_normal", part, values)).mean())
        cells = " ".join(f"{number:9.1f}" for number in numbers)
        print(f"{one[0]}/{one[1]:<8} {cells}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--leave-one-out", action="store_true")
    given = parser.parse_args()
    if given.leave_one_out:
        leave_one_out()
        return 0
    before = PRESET.read_text("utf-8")
    text, values = before, {}
    for fit in FITS:
        rows = rows_of(fit.table, fit.used)
        values |= fitted(fit, rows, values)
        at = errors(fit.table, rows, values)
        rest = errors(fit.table, rows_of(fit.table, fit.checked), values)
        print(f"{fit.table}: fitted {mean_percent(at)}, checked {mean_percent(rest)}")
        for key in fit.start:
            print(f"    {key} = {values[key]}")
            source = f"{fit.says} ({SOURCE}), by scripts/calibrate.py"
            text = written(text, key, values[key], source)
    if given.check:
        print("the preset is up to date" if text == before else "the preset holds other values")
        return int(text != before)
    PRESET.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
