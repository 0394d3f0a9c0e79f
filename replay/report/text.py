"""Results as plain text, as a terminal shows them."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console

from replay.errors import check_kind
from replay.experiments.base.experiment import EXPERIMENTS
from tracegen.shared.screen import PIPED_WIDTH, plain

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(content: RenderableType, width: int = PIPED_WIDTH) -> str:
    """Draw anything that rich can as plain text, in lines of at most so many characters."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False)
    console.print(content, highlight=False)
    return "\n".join(line.rstrip() for line in plain(out.getvalue()).splitlines()) + "\n"


def summary(result: Any) -> str:
    """Give a result or a comparison as tables of plain text.

    Parameters
    ----------
    result
        What `replay.run`, `replay.compare` or `replay.load_result` gave, or those of another
        experiment.

    Raises
    ------
    UserError
        If it is something else.
    """
    for experiment in EXPERIMENTS.values():
        if isinstance(result, experiment.documents()):
            return render(experiment.screen_tables(result, details=True))
    check_kind("result", result, (), "a Result or a Comparison")
    raise AssertionError
