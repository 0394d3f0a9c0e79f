"""Replays the ten studies of the gallery, and writes their pages and the gallery's.

Usage: python scripts/gallery.py [--out FOLDER] [--jobs N]

What is in the folder is used again. Every sentence of an answer is made from the replays; the
gallery's page says only what the pages of its studies say.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from replay.studies.sweeps import load_study, sweep
from replay.studies.sweeps.page import page
from replay.studies.sweeps.result import SweepResult
from tracegen.shared.display import escape
from tracegen.shared.display.html.document import document

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "replay" / "studies"
GALLERY = ROOT / "scripts" / "site" / "pages" / "gallery.md"
NAMES = (
    "tp-or-ep",
    "few-gpus",
    "low-latency",
    "hot-experts",
    "nvls-worth",
    "in-switch",
    "how-many-sms",
    "two-batches",
    "which-placement",
    "slow-gpu",
)
HEAD = """\
# Ten questions

For whoever has one of them. Each is a study that comes with moereplay, and each answer is made from its replays by
`python scripts/gallery.py`: who is first, where the lead changes (between two replayed values, by lines through the
means, with the spread over seeds of the routing), how far away the next is beside the
[error](../../../replay/studies/validate/VALIDATION.md) of the kernels that move rows, and what other values of an
assumption turn. *Ahead* is how much longer the other takes; the words for schemes are on [their page](schemes.md). An
answer holds for the model, machine and loads that its page names: copy the study, change them, and ask again ([write
a study](write-a-study.md)).

What no error here covers: experts' GEMMs, whose error all schemes of a question share, and how much overlapping kernels
slow one another. Nor does it cover chance: half a percent either way comes from the order in which tiles start, so
that a lead of 0 % is none.
"""


def section(name: str, result: SweepResult) -> Iterable[str]:
    """Lines of a study on the gallery's page."""
    study = load_study(name)
    yield f"## {escape.markdown(study.title)}"
    yield ""
    yield escape.prose(study.question)
    yield ""
    yield from result.answers()
    commands = f"`moereplay sweep {name} -o FOLDER --html page.html`"
    yield f"{commands}: {len(result.plan.tasks)} replays; [all numbers](../../../replay/studies/{name}.md)."
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gallery")
    parser.add_argument("--jobs", type=int)
    given = parser.parse_args()
    lines = [HEAD]
    for name in NAMES:
        result = sweep(name, given.out / name, jobs=given.jobs)
        (STUDIES / f"{name}.md").write_text(result.markdown(), encoding="utf-8")
        shown = page(result, f"moereplay sweep {name} -o FOLDER")
        (given.out / f"{name}.html").write_text(document(shown), encoding="utf-8")
        lines += section(name, result)
        print(f"{name}: {result.num_computed} replayed, {result.num_reused} used again")
    GALLERY.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
