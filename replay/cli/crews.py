"""Options of commands whose work processes or machines share, and which can be resumed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tracegen.shared import screen

JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        help="Processes that replay [1]. With --cluster local, workers [the cores]; with slurm, jobs of "
        "one worker each (required).",
        show_default=False,
    ),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of a Dask scheduler, whose workers replay."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", help="Start a Dask cluster whose workers replay: local (this machine) or slurm."),
]


@contextmanager
def going_on_later(out: Path) -> Iterator[None]:
    """Tell the user, on an interrupt, that the same command continues the work in a folder."""

    def interrupt(_: int, __: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)  # as Slurm ends jobs
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"interrupted; what is finished is in {out}, and the same command goes on from there",
            file=sys.stderr,
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def tell(line: str) -> None:
    """Write a line beside a bar."""
    from tqdm import tqdm

    tqdm.write(screen.plain(line), file=screen.terminal(sys.stderr))
