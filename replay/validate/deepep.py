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


class _Coarse(DeepEp):
    """The scheme's two kernels where one token of the routing stands for `alike` tokens.

    Not for a whole layer: the experts would serve the tokens of the routing only.
    """

    def __init__(self, options: DeepEpOptions, alike: int) -> None:
        super().__init__(options)
        self.alike = alike


def _scheme(row: Row) -> _Coarse:
    tokens = row["tokens_per_rank"]
    alike = tokens // GRAINS if tokens > EXACT_TOKENS else 1
    chunk = max(TUNED_CHUNK, CHUNK_GRAINS * alike)
    options = DeepEpOptions(
        num_sms=row["num_sms"], cached_layout=True, dispatch_chunk=chunk,
        combine_chunk=chunk, ring_tokens=max(256, RING_CHUNKS * chunk) if alike > 1 else 256,
    )  # fmt: skip
    return _Coarse(options, alike)


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds, the notify kernel included."""
    found = []
    for row in rows:
        scheme = _scheme(row)
        draw = uniform_work if scheme.alike == 1 else even_work
        work = draw(
            row["ep_size"], row["tokens_per_rank"] // scheme.alike, row["num_experts"],
            row["topk"], row["hidden"],
        )  # fmt: skip
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
