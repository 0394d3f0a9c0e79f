"""From a result of any kind to its page, and the skeleton that pages have."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.text import Text

from replay.errors import UserError, value_text
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.base.result import ComparisonBase, ResultBase
from tracegen.shared.display.content import Bars, Heat, Page, Plot, Section, Table, Waterfall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from tracegen.shared.display.content import Item

ITEMS = (Table, Bars, Plot, Heat, Waterfall, str)
MAKERS: dict[str, str] = {
    "Difference": "replay.studies.differences.page",
    "SavedSweep": "replay.studies.sweeps.page",
    "SavedValidation": "replay.studies.validate.page",
    "SweepResult": "replay.studies.sweeps.page",
    "Explanation": "replay.studies.differences.explanation_page",
    "Sureness": "replay.studies.uncertainty.page",
}
"""Modules whose `page` shows what studies give, by the name of its class."""


def page(result: Any) -> Page:
    """Make the page of a result.

    Parameters
    ----------
    result
        What a replay, a study or a validation gave.

    Raises
    ------
    UserError
        If there is no page for such a thing.
    """
    if isinstance(result, ResultBase | ComparisonBase):
        found: Page = importlib.import_module(home_of(type(result))).page(result)
        return found
    for kind in type(result).__mro__:
        if kind.__name__ in MAKERS:
            made: Page = importlib.import_module(MAKERS[kind.__name__]).page(result)
            return made
    there = ", ".join([*EXPERIMENTS, *MAKERS])
    message = f"there is no report of {value_text(result)}; of these there is: {there}"
    raise UserError(message)


def home_of(kind: type[BaseModel]) -> str:
    """Find the module whose `page` shows results of a class: that of the experiment's folder.

    Raises
    ------
    UserError
        If the class is of no experiment.
    """
    for experiment in EXPERIMENTS.values():
        if issubclass(kind, experiment.documents()):
            return f"{type(experiment).__module__.rpartition('.')[0]}.page"
    message = f"there is no report of {kind.__name__}; of these there is: {', '.join(EXPERIMENTS)}"
    raise UserError(message)


def there(*items: Item | RenderableType | None) -> list[Item]:
    """Items that are neither None nor empty; text of a screen as paragraphs."""
    found = [one.plain if isinstance(one, Text) else one for one in items]
    return [one for one in found if isinstance(one, ITEMS) and one != ""]


def filled_page(title: str, summary: str, sections: Iterable[Section], command: str) -> Page:
    """Make a page of the sections that have something in them."""
    return Page(title, summary, [one for one in sections if one.items], command)
