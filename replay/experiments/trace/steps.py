"""Selection of a trace's steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from replay.chains.layer_sampling import choose
from replay.errors import UserError
from replay.experiments.base.spec import MOST

if TYPE_CHECKING:
    from replay.chains.layer_sampling import LayerSample

POSSIBLE = (
    "a number of steps as one chain (10); or steps one by one: all, FROM:TO (without TO), "
    "FROM:TO:EVERY, a list (0,5,9), sample:N"
)
NUMBER = r"\d{1,10}"


def normal_form(given: str) -> str:
    """Give the plainest text that asks for the same steps of any trace.

    Raises
    ------
    ValueError
        If it asks for none.

    Examples
    --------
    >>> normal_form("9,0,5,5"), normal_form("10:50:1"), normal_form("0:")
    ('0,5,9', '10:50', 'all')
    """
    text = given.replace(" ", "")
    for form, read in _FORMS.items():
        found = re.fullmatch(form, text)
        made = None if found is None else read(found)
        if made is not None:
            return made
    message = f"steps {given!r}: possible are {POSSIBLE}"
    raise ValueError(message)


def _range(found: re.Match[str]) -> str | None:
    begin, end, every = int(found[1] or 0), found[2], int(found[3] or 1)
    if not every or (end and int(end) <= begin) or max(begin, int(end or 0)) > MOST:
        return None
    if not begin and not end and every == 1:
        return "all"
    return f"{begin}:{int(end) if end else ''}" + (f":{every}" if every > 1 else "")


def _list(found: re.Match[str]) -> str | None:
    steps = sorted({int(one) for one in found[0].split(",") if one})
    return None if steps[-1] > MOST else ",".join(map(str, steps)) + "," * (len(steps) == 1)


def _sample(found: re.Match[str]) -> str | None:
    return f"sample:{int(found[1])}" if 2 <= int(found[1]) <= MOST else None


_FORMS: Mapping[str, Callable[[re.Match[str]], str | None]] = {
    "all": lambda _: "all",
    rf"({NUMBER})?:({NUMBER})?(?::({NUMBER}))?": _range,
    rf"{NUMBER},|{NUMBER}(?:,{NUMBER})+": _list,
    rf"sample:({NUMBER})": _sample,
}


def step_numbers(steps: str, number: int) -> tuple[list[int], LayerSample | None]:
    """Give the steps that are replayed, in order; of a sample also how it was drawn.

    A sample is drawn from stretches of the trace, two steps or three of each.

    Parameters
    ----------
    steps
        In normal form.
    number
        Steps of the trace.

    Raises
    ------
    UserError
        If the trace lacks one of them.

    Examples
    --------
    >>> step_numbers("2:8:3", 10)[0], step_numbers("8:", 10)[0]
    ([2, 5], [8, 9])
    """
    kind, _, rest = steps.partition(":")
    if kind == "sample" and int(rest) < number:
        sample = choose([(float(step),) for step in range(number)], int(rest))
        return sample.places.tolist(), sample
    if kind in ("all", "sample"):
        return list(range(number)), None
    if "," in steps:
        found = [int(one) for one in steps.split(",") if one]
        last = found[-1]
    else:
        begin, end, *every = steps.split(":")
        last = int(end) - 1 if end else int(begin or 0)
        found = list(range(number))[int(begin or 0) :: int(every[0]) if every else 1]
        found = [step for step in found if step <= last or not end]
    if last >= number:
        message = f"steps {steps}: the trace has {number} of this size, 0..{number - 1}"
        raise UserError(message)
    return found, None
