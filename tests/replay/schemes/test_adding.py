"""ADDING.md: its commands for a fused scheme and for one of tensor parallelism do what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replay.schemes
from replay.cli.app import app

ADDING = Path(replay.schemes.__file__).with_name("ADDING.md")
ROOT = ADDING.parents[2]


@pytest.mark.parametrize(
    ("before", "original", "options", "beside"),
    [
        ("A fused scheme", ("Fused", "fused"), "tile_order = unit:8", "comet"),
        ("## A scheme of tensor parallelism", ("Direct", "sp-direct"), "num_sms = 16", "sp-nvls"),
    ],
)
def test_a_scheme_is_added_as_the_document_says(
    before: str,
    original: tuple[str, str],
    options: str,
    beside: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = ADDING.read_text(encoding="utf-8").partition(before)[2]
    first, *others = section.split("```")[1].strip().splitlines()
    copied = re.fullmatch(r"cp (\S+) (\S+) +# then rename the class to (\w+) and .* to \"(\w+)\"", first)
    assert copied is not None
    source, target, class_name, name = copied.groups()
    text = (ROOT / source).read_text(encoding="utf-8")
    text = re.sub(rf"class {original[0]}\b", f"class {class_name}", text)
    text = text.replace(f'name = "{original[1]}"', f'name = "{name}"')
    (tmp_path / target).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = []
    for line in others:
        program, *words = shlex.split(line)
        assert program == "moereplay"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        said.append(done.stdout)
    check, show, compare = said
    assert f"{name} keeps the contract" in check
    assert show.startswith(f"{name}: ") and options in show
    assert re.search(rf"^{name} ", compare, re.MULTILINE) and beside in compare
