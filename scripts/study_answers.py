"""Puts answers into pages of studies, read off the tables that stand on them.

Usage: python scripts/study_answers.py [NAME ...]    all pages that have such answers unless named

For a page whose study takes too long to be replayed with every change of how answers are told. The
sentences are those of `moereplay sweep`, of the means as the page has them: without errors of
predictions and without seeds, which are in no table. A page that is replayed has both.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from replay.studies.sweeps import load_study
from replay.studies.sweeps.answer import NO_ERROR, Contest, answers, races
from replay.studies.sweeps.study import Study
from replay.studies.sweeps.sweep_file import SavedGrid
from replay.studies.sweeps.table import GridTable, Labels
from replay.studies.sweeps.words import words
from tracegen.shared.display import escape

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "replay" / "studies"
SOURCE = "Read off the tables below, as replayed on "
"""Begin of the line that ends such an answer."""


def cells(line: str) -> list[str]:
    """Texts of a row of a Markdown table."""
    return [one.strip().replace("\\", "") for one in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def tables(page: str) -> list[list[list[str]]]:
    """Tables of a page, each its rows of texts, the headings first."""
    blocks = re.findall(r"(?:^\|.*\n?)+", page, re.M)
    return [[cells(line) for n, line in enumerate(block.splitlines()) if n != 1] for block in blocks]


def value(text: str) -> float | None:
    """Mean of a cell; None where it has none."""
    found = re.match(r"[+-]?[\d,]+(?:\.\d+)?", text)
    return float(found[0].replace(",", "")) if found else None


def filled(study: Study, number: int, page: str) -> SavedGrid:
    """A grid with the means of a page's table."""
    table = GridTable(study, number)
    down, shown, rows, _ = table.parts()
    headings = [*map(words, down), *(heading for heading, _ in shown)]
    keys = [key for key, _ in rows]
    title = re.escape(f"## {escape.markdown(table.grid.title)}")
    own = re.split(rf"^{title}$", page, maxsplit=1, flags=re.M)[-1] if table.grid.title else page
    for head, *lines in tables(own):
        if head == headings and [tuple(line[: len(down)]) for line in lines][: len(keys)] == keys:
            break
    else:
        message = f"{study.name}: no table on its page has the columns and rows of grid {number}: {headings}"
        raise SystemExit(message)
    across, places = table.grid.across, list(table.axes)
    at = [str(choice.label) for choice in table.axes[across]] if across else [""]
    found: dict[Labels, list[float | None]] = {labels: [None] * len(table.columns) for labels in table.rows()}
    for line in lines[: len(keys)]:
        chosen = dict(zip(down, line, strict=False))
        for (heading, column), text in zip(shown, line[len(down) :], strict=True):
            label = next(one for one in at if heading == f"{one} {column.header}".strip())
            labels = tuple(label if name == across else chosen[name] for name in places)
            if column.baseline is None and labels in found:
                found[labels][table.columns.index(column)] = value(text)
    table.values |= {(labels, None): row for labels, row in found.items()}
    points = [{"seed": None, "values": table.values[labels, None]} for labels in table.rows()]
    return SavedGrid.model_validate({**table.to_json(), "claims": [], "points": points})


def told(name: str, page: str) -> list[str]:
    """Lines of the answers that a page's tables give."""
    study = load_study(name)
    plain = study.model_copy(update={"grids": [one.model_copy(update={"seeds": []}) for one in study.grids]})
    asked = [number for number, one in enumerate(plain.grids) if one.answer is not None]
    contests: Sequence[Contest] = races([filled(plain, number, page) for number in asked])
    lines: list[str] = []
    for head, said in answers(contests):
        items = [f"- {escape.prose(one)}" for one in said if one != NO_ERROR]
        lines += [escape.prose(head), "", *items, *([""] if items else [])]
    return lines


def replayed_on(path: Path) -> str:
    """Date of the first commit since which a page has the numbers of its tables."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    def numbers(page: str) -> list[float]:
        return [one for rows in tables(page) for line in rows[1:] for text in line if (one := value(text)) is not None]

    name = path.relative_to(ROOT).as_posix()
    wanted, date = numbers(path.read_text(encoding="utf-8")), ""
    for line in git("log", "--format=%h %cs", "--", name).splitlines():
        commit, day = line.split()
        if date and numbers(git("show", f"{commit}:{name}")) != wanted:
            break
        date = day
    return date


def main(names: Sequence[str]) -> None:
    for path in [STUDIES / f"{name}.md" for name in names] or sorted(STUDIES.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if not names and SOURCE not in page:
            continue
        command = f"`moereplay sweep {path.stem} -o FOLDER`"
        head, _, rest = page.partition(f"\n{command}")
        after, _, rest = rest.partition("\n\n")
        if SOURCE in rest:
            rest = re.sub(rf"\A.*?^{SOURCE}[^\n]*\n\n", "", rest, count=1, flags=re.S | re.M)
        lines = told(path.stem, page)
        source = f"{SOURCE}{replayed_on(path)}; [errors of predictions](validate/VALIDATION.md) are not in them."
        text = "\n".join([*lines, source])
        path.write_text(f"{head}\n{command}{after}\n\n{text}\n\n{rest}", encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
