"""Predictions of settings that no table has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from typer.testing import CliRunner

from replay.cli.app import app
from replay.errors import UserError
from replay.model.work.layer import LayerWork
from replay.studies.validate import predictions
from replay.studies.validate.bench import Bench, even_work, uniform_work
from replay.studies.validate.catalog import TABLES

NOTIFY = TABLES["deepep_internode_notify"]


def test_settings_are_those_of_the_table_with_other_values_each_once() -> None:
    rows = predictions.rows_at(NOTIFY, {"ep_size": ["32", "64"], "tokens_per_rank": ["7"]})
    assert len(rows) == 2 * 2 * 6  # phases and numbers of SMs, whatever the tokens were
    assert {row["ep_size"] for row in rows} == {32, 64}
    assert {row["tokens_per_rank"] for row in rows} == {7}
    assert {row["num_sms"] for row in rows} == {4, 8, 12, 16, 20, 24}


def test_what_is_measured_is_predicted_as_by_validation() -> None:
    changes = {"tokens_per_rank": ["4096"], "num_sms": ["24"], "phase": ["combine"]}
    (_, line) = predictions.lines(NOTIFY, changes, Bench())
    measured = [row for row in NOTIFY.rows() if row.label().endswith("4096 24")]
    (row,) = [one for one in measured if one["phase"] == "combine"]
    assert line[-1] == f"{NOTIFY.predict(Bench(), row):.4g}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": ["32"]}, "unknown column of table deepep_internode_notify 'gpus'"),
        ({"ep_size": ["many"]}, "has whole numbers"),
    ],
)
def test_mistakes_are_told(changes: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        predictions.rows_at(NOTIFY, changes)


def test_the_command_prints_predictions_and_compares_with_nothing() -> None:
    command = ["validate", NOTIFY.name, "--at", "ep_size=32,64", "--at", "num_sms=24"]
    shown = CliRunner().invoke(app, [*command, "--at", "tokens_per_rank=128", "--markdown"])
    assert shown.exit_code == 0
    assert [line.split("|")[-2].strip() for line in shown.output.splitlines()[2:]] == [
        "48.98",
        "51.17",
        "66.05",
        "67.84",
    ]
    wrong = CliRunner().invoke(app, [*command[:2], "--at", "ep_size"])
    assert wrong.exit_code != 0


@pytest.mark.parametrize("draw", [uniform_work, even_work])
def test_tokens_keep_to_four_groups_of_experts_where_there_are_more(
    draw: Callable[..., LayerWork],
) -> None:
    for groups, most in ((8, 4), (4, 4), (2, 2)):
        work = draw(8 * groups, 16, 256, 8, 128, groups=groups)
        of_token = np.unique(work.copy_token * 8 + work.copy_rank // 8) // 8
        assert np.bincount(of_token).max() == most
