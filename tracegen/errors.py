"""What a user did wrong, said in one or two lines."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what was given: an unknown name, a bad value, a damaged file.

    The message says what was given, what is possible, and where (file, dataset,
    row). The command line prints it as it stands and exits with code 2.
    """


def unknown_name(what: str, given: str, known: Iterable[str]) -> UserError:
    """Error for a name that is not in a list, with the nearest known one.

    Parameters
    ----------
    what
        The kind of thing that was named, e.g. ``"model"``.
    given
        The name as the user wrote it.
    known
        Every name that would have worked.

    Returns
    -------
    The error, to be raised by the caller.

    Examples
    --------
    >>> print(unknown_name("model", "mixtrel", ["mixtral", "olmoe"]))
    unknown model 'mixtrel' (did you mean 'mixtral'?); known: mixtral, olmoe
    """
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UserError(f"unknown {what} {given!r}{hint}; known: {', '.join(names) or 'none'}")
