"""Write replay/chains/node_errors.csv: replays of some nodes beside exact ones of all.

    python scripts/node_errors.py SCHEME [SCHEME ...]     # replaces these schemes' rows

A row is a layer of DeepSeek-V3 (uniform and Zipf routing, group-limited too) or of the recorded
GPT-OSS-20B, on nodes of 8 H100, in the scheme's own precision. About a minute a scheme.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import replay
import tracegen
from replay.errors import UserError
from tracegen.generate import generate

TABLE = Path(__file__).parents[1] / "replay" / "chains" / "node_errors.csv"
COLUMNS = ("scheme", "gpus", "sampled_nodes", "routing", "tokens_per_gpu", "whole_us", "sampled_us")
SKEWS = {"uniform": None, "zipf 0.5": 0.5, "zipf 1.0": 1.0}
SIZES = ((16, 256), (32, 64), (32, 256), (64, 64))
"""GPUs, and tokens of each."""


def traces() -> Iterator[tuple[str, int, int, tracegen.RoutingTrace]]:
    """Routing, GPUs, tokens per GPU, and the trace."""
    drawn: dict[str, Any] = {"model": "deepseek-v3", "layers": 1, "seed": 2}
    for routing, skew in SKEWS.items():
        for gpus, tokens in SIZES:
            given = {"kind": "uniform"} if skew is None else {"kind": "zipf", "skew": skew}
            made = generate(ranks=gpus, tokens_per_rank=tokens, **drawn, **given)
            yield routing, gpus, tokens, made
    limited = generate("uniform", ranks=32, tokens_per_rank=64, group_limited=True, **drawn)
    yield "group-limited", 32, 64, limited
    recorded = tracegen.load("gpt-oss-20b-decode", layers=[12])
    for gpus in (16, 32):
        yield "recorded", gpus, 64, recorded


def rows_of(scheme: str) -> Iterator[dict[str, str]]:
    """Compare, trace by trace."""
    for routing, gpus, tokens, trace in traces():
        settings: dict[str, Any] = {
            "scheme": scheme,
            "system": f"dgx-h100-x{gpus // 8}",
            "layer": 0,
            "ranks": gpus,
            "tokens_per_rank": None if trace.num_ranks else tokens,
            "precision": "bf16",
            "tune": False,
            "stack": "bare",
        }
        try:
            whole = replay.run(trace, **settings).totals.makespan_us
        except UserError as error:
            print(f"{scheme}, {gpus} GPUs, {routing}: {error}", flush=True)
            continue
        for number in (1, 2):
            if number >= gpus // 8:
                continue
            some = replay.run(trace, sample_nodes=number, **settings).totals.makespan_us
            print(
                f"{scheme:15} {gpus:3} GPUs, {number} nodes, {routing:13} {tokens:4} tokens: "
                f"{whole:10,.1f} us, {some / whole - 1:+.2%}",
                flush=True,
            )
            values = (scheme, gpus, number, routing, tokens, f"{whole:.3f}", f"{some:.3f}")
            yield dict(zip(COLUMNS, map(str, values), strict=True))


def main(schemes: list[str]) -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        kept = [row for row in csv.DictReader(file) if row["scheme"] not in schemes]
    rows = kept + [row for scheme in schemes for row in rows_of(scheme)]
    rows.sort(key=lambda row: row["scheme"])
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
