"""``moereplay choose``: model shapes and parallel plans, ranked by simulated training steps."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from replay.cli.options import AllowCodeOption, JsonOption
from replay.cli.screen import show
from replay.cli.sweep import interrupt, tell
from replay.errors import UserError
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import folder_option

if TYPE_CHECKING:
    from replay.experiments.choose.ranking import Ranked
    from replay.experiments.choose.result import Sensitivity
    from replay.experiments.choose.search import Possible, Simulator
    from replay.experiments.choose.space import Space

AGAIN = 3
CHOICE = "choice.json"
"""Rows that are ranked again with other hardware values."""


@delivers
def choose(
    space: Annotated[
        str | None, typer.Argument(help="A TOML file, or a name of `--list`.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        folder_option("-o", "--out", help="Folder of the costs; what is there is used again."),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            "--system", help="NAME or NAME:SCHEME in place of the space's, repeatable."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="Rows that must be exact, and are shown.")
    ] = 20,
    most: Annotated[
        int | None,
        typer.Option("--most", min=1, help="Simulate no more than so many [all that may matter]."),
    ] = None,
    by: Annotated[
        Literal["tokens", "mfu"],
        typer.Option("--by", help="Rank by tokens per second, or by MFU."),
    ] = "tokens",
    sensitivity: Annotated[
        str | None,
        typer.Option(
            "--sensitivity",
            help="Rank the first again with each uncertain hardware value off by so much: 10%.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        int, typer.Option("--again", min=2, help="How many of the first are ranked again.")
    ] = AGAIN,
    list_: Annotated[
        bool, typer.Option("--list", help="List the spaces that come with the package.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count and bound the candidates, simulate none.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1,
            help="Processes that simulate [1]; of a cluster, workers [the cores].",
            show_default=False,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", help="Simulate on the workers of a Dask scheduler: its address."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="Simulate on workers of Dask made for it: local or slurm."),
    ] = None,
    allow_code: AllowCodeOption = False,
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:  # fmt: skip
    """Search model shapes under a budget of parameters, and parallel plans, by simulated steps."""
    from replay.experiments.base.crews.hiring import workers_for
    from replay.experiments.choose import space as spaces
    from replay.experiments.choose.result import Choice, Found, Sensitivity
    from replay.experiments.choose.search import everywhere, search
    from replay.experiments.choose.sensitivity import turns
    from replay.files import ManagedFolder, write_text
    from replay.report.pages import page

    if list_:
        for name in spaces.names():
            print(f"{name}: {spaces.load(name).title}")
        return
    if space is None:
        message = "which space? Give a TOML file, or a name of `moereplay choose --list`"
        raise UserError(message)
    if out is None and not dry_run:
        message = "where to? Give a folder with -o; what is there already is used again"
        raise UserError(message)
    share = None if sensitivity is None else share_of(sensitivity)
    asked = _on(spaces.load(space), system or [])
    crew = workers_for(jobs, scheduler, cluster, tell)  # refuses before all is counted
    found = everywhere(asked, allow_code=allow_code)
    if dry_run:
        _show(found, top)
        return
    assert out is not None
    files = ManagedFolder(out)
    files.check(CHOICE)
    varied: dict[str, Sensitivity] = {}

    def vary(one: Possible, ranked: Ranked, simulator: Simulator) -> None:
        first = [row for row, _ in ranked.rows[:again]]
        if share is not None and len(first) > 1:
            made = turns(first, simulator, share, by)
            varied[one.where.system] = Sensitivity.of(share, len(first), made)

    before = signal.signal(signal.SIGTERM, interrupt)  # as Slurm ends jobs
    try:
        ranked = search(found, out, top=top, by=by, most=most, crew=crew, then=vary, report=tell)
    except KeyboardInterrupt:
        print(
            f"interrupted; what is finished is in {out}, and the same command goes on from there",
            file=sys.stderr,
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    choice = Choice(
        space=asked.model_dump(mode="json"),
        by=by,
        top=top,
        systems=[
            Found.of(one, of, varied.get(one.where.system))
            for one, of in zip(found, ranked, strict=True)
        ],
    )
    with files.made():  # where nothing was simulated, nobody made it
        files.write_text(CHOICE, choice.to_json())
    if json_ is not None:
        write_text(json_, choice.to_json())
    deliver(lambda: page(choice))
    show(*choice.shown())


def share_of(text: str) -> float:
    """Read a share such as ``10%`` or ``0.1``.

    Raises
    ------
    UserError
        If it is none, or not between 0 and 1.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        message = f"--sensitivity {text}: expected a share between 0 and 1, such as 10%"
        raise UserError(message)
    return share


def _on(space: Space, systems: list[str]) -> Space:
    """Put other systems in place of a space's; a scheme that is not given is that of the first."""
    from replay.experiments.choose.space import Where
    from replay.schemes import find

    if not systems:
        return space
    known = {where.system: where.scheme for where in space.systems}
    chosen = []
    for text in systems:
        name, _, scheme = text.partition(":")
        if scheme:
            find(scheme, allow_code=True)  # the command line names it
        chosen.append(Where(system=name, scheme=scheme or known.get(name, space.systems[0].scheme)))
    return space.model_copy(update={"systems": chosen})


def _show(found: list[Possible], top: int) -> None:
    """Say what would be simulated, by its bound."""
    for one in found:
        print(f"{one.where.system}: {len(one.bounded)} candidates of {one.looked_at:,} pairs")
        for reason, number in sorted(one.left_out.items()):
            print(f"  left out: {number:,} x {reason}")
        for row in sorted(one.bounded, key=lambda each: each.least_us)[:top]:
            print(f"  at least {row.least_us / 1e6:.3f} s: {row.candidate.label}")
