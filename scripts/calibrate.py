"""Fit the constants of presets that no primary source gives, and write them into the presets.

Every fit starts from the values given here, whatever the preset holds, and is rounded to three
digits, so that running it again writes the same files. Each constant is fitted on one part of a
table and checked on the rest; both errors are printed.

Usage: python scripts/calibrate.py [--check] [--leave-one-out] [--only TABLE ...]
    --check           write nothing; exit code 1 if a preset holds other values
    --leave-one-out   write nothing; for every fit and every shape of its rows, fit on the other
                      shapes and predict this one; prints VALIDATION.md's table
    --only TABLE      these tables' fits alone
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replay.studies.machines import least_squares
from replay.studies.machines.machine_file import file_text
from replay.studies.validate.bench import Bench
from replay.studies.validate.catalog import TABLES
from replay.studies.validate.table import MeasurementRow, predict

PRESETS = Path(__file__).resolve().parent.parent / "hwmodel" / "presets"
SOURCE = "ai-dynamo/aiconfigurator performance data"


@dataclass(frozen=True)
class Fit:
    """Constants that are fitted together, from their starting values.

    `used` holds for the rows that are fitted, `checked` for those that are then predicted. `says`
    and `source` are what the preset gives as the source of the constants. `sampled` holds for the
    rows that are enough where shapes are left out.
    """

    table: str
    start: dict[str, float]
    used: Callable[[MeasurementRow], bool]
    checked: Callable[[MeasurementRow], bool]
    says: str
    preset: str = "dgx-h100"
    source: str = SOURCE
    sampled: Callable[[MeasurementRow], bool] = lambda row: True

    def shapes(self) -> list[tuple[object, ...]]:
        """Shapes of its rows."""
        return sorted({shape(row) for row in rows_of(self.table, self.about)})

    def about(self, row: MeasurementRow) -> bool:
        return self.used(row) or self.checked(row)


# What tells a shape from another, by table.
COLUMNS = {
    "deepep_normal": ("hidden", "topk"),
    "deepep_normal_b200": ("ep_size", "hidden", "topk"),
    "deepep_low_latency": ("hidden", "topk"),
    "deepep_internode": ("num_sms",),
    "deepep_low_latency_b200": ("ep_size", "hidden", "topk"),
    "fused_kernel": ("hidden",),
    "gemm": ("n", "k"),
    "gemm_few_tiles": ("n", "k"),
    "gemm_machines": ("n", "k"),
    "moe_compute": ("hidden", "intermediate"),
    "moe_machines": ("ep_size",),
    "nccl_collectives": ("collective", "num_gpus"),
    "nccl_collectives_b200": ("collective", "num_gpus"),
}
FITTED_SHAPES = {(2048, 8), (5120, 1), (7168, 8)}
FITTED_SHAPES_B200 = {(8, *shape) for shape in FITTED_SHAPES}
FEW_AND_MANY_CHOICES = {(4, 5120, 1), (8, 4096, 2), (8, 7168, 8)}  # of as many GPUs
SMS, TOKENS = (4, 12, 24), (1, 8, 32, 128, 512, 2048, 8192, 65536)
FEW_TOKENS = (1, 32, 512, 2048)  # where shapes are left out, which takes a fit for each
FEWER_TOKENS = (1, 16, 128, 1024)  # the same of low-latency kernels


def shape(row: MeasurementRow) -> tuple[object, ...]:
    return tuple(row[column] for column in COLUMNS[row.table])


def sampled(row: MeasurementRow) -> bool:
    return row["num_sms"] in SMS and row["tokens_per_rank"] in TOKENS


def few(row: MeasurementRow) -> bool:
    """Whether a setting of DeepEP's normal kernels is one of a few that say most."""
    return row["num_sms"] in SMS and row["tokens_per_rank"] in FEW_TOKENS


def sampled_sums(row: MeasurementRow) -> bool:
    """Whether a setting of DeepEP's combine between nodes is one of a few that say most."""
    return row["phase"] == "combine" and row["tokens_per_rank"] in FEW_TOKENS


def partial_tensorrt(row: MeasurementRow) -> bool:
    is_partial = row["m"] >= 256 and row["m"] % 128 != 0
    return bool(is_partial and row["gemm_dtype"] == "fp8_block" and row["library"] == "cublas-trtllm")


def in_the_switch(row: MeasurementRow) -> bool:
    """Large all-reduces, whose constants are the switch's."""
    large = row["bytes"] >= 1 << 19 and row["num_gpus"] > 2
    return bool(row["collective"] == "all_reduce" and large)


def second_size(row: MeasurementRow) -> bool:
    return bool(row["bytes"].bit_length() % 2 == 1)


def of_b200(row: MeasurementRow, library: str) -> bool:
    return bool(row["system"] == "hgx-b200" and row["library"] == library)


def deepgemm_b200(row: MeasurementRow) -> bool:
    return of_b200(row, "deepgemm-sglang")


def partial_b200(row: MeasurementRow) -> bool:
    return deepgemm_b200(row) and row["m"] >= 256 and row["m"] % 128 != 0


def whole_b200(row: MeasurementRow) -> bool:
    """Whole tiles that bind, in products too short for power to bind."""
    return deepgemm_b200(row) and 512 <= row["m"] <= 4352 and row["m"] % 128 == 0


def middle_cublas_b200(row: MeasurementRow) -> bool:
    """Products whose tiles bind, and too short for power to bind."""
    return of_b200(row, "cublas-trtllm") and 512 <= row["m"] <= 4352


def weights_b200(row: MeasurementRow) -> bool:
    """Experts' weights that bind."""
    return bool(row["moe_dtype"] == "bfloat16" and 16 <= row["global_tokens"] <= 256)


def weights_h200(row: MeasurementRow) -> bool:
    """Experts' weights that bind."""
    return bool(row["system"] == "hgx-h200" and row["tokens_per_rank"] <= 256)


def experts_b200(row: MeasurementRow) -> bool:
    """Experts' tiles that bind."""
    return bool(row["moe_dtype"] == "bfloat16" and row["global_tokens"] >= 6144)


def large_bf16(row: MeasurementRow) -> bool:
    return bool(row["moe_dtype"] == "bfloat16" and row["global_tokens"] >= 1536)


NCCL_START = {  # of both generations
    "nccl.ll_start_us": 2.5,
    "nccl.ll128_start_us": 3.0,
    "nccl.simple_start_us": 10.0,
    "nccl.ll_channel_GB_per_s": 6.0,
    "nccl.ll128_channel_GB_per_s": 15.0,
    "nccl.copy_GB_per_s": 30.0,
    "nccl.pair_ll_start_us": 3.5,
    "nccl.pair_simple_start_us": 6.0,
}
DEEPEP = Fit(
    "deepep_normal",
    {
        "warp.scan_ns": 200.0,
        "warp.row_ns": 500.0,
        "warp.round_ns": 700.0,
        "warp.reduce_step_ns": 25.0,
        "warp.reduce_source_ns": 5.0,
        "warp.reduce_wait_ns": 75.0,
        "overheads.fence_us": 10.0,
    },
    lambda row: sampled(row) and shape(row) in FITTED_SHAPES,
    lambda row: shape(row) not in FITTED_SHAPES,
    "fitted to DeepEP normal dispatch and combine, EP8, 8 x H100, shapes 2048/8, 5120/1 and "
    "7168/8 (hidden/top-k), 4, 12 and 24 SMs",
    sampled=few,
)
FITS = (
    DEEPEP,
    Fit(
        "deepep_low_latency",
        {"link.scatter_efficiency": 0.7, "link.bulk_scatter_efficiency": 0.7},
        lambda row: row["hidden"] == 4096 and row["tokens_per_rank"] >= 64,
        lambda row: row["hidden"] != 4096,
        "fitted to DeepEP low-latency dispatch and combine, EP8, 8 x H100, shape 4096/8 from 64 tokens per rank",
    ),
    Fit(
        "deepep_internode",
        {"warp.bulk_ns": 15.0},
        lambda row: sampled_sums(row) and row["num_sms"] in (4, 8, 16),
        lambda row: row["phase"] == "combine" and row["num_sms"] in (12, 20, 24),
        "fitted to DeepEP normal combine between nodes, EP16, 16 x H100, 4, 8 and 16 SMs",
        sampled=sampled_sums,
    ),
    Fit(
        "gemm",
        {"compute.bf16_efficiency": 0.85},
        lambda row: row["gemm_dtype"] == "bfloat16" and row["m"] >= 256 and row["m"] % 2 == 0,
        lambda row: row["gemm_dtype"] == "bfloat16" and row["m"] >= 256 and row["m"] % 2 == 1,
        "fitted to cuBLAS, H100, even m from 256",
    ),
    Fit(
        "gemm_few_tiles",
        {"compute.fp8_step_ns": 90.0},
        lambda row: row["gemm_dtype"] == "fp8_block" and row["k"] == 12288,
        lambda row: row["gemm_dtype"] == "fp8_block" and row["k"] == 8192,
        "fitted to FP8 GEMMs of DeepGEMM and TensorRT-LLM, H100, 1024 x 12288, one wave of tiles",
    ),
    Fit(
        "gemm",
        {"compute.fp8_absent_row_ns": 2.0},
        lambda row: partial_tensorrt(row) and row["n"] >= 4096,
        lambda row: partial_tensorrt(row) and row["n"] < 4096,
        "fitted to FP8 GEMMs of TensorRT-LLM, H100, n from 4096, m from 256 that is no multiple of 128",
    ),
    Fit(
        "moe_compute",
        {"compute.bf16_grouped_efficiency": 0.85},
        lambda row: large_bf16(row) and row["hidden"] == 4096,
        lambda row: large_bf16(row) and row["hidden"] != 4096,
        "fitted to MoE expert computation (TensorRT-LLM), H100, shape 4096/14336 (hidden/"
        "intermediate) from 1536 tokens",
    ),
    Fit(
        "moe_compute",
        {"overheads.small_kernel_us": 1.5},
        lambda row: row["global_tokens"] <= 16 and row["ep_size"] == 64,
        lambda row: row["global_tokens"] <= 16 and row["ep_size"] in (32, 128),
        "fitted to MoE expert computation of up to 16 tokens at EP64, H100",
    ),
    Fit(
        "nccl_collectives",
        NCCL_START,
        lambda row: row["num_gpus"] != 4 and not in_the_switch(row),
        lambda row: row["num_gpus"] == 4,
        "fitted to collectives of NCCL 2.29.2 on 2 and 8 x H100",
    ),
    Fit(
        "fused_kernel",
        {"hbm.stream_efficiency": 0.85},
        lambda row: weights_h200(row) and row["hidden"] == 7168,
        lambda row: weights_h200(row) and row["hidden"] == 4096,
        "fitted to MegaMoE's kernel on one H200, hidden 7168, up to 256 tokens",
        preset="hgx-h200",
        source="replay/studies/validate/measurements/fused_kernel.csv",
    ),
    Fit(
        "moe_machines",
        {"hbm.stream_efficiency": 0.85},
        lambda row: weights_b200(row) and row["ep_size"] == 8,
        lambda row: weights_b200(row) and row["ep_size"] != 8,
        "fitted to MoE expert computation (TensorRT-LLM), BF16, EP8, 16 to 256 tokens, B200",
        preset="hgx-b200",
    ),
    Fit(
        "gemm_machines",
        {"compute.fp8_efficiency": 0.8},
        lambda row: whole_b200(row) and row["n"] == 7168,
        lambda row: whole_b200(row) and row["n"] == 5120,
        "fitted to FP8 GEMMs of DeepGEMM, B200, 7168 x 8192, m from 512 that is a multiple of 128",
        preset="hgx-b200",
    ),
    Fit(
        "gemm_machines",
        {"compute.fp8_absent_row_ns": 2.0},
        lambda row: partial_b200(row) and row["n"] == 7168,
        lambda row: partial_b200(row) and row["n"] == 5120,
        "fitted to FP8 GEMMs of DeepGEMM, B200, 7168 x 8192, m from 256 that is no multiple of 128",
        preset="hgx-b200",
    ),
    Fit(
        "gemm_machines",
        {"compute.bf16_efficiency": 0.8},
        lambda row: middle_cublas_b200(row) and row["n"] == 5120,
        lambda row: middle_cublas_b200(row) and row["n"] == 7168,
        "fitted to cuBLAS, B200, 5120 x 2048, m from 512 to 4352",
        preset="hgx-b200",
    ),
    Fit(
        "moe_machines",
        {"compute.bf16_grouped_efficiency": 0.8},
        lambda row: experts_b200(row) and row["ep_size"] == 8,
        lambda row: experts_b200(row) and row["ep_size"] != 8,
        "fitted to MoE expert computation (TensorRT-LLM), EP8, B200, from 6144 tokens",
        preset="hgx-b200",
    ),
    Fit(
        "nccl_collectives_b200",
        NCCL_START,
        lambda row: second_size(row) and not in_the_switch(row),
        lambda row: not second_size(row),
        "fitted to collectives of NCCL 2.29.2 on 2 and 8 x B200, every second size",
        preset="hgx-b200",
    ),
    Fit(
        "deepep_normal_b200",
        # From the H100's values.
        {
            "warp.scan_ns": 200.0,
            "warp.row_ns": 750.0,
            "warp.round_ns": 650.0,
            "warp.reduce_step_ns": 27.0,
            "warp.reduce_source_ns": 2.5,
            "warp.reduce_wait_ns": 55.0,
            "overheads.fence_us": 12.0,
        },
        lambda row: sampled(row) and shape(row) in FITTED_SHAPES_B200,
        lambda row: shape(row) not in FITTED_SHAPES_B200,
        "fitted to DeepEP normal dispatch and combine, EP8, 8 x B200, shapes 2048/8, 5120/1 and "
        "7168/8 (hidden/top-k), 4, 12 and 24 SMs",
        preset="hgx-b200",
        sampled=few,
    ),
    Fit(
        "deepep_low_latency_b200",
        {
            "link.scatter_efficiency": 0.77,
            "link.bulk_scatter_efficiency": 0.85,
            "overheads.grid_barrier_us": 0.5,
            "warp.choice_ns": 200.0,
            "warp.release_ns": 600.0,
        },
        lambda row: shape(row) in FEW_AND_MANY_CHOICES,
        lambda row: shape(row) not in FEW_AND_MANY_CHOICES,
        "fitted to DeepEP low-latency dispatch and combine, 8 x B200, shapes 4096/2 and 7168/8 "
        "(hidden/top-k), and 4 x GB200, shape 5120/1",
        preset="hgx-b200",
        sampled=lambda row: row["tokens_per_rank"] in FEWER_TOKENS,
    ),
)


def errors(table: str, rows: list[MeasurementRow], values: dict[str, float]) -> np.ndarray:
    outcome = predict(TABLES[table], Bench(values), rows)
    return outcome.errors_percent[~outcome.left_out] / 100


def rows_of(table: str, holds: Callable[[MeasurementRow], bool]) -> list[MeasurementRow]:
    return [row for row in TABLES[table].rows() if holds(row)]


def fitted(fit: Fit, rows: list[MeasurementRow], fixed: dict[str, float]) -> dict[str, float]:
    """Constants of a fit that bring its table's rows closest, with others that stand."""
    return least_squares.fit_values(fit.start, lambda values: errors(fit.table, rows, {**fixed, **values}))


def mean_percent(found: np.ndarray) -> str:
    return f"{100 * np.abs(found).mean():.1f} % of {len(found)} rows"


def leave_one_out(fits: Sequence[Fit]) -> None:
    """Print, for each fit, the error of every shape when the constants come from the others."""
    print("| table | constants | shape | rows | fitted on all, % | on the other shapes, % |")
    print("|---|---|---|---:|---:|---:|")
    found: dict[str, dict[str, float]] = {}
    for fit in fits:
        fixed = dict(found.setdefault(fit.preset, {}))
        every = rows_of(fit.table, fit.about)
        values = fitted(fit, [row for row in every if fit.sampled(row)], fixed)
        names = ", ".join(key.partition(".")[2] for key in fit.start)
        for one in fit.shapes():
            part = [row for row in every if shape(row) == one]
            rest = [row for row in every if shape(row) != one and fit.sampled(row)]
            without = fitted(fit, rest, fixed) if rest else values
            both = [100 * np.abs(errors(fit.table, part, {**fixed, **of})).mean() for of in (values, without)]
            label = "/".join(map(str, one))
            cells = [fit.table, names, label, str(len(part)), *(f"{mean:.1f}" for mean in both)]
            print(f"| {' | '.join(cells)} |", flush=True)
        found[fit.preset] |= fitted(fit, rows_of(fit.table, fit.used), fixed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--leave-one-out", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="TABLE", choices=sorted(COLUMNS))
    given = parser.parse_args()
    fits = [fit for fit in FITS if not given.only or fit.table in given.only]
    if given.leave_one_out:
        leave_one_out(fits)
        return 0
    paths = {fit.preset: PRESETS / f"{fit.preset}.toml" for fit in fits}
    before = {name: path.read_text("utf-8") for name, path in paths.items()}
    text, found = dict(before), {name: dict[str, float]() for name in paths}
    for fit in fits:
        values = found[fit.preset]
        rows = rows_of(fit.table, fit.used)
        values |= fitted(fit, rows, values)
        at = errors(fit.table, rows, values)
        rest = errors(fit.table, rows_of(fit.table, fit.checked), values)
        print(f"{fit.table}: fitted {mean_percent(at)}, checked {mean_percent(rest)}")
        for key in fit.start:
            print(f"    {key} = {values[key]}")
            source = f"{fit.says} ({fit.source}), by scripts/calibrate.py"
            text[fit.preset] = file_text(text[fit.preset], key, values[key], source)
    if given.check:
        print("presets are up to date" if text == before else "a preset holds other values")
        return int(text != before)
    for name, path in paths.items():
        path.write_text(text[name], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
