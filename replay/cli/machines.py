"""``moereplay hardware measure`` and ``fit``: a user's own machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.screen import progress, show
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from replay.studies.machines.fit import MachineFit
    from replay.studies.machines.log import Log
    from replay.studies.validate.table import Outcome

FAR_PERCENT = 12.0
"""Mean error from which the base may be another kind of machine."""


def measure(
    output: Annotated[Path, file_option("--output", "-o", help="Write the log to this file, as JSON.")] = Path(
        "measured.json"
    ),
) -> None:
    """Measure this machine's GPU into a log for `hardware fit`.

    Under torchrun, several GPUs are measured.
    """
    from replay.files import write_text
    from replay.studies.machines import measure as measuring

    if measuring.process(os.environ).rank == 0:
        print(measuring.needs(os.environ), file=sys.stderr)
    document = measuring.measure(measuring.prepare(os.environ))
    if document is not None:
        write_text(output, json.dumps(document, indent=1) + "\n")
        print(f"wrote {output}; next: moereplay hardware fit --base MACHINE {output} -o FILE.toml")


def fit(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG", help="Files of output of benchmarks, text or JSON.")],
    output: Annotated[Path, file_option("--output", "-o", help="Write the machine to this file, as TOML.")],
    base: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Machine of `moereplay hardware list` that gives the values that no log determines."
        ),
    ] = "dgx-h100",
    hold_out: Annotated[
        float,
        typer.Option(min=0, max=0.9, help="Share of the lines to leave out of the fit and test with."),
    ] = 0.0,
) -> None:
    """Fit a machine to the logs of its benchmarks.

    Read are logs of nccl-tests, nvbandwidth, DeepEP, GEMM benchmarks and `hardware measure`.
    """
    from hwmodel.catalog import spec_of_text
    from replay.files import write_text
    from replay.studies.machines.fit import check_base
    from replay.studies.machines.fit import fit as fitted
    from replay.studies.machines.tables import CONSTANTS

    check_base(base)
    read = read_logs(logs, base)
    with progress(len(CONSTANTS), "table") as bar:
        machine = fitted(base, read, hold_out, bar.update)
    text = machine.toml(Path(output).stem)
    spec_of_text(text, f"what {output} would hold")  # nothing is written that cannot be read
    write_text(output, text)
    _show(machine)
    share = f" --hold-out {hold_out:g}" if hold_out else ""
    again = "".join(f" --log {log}" for log in logs)
    print(f"wrote {output}; next: moereplay validate --system {output}{again}{share}")


def read_logs(paths: list[Path], system: str) -> list[Log]:
    """Read logs of benchmarks that ran on a machine."""
    import hwmodel
    from replay.studies.machines.logs import read

    hwmodel.load(system)  # a mistake in its name is said once, and not of every line
    return [read(path, system) for path in paths]


def outcomes_of(paths: list[Path], system: str, hold_out: float) -> list[Outcome]:
    """Predictions of logs' lines by a machine.

    Raises
    ------
    UserError
        If no line is left to predict.
    """
    from replay.errors import UserError
    from replay.studies.machines.fit import outcomes

    found = outcomes(read_logs(paths, system), hold_out)
    if not found:
        held = f" that --hold-out {hold_out:g} leaves" if hold_out else ""
        raise UserError(f"no line of the logs{held} can be predicted by system {system}")
    return found


def _show(machine: MachineFit) -> None:
    """Print what was found, what was not, and how far lines are off."""
    from tracegen.shared.display.content import Column, Table

    constants = [
        (one.key, one.before, one.value, f"{one.low:.4g} to {one.high:.4g}", one.table) for one in machine.constants
    ]
    columns = [
        Column("constant"),
        Column("base", form=".4g"),
        Column("fitted", form=".4g"),
        Column("nine of ten", rank=1),
        Column("by lines of", rank=1),
    ]
    found = [Table("fitted", "Constants that the logs determine", columns, constants)]
    rows = [
        (
            part.name,
            len(part.used.rows),
            part.mean_percent,
            part.spread_percent,
            len(part.held_out.rows),
            part.held_out.statistics(~part.held_out.left_out).get("mean"),
            part.inside() if len(part.held_out.rows) else None,
        )
        for part in machine.parts
    ]
    columns = [
        Column("table"),
        Column("lines", form="d"),
        Column("mean", "%", ".1f"),
        Column("nine of ten", "%", ".1f", says="further lines are off by no more, it is estimated"),
        Column("held out", form="d"),
        Column("their mean", "%", ".1f"),
        Column("within", form="d", says="lines held out that are off by no more than nine of ten"),
    ]
    found.append(Table("lines", "Lines by table, and how far predictions are off", columns, rows))
    show(*found, "", *(line for table in found for line in table.explanations()))
    reasons: dict[str, list[str]] = {}
    for key, why in machine.undetermined.items():
        reasons.setdefault(why, []).append(key)
    for why, keys in reasons.items():
        show(f"stay {machine.base}'s ({why}): {', '.join(keys)}")
    for (name, reason), count in machine.left.items():
        show(f"{name}: {count} left out: {reason}")
    for part in machine.parts:
        if part.mean_percent > FAR_PERCENT:
            show(
                f"{part.name}: {part.mean_percent:.0f} % off in the mean: is {machine.base} the "
                "machine that is most like it?"
            )
