"""Text for people: escaped, for names and titles come from strangers; imports nothing of ours.

A trace, a result or a study may say in its title what steers a terminal: clears it, renames its
window, sets text from right to left. `guard` lets nothing of that out of the process, whoever
prints it; the colours of tables and bars go around it, through `show` and `terminal`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

PIPED_WIDTH = 100
"""Characters in a line of what is printed into a pipe or a file."""
LONGEST_ERROR = 2000  # characters: what is given may be longer than what there is to say


def plain(text: str) -> str:
    r"""Text without control characters.

    Parameters
    ----------
    text
        Any; line breaks, tabs and spaces of any width stay.

    Examples
    --------
    >>> print(plain("\x1b[2Jtitle"))
    \x1b[2Jtitle
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(c if _is_harmless(c) else ascii(c)[1:-1] for c in text)


def error_line(text: str) -> str:
    """Put an error into words for a terminal: what it begins and ends with, where it is long.

    Parameters
    ----------
    text
        What was given, what is possible, where; control characters are left out.
    """
    said = plain(text)
    if len(said) > LONGEST_ERROR:
        half = LONGEST_ERROR // 2
        said = f"{said[:half]} ... {said[-half:]}"
    return f"error: {said}"


def _is_harmless(c: str) -> bool:
    return c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs"


class _Stream(io.TextIOBase):
    """A stream of text that escapes what steers a terminal, and remembers why it failed.

    Parameters
    ----------
    stream
        Where it goes.
    is_escaped
        Whether it escapes; else it is the way around.
    """

    def __init__(self, stream: TextIO, *, is_escaped: bool = True) -> None:
        self.stream = stream
        self._own_failure: OSError | None = None
        self.behind = _Stream(stream, is_escaped=False) if is_escaped else None

    def write(self, text: str) -> int:
        """Write text; returns the characters that were given."""
        with self._note():
            self.stream.write(plain(text) if self.behind else text)
        return len(text)

    def flush(self) -> None:
        """Hand on what is buffered."""
        with self._note():
            self.stream.flush()

    @property
    def failure(self) -> OSError | None:
        """Error of the last attempt to write, here or on the way around; None if all is well."""
        return self._own_failure or (self.behind.failure if self.behind else None)

    def isatty(self) -> bool:
        """Tell whether somebody watches."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """Number of the open file."""
        return self.stream.fileno()

    def writable(self) -> bool:
        """Tell that it can be written to: always."""
        return True

    @contextlib.contextmanager
    def _note(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._own_failure = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)  # encoding, buffer and whatever else a stream has


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Escape what is printed within, on standard output and standard error."""
    for name in ("COLUMNS", "LINES"):
        if not _is_size(os.environ.get(name, "")):
            os.environ.pop(name, None)  # rich takes anything for a number, and fills such lines
    with contextlib.ExitStack() as stack:
        for redirect, stream in (
            (contextlib.redirect_stdout, sys.stdout),
            (contextlib.redirect_stderr, sys.stderr),
        ):
            if stream is None:  # it was closed before the process began
                stream = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal may know ASCII alone
            stack.enter_context(redirect(cast(TextIO, _Stream(stream))))
        yield


def failure() -> OSError | None:
    """Reason why standard output or standard error could not be written within `guard`, if any.

    From then on it leads nowhere: the interpreter would try again at its end, and complain.
    """
    reason = None
    for one in (sys.stdout, sys.stderr):
        if isinstance(one, _Stream) and one.failure:
            reason = reason or one.failure
            with Path(os.devnull).open("wb") as nowhere, contextlib.suppress(OSError, ValueError):
                os.dup2(nowhere.fileno(), one.fileno())
    return reason


def terminal(stream: TextIO) -> TextIO:
    """The stream itself, not guarded, for output that moves the cursor on purpose.

    Parameters
    ----------
    stream
        Standard output or standard error.
    """
    return cast(TextIO, stream.behind) if isinstance(stream, _Stream) else stream


def show(*contents: Any, width: int | None = None, **options: Any) -> None:
    """Print text, tables and what else ``rich`` has, as wide as the terminal.

    Parameters
    ----------
    contents
        Texts have no markup: use ``rich.text.Text``.
    width
        In characters, where there is no terminal; None for ``COLUMNS``, or 100.
    options
        Of ``rich.console.Console.print``, such as ``style``.
    """
    file = terminal(sys.stdout)
    as_it_is = {"highlight": False, "markup": False, "emoji": False}
    console = _console_class()(file=file, **as_it_is)
    if console.is_terminal:
        console.print(*contents, **options)
        return
    kept = io.StringIO()
    width = width or piped_width()
    console = _console_class()(file=kept, width=width, **as_it_is)
    console.print(*contents, **options)
    # Who reads a pipe or a file does not want the blanks that fill a screen's lines.
    file.write("".join(f"{line.rstrip()}\n" for line in kept.getvalue().splitlines()))


def piped_width() -> int:
    """Characters in a line where no terminal says how wide it is: ``COLUMNS``, or 100."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if _is_size(columns) else PIPED_WIDTH


def _is_size(text: str) -> bool:
    """Tell whether a number of characters or lines is one that a screen may have."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) > 0


@functools.cache
def _console_class() -> Any:
    """A console that escapes all text; made late, for to import ``rich`` takes a while."""
    from rich.console import Console
    from rich.segment import Segment

    class EscapingConsole(Console):
        def render(self, *arguments: Any, **named: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **named):
                is_text = not segment.control
                yield Segment(plain(segment.text), segment.style) if is_text else segment

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command says how it ends

    return EscapingConsole
