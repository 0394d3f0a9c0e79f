"""The binary-heap loop in C++ that speeds are stated beside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from layer_workload import STANDARD_MAKESPAN_PS, LayerWorkload

SOURCE = Path(__file__).with_suffix(".cpp")


def heap_loop_s(work: LayerWorkload, folder: Path) -> float | None:
    """CPU time of the C++ loop on some work, the best of nine runs; None without a compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    program, data = folder / "heap_loop", folder / "layer.bin"
    subprocess.run([compiler, "-O3", "-march=native", "-o", program, SOURCE], check=True)
    with data.open("wb") as file:
        np.array([work.num_gpus, work.source.size, work.tile_gpu.size], np.int32).tofile(file)
        for column in (work.source, work.target, work.tile, work.tile_gpu):
            column.astype(np.int32).tofile(file)
    answer = subprocess.run([program, data, "9"], check=True, capture_output=True, text=True)
    makespan_ps, cpp_s = answer.stdout.split()
    assert abs(int(makespan_ps) - STANDARD_MAKESPAN_PS) < 1000
    return float(cpp_s)
