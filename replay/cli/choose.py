"""``moereplay choose``: model shapes and parallel plans, ranked by simulated training steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.crews import ClusterOption, JobsOption, SchedulerOption, going_on_later, tell
from replay.cli.options import AllowCodeOption
from replay.cli.results import ResultCall, asks
from replay.cli.screen import show
from replay.errors import UserError
from tracegen.cli.outputs import folder_option

if TYPE_CHECKING:
    from replay.experiments.choose.search import Possible

CHOICE = "choice.json"


@asks("choose")
def choose(
    call: ResultCall,
    out: Annotated[
        Path | None,
        folder_option(
            "-o", "--out", help="Folder of the simulated steps; those that it holds are not simulated again."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the spaces that come with the package.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the candidates, bound their times, and simulate none.")
    ] = False,
    jobs: JobsOption = None,
    scheduler: SchedulerOption = None,
    cluster: ClusterOption = None,
    allow_code: AllowCodeOption = False,
) -> None:
    """Rank model shapes and parallel plans by their training steps.

    Shapes keep to a budget of parameters; steps are simulated.
    """
    from replay.experiments.base.crews.choice import workers_for
    from replay.experiments.choose import space as spaces
    from replay.experiments.choose.replay import carry_out
    from replay.files import ManagedFolder
    from replay.schemes import find

    if list_:
        for name in spaces.names():
            print(f"{name}: {spaces.load(name).title}")
        return
    spec = call.spec
    if spec.space is not None and out is None and not dry_run:
        message = "where to? Give a folder with -o; what is there already is used again"
        raise UserError(message)
    for _, _, scheme in (text.partition(":") for text in call.given.get("systems", ())):
        if scheme:
            find(scheme, allow_code=True)  # the command line names it
    crew = workers_for(jobs, scheduler, cluster, tell)  # refuses before all is counted
    setup = call.setup(allow_code=allow_code)
    if dry_run:
        _show(setup.possible, spec.top)
        return
    assert out is not None
    files = ManagedFolder(out)
    files.check(CHOICE)
    with going_on_later(out):
        result = carry_out(setup, out, crew=crew, report=tell)
    with files.present():  # where nothing was simulated, nobody made it
        files.write_text(CHOICE, result.to_json())
    call.finish(result)
    show(call.experiment.screen_tables(result, details=True))
    call.tell_difference(result)


def _show(found: list[Possible], top: int) -> None:
    """Say what would be simulated, by its bound."""
    for one in found:
        print(f"{one.where.system}: {len(one.bounded)} candidates of {one.looked_at:,} pairs")
        for reason, number in sorted(one.left_out.items()):
            print(f"  left out: {number:,} x {reason}")
        for row in sorted(one.bounded, key=lambda each: each.least_us)[:top]:
            print(f"  at least {row.least_us / 1e6:.3f} s: {row.candidate.label}")
