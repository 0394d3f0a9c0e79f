"""Sweeps: many replays that answer one question, described by a TOML file.

`study` is the file, `points` what it spans, `task` one replay and its identity, `store` the folder
of finished ones, `columns` and `table` what is shown, `run` all together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.sweeps.run import SweepResult, sweep
    from replay.sweeps.study import Study, load_study, study_names

__all__ = ["Study", "SweepResult", "load_study", "study_names", "sweep"]

_HOMES = {
    "Study": "study",
    "SweepResult": "run",
    "load_study": "study",
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
