"""Sweeps: many replays that answer one question, described by a TOML file.

`study` is the file, `points` what it spans, `task` one replay and its identity, `plan` all of them.
`store` is the folder of finished ones, `leases` who works on what in it, `worker` what one does,
`crews` and `clusters` those who do it, `work` how it is handed out. `columns`, `table`, `claims`
and `rows` are what is shown, `dataset` the rows as files, `book` and `result` what is known, `run`
all together. SWEEPS.md is for those who use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.sweeps.result import SweepResult
    from replay.sweeps.rows import load_table
    from replay.sweeps.run import sweep
    from replay.sweeps.study import Study, load_study, study_names

__all__ = ["Study", "SweepResult", "load_study", "load_table", "study_names", "sweep"]

_HOMES = {
    "Study": "study",
    "SweepResult": "result",
    "load_study": "study",
    "load_table": "rows",
    "study_names": "study",
    "sweep": "run",
}


def __getattr__(name: str) -> Any:
    # On first use: a study can be read and listed without loading numba.
    import importlib

    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"replay.sweeps.{_HOMES[name]}"), name)
