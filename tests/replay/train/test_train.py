"""Training steps: specs, results, what a step is worth, files; times of parts made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracegen.models
from replay.errors import UserError
from replay.experiments import train as training
from replay.experiments.base.identity import identity
from replay.experiments.train import SCHEDULES, TrainComparison, TrainResult, TrainSpec, setup
from replay.experiments.train.schedules.base import ScheduleShape
from replay.experiments.train.tables import tables
from replay.report.text import render, summary
from replay.schemes.registry import find
from replay.steps import plans
from replay.steps.parameters import flop_per_token
from replay.steps.plan import ParallelPlan
from tests.replay.train.made import MadeReplays

PLAN = "pp=2,dp=4,ep=4,micro_batches=3"
SMALL: dict[str, Any] = {"model": "olmoe-1b-7b", "plan": PLAN, "sequence": 1024}


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "StepReplays", MadeReplays)


@pytest.fixture
def compared() -> TrainComparison:
    return training.compare(schemes=["deepep", "ideal"], **SMALL)


def test_a_step_by_hand(compared: TrainComparison) -> None:
    """9 layers and the embedding on the first stage, 7 and the head on the second.

    The last of 4 GPUs comes 3 ms after the first, so a layer takes 3 + 3 + 5 ms and its exchange
    forward, 6 + 3 + 10 ms and its exchange backward.
    """
    ahead, back = 11 + 4, 19 + 4
    first, second = (9 * ahead + 1, 9 * back + 1), (7 * ahead + 2, 7 * back + 4)
    there_and_back = 0.51 + sum(second) + 0.51
    # The first stage waits for the first gradients, makes a backward and a forward pass, and waits
    # for the last gradients.
    way = first[0] + there_and_back + sum(first) + there_and_back + first[1]
    result = compared["deepep"]
    assert result.step_us == pytest.approx((way + 7 + 3) * 1e3)
    assert compared.speed_up("ideal") == result.step_us / compared["ideal"].step_us > 1


def test_kernels_by_hand(compared: TrainComparison) -> None:
    """As above; waits for peers are in kernels, and of the update none hands weights out."""
    result = compared["deepep"]
    means = result.kernels_us
    own = 3 + 1.5 + 6 + 1.5  # of a layer, both ways, mean over GPUs
    layers, ends = 3 * 16 / 2, 3 * (1 + 1 + 2 + 4) / 2  # of a stage
    assert means["computing"] == pytest.approx((layers * (own + 5 + 10) + ends + 3) * 1e3)
    exposed = result.mean_us("synchronise")
    assert means["communicating"] == pytest.approx(layers * 2 * 4e3 + result.mean_us("peers") + 7e3)
    assert means["both"] == pytest.approx(7e3 - exposed)
    assert means["idle"] == pytest.approx(result.mean_us("pipeline"))


def test_files_of_before_have_no_kernels(compared: TrainComparison) -> None:
    written = json.loads(compared["deepep"].model_dump_json(by_alias=True))
    del written["activity_us"], written["spent_us"]["host"]
    old = TrainResult.model_validate(written)
    assert "Kernels" in render(tables(compared["deepep"], details=True), 80)
    assert "Kernels" not in render(tables(old, details=True), 80)
    assert old.hidden_share == 0
    assert old.mean_us("host") == 0


def test_causes_add_up_on_every_gpu(compared: TrainComparison) -> None:
    for result in compared.results:
        assert {len(stages) for stages in result.spent_us.values()} == {2}
        for stage in range(2):
            for rank in range(4):
                spent = sum(of[stage][rank] for of in result.spent_us.values())
                assert spent == pytest.approx(result.step_us, rel=1e-12)
    assert compared["deepep"].mean_us("exchange") == 3 * 8 * 2 * 4 * 1e3
    assert compared["ideal"].mean_us("exchange") == 0


def test_what_a_step_is_worth(compared: TrainComparison) -> None:
    result, worth = compared["deepep"], compared["deepep"].efficiency
    tokens = 3 * 4 * 1024
    assert result.tokens_per_step == tokens
    assert result.num_gpus == 8
    assert worth.tokens_per_s == pytest.approx(tokens / (result.step_us / 1e6))
    assert worth.tokens_per_s_per_gpu == pytest.approx(worth.tokens_per_s / 8)
    flop = flop_per_token(tracegen.models.load("olmoe-1b-7b"), 1024)
    assert worth.flop_per_token == flop
    assert (worth.peak, worth.peak_tflop_per_s) == ("bf16", 989.4)
    assert worth.mfu == pytest.approx(worth.tokens_per_s * flop / 8 / 989.4e12)
    moe = [result.mean_us(cause) for cause in ("experts", "exchange", "peers")]
    assert result.moe_share == pytest.approx(sum(moe) / result.step_us)
    assert result.bubble_share == pytest.approx(result.mean_us("pipeline") / result.step_us)


def test_the_peak_is_that_of_the_number_type() -> None:
    half = training.run(scheme="ideal", **SMALL)
    eight = training.run(scheme="ideal", precision="fp8", **SMALL)
    assert eight.efficiency.peak == "fp8"
    assert eight.efficiency.mfu == pytest.approx(half.efficiency.mfu * 989.4 / 1978.9)
    assert eight.run_id != half.run_id


def test_every_scheme_can_be_named_and_those_that_cannot_train_say_why() -> None:
    compared = training.compare(**SMALL)
    assert [one.scheme.name for one in compared.results] == [
        "ideal",
        "nccl-alltoall",
        "deepep",
        "dysharp",
    ]
    assert compared.baseline == "deepep"
    assert compared.left_out["deepep-ll"] == "scheme 'deepep-ll': no backward pass"
    named = training.compare(schemes=["deepep", "deepep-ll"], **SMALL)
    assert named.left_out == {"deepep-ll": "scheme 'deepep-ll': no backward pass"}
    with pytest.raises(UserError, match="no backward pass"):
        training.run(scheme="deepep-ll", **SMALL)


def test_schedules_that_put_weights_off_need_schemes_that_can() -> None:
    with pytest.raises(UserError, match="puts gradients of weights off"):
        training.run(scheme="deepep", schedule="zb-h1", **SMALL)


def test_jitter_is_a_cause_and_makes_others_wait(compared: TrainComparison) -> None:
    late = training.run(scheme="deepep", jitter="lognormal:500:1", **SMALL)
    before = compared["deepep"]
    assert late.step_us > before.step_us
    assert late.mean_us("jitter") > 0 == before.mean_us("jitter")
    assert late.mean_us("peers") > before.mean_us("peers")
    assert late.mean_us("exchange") == before.mean_us("exchange")
    again = training.run(scheme="deepep", jitter="lognormal:500.0:1.0", **SMALL)
    assert again.to_json() == late.to_json()


# ---- settings ------------------------------------------------------------------------------------


def test_a_system_is_as_large_as_the_plan_needs() -> None:
    assert training.run(scheme="ideal", **SMALL).system.name == "dgx-h100"
    large = training.run(scheme="ideal", **{**SMALL, "plan": "pp=4,dp=8,ep=8,micro_batches=4"})
    assert (large.system.name, large.system.num_gpus) == ("dgx-h100-x4", 32)
    spare = training.run(scheme="ideal", system="dgx-h100-x8", **SMALL)
    assert (spare.system.name, spare.system.num_gpus) == ("dgx-h100-x8", 8)


def test_a_named_plan_brings_its_model_and_schedule() -> None:
    named = plans.find("mixtral-8x7b-megatron")
    result = training.run(scheme="ideal", plan="mixtral-8x7b-megatron,micro_batches=16")
    assert result.model["name"] == named.model == "mixtral-8x7b"
    assert result.schedule["name"] == named.schedule
    assert (result.sequence, result.num_gpus) == (named.sequence, named.plan.num_gpus)
    other = training.run(scheme="ideal", plan="mixtral-8x7b-megatron,vpp=1", schedule="1f1b")
    assert other.schedule["name"] == "1f1b"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"plan": "pp=4,dp=8,ep=8", "system": "dgx-h100-x2"}, "32 GPUs; dgx-h100-x2 has 16"),
        ({"schedule": "2f2b"}, "unknown schedule"),
        ({"schedule": "interleaved"}, "interleaved has"),
        ({"scheme": "deepeq"}, "did you mean"),
        ({"routing": "zipf:much"}, "expected a kind with numbers"),
        ({"routing": "poisson"}, "unknown kind of routing"),
        ({"plan": "pp=2,ep=3"}, "ep 3"),
        ({"plan": "dp=8,ep=8,micro_batches=900000"}, "more than can be composed"),
        ({"sequence": 0}, "sequence must be at least 1"),
        ({"samples": 2000}, "samples must be at most 1000"),
        ({"sequences": 7}, "unknown setting"),
        ({"precision": "fp4"}, "unknown precision 'fp4' .*known: bf16, fp32, fp8"),
        ({"jitter": "normal:3"}, "^jitter 'normal:3': possible are off and"),
        ({"options": {"num_sms": "many"}}, "num_sms"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused_in_two_lines(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        training.run(**{**SMALL, **settings})
    assert str(refusal.value).count("\n") <= 1


def test_baselines_and_options_belong_to_schemes_that_are_compared() -> None:
    with pytest.raises(UserError, match="unknown baseline"):
        training.compare(schemes=["ideal"], baseline="deepep", **SMALL)
    with pytest.raises(UserError, match="scheme with options"):
        training.compare(schemes=["ideal"], options={"deepep": {}}, **SMALL)
    compared = training.compare(
        schemes=["deepep", "ideal"], baseline="ideal", options={"deepep": {"num_sms": 16}}, **SMALL
    )
    assert compared.baseline == "ideal"
    assert compared["deepep"].scheme.options["num_sms"] == 16


def test_routing_of_a_trace_is_of_the_same_model() -> None:
    with pytest.raises(UserError, match=r"the trace is not of olmoe-1b-7b: it has experts 32 .not 64"):
        training.run(trace="gpt-oss-20b-decode", **SMALL)
    plan = "pp=4,dp=8,ep=8,micro_batches=4"
    result = training.run(trace="gpt-oss-20b-decode", plan=plan, scheme="ideal", sequence=512)
    assert result.model["name"] == "gpt-oss-20b"
    even = training.run(model="gpt-oss-20b", plan=plan, scheme="ideal", sequence=512)
    assert result.run_id != even.run_id
    assert result.memory == even.memory  # vocabulary and all


# ---- identity and files --------------------------------------------------------------------------


def test_equal_settings_are_one_step_and_others_another(compared: TrainComparison) -> None:
    again = training.run(scheme="deepep", **SMALL)
    assert again.to_json() == compared["deepep"].to_json()
    others = [
        {"sequence": 2048},
        {"samples": 2},
        {"seed": 1},
        {"routing": "zipf:0.6"},
        {"layers_sampled": 1},
        {"sample_nodes": 1},
        {"schedule": "gpipe"},
        {"plan": f"{PLAN},recompute=full"},
        {"overrides": {"link.links_per_gpu": 9}},
        {"options": {"num_sms": 16}},
        {"recipe": "megatron-bf16-moments"},
        {"jitter": "lognormal:5:1"},
        {"jitter": "lognormal:5:1", "jitter_seed": 1},
        {"precision": "fp8"},
        {"placement": "round-robin"},
    ]
    ids = [training.run(**{"scheme": "deepep", **SMALL, **one}).run_id for one in others]
    assert len({*ids, again.run_id}) == len(others) + 1
    assert identity({}) not in ids


def test_results_are_read_back(compared: TrainComparison, tmp_path: Path) -> None:
    one = compared["ideal"]
    for kept, path in ((compared, tmp_path / "all.json"), (one, tmp_path / "one.json")):
        kept.save(path)
        assert training.load_result(path) == kept
        assert path.read_text() == kept.to_json()
    document = json.loads(one.to_json())
    assert document["format"] == "moereplay-train/3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"format": "moereplay-train/9"},
            "this version reads moereplay-train/1, moereplay-train/2, moereplay-train/3",
        ),
        ({"step_us": "long"}, "is damaged: step_us"),
        ({"spec": {"sequence": 0}}, "is damaged: .*sequence must be"),
    ],
)
def test_damaged_results_are_refused(
    compared: TrainComparison, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    document = json.loads(compared["ideal"].to_json()) | change
    path = tmp_path / "one.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=words):
        training.load_result(path)


def test_specs_hold_only_what_was_asked_for() -> None:
    spec = TrainSpec(sequence=512)
    assert spec.settings() == {"sequence": 512}
    assert spec.changed(scheme="ideal").options == {}
    assert isinstance(training.run(spec, scheme="ideal", **{**SMALL, "sequence": 512}), TrainResult)


# ---- memory --------------------------------------------------------------------------------------


def test_what_does_not_fit_into_a_gpu_is_refused_before_anything_is_replayed() -> None:
    with pytest.raises(UserError, match=r"stage 0 needs .* dgx-h100 has") as refusal:
        training.run(**{**SMALL, "model": "mixtral-8x7b"})
    assert "recompute" in str(refusal.value) or "least needs" in str(refusal.value)


def test_what_does_not_fit_is_replayed_if_asked_for_and_the_report_says_so() -> None:
    wanted = {**SMALL, "model": "mixtral-8x7b"}
    compared = training.compare(schemes=["ideal"], fit=False, **wanted)
    assert max(sum(stage.values()) for stage in compared["ideal"].memory) > 80e9
    assert "Does not fit: stage 0 needs" in summary(compared)
    fits = training.compare(schemes=["ideal"], **SMALL)
    assert "Does not fit" not in summary(fits)


def test_identity_is_of_the_whole_model() -> None:
    """A trace's header does not have the vocabulary, of which the head's time depends."""
    shape = tracegen.models.load("olmoe-1b-7b")
    ids = {
        setup.TrainingSetup.of(TrainSpec(**SMALL), one).run_id(find("ideal"))
        for one in (shape, shape.model_copy(update={"vocab": 2 * (shape.vocab or 0)}))
    }
    assert len(ids) == 2


def test_stages_hold_the_chunks_that_the_schedule_gives_them() -> None:
    both = SCHEDULES["dualpipe"].retention(ScheduleShape.of(ParallelPlan(pp=4, micro_batches=8)))
    assert [kept.chunks for kept in both] == [(0, 3), (1, 2), (1, 2), (0, 3)]
    turns = SCHEDULES["interleaved"].retention(ScheduleShape(2, 2, 4))
    assert [kept.chunks for kept in turns] == [(0, 2), (1, 3)]
    plain = SCHEDULES["1f1b"].retention(ScheduleShape(3, 1, 8))
    assert [kept.in_flight for kept in plain] == [3, 2, 1]
    with pytest.raises(UserError, match="one chunk per stage"):
        SCHEDULES["1f1b"].retention(ScheduleShape(2, 2, 4))


def test_a_result_has_the_memory_of_its_stages(compared: TrainComparison) -> None:
    stages = compared["deepep"].memory
    assert len(stages) == 2
    assert stages[1]["logits"] > stages[0]["logits"] == 0
    assert stages[0]["activations"] > stages[1]["activations"]
