"""A remote file that looks like a local one, so that part of a trace can be read in place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from tracegen.file.seekable import SeekableReader
from tracegen.library.watch import ConnectionLoss
from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tracegen.library.transport import RemoteSource

PAGE_BYTES = 64 * 2**10
"""Bytes fetched at least: the header of a trace takes about two such pages."""
MAX_AHEAD_PAGES = 8
"""Pages fetched at most beyond what was asked for (512 KiB) while reading proceeds in order."""
MAX_PAGES = 512
"""Pages kept (32 MiB)."""


class RemoteFile(SeekableReader):
    """A seekable, read-only view of a remote file, by ranges, with a small cache.

    Parameters
    ----------
    source
        Remote file whose size is known.
    retry
        Calls a function again while it raises :class:`ConnectionLoss`.
    """

    def __init__(self, source: RemoteSource, retry: Callable[[Callable[[], bytes]], bytes]) -> None:
        if source.size is None:
            msg = f"{source.url}: the server does not say how large it is"
            raise UserError(msg)
        super().__init__(source.size)
        self.name = source.url
        """Name of the file in errors."""
        self.requests = 0
        """Ranges asked for so far."""
        self.fetched_bytes = 0
        """Bytes received so far."""
        self._source = source
        self._retry = retry
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._next, self._ahead = -1, 1

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer as far as the file reaches.

        Parameters
        ----------
        buffer
            To fill; in part only where the file ends.

        Raises
        ------
        UserError
            If the bytes cannot be had.
        """
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self._size)
        filled = 0
        while self._at < stop:
            page, offset = divmod(self._at, PAGE_BYTES)
            data = self._page(page, (stop - 1) // PAGE_BYTES)[offset : offset + stop - self._at]
            view[filled : filled + len(data)] = data
            filled += len(data)
            self._at += len(data)
        return filled

    def _page(self, number: int, last: int) -> bytes:
        """One page, from the cache or fetched with those that are wanted or will follow."""
        if number not in self._pages:
            # Readers go through a layer's chunks in the order of the file.
            self._ahead = min(2 * self._ahead, MAX_AHEAD_PAGES) if number == self._next else 1
            wanted = min(max(self._ahead, last - number + 1), MAX_PAGES // 2)
            start = number * PAGE_BYTES
            stop = min(start + wanted * PAGE_BYTES, self._size)
            data = self._fetch(start, stop)
            for first in range(0, len(data), PAGE_BYTES):
                self._pages[number + first // PAGE_BYTES] = data[first : first + PAGE_BYTES]
            self._next = number + wanted
            while len(self._pages) > MAX_PAGES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(number)
        return self._pages[number]

    def _fetch(self, start: int, stop: int) -> bytes:
        """Bytes of the source."""
        self.requests += 1
        self.fetched_bytes += stop - start
        try:
            data = self._retry(lambda: self._source.read(start, stop))
        except ConnectionLoss as error:
            message = f"{self.name}: {error}"
            raise UserError(message) from error
        if len(data) != stop - start:
            # A short page would be asked for again and again.
            message = f"{self.name}: {len(data)} of {stop - start} bytes arrived"
            raise UserError(message)
        return data
