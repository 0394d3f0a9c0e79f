"""Bases of records that are checked when they are made and never change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class Strict(BaseModel):
    """A frozen record that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StrictDocument(Strict):
    """Document that somebody wrote, such as a preset: unknown keys are errors, and "8" is not 8."""

    model_config = ConfigDict(strict=True)


def mistake_in(error: ValidationError, *above: str) -> tuple[str, str]:
    """Place of the first mistake in a record, keys joined by dots behind those `above`, and the mistake in words."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, (*above, *first["loc"]))), first["msg"].removeprefix("Value error, ")
