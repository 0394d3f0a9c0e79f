"""Bytes of remote files: HTTP by the standard library, every other protocol through fsspec."""

from __future__ import annotations

import contextlib
import functools
import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from tracegen.library import watch
from tracegen.library.catalogue import check_url
from tracegen.library.watch import ConnectionLoss, LimitBreach
from tracegen.shared.errors import UserError

BLOCK_BYTES = 2**20
"""Bytes read at a time when a whole file is transferred."""
LONGEST_REASON = 200
"""Characters of what a server says that a message shows."""


class ConnectionRefusal(ConnectionLoss):
    """Refusal of a connection: nobody listens at the address."""


class RemoteSource(Protocol):
    """A remote file."""

    url: str
    size: int | None
    """In bytes; None if the server does not say."""
    validator: str
    """Text that changes when the file does; empty if the server gives none."""
    has_ranges: bool
    """Whether parts can be read; else the server sends whole files only."""

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes of a range.

        Raises
        ------
        ConnectionLoss, UserError
        """

    def stream(self, start: int) -> Iterator[bytes]:
        """Blocks from a position on; first an empty one if the server starts at 0 instead.

        Raises
        ------
        ConnectionLoss, UserError
        """


def connect(url: str) -> RemoteSource:
    """A remote file, its size known if the server says.

    Parameters
    ----------
    url
        Of the file.

    Raises
    ------
    UserError
        If the protocol is unknown, or there is no such file.
    ConnectionLoss
        If the server cannot be reached just now.
    """
    check_url(url)
    protocol = url.partition("://")[0].lower()
    return HttpSource(url) if protocol in ("http", "https") else FsspecSource(url)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirections, but neither to other protocols nor from HTTPS back to HTTP."""

    max_redirections = 5

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        # urllib has parsed the address, and refuses one that is none.
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new == "http"):
            problem = f"{req.full_url}: redirected to {newurl[:200]!r}, which is not followed"
            raise UserError(problem)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS, by way of the proxies of the environment."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        *watch.handlers(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


class HttpSource:
    """A file on a web server.

    Parameters
    ----------
    url
        Of the file.

    Raises
    ------
    UserError
        If there is no such file.
    ConnectionLoss
        If the server cannot be reached just now.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.size: int | None = None
        self.validator = ""
        # One byte of the file: some servers answer HEAD otherwise than GET, or not at all.
        with self._first_contact() as answer:
            self.has_ranges = answer.status == 206
            self.size = _total(answer)
            headers = answer.headers
            self.validator = headers.get("ETag") or headers.get("Last-Modified") or ""

    @contextlib.contextmanager
    def _first_contact(self) -> Iterator[http.client.HTTPResponse]:
        """An answer, or at once that there is no server: a busy one may have time later, it not."""
        try:
            with self._get("bytes=0-0") as answer:
                yield answer
        except ConnectionRefusal as error:
            problem = f"{self.url}: {error}; no server listens there"
            raise UserError(problem) from error

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes of a range.

        Parameters
        ----------
        start, stop
            Positions in the file, in bytes.

        Raises
        ------
        ConnectionLoss
            If the connection failed.
        UserError
            If the file is gone, or changed since it was opened, or the server knows no ranges.
        """
        with self._get(f"bytes={start}-{stop - 1}") as answer:
            if answer.status != 206 or _first(answer) != start:
                # If-Range was refused: this is another file by now.
                msg = f"{self.url}: changed while it was read"
                raise UserError(msg)
            data = b"".join(_blocks(answer, stop - start))
        if len(data) != stop - start:
            msg = f"{len(data)} of {stop - start} bytes arrived"
            raise ConnectionLoss(msg)
        return data

    def stream(self, start: int) -> Iterator[bytes]:
        """Blocks from a position on; first an empty one if the server starts at 0 instead.

        Parameters
        ----------
        start
            Position in the file, in bytes.

        Raises
        ------
        ConnectionLoss
            If the connection failed; what arrived was handed out.
        UserError
            If the file is gone.
        """
        wanted = f"bytes={start}-" if start and self.has_ranges else None
        with self._get(wanted) as answer:
            if start and (answer.status != 206 or _first(answer) != start):
                yield b""
            yield from _blocks(answer, None)

    @contextlib.contextmanager
    def _get(self, byte_range: str | None) -> Iterator[http.client.HTTPResponse]:
        """An answer of the server, errors sorted into those to retry and the user's."""
        headers = {"User-Agent": "moereplay", "Accept-Encoding": "identity"}
        if byte_range:
            headers["Range"] = byte_range
            if self.validator and not self.validator.startswith("W/"):
                headers["If-Range"] = self.validator
        request = urllib.request.Request(self.url, headers=headers)
        try:
            with contextlib.closing(_opener().open(request, timeout=watch.TIMEOUT_S)) as answer:
                yield answer
        except UserError:
            raise
        except urllib.error.HTTPError as error:
            error.close()
            said = f"the server answered {error.code} {_line(error.reason)}"
            if error.code in (408, 425, 429) or error.code >= 500:
                raise ConnectionLoss(said) from error
            problem = f"{self.url}: {said}"
            raise UserError(problem) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, socket.gaierror | ValueError):
                problem = f"{self.url}: {error.reason}"
                raise UserError(problem) from error
            if isinstance(error.reason, ConnectionRefusedError):
                raise ConnectionRefusal("the connection was refused") from error
            raise ConnectionLoss(_line(error.reason)) from error
        except (http.client.InvalidURL, ValueError, LimitBreach) as error:  # of a redirection, too
            problem = f"{self.url}: {_line(error)}"
            raise UserError(problem) from error
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLoss(_line(error)) from error


def _line(said: object) -> str:
    """Message of a server or a library, on one line."""
    text = " ".join(str(said).split()) or type(said).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def _blocks(answer: http.client.HTTPResponse, most: int | None) -> Iterator[bytes]:
    """Body of an answer, as it comes."""
    total = 0
    while most is None or total < most:
        # read1 hands out what is there: a server that sends a byte a second cannot block it.
        block = answer.read1(BLOCK_BYTES if most is None else min(BLOCK_BYTES, most - total))
        if not block:
            break
        total += len(block)
        yield block


def _total(answer: http.client.HTTPResponse) -> int | None:
    """Size of the file, from an answer to a request for its first byte."""
    if answer.status == 206:
        match = re.fullmatch(r"bytes \d+-\d+/(\d{1,18})", answer.headers.get("Content-Range", ""))
        return int(match[1]) if match else None
    length = answer.headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"\d{1,18}", length) else None


def _first(answer: http.client.HTTPResponse) -> int | None:
    """Position of the first byte of a partial answer."""
    match = re.match(r"bytes (\d{1,18})-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


class FsspecSource:
    """A file in any file system that fsspec knows: S3, the Hugging Face Hub, ...

    Parameters
    ----------
    url
        Of the file.

    Raises
    ------
    UserError
        If a package is missing, or there is no such file.
    ConnectionLoss
        If the service cannot be reached just now.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        protocol = url.partition("://")[0]
        try:
            import fsspec
        except ImportError as error:
            msg = f"{url}: {protocol} needs fsspec: pip install 'moereplay[remote]'"
            raise UserError(msg) from error
        with self._errors():
            try:
                self._system, self._path = fsspec.core.url_to_fs(url)
            except (ImportError, ValueError) as error:
                # fsspec says which package to install.
                msg = f"{url}: {error}"
                raise UserError(msg) from error
            info = self._system.info(self._path)
        size = info.get("size")
        self.size: int | None = size if isinstance(size, int) else None
        version = info.get("ETag") or info.get("blob_id") or info.get("LastModified") or ""
        self.validator = str(version)
        self.has_ranges = True

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes of a range.

        Parameters
        ----------
        start, stop
            Positions in the file, in bytes.

        Raises
        ------
        ConnectionLoss
            If they did not arrive.
        UserError
            If the file is gone.
        """
        with self._errors():
            data = bytes(self._system.cat_file(self._path, start=start, end=stop))
        if len(data) != stop - start:
            msg = f"{len(data)} of {stop - start} bytes arrived"
            raise ConnectionLoss(msg)
        return data

    def stream(self, start: int) -> Iterator[bytes]:
        """Blocks from a position on.

        Parameters
        ----------
        start
            Position in the file, in bytes.

        Raises
        ------
        ConnectionLoss
            If the connection failed; what arrived was handed out.
        UserError
            If the file is gone, or its size is unknown.
        """
        if self.size is None:
            msg = f"{self.url}: its size is unknown"
            raise UserError(msg)
        step = 4 * BLOCK_BYTES  # a request each
        for first in range(start, self.size, step):
            yield self.read(first, min(first + step, self.size))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Sort errors into those to retry and the user's."""
        try:
            yield
        except (UserError, ConnectionLoss):
            raise
        except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
            msg = f"{self.url}: {error.strerror or type(error).__name__}"
            raise UserError(msg) from error
        except Exception as error:
            # Every service has its own exceptions, and fsspec hands them through.
            lines = str(error).strip().splitlines()
            raise ConnectionLoss(lines[0] if lines else type(error).__name__) from error
