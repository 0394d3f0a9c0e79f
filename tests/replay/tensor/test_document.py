"""TENSOR.md says what the code does: classes of traffic, schemes, files."""

from __future__ import annotations

import re
from pathlib import Path

import replay.tensor
from replay.tensor.registry import SCHEMES
from replay.tensor.traffic import GATHERS, REDUCES

FOLDER = Path(replay.tensor.__file__).parent
TEXT = (FOLDER / "TENSOR.md").read_text(encoding="utf-8")


def test_closed_forms_are_those_of_the_code() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT.splitlines()
        if line.startswith("|")
    ]
    found = {row[0]: row[1:] for row in rows if row[0] in GATHERS | REDUCES}
    assert set(found) == (set(GATHERS) | set(REDUCES)) - {"none"}
    for name, cells in found.items():
        forms = [
            form
            for ways in (GATHERS, REDUCES)
            for form in ((ways[name].up_form, ways[name].down_form) if name in ways else ("", ""))
        ]
        assert cells == forms, name


def test_forms_are_what_is_computed() -> None:
    for one in (*GATHERS.values(), *REDUCES.values()):
        for form, count in ((one.up_form, one.up), (one.down_form, one.down)):
            python = re.sub(r"(\d) \(", r"\1 * (", form)
            for num in (2, 3, 8):
                assert eval(python, {"N": num}) == count(num)


def test_every_scheme_has_a_section() -> None:
    headings = ", ".join(re.findall(r"^### (.+)$", TEXT, re.MULTILINE))
    assert set(SCHEMES) <= set(re.split(r"[ ,()]+", headings))


def test_mentioned_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT):
        assert (FOLDER / link).exists(), link
