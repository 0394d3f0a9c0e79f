"""Every scheme of the registry makes a training step by real replays, or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tiers import KINDS

import hwmodel
from replay.experiments import train as training
from replay.experiments.train import TrainComparison
from replay.schemes.registry import supporting_schemes


def compare(schemes: Sequence[str] | None) -> TrainComparison:
    return training.compare(
        model="olmoe-1b-7b",
        plan="pp=2,dp=2,ep=2,micro_batches=2",
        sequence=64,
        layers_sampled=1,
        schemes=schemes,
    )


@pytest.fixture(scope="module")
def compared() -> TrainComparison:
    return compare(None)


@pytest.fixture(scope="module", params=[KINDS, pytest.param(None, id="all", marks=pytest.mark.extended)])
def found(request: pytest.FixtureRequest) -> TrainComparison:
    """One scheme of each kind, and in the extended tier all."""
    if request.param is None:
        every: TrainComparison = request.getfixturevalue("compared")
        return every
    return compare(["ideal", *request.param])


@pytest.mark.extended
def test_all_make_the_step_or_are_left_out_with_a_reason(compared: TrainComparison) -> None:
    made = {one.scheme.name for one in compared.results}
    assert made.isdisjoint(compared.left_out)
    assert made | set(compared.left_out) == set(supporting_schemes(hwmodel.load("dgx-h100")))
    assert {"deepep", "dysharp", "comet", "megatron", "nccl-alltoall"} <= made
    assert {"deepep-ll", "flashinfer-push", "megamoe"} <= set(compared.left_out)
    assert all(name in reason for name, reason in compared.left_out.items())


def test_what_hangs_on_no_scheme_is_the_same_under_all(found: TrainComparison) -> None:
    for cause in ("head", "optimiser"):
        assert len({one.mean_us(cause) for one in found.results}) == 1, cause


def test_none_is_faster_than_an_exchange_in_no_time(found: TrainComparison) -> None:
    ideal = found["ideal"].step_us
    assert all(one.step_us >= ideal for one in found.results)


@pytest.mark.extended
def test_no_more_runs_than_there_is_time(compared: TrainComparison) -> None:
    """Fused kernels hide all, and exchanges of their own in turn with the rest nothing."""
    for one in compared.results:
        for stage in range(2):
            for rank in range(2):
                found = {name: of[stage][rank] for name, of in one.activity_us.items()}
                assert 0 < found["active"] < one.step_us, one.name
                both = found["computing"] + found["communicating"] - found["active"]
                assert found["both"] == pytest.approx(both, abs=1e-6)
                assert -1e-9 <= found["both"] <= min(found["computing"], found["communicating"])
        assert sum(one.kernels_us[name] for name in ("active", "idle")) == one.step_us
    assert compared["dysharp"].hidden_share > 0.5
    assert compared["deepep"].hidden_share == 0


@pytest.mark.extended
def test_causes_add_up_on_every_gpu(compared: TrainComparison) -> None:
    for one in compared.results:
        for stage in range(2):
            for rank in range(2):
                spent = sum(of[stage][rank] for of in one.spent_us.values())
                assert spent == pytest.approx(one.step_us, rel=1e-12)
