"""Every measure of every scheme is what it was; README.md of this folder says how to read this."""

from __future__ import annotations

import dataclasses

import cases
import commands
import frozen
import pytest
from numba import config

from replay.schemes.registry import COMPARED, EXAMPLES, TENSOR_EXAMPLES, TENSOR_SCHEMES

pytestmark = pytest.mark.skipif(
    bool(config.DISABLE_JIT),
    reason="kernels as plain Python are the business of tests/replay/engine",
)

EVERY_TIME = ("decode-chain", "sliced-decode")
"""A chain of layers under every scheme of a machine, and a sliced layer: with the defaults of options,
the default tier."""
RUNS = [
    pytest.param(name, label, marks=() if name in EVERY_TIME and not run.options else pytest.mark.extended)
    for name, case in cases.CASES.items()
    for label, run in case.runs().items()
]
COMMANDS = [
    pytest.param(name, label, marks=pytest.mark.extended if number else ())
    for name, words in commands.COMMANDS.items()
    for number, label in enumerate(words)
]
"""The first of each command is in the default tier."""
NUM_SHOWN = 20


@pytest.mark.parametrize(("case", "label"), RUNS)
def test_results_are_what_they_were(case: str, label: str) -> None:
    before = frozen.read(case).get(label, {})
    check(case, label, before, frozen.as_text(cases.replayed(case, label)))


@pytest.mark.parametrize(("case", "label"), COMMANDS)
def test_documents_of_commands_are_what_they_were(case: str, label: str) -> None:
    before = frozen.read(case).get(label, {})
    numbers = {
        commands.MOVED.sub(r"\1/spec/", path): one for path, one in before.items() if not commands.HEADS.fullmatch(path)
    }
    after = frozen.as_text(commands.replayed(case, label))
    # What a document says beyond the frozen one is of its head.
    check(case, label, numbers, {path: one for path, one in after.items() if path in numbers})


def check(case: str, label: str, before: dict[str, str], after: dict[str, str]) -> None:
    changed = frozen.differences(before, after)
    if changed:
        shown = "\n".join(changed[:NUM_SHOWN])
        pytest.fail(
            f"{case} / {label}: {len(changed)} of {len(before)} values differ, before -> after"
            f"{f', the first {NUM_SHOWN}' if len(changed) > NUM_SHOWN else ''}:\n{shown}",
            pytrace=False,
        )


def test_what_is_frozen_is_what_is_run() -> None:
    assert {file.stem for file in frozen.files()} == {*cases.CASES, *commands.COMMANDS}
    for name, case in cases.CASES.items():
        assert set(frozen.read(name)) == set(case.runs())
    for name, words in commands.COMMANDS.items():
        assert set(frozen.read(name)) == set(words)


def ran(kind: type[cases.Case | cases.SlicedCase]) -> tuple[set[str], set[str]]:
    """Schemes that run with their defaults in cases of a kind, and with other options."""
    plain, varied = set(), set()
    for case in cases.CASES.values():
        for run in case.runs().values() if isinstance(case, kind) else ():
            (varied if run.options else plain).add(run.scheme)
    return plain, varied


def test_every_scheme_runs_with_its_defaults_and_with_other_options() -> None:
    plain, varied = ran(cases.Case)
    known = COMPARED | EXAMPLES
    assert plain == set(known)
    has_options = {name for name, one in known.items() if dataclasses.fields(one.options)}
    assert varied == has_options - {"ideal"}  # two forms of one bound


def test_every_sliced_scheme_runs_with_its_defaults_and_with_other_options() -> None:
    plain, varied = ran(cases.SlicedCase)
    known = TENSOR_SCHEMES | TENSOR_EXAMPLES
    assert plain == set(known)
    assert varied == {name for name, one in known.items() if dataclasses.fields(one.options)}
