"""Speculative decoding: what drafts compute, hold and deliver, by hand."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from replay.errors import UserError
from replay.experiments.serve import replay
from replay.experiments.serve.arrivals import replay as arriving
from replay.experiments.serve.arrivals.experiment import EXPERIMENT as ARRIVALS
from replay.experiments.serve.arrivals.spec import ArrivalSpec
from replay.experiments.serve.batch import DecodeRun, IterationCosts, decode
from replay.experiments.serve.experiment import EXPERIMENT
from replay.experiments.serve.iteration import Load
from replay.experiments.serve.parts import EngineParts, LoadRows
from replay.experiments.serve.room import least_room_of
from replay.experiments.serve.rules import Drafts
from replay.experiments.serve.serving import Pool
from replay.experiments.serve.setup import ServingSetup
from replay.experiments.serve.spec import InferSpec
from replay.experiments.serve.times import SPENT, ReplayedTimes
from replay.model.work.kernel_lists import RankedOperation
from tests.replay.serve.serving import RANKS, times
from tracegen.models import load

SMALL = InferSpec(model="olmoe-1b-7b", decode_gpus=2, requests=8, prompt=64, output=6, chunk=256, sample_layers=1)
KEYS = 2 * 2048 * 2
"""Bytes of a position in a layer of OLMoE: keys and values of all heads, BF16."""


# ---- iterations --------------------------------------------------------------------------------


def test_the_first_draft_reads_what_was_verified_and_each_other_one_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three drafts: a layer passes the four tokens of a request, then twice one of each."""
    seen: list[tuple[Any, list[Load], int]] = []

    def note(self: ReplayedTimes, spent: Any, loads: Any, part: Any, count: int) -> int:
        seen.append((part, list(loads), count))
        return 0

    monkeypatch.setattr(ReplayedTimes, "_add_layers", note)
    found = times()
    found.spent_ps([Load(32, 4, 32_000)] * RANKS)
    assert seen == [
        (EngineParts.moe, [Load(32, 4, 32_000)] * RANKS, found.shape.num_moe_layers),
        (EngineParts.draft, [Load(32, 4, 32_000)] * RANKS, 1),
        (EngineParts.draft, [Load(32, 1, 32_000)] * RANKS, 1),
        (EngineParts.draft, [Load(32, 1, 32_000)] * RANKS, 1),
    ]
    seen.clear()
    found.spent_ps([Load(32, 1, 32_000)] * RANKS)
    assert [part for part, _, _ in seen] == [EngineParts.moe]


class NotedStream:
    """Kernels with their sizes in order, all of them the stream's own."""

    def __init__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []

    def kernels(self, *_: Any) -> NotedStream:
        return self

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        self.noted.append(("on", what))
        yield

    def run(self, rows: Iterable[RankedOperation]) -> None:
        for row in rows:
            if row.of.kind == "gemm":
                self.noted.append(("gemm", *row.gemm.tolist()))
            else:
                self.noted.append(("memory", row.moves.tolist()))


def test_a_draft_joins_two_normed_rows_passes_a_layer_and_asks_for_one_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head has one row of each of 32 requests, though 96 tokens were verified."""
    monkeypatch.setattr(EngineParts, "moe", lambda self, stream, rows: stream.noted.append("moe"))
    monkeypatch.setattr(
        EngineParts,
        "ends",
        lambda self, stream, rows: stream.noted.append(("ends", rows.sampled.tolist())),
    )
    stream = NotedStream()
    rows = LoadRows.of_loads([Load(32, 3, 32_000)], (128, 128), 1)
    times().parts.draft(cast("Any", stream), rows)
    norm = ("memory", [2 * 96 * 2048 * 2])
    joined = ("gemm", [96, 2048, 2 * 2048])
    assert stream.noted == [("on", "dense"), norm, norm, joined, "moe", ("ends", [32])]


class Counting:
    """Iterations of a microsecond each."""

    def __init__(self) -> None:
        self.loads: list[Load] = []

    def spent_ps(self, loads: Sequence[Load]) -> dict[str, int]:
        self.loads += loads
        return {**dict.fromkeys(SPENT, 0), "launches": 1_000_000}


@pytest.mark.parametrize(
    ("drafts", "output", "grown"),
    [
        (Drafts(1, 0.5), 10, (0, 1, 3, 4, 6, 7, 9)),  # 1.5 a step: the seventh adds the tenth
        (Drafts(2, 1.0), 7, (0, 3, 6)),
        (Drafts(2, 0.0), 3, (0, 1, 2)),  # none accepted: as without, but with more queries
        (Drafts(3, 0.5), 8, (0, 1, 3, 5, 7)),  # 1.875 a step
    ],
)
def test_iterations_last_until_the_mean_has_made_all_tokens(
    drafts: Drafts, output: int, grown: tuple[int, ...]
) -> None:
    counting = Counting()
    made = decode(cast("Any", counting), [np.array([100])], [np.array([output])], drafts)
    assert counting.loads == [Load(1, drafts.count + 1, 100 + more) for more in grown]
    assert made.latency_ps.tolist() == [len(grown) * 1_000_000]
    assert made.tokens == output


def test_times_per_token_are_those_of_iterations_over_their_tokens() -> None:
    """Two drafts of which half are accepted: 1.75 tokens a step; seven are asked for, then ten."""
    spending = IterationCosts([7_000_000, 14_000_000, 21_000_000, 28_000_000, 35_000_000, 35_000_000])
    made = DecodeRun(spending, 17, np.array([70_000_000, 140_000_000]))
    setup = SimpleNamespace(drafts=Drafts(2, 0.5))
    found = replay._per_token(cast("Any", setup), made, [np.array([7]), np.array([10])])
    assert found.tokens_per_step == 1.75
    assert (found.start_us, found.end_us) == (4, 20)
    # 70 us over four steps, 140 us over six, whose last makes half a token too many.
    assert found.mean_us == pytest.approx((70 / 7 + 140 / 10.5) / 2)


# ---- memory ------------------------------------------------------------------------------------


def test_a_layer_that_drafts_has_weights_and_a_cache() -> None:
    """DeepSeek-V3: latent vectors of 512 + 64, BF16; weights FP8 but for norms and gate."""
    shape, capacity = load("deepseek-v3"), 10**12
    none, some = (least_room_of(shape, capacity, 8, 1, "fp8", count) for count in (0, 1))
    assert none.position == 61 * (512 + 64) * 2
    assert some.position - none.position == (512 + 64) * 2
    down = 7168 * (1536 + 512 + 64)
    attention = down + 1536 * 128 * 192 + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    matrix = 3 * 7168 * 2048
    norms, gate = 5 * 7168 + 1536 + 512, 256 * 7168 + 256  # three norms more than a layer's two
    joined = 2 * 7168 * 7168
    expected = attention + joined + matrix + 2 * (norms + gate) + 256 // 8 * matrix
    assert some.weights - none.weights == expected


def test_its_experts_are_those_of_one_layer_more() -> None:
    shape, capacity = load("deepseek-v3"), 10**12
    memory = SimpleNamespace(weight_bytes=[10, 20], total_bytes=[65, 60])
    layers = SimpleNamespace(near=lambda *_: None, most=1, positions=0, memory=memory)
    own = {"shape": shape, "parts": SimpleNamespace(precision="fp8"), "layers": {"decode": layers}}
    made = dataclasses.replace(times(), **cast("Any", own))
    for count in (0, 1):
        rest = least_room_of(shape, capacity, None, 1, "fp8", count)
        room = made.room(["decode"], capacity, count)
        assert room.weights - rest.weights == (58 + count) * 20  # of the fullest GPU
        assert room.iteration == 55  # of the GPU that needs most beside them
        assert room.position == rest.position


def test_one_layer_makes_all_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def note(*sizes: Any) -> Any:
        checked.append(sizes[-1])
        return least_room_of(*sizes)

    monkeypatch.setattr(replay, "least_room_of", note)
    served = EXPERIMENT.run(SMALL, speculative="3:0.5")
    assert checked == [1, 1]  # of prompts and of decoding, before anything is replayed
    assert served.decode.memory.position_bytes == 17 * KEYS
    assert served.decode.memory.cache_positions == 8 * (64 + 6)


# ---- settings ----------------------------------------------------------------------------------


def test_an_iteration_has_the_drafts_of_every_request_at_most() -> None:
    made = ServingSetup.of(SMALL.changed(speculative="3:0.5"))
    assert made.times["decode"].layers["decode"].most == 8 * 4
    assert ServingSetup.of(SMALL).times["decode"].layers["decode"].most == 8


def test_sixteen_drafts_are_possible_and_no_more() -> None:
    assert ServingSetup.of(SMALL.changed(speculative="16:1")).drafts == Drafts(16, 1.0)
    with pytest.raises(UserError, match="1 to 16 drafts"):
        ServingSetup.of(SMALL.changed(speculative="17:1"))


def test_requests_that_arrive_are_decoded_with_the_drafts_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Drafts, Pool]] = []
    serve = arriving.serve

    def note(requests: Any, pool: Pool, **settings: Any) -> Any:
        seen.append((settings["drafts"], pool))
        return serve(requests, pool, **settings)

    monkeypatch.setattr(arriving, "serve", note)
    asked = ArrivalSpec(**SMALL.model_dump(), arrivals="once", count=4, arrival_seed=9)
    found = ARRIVALS.run(asked, speculative="2:0.75")
    ((drafts, pool),) = seen
    assert drafts == Drafts(2, 0.75, seed=9)
    layers = cast("ReplayedTimes", pool.times).layers
    assert {phase: one.most for phase, one in layers.items()} == {"prefill": 256, "decode": 8 * 3}
    assert [cache.position_bytes for cache in found.caches] == [17 * KEYS]
