"""Steps under a software stack: sizes that lists speak of, hops, the optimiser, what is refused."""

from __future__ import annotations

import dataclasses
from math import comb
from typing import Any, Literal

import numpy as np
import pytest
from loops import every
from small_shape import small_shape

import hwmodel
from replay.chains.chain import ChainLink
from replay.errors import UserError
from replay.experiments import train
from replay.experiments.train.setup import TrainingSetup
from replay.experiments.train.spec import TrainSpec
from replay.experiments.train.tables import notes
from replay.model.machine.host import FREE_HOSTS
from replay.model.machine.times import Time
from replay.model.work.stacks import Stack, facts_of
from replay.report.text import summary
from replay.schemes import find
from replay.steps.kernel_sizes import check_stack, facts_of_step, sizes_of, tensors_of
from replay.steps.layer_passes import LayerPasses
from replay.steps.plan import ParallelPlan
from replay.steps.replays import StepReplays
from replay.steps.stretches import MoePart, Stretch
from replay.steps.times import StepParts
from tracegen import models

H100 = hwmodel.load("dgx-h100")
SHAPE = small_shape(moe_intermediate=512, num_kv_heads=4, vocab=32_000)
TOKENS = 256
PLAN = {"dp": 4, "ep": 4, "pp": 2, "layers": (2, 2)}


def replays(stack: str | None, system: hwmodel.System = H100, **plan: Any) -> StepReplays:
    found = None if stack is None else Stack.of(stack, system, facts_of(SHAPE))
    return StepReplays(SHAPE, system, ParallelPlan(**{**PLAN, **plan}), TOKENS, "bf16", layers=1, stack=found)


def made(stack: str | None, system: hwmodel.System = H100, **plan: Any) -> StepParts:
    return replays(stack, system, **plan).under("nccl-alltoall")


@pytest.fixture(scope="module")
def plain() -> StepParts:
    return made("megatron-plain")


# ---- sizes ---------------------------------------------------------------------------------------


def test_sizes_of_a_gpu() -> None:
    shape = models.load("qwen3-30b-a3b")
    found = sizes_of(shape, ParallelPlan(tp=8, dp=4, ep=16, pp=4, micro_batch=2, vpp=3), 4096)
    tokens = 2 * 4096 // 8
    none = comb(120, 8) / comb(128, 8)  # of a GPU's 8 experts
    assert found.copies == int(16 * tokens * (1 - none))
    expected = {
        "tokens": tokens,
        "tp": 8,
        "cp": 1,
        "positions": 8 * tokens,
        "ranks": 16,
        "hidden": 2048,
        "experts": 128,
        "topk": 8,
        "heads": 32,
        "kv_heads": 4,
        "width": 128,
        "local": 8,
        "rows": 8 * tokens,
        "inner": 768,
        "vocab": 151_936 // 8,
        "chunks": 3,
        "stages": 4,
    }
    zeros = {name: 0 for name, value in found.by_name().items() if name not in expected}
    assert found.by_name() == {**zeros, **expected, "copies": found.copies}
    latent = sizes_of(models.load("deepseek-v3"), ParallelPlan(dp=64, ep=64), 4096)
    widths = (latent.q_rank, latent.kv_rank, latent.nope, latent.rope, latent.value)
    assert widths == (1536, 512, 128, 64, 128)
    assert (latent.shared, latent.dense, latent.local, latent.heads) == (2048, 18_432, 4, 128)


def test_tensors_of_a_chunk() -> None:
    """Two of attention with its two norms, two norms, the gate, and two of each expert."""
    shape, plan = models.load("qwen3-30b-a3b"), ParallelPlan(dp=16, ep=16)
    each = 2 + 2 + 2 + 1 + 2 * 8
    assert tensors_of(shape, plan, range(48), first=True, last=True) == 48 * each + 3
    assert tensors_of(shape, plan, range(12), first=True, last=False) == 12 * each + 1
    assert tensors_of(shape, plan, range(36, 48), first=False, last=True) == 12 * each + 2
    deep = models.load("deepseek-v3")
    latent = 7 + 2  # five projections, two norms within; and two around
    moe = latent + 2 + 2 + 2 * 4  # gate with its bias, shared experts
    found = tensors_of(deep, ParallelPlan(dp=64, ep=64), range(2, 5), first=False, last=False)
    assert found == latent + 2 + 2 * moe
    assert facts_of(shape) == {
        "qk_norm": True,
        "sinks": False,
        "biases": False,
        "gated": True,
    }
    assert facts_of(models.load("gpt-oss-20b"))["sinks"]
    assert facts_of_step(shape, plan, "megatron")["overlap"] == "passes"
    assert facts_of_step(shape, plan, "dualpipe") == {**facts_of(shape), "recompute": "none"}


# ---- parts of a step -----------------------------------------------------------------------------


def test_a_stack_makes_layers_longer(plain: StepParts) -> None:
    """Its kernels are more than the bare ones, and each call takes the host its time."""
    bare = made(None)
    for of in ("forward", "backward"):
        own = getattr(plain.layers[0][1], of).own
        assert (own > 2 * getattr(bare.layers[0][1], of).own).all()
    slow = hwmodel.load("dgx-h100", {"host.speed": 0.5})
    halved = made("megatron-plain", slow)
    for layer in range(4):
        own, twice = (one.layers[0][layer].forward.own for one in (plain, halved))
        assert (twice > 1.5 * own).all()
    for of in ("forward", "backward"):
        assert (getattr(halved.embedding, of).own > getattr(plain.embedding, of).own).all()
        assert (getattr(halved.head, of).own > getattr(plain.head, of).own).all()


def test_a_pass_begins_with_a_wait_where_rows_come_from_another_stage(plain: StepParts) -> None:
    """Forward the first layer of the second stage, backward the last one of the first."""
    sync_ps = H100.overheads.host_sync_ps
    own = [[int(getattr(one, of).own.max()) for one in plain.layers[0]] for of in ("forward", "backward")]
    ahead, back = own
    assert ahead[0] == ahead[1] == ahead[3]
    assert ahead[2] >= ahead[3] + sync_ps
    assert back[0] == back[2] == back[3]
    assert back[1] >= back[0] + sync_ps


def test_rows_are_sent_with_the_lead_that_a_wait_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else stops hosts, GPUs meet once more behind a hop, with hosts less ahead."""
    leads: list[int] = []
    real = LayerPasses._replay_moe

    def met(self: LayerPasses, link: ChainLink, lead: Time) -> MoePart:
        if not link.is_backward:
            leads.append(int(np.max(lead.ps)))
        return real(self, link, lead)

    monkeypatch.setattr(LayerPasses, "_replay_moe", met)
    fast = hwmodel.load("dgx-h100", {"host.speed": 3.0})
    replays("megatron-tuned:graphs=attention", fast).under("ideal")
    assert len(leads) == 4  # a layer, one behind a hop backward, and one forward
    assert len(set(leads)) == 1


def test_a_hop_begins_with_the_lead_behind_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass by itself first, and then as layers follow one another, behind a hop or not."""
    begun: list[list[int]] = []
    left: list[list[int]] = []
    replayed, met = LayerPasses._replay, LayerPasses._replay_moe

    def stretch(self: LayerPasses, add: Any, lead: Time, ranks: int | None = None) -> Stretch:
        begun.append(np.broadcast_to(lead.ps, self.num_ranks).tolist())
        return replayed(self, add, lead, ranks)

    def moe(self: LayerPasses, link: ChainLink, lead: Time) -> MoePart:
        found = met(self, link, lead)
        left.append(found.lead.ps.tolist())  # type: ignore[union-attr]
        return found

    monkeypatch.setattr(LayerPasses, "_replay", stretch)
    monkeypatch.setattr(LayerPasses, "_replay_moe", moe)
    replays("megatron-plain", vpp=2, layers=(1, 1, 1, 1)).under("nccl-alltoall")
    free = [FREE_HOSTS.ps] * 4
    assert {tuple(lead) for lead in begun} <= {tuple(one) for one in (*left, [0] * 4, free)}


@every("direction", ["forward", "backward"])
def test_virtual_stages_call_without_waiting(direction: Literal["forward", "backward"]) -> None:
    """Hosts that lag anyway are longer by what they call, and by its kernel."""
    layers = made("megatron-plain", vpp=2, layers=(1, 1, 1, 1)).layers[0]
    behind, before = (layers[1], layers[0]) if direction == "forward" else (layers[0], layers[3])
    longer = getattr(behind, direction).own.max() - getattr(before, direction).own.max()
    stack = Stack.of("megatron-plain", H100)
    sizes = sizes_of(models.load("qwen3-30b-a3b"), ParallelPlan(pp=2, dp=4, ep=4, vpp=2), 4096)
    calls = sum(stack.costs.ps(row) for row in stack.operations(sizes, ["hop"], direction))
    kernel = H100.overheads.kernel_gap_ps() + H100.overheads.small_kernel_ps
    assert 0 < calls <= longer < calls + kernel


def hop_ps(direction: Literal["forward", "backward"]) -> int:
    """What a host calls for a hop of a stage with two chunks."""
    stack = Stack.of("megatron-plain", H100)
    sizes = sizes_of(SHAPE, ParallelPlan(**{**PLAN, "vpp": 2, "layers": (1, 1, 1, 1)}), TOKENS)
    return sum(stack.costs.ps(row) for row in stack.operations(sizes, ["hop"], direction))


def test_an_end_that_is_a_chunk_sends_and_receives() -> None:
    """Embedding and head without layers beside them: head forward, embedding backward."""
    ends, layers = {}, {}
    for stack in ("megatron-plain", None):
        for name, chunks in (("with", (1, 1, 1, 1)), ("alone", (0, 2, 2, 0))):
            found = made(stack, vpp=2, layers=chunks)
            ends[stack, name] = [
                int(one.own.max())
                for one in (found.head.forward, found.embedding.backward, found.head.backward, found.embedding.forward)
            ]
            layers[name] = [(int(one.forward.own.max()), int(one.backward.own.max())) for one in found.layers[0]]
        if stack is not None:
            ahead, back = ([one[at] for one in layers["alone"]] for at in (0, 1))
            assert ahead[0] == ahead[2] > ahead[1] == ahead[3], "rows come from the embedding's stage"
            assert back[3] == back[1] > back[0] == back[2], "gradients come from the head's stage"
    longer = [
        more - less for more, less in zip(ends["megatron-plain", "alone"], ends["megatron-plain", "with"], strict=True)
    ]
    assert longer[2:] == [0, 0]
    kernel = H100.overheads.kernel_gap_ps() + H100.overheads.small_kernel_ps
    assert 0 < longer[0] <= hop_ps("forward") + kernel, "of the head, the GPU lags behind the host"
    assert hop_ps("backward") <= longer[1] <= hop_ps("backward") + kernel
    assert ends[None, "alone"] == ends[None, "with"]


def test_passes_beside_each_other_send_and_receive() -> None:
    """A chunk's first layer, with the host behind; other layers of it do not."""
    given: dict[str, Any] = {"layers": 1, "beside": "megatron"}
    beside = []
    for speed, chunks in ((1.0, (2, 2)), (1e9, (2, 2))):
        system = hwmodel.load("dgx-h100", {"host.speed": speed})
        plan = ParallelPlan(**{**PLAN, "layers": chunks})
        stack = Stack.of("megatron-plain", system, {**facts_of(SHAPE), "overlap": "passes"})
        steps = dataclasses.replace(replays(None), system=system, plan=plan, stack=stack, **given).under("deepep")
        beside.append([one.beside for one in steps.layers[0]])
    slow, quick = ([int((one.own + one.met).max()) for one in each if one is not None] for each in beside)
    assert slow[0] == slow[1] == slow[3]
    wait = 2 * H100.overheads.host_sync_ps
    assert slow[2] >= slow[0] + wait
    assert quick[2] - quick[0] < slow[2] - slow[0]


def test_a_stack_without_a_hop_calls_nothing() -> None:
    layers = made("automodel").layers[0]
    assert all(one is layers[0] for one in layers)


def test_what_is_made_again_begins_with_the_wait() -> None:
    layers = made("megatron-plain", recompute="full").layers[0]
    own = [int(one.backward.own.max()) for one in layers]
    assert own[0] == int(layers[0].forward.own.max())
    assert own[1] == int(layers[2].forward.own.max()) > own[0]
    assert own[2] == own[3] == own[0]


def test_an_optimiser_is_launched_kernel_by_kernel(plain: StepParts) -> None:
    bare, stack = made(None), Stack.of("megatron-plain", H100)
    for number, chunk in enumerate(((0, 2), (2, 4))):
        tensors = 2 * (2 + 2 + 1 + 2 * 2) + 1 + number
        sizes = dataclasses.replace(sizes_of(SHAPE, ParallelPlan(**PLAN), TOKENS), parameters=tensors)
        rows = stack.operations(sizes, ["optimizer"], "backward")
        calls = sum(stack.costs.ps(row) for row in rows)
        own = plain.update[chunk] - bare.hand_out[chunk]
        assert calls < own + 100 < calls + 50_000_000  # the all-reduce, and the last kernel
        moved = bare.update[chunk] - bare.hand_out[chunk]
        assert 10_000_000 < moved < own, "bytes move while kernels are launched"


def test_facts_name_the_stack_and_its_options() -> None:
    facts = replays("megatron-tuned:graphs=none").facts
    assert facts["stack"]["name"] == "megatron-tuned:graphs=none"
    options = facts["stack"]["options"]
    assert options["graphs"] == "none"
    assert options["router_fusion"] is True
    assert options["qk_norm"] is False, "the model decides, and not what others run"
    assert "stack" not in replays(None).facts


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stack", "model", "precision", "plan", "message"),
    [
        ("vllm", "qwen3-30b-a3b", "bf16", {}, "no backward pass; those that train are .*deepseek"),
        ("automodel", "qwen3-30b-a3b", "bf16", {"tp": 2}, "knows no slices of attention, so tp must be 1"),
        ("automodel", "gpt-oss-20b", "fp8", {}, "GEMMs are bf16, and not fp8"),
        ("deepseek", "deepseek-v3", "bf16", {}, "GEMMs are fp8, and not bf16"),
        ("deepseek", "qwen3-30b-a3b", "fp8", {}, "no kernels for the attention of qwen3-30b-a3b"),
        ("automodel", "deepseek-v3", "bf16", {}, "no kernels for the attention of deepseek-v3"),
        ("megatron-plain", "deepseek-v3", "fp8", {}, "fp8 is none and GEMMs are fp8; fp8 may"),
        ("megatron-plain:fp8=blockwise", "deepseek-v3", "bf16", {}, "fp8 is blockwise and"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(
    stack: str, model: str, precision: str, plan: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_stack(Stack.of(stack, H100), models.load(model), ParallelPlan(dp=16, ep=16, **plan), precision)


def test_lists_that_fit_are_taken() -> None:
    for stack, model, precision in (
        ("megatron-plain:fp8=blockwise", "deepseek-v3", "fp8"),
        ("megatron-tuned", "qwen3-30b-a3b", "bf16"),
        ("automodel", "gpt-oss-20b", "bf16"),
        ("deepseek", "deepseek-v3", "fp8"),
    ):
        plan = ParallelPlan(dp=16, ep=16)
        check_stack(Stack.of(stack, H100), models.load(model), plan, precision)


def test_a_system_whose_host_is_not_known_is_refused() -> None:
    system = next(name for name in hwmodel.names() if hwmodel.load(name).spec.host is None)
    with pytest.raises(UserError, match=r"has no table \[host\]"):
        train.run(stack="megatron-plain", system=system, model="olmoe-1b-7b", plan="dp=8,ep=8")


def test_a_spec_without_a_stack_is_as_before_there_were_any() -> None:
    assert "stack" not in TrainSpec().model_dump()
    assert TrainSpec(stack="automodel").model_dump()["stack"] == "automodel"


def test_hosts_spread_under_a_stack_alone() -> None:
    given: dict[str, Any] = {
        "model": "olmoe-1b-7b",
        "plan": "dp=8,ep=8",
        "sequence": 128,
        "layers_sampled": 1,
        "host_spread": 0.25,
    }
    with pytest.raises(UserError, match=r"--host-spread 0\.25: .* give --stack"):
        train.run(scheme="deepep", **given)
    compared = train.compare(schemes=["deepep"], stack="automodel", **given)
    pace = "Kernels are launched by hosts of automodel, each at its own pace (spread 0.25)."
    assert pace in notes(compared)


@every("stack", ["megatron-plain:dispatcher=hybridep", "megatron-tuned:dispatcher=alltoall"])
def test_a_dispatcher_is_the_schemes(stack: str) -> None:
    with pytest.raises(UserError, match="the scheme says who brings rows to experts"):
        train.run(stack=stack, scheme="deepep", model="olmoe-1b-7b", plan="dp=8,ep=8")


def test_a_step_runs_in_no_comparison_of_layers() -> None:
    with pytest.raises(UserError, match="--stack deepgemm: a comparison of single layers, which no step runs in"):
        train.run(stack="deepgemm", scheme="deepep", model="olmoe-1b-7b", plan="dp=8,ep=8")


def test_a_step_under_a_stack() -> None:
    given: dict[str, Any] = {
        "model": "olmoe-1b-7b",
        "plan": "pp=2,dp=4,ep=4,micro_batches=2",
        "sequence": 512,
        "scheme": "nccl-alltoall",
        "layers_sampled": 1,
    }
    bare, graphed = (train.run(**given, stack=stack) for stack in (None, "megatron-plain:graphs=attention"))
    scheme = given.pop("scheme")
    compared = train.compare(schemes=[scheme, "comet"], stack="megatron-plain", **given)
    plain = compared[scheme]
    assert "Not in the list of megatron-plain, so that kernels for rows are calls of an extension: comet." in notes(
        compared
    )
    assert "Kernels are launched by hosts of megatron-plain." in notes(compared)
    assert "moereplay words attn dense experts exch peers pipe other host" in " ".join(summary(compared).split())
    assert bare.step_us < graphed.step_us < plain.step_us
    assert len({one.run_id for one in (bare, plain, graphed)}) == 3
    replayed: Any = graphed.replayed
    assert replayed["stack"]["options"]["graphs"] == "attention"
    assert np.isclose(sum(plain.mean_us(cause) for cause in plain.spent_us), plain.step_us)


def test_rows_to_experts_travel_in_a_type_of_their_own() -> None:
    """Megatron's FP8 products take rows that travel in BF16: longer than those of one byte."""
    narrow = dataclasses.replace(replays(None), precision="fp8")
    wide = dataclasses.replace(narrow, dispatch_type="bf16")
    with pytest.raises(UserError, match="rows to the experts are bf16"):
        narrow.under("megatron")
    wide.under("megatron")
    took = [one.under("deepep").layers[0][0].forward.causes for one in (narrow, wide)]
    assert took[1]["exchange"].min() > took[0]["exchange"].max()


# ---- pairs of passes -----------------------------------------------------------------------------


def test_a_pair_of_passes_runs_the_list_of_a_stack_that_has_one() -> None:
    shape = models.load("deepseek-v3")
    stack = Stack.of("deepseek", H100, facts_of(shape))
    plan = ParallelPlan(dp=8, ep=8, pp=2)
    found = StepReplays(shape, H100, plan, 128, "fp8", layers=1, stack=stack, beside="dualpipe")
    deepep, other = find("deepep"), find("hybrid-ep")
    assert found._with_list(deepep).options.stack == "deepseek"
    assert found._with_list(other) is other  # whose pairs the list does not know
    bare = StepReplays(shape, H100, plan, 128, "fp8", layers=1, beside="dualpipe")
    assert bare._with_list(deepep) is deepep


def test_a_step_whose_experts_are_within_a_node_has_no_kernels_between_nodes() -> None:
    given: dict[str, Any] = {"model": "olmoe-1b-7b", "sequence": 512, "stack": "megatron-tuned"}
    nodes = [TrainingSetup.of(TrainSpec(plan=f"dp={size},ep={size}", **given)).replays.stack for size in (8, 16)]
    assert [one.options["nodes"] for one in nodes if one is not None] == ["one", "doca"]


def test_hosts_pay_for_a_pair_of_passes_of_a_list() -> None:
    """What hosts of a quarter of the speed add is on the host's account alone."""
    shape, found = models.load("deepseek-v3"), []
    for speed in (1.0, 0.25):
        system = hwmodel.load("dgx-h100", {"host.speed": speed})
        stack = Stack.of("deepseek", system, facts_of(shape))
        steps = StepReplays(
            shape,
            system,
            ParallelPlan(dp=8, ep=8, pp=2),
            128,
            "fp8",
            layers=1,
            stack=stack,
            beside="dualpipe",
        )
        beside = steps.under("deepep").layers[0][-1].beside
        assert beside is not None
        found.append(beside)
    quick, slow = found
    assert (slow.causes["host"] > 4 * quick.causes["host"]).all()
    for cause in quick.causes.keys() - {"host"}:
        assert (slow.causes[cause] == quick.causes[cause]).all(), cause
