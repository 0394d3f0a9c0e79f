"""Settings of a search of model shapes and parallel plans."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from replay.errors import UserError
from replay.experiments.base.spec import MOST, Count, Several, Spec

CODE = ("steps", "experiments/train", "experiments/choose")
"""Rooms that decide a result, beside those of every replay."""


class ChooseSpec(Spec):
    """Everything that decides a search, but for what its space says.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    space: str | None = Field(
        None, description="Models and plans to search: a TOML file, or a name of `moereplay choose --list`."
    )
    systems: Several = Field(
        [], alias="system", description="Machine to train on, NAME or NAME:SCHEME; repeatable [those of the space]."
    )
    top: Count = Field(20, description="Rows to show; the search ends when no other candidate can be among them.")
    most: Count | None = Field(
        None, description="Most candidates to simulate; rows of --top may then be wrong [as many as --top needs]."
    )
    by: Literal["tokens", "mfu"] = Field(
        "tokens", description="Measure to rank by: tokens (per second) or mfu (model FLOP utilisation)."
    )
    sensitivity: str | None = Field(
        None,
        description="Rank the first rows again with each uncertain hardware value lower and higher by this "
        "share, such as 10% [off].",
    )
    again: int = Field(3, ge=2, le=MOST, description="With --sensitivity: rows that are ranked again.")

    @field_validator("sensitivity", mode="before")
    @classmethod
    def _text(cls, given: Any) -> Any:
        """Take a number for the text that says it."""
        if isinstance(given, float):
            given = repr(given)
        if isinstance(given, str):
            share_of(given)
        return given

    @property
    def share(self) -> float | None:
        """By how much uncertain values are lower and higher; None where that is not asked."""
        return None if self.sensitivity is None else share_of(self.sensitivity)


def share_of(text: str) -> float:
    """Read a share such as ``10%`` or ``0.1``.

    Raises
    ------
    UserError
        If it is none, or not between 0 and 1.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        message = f"sensitivity {text}: expected a share between 0 and 1, such as 10%"
        raise UserError(message)
    return share
