"""A trace of DeepSeek-V3's size on disk: 58 layers x 65,536 tokens x top-8 of 256 experts.

Times depend on the machine and are printed, not asserted; sizes hardly do.
   pytest -m bench -s tests/bench/test_bench_trace_file.py
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegen
from tracegen.library.remote_file import RemoteFile

LAYERS, TOKENS, TOPK, EXPERTS = 58, 65_536, 8, 256
RANKS, FACTORS = 32, 16

pytestmark = pytest.mark.bench


def routed() -> tracegen.RoutingTrace:
    """Ids that follow a token's position in a low-dimensional space, and sigmoid weights.

    Independent draws would compress worse than any real routing; an own structure of 16
    factors shared by the layers is nearer to it.
    """
    rng = np.random.default_rng(0)
    topic = rng.standard_normal((TOKENS, FACTORS), np.float32)
    ids = np.empty((LAYERS, TOKENS, TOPK), np.uint16)
    weights = np.empty(ids.shape, np.float16)
    for layer in range(LAYERS):
        embedding = rng.standard_normal((FACTORS, EXPERTS), np.float32) / np.float32(FACTORS**0.5)
        for first in range(0, TOKENS, 8192):
            rows = slice(first, first + 8192)
            score = topic[rows] @ embedding
            score += rng.standard_normal(score.shape, np.float32)
            best = np.argpartition(score, EXPERTS - TOPK, axis=1)[:, -TOPK:]
            chosen = np.take_along_axis(score, best, axis=1)
            order = np.argsort(-chosen, axis=1)
            ids[layer, rows] = np.take_along_axis(best, order, axis=1)
            weights[layer, rows] = 1 / (1 + np.exp(-np.take_along_axis(chosen, order, axis=1)))
    token = np.arange(TOKENS, dtype=np.uint32)
    return tracegen.RoutingTrace(
        model=tracegen.TraceModel.from_shape(tracegen.models.load("deepseek-v3")),
        moe_layer_index=np.arange(3, 3 + LAYERS, dtype=np.uint16),
        expert_ids=ids,
        gate_weights=weights,
        tokens=tracegen.TokenTable(
            step=np.zeros(TOKENS, np.uint32),
            request=token // 2048,
            position=token % 2048,
            phase=np.zeros(TOKENS, np.uint8),
            rank=(token // (TOKENS // RANKS)).astype(np.uint16),
        ),
        steps_indptr=np.array([0, TOKENS], np.uint64),
        info=tracegen.TraceInfo(title="bench", license="CC0-1.0", slot_order="weight_desc"),
    )


def say(line: str) -> None:
    """A line of the report."""
    sys.stdout.write(f"{line}\n")


def timed(what: str, action: Callable[[], Any], edges: int = 0) -> Any:
    """Run, print the time, return the result."""
    start = time.perf_counter()
    result = action()
    seconds = time.perf_counter() - start
    rate = f"  {edges / seconds / 1e6:8.1f} M edges/s" if edges else ""
    say(f"{what:44s} {seconds * 1e3:10.1f} ms{rate}")
    return result


def test_a_trace_of_deepseek_v3s_size(tmp_path):
    trace = routed()
    edges = LAYERS * TOKENS * TOPK
    for name in ("ids and weights", "ids"):
        if name == "ids":
            trace = dataclasses.replace(trace, gate_weights=None)
        path = tmp_path / f"{len(name)}.h5"
        timed(f"{name}: write", lambda t=trace, p=path: tracegen.write(t, p), edges)
        decoded = trace.expert_ids.nbytes + (trace.gate_weights.nbytes if trace.gate_weights is not None else 0)
        size = path.stat().st_size
        say(f"{name}: {size / 1e6:.1f} MB on disk, {decoded / 1e6:.1f} MB decoded, ratio {decoded / size:.2f}")
        timed(f"{name}: header and summary", lambda p=path: describe(p))
        timed(f"{name}: read all, checked", lambda p=path: tracegen.load(p), edges)
        timed(f"{name}: one layer", lambda p=path: tracegen.load(p, layers=[30]), edges // LAYERS)
        timed(f"{name}: 256 tokens of all layers", lambda p=path: tracegen.load(p, tokens=slice(9000, 9256)))
        asked_for(name, path)
        timed(f"{name}: verify", lambda p=path: tracegen.library.verify(p), edges)
    dags = timed("DAG of every layer", lambda: [trace.dag(layer, 0) for layer in range(LAYERS)], edges)
    held = sum(dag.indptr.nbytes + dag.tokens.nbytes + dag.slots.nbytes for dag in dags)
    say(f"DAG of every layer: {held / 1e6:.1f} MB in memory")
    assert sum(len(dag.tokens) for dag in dags) == edges


def describe(path) -> None:
    """What `trace info` needs."""
    with tracegen.open(path) as file:
        assert file.load_per_expert.sum() == LAYERS * TOKENS * TOPK


class Ranges:
    """A file whose parts are asked for, as from a server."""

    def __init__(self, path):
        self.url, self.size = str(path), path.stat().st_size
        self.validator, self.has_ranges = "", True
        self._path = path

    def read(self, start, stop):
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def stream(self, start):
        yield self.read(start, self.size)


def asked_for(name, path) -> None:
    """Requests and bytes of reading parts of a remote file."""
    for what, part in (
        ("header", None),
        ("one layer", {"layers": [30]}),
        ("256 tokens of all layers", {"tokens": slice(9000, 9256)}),
    ):
        remote = RemoteFile(Ranges(path), lambda action: action())
        with tracegen.open(remote) as file:
            if part:
                file.read(**part)
        fetched = remote.fetched_bytes / 1e6
        say(f"{name}: remote, {what}: {remote.requests} requests, {fetched:.2f} MB")
