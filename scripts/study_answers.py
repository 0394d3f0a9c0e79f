"""Puts answers into pages of studies, read off the tables that stand on them.

Usage: python scripts/study_answers.py [NAME ...]    all pages that have such answers unless named

For a page whose study takes too long to be replayed with every change of how answers are told. The
sentences are those of `moereplay sweep`, of the means as the page has them: without errors of
predictions and single seeds, which are in no table. A page that is replayed has both.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from replay.studies.sweeps import load_study
from replay.studies.sweeps.answer import NO_ERROR, RaceAnswer, answers, races
from replay.studies.sweeps.free import TITLE, verdict
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


def edges(text: str) -> tuple[float, float] | None:
    """Least and largest value of a cell; None where it has one."""
    found = re.search(r" \(([\d,.]+)-([\d,.]+)\)$", text)
    return None if found is None else (float(found[1].replace(",", "")), float(found[2].replace(",", "")))


def section(page: str, title: str) -> str:
    """Text of a page from a grid's title to the next; the whole page where the grid has none."""
    heading = re.escape(f"## {escape.markdown(title)}")
    found = re.search(rf"^{heading}$\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return page if not title else found[1] if found else ""


def filled(study: Study, number: int, page: str, num_seeds: int = 0) -> SavedGrid:
    """A grid with the means of a page's table, the least and the largest of so many seeds.

    A mean that the table leaves out follows from ratios and their baselines.
    """
    table = GridTable(study, number)
    down, shown, rows, _ = table.parts()
    left, headings = [words(one) for one in down], [heading for heading, _ in shown]
    keys, products = [key for key, _ in rows], table.products(shown)
    for head, *lines in tables(section(page, table.grid.title)):
        own = head[len(left) :]
        missing = {place for place, heading in enumerate(headings) if heading not in own}
        is_of = head[: len(left)] == left and set(own) <= set(headings) and missing <= set(products)
        if is_of and [tuple(line[: len(down)]) for line in lines][: len(keys)] == keys:
            break
    else:
        message = f"{study.name}: no table on its page has the columns and rows of grid {number}: {[*left, *headings]}"
        raise SystemExit(message)
    across, places = table.grid.across, list(table.axes)
    at = [str(choice.label) for choice in table.axes[across]] if across else [""]
    ranges: dict[tuple[Labels, str], tuple[float, float]] = {}
    found: dict[Labels, list[float | None]] = {labels: [None] * len(table.columns) for labels in table.rows()}
    for line in lines[: len(keys)]:
        chosen = dict(zip(down, line, strict=False))
        texts = dict(zip(own, line[len(down) :], strict=True))
        means = [value(texts.get(heading, "")) for heading in headings]
        for place in missing:
            (ratio, base), by = (means[one] for one in products[place]), shown[products[place][0]][1]
            if ratio and base is not None:
                means[place] = base / ratio if by.speedup_over else base * ratio
        for (heading, column), mean in zip(shown, means, strict=True):
            label = next(one for one in at if heading == f"{one} {column.header}".strip())
            labels = tuple(label if name == across else chosen[name] for name in places)
            if column.baseline is None and labels in found:
                found[labels][table.columns.index(column)] = mean
                if (ends := edges(texts.get(heading, ""))) is not None:
                    ranges[labels, column.header] = ends
    table.values |= {(labels, None): row for labels, row in found.items()}
    points = [{"seed": None, "values": table.values[labels, None]} for labels in table.rows()]
    document = {**table.to_json(), "claims": [], "points": points}
    for labels, row in zip(table.rows(), document["rows"], strict=True):
        for header, cell in row["cells"].items():
            if cell is not None:
                low, high = ranges.get((labels, header), (cell["mean"], cell["mean"]))
                cell |= {"min": low, "max": high, "count": max(1, num_seeds)}
    return SavedGrid.model_validate(document)


def told_grids(study: Study) -> list[int]:
    """Numbers of the grids that a study's answers are of."""
    return [number for number, one in enumerate(study.grids) if one.answer is not None]


def told(name: str, page: str) -> list[str]:
    """Lines of the answers that a page's tables give."""
    study = load_study(name)
    plain = study.model_copy(update={"grids": [one.model_copy(update={"seeds": []}) for one in study.grids]})
    contests: Sequence[RaceAnswer] = races(
        [filled(plain, number, page, len(study.grids[number].seeds)) for number in told_grids(plain)]
    )
    free = tables(section(page, TITLE))
    said_first = escape.prose(verdict(free[0][1:] if free else []))
    lines = [said_first, ""] if said_first else []
    for head, said in answers(contests):
        items = [f"- {escape.prose(one)}" for one in said if one != NO_ERROR]
        lines += [escape.prose(head), "", *items, *([""] if items else [])]
    return lines


def told_means(study: Study, page: str) -> dict[tuple[str, ...], float]:
    """Means that a page, or an older one, has of the grids that are told: by title, labels of the row, and heading."""
    found: dict[tuple[str, ...], float] = {}
    for table in (GridTable(study, number) for number in told_grids(study)):
        down, shown, _, _ = table.parts()
        headings = {heading for heading, _ in shown}
        for head, *lines in tables(section(page, table.grid.title)):
            for line in lines:
                cells_of = list(zip(head, line, strict=False))
                labels = [text for _, text in cells_of[: len(down)]]
                found |= {
                    (table.grid.title, *labels, heading): mean
                    for heading, text in cells_of[len(down) :]
                    if heading in headings and (mean := value(text)) is not None
                }
    return found


def replayed_on(path: Path) -> str:
    """Date of the first commit since which a page has the numbers that its answers are read off.

    What only one of two versions has, such as a column that came or went, says nothing.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    name, study = path.relative_to(ROOT).as_posix(), load_study(path.stem)
    wanted, date = told_means(study, path.read_text(encoding="utf-8")), ""
    for line in git("log", "--format=%h %cs", "--", name).splitlines():
        commit, day = line.split()
        then = told_means(study, git("show", f"{commit}:{name}"))
        both = wanted.keys() & then.keys()
        if date and (not both or any(wanted[one] != then[one] for one in both)):
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
