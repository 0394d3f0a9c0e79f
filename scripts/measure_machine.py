"""Measure the machine at hand and write a preset for it.

On one GPU: matrix multiplications by shape and type, streaming through memory, launches and the
gaps between kernels, host synchronisation. On several, under torchrun: copies between pairs,
all-to-all by message size, a barrier. What is not measured is taken from a base preset.

Usage: python scripts/measure_machine.py --base dgx-h100 --name my-machine [--out FILE.toml]
       torchrun --nproc-per-node 8 scripts/measure_machine.py --base dgx-h100 --name my-machine
    --data FILE.json    also write every single measurement

Needs torch (pip install moereplay[capture]) and an NVIDIA GPU. Multicast, flags between GPUs and
bandwidth by SM count need kernels of their own and are not measured; the base's values stay.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

WARM_UPS, REPEATS = 5, 20
GEMM_SHAPES = [
    (m, n, k)
    for n, k in ((4096, 7168), (7168, 2048), (8192, 8192))
    for m in (64, 256, 1024, 4096, 8192, 16384)
]
GROUPED_SHAPES = [(32, rows, 4096, 7168) for rows in (1, 16, 128, 512)]
STREAM_BYTES = [1 << 24, 1 << 26, 1 << 28, 1 << 30]
MESSAGE_BYTES = [1 << power for power in range(12, 30, 2)]
L2_FLUSH_BYTES = 1 << 28
LEAST_RATIO = 1e-3


@dataclass(frozen=True)
class Sample:
    """One measurement: kind, setting, and duration in seconds."""

    what: str
    setting: dict[str, Any]
    seconds: float


# ---- constants from samples (no GPU needed; tested) ---------------------------------------------


def best_rate(samples: list[Sample], what: str, amount: str) -> float:
    """Largest amount per second over all settings.

    Raises
    ------
    ValueError
        If nothing of that kind was measured.
    """
    rates: list[float] = [s.setting[amount] / s.seconds for s in samples if s.what == what]
    if not rates:
        message = f"no measurement of {what}"
        raise ValueError(message)
    return max(rates)


def slope_and_start(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of ``y = start + slope x``.

    Raises
    ------
    ValueError
        If there are fewer than two different x.
    """
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        message = "two different sizes are needed for a slope"
        raise ValueError(message)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope, mean_y - slope * mean_x


def constants(samples: list[Sample], peaks: dict[str, float]) -> dict[str, float]:
    """Preset values by dotted key.

    Parameters
    ----------
    samples
        Measurements.
    peaks
        ``bf16``, ``fp8`` (operations per second), ``hbm``, ``port`` (bytes per second) of the base.
    """
    kinds = {sample.what for sample in samples}
    found: dict[str, float] = {}
    for dtype in ("bf16", "fp8"):
        if f"gemm-{dtype}" in kinds:
            share = best_rate(samples, f"gemm-{dtype}", "operations") / peaks[dtype]
            found[f"compute.{dtype}_efficiency"] = ratio(share)
    if "stream" in kinds:
        found["hbm.stream_efficiency"] = ratio(best_rate(samples, "stream", "bytes") / peaks["hbm"])
    # Kernels in a row: one more of them takes its gap and the little time that it runs.
    for mode in ("stream", "graph"):
        points = [
            (sample.setting["kernels"], sample.seconds)
            for sample in samples
            if sample.what == f"empty-kernels-{mode}"
        ]
        if len(points) > 1:
            found[f"overheads.kernel_gap_{mode}_us"] = slope_and_start(points)[0] * 1e6
    for what, key in (("launch", "overheads.launch_us"), ("host-sync", "overheads.host_sync_us")):
        times = [sample.seconds for sample in samples if sample.what == what]
        if times:
            found[key] = statistics.median(times) * 1e6
    if "pair-copy" in kinds:
        # Copy engines: 16 of 17 flits are data.
        share = best_rate(samples, "pair-copy", "bytes") / peaks["port"] * 17 / 16
        found["link.efficiency"] = ratio(share)
    return found


def ratio(value: float) -> float:
    """Share within the range that a preset accepts."""
    return min(max(value, LEAST_RATIO), 1.0)


def preset_text(name: str, base: str, summary: str, values: dict[str, float], measured: str) -> str:
    """Text of a preset: the base, and every measured value with its source."""
    lines = [
        f"# Written by scripts/measure_machine.py; what is not here is {base}'s.",
        "",
        f"base = {json.dumps(base)}",
        f"name = {json.dumps(name)}",
        f"summary = {json.dumps(summary)}",
    ]
    section = ""
    for key in sorted(values):
        table, _, leaf = key.partition(".")
        if table != section:
            lines += ["", f"[{table}]"]
            section = table
        value = float(f"{values[key]:.4g}")
        lines.append(
            f"{leaf} = {{ value = {value!r}, source = {json.dumps(measured)}, "
            'confidence = "high", spread = "by confidence" }'
        )
    return "\n".join(lines) + "\n"


# ---- measuring ----------------------------------------------------------------------------------


def timed(torch: Any, call: Callable[[], object]) -> float:
    """Median seconds of a call on the GPU whose data is not in the L2 cache."""
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(WARM_UPS):
        call()
    times: list[float] = []
    for _ in range(REPEATS):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def gemms(torch: Any) -> list[Sample]:
    found = []
    for m, n, k in GEMM_SHAPES:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        setting = {"m": m, "n": n, "k": k, "operations": 2 * m * n * k}
        seconds = timed(torch, partial(torch.mm, a, b.t()))
        found.append(Sample("gemm-bf16", setting, seconds))
        if torch.cuda.get_device_capability() >= (8, 9) and m % 16 == 0:
            a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
            one = torch.ones((), device="cuda")
            types = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
            seconds = timed(torch, partial(torch._scaled_mm, a8, b8.t(), **types))
            found.append(Sample("gemm-fp8", setting, seconds))
    for groups, rows, n, k in GROUPED_SHAPES:
        a = torch.randn(groups, rows, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(groups, k, n, device="cuda", dtype=torch.bfloat16)
        setting = {"groups": groups, "m": rows, "n": n, "k": k}
        seconds = timed(torch, partial(torch.bmm, a, b))
        found.append(Sample("grouped-gemm-bf16", setting, seconds))
    return found


def streams(torch: Any) -> list[Sample]:
    found = []
    for nbytes in STREAM_BYTES:
        source = torch.empty(nbytes, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        seconds = timed(torch, partial(target.copy_, source))
        found.append(Sample("stream", {"bytes": 2 * nbytes}, seconds))
    return found


def overheads(torch: Any) -> list[Sample]:
    import time

    tiny, found = torch.zeros(1, device="cuda"), []
    for kernels in (10, 100, 1000):

        def row(kernels: int = kernels) -> None:
            for _ in range(kernels):
                tiny.add_(1)

        row()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            row()
        found.append(
            Sample("empty-kernels-graph", {"kernels": kernels}, timed(torch, graph.replay))
        )
        # A long kernel first, so that the launches are ahead of the GPU.
        ahead = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(20 + kernels // 50):
            ahead.zero_()
        begin.record()
        row()
        end.record()
        torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
        found.append(Sample("empty-kernels-stream", {"kernels": kernels}, seconds))
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        tiny.add_(1)
        found.append(Sample("launch", {}, time.perf_counter() - start))
        torch.cuda.synchronize()
        start = time.perf_counter()
        tiny.item()
        found.append(Sample("host-sync", {}, time.perf_counter() - start))
    return found


def between_gpus(torch: Any, rank: int, ranks: int) -> list[Sample]:
    found = []
    for nbytes in MESSAGE_BYTES:
        sent = torch.empty(nbytes, dtype=torch.int8, device="cuda")
        got = torch.empty_like(sent)
        if nbytes % ranks == 0:
            seconds = timed(torch, partial(torch.distributed.all_to_all_single, got, sent))
            found.append(Sample("all-to-all", {"bytes": nbytes, "gpus": ranks}, seconds))
        if rank == 0 and torch.cuda.device_count() > 1:
            far = torch.empty(nbytes, dtype=torch.int8, device="cuda:1")
            seconds = timed(torch, partial(far.copy_, sent))
            found.append(Sample("pair-copy", {"bytes": nbytes}, seconds))
        torch.distributed.barrier()
    word = torch.zeros(1, device="cuda")
    seconds = timed(torch, lambda: torch.distributed.all_reduce(word))
    return [*found, Sample("small-all-reduce", {"gpus": ranks}, seconds)]


def base_peaks(base: str) -> dict[str, float]:
    import hwmodel

    system = hwmodel.load(base)
    spec = system.spec
    line = spec.link.bandwidth_GB_per_s.value * spec.link.links_per_gpu.value * 1e9
    return {
        "bf16": spec.compute.bf16_peak_TFLOP_per_s.value * 1e12,
        "fp8": spec.compute.fp8_peak_TFLOP_per_s.value * 1e12,
        "hbm": spec.hbm.peak_GB_per_s.value * 1e9,
        "port": line,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="dgx-h100", help="preset for what is not measured")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    peaks = base_peaks(given.base)
    try:
        import torch
    except ImportError:
        print("error: torch is not installed; pip install moereplay[capture]", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("error: torch sees no NVIDIA GPU", file=sys.stderr)
        return 2
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    samples = []
    if rank == 0:
        samples = [*gemms(torch), *streams(torch), *overheads(torch)]
    if ranks > 1:
        torch.distributed.init_process_group("nccl")
        samples += between_gpus(torch, rank, ranks)
        torch.distributed.destroy_process_group()
    if rank != 0:
        return 0
    device, today = torch.cuda.get_device_name(), datetime.date.today().isoformat()
    measured = (
        f"measured on {today}, {device}, CUDA {torch.version.cuda}, torch {torch.__version__}"
    )
    summary = f"{ranks} x {device}, measured {today}; else as {given.base}"
    text = preset_text(given.name, given.base, summary, constants(samples, peaks), measured)
    out = given.out or Path(f"{given.name}.toml")
    out.write_text(text, "utf-8")
    if given.data:
        rows = [{"what": s.what, **s.setting, "seconds": s.seconds} for s in samples]
        given.data.write_text(
            json.dumps({"measured": measured, "samples": rows}, indent=1), "utf-8"
        )
    print(f"wrote {out}; try: moereplay hardware show {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
