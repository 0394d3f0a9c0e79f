"""Print what jitter costs by scheme: chains whose GPUs are held up at random.

    python scripts/jitter.py [SCHEME ...]

FlashMoE's authors measured how much longer a synchronous all-to-all takes than its fastest kernel,
which is that of the GPU that came last (arXiv 2506.04667, table 2). Delays of GPUs that are drawn
one by one from a lognormal distribution explain both numbers that they give, the median and the
95th percentile over steps, with one median and one spread. The median is a multiple of the time of
an all-to-all: here, of the combine of `nccl-alltoall` on the same layers, which counts nothing
before. About ten minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

import replay
from replay.chains.jitter import Jitter
from tracegen.generate import generate

GPUS, TOKENS, LAYERS, SEEDS = 8, 256, 4, 20
SCHEMES = (
    "nccl-alltoall",
    "deepep",
    "comet",
    "megamoe",
    "flashdmoe",
    "moe-hub",
    "dysharp",
)


class Measured(NamedTuple):
    """GPUs of an all-to-all, and how much longer it takes than its fastest kernel."""

    name: str
    gpus: int
    median: float
    p95: float


MEASURED = (Measured("A100, supercomputer", 32, 1.09, 1.32), Measured("V100, cloud", 8, 3.1, 11.4))


def fitted(of: Measured) -> tuple[float, float]:
    """Median, in times of an all-to-all, and spread of delays whose longest is as measured.

    The longest of n is below its median with probability 0.5, so each is with 0.5**(1 / n). The
    shortest, against which the longest is measured, is left out: it is near nothing.
    """
    z50, z95 = (NormalDist().inv_cdf(share ** (1 / of.gpus)) for share in (0.5, 0.95))
    spread = float(np.log((of.p95 - 1) / (of.median - 1))) / (z95 - z50)
    return (of.median - 1) / float(np.exp(spread * z50)), spread


def checked(of: Measured, median: float, spread: float) -> tuple[float, float]:
    """Median and 95th percentile of the factor, with the shortest delay taken off."""
    late = np.stack([Jitter(median, spread).delays_ps(of.gpus, (n,)) for n in range(20_000)]) / 1e6
    low, high = np.quantile(1 + late.max(axis=1) - late.min(axis=1), (0.5, 0.95))
    return float(low), float(high)


def main(schemes: Sequence[str]) -> None:
    trace = generate("uniform", "olmoe-1b-7b", ranks=GPUS, tokens_per_rank=TOKENS, layers=LAYERS, seed=1)

    def replayed_us(scheme: str, jitter: str = "off", seed: int = 0) -> float:
        return replay.run(
            trace, scheme=scheme, system="dgx-h100", jitter=jitter, jitter_seed=seed, tune=False, stack="bare"
        ).totals.makespan_us

    apart = replay.run(trace, scheme="nccl-alltoall", system="dgx-h100", barrier=True, tune=False, stack="bare")
    combine = apart.layers[0].measures.phases["combine"]
    alltoall_us = combine.end_us - combine.start_us
    print(f"an all-to-all takes {alltoall_us:.1f} us")
    for measured in MEASURED:
        share, spread = fitted(measured)
        found = checked(measured, share, spread)
        jitter = f"lognormal:{share * alltoall_us:.3g}:{spread:.3g}"
        longest = [
            sum(
                Jitter(share * alltoall_us, spread, seed).delays_ps(GPUS, (0, 0, layer)).max()
                for layer in range(LAYERS)
            )
            / 1e6
            for seed in range(SEEDS)
        ]
        print(
            f"\n{measured.name}: median {share:.4f} all-to-alls, spread {spread:.3f}, factors "
            f"{found[0]:.2f}, {found[1]:.2f}; {jitter}; longest of each layer, summed: "
            f"{np.median(longest):.0f} us"
        )
        for scheme in schemes:
            plain = replayed_us(scheme)
            late = np.array([replayed_us(scheme, jitter, seed) for seed in range(SEEDS)])
            middle, high = np.quantile(late / plain, (0.5, 0.95))
            print(
                f"| `{scheme}` | {plain:,.0f} us | {middle:.3f} | {high:.3f} | "
                f"{np.median((late - plain) / longest):.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:] or SCHEMES)
