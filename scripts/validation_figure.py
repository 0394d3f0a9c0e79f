"""Make the figure of README.md: predicted against measured times of whole layers and steps.

Usage: python scripts/validation_figure.py [PICTURE]     predicts four tables of `moereplay validate`
"""

from __future__ import annotations

import sys
from pathlib import Path

from replay.studies.validate import validate
from tracegen.shared.display.content import Axis, Line, Page, Plot, Section
from tracegen.shared.display.plots import figure

PICTURE = Path(__file__).parent / "validation.png"
TABLES = {
    "fused_layers": "MegaMoE's layer, 8 x H100",
    "fused_kernel": "its kernel on one GPU",
    "one_gpu_steps": "training step, one H200",
    "decode_ledger": "decoding step, GB200 NVL72",
}
"""Tables of whole layers and steps, and their names in the legend."""
MS = {"us": 1e-3, "ms": 1.0}


def chart() -> Plot:
    lines = []
    for outcome in validate(list(TABLES)):
        each = MS[outcome.table.unit]
        rows = [
            (row.measured * each, predicted * each)
            for row, predicted in zip(outcome.rows, outcome.predicted, strict=True)
            if outcome.table.name != "decode_ledger" or row["kernel"] == "whole step"
        ]
        x, y = zip(*rows, strict=True)
        lines.append(Line(TABLES[outcome.table.name], x, y, form="points"))
    ends = [value for line in lines for value in (*line.x, *line.y)]
    alike = Line("predicted as measured", [min(ends), max(ends)], [min(ends), max(ends)], form="guide")
    return Plot(
        "validation",
        "Whole layers and steps",
        Axis("measured, ms", log=True),
        Axis("predicted, ms", log=True),
        [alike, *lines],
    )


def main(picture: Path = PICTURE) -> None:
    drawn = figure(Page("validation", "", [Section("", [chart()])]))
    drawn.savefig(picture, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
