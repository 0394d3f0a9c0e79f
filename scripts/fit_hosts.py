"""Fits the host speed of AWS p5 to a pair of published steps; prints residuals.

Usage: python scripts/fit_hosts.py [--recompute none]    (some minutes)

Qwen3-30B on 64 H100 of p5 (awslabs/awsome-distributed-ai 95b939cd, 3.test_cases/megatron/
megatron-bridge/qwen3-30b/benchmarks/RESULTS.md): TP8 PP4 DP2 EP16, sequences of 4096, 256 a step,
in micro-batches of 1 and of 4, rows exchanged by NCCL or by DeepEP over NVSHMEM. The one number is
``[host] speed``: it makes the mean of log(predicted / published) zero. Each transport is also left
out: fitted on the other alone.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from math import exp, log, sqrt

import replay

SYSTEM = "aws-p5-x8"
OPTIONS = {"megatron": {}, "deepep": {"transport": "proxy"}}
SPEEDS = (0.6, 0.8, 1.0)  # replayed; log(step) is taken as straight between two of them
PUBLISHED_S = {
    ("megatron", 1): 27.89,
    ("megatron", 4): 8.60,
    ("deepep", 1): 28.69,
    ("deepep", 4): 9.16,
}
"""By scheme and sequences of a micro-batch. DeepEP is on NVSHMEM's proxy; its steps on UCCL are predictions."""

Steps = dict[tuple[str, int], list[float]]


def step_s(scheme: str, micro_batch: int, speed: float, recompute: str) -> float:
    """Predict a step."""
    sizes = f"micro_batch={micro_batch},micro_batches={128 // micro_batch},recompute={recompute}"
    result = replay.train(
        model="qwen3-30b-a3b",
        system=SYSTEM,
        overrides={"host.speed": speed},
        schedule="1f1b",
        sequence=4096,
        layers_sampled=1,
        scheme=scheme,
        options=OPTIONS[scheme],
        stack="megatron-plain",
        fit=False,
        plan=f"tp=8,pp=4,dp=2,ep=16,{sizes}",
    )
    return result.step_us * 1e-6


def between(steps: Sequence[float], speed: float) -> float:
    """Interpolate a step, and extrapolate beyond the speeds that were replayed."""
    last = len(SPEEDS) - 2
    first = min(last, max(0, sum(speed > one for one in SPEEDS) - 1))
    low, high = log(SPEEDS[first]), log(SPEEDS[first + 1])
    share = (log(speed) - low) / (high - low)
    return exp((1 - share) * log(steps[first]) + share * log(steps[first + 1]))


def fitted(steps: Steps) -> float:
    """Speed that makes the mean of log(predicted / published) of these steps zero."""
    low, high = SPEEDS[0] / 2, SPEEDS[-1] * 2
    for _ in range(50):
        speed = sqrt(low * high)
        off = sum(log(between(steps[which], speed) / PUBLISHED_S[which]) for which in steps)
        low, high = (speed, high) if off > 0 else (low, speed)
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recompute", default="full")
    recompute = parser.parse_args().recompute
    steps: Steps = {which: [] for which in PUBLISHED_S}
    for speed, which in itertools.product(SPEEDS, PUBLISHED_S):
        steps[which].append(step_s(*which, speed, recompute))
        print(f"speed {speed}: {which[0]}, {which[1]}: {steps[which][-1]:.2f} s", flush=True)
    whole = fitted(steps)
    print(f"\nfitted on all: {whole:.3f}")
    for which, published in PUBLISHED_S.items():
        rest = {one: times for one, times in steps.items() if one[0] != which[0]}
        other = fitted(rest)
        of_all, of_rest = (between(steps[which], speed) for speed in (whole, other))
        print(
            f"{which[0]}, {which[1]}: published {published:.2f} s, "
            f"{of_all:.2f} ({of_all / published:.2f}); "
            f"left out, speed {other:.3f}: {of_rest:.2f} ({of_rest / published:.2f})"
        )


if __name__ == "__main__":
    main()
