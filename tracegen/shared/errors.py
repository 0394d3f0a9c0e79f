"""The one error for a user's mistake, in all packages; imports nothing of the product."""

import difflib
from collections.abc import Iterable, Sequence

LONGEST_LIST = 36
"""Names up to which a message lists them all."""
MOST_MEANT = 4
"""Names that begin with a given word up to which a message asks whether they are meant."""
SHOWN = 12
"""Names that a message shows of a longer list."""
LONGEST_VALUE = 60
"""Characters of a value that a message shows."""


class UserError(ValueError):
    """A mistake in what was given: an unknown name, a bad value, a damaged file.

    The message says in one or two lines what was given, what is possible, and where
    (file, dataset, row). The command line prints it without a traceback and exits with code 2.
    """


def quote_names(names: Iterable[str]) -> str:
    """Write names one after the other, in quotes where one has a comma.

    Parameters
    ----------
    names
        In their order.
    """
    names = list(names)
    return ", ".join(map(repr, names) if any("," in name for name in names) else names)


def unknown(what: str, given: str, known: Iterable[str], *, near: Sequence[str] = ()) -> UserError:
    """Error for a name that is not in a list.

    Parameters
    ----------
    what
        The kind of thing that was named, e.g. ``"model"``.
    given
        The name as the user wrote it.
    known
        Every name that would have worked.
    near
        Names that are probably meant; if empty, the few that begin with the given word and a hyphen, else
        the one that is spelt most alike.

    Returns
    -------
    The error, to be raised by the caller. Its message has the names that are probably meant,
    and all known ones. A list longer than :data:`LONGEST_LIST` is left out where a name is
    near, and cut after :data:`SHOWN` names where none is.

    Examples
    --------
    >>> print(unknown("model", "mixtrel", ["olmoe", "mixtral"]))
    unknown model 'mixtrel' (did you mean 'mixtral'?); known: mixtral, olmoe
    >>> print(unknown("key", "gpus", map(str, range(40))))
    unknown key 'gpus'; known: 0, 1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, ... (40 in all)
    >>> print(unknown("scheme", "nccl", ["deepep", "nccl-ep", "nccl-allgather"]))
    unknown scheme 'nccl' (did you mean 'nccl-allgather' or 'nccl-ep'?); known: deepep, nccl-allgather, nccl-ep
    >>> print(unknown("key", "391", map(str, range(40)), near=["39", "31"]))
    unknown key '391' (did you mean '39' or '31'?)
    """
    names = sorted(known)
    begun = [name for name in names if given and name.startswith(f"{given}-")]
    few = begun if len(begun) <= MOST_MEANT else []
    meant = near or few or difflib.get_close_matches(given, names, n=1)
    message = f"unknown {what} {given!r}"
    if meant:
        message += f" (did you mean {' or '.join(map(repr, meant))}?)"
    if len(names) <= LONGEST_LIST:
        message += f"; known: {quote_names(names) or 'none'}"
    elif not meant:
        message += f"; known: {quote_names(names[:SHOWN])}, ... ({len(names)} in all)"
    return UserError(message)


def value_text(value: object) -> str:
    """A value as a message shows it: on one line, and not all of a long one.

    Examples
    --------
    >>> value_text("a"), value_text(list(range(100)))
    ("'a'", '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16...')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def check_kind(what: str, given: object, kinds: type | tuple[type, ...], possible: str) -> None:
    """Refuse a value of another kind than a function takes, by the name of its parameter.

    Parameters
    ----------
    what
        The parameter.
    given
        Its value.
    kinds
        What it may be an instance of.
    possible
        The same in words.

    Raises
    ------
    UserError
        Naming the parameter, what was given and what is possible.

    Examples
    --------
    >>> check_kind("layers", 3, list, "positions such as [3]")
    Traceback (most recent call last):
    tracegen.shared.errors.UserError: layers = 3 (int): expected positions such as [3]
    """
    if not isinstance(given, kinds):
        message = f"{what} = {value_text(given)} ({type(given).__name__}): expected {possible}"
        raise UserError(message)
