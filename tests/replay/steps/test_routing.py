"""Routing as text."""

from __future__ import annotations

import pytest
from loops import every

from replay.errors import UserError
from replay.steps.routing import DrawnRouting, parse


def test_a_kind_with_its_parameters() -> None:
    assert parse("uniform") == DrawnRouting("uniform", {})
    assert parse("zipf:skew=0.6") == parse("zipf:0.6") == DrawnRouting("zipf", {"skew": 0.6})


@every(
    ("text", "words"),
    [
        ("zip", "unknown kind of routing"),
        ("zipf:", "a kind with numbers"),
        ("zipf:skew=a", "a kind with numbers"),
        ("zipf:sku=1", "parameter of zipf"),
        ("uniform:0.5", "parameter of uniform"),
    ],
)
def test_what_does_not_exist_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(text)
