"""Batches served by whole models: what results say, what is refused, what is written and shown."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import end_of
from loops import every

from replay.errors import UserError
from replay.experiments.serve.arrivals.replay import ArrivalSetup
from replay.experiments.serve.arrivals.spec import ArrivalSpec
from replay.experiments.serve.experiment import EXPERIMENT
from replay.experiments.serve.replay import _least_room, _positions, carry_out
from replay.experiments.serve.requests import lengths_of
from replay.experiments.serve.result import InferComparison, scheme_name
from replay.experiments.serve.room import ServingRoom, least_room_of
from replay.experiments.serve.routing import RoutingSource
from replay.experiments.serve.setup import ServingSetup
from replay.experiments.serve.spec import InferSpec
from tracegen.generate import generate
from tracegen.models import load

SMALL = InferSpec(model="olmoe-1b-7b", decode_gpus=2, requests=8, prompt=64, output=6, chunk=256, sample_layers=1)


@pytest.fixture(scope="module")
def compared() -> InferComparison:
    return EXPERIMENT.compare(SMALL, ["deepep-ll", "nccl-alltoall"])


def test_results_add_up(compared: InferComparison) -> None:
    result = compared["deepep-ll"]
    assert result.prefill.scheme.name == "deepep"
    assert result.requests == 16
    prefill, decode = result.prefill, result.decode
    assert result.time_us == pytest.approx(prefill.time_us + decode.time_us)
    for phase in (prefill, decode):
        assert sum(phase.spent_us.values()) == pytest.approx(phase.time_us)
        seconds = phase.time_us / 1e6
        assert phase.tokens_per_s_per_gpu == pytest.approx(phase.tokens / seconds / 2)
    assert (prefill.tokens, decode.tokens) == (16 * 64, 16 * 6)
    assert (prefill.iterations, decode.iterations) == (2, 6)
    assert result.ttft.first_us == pytest.approx(prefill.time_us / 2, rel=0.01)
    assert result.ttft.last_us == pytest.approx(prefill.time_us)
    assert result.tpot.start_us < result.tpot.mean_us < result.tpot.end_us
    assert result.tpot.mean_us == pytest.approx(decode.time_us / 6)


def test_memory_counts_weights_and_caches(compared: InferComparison) -> None:
    shape, memory = load("olmoe-1b-7b"), compared["deepep-ll"].decode.memory
    # Keys and values of every head and layer, BF16.
    width = 2 * (shape.num_kv_heads or 0) * (shape.hidden // (shape.num_heads or 1)) * 2
    assert memory.position_bytes == shape.num_layers * width
    assert memory.cache_positions == 8 * (64 + 6)
    # 6.92 billion parameters, of which 6.44 are experts, half on each GPU (OLMoE's paper).
    assert memory.weight_bytes == pytest.approx(2 * (6.92e9 - 6.44e9 / 2), rel=0.005)
    free = memory.capacity_bytes - memory.weight_bytes - memory.iteration_bytes
    assert memory.positions_fit == free // memory.position_bytes


def test_what_does_not_fit_is_refused_saying_what_is_too_big() -> None:
    with pytest.raises(UserError, match=r"weights.*cache for .* positions do not fit .* room for") as refused:
        EXPERIMENT.run(SMALL, prompt=2**17, chunk=32)
    fits = int(re.search(r"what fits: (\d+) of \d+ requests per GPU \(--requests\)", str(refused.value))[1])  # type: ignore[index]
    for requests, is_too_many in ((fits, False), (fits + 1, True)):
        setup = ServingSetup.of(SMALL.changed(prompt=2**17, chunk=32, requests=requests))
        room = _least_room(setup, setup.prefill, setup.prefill.num_gpus)
        assert (_positions(setup, "prefill", setup.prefill) > room.positions) == is_too_many
    with pytest.raises(UserError, match=r"what fits: experts over 16 GPUs of that memory"):
        EXPERIMENT.run(model="deepseek-v3", system="dgx-h100", requests=1, prompt=32, output=2)
    room = ServingRoom(capacity=100, weights=40, iteration=20, position=2)
    assert room.positions == 20
    room.check(20, "here")
    with pytest.raises(UserError, match="do not fit"):
        room.check(21, "here")


def test_the_default_model_fits_the_default_machine() -> None:
    setup = ServingSetup.of(InferSpec())
    for phase, links in (("prefill", setup.prefill), ("decode", setup.decode)):
        assert _positions(setup, phase, links) <= _least_room(setup, links, links.num_gpus).positions


@every(("system", "scheme"), [("dgx-h100", "deepep-ll"), ("mi300x", "pangu"), ("cloudmatrix384", "cann-ep")])
def test_who_decodes_is_left_to_the_machine_where_no_scheme_is_named(system: str, scheme: str) -> None:
    spec = InferSpec().changed(system=system, decode_gpus=8)
    assert ServingSetup.of(spec).spec.scheme == scheme
    assert EXPERIMENT.usual_schemes(spec, {}) == [scheme]
    arrivals = ArrivalSpec(system=system, requests=2, decode_gpus=8)
    assert ArrivalSetup.of(arrivals).spec.scheme == scheme
    named = spec.changed(scheme="deepep-ll")
    assert named.with_scheme() is named


def test_more_tokens_than_can_be_drawn_are_refused() -> None:
    with pytest.raises(UserError, match=r"134,217,728 choices of experts.* a smaller chunk"):
        EXPERIMENT.run(SMALL, prompt=2**22, chunk=2**22, requests=1, decode_gpus=4, fit=False)


def test_what_cannot_fit_is_refused_before_anything_is_replayed() -> None:
    setup = ServingSetup.of(SMALL.changed(prompt=2**20, chunk=32))
    with pytest.raises(UserError, match=r" 0\.0 GB of buffers"):
        carry_out(setup)
    times = setup.times["decode"]
    assert [one.replays for one in times.layers.values()] == [0, 0]


def test_a_model_without_attention_keeps_nothing_of_a_position() -> None:
    room = ServingRoom(capacity=100, weights=40, iteration=20, position=0)
    room.check(10**9, "here")
    with pytest.raises(UserError, match="do not fit"):
        ServingRoom(capacity=100, weights=90, iteration=20, position=0).check(1, "here")


def test_the_least_that_is_needed_is_not_more_than_what_is(compared: InferComparison) -> None:
    memory = compared["deepep-ll"].decode.memory
    least = least_room_of(load("olmoe-1b-7b"), memory.capacity_bytes, 2, 1, "bf16", 0)
    assert least.weights == memory.weight_bytes  # even placement
    assert (least.iteration, least.position) == (0, memory.position_bytes)


def test_other_gpus_prefill_and_hand_over(compared: InferComparison) -> None:
    apart = EXPERIMENT.run(SMALL, prefill_gpus=4, decode_gpus=2, system="dgx-h100")
    assert apart.prefill.gpus == 4
    assert apart.prefill.iterations == 1
    assert apart.handover is not None
    position = apart.prefill.memory.position_bytes
    assert apart.handover.bytes_per_gpu == 4 * 64 * position
    whole = apart.prefill.time_us + apart.handover.exposed_us + apart.decode.time_us
    assert apart.time_us == pytest.approx(whole)
    assert apart.decode.spent_us == compared["deepep-ll"].decode.spent_us


def test_a_comparison_says_who_was_left_out_and_reads_back(compared: InferComparison, tmp_path: Path) -> None:
    assert compared.baseline == "deepep-ll"
    path = tmp_path / "compared.json"
    compared.save(path)
    assert EXPERIMENT.load_result(path) == compared
    result = compared.results[0]
    result.save(path)
    assert EXPERIMENT.load_result(path) == result
    path.write_text(json.dumps({"format": "moereplay-infer/1"}))
    with pytest.raises(UserError, match="is damaged"):
        EXPERIMENT.load_result(path)
    path.write_text(json.dumps({"format": "moereplay-tensor/1"}))
    with pytest.raises(UserError, match="this takes: moereplay-infer, moereplay-infer-comparison"):
        EXPERIMENT.load_result(path)


def test_equal_settings_have_one_identity() -> None:
    first, second = ServingSetup.of(SMALL), ServingSetup.of(SMALL.changed(fit=False))
    assert first.run_id == second.run_id
    assert first.run_id != ServingSetup.of(SMALL.changed(prompt=65)).run_id


def test_schemes_of_prompts_and_of_decoding() -> None:
    assert SMALL.of_prompts == "deepep"
    assert SMALL.changed(scheme="dysharp").of_prompts == "dysharp"
    assert SMALL.changed(prefill_scheme="comet").of_prompts == "comet"
    assert scheme_name("deepep", "deepep-ll") == "deepep-ll"
    assert scheme_name("comet", "deepep-ll") == "comet+deepep-ll"
    assert scheme_name("comet", "comet") == "comet"


def test_to_name_one_scheme_allows_no_other_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'executed')!r}).touch()")
    planted = f"{tmp_path / 'planted.py'}:Planted"
    for other, own in (("scheme", "prefill_scheme"), ("prefill_scheme", "scheme")):
        with pytest.raises(UserError, match="allow-code"):
            EXPERIMENT.run(SMALL.changed(**{own: planted}), **{other: "deepep"})
        with pytest.raises(UserError, match="allow-code"):
            EXPERIMENT.compare(SMALL.changed(**{own: planted}))  # whose usual schemes are those of the spec
        assert not (tmp_path / "executed").exists()


def test_a_result_says_which_file_its_scheme_was(tmp_path: Path) -> None:
    text = "from replay.schemes.ep.ideal import Ideal\n\n\nclass Mine(Ideal):\n    name = 'mine'\n"
    (tmp_path / "mine.py").write_text(text)
    made = EXPERIMENT.run(SMALL, scheme=f"{tmp_path / 'mine.py'}:Mine")
    assert made.decode.scheme.code == hashlib.sha256(text.encode()).hexdigest()


@every(
    ("settings", "words"),
    [
        ({"speculative": "0:0.5"}, "DRAFTS:ACCEPTANCE"),
        ({"speculative": "1"}, "DRAFTS:ACCEPTANCE"),
        ({"tp": 3}, "does not divide"),
        ({"tp": 2, "interleave": "tbo"}, "tp 2 with interleave"),
        ({"decode_gpus": 16}, "has 8"),
        ({"routing": "zip"}, "kind of routing"),
        ({"routing": "zipf:skew=a"}, "a kind with numbers"),
        ({"routing": "zipf:sku=1"}, "parameter of zipf"),
        ({"lengths": "trace"}, "no trace"),
        ({"requests": 0}, "at least 1"),
        ({"tolerance": 0.0}, "above 0"),
        ({"scheme": "nothing"}, "scheme"),
        ({"fitt": True}, "setting"),
        ({"interleave": "dualpipe"}, "unknown interleave .* known: dbo, off, sbo, tbo"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ServingSetup.of(SMALL.changed(**settings)).times["decode"]


def test_lengths_of_a_trace_are_those_of_its_requests() -> None:
    trace = generate("uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=3, layers=1, steps=4)
    prompt, output = lengths_of(trace)
    counts = np.bincount(trace.tokens.request)
    assert prompt.tolist() == counts.tolist()
    assert output.tolist() == [1] * len(counts)
    decoded = generate("uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=3, layers=1, steps=4, phase="decode")
    prompt, output = lengths_of(decoded)
    first = [decoded.tokens.position[decoded.tokens.request == request].min() for request in range(len(prompt))]
    assert prompt.tolist() == np.maximum(first, 1).tolist()
    assert output.tolist() == [4 + 1] * len(prompt)


def test_layers_of_a_trace_are_spread_over_the_model() -> None:
    trace = generate("uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=1, layers=10)
    shape = load("olmoe-1b-7b")
    assert RoutingSource(shape, 2, 1, trace=trace).positions == (5,)
    assert RoutingSource(shape, 2, 2, trace=trace).positions == (2, 7)
    assert RoutingSource(shape, 2, 99, trace=trace).positions == tuple(range(10))
    assert RoutingSource(shape, 2, 3).positions == (0, 1, 2)


def test_a_trace_with_gpus_of_its_own_is_refused() -> None:
    with pytest.raises(UserError, match="GPUs of their own"):
        ServingSetup.of(InferSpec(trace="toy-uniform"))


def test_the_command_shows_both_phases(capsys: pytest.CaptureFixture[str]) -> None:
    parts = (
        "infer --model olmoe-1b-7b --decode-gpus 2 --requests 4 --prompt 32 --output 2",
        "--sample-layers 1 --tolerance 0.5 --scheme deepep+deepep-ll",
        "--scheme megatron-allgather --option deepep.num_sms=16 --baseline megatron-allgather",
    )
    words = " ".join(parts).split()
    ended = end_of(*words)
    out = capsys.readouterr().out
    assert ended == 0
    assert "speed-up over megatron-allgather" in out
    assert "deepep-ll: prompts run under deepep." in out
    assert max(map(len, out.splitlines())) <= 100
    for options in (["--option", "ll.K=V"], ["--baseline", "pangu"]):
        assert end_of(*words, *options) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_an_iteration_takes_room(compared: InferComparison) -> None:
    few, many = (EXPERIMENT.run(SMALL, requests=each, output=1, chunk=64) for each in (4, 32))
    shape = load("olmoe-1b-7b")
    memories = [one.decode.memory.iteration_bytes for one in (few, many)]
    # Rows of an iteration, in and out, at least.
    assert memories[1] >= memories[0] >= 64 * 2 * 2 * shape.hidden
    assert compared["nccl-alltoall"].decode.memory.iteration_bytes > 0
