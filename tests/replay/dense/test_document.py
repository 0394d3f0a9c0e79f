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


def test_every_scheme_stands_in_the_table_with_its_module() -> None:
    section = TEXT.partition("## Schemes\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert set(SCHEMES) <= {name for cells in rows for name in re.findall(r"`([\w-]+)`", cells[0])}
    assert all("](" in cells[2] for cells in rows)


def test_mentioned_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT):
        assert (FOLDER / link).exists(), link


@pytest.mark.extended
def test_what_is_said_of_decoding_is_what_is_replayed() -> None:
    found = compare(model="llama-2-70b", tp=8, phase="decode", tokens=64)
    in_order = sorted(SCHEMES, key=lambda name: found[name].time_us)
    assert set(in_order[:2]) == {"fuselib", "t3-nvls"}
    assert found["tp-nvls"].time_us > found["tp-ring"].time_us
    assert found["sp-nvls"].time_us > found["sp-ring"].time_us


@pytest.mark.extended
@pytest.mark.parametrize(("model", "direction"), [("llama-7b", "training"), ("llama-2-7b", "forward")])
def test_what_is_said_of_layers_is_what_is_replayed(model: str, direction: str) -> None:
    half = {"gpu.num_sms": 66, "compute.bf16_peak_TFLOP_per_s": 494.7}
    settings = {"overrides": half, "tokens": 2048} if model == "llama-7b" else {"tokens": 8192}
    found = compare(model=model, tp=8, direction=direction, **settings)
    in_order = sorted(SCHEMES, key=lambda name: found[name].time_us)
    assert set(in_order[:3]) == {"t3", "t3-nvls", "cais"}
    assert set(in_order[3:7]) == {"fuselib", "fuselib-nvls", "coconet", "coconet-nvls"}
