"""Replays the ten studies of the gallery, and writes their pages and the gallery's.

Usage: python scripts/gallery.py [--out FOLDER] [--jobs N]

What is in the folder is used again. Every sentence of an answer is made from the replays; the
gallery's page has the first of each answer, and how long a study takes.
"""

from __future__ import annotations

import argparse
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from replay.studies.sweeps import load_study, sweep
from replay.studies.sweeps.answer import answers
from replay.studies.sweeps.page import page
from replay.studies.sweeps.points import is_meant
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.trace_task import TracedTask
from replay.studies.sweeps.words import together
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
CLASSES = (15, 30, 60, 120, 300)
"""Seconds of CPU that a study takes at most."""

HEAD = """\
# Ten questions

For those who choose a dispatcher, a placement or a machine. Each is a study that comes with moereplay; its answer is
made from its replays by `python scripts/gallery.py` and holds for what it names. The study's page has each case, the
kinds of error, and what other values of an assumption give;
[words](#words-of-the-answers) are below.

To ask the same of your own model, machine or number of GPUs, say so:

<!-- release: 42 replays -->
```console
$ moereplay sweep in-switch --fix trace.model=glm-4.5 --fix system=hgx-h200 -o mine
```

`moereplay trace models` and `moereplay hardware list` have the names; a model may be [one that you
describe](describe-a-model.md). Any setting that the rivals of a study do not differ by may be fixed, such as `ranks=4`,
`precision=fp8`, `trace.skew=0` or, for the placement, `trace.file=mine.h5`; more is [a study of your
own](write-a-study.md).

Not asked here: whole models that serve, on an HGX H200 ([steps](../../../replay/studies/steps-serving.md),
[slices of experts](../../../replay/studies/serving-slices.md)); several nodes
([hierarchical](../../../replay/studies/hierarchical.md)); training, where hosts decide
([host-waits](../../../replay/studies/host-waits.md), [steps-measured](../../../replay/studies/steps-measured.md)).
"""
WORDS = """\
## Words of the answers

- *20 % ahead*, *20 % less*, *leads by 20 %*: it takes 20 % less time than the other; shares are of the other's time.
- *Level*, *the same*: within 1 %, which is chance.
- *Case*: one combination of all that varies, such as 4 GPUs with 128 tokens each.
- *Turns*: who was ahead by 1 % and more is behind by as much. Of two who are level, each must lead with some value.
- *The lead changes at*: between replayed values, where lines through the means cross on logarithmic axes; with the
  spread over seeds of the routing. *One draw* has none.
- *Error*: what nine in ten [measurements](../../../replay/studies/validate/VALIDATION.md) of the kernels that move rows
  stay within, times the share of the layer that waits for them. Two times of the same kernels are off together, so that
  between them only the difference of their shares counts. A lead *beyond the error* is larger.
- *Stand-in error*, of schemes with few or no measurements: that of all kernels that [were predicted before they were
  measured](../../../replay/studies/uncertainty/UNCERTAINTY.md#errors-of-the-model); in brackets what the few said.
- *Zipf 1.0*: routing by Zipf's law with this exponent, the larger the hotter are experts; *even*, *no skew*: with 0.
- *By NVLS*: NVSwitch copies rows to all GPUs and sums results, by kernels of Megatron-Core (`nvls`).
- `eplb:N`: experts moved, by DeepSeek's balancer, into N slots: places for an expert's weights. What is more than the
  experts are copies.
- *Tokens per GPU*: of one batch; in decoding one token of each running request.
- *EP8*: each of 8 GPUs has whole experts; *TP8*: each has an eighth of every expert.
- *Units of 8*, *order of arrival*: ready tiles that a fused kernel takes first, eight row tiles of an expert after
  eight, or as rows come.
- *20 us late*: each GPU begins late by a random time, lognormal with a median of 20 us.
- *Bare* hosts: they launch what a layer needs, and nothing that an engine adds.
- *Three kernels*: `nvls` gathers rows, ids and weights one after the other, in place of at once.

Names of schemes are on [their page](schemes.md). What no error here covers: other seeds of the routing; hosts of an
engine, which are bare but where an answer says otherwise; how much overlapping kernels slow one another; and errors of
experts' GEMMs, which cancel only where rivals multiply the same tiles; those of Qwen3-30B in BF16 are up to 20 % fast
from 1,536 tokens on ([VALIDATION](../../../replay/studies/validate/VALIDATION.md)).
"""


def conditions(result: SweepResult) -> str:
    """Machine, GPUs, phase, types and routing of a study's layers, as stated, in one line."""
    stated = [
        {
            axis: choices[0].label
            for axis, choices in table.axes.items()
            if table.answer and axis in table.answer.assumed
        }
        for table in result.plan.tables
    ]
    found: dict[str, dict[str, None]] = {one: {} for one in ("machine", "GPUs", "phase", "types", "routing")}
    for task, points in result.plan.tasks:
        meant = [one for one in points if is_meant(stated[one.grid], result.plan.tables[one.grid].axes, one.labels)]
        if not meant or not isinstance(task, TracedTask):
            continue
        spec, system, drawn = task.setup.spec, task.setup.system, task.source.generator
        found["machine"][system.name.upper().replace("-", " ")] = None
        found["GPUs"][str(spec.ranks or system.num_gpus)] = None
        found["phase"][spec.phase or drawn["phase"]] = None
        model = drawn.get("model") or task.source.load().model_shape
        found["types"][(spec.precision or model.default_precision).upper()] = None
        skew = drawn.get("skew", 0.0)
        found["routing"][f"Zipf {skew}" if skew else "even routing" if drawn else "recorded routing"] = None
    said = {name: together(list(values)) for name, values in found.items()}
    return ", ".join(f"{text} GPUs" if name == "GPUs" else text for name, text in said.items())


def section(name: str, result: SweepResult, seconds: float) -> Iterable[str]:
    """Lines of a study on the gallery's page."""
    study = load_study(name)
    yield f"## {escape.markdown(study.title)}"
    yield ""
    yield escape.prose(study.question)
    yield ""
    yield f"{escape.prose(conditions(result))}."
    yield ""
    races = result.races()
    for race, (head, _) in zip(races, answers(races), strict=True):
        yield escape.prose(head)
        yield f"{race.error_line().partition('. ')[0].rstrip('.')}."
        yield ""
    most = next((one for one in CLASSES if seconds <= one), CLASSES[-1])
    took = f"{most} s" if most < 60 else f"{most // 60} min"
    commands = f"`moereplay sweep {name} -o FOLDER --html page.html`"
    details = f"[all numbers](../../../replay/studies/{name}.md)"
    yield f"{commands}: {len(result.plan.tasks)} replays, at most {took} of CPU; {details}."
    yield ""


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has waited for."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def carry_out(name: str, out: Path, jobs: int | None) -> tuple[SweepResult, float]:
    """A study, and the seconds of CPU that all of its replays took when they were made."""
    noted, before = out / f"{name}.cpu", cpu_seconds()
    result = sweep(name, out / name, jobs=jobs)
    used = cpu_seconds() - before
    if not result.num_reused or not noted.exists():
        noted.write_text(f"{used:.1f}\n", encoding="utf-8")
    return result, float(noted.read_text(encoding="utf-8"))


def linked(text: str, folder: str = "") -> str:
    """A text with links to the pages of studies that it names, which lie in a folder."""
    return re.sub(
        r"(?<![\w/\[-])(?<!\]\()([a-z-]+\.md)\b",
        lambda found: f"[{found[1]}]({folder}{found[1]})" if (STUDIES / found[1]).exists() else found[0],
        text,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gallery")
    parser.add_argument("--jobs", type=int)
    given = parser.parse_args()
    lines = [HEAD]
    for name in NAMES:
        result, seconds = carry_out(name, given.out, given.jobs)
        (STUDIES / f"{name}.md").write_text(linked(result.markdown()), encoding="utf-8")
        shown = page(result, f"moereplay sweep {name} -o FOLDER")
        (given.out / f"{name}.html").write_text(document(shown), encoding="utf-8")
        lines += section(name, result, seconds)
        print(f"{name}: {result.num_computed} replayed, {result.num_reused} used again, {seconds:.0f} s of CPU")
    lines.append(WORDS)
    GALLERY.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
