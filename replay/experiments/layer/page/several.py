"""Several results on one page: two side by side, more as a comparison of one work, or else in turn."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from replay.errors import UserError
from replay.experiments.base.names import row_names
from replay.experiments.layer.experiment import EXPERIMENT
from replay.experiments.layer.page.side_by_side import are_of_one_kind, side_by_side
from replay.experiments.layer.result import Comparison, Result
from replay.report.pages import page
from tracegen.shared.display.content import Column, Page, Section, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracegen.shared.display.content import Item


def page_of_several(results: Mapping[str, Any], command: str = "") -> Page:
    """Make one page of several results.

    Parameters
    ----------
    results
        By the name of its file.
    command
        The command line that makes a page of two of one experiment, side by side; others stand one
        behind the other.

    Raises
    ------
    UserError
        If there is no page for one of them, or one is damaged where its schema does not say so.
    """
    if len(results) == 2 and are_of_one_kind(*results.values()):
        names, both = list(results), list(results.values())
        return _make(" or ".join(names), lambda: side_by_side(names, both, command))
    compared = as_comparison(list(results.values())) if len(results) > 1 else None
    if compared is not None:
        return _make("the comparison of them", lambda: page(compared))
    made = {name: _make(name, functools.partial(page, one)) for name, one in results.items()}
    return join_pages(made) if len(made) > 1 else next(iter(made.values()))


def _make(name: str, make: Callable[[], Page]) -> Page:
    """Make the page of what may have been written by anybody."""
    try:
        return make()
    except UserError as error:
        message = f"{name}: {error}"
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        message = f"{name} is damaged: {type(error).__name__}: {error}"
    raise UserError(message)


def as_comparison(results: Sequence[Any]) -> Comparison | None:
    """Put results of the same work together; None if they are not, or two have one name."""
    ones = [one for one in results if isinstance(one, Result)]
    works = [_work(one) for one in ones]
    if len(ones) < len(results) or any(work != works[0] for work in works):
        return None
    names = row_names(ones)
    if len(set(names)) < len(names):
        return None
    return Comparison(baseline=EXPERIMENT.baseline(ones), results=ones)


def _work(result: Result) -> tuple[Any, ...]:
    """Inputs that results must share to be compared: routing, machine, layers, numbers."""
    return (
        result.trace.content_id,
        result.system,
        result.batch,
        result.types,
        result.chain is None,
        [(layer.step, layer.layer_index, layer.is_backward) for layer in result.replayed_layers],
    )


def join_pages(pages: Mapping[str, Page]) -> Page:
    """Put pages one behind the other, their sections under the names of their files."""
    columns = [Column("file"), Column("is")]
    rows = [(name, one.title) for name, one in pages.items()]
    sections = [Section("What is here?", [Table("files", "Results", columns, rows)])]
    for number, (name, one) in enumerate(pages.items(), 1):
        says = [one.summary, *([f"Made again by: {one.command}"] if one.command else [])]
        for section in one.sections:
            items = [*says, *(_rename(item, number) for item in section.items)]
            sections.append(Section(f"{name}: {section.title}", items, section.is_detail))
            says = []
    return Page(
        title=f"{len(pages)} results",
        summary="; ".join(one.title for one in pages.values()) + ".",
        sections=sections,
    )


def _rename(item: Item, number: int) -> Item:
    """The same under a name that no other page has."""
    if isinstance(item, str):
        return item
    return dataclasses.replace(item, name=f"{number}-{item.name}")
