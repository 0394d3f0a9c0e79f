"""Sweeps: many replays that answer one question, described by a TOML file.

`study` is the file, `points` what it spans, `task` one replay and its identity, `plan` all of them;
`replay.experiments.base.crews` carries them out. `columns`, `table`, `claims` and `rows` are what
is shown, `free` what a paper leaves open, `dataset` the rows as files, `book` and `result` what is
known, `run` all together.
SWEEPS.md is for those who use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen.shared.lazy import loader

if TYPE_CHECKING:
    from replay.studies.sweeps.result import SweepResult
    from replay.studies.sweeps.rows import load_table
    from replay.studies.sweeps.run import sweep
    from replay.studies.sweeps.study import Study, load_study, study_names

__all__ = ["Study", "SweepResult", "load_study", "load_table", "study_names", "sweep"]

# Loaded on first use: a command's --help should not wait for what it does not need.
_HOMES = {
    "Study": "replay.studies.sweeps.study",
    "SweepResult": "replay.studies.sweeps.result",
    "load_study": "replay.studies.sweeps.study",
    "load_table": "replay.studies.sweeps.rows",
    "study_names": "replay.studies.sweeps.study",
    "sweep": "replay.studies.sweeps.run",
}

__getattr__ = loader(__name__, _HOMES)
