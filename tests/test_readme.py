"""The README says what the documents say; `test_pages` runs its code and its commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_error_range_is_that_of_the_validation() -> None:
    """`tests/replay/validate` checks the table itself."""
    document = (ROOT / "replay/validate/VALIDATION.md").read_text(encoding="utf-8")
    table = document.partition("<!-- errors -->\n")[2].partition("<!-- /errors -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    means = [float(row[rows[0].index("mean %")]) for row in rows[2:]]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"lies between {min(means)} % and {max(means)} %" in text


def test_mentioned_files_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / link).exists(), link
