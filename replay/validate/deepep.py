"""DeepEP's normal kernels alone: cached layout, uniform routing, chunk sizes tuned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from replay.schemes.deepep import DeepEp, DeepEpOptions
from replay.validate.bench import Bench, even_work, uniform_work
from replay.validate.table import Bound, Row, Table

TUNED_CHUNK = 6  # the benchmark tunes chunks; a multiple of the three warps of a peer wins
EXACT_TOKENS = 2048  # above, one task stands for several tokens
GRAINS = 1024
CHUNK_GRAINS, RING_CHUNKS = 2, 16


def _options(row: Row) -> DeepEpOptions:
    tokens = row["tokens_per_rank"]
    alike = tokens // GRAINS if tokens > EXACT_TOKENS else 1
    chunk = max(TUNED_CHUNK, CHUNK_GRAINS * alike)
    return DeepEpOptions(
        num_sms=row["num_sms"], cached_layout=True, alike=alike, dispatch_chunk=chunk,
        combine_chunk=chunk, ring_tokens=max(256, RING_CHUNKS * chunk) if alike > 1 else 256,
    )  # fmt: skip


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds, the notify kernel included."""
    found = []
    for row in rows:
        options = _options(row)
        draw = uniform_work if options.alike == 1 else even_work
        work = draw(
            row["ep_size"], row["tokens_per_rank"] // options.alike, row["num_experts"],
            row["topk"], row["hidden"],
        )  # fmt: skip
        scheme = DeepEp(options)
        phase = scheme.dispatch if row["phase"] == "dispatch" else scheme.combine
        build = partial(phase, work)
        found.append(bench.time_us(bench.system(row["system"]), row["ep_size"], build))
    return found


TABLE = Table(
    name="deepep_normal",
    title="DeepEP V1 normal kernels, 8 x H100",
    unit="us",
    size="tokens_per_rank",
    bounds=(
        Bound("dispatch", 6, lambda row: row["phase"] == "dispatch"),
        Bound("combine", 8, lambda row: row["phase"] == "combine"),
    ),
    predict=predict,
)
