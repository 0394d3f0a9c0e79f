"""File objects that HDF5 reads through, whose callbacks may neither raise nor deliver too little.

HDF5 calls the object back from C, does not expect an exception there and takes what is in the
buffer for the file: either ends the process sooner or later. What fails is therefore kept until
the call of HDF5 has returned, and what was made of the zeros that HDF5 got instead is thrown away.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from tracegen.file.seekable import SeekableReader
from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DeferredFile(SeekableReader):
    """A file object for HDF5: every read is whole, what fails is raised after the call.

    Parameters
    ----------
    source
        To be read; may raise whatever it likes, or deliver in pieces.
    name
        Its name in errors.
    file_bytes
        Its size.
    """

    def __init__(self, source: BinaryIO, name: str, file_bytes: int) -> None:
        super().__init__(file_bytes)
        self.name = name
        self._source = source
        # Not the error itself: its traceback would keep HDF5's objects, and they this one.
        self._failure: tuple[type[BaseException], str] | None = None

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer; with zeros behind the end of the file, and once anything has failed.

        Parameters
        ----------
        buffer
            To fill.
        """
        view = memoryview(buffer).cast("B")
        try:
            filled = 0 if self._failure else self._take(view)
        except Exception as error:
            said = str(error) if isinstance(error, UserError) else f"{self.name}: {_wording(error)}"
            self._failure, filled = (UserError, said), 0
        except BaseException as error:  # Ctrl-C ends the call of HDF5, and then us
            self._failure, filled = (type(error), ""), 0
        view[filled:] = bytes(len(view) - filled)
        self._at += len(view)
        return len(view)

    def _take(self, view: memoryview) -> int:
        """Bytes that the source had; all that the file has, or an error."""
        wanted = max(0, min(len(view), self._size - self._at))
        self._source.seek(self._at)
        filled = 0
        while filled < wanted:
            number = self._piece(view[filled:wanted])
            if not 0 < number <= wanted - filled:
                message = f"{self.name}: {filled} of {wanted} bytes arrived"
                raise UserError(message)
            filled += number
        return filled

    def _piece(self, view: memoryview) -> int:
        """Read once; how many bytes that gave."""
        if hasattr(self._source, "readinto"):
            return self._source.readinto(view) or 0
        piece = self._source.read(len(view)) or b""
        view[: len(piece)] = piece
        return len(piece)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise, after calls of HDF5, what failed in them, whatever HDF5 made of it."""
        try:
            yield
        except BaseException as error:
            # An open file, or how to open it, that is left to the end of the process calls back
            # when there is no interpreter any more.
            traceback.clear_frames(error.__traceback__)
            if self._failure is None:
                raise
        if self._failure is not None:
            kind, message = self._failure
            raise kind(message)


def _wording(error: Exception) -> str:
    return str(error) or type(error).__name__
