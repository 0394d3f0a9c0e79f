"""Spaces, models within a budget, plans, and the bound on a step."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from loops import every

import hwmodel
import tracegen.models
from replay.errors import UserError
from replay.experiments.choose import bound, plans, shapes, space
from replay.experiments.choose.plans import GPUS, MEMORY, PLAN
from replay.experiments.train.composition import compose
from replay.experiments.train.schedules import registry
from replay.experiments.train.schedules.base import ScheduleShape
from replay.steps import parameters, recipes
from replay.steps.chunks import chunks_of
from replay.steps.plan import ParallelPlan
from replay.steps.times import PassTime, PassTimes, StageHop, StepParts

SPACE = """
model = "olmoe-1b-7b"
sequence = 512
sequences = 16
[[systems]]
system = "dgx-h100"
scheme = "deepep"
[shape]
num_layers = "12..16 step 2"
hidden = [1536, 2048]
num_experts = [32, 64]
topk = [4, 8]
"""


def small(more: str = "") -> space.Space:
    return space.parse(SPACE + more, "here")


def test_shipped_spaces_can_be_read() -> None:
    assert "pangu" in space.names()
    for name in space.names():
        assert space.load(name).systems


def test_axes_are_numbers_lists_and_ranges() -> None:
    assert space.values("hidden", "8..20 step 4") == [8, 12, 16, 20]
    assert space.values("hidden", "3..5") == [3, 4, 5]
    assert space.values("hidden", 7) == [7]
    assert space.values("hidden", [4, 2, 4]) == [4, 2]
    assert space.values("ep", "all") is None
    assert space.values("schedule", "all") is None


@every(
    ("more", "said"),
    [
        ("[plan]\nqp = 2\n", "here: unknown axis of"),
        ("[plan]\ntp = 0\n", "axis tp = 0: expected at least 1"),
        ("[plan]\ntp = '1-8'\n", "expected a range such as"),
        ("[plan]\ntp = '9..1'\n", "has no values"),
        ("[plan]\ntp = '1..999999999'\n", "or more than"),
        ("[plan]\ntp = ['x']\n", "expected whole numbers"),
        ("[plan]\nrecompute = 3\n", "expected words"),
        ("[budget]\ntotal = -1\n", "budget.total: input should be greater than 0; got -1"),
        (
            "[budget]\nsum = 1\n",
            "budget.sum: extra inputs are not permitted; known: total, active, tol",
        ),
        ("][", "here: "),
    ],
)
def test_mistakes_are_a_line(more: str, said: str) -> None:
    with pytest.raises(UserError, match="here") as error:
        small(more)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_space_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match="pangu"):
        space.load("panguu")
    with pytest.raises(UserError, match=r"cannot read the space no/such\.toml"):
        space.load("no/such.toml")


def test_sizes_of_a_step_end_somewhere() -> None:
    for name in ("sequence", "sequences", "seed", "layers_sampled"):
        lines = [line for line in SPACE.splitlines() if not line.startswith(f"{name} =")]
        with pytest.raises(UserError, match=f"{name}: input should be less than or equal to"):
            space.parse("\n".join([f"{name} = {2**63 - 1}", *lines]), "here")


def test_a_space_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_bytes(b'title = "\xff"')
    with pytest.raises(UserError, match=r"cannot read the space .*space\.toml: 'utf-8' codec"):
        space.load(path)


# ---- models --------------------------------------------------------------------------------------


def test_models_are_those_within_the_budget_and_the_others_are_counted() -> None:
    base = tracegen.models.load("olmoe-1b-7b")
    whole = parameters.count(base)
    total, active = whole.total, whole.active - whole.embedding
    asked = small(f"[budget]\ntotal = {total}\nactive = {active}\ntolerance = 0.2\n")
    found, left_out = shapes.within(asked, base)
    every = list(itertools.product((12, 14, 16), (1536, 2048), (32, 64), (4, 8)))
    kept = []
    for layers, hidden, experts, topk in every:
        sizes = {"num_layers": layers, "hidden": hidden, "num_experts": experts, "topk": topk}
        of = parameters.count(base.model_copy(update=sizes))
        used = of.active - of.embedding
        if abs(of.total / total - 1) <= 0.2 and abs(used / active - 1) <= 0.2:
            kept.append(tuple(sizes.items()))
    assert [sizes for sizes, _ in found] == kept
    assert 0 < len(kept) < len(every)
    assert left_out.total() + len(kept) == len(every)
    exact = small(f"[budget]\ntotal = {total}\nactive = {active}\ntolerance = 0.0\n")
    ((sizes, _),) = shapes.within(exact, base)[0]
    assert all(getattr(base, name) == size for name, size in sizes)
    assert shapes.TOTAL in left_out
    assert shapes.ACTIVE in left_out


def test_what_goes_with_a_size_follows_it() -> None:
    pangu = tracegen.models.load("pangu-ultra-moe")
    other = shapes.resize(pangu, (("moe_intermediate", 1024), ("num_heads", 64)))
    assert other.shared_intermediate == 1024
    assert other.num_kv_heads == 64
    qwen = tracegen.models.load("qwen3-235b-a22b")
    fewer = shapes.resize(qwen, (("num_heads", 32),))
    assert fewer.num_kv_heads == qwen.num_kv_heads


def test_sizes_that_contradict_each_other_are_counted() -> None:
    base = tracegen.models.load("olmoe-1b-7b")
    asked = space.parse(SPACE.replace("topk = [4, 8]", "topk = [8, 33]"), "here")
    found, left_out = shapes.within(asked, base)
    assert left_out == {shapes.NO_MODEL: 6}  # 33 of 32 experts
    assert len(found) == 18


# ---- plans ---------------------------------------------------------------------------------------


def test_plans_have_all_gpus_and_the_whole_batch() -> None:
    asked = small('[plan]\ntp = "all"\npp = [1, 2, 3]\nep = "all"\nmicro_batch = [1, 2]\n')
    system = hwmodel.load("dgx-h100")
    found, left_out = plans.plans(asked, system)
    assert len(found) + left_out.total() == 4 * 3 * 4 * 2
    assert left_out[GPUS] >= 4 * 4 * 2  # three stages of eight GPUs
    for plan, schedule in found:
        assert plan.num_gpus == 8
        assert plan.tokens_per_step(512) == 16 * 512
        assert schedule == "1f1b"
    assert len(set(found)) == len(found)


def test_a_batch_that_does_not_divide_is_counted() -> None:
    asked = space.parse(SPACE.replace("sequences = 16", "sequences = 20"), "here")
    found, left_out = plans.plans(asked, hwmodel.load("dgx-h100"))
    assert not found
    assert left_out == {plans.BATCH: 1}


def test_all_is_every_schedule_and_recomputation() -> None:
    asked = small('[plan]\npp = 2\nvpp = 2\nschedule = "all"\nrecompute = "all"\n')
    found, left_out = plans.plans(asked, hwmodel.load("dgx-h100"))
    took = Counter(plan.recompute for plan, _ in found)
    assert set(took) == {"none", "selective", "full"}
    assert len({schedule for _, schedule in found}) > 1
    assert len(found) + left_out.total() == 3 * len(registry.SCHEDULES)


def test_too_many_plans_are_refused() -> None:
    axes = "\n".join(f'{name} = "1..99"' for name in ("tp", "cp", "pp"))
    with pytest.raises(UserError, match="970,299 plans on dgx-h100; at most"):
        plans.plans(small(f"[plan]\n{axes}\n"), hwmodel.load("dgx-h100"))


@every(
    ("model", "plan", "reason"),
    [
        ("olmoe-1b-7b", ParallelPlan(ep=8, dp=8), ""),
        ("olmoe-1b-7b", ParallelPlan(tp=8, ep=8), ""),
        ("qwen2-moe-2.7b-e64", ParallelPlan(dp=8, ep=8, pp=1, micro_batches=4), ""),
        ("mixtral-8x7b", ParallelPlan(dp=8), MEMORY),
        ("mixtral-8x7b", ParallelPlan(pp=8, vpp=8), PLAN),
    ],
)
def test_a_plan_is_refused_where_training_refuses_it(model: str, plan: ParallelPlan, reason: str) -> None:
    shape, system = tracegen.models.load(model), hwmodel.load("dgx-h100")
    recipe = recipes.find("megatron-bf16")
    order = registry.find("1f1b" if plan.vpp == 1 else "interleaved")
    assert plans.refusal(plan, order, shape, system, recipe, 4096)[0] == reason
    if reason:
        with pytest.raises(UserError):
            order.memory(shape, plan, system, recipe, 4096)
    else:
        order.memory(shape, plan, system, recipe, 4096)


def test_a_plan_as_text_is_read_back() -> None:
    from replay.steps.plan import parse

    plan = ParallelPlan(tp=2, pp=2, dp=2, ep=4, micro_batches=8, recompute="full", mtp=0)
    assert ParallelPlan(**parse(plans.text_of(plan))) == plan
    assert ParallelPlan(**parse(plans.text_of(ParallelPlan()))) == ParallelPlan()


# ---- the bound -----------------------------------------------------------------------------------

SIZES = {
    "gpipe": (4, 1, 6),
    "1f1b": (4, 1, 6),
    "interleaved": (4, 2, 8),
    "megatron-overlap": (4, 2, 8),
    "zb-h1": (4, 1, 8),
    "zb-v": (4, 2, 8),
    "dualpipe": (4, 1, 8),
}
PEAK = 100.0
EVEN = tracegen.models.load("olmoe-1b-7b").model_copy(update={"num_layers": 16, "vocab": None})


def at_peak(shape: tracegen.models.ModelShape, plan: ParallelPlan, sequence: int) -> StepParts:
    """A machine that multiplies at the peak rate, and does nothing else."""
    attended = sequence * shape.num_heads * sum(parameters.key_and_value(shape))
    ps = plan.tokens_per_gpu(sequence) / PEAK

    def timed(flop: float) -> PassTime:
        own = np.array([round(flop * ps)], np.int64)
        return PassTime(own, np.zeros(1, np.int64), {"experts": own})

    layers = []
    for weights in parameters.weights_used(shape, shape.num_layers):
        products = 2 * weights
        layers.append(
            PassTimes(
                forward=timed(products + attended),
                backward=timed(2 * (products + attended)),
                inputs=timed(products + 2 * attended),
                weights=timed(products),
            )
        )
    head = 2 * parameters.of_embedding(shape)
    nothing = PassTimes(timed(0), timed(0), timed(0), timed(0))
    end = PassTimes(timed(head), timed(2 * head), timed(head), timed(head))
    return StepParts(1, [layers], nothing, end, StageHop(0, 0))


@every("name", registry.SCHEDULES)
@every("layers", [16, 18])
def test_no_step_is_shorter_than_its_bound(name: str, layers: int) -> None:
    """On a machine that loses nothing."""
    stages, chunks, micro_batches = SIZES[name]
    shape = EVEN.model_copy(update={"num_layers": layers})
    plan = ParallelPlan(pp=stages, vpp=chunks, micro_batches=micro_batches)
    step = compose(registry.find(name), ScheduleShape.of(plan), at_peak(shape, plan, 512), chunks_of(shape, plan))
    least = bound.least_us(shape, plan, name, 512, PEAK)
    took = step.step_ps / 1e6
    assert least <= took * (1 + 1e-6)
    assert least > 0.5 * took


def test_the_bound_of_even_stages_by_hand() -> None:
    """Three times the forward pass of every micro-batch, and of one per stage that lies before."""
    plan = ParallelPlan(pp=4, micro_batches=6, layers=(4, 4, 4, 4))
    flop = parameters.flop_per_token(EVEN, 512) / 4
    wanted = (6 + 3) * flop * 512 / PEAK / 1e6
    assert bound.least_us(EVEN, plan, "1f1b", 512, PEAK) == pytest.approx(wanted)
    step = compose(registry.find("1f1b"), ScheduleShape.of(plan), at_peak(EVEN, plan, 512), chunks_of(EVEN, plan))
    assert step.step_ps / 1e6 == pytest.approx(wanted)


def test_the_head_and_each_prediction_count() -> None:
    pangu = tracegen.models.load("pangu-ultra-moe")
    without, more = (bound.least_us(pangu, ParallelPlan(mtp=mtp), "1f1b", 4096, PEAK) for mtp in (0, 1))
    flops = [parameters.flop_per_token(pangu, 4096, mtp=mtp) for mtp in (0, 1)]
    assert [without, more] == pytest.approx([one * 4096 / PEAK / 1e6 for one in flops])
