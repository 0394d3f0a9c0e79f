"""ADDING.md: its commands for a scheme of tensor parallelism do what they say."""

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


def test_a_scheme_of_tensor_parallelism_is_added_as_the_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = ADDING.read_text(encoding="utf-8").partition("## A scheme of tensor parallelism")[2]
    first, *others = section.split("```")[1].strip().splitlines()
    copied = re.fullmatch(r"cp (\S+) (\S+) +# then rename the class to (\w+) and .* to \"(\w+)\"", first)
    assert copied is not None
    source, target, class_name, name = copied.groups()
    text = (ROOT / source).read_text(encoding="utf-8")
    text = re.sub(r"class Direct\b", f"class {class_name}", text)
    text = text.replace('name = "sp-direct"', f'name = "{name}"')
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
    assert show.startswith(f"{name}: ") and "num_sms = 0" in show
    assert re.search(rf"^{name} ", compare, re.MULTILINE) and "sp-nvls" in compare
