"""DeepEP's kernels alone: normal (cached layout, chunk sizes tuned), low-latency and internode.

Above some thousand tokens per rank, a token of the routing stands for several tokens, so that the
graph stays small. Chunks then grow with it, and rings by as many chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from replay.schemes.deepep.internode import internode
from replay.schemes.deepep.low_latency import low_latency
from replay.schemes.deepep.messages import NODE_GPUS
from replay.schemes.deepep.normal import DeepEp, DeepEpOptions
from replay.validate.bench import Bench, even_work, uniform_work
from replay.validate.table import Bound, Row, Table

TUNED_CHUNK = 6  # tokens; the benchmark tunes chunks, and a multiple of a peer's three warps wins
RING_TOKENS = 256  # of a lane, as shipped for 8 GPUs
EXACT_TOKENS = 2048  # per rank; with more, a token of the routing stands for several
INTERNODE_EXACT_TOKENS = 1024  # the same between nodes
COARSE_TOKENS = 1024  # per rank, of the routing that then stands for all
COARSE_CHUNK, COARSE_RING = 2, 16  # tokens of that routing in a chunk; chunks in a ring


def _scheme(row: Row) -> DeepEp:
    """Make the scheme with a row's setting, for its two kernels alone.

    Where a token of the routing stands for several it cannot replay a layer, since the experts
    would serve the tokens of the routing only.
    """
    tokens = row["tokens_per_rank"]
    alike = tokens // COARSE_TOKENS if tokens > EXACT_TOKENS else 1
    chunk = max(TUNED_CHUNK, COARSE_CHUNK * alike)
    ring = max(RING_TOKENS, COARSE_RING * chunk) if alike > 1 else RING_TOKENS
    scheme = DeepEp(
        DeepEpOptions(
            num_sms=row["num_sms"], cached_layout=True, dispatch_chunk=chunk,
            combine_chunk=chunk, ring_tokens=ring,
        )
    )  # fmt: skip
    scheme.alike = alike
    return scheme


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds, the notify kernel included."""
    predicted = []
    for row in rows:
        scheme = _scheme(row)
        draw = uniform_work if scheme.alike == 1 else even_work
        work = draw(
            row["ep_size"], row["tokens_per_rank"] // scheme.alike, row["num_experts"],
            row["topk"], row["hidden"],
        )  # fmt: skip
        phase = scheme.dispatch if row["phase"] == "dispatch" else scheme.combine
        build = partial(phase, work)
        predicted.append(bench.time_us(bench.system(row["system"]), row["ep_size"], build))
    return predicted


def predict_low_latency(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict kernel times in microseconds."""
    predicted = []
    for row in rows:
        n = row["ep_size"]
        system = _system(bench, n)
        work = uniform_work(
            n, row["tokens_per_rank"], row["num_experts"], row["topk"], row["hidden"]
        )
        predicted.append(bench.time_us(system, n, partial(low_latency, work, row["phase"])))
    return predicted


def _system(bench: Bench, num_ranks: int) -> Any:
    domains = -(-num_ranks // NODE_GPUS)
    return bench.system("dgx-h100", fabric__num_domains=domains)


def predict_internode(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict transmit times in microseconds; the notify kernel is measured apart."""
    predicted = []
    for row in rows:
        n, tokens = row["ep_size"], row["tokens_per_rank"]
        alike = max(1, tokens // COARSE_TOKENS) if tokens > INTERNODE_EXACT_TOKENS else 1
        draw = uniform_work if alike == 1 else even_work
        work = draw(n, tokens // alike, row["num_experts"], row["topk"], row["hidden"])
        predicted.append(
            bench.time_us(
                _system(bench, n), n, partial(internode, work, row["phase"], row["num_sms"], alike)
            )
        )
    return predicted


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
LOW_LATENCY = Table(
    name="deepep_low_latency",
    title="DeepEP V1 low-latency kernels, 8 x H100",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 10, lambda row: True),),
    predict=predict_low_latency,
)
LOW_LATENCY_INTERNODE = Table(
    name="deepep_low_latency_internode",
    title="DeepEP V1 low-latency kernels, 16 x H100 on two nodes",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 15, lambda row: True),),
    predict=predict_low_latency,
)
INTERNODE = Table(
    name="deepep_internode",
    title="DeepEP V1 normal kernels, 16 x H100 on two nodes, without notify",
    unit="us",
    size="tokens_per_rank",
    bounds=(Bound("all", 10, lambda row: True),),
    predict=predict_internode,
    measured="transmit_us",
)
