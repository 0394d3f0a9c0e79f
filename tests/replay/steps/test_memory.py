"""Memory of training plans, against published figures and against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hwmodel
from replay.errors import UserError
from replay.steps import activations, memory, parameters, recipes
from replay.steps.memory import GIB, StageMemory, StageRetention
from replay.steps.plan import ParallelPlan
from tracegen import models

V3 = models.load("deepseek-v3")
LITE = models.load("deepseek-v2-lite")
QWEN = models.load("qwen3-30b-a3b")
BF16 = recipes.find("megatron-bf16")
FP8 = recipes.find("deepseek-v3")
WEIGHING = replace(BF16, weighs_results=True)


def megatron(recipe: recipes.Recipe) -> list[StageMemory]:
    """DeepSeek-V3 on 256 GPUs, PP4 VPP4 EP64, as "Scalable Training of Mixture-of-Experts Models
    with Megatron Core" (arXiv 2603.07685) takes apart. Which of the four stages is meant is not
    said; with 60 layers in flight it is the third."""
    plan = ParallelPlan(pp=4, vpp=4, ep=64, dp=64, layers=(4,) * 15 + (1,), micro_batches=32)
    held = [StageRetention(tuple(range(k, 16, 4)), 2 * (3 - k) + 3 * 4 + 1) for k in range(4)]
    return memory.stages(V3, plan, recipe, 4096, held)


def test_parts_are_those_published_of_megatron() -> None:
    """36.4 weights and gradients, 32.1 optimiser, 131.0 activations, 199.5 in all."""
    third = megatron(WEIGHING)[2]
    assert (third.weights + third.gradients) / GIB == pytest.approx(36.4, rel=0.006)
    assert third.optimiser / GIB == pytest.approx(32.1, rel=0.002)
    assert third.activations / GIB == pytest.approx(131.0, rel=0.001)
    parts = third.weights + third.gradients + third.optimiser + third.activations
    assert parts / GIB == pytest.approx(199.5, rel=0.001)


def test_weights_of_experts_on_operands_save_what_is_published() -> None:
    """26.3 in place of results that are kept; the report's memory-efficient permutation."""
    saved = megatron(WEIGHING)[2].activations - megatron(BF16)[2].activations
    assert saved / GIB == pytest.approx(26.3, rel=0.003)


def test_what_is_computed_again_saves_what_is_published() -> None:
    """30.4 for expanded latents (here 30.0); 3.8 for activation functions' results in FP8; 8.2 for norms (here 7.5)."""
    plain = {term.name: term.nbytes for term in activations.terms(V3, 10, BF16)}
    layers, tokens = 60, 4096
    expanded = plain["queries, keys and values"] * layers * tokens / GIB
    assert expanded == pytest.approx(30.4, rel=0.015)
    norms = sum(nbytes for name, nbytes in plain.items() if "normalised" in name) * layers * tokens / GIB
    assert norms == pytest.approx(7.5)
    fp8 = {term.name: term.nbytes for term in activations.terms(V3, 10, FP8)}
    given = 8 * fp8["operands of the second GEMM, experts"] * layers * tokens / GIB
    assert given == pytest.approx(3.8, rel=0.03)


def test_model_states_are_those_of_another_count() -> None:
    """ "Memory Analysis on the Training Course of DeepSeek Models" (arXiv 2502.07846): a stage of
    four layers, PP16 TP2 EP8 DP32, gradients FP32, moments BF16: 11.64 GiB of weights, 23.3 of
    gradients, 5.52 of the optimiser. It slices neither the shared expert nor a projection of
    queries over tp, and the shared expert's optimiser over fewer GPUs than have it."""
    plan = ParallelPlan(tp=2, pp=16, ep=8, dp=32, layers=(4,) * 15 + (1,), micro_batches=16)
    held = [StageRetention((k,), 1) for k in range(16)]
    found = memory.stages(V3, plan, recipes.find("megatron-bf16-moments"), 4096, held)[5]
    assert found.weights / GIB == pytest.approx(11.64, rel=0.02)
    assert found.gradients / GIB == pytest.approx(23.3, rel=0.02)
    assert found.optimiser / GIB == pytest.approx(5.52, rel=0.03)
    layer = parameters.of_layer(V3, 20, tp=2, ep=8)
    shared, rope = 3 * 7168 * 2048, 128 * 64 * 1536
    theirs = 4 * (layer.total + shared // 2 + rope // 2 - V3.num_experts)  # it has no bias
    assert theirs == 6_250_364_928


def test_full_recomputation_keeps_the_inputs_of_layers_alone() -> None:
    """The same paper: 2 bsh / SP a layer, 224 MiB for four layers and both inputs."""
    kept, again = activations.of_layer(V3, 20, BF16, "full", 2048, 8 * 2048)
    assert kept == 2 * 2048 * 7168
    none, nothing = activations.of_layer(V3, 20, BF16, "none", 2048, 8 * 2048)
    assert nothing == 0 and kept + again == none


def test_activations_of_grouped_attention_by_hand() -> None:
    """Qwen3-30B: 32 heads of 128, 4 of keys and values, 128 experts of 768, top-8."""
    hidden, heads, kv, width = 2048, 32 * 128, 4 * 128, 768
    attention = 2 * hidden + 2 * (heads + kv) + 2 * (heads + 2 * kv) + 4 * 32 + 2 * heads
    experts = 2 * hidden + 2 * 4 * 128 + 8 * (2 * hidden + 2 * 2 * width + 2 * width)
    rest = 2 * 2 * hidden  # what both norms read
    kept, _ = activations.of_layer(QWEN, 3, BF16, "none", 100, 800)
    assert kept == 100 * (attention + experts + rest)
    selective, again = activations.of_layer(QWEN, 3, BF16, "selective", 100, 800)
    assert again == 100 * (2 * 2 * hidden + 8 * 2 * width)
    assert selective + again == kept


def test_activations_of_latent_attention_by_hand() -> None:
    """DeepSeek-V3: latents of 1536 and 512 + 64, 128 heads of 192 and 128, a shared expert."""
    latents, expanded = 2 * (1536 + 512 + 64), 2 * 128 * (192 + 192 + 128)
    normalised, hidden = 2 * (1536 + 512), 2 * 7168
    attention = hidden + latents + normalised + expanded + 4 * 128 + 2 * 128 * 128
    experts = hidden + 2 * 4 * 256 + 8 * (hidden + 2 * 3 * 2048) + 2 * 3 * 2048
    kept, again = activations.of_layer(V3, 20, BF16, "selective", 100, 800)
    assert kept + again == 100 * (attention + experts + 2 * hidden)
    assert again == 100 * (2 * hidden + normalised + expanded + 9 * 2 * 2048)
    second, _ = activations.of_layer(V3, 61, BF16, "none", 100, 800)
    assert second == kept + again + 100 * (hidden + 2 * hidden + hidden)


def test_a_head_of_keys_that_several_gpus_have_is_kept_by_each() -> None:
    def queries(tp: int) -> int:
        named = {term.name: term.nbytes for term in activations.terms(QWEN, 0, BF16, tp)}
        return named["queries, keys and values"]

    assert queries(4) == queries(1) == 2 * (32 + 2 * 4) * 128
    assert queries(8) == 2 * (32 + 2 * 8) * 128


def test_fp8_keeps_a_byte_a_value_and_scales() -> None:
    assert recipes.row_bytes(7168, 16) == 2 * 7168
    assert recipes.row_bytes(7168, 8) == 7168 + 56 * 4
    assert recipes.row_bytes(130, 12) == 195 + 2 * 4
    kept = {term.name: term.nbytes for term in activations.terms(V3, 10, FP8)}
    assert kept["rows of the experts"] == 7168 + 56 * 4
    assert kept["results of the first GEMM, experts"] == 4096 + 32 * 4
    assert kept["results of attention"] == 16384 * 3 // 2 + 128 * 4
    assert kept["input of the layer"] == 2 * 7168
    layer = parameters.of_layer(V3, 10, ep=64)
    multiplied = layer.total - layer.norms - layer.gate
    assert recipes.weight_bytes(layer, "fp8") == (
        2 * (layer.norms + layer.gate) + multiplied + -(-multiplied // 128**2) * 4
    )
    assert recipes.weight_bytes(layer, "fp32") == 2 * recipes.weight_bytes(layer, "bf16")


def test_dense_layers_and_unknown_parts() -> None:
    named = {term.name for term in activations.terms(V3, 0, BF16)}
    assert "results of the first GEMM, dense layer" in named
    assert not any("experts" in name for name in named)
    assert activations.gradients_of_layer(V3, 0, 10, 80) == 10 * 2 * (2 * 7168 + 3 * 18432)
    assert activations.gradients_of_layer(V3, 9, 10, 80) == 80 * 2 * (2 * 7168 + 3 * 2048)
    nano = models.load("nemotron-3-nano")  # neither attention nor layers without experts known
    assert [term.name for term in activations.terms(nano, 0, BF16)] == [
        "input of the layer",
        "input of the second norm",
    ]
    pangu = [term.name for term in activations.terms(models.load("pangu-ultra-moe"), 5, BF16)]
    assert pangu.count("input of a norm behind") == 2


def one_stage(plan: ParallelPlan, recipe: recipes.Recipe = BF16, copies: int = 1) -> StageMemory:
    return memory.stages(LITE, plan, recipe, 256, [StageRetention((0,), 1)], copies=copies)[0]


def test_a_single_gpu_has_the_whole_model() -> None:
    found, count = one_stage(ParallelPlan()), parameters.count(LITE)
    assert found.weights == 2 * count.total
    assert found.gradients == 4 * count.total
    assert found.optimiser == 12 * count.total
    assert found.logits == 256 * 102400 * 6
    assert found.hops == 0
    assert found.total == sum(nbytes for _, nbytes in found.largest())


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]), st.sampled_from([1, 2]))
def test_the_optimiser_is_sliced_over_all_that_have_the_same_weights(ep: int, cp: int, copies: int) -> None:
    plan = ParallelPlan(dp=8, cp=cp, ep=ep * cp)
    found = one_stage(plan, copies=copies)
    count = parameters.count(LITE)
    experts = sum(parameters.of_layer(LITE, n).experts for n in range(LITE.num_layers)) // plan.ep
    others = count.total - experts * plan.ep
    mine = -(-others // (8 * cp * copies)) - (-experts // (plan.expert_dp * copies))
    assert found.optimiser == 12 * mine
    assert found.gradients == 4 * (others + experts)


def test_activations_are_those_in_flight_and_hops_those_of_a_pipeline() -> None:
    plan = ParallelPlan(pp=2, micro_batches=4)
    first, last = memory.stages(LITE, plan, BF16, 256, [StageRetention((0,), 2), StageRetention((1,), 1)])
    layers = {0: range(14), 1: range(14, 27)}
    for stage, count, times in ((first, 0, 2), (last, 1, 1)):
        kept = sum(activations.of_layer(LITE, layer, BF16, "none", 256, 6 * 256)[0] for layer in layers[count])
        assert stage.activations == times * kept
        assert stage.hops == 4 * 256 * 2048 * 2
    assert first.logits == 0 and last.logits > 0
    ends = 102400 * 2048
    totals = [parameters.of_layer(LITE, n).total for n in range(LITE.num_layers)]
    assert first.weights == 2 * (sum(totals[:14]) + ends)
    assert last.weights == 2 * (sum(totals[14:]) + ends + 2048)


def test_zero_experts_are_chosen_and_keep_no_rows() -> None:
    """LongCat: of 768 experts 256 compute nothing, so that a third of twelve choices is no row."""
    shape = models.load("longcat-flash")
    assert (shape.num_experts, shape.num_ffn_experts, shape.topk) == (768, 512, 12)
    kept = sum(activations.of_layer(shape, layer, BF16, "none", 256, 8 * 256)[0] for layer in range(shape.num_layers))
    found = memory.stages(shape, ParallelPlan(), BF16, 256, [StageRetention((0,), 1)])[0]
    assert found.activations == kept


def test_both_ends_of_a_pipeline_have_tied_weights_and_one_stage_has_them_once() -> None:
    tied = LITE.model_copy(update={"tied_embeddings": True})
    ends, held = 2 * 102400 * 2048, [StageRetention((0,), 1), StageRetention((1,), 1)]
    plain = memory.stages(LITE, ParallelPlan(pp=2), BF16, 256, held)
    assert memory.stages(tied, ParallelPlan(pp=2), BF16, 256, held) == plain
    one = memory.stages(tied, ParallelPlan(), BF16, 256, held[:1])[0]
    assert one_stage(ParallelPlan()).weights - one.weights == ends


def test_a_stage_of_two_chunks_has_both_and_prediction_of_more_tokens_brings_its_ends() -> None:
    plan = ParallelPlan(pp=2, mtp=1, ep=8, dp=8)
    ends = 2 * 129280 * 7168  # of weights in BF16
    apart = memory.stages(V3, plan, BF16, 64, [StageRetention((0,), 1), StageRetention((1,), 1)])
    assert apart[1].logits == 2 * 64 * 129280 * 6  # both predictions
    joint = memory.stages(V3, plan, BF16, 64, [StageRetention((0, 1), 2), StageRetention((1, 0), 2)])
    assert joint[0] == joint[1]
    assert joint[0].weights == apart[0].weights + apart[1].weights - ends  # one embedding
    assert joint[0].activations == apart[0].activations + apart[1].activations


def test_plans_that_do_not_fit_are_refused_with_what_would() -> None:
    system = hwmodel.load("dgx-h100")

    def needs(plan: ParallelPlan) -> list[StageMemory]:
        held = [StageRetention((k,), plan.pp - k) for k in range(plan.pp)]
        return memory.stages(QWEN, plan, BF16, 4096, held)

    fits = ParallelPlan(dp=4, pp=2, ep=4, recompute="full", micro_batches=8)
    assert memory.require(QWEN, fits, system, needs) == needs(fits)
    with pytest.raises(UserError) as refusal:
        memory.require(QWEN, fits.model_copy(update={"ep": 2, "micro_batch": 2}), system, needs)
    first, second = str(refusal.value).splitlines()
    assert first.startswith("plan: stage 0 needs 94.3 GiB") and "dgx-h100 has 79.6; most for" in first
    assert "optimiser" in first and "gradients" in first
    assert second.startswith("these fit: ep=4 (")
    with pytest.raises(UserError, match=r"this fits: \S+,\S+ \(\d\d\.\d GiB\)$") as several:
        memory.require(QWEN, ParallelPlan(dp=8, micro_batch=4), system, needs)
    sizes = str(several.value).partition("this fits: ")[2].partition(" (")[0]
    changes = {
        name: value if name == "recompute" else int(value)
        for name, value in (one.split("=") for one in sizes.split(","))
    }
    together = ParallelPlan.model_validate({"dp": 8, "micro_batch": 4} | changes)
    assert together.num_gpus == 8 and memory.require(QWEN, together, system, needs)
    small = hwmodel.load("dgx-h100", {"hbm.capacity_MiB": 4096})
    with pytest.raises(UserError, match=r"nothing fits on as many GPUs; least needs .*=\d.* GiB\)$"):
        memory.require(QWEN, ParallelPlan(dp=8, micro_batch=3), small, needs)

    def alone(plan: ParallelPlan) -> list[StageMemory]:
        if plan != start:
            raise UserError("not this one")
        return needs(plan)

    start = ParallelPlan(micro_batch=3)
    with pytest.raises(UserError, match="no change of one size helps"):
        memory.require(QWEN, start, system, alone)


def test_recipes_are_found_by_name() -> None:
    assert all(recipes.find(name).source for name in recipes.RECIPES)
    with pytest.raises(UserError, match="unknown recipe 'bf16'"):
        recipes.find("bf16")
