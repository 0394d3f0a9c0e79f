"""Words of ``moereplay infer`` that ask for several schemes, from the specs of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.serve.result import named
from replay.experiments.serve.spec import InferSpec
from replay.report.command import value_text
from replay.report.pages.described import twice

if TYPE_CHECKING:
    from collections.abc import Sequence

LEFT_OUT = ("scheme", "options", "prefill_scheme", "prefill_options")
"""Fields of `InferSpec` that are no options of the command."""


def serving_words(specs: Sequence[InferSpec]) -> tuple[list[str], tuple[str, ...]]:
    """Words that ask for the schemes of some results, and the fields that they stand for."""
    names = [named(one.of_prompts, one.scheme) for one in specs]
    usual = InferSpec()
    is_usual = names == [named(usual.of_prompts, usual.scheme)]
    words = [] if is_usual else twice("--scheme", names)
    options: dict[str, None] = {}
    for one in specs:
        for scheme, given in ((one.of_prompts, one.prefill_options), (one.scheme, one.options)):
            for key, value in given.items():
                options[f"{scheme}.{key}={value_text(value)}"] = None
    return words + twice("--option", options), LEFT_OUT
