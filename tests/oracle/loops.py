"""One test of many cases: it goes through all, and says which of them failed.

An item of pytest costs milliseconds whatever it does, in each process that collects it. Cases that
take less than that, and share what they need, are a loop.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]
PARAM = type(pytest.param(0))
NUM_SHOWN = 20
"""Failures that are shown in full."""


def every(
    names: str | Sequence[str],
    cases: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[str] | None = None,
) -> Callable[[Test], Test]:
    """Call a test with each case, in place of `pytest.mark.parametrize`, whose arguments it takes.

    Fixtures are made once for all cases: none that a case changes can be used.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = list(cases)
    assert given, "no case"
    labels = None if ids is None or callable(ids) else list(ids)
    table: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(given):
        label = labels[number] if labels else None
        if isinstance(case, PARAM):
            assert not case.marks, "a mark would be of all cases"
            values, label = case.values, case.id or label
        else:
            values = (case,) if len(wanted) == 1 else tuple(case)
        label = label or "-".join(_shown(ids(one) if callable(ids) else one) for one in values)
        table[label if label not in table else f"{label} ({number})"] = dict(zip(wanted, values, strict=True))

    def of(test: Test) -> Test:
        @functools.wraps(test)
        def loop(*args: Any, **fixtures: Any) -> None:
            failed, skipped = [], []
            for label, values in table.items():
                try:
                    test(*args, **values, **fixtures)
                except pytest.skip.Exception as reason:  # the cases behind it are not skipped
                    skipped.append(f"[{label}] {reason}")
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"[{label}] {_told(error)}")
            if failed:
                shown = "\n\n".join(failed[:NUM_SHOWN])
                pytest.fail(f"{len(failed)} of {len(table)} cases\n{shown}", pytrace=False)
            if len(skipped) == len(table):
                pytest.skip("; ".join(skipped[:NUM_SHOWN]))

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in wanted]
        assert len(kept) == len(signature.parameters) - len(wanted), "a case has a name unknown"
        loop.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return loop

    return of


def _shown(value: object) -> str:
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else str(value)[:60]


def _told(error: BaseException) -> str:
    """What failed and where: the places in the files of tests, and what is said there."""
    if isinstance(error, pytest.fail.Exception):
        return str(error)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "/tests/" in one.filename]
    where = "".join(
        f"\n  {one.filename}:{one.lineno}: {one.line}" for one in frames if not one.filename.endswith("/loops.py")
    )
    return f"{type(error).__name__}: {error}{where}"
