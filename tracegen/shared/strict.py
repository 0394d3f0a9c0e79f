"""Bases of records that are checked when they are made and never change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen record that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StrictDocument(Strict):
    """Document that somebody wrote, such as a preset: unknown keys are errors, and "8" is not 8."""

    model_config = ConfigDict(strict=True)
