"""Products: the tests of DeepGEMM, and the bench of cuBLASLt that NVIDIA hands out.

*DeepGEMM* (deepseek-ai/DeepGEMM 54e2261): ``tests/test_fp8_fp4.py`` lines 62 to 67 and 121 to 126,
``tests/test_bf16.py`` lines 54 to 58. Times are of the kernel alone. A machine's FP8 is DeepGEMM's,
with a scale for 128 values of each row; its BF16 is cuBLAS's, whose time a line of
``test_bf16.py`` gives as a ratio. Rows of groups are taken as even; the test draws 0.7 to 1.3 times
their mean.

*cublasMatmulBench* and GPUStressTest (NVIDIA/GPUStressTest c7c1562, ``main.cu`` lines 604 to 633
and 1317, ``util/measure.cc``): the line ``#### args:`` has the sizes in cuBLAS's order of columns,
so that its m are our n; the rate follows in a line of its own. Types are in the bench's option
``-P`` or the name of the stress test.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.studies.machines.log import Log

TOOL = "DeepGEMM's tests"
PERF = re.compile(
    r"^ > Perf \((?:num_groups= *(\d{1,4}), )?m= *(\d{1,7}), n= *(\d{1,7}), k= *(\d{1,7}),"
    r"(.{1,90})\): +([\d.]{1,9}) us .*?(?:([\d.]{1,6})x cuBLAS)?$"
)
CUBLAS_TOOL = "cuBLASLt's bench"
ARGS = re.compile(r"^#### args: ta=(\w) tb=(\w) m=(\d{1,7}) n=(\d{1,7}) k=(\d{1,7})\b")
RATE = re.compile(r"^\^\^\^\^ CUDA : elapsed = [\d.e+-]{1,12} sec, +Gflops = ([\d.]{1,14})")
TYPE = re.compile(r"-P[= ](\w{3,8})\b|STARTING TEST (?:\d+: )?(\w{3,8}) On Device")
HALF = {"tst", "tss", "hsh", "hss", "BF16", "FP16"}
"""Types at the rate of BF16."""


def is_text(log: Log) -> bool:
    """Tell whether a test of DeepGEMM printed some of it."""
    return "\n > Perf (" in f"\n{log.text}"


def read_text(log: Log) -> None:
    """Take the products of DeepGEMM's tests."""
    for number, line in log.lines:
        if not line.startswith(" > Perf ("):
            continue
        match = PERF.match(line)
        if match is None:
            log.leave("a kernel without a table")
            continue
        groups, m, n, k = (int(one or 1) for one in match.groups()[:4])
        kind, time, ratio = match[5], float(match[6]), match[7]
        is_fp8 = "1D2D" in kind or "1D1D" in kind
        is_plain = "acc=1" not in kind and "layout=NT" in kind and "psum=True" not in kind
        setting = {"groups": groups, "m": m, "n": n, "k": k}
        if not is_plain or " FP32" in kind:
            log.leave("another layout, or added to what is there")
        elif is_fp8:
            log.take("matrices", number, time, library="deepgemm", dtype="fp8", **setting)
        elif groups > 1 or ratio is None or not float(ratio):
            log.leave("BF16 by DeepGEMM: a machine's is cuBLAS's")
        else:
            time *= float(ratio)
            log.take("matrices", number, time, library="cublas", dtype="bf16", **setting)


def is_cublas(log: Log) -> bool:
    """Tell whether the bench of cuBLASLt printed some of it."""
    return "^^^^ CUDA : elapsed" in log.text and "#### args: ta=" in log.text


def read_cublas(log: Log) -> None:
    """Take the products of the bench, each of which follows another in a stream."""
    types, sizes = "", (0, 0, 0)
    for number, line in log.lines:
        if match := TYPE.search(line):
            types = match[1] or match[2]
        if match := ARGS.match(line):
            n, m, k = (int(one) for one in match.groups()[2:])
            sizes = m, n, k
        match = RATE.match(line)
        if match is None or not all(sizes):
            continue
        rate = float(match[1])
        if types not in HALF:
            log.leave("other types than BF16, or not said: copy the command (-P=tst) as well")
        elif rate > 0:
            m, n, k = sizes
            time_us = 2 * m * n * k / rate / 1e3
            log.take(
                "matrices",
                number,
                time_us,
                library="cublas stream",
                dtype="bf16",
                groups=1,
                m=m,
                n=n,
                k=k,
            )
        sizes = (0, 0, 0)
