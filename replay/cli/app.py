"""``moereplay``: the one console command, and the sub-commands that replay."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from replay.cli.later import Later, LaterGroup
from replay.errors import UserError, value_text
from replay.experiments.base.rooms import ROOMS
from tracegen.cli.outputs import refuse_inputs, refuse_unused
from tracegen.shared import screen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


COMMANDS = {
    "run": ("replays", "Replay a trace under one scheme."),
    "compare": (
        "replays",
        "Replay a trace under several schemes, the fastest first.",
    ),
    "collective": (
        "collective",
        "Time a collective by itself, as nccl-tests does.",
    ),
    "diff": (
        "diff",
        "Compare two results: inputs that differ, effects by cause.",
    ),
    "explain": (
        "explain",
        "Split the difference between two schemes by phase and cause.",
    ),
    "uncertainty": (
        "uncertainty",
        "Replay a result with its uncertain values drawn at random.",
    ),
    "infer": (
        "infer",
        "Serve a batch of requests with a whole model.",
    ),
    "place": (
        "place",
        "Place experts by loads, and measure imbalance in later steps.",
    ),
    "report": (
        "report",
        "Write saved results as an HTML page, as figures or as tables.",
    ),
    "schemes": (
        "schemes",
        "List the schemes, describe one, or check one.",
    ),
    "stacks": (
        "stacks",
        "List software stacks, or count what one launches for a layer.",
    ),
    "validate": (
        "validate",
        "Predict published measurements, and print the errors.",
    ),
    "words": ("words", "Explain the headings of tables, one line each."),
    "sweep": (
        "sweep",
        "Replay every point of a study into one table.",
    ),
    "train": (
        "training",
        "Replay a model's training step under several schemes.",
    ),
    "choose": (
        "choose",
        "Rank model shapes and parallel plans by their training steps.",
    ),
}
"""Modules of commands, and the first lines of their docstrings, in the order of the help."""
OWN = {"layer", "trace", "dense", "collective", "place", "train", "serve", "arrivals", "choose"}
"""Experiments whose commands are written out; of others the experiment makes it."""


@cache
def _of_traces() -> Any:
    """Commands of traces, and the one of them that replays."""
    import tracegen.cli
    from replay.cli.imitate import imitate

    tracegen.cli.app.command()(imitate)
    return tracegen.cli.app


@cache
def _of_hardware() -> Any:
    """Commands of machines, and those of them that replay."""
    import hwmodel.cli
    from replay.cli.machines import fit, measure

    hwmodel.cli.app.command()(measure)
    hwmodel.cli.app.command()(fit)
    return hwmodel.cli.app


def _of_tensor() -> Any:
    from replay.cli.tensor import app

    return app


GROUPS: dict[str, tuple[Callable[[], Any], str]] = {
    "trace": (_of_traces, "Routing traces: the experts that every token chose."),
    "hardware": (_of_hardware, "Machines that a replay can run on."),
    "tensor": (_of_tensor, "Replay transformer layers under tensor parallelism."),
}
"""Commands that have commands."""


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"replay.cli.{module}"), name)


def guard(command: Any) -> Any:
    """Have a command, and all commands in it, refuse outputs that are inputs or get nothing."""
    for inner in getattr(command, "commands", {}).values():
        guard(inner)
    if not hasattr(command, "commands"):
        invoke = command.invoke

        def check(ctx: typer.Context) -> Any:
            refuse_inputs(ctx)
            refuse_unused(ctx)
            return invoke(ctx)

        command.invoke = check
    return command


class Commands(LaterGroup):
    """All commands; what one needs is imported when it is called."""

    def later(self) -> list[Later]:
        """Give all commands in the order of the help."""
        found = [
            Later(name, summary, partial(_function, module, name), guard)
            for name, (module, summary) in COMMANDS.items()
        ]
        for name in sorted({room.rpartition(".")[2] for room in ROOMS} - OWN):
            from replay.cli.experiments import command_of
            from replay.experiments.base.experiment import EXPERIMENTS

            made = command_of(name)
            command = EXPERIMENTS[name].command
            found.append(Later(command, str(made.__doc__), partial(command_of, name), guard))
        found += [Later(name, says, find, guard) for name, (find, says) in GROUPS.items()]
        return found


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # "[...]" in a help text is no markup
    help="Replay Mixture-of-Experts routing under every communication scheme.\n\n"
    "`moereplay COMMAND --help` lists the options of a command, with defaults in [brackets].",
)

SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
"""What a machine says of open files, memory and processes where it gives no more of them."""
TRACEBACK = "MOEREPLAY_TRACEBACK"
SOURCES = Path(__file__).parents[2]

# Typer keeps a copy of click of its own and exports only some of its errors.
UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]  # not None


def _version(is_asked: bool) -> None:
    if is_asked:
        from tracegen.trace.provenance import package_version

        print(f"moereplay {package_version()}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    """Take the options that go before a command."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command: exit code 0, 2 for the user's mistake, 1 for ours; errors are a line.

    What is printed cannot steer a terminal. A reader that stops early, as in ``moereplay ... |
    head``, is no error: code 0. With `TRACEBACK` in the environment, an error of ours is shown as
    Python shows it.
    """
    with screen.guard():
        try:
            code = _carry_out(argv)
            sys.stdout.flush()
        except OSError as error:
            reason = screen.failure()
            if isinstance(reason or error, BrokenPipeError):
                code = 0
            else:
                code = 2
                what = "cannot write standard output: " if reason else ""
                _complain(what + _of_system(reason or error))
        except Exception as error:
            if os.environ.get(TRACEBACK):
                raise
            code = 1
            _complain(_of_ours(error))
    raise SystemExit(code)


@cache
def _parser() -> Any:
    """All commands with their options; made once, which takes longer than most commands."""
    return typer.main.get_command(app)


def _carry_out(argv: Sequence[str] | None) -> int:
    streams = sys.stdout, sys.stderr
    try:
        code = _parser()(args=None if argv is None else list(argv), prog_name="moereplay", standalone_mode=False)
    except UserError as error:
        _complain(str(error), *getattr(error, "__notes__", ()))
        return 2
    except UsageError as error:
        _explain(error, sys.argv[1:] if argv is None else argv)
        return 2
    except KeyboardInterrupt:
        return 130
    except MemoryError as error:
        _complain(" ".join(f"no memory is left: {error}".split()).rstrip(":"))
        return 2
    except SystemExit as end:
        # The parser puts other streams in place and ends the process where a reader has gone.
        if isinstance(end.__context__, BrokenPipeError):
            sys.stdout, sys.stderr = streams
            raise end.__context__ from None
        raise
    return code or 0


def _of_system(error: OSError) -> str:
    """Name what the system refused, and of which file."""
    said = error.strerror or str(error) or type(error).__name__
    if error.errno in SCARCE:
        return f"this machine gives no more: {said}"
    return said if error.filename is None else f"{os.fsdecode(error.filename)}: {said}"


def _of_ours(error: Exception) -> str:
    """A defect in a line: what, and where in our files it came up."""
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if Path(one.filename).is_relative_to(SOURCES)] or frames
    place = Path(ours[-1].filename)
    place = place.relative_to(SOURCES) if place.is_relative_to(SOURCES) else place
    return (
        f"{said} ({place}, line {ours[-1].lineno}): a defect of moereplay, please report it; "
        f"{TRACEBACK}=1 shows all of it"
    )


def _complain(*lines: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens
        for line in lines:
            print(screen.error_line(line), file=sys.stderr)


def _explain(error: Any, words: Sequence[str]) -> None:
    """Say in a line what is wrong with the command's words; without any, show what there is."""
    text = error.format_message()
    if not words or not text:
        error.show()
        return
    given: Any = getattr(error.__cause__, "errors", list)()  # of pydantic, which the text lacks
    got = f"; got {value_text(given[0]['input'])}" if given else ""
    help_of = f". See `{error.ctx.command_path} --help`" if error.ctx else ""
    _complain(f"{text.rstrip('.')}{got}{help_of}")
