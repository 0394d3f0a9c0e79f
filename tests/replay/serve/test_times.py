"""Iterations composed of times of layers, beside the exact replay of the same layers as a chain."""

from __future__ import annotations

import dataclasses

import pytest

import hwmodel
from replay.chains.host_program import num_kernels
from replay.engine import GraphBuilder, schedule
from replay.experiments.ask import collective
from replay.experiments.serve.iteration import Load, PromptPiece
from replay.experiments.serve.parts import LoadRows, slice_heads
from replay.experiments.serve.stream import KernelTotals
from replay.experiments.serve.times import ReplayedTimes
from replay.model.compute.dense import Between
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.context import Context
from tests.replay.serve.serving import MODEL, RANKS, SAMPLE, chain_ps, times
from tracegen.models import load

EVEN = {
    "decode": [Load(64, 1, 64 * 3000)] * RANKS,
    "prompt": [Load(prefill=(PromptPiece(256, 2048),))] * RANKS,
}
UNEVEN = {
    "positions": [Load(64, 1, 64 * each) for each in (8000, 1000, 500, 4000)],
    "requests": [Load(each, 1, each * 1000) for each in (64, 32, 32, 32)],
}


def short(found: ReplayedTimes) -> ReplayedTimes:
    """The first layers of the model: one without experts and two with some; no ends."""
    shape = found.shape.model_copy(update={"num_layers": SAMPLE + len(found.shape.dense_layers), "vocab": None})
    return dataclasses.replace(found, shape=shape, parts=dataclasses.replace(found.parts, shape=shape))


@pytest.mark.parametrize("what", ["decode", "prompt"])
def test_even_loads_take_what_the_exact_chain_takes(what: str) -> None:
    composed = short(times()).time_ps(EVEN[what])
    scheme = "deepep" if what == "prompt" else "deepep-ll"
    exact = chain_ps(times(), EVEN[what], scheme, SAMPLE)
    assert abs(composed - exact) <= 2 * SAMPLE  # rounding, a picosecond each


@pytest.mark.parametrize(("what", "bound"), [("positions", 0.002), ("requests", 0.01)])
def test_uneven_loads_take_nearly_what_the_exact_chain_takes(what: str, bound: float) -> None:
    composed = short(times()).time_ps(UNEVEN[what])
    exact = chain_ps(times(), UNEVEN[what], "deepep-ll", SAMPLE)
    assert abs(composed / exact - 1) < bound


def test_a_stream_takes_what_the_schedule_of_its_kernels_takes() -> None:
    found = times()
    for loads in (EVEN["decode"], EVEN["prompt"], UNEVEN["requests"]):
        rows = LoadRows.of_loads(loads, (128, 128), 1)
        stream = KernelTotals(found.system, "graph", RANKS)
        found.parts.moe(stream, rows)
        builder = GraphBuilder(KIND_NAMES)
        machine = Machine(found.system, builder, RANKS, launch="graph")
        is_decode = not loads[0].prefill
        one_kind = Between(found.shape, found.parts.precision, is_decode=is_decode)
        context = Context(rows.tokens, rows.positions, rows.pairs, rows.blocks, rows.longest)
        ended = one_kind.before_layer(machine, 0, context, machine.mark(machine.ranks))
        taken = schedule(builder.build()).visible_ps[ended]
        launch = found.system.overheads.graph_launch_ps
        assert (launch + stream.total_ps == taken).all()
        assert stream.num_kernels == num_kernels(machine.host.program)


def test_a_longer_cache_costs_its_bytes_and_nothing_else() -> None:
    found, shape = times(), times().shape
    before, after = (found.spent_ps([Load(64, 1, 64 * positions)] * RANKS) for positions in (8000, 9000))
    width = (shape.kv_lora_rank or 0) + (shape.qk_rope_head_dim or 0)
    rate = found.system.attention.decode_stream_rate
    grown = shape.num_layers * rate.duration_ps(64 * 1000 * width * 2)
    assert after["attention"] - before["attention"] == pytest.approx(grown, abs=shape.num_layers)
    assert {k: v for k, v in after.items() if k != "attention"} == {k: v for k, v in before.items() if k != "attention"}


def test_prompts_and_decoded_tokens_share_projections_and_nothing_else() -> None:
    found = short(times())
    prompt, decoded = Load(prefill=(PromptPiece(256, 0),)), Load(48, 1, 48 * 1000)
    mixed = Load(48, 1, 48 * 1000, (PromptPiece(256, 0),))
    took = {}
    for name, one in (("prompt", prompt), ("decoded", decoded), ("mixed", mixed)):
        stream = KernelTotals(found.system, "eager", 1)
        found.parts.moe(stream, LoadRows.of_loads([one], (128, 128), 1))
        took[name] = int(stream.total_ps[0])
    assert max(took["prompt"], took["decoded"]) < took["mixed"] < took["prompt"] + took["decoded"]
    # Attention of decoded tokens is a kernel of its own, beside that of prompts.
    longer = KernelTotals(found.system, "eager", 1)
    more = Load(48, 1, 48 * 9000, (PromptPiece(256, 0),))
    found.parts.moe(longer, LoadRows.of_loads([more], (128, 128), 1))
    shape, system = found.shape, found.system
    width = (shape.kv_lora_rank or 0) + (shape.qk_rope_head_dim or 0)
    cache = system.attention.decode_stream_rate.duration_ps(48 * 8000 * width * 2)
    assert int(longer.total_ps[0]) - took["mixed"] == pytest.approx(cache, abs=1)


def test_queries_of_one_request_attend_to_each_other() -> None:
    rows = LoadRows.of_loads([Load(2, 3, 100)], (128, 128), 1)
    each = [50 + 1, 50 + 2, 50 + 3]
    assert rows.pairs.tolist() == [2 * sum(each)]
    assert rows.positions.tolist() == [2 * 53]
    assert rows.tokens.tolist() == [6]


def test_a_piece_counts_tiles_as_batches_do() -> None:
    rows = LoadRows.of_loads([Load(prefill=(PromptPiece(300, 200), PromptPiece(5, 0)))], (128, 128), 1)
    # Last queries of the tiles are 328, 456, 500 and 5, which see 3, 4, 4 and 1 tiles of keys.
    assert rows.pairs.tolist() == [128 * 128 * (3 + 4 + 4 + 1)]
    assert rows.prefill.blocks == [4] and rows.prefill.longest == [128 * 128 * 4]
    assert (rows.blocks, rows.longest) == (rows.prefill.blocks, rows.prefill.longest)
    assert rows.positions.tolist() == [500 + 5]
    assert rows.sampled.tolist() == [2]


def test_drafts_cost_a_layer_and_a_head_each() -> None:
    found = times()
    loads = [Load(32, 3, 32 * 1000)] * RANKS
    verified = dataclasses.replace(found)
    whole = verified.spent_ps(loads)
    plain = found.spent_ps([Load(96, 1, 96 * 1000)] * RANKS)
    assert whole["experts"] / plain["experts"] == pytest.approx(1 + 2 / found.shape.num_moe_layers, rel=0.05)
    rows = LoadRows.of_loads([Load(96, 1, 0)], (128, 128), 1)
    stream = KernelTotals(found.system, "graph", 1)
    found.parts.ends(stream, rows)
    assert whole["head"] > plain["head"] == int(stream.spent_ps["head"][0])


def test_only_asked_rows_pass_the_head() -> None:
    found = times()
    vocab, hidden = found.shape.vocab or 0, found.shape.hidden
    few, many = (
        found.spent_ps([Load(prefill=pieces)] * RANKS)["head"]
        for pieces in ((PromptPiece(512, 0),), (PromptPiece(256, 0), PromptPiece(256, 0)))
    )
    # One row of logits more: its GEMM; made FP32, temperature, softmax (each read and written), and
    # read to choose.
    stream = found.system.hbm.stream_ps
    more = [
        int(stream(2 * nbytes)) - int(stream(nbytes)) for nbytes in (vocab * 6, vocab * 8, vocab * 8, vocab * 4 + 4)
    ]
    one, two = (found.system.compute.gemm_time_ps(rows, vocab, hidden, "bf16") for rows in (1, 2))
    assert many - few == pytest.approx(sum(more) + two - one, abs=10)
    assert few > int(found.system.hbm.stream_ps(vocab * hidden * 2)) * 0.9


def test_sliced_attention_reads_the_cache_of_latents_whole_and_adds_collectives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = times(), times(tp=2)
    single = one.spent_ps([Load(32, 1, 32 * 8000)] * RANKS)
    cut = two.spent_ps([Load(64, 1, 64 * 8000)] * (RANKS // 2))
    assert two.num_workers == RANKS // 2
    assert cut["exchange"] == single["exchange"]
    assert cut["experts"] == single["experts"]
    collectives = two.shape.num_layers * two.slicing_ps(64 * two.shape.hidden * 2)
    with monkeypatch.context() as alone:
        alone.setattr(ReplayedTimes, "slicing_ps", lambda self, nbytes: 0)
        gathered = cut["attention"] - two.spent_ps([Load(64, 1, 64 * 8000)] * 2)["attention"]
    assert gathered == collectives > 0
    # Twice the requests of a GPU's own: every GPU of the worker reads all their latent vectors.
    width = (two.shape.kv_lora_rank or 0) + (two.shape.qk_rope_head_dim or 0)
    cache = two.system.attention.decode_stream_rate.duration_ps(64 * 8000 * width * 2)
    assert cut["attention"] > collectives + two.shape.num_layers * cache


def test_the_fullest_worker_decides_what_leaves_and_the_mean_what_is_computed() -> None:
    found = times(most=256)
    loads = [Load(each, 1, each * 1000) for each in (128, 32, 32, 64)]
    spent, count = found.spent_ps(loads), found.shape.num_moe_layers
    assert spent["exchange"] == count * round(found.layers["decode"].near(128, 0).exchange)
    assert spent["experts"] == count * round(found.layers["decode"].near(64, 0).experts)


def test_an_iteration_with_a_prompt_runs_under_the_scheme_of_prompts() -> None:
    found = times()
    loads = [Load(64, 1, 64 * 1000)] * (RANKS - 1)
    prompt = Load(prefill=(PromptPiece(64, 0),))
    mixed = found.spent_ps([*loads, prompt])
    count = found.shape.num_moe_layers
    assert mixed["exchange"] == count * round(found.layers["prefill"].at(64, 0).exchange)
    assert found.spent_ps([*loads, loads[0]])["exchange"] < mixed["exchange"]
    assert found.time_ps([Load()] * RANKS) == 0


def test_turns_hide_what_travels_and_are_begun_once() -> None:
    apart, turns = times(), times(interleave="tbo")
    loads = [Load(64, 1, 64 * 16000)] * RANKS
    plain, cut = apart.spent_ps(loads), turns.spent_ps(loads)
    assert cut["attention"] == plain["attention"]
    assert cut["exchange"] < plain["exchange"]
    moe = turns.layers["decode"].at(64, 16000)
    assert moe.once > 0
    ends = [turns.layers["decode"].at(64, positions) for positions in (8192, 16384)]
    share = (16000 - 8192) / 8192
    assert moe.total == pytest.approx(ends[0].total * (1 - share) + ends[1].total * share)


def test_slices_have_fewer_heads() -> None:
    shape = load("qwen3-30b-a3b")  # 4 heads of keys and values
    cut = slice_heads(shape, 8)
    assert (cut.num_heads, cut.num_kv_heads) == ((shape.num_heads or 0) // 8, 1)
    assert cut.head_dim == shape.head_dim
    assert slice_heads(shape, 1) is shape
    latent = slice_heads(load(MODEL), 4)
    assert (latent.num_heads, latent.kv_lora_rank) == (4, 512)


def test_slices_gather_and_scatter() -> None:
    sliced_over_two = times(tp=2)
    nbytes = 64 * times().shape.hidden * 2
    each = collective(op="allgather", bytes=nbytes, ranks=2).rows[0].time_us
    back = collective(op="reducescatter", bytes=nbytes, ranks=2).rows[0].time_us
    assert sliced_over_two.slicing_ps(nbytes) == pytest.approx((each + back) * 1e6)
    assert sliced_over_two.slicing_ps(0) == times().slicing_ps(nbytes) == 0


def test_slices_are_copied_by_engines_where_there_is_no_nccl() -> None:
    """Two Ascend NPUs have one link of 28 GB/s, over which half of the rows go each way, twice."""
    npus, nbytes = hwmodel.load("atlas-800t-a2"), 1 << 24
    wire_ps = 2 * (nbytes // 2) * 1e12 / 28e9
    found = dataclasses.replace(times(), system=npus, tp=2).slicing_ps(nbytes)
    assert wire_ps < found < 2 * wire_ps
