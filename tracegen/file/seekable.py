"""The position of a file object that is read at any place."""

from __future__ import annotations

import io
import os


class SeekableReader(io.RawIOBase):
    """A file to be read whose position is a number; what derives from it fills buffers.

    Parameters
    ----------
    file_bytes
        Its size.
    """

    def __init__(self, file_bytes: int) -> None:
        self._size, self._at = file_bytes, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be moved in."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position; the source is moved when it is read.

        Parameters
        ----------
        offset, whence
            As for any file.
        """
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        """Position, in bytes."""
        return self._at
