"""``moereplay``: the one console command, and the sub-commands that replay."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import typer

import hwmodel.cli
import replay.cli.diff
import replay.cli.imitate
import replay.cli.place
import replay.cli.replays
import replay.cli.schemes
import replay.cli.sweep
import replay.cli.validate
import tracegen.cli
from replay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # "[...]" in a help text is no markup
    help="Replay Mixture-of-Experts routing under every communication scheme.",
)
tracegen.cli.app.command()(replay.cli.imitate.imitate)
app.add_typer(tracegen.cli.app, name="trace")
app.add_typer(hwmodel.cli.app, name="hardware")
app.command()(replay.cli.replays.run)
app.command()(replay.cli.replays.compare)
app.command()(replay.cli.diff.diff)
app.command()(replay.cli.place.place)
app.command()(replay.cli.schemes.schemes)
app.command()(replay.cli.validate.validate)
app.command()(replay.cli.sweep.sweep)

# Typer keeps a copy of click of its own and exports only some of its errors.
UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]  # not None


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command: exit code 0, 2 for the user's mistake, 1 for ours."""
    try:
        code = app(
            args=None if argv is None else list(argv), prog_name="moereplay", standalone_mode=False
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except UsageError as error:
        _explain(error)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output has gone, as in `moereplay ... | head`
        sys.stderr.close()
        raise SystemExit(0) from None
    raise SystemExit(code or 0)


def _explain(error: Any) -> None:
    """Say in a line what is wrong with the command's words; without any, show what there is."""
    text = error.format_message()
    if not sys.argv[1:] or not text:
        error.show()
        return
    help_of = f". See `{error.ctx.command_path} --help`" if error.ctx else ""
    print(f"error: {text.rstrip('.')}{help_of}", file=sys.stderr)
