"""What a worker does and refuses to do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from replay.errors import UserError
from replay.experiments.base.crews import worker
from replay.experiments.base.crews.store import point_text, read_point
from replay.experiments.base.crews.worker import Job, ReplayWorker
from replay.experiments.base.load import present_result
from replay.studies.sweeps.plan import plan_sweep
from replay.studies.sweeps.task import make_task


@pytest.fixture
def job(small: Path) -> Job:
    task, points = plan_sweep(small).tasks[0]
    return Job(task.id, task.source.key, points[0], make_task)


def test_a_worker_sends_back_the_text_of_the_file(job: Job, whole: Path) -> None:
    ((done,), seconds) = ReplayWorker()([job])
    assert done.text == (whole / "points" / f"{job.id}.json").read_text("utf-8")
    assert done.failure is None and seconds > 0


def test_what_is_not_what_was_asked_for_is_refused(job: Job) -> None:
    """As by another version of the code, or another file of the same name."""
    other = dataclasses.replace(job, id="0" * 64)
    with pytest.raises(UserError, match="another version of moereplay, or other files"):
        ReplayWorker()([other])


def test_an_error_is_told_in_a_line_with_where_it_was(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("replay.studies.sweeps.trace_task.EXPERIMENT.replay", fail)
    failure = ReplayWorker()([job])[0][0].failure
    assert failure is not None and failure.message == "MemoryError: no message"
    assert "in fail" in failure.traceback[-1] and len(failure.traceback) <= worker.MOST_FRAMES


def test_a_text_that_was_damaged_on_its_way_is_noticed(job: Job) -> None:
    text = ReplayWorker()([job])[0][0].text
    outcome, problem = read_point(text, job.id, present_result)
    assert outcome is not None and not problem
    assert point_text(job.id, {}, outcome) != text
    for harmed in (text.replace("makespan", "makespam"), text[:-9], "[]"):
        assert read_point(harmed, job.id, present_result)[0] is None
