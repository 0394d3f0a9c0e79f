"""A study's folder that somebody else had: nothing in it is followed, believed or waited for."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import replay.experiments.choose.candidate
from replay.errors import UserError
from replay.experiments.base.crews import leases
from replay.experiments.base.crews.leases import Leases
from replay.experiments.base.crews.store import MOST_REASON, PointOutcome, Store, point_text
from replay.experiments.base.documents import check_numbers
from replay.studies.sweeps import sweep
from replay.studies.sweeps.plan import plan_sweep
from replay.studies.sweeps.study import parse_study

InPlaceOf = Callable[[Path, Path], Iterator[str]]

STUDY = """
title = "Small"
question = "?"
[fixed]
ranks = 2
tokens_per_rank = 4
scheme = "ideal"
trace.kind = "zipf"
trace.model = "olmoe-1b-7b"
[axes]
trace.seed = [0, 1]
[[columns]]
header = "us"
path = "totals.makespan_us"
"""
ONE = parse_study(STUDY, "one", "one.toml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "out"
    sweep(ONE, folder)
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def identities() -> list[str]:
    return [task.id for task, _ in plan_sweep(ONE).tasks]


def test_every_file_and_folder_of_a_study(out: Path, tmp_path: Path, in_place_of: InPlaceOf) -> None:
    """Each that is there, and each that is not there yet."""
    (part,) = (out / "results/one").iterdir()
    for name in (
        "points",
        f"points/{identities()[0]}.json",
        "sweep.json",
        "table.txt",
        "table.md",
        "results",
        "results/one",
        f"results/one/{part.name}",
        "claims",
        "failures",
        f"claims/{identities()[1]}",
    ):
        if name.startswith("claims/"):  # somebody has what is not there
            (out / f"points/{identities()[1]}.json").unlink()
        for _ in in_place_of(out / name, tmp_path / "elsewhere" / "victim"):
            with pytest.raises(UserError, match=rf"{Path(name).name} is a .*; remove it"):
                sweep(ONE, out)
    shutil.rmtree(out / "claims")
    assert sweep(ONE, out).num_computed == 1


def test_a_claim_of_a_time_to_come_or_of_nobody_is_void(out: Path) -> None:
    texts = [
        "{}",
        "[" * 5000,
        '{"place": "x", "pid": 1e400}',
        '{"place": 3, "pid": -1}',
        "\xff",
        json.dumps({"place": "elsewhere", "pid": 1}),
    ]
    ages = [leases.LEASE_S + 5, -leases.LEASE_S - 5, -1e9]
    for text, age in zip(texts, ages * 2, strict=True):
        (out / f"points/{identities()[0]}.json").unlink()
        claim = out / "claims" / identities()[0]
        claim.parent.mkdir()
        claim.write_bytes(text.encode("latin-1"))
        now = claim.stat().st_mtime
        os.utime(claim, (now - age, now - age))
        assert sweep(ONE, out).num_computed == 1, text
        assert not claim.parent.exists()


def test_waiting_is_said_with_the_way_out(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "WORD_S", 0.4)
    (out / f"points/{identities()[0]}.json").unlink()
    claim = out / "claims" / identities()[0]
    claim.parent.mkdir()
    claim.write_text(json.dumps({"place": "host-7 boot", "pid": 123}))
    said: list[str] = []

    def tell(line: str) -> None:
        said.append(line)
        claim.unlink()  # as it says

    assert sweep(ONE, out, report=tell).num_computed == 1
    (line,) = said
    assert line.startswith("waiting for 1 replays") and str(claim) in line
    assert "process 123 of host-7" in line and "or the file is removed" in line


def test_a_clock_that_goes_back_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The other is dead on another machine, and the folder's clock is an hour behind by now."""
    with Leases(tmp_path, print) as one:
        assert one.take("a")
        for path in (tmp_path / "claims").iterdir():
            own = path.stat()
            os.utime(path, (own.st_mtime + 3600, own.st_mtime + 3600))
        with Leases(tmp_path, print) as other:
            assert other.take("a"), "a claim of a time to come is void"
            assert one.take("b") and not other.take("b"), "who lives begins anew"


def forged(made: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """A point with a checksum that holds, whatever was changed in its result."""
    text = (made / f"points/{identities()[0]}.json").read_text()
    document = json.loads(text)
    change(document["result"])
    return point_text(identities()[0], document["description"], PointOutcome(document["result"], None))


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "less than nothing": lambda one: one["totals"].update(makespan_us=-1.0),
    "no such number": lambda one: one["totals"].update(makespan_us=1e308),
    "many digits": lambda one: one["totals"].update(makespan_us=10**400),
    "text": lambda one: one["totals"].update(makespan_us="soon"),
    "nothing": lambda one: one.update(totals=None),
    "bytes": lambda one: one["totals"].update(uplink_payload_bytes=[-1, -1]),
    "a list": lambda one: one["layers"].clear() or one.update(layers=3),
    "more": lambda one: one.update(more=1),
    "of a setting": lambda one: one["spec"].update(ranks=-2),
}


@pytest.mark.extended
def test_a_well_signed_point_is_believed_only_if_it_can_be(made: Path, out: Path) -> None:
    path = out / f"points/{identities()[0]}.json"
    right = path.read_bytes()
    texts = {name: forged(made, change) for name, change in CHANGES.items()}
    texts["not finite"] = texts["less than nothing"].replace("-1.0", "NaN")
    refusal = PointOutcome(None, "x" * (MOST_REASON + 1))
    texts["a reason without end"] = point_text(identities()[0], {}, refusal)
    texts["levels"] = "[" * 100_000
    for name, text in texts.items():
        path.write_text(text)
        said: list[str] = []
        assert sweep(ONE, out, report=said.append).num_computed == 1, name
        assert len(said) == 1 and said[0].endswith("; computed anew"), (name, said)
        assert len(said[0]) < 500 and path.read_bytes() == right, (name, said)


def test_costs_of_a_choice_are_believed_only_if_they_can_be(tmp_path: Path) -> None:
    store = Store(tmp_path, replay.experiments.choose.candidate.Cost)
    cost = {
        "step_us": 1.0,
        "spent_us": {"gemm": 1.0},
        "tokens_per_s": 1.0,
        "mfu": 0.1,
        "flop_per_token": 1,
        "memory_gib": 1.0,
    }
    store.write("a", point_text("a", {}, PointOutcome(cost, None)))
    assert store.read("a")[0] is not None
    for change in ({"step_us": -1.0}, {"spent_us": {"gemm": -1.0}}, {"mfu": "x"}, {"mfu": 1e308}):
        store.write("a", point_text("a", {}, PointOutcome(cost | change, None)))
        outcome, problem = store.read("a")
        assert outcome is None and "is not believed" in problem, change


def test_numbers_of_a_result_are_finite_and_times_are_none_less_than_nothing() -> None:
    check_numbers({"a_us": [0, 1.5], "b": -1, "c": True, "d": "-1"})
    for wrong in ({"b": float("nan")}, {"a_us": {"x": [-1]}}, {"b": 10**400}, {"x_bytes": -1}):
        with pytest.raises(UserError, match=r"no such number|less than nothing"):
            check_numbers(wrong)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_any_more_ends_the_sweep_in_a_line(
    number: int, out: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same command goes on from there when it can be again."""
    for identity in identities():
        (out / f"points/{identity}.json").unlink()
    shutil.rmtree(out / "results")
    right, replaced = os.replace, []

    def full(*names: Any, **options: Any) -> None:
        if replaced:
            raise OSError(number, os.strerror(number), names[0])
        replaced.append(names)
        right(*names, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(UserError, match=rf"cannot write .*: {os.strerror(number)}"):
            sweep(ONE, out)
    assert len([*(out / "points").iterdir()]) == 1 and not (out / "claims").exists()
    assert not list(out.rglob(".*")), "no draft is left"
    result = sweep(ONE, out)
    assert (result.num_reused, result.num_computed) == (1, 1)
    for name in ("sweep.json", "table.txt"):
        assert (out / name).read_bytes() == (made / name).read_bytes()
