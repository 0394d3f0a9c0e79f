"""The host of an engine and the sizes of its graphs, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from loops import every

from replay.chains.host_program import typical_program
from replay.errors import UserError
from replay.experiments.serve import layers
from replay.experiments.serve.engines import ENGINES, NODE_NS, REPLAY_US, EngineHost, engine_of
from replay.experiments.serve.experiment import EXPERIMENT
from replay.experiments.serve.iteration import Load, PromptPiece
from replay.experiments.serve.result import InferResult
from replay.experiments.serve.setup import ServingSetup
from replay.experiments.serve.spec import InferSpec
from replay.experiments.serve.tables import notes
from replay.experiments.serve.times import ReplayedTimes
from replay.model.compute import flash
from replay.model.machine.host import Operation
from replay.schemes import Scheme
from tests.replay.serve.serving import RANKS, times
from tracegen.models import load

US = 1_000_000
MS = 1_000 * US
DECODE = [Load(64, 1, 64 * 1000)] * RANKS
PROMPT = [Load(prefill=(PromptPiece(256, 0),))] * RANKS


def under(engine: EngineHost | None, **more: object) -> ReplayedTimes:
    return dataclasses.replace(times(), engine=engine, **more)


def on_gpu(loads: list[Load]) -> int:
    """Time of an iteration without its first launch."""
    overheads = times().system.overheads
    first = overheads.launch_ps if loads[0].prefill else overheads.graph_launch_ps
    return under(None).time_ps(loads) - first


def kernels(loads: list[Load]) -> int:
    """What the host says of a graph's nodes, told by a node that takes a microsecond each."""
    spent = under(EngineHost(overlaps=False)).spent_ps(loads)["host"]
    return round((spent / US - REPLAY_US) / (NODE_NS / 1000))


def test_a_host_in_turn_adds_its_time_and_the_launch_of_the_graph() -> None:
    found = under(EngineHost(900, overlaps=False))
    launch = round((REPLAY_US + NODE_NS / 1000 * kernels(DECODE)) * US)
    assert found.time_ps(DECODE) == on_gpu(DECODE) + 900 * US + launch
    # Prompts are launched kernel by kernel: the first one is waited for, the others run beside.
    launch = times().system.overheads.launch_ps
    assert found.time_ps(PROMPT) == on_gpu(PROMPT) + 900 * US + launch


def test_a_host_beside_its_gpus_is_waited_for_where_it_is_longer() -> None:
    step = on_gpu(DECODE)
    assert under(EngineHost(900)).time_ps(DECODE) == step > 900 * US
    launch = round((REPLAY_US + NODE_NS / 1000 * kernels(DECODE)) * US)
    assert under(EngineHost(1e5)).time_ps(DECODE) == 100 * MS + launch
    assert under(EngineHost(1e5)).spent_ps(DECODE)["host"] == 100 * MS + launch - step


def test_kernels_of_a_layer_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def program(scheme: Scheme, **given: Any) -> tuple[Operation, ...] | None:
        counted.append(scheme.name)
        return typical_program(scheme, **given)

    monkeypatch.setattr(layers, "typical_program", program)
    fresh = {name: dataclasses.replace(one) for name, one in times().layers.items()}
    found = under(EngineHost(900), layers=fresh)
    assert found.time_ps(DECODE) == found.time_ps(DECODE)
    assert len(counted) == 1


def test_a_host_that_takes_no_time_leaves_the_gpus_their_own() -> None:
    assert under(EngineHost()).time_ps(DECODE) == on_gpu(DECODE)
    assert "host" not in under(None).spent_ps(DECODE)
    nothing = [Load()] * RANKS
    assert under(EngineHost(900, overlaps=False)).time_ps(nothing) == 0


def test_a_step_has_the_kernels_of_its_layers() -> None:
    """DeepSeek-V2-Lite: 26 MoE layers, one without experts, and both ends."""
    found, shape = under(EngineHost()), times().shape
    short = shape.model_copy(update={"num_layers": shape.num_layers - 1})
    parts = dataclasses.replace(found.parts, shape=short)
    fewer = dataclasses.replace(found, shape=short, parts=parts)
    engine = EngineHost(overlaps=False)
    spent = [dataclasses.replace(one, engine=engine).spent_ps(DECODE)["host"] for one in (found, fewer)]
    layer = round((spent[0] - spent[1]) / US / (NODE_NS / 1000))
    per_layer = found.layers["decode"].kernels
    assert per_layer == 7  # of deepep-ll under SGLang: ids, dispatch, GEMMs, two between them, combine
    assert layer > per_layer


@pytest.mark.parametrize("travels", [True, False])
def test_batches_are_padded_up_to_the_next_graph_of_the_fullest_worker(travels: bool) -> None:
    engine = EngineHost(captured=(1, 32, 64, 128), pads_travel=travels)
    loads = [Load(60, 1, 60 * 1000), *[Load(30, 1, 30 * 1000)] * (RANKS - 1)]
    padded = [Load(64, 1, one.positions) for one in loads]
    found, wanted = (under(engine).spent_ps(loads), under(engine).spent_ps(padded))
    for cause in ("attention", "dense", "head", "launches"):
        assert found[cause] == wanted[cause]
    assert found["attention"] > under(EngineHost()).spent_ps(loads)["attention"]
    plain = under(None).spent_ps(loads)
    for cause in ("experts", "exchange"):
        assert found[cause] == (wanted if travels else plain)[cause]
    # What has a graph of its size is left as it is.
    assert under(engine).spent_ps(DECODE) == under(EngineHost()).spent_ps(DECODE)
    assert under(engine).spent_ps(PROMPT) == under(EngineHost()).spent_ps(PROMPT)


def test_more_than_the_largest_graph_is_launched_kernel_by_kernel() -> None:
    layers = times().layers["decode"]
    spec = layers.setup.spec.changed(launch="eager")
    eager = dataclasses.replace(layers, setup=dataclasses.replace(layers.setup, spec=spec), _launch=None, _exact={})
    found = under(EngineHost(captured=(1, 32)), uncaptured=eager)
    gap = times().system.overheads
    assert found.spent_ps(DECODE)["launches"] > under(EngineHost()).spent_ps(DECODE)["launches"]
    alone = under(EngineHost(captured=(1, 32), overlaps=False), uncaptured=eager)
    assert alone.spent_ps(DECODE)["host"] == gap.launch_ps
    few = [Load(32, 1, 32_000)] * RANKS
    assert found.spent_ps(few) == under(EngineHost()).spent_ps(few)


def test_sizes_of_engines() -> None:
    captured = {name: engine.captured for name, engine in ENGINES.items()}
    assert [len(captured[name]) for name in ("sglang", "vllm", "tensorrt-llm")] == [52, 51, 19]
    for name, wanted in {"sglang": 12, "vllm": 16, "tensorrt-llm": 16}.items():
        assert ENGINES[name].pad(9) == wanted
    assert [ENGINES["vllm"].pad(one) for one in (3, 250, 257, 512, 513)] == [
        4,
        256,
        272,
        512,
        513,
    ]
    assert not ENGINES["tensorrt-llm"].is_captured(129) and ENGINES["megatron"].is_captured(129)
    assert [ENGINES["megatron"].pad(one) for one in (1, 64, 65, 200)] == [1, 64, 128, 256]
    assert all(list(sizes) == sorted(set(sizes)) for sizes in captured.values())
    assert ENGINES["sglang"].pad(0) == 0


def test_settings_go_before_the_engine_s_own() -> None:
    assert engine_of(None, None, None, None) is None
    assert engine_of("vllm", None, None, None) == ENGINES["vllm"]
    assert engine_of("vllm", 100, False, "8, 4,4") == EngineHost(100, False, (4, 8))
    assert engine_of(None, 100, None, None) == EngineHost(100)
    assert engine_of("sglang", None, None, "any").captured == ()
    for text in ("0", "4,x", "", "4,,8", "-4", "65537", "9" * 5000):
        with pytest.raises(UserError, match=r"--captured '.*: expected batch sizes from 1 to 65536"):
            engine_of(None, None, None, text)


def test_a_batch_says_what_its_host_takes() -> None:
    asked = InferSpec(
        model="olmoe-1b-7b",
        decode_gpus=2,
        requests=7,
        prompt=64,
        output=4,
        chunk=256,
        sample_layers=1,
        scheme="nvls",
    )
    plain = EXPERIMENT.run(asked)
    found = EXPERIMENT.run(asked, engine="megatron", engine_host_us=500)
    host = found.decode.spent_us["host"] / found.decode.iterations
    assert 500 + REPLAY_US < host < 500 + 2 * REPLAY_US
    assert found.tpot.mean_us == pytest.approx(plain.tpot.mean_us + host, rel=0.001)
    assert "host" not in plain.decode.spent_us
    padded = ServingSetup.of(asked.changed(engine="sglang", tp=2))
    assert padded.times["decode"].layers["decode"].most == 8  # 14 of a worker run as 16


def test_a_stack_brings_its_engine_and_pays_calls_that_no_graph_holds() -> None:
    asked = InferSpec(
        model="olmoe-1b-7b",
        decode_gpus=2,
        requests=4,
        prompt=16,
        output=4,
        chunk=64,
        sample_layers=1,
        scheme="nvls",
    )
    bare, under = (EXPERIMENT.run(asked, **given) for given in ({"engine": "vllm"}, {"stack": "vllm"}))
    assert under.decode.replayed.stack is not None
    assert not under.decode.replayed.stack.knows
    assert bare.decode.replayed.stack is None
    assert_beyond_bare(under, bare, 4)  # graphs hold its calls
    assert under.prefill.time_us > 1.3 * bare.prefill.time_us  # its launches, of few tokens
    # A batch without a graph is launched call by call.
    small = {"captured": "2", "engine_host_us": 0.0}
    by_call = EXPERIMENT.run(asked, stack="vllm", **small)
    assert by_call.decode.time_us > 1.5 * EXPERIMENT.run(asked, engine="vllm", **small).decode.time_us
    free = EXPERIMENT.run(asked, stack="vllm:library_us=0,torch_us=0", **small)
    assert free.decode.time_us < by_call.decode.time_us / 1.5
    told = " ".join(notes(EXPERIMENT.compare(asked, schemes=["nvls"], stack="vllm")))
    assert "Launched by hosts of vllm, whose calls are paid where no graph holds them." in told
    assert "Not in its list, so that kernels for rows are calls of an extension: nvls." in told
    assert "Engine (vllm): its host takes 900 us a step" in told


def assert_beyond_bare(under: InferResult, bare: InferResult, kernels: int) -> None:
    """Decoding differs by so many kernels of attention a layer, and prompts and all else not at all."""
    overheads, iterations = times().system.overheads, bare.decode.iterations
    gap_ps = overheads.kernel_gap_ps("stream" if bare.spec.captured else "graph")
    count = kernels * iterations * load("olmoe-1b-7b").num_moe_layers
    more = {what: time_us - bare.decode.spent_us[what] for what, time_us in under.decode.spent_us.items()}
    assert more.pop("launches") == pytest.approx(count * gap_ps / US)
    assert more.pop("attention") >= count * overheads.small_kernel_ps / US
    assert not any(more.values())
    assert under.decode.replayed.listed and not bare.decode.replayed.listed


@every(
    "served",
    [("vllm", "nvls", "nvls", 4), ("tensorrt-llm", "nccl-ep", "deepep", 1), ("sglang", "deepep-v2", "deepep-v2", 3)],
)
def test_a_batch_with_hosts_at_no_cost_has_the_kernels_of_the_list_besides(served: tuple[str, str, str, int]) -> None:
    """A list that does not know a scheme has attention's kernels beyond the bare ones, and no others."""
    stack, scheme, prefill, kernels = served
    asked = InferSpec(
        model="olmoe-1b-7b",
        decode_gpus=2,
        requests=4,
        prompt=16,
        output=4,
        chunk=64,
        sample_layers=1,
        captured="2",
        engine_host_us=0.0,
        scheme=scheme,
        prefill_scheme=prefill,
        engine=stack,
        overrides={f"overheads.{name}_us": 0.0 for name in ("launch", "graph_launch", "host_sync", "poll_pinned")},
    )
    bare, free = (EXPERIMENT.run(asked, stack=one) for one in (None, f"{stack}:library_us=0,torch_us=0"))
    assert free.decode.replayed.stack is not None
    assert_beyond_bare(free, bare, kernels)
    assert free.prefill.spent_us == bare.prefill.spent_us


SMALL = InferSpec(
    model="olmoe-1b-7b",
    decode_gpus=2,
    requests=4,
    prompt=16,
    output=2,
    chunk=64,
    sample_layers=1,
    engine_host_us=0.0,
    engine_overlap=True,
)


def test_a_list_that_knows_a_scheme_has_kernels_in_all_of_a_layer() -> None:
    """By hand: 17 kernels up to the choice, where the bare list has 8; 2 more of tables, and 2 at the end."""
    bare = EXPERIMENT.run(SMALL, scheme="nvls", engine="megatron")
    under = EXPERIMENT.run(SMALL, scheme="nvls", stack="megatron-inference")
    fused = EXPERIMENT.run(SMALL, scheme="nvls", stack="megatron-inference:fused_residuals=2,fused_qk_norms=true")
    overheads = times().system.overheads
    layers = load("olmoe-1b-7b").num_moe_layers * bare.decode.iterations
    gap_us, least_us = overheads.kernel_gap_ps("graph") / US, overheads.small_kernel_ps / US

    def more(what: str) -> float:
        return under.decode.spent_us[what] - bare.decode.spent_us[what]

    assert more("launches") == pytest.approx(9 * layers * gap_us)
    assert more("attention") >= 9 * layers * least_us
    moe = more("experts") + more("exchange")
    assert 4 * (gap_us + least_us) <= moe / layers < 5 * (gap_us + least_us)
    assert under.decode.replayed.stack is not None and under.decode.replayed.stack.knows
    # A norm, both residuals, and a norm and a copy of keys are none of their own.
    assert fused.decode.spent_us["launches"] == pytest.approx(under.decode.spent_us["launches"] - 4 * layers * gap_us)


def of_megatron(attention: str) -> ReplayedTimes:
    """Times of decoding under one graph, on GPUs alone."""
    spec = InferSpec(
        model="qwen3-30b-a3b",
        system="gb200-nvl72",
        scheme="nvls",
        decode_gpus=4,
        requests=64,
        sample_layers=1,
        engine_host_us=0.0,
        engine_overlap=True,
        stack="megatron-inference" + attention,
    )
    return ServingSetup.of(spec).times["decode"]


def test_flash_attention_of_a_list_takes_as_long_as_its_sms() -> None:
    """FlashAttention-2's SMs take longer than reading the cache, with keys in one piece and split."""
    by_law, by_cache = of_megatron(":attention=flash-2"), of_megatron("")
    system, layers = by_law.system, by_law.shape.num_moe_layers
    for requests, kernels in ((64, 1), (16, 2)):
        loads = [Load(requests, 1, 600 * requests)] * 4
        assert kernels == 1 + (requests * 4 < 0.8 * 2 * system.compute.num_sms)
        longer = (by_law.spent_ps(loads)["attention"] - by_cache.spent_ps(loads)["attention"]) // layers
        keys = 601 * requests
        values = (requests * 32 + keys * 4) * 2 * 128
        read = system.attention.decode_ps(4 * keys * 32 * 128, 2 * values)
        law = int(flash.decode_ps(system, requests * 4, keys * 4, 8, 128, 2 * values, is_split=kernels > 1))
        assert law > read
        assert longer == pytest.approx(law - read, abs=2)


def test_flash_attention_is_each_gpus_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a block are the queries of a head of keys; with several tokens a request, those of a head of queries.

    All graphs are of the largest batch, so that 64 requests are decoded everywhere.
    """
    given: list[Any] = []

    def recorded(system: Any, *sizes: Any, is_split: bool) -> Any:
        given.append((sizes, is_split))
        return np.zeros(4, np.int64)

    monkeypatch.setattr(flash, "decode_ps", recorded)
    loads = [Load(64, 1, 38_400), Load(1, 1, 40_000), Load(), Load(16, 3, 1_600)]
    of_megatron(":attention=flash-2").spent_ps(loads)
    (blocks, keys, rows, width, nbytes), is_split = given[0]
    read = [38_400 + 64, 40_000 + 64, 64, 1_600 + 3 * 64]
    assert blocks.tolist() == [64 * 4, 64 * 4, 64 * 4, 64 * 32]
    assert keys.tolist() == [read[0] * 4, read[1] * 4, read[2] * 4, read[3] * 32]
    assert rows.tolist() == [8, 8, 8, 3]
    assert width == 128
    moved = [2 * 2 * 128 * (queries * 64 * 32 + of * 4) for queries, of in zip((1, 1, 1, 3), read, strict=True)]
    assert nbytes.tolist() == moved
    assert not is_split


def test_decoding_is_bare_where_a_list_has_no_such_kernels() -> None:
    """Slices of attention and FP8 products, of which the list speaks nowhere; and then says so."""
    for given in ({"tp": 2}, {"precision": "fp8"}):
        bare, under = (
            EXPERIMENT.run(SMALL, scheme="nccl-allgather", **given, **by)
            for by in ({"engine": "vllm"}, {"stack": "vllm"})
        )
        assert not under.decode.replayed.listed
        if "precision" in given:
            assert under.decode.spent_us == bare.decode.spent_us
        else:
            assert under.decode.spent_us["attention"] == bare.decode.spent_us["attention"]
    told = " ".join(notes(EXPERIMENT.compare(SMALL, schemes=["nccl-allgather"], stack="vllm", precision="fp8")))
    assert "Its list has no such attention, so that decoding has the kernels of the bare list." in told


def test_options_of_a_list_that_knows_no_such_scheme_are_refused() -> None:
    with pytest.raises(UserError, match="qk_norm changes no layer: its list has no kernels around those of 'nvls'"):
        EXPERIMENT.run(SMALL, scheme="nvls", stack="vllm:qk_norm=false")


def test_a_spec_without_a_stack_is_as_before_there_were_any() -> None:
    assert "stack" not in InferSpec().model_dump()
    assert InferSpec(stack="bare").of_engine[0] is None
    assert InferSpec(stack="sglang", engine="vllm").of_engine[0] == "vllm"
    assert InferSpec(stack="megatron-inference").of_engine[0] == "megatron"


@pytest.mark.parametrize("stack", ["practice", "megatron-plain", "deepseek:library_us=2"])
def test_stacks_that_serve_nothing_are_refused(stack: str) -> None:
    with pytest.raises(UserError, match=rf"--stack {stack}: a batch is served by an engine; .*sglang, vllm"):
        ServingSetup.of(InferSpec(stack=stack))


def test_a_comparison_of_layers_is_no_engine() -> None:
    with pytest.raises(UserError, match="--stack deepgemm: a comparison of single layers"):
        ServingSetup.of(InferSpec(stack="deepgemm"))
