"""README and pages say what the documents say; `test_pages` runs their code and commands."""

from __future__ import annotations

import re
from pathlib import Path

from loops import every

ROOT = Path(__file__).parents[1]


def test_the_error_range_is_that_of_the_validation() -> None:
    """`tests/replay/validate` checks the table itself."""
    document = (ROOT / "replay/studies/validate/VALIDATION.md").read_text(encoding="utf-8")
    table = document.partition("<!-- errors -->\n")[2].partition("<!-- /errors -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    means = [float(row[rows[0].index("mean %")]) for row in rows[2:]]
    text = (ROOT / "scripts/site/pages/what-to-expect.md").read_text(encoding="utf-8")
    assert f"lies between {min(means)} % and {max(means)} %" in text


MADE = ("api", "commands", "schemes")  # folders of the site whose pages are made when it is built


@every("page", ["README.md", *sorted(path.name for path in (ROOT / "scripts/site/pages").glob("*.md"))])
def test_links_lead_somewhere_in_the_repository_too(page: str) -> None:
    path = ROOT / page if page == "README.md" else ROOT / "scripts/site/pages" / page
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        made = link.startswith(tuple(f"../{folder}/" for folder in MADE))
        assert made or (path.parent / link).exists(), link
