"""TENSOR.md says what the code does: classes of traffic, schemes, files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import replay.experiments.dense
from replay.experiments.dense import compare
from replay.schemes.registry import TENSOR_SCHEMES as SCHEMES
from replay.schemes.tp.traffic import GATHERS, REDUCES

FOLDER = Path(replay.experiments.dense.__file__).parent
TEXT = (FOLDER / "TENSOR.md").read_text(encoding="utf-8")


def test_closed_forms_are_those_of_the_code() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]
    found = {row[0]: row[1:] for row in rows if row[0] in GATHERS | REDUCES}
    assert set(found) == (set(GATHERS) | set(REDUCES)) - {"none"}
    for name, cells in found.items():
        forms = [
            form
            for ways in (GATHERS, REDUCES)
            for form in ((ways[name].up, ways[name].down) if name in ways else ("", ""))
        ]
        assert cells == forms, name


def test_every_scheme_has_a_section() -> None:
    headings = ", ".join(re.findall(r"^### (.+)$", TEXT, re.MULTILINE))
    assert set(SCHEMES) <= set(re.split(r"[ ,()]+", headings))


def test_mentioned_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT):
        assert (FOLDER / link).exists(), link


def table_under(heading: str) -> dict[str, dict[str, str]]:
    """Cells of the last table of a section, by row and column."""
    section = TEXT.split(f"### {heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:]}


@pytest.mark.extended
def test_times_of_decoding_are_what_is_replayed() -> None:
    found = compare(model="llama-2-70b", tp=8, phase="decode", tokens=64)
    table = table_under("Decoding")
    for result in found.results:
        assert table[result.scheme.name]["llama-2-70b"] == f"{result.time_us:,.0f}"
    alone = found["sp-ring"].products_us
    assert table["kernels alone"]["llama-2-70b"] == f"{alone:,.0f}"


@pytest.mark.extended
@pytest.mark.parametrize("model", ["llama-7b", "llama-2-7b"])
def test_times_of_layers_are_what_is_replayed(model: str) -> None:
    half = {"gpu.num_sms": 66, "compute.bf16_peak_TFLOP_per_s": 494.7}
    settings = {"overrides": half} if model == "llama-7b" else {"tokens": 8192}
    table = table_under("Layers, forward and training")
    passes = [compare(model=model, tp=8, direction=direction, **settings) for direction in ("forward", "training")]
    for name in SCHEMES:
        times = " / ".join(f"{one[name].time_us:,.0f}" for one in passes)
        assert table[name][model] == times, name
