"""Make the figure of replay/studies/steps-measured.md: the host's share of a step by tokens.

Usage: python scripts/host_figure.py FOLDER [PICTURE]

FOLDER holds the results of `moereplay sweep steps-measured`. A share is what goes away when calls
take the host nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tracegen.shared.display.content import Axis, Line, Page, Plot, Section
from tracegen.shared.display.plots import figure

PICTURE = Path(__file__).parent / "hosts.png"
GRID = "Hosts by tokens"
GRAPHS = {"none": "eager", "attention": "graph of attention and router"}
"""Labels of the study, and their names in the legend."""


def chart(folder: Path) -> Plot:
    grids = json.loads((folder / "sweep.json").read_text("utf-8"))["grids"]
    rows = next(grid["rows"] for grid in grids if grid["title"] == GRID)
    steps = {
        (row["labels"]["graphs"], row["labels"]["calls"], int(row["labels"]["tokens"])): row["cells"]["step s"]["mean"]
        for row in rows
    }
    lines = []
    for graphs, name in GRAPHS.items():
        paid = {tokens: step for (of, calls, tokens), step in steps.items() if (of, calls) == (graphs, "as measured")}
        shares = [100 * (1 - steps["none", "free", tokens] / paid[tokens]) for tokens in sorted(paid)]
        lines.append(Line(name, sorted(paid), shares))
    return Plot(
        "hosts",
        "The host's share of a training step, Qwen3-30B on 8 H100",
        Axis("tokens per GPU", log=True),
        Axis("share of the step, %"),
        lines,
    )


def main(folder: Path, picture: Path = PICTURE) -> None:
    drawn = figure(Page("hosts", "", [Section("", [chart(folder)])]))
    drawn.savefig(picture, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
