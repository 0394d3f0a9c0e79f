"""HTTP of which every byte is counted: an answer is limited in time and in bytes.

`http.client` waits for a server as long as each of its bytes comes in time, and reads as many
heads, trailers and extensions of chunks as are sent. All that it reads goes through a `TransferWatch`.
"""

from __future__ import annotations

import functools
import http.client
import io
import math
import os
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Buffer

TIMEOUT_S = 30.0
"""Silence after which a connection is given up, and time for the head of an answer, in seconds."""
MIN_BYTES_PER_S = 1000
"""Slowest transfer that is put up with, over any :data:`PATIENCE_S`."""
PATIENCE_S = 60.0
"""Time over which the rate is taken, in seconds."""
FRAME_BYTES = 2**20
"""Bytes that a server may send around the content, besides :data:`FRAME_SHARE` of each of its."""
FRAME_SHARE = 8
"""A chunk of a single byte takes six bytes."""

ENV_SECONDS = "MOEREPLAY_DOWNLOAD_S"
ENV_MEGABYTES = "MOEREPLAY_DOWNLOAD_MB"
_DEFAULTS = {ENV_SECONDS: 3600.0, ENV_MEGABYTES: 256.0}


class ConnectionLoss(Exception):
    """Failure of a connection that may not happen again: another attempt makes sense."""


class LimitBreach(Exception):
    """Breach of a limit by the server; another attempt would end the same."""


def time_limit(name: str) -> float:
    """Limit of one transfer, from the environment: seconds, or megabytes.

    Parameters
    ----------
    name
        :data:`ENV_SECONDS`, or :data:`ENV_MEGABYTES` for what does not say how large it is.

    Raises
    ------
    UserError
        If the environment says what is no positive number.
    """
    given = os.environ.get(name) or str(_DEFAULTS[name])
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        message = f"{name} = {given!r}: expected a positive number"
        raise UserError(message)
    return value


class TransferWatch:
    """Bytes that have come over one connection, and the time they took.

    Attributes
    ----------
    content
        Bytes of the body that were handed on.
    """

    def __init__(self) -> None:
        self.content = 0
        self._has_head = False
        self._most_s = time_limit(ENV_SECONDS)
        self._waited = self._since = 0.0  # of the server only: who asked may take its time
        self._arrived = self._content_since = 0

    def begin_body(self) -> None:
        """Note that the head is complete."""
        self._has_head, self._since = True, self._waited

    def receive(self, connection: socket.socket, read: Callable[[], int | None]) -> int | None:
        """Read once from a connection.

        Raises
        ------
        ConnectionLoss
            If it only trickles.
        LimitBreach
            If the answer has taken too long, or is far more than its content.
        TimeoutError
            If nothing has come.
        """
        connection.settimeout(max(0.001, min(TIMEOUT_S, self._most_s - self._waited)))
        began = time.monotonic()
        try:
            number = read()
        finally:
            self._waited += time.monotonic() - began
            if self._waited > self._most_s:
                message = f"not finished after {self._most_s:g} s; {ENV_SECONDS} allows more"
                raise LimitBreach(message)
        self._arrived += number or 0
        self._check_pace()
        if self._arrived > FRAME_BYTES + (1 + FRAME_SHARE) * self.content:
            message = f"the server sent {self._arrived} bytes for {self.content} bytes of content"
            raise LimitBreach(message)
        return number

    def _check_pace(self) -> None:
        elapsed = self._waited - self._since
        if not self._has_head and elapsed > TIMEOUT_S:
            message = f"the head of the answer was not complete after {TIMEOUT_S:g} s"
            raise LimitBreach(message)
        if elapsed > PATIENCE_S:
            if self.content - self._content_since < MIN_BYTES_PER_S * elapsed:
                message = f"slower than {MIN_BYTES_PER_S} bytes per second"
                raise ConnectionLoss(message)
            self._since, self._content_since = self._waited, self.content


class _WatchedStream(io.RawIOBase):
    """The bytes of a connection, each reading watched."""

    def __init__(self, raw: Any, connection: socket.socket, watch: TransferWatch) -> None:
        self._raw, self._connection, self._watch = raw, connection, watch

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int | None:
        return self._watch.receive(self._connection, lambda: self._raw.readinto(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class Answer(http.client.HTTPResponse):
    """An answer, watched from its first byte on."""

    def __init__(self, watch: TransferWatch, sock: socket.socket, *rest: Any, **options: Any) -> None:
        super().__init__(sock, *rest, **options)
        self._watch = watch
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_WatchedStream(raw, sock, watch))

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        self._watch.begin_body()

    def read1(self, n: int = -1) -> bytes:
        """Bytes of the body, after one reading from the connection at most."""
        block = super().read1(n)
        self._watch.content += len(block)
        return block


def handlers() -> tuple[urllib.request.BaseHandler, ...]:
    """HTTP and HTTPS, each connection with a `TransferWatch` of its own."""
    return _Http(), _Https(context=_context())


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watch(http.client.HTTPConnection), req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watch(http.client.HTTPSConnection), req, context=_context())


def _watch(kind: type[http.client.HTTPConnection]) -> Any:
    """Make connections whose answers, those of proxies too, are watched."""

    def make(host: str, **options: Any) -> http.client.HTTPConnection:
        connection = kind(host, **options)
        connection.response_class = functools.partial(Answer, TransferWatch())  # type: ignore[assignment]  # makes one
        return connection

    return make


@functools.cache
def _context() -> ssl.SSLContext:
    """Certificates that are believed; to read them takes longer than to connect."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
