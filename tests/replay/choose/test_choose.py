"""A small search as users carry it out: simulated, interrupted, and from its folder."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
from command_line import end_of
from loops import every

from replay.errors import UserError
from replay.experiments.choose import experiment as choose_experiment
from replay.experiments.choose import replay, search
from replay.experiments.choose.candidate import Candidate, make_task, simulate
from replay.experiments.choose.cost import Cost
from replay.experiments.choose.result import SearchResult
from replay.experiments.choose.search import Possible, everywhere
from replay.experiments.choose.setup import ChooseSetup
from replay.experiments.choose.space import load
from replay.experiments.choose.spec import ChooseSpec, share_of
from replay.experiments.train.experiment import run
from replay.schemes.outside import AllowCode

SPACE = """
title = "Two small models"
model = "olmoe-1b-7b"
sequence = 64
sequences = 16
[[systems]]
system = "dgx-h100"
scheme = "deepep"
[shape]
num_layers = [2, 3]
hidden = 512
num_experts = [8, 16]
[plan]
pp = [1, 2]
ep = [4, 16]
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("space") / "small.toml"
    path.write_text(SPACE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(space: Path) -> Path:
    """What a search leaves."""
    made = space.parent / "out"
    assert end_of("choose", space, "-o", made, "--top", "3") == 0
    return made


def candidates_of(space: Path) -> Possible:
    (found,) = everywhere(load(space))
    return found


def choice_in(folder: Path) -> SearchResult:
    return SearchResult.model_validate_json((folder / "choice.json").read_text("utf-8"))


def test_all_that_may_be_among_the_first_is_simulated(folder: Path) -> None:
    (found,) = choice_in(folder).systems
    assert len(found.rows) + found.pruned == 8  # four models, two plans
    assert found.left_out == {"does not suit the model": 2}
    rates = [row.cost.tokens_per_s for row in found.rows]
    assert rates == sorted(rates, reverse=True)
    for row in found.rows:
        assert row.least_us < row.cost.step_us
        assert sum(row.cost.spent_us.values()) == pytest.approx(row.cost.step_us)


def test_a_cost_is_that_of_the_training_step(space: Path, folder: Path) -> None:
    first = choice_in(folder).systems[0].rows[0]
    (one,) = (
        one.candidate
        for one in candidates_of(space).bounded
        if (dict(one.candidate.sizes), one.candidate.spec.plan) == (first.sizes, first.plan)
    )
    assert simulate(one) == first.cost
    result = run(one.spec, given={"model": one.shape()})
    assert result.step_us == first.cost.step_us
    assert result.model["num_layers"] == first.sizes["num_layers"]
    rate = result.tokens_per_step / result.step_us * 1e6
    assert first.cost.tokens_per_s == pytest.approx(rate)


def test_memory_of_a_candidate_is_that_of_its_fullest_stage(space: Path) -> None:
    one = next(one.candidate for one in candidates_of(space).bounded if "pp=2" in one.candidate.spec.plan)
    result = run(one.spec, given={"model": one.shape()})
    first, second = (sum(stage.values()) for stage in result.memory)
    assert first != second
    assert Cost.of(result).memory_gib * 2**30 == pytest.approx(max(first, second))


def test_the_share_of_the_peak_is_that_of_the_training_step(space: Path, folder: Path) -> None:
    first = choice_in(folder).systems[0].rows[0]
    (one,) = (
        one
        for one in candidates_of(space).bounded
        if (dict(one.candidate.sizes), one.candidate.spec.plan) == (first.sizes, first.plan)
    )
    assert one.worth(first.cost.step_us, "mfu") == pytest.approx(first.cost.mfu)
    assert one.worth(first.cost.step_us, "tokens") == pytest.approx(first.cost.tokens_per_s)
    assert one.flop_per_token == first.cost.flop_per_token


def test_a_search_goes_on_from_its_folder(
    space: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = (folder / "choice.json").read_bytes()
    files = sorted((folder / "points").iterdir())
    files[0].unlink()
    made = []

    def counted(candidate: Candidate, *allowed: AllowCode) -> object:
        made.append(candidate)
        return make_task(candidate, *allowed)

    monkeypatch.setattr(replay, "make_task", counted)
    ran: list[object] = []
    monkeypatch.setattr(
        "replay.experiments.choose.candidate.simulate",
        lambda one: ran.append(one) or simulate(one),
    )
    target = tmp_path / "again.json"
    assert end_of("choose", space, "-o", folder, "--top", "3", "--json", target) == 0
    assert len(ran) == 1
    assert len(made) > 1
    most = len(candidates_of(space).bounded)
    assert f"simulates up to {most:,} steps, the most promising first" in capsys.readouterr().err
    assert (folder / "choice.json").read_bytes() == before == target.read_bytes()


def test_a_search_is_made_again_from_its_file(space: Path, folder: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked.toml"
    asked.write_text(f'space = "{space}"\ntop = 3\n')
    for file in (folder / "choice.json", asked):
        assert end_of("choose", "--spec", file, "-o", folder, "--json", tmp_path / "a") == 0
        assert (tmp_path / "a").read_bytes() == (folder / "choice.json").read_bytes()


@pytest.mark.extended
def test_a_search_in_memory_finds_what_the_command_finds(space: Path, folder: Path) -> None:
    result = choose_experiment.EXPERIMENT.run(space=str(space), top=3)
    assert result.to_json() == (folder / "choice.json").read_text("utf-8")
    other = choose_experiment.EXPERIMENT.setup(ChooseSpec(space=str(space), top=2))
    assert other.run_id != result.run_id


def test_identity_is_of_everything_that_decides_the_cost(space: Path) -> None:
    one, *others = (each.candidate for each in candidates_of(space).bounded)
    ids = {make_task(each).id for each in (one, *others)}
    assert len(ids) == 1 + len(others)
    slower = one.with_overrides({"link.efficiency": 0.5})
    assert make_task(slower).id not in ids
    assert make_task(one).id in ids


def test_identity_is_of_what_parameters_alone_depend_on(tmp_path: Path) -> None:
    """A larger vocabulary is more work for the head."""
    model, ids, steps = tmp_path / "model.toml", [], []
    text = (resources.files("tracegen.models") / "olmoe-1b-7b.toml").read_text("utf-8")
    path = tmp_path / "space.toml"
    path.write_text(SPACE.replace("olmoe-1b-7b", str(model)), encoding="utf-8")
    for size in ("value = 50304", "value = 400000"):
        model.write_text(text.replace("value = 50304", size), encoding="utf-8")
        one = candidates_of(path).bounded[0].candidate
        ids.append(make_task(one).id)
        ids.append(ChooseSetup.of(ChooseSpec(space=str(path))).run_id)
        steps.append(simulate(one).step_us)
    assert len(set(ids)) == 4
    assert steps[0] < steps[1]


def test_a_step_is_on_the_machine_that_is_asked_for(space: Path, folder: Path) -> None:
    first = choice_in(folder).systems[0].rows[0]
    candidates = [one.candidate for one in candidates_of(space).bounded]
    (one,) = (one for one in candidates if (dict(one.sizes), one.spec.plan) == (first.sizes, first.plan))
    slower = simulate(one.with_overrides({"link.efficiency": 0.1}))
    assert slower.step_us > first.cost.step_us


def test_the_table_says_why(folder: Path) -> None:
    said = choice_in(folder).text()
    assert "The best spends its step on " in said
    assert "The second takes +" in said
    assert "left out: 2 x does not suit the model" in said
    assert all(len(line) <= 120 for line in said.splitlines())


def test_the_second_loses_by_what_its_causes_take_more(folder: Path) -> None:
    best, second = (row.cost for row in choice_in(folder).systems[0].rows[:2])
    from replay.experiments.choose.ranking import difference

    parts = difference(best, second)
    assert sum(us for _, us in parts) == pytest.approx(second.step_us - best.step_us)


def test_a_space_of_nothing_that_can_be_is_a_choice_of_nothing(tmp_path: Path) -> None:
    path, out = tmp_path / "space.toml", tmp_path / "out"
    path.write_text(SPACE.replace("ep = [4, 16]", "ep = [7]"), encoding="utf-8")
    assert end_of("choose", path, "-o", out) == 0
    assert [one.rows for one in choice_in(out).systems] == [[]]


def test_where_nothing_fits_the_plan_that_needs_least_is_said(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    large = SPACE.replace("hidden = 512", "hidden = 32768").replace("num_layers = [2, 3]", "num_layers = 40")
    path.write_text(large, encoding="utf-8")
    (reason,) = (one for one in candidates_of(path).left_out if one.startswith("too large for a GPU"))
    assert "too large for a GPU: least needs " in reason and "GiB (" in reason and "dgx-h100 has 79.6" in reason


def test_a_dry_run_simulates_nothing(space: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of("choose", space, "--dry-run", "--system", "dgx-h100:nccl-alltoall") == 0
    said = capsys.readouterr().out
    assert "dgx-h100: 8 candidates of 8 pairs" in said


@every("text", ["10", "x%", "0%", "100%", "-5%", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected a share between 0 and 1, such as 10%"):
        share_of(text)


def test_shares_are_read() -> None:
    assert share_of("10%") == share_of("0.1") == 0.1


def test_what_cannot_be_is_refused_before_any_simulation(space: Path) -> None:
    for arguments in (["choose"], ["choose", str(space)], ["choose", "pangoo", "-o", "x"]):
        assert end_of(*arguments) == 2


def test_workers_that_cannot_be_are_refused_before_models_are_counted(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "everywhere", None)  # whoever calls it finds nothing to call
    assert end_of("choose", space, "-o", tmp_path / "x", "--cluster", "foo") == 2
    assert "unknown cluster 'foo'; known: local, slurm" in capsys.readouterr().err
