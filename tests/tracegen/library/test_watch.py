"""A server may send what it likes for as long as it likes: every request ends, in one line."""

import contextlib
import itertools
import re
import socketserver
import threading
import time

import pytest

import tracegen
from tracegen import UserError
from tracegen.library import cache, watch

OK = b"HTTP/1.1 200 OK\r\n"
SIGNATURE = b"\x89HDF\r\n\x1a\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def slowly(data):
    for byte in data:
        time.sleep(0.02)
        yield bytes([byte])


def for_ever(*parts):
    yield parts[0]
    yield from itertools.repeat(parts[1] * (1 + 50_000 // len(parts[1])))


ANSWERS = {
    "a head, a byte at a time": (lambda: slowly(OK + b"X: y\r\n" * 99), "not complete after"),
    "a head without end": (lambda: for_ever(OK, b"X" * 999), "header line|bytes of content"),
    "not yet, for ever": (lambda: for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), r"bytes for 0 bytes of content"),
    "not yet, slowly": (lambda: slowly(b"HTTP/1.1 100 Continue\r\n\r\n" * 99), "not complete after"),
    "an extension of a chunk, slowly": (lambda: itertools.chain([CHUNKED], slowly(b"5;" + b"x" * 999)), "slower than"),
    "extensions of chunks without end": (
        lambda: for_ever(CHUNKED, b"1;" + b"x" * 60_000 + b"\r\n\x89\r\n"),
        "not HDF5|bytes for",
    ),
    "chunks of a byte, slowly": (
        lambda: itertools.chain([CHUNKED], slowly(b"1\r\n\x89\r\n" * 999)),
        "not HDF5|slower than",
    ),
    "trailers without end": (
        lambda: for_ever(CHUNKED + b"8\r\n" + SIGNATURE + b"\r\n0\r\n", b"X: y\r\n"),
        r"bytes for 8 bytes of content",
    ),
    "a body without end": (lambda: for_ever(OK + b"\r\n" + SIGNATURE, bytes(999)), "DOWNLOAD_MB allows more"),
    "a redirection without end": (
        lambda: for_ever(b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", bytes(999)),
        r"bytes for 0 bytes of content",
    ),
    "a redirection nowhere": (lambda: [b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n"], "Invalid IPv6 URL"),
    "a redirection to a number": (
        lambda: [b"HTTP/1.1 302 Found\r\nLocation: http://x:y/\r\n\r\n"],
        "nonnumeric port|port",
    ),
    "a redirection in circles": (lambda: [b"HTTP/1.1 302 Found\r\nLocation: /a.h5\r\n\r\n"], "infinite loop"),
    "a redirection to a file": (lambda: [b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"], "not allowed"),
    "a reason of lines": (lambda: [b"HTTP/1.1 404 a\x0bb\rc" + b"d" * 999 + b"\r\n\r\n"], "404"),
    "no HTTP": (lambda: [b"SSH-2.0-OpenSSH\r\n\r\n"], "SSH-2.0"),
    "an empty answer": (list, "closed connection"),
    "a chunk of no number": (lambda: [CHUNKED, b"zz\r\n"], "arrived|not HDF5|IncompleteRead"),
    "a negative length": (lambda: [OK + b"Content-Length: -5\r\n\r\n" + SIGNATURE], "HDF5"),
    "an absurd range": (lambda: [b"HTTP/1.1 206 P\r\nContent-Range: bytes 0-0/" + b"9" * 18 + b"\r\n\r\n"], "."),
}


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError):
            self.request.recv(65536)
            for part in ANSWERS[self.server.answer][0]():
                self.request.sendall(part)


@pytest.fixture
def hostile():
    """Address of a server that has the answer of its attribute `answer`."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def test_every_request_ends_whatever_the_server_sends(hostile, monkeypatch):
    monkeypatch.setattr(watch, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(watch, "PATIENCE_S", 0.3)
    monkeypatch.setattr(cache, "ATTEMPTS", 2)
    monkeypatch.setenv(watch.ENV_MEGABYTES, "8")
    url = f"http://127.0.0.1:{hostile.server_address[1]}/a.h5"
    wrong = []
    for hostile.answer, (_, reason) in ANSWERS.items():
        began = time.monotonic()
        with pytest.raises(UserError) as error, tracegen.open(url) as file:
            file.verify()
        said, took = str(error.value), time.monotonic() - began
        if not re.search(reason, said) or took > 10 or "\n" in said or len(said) > 400:
            wrong.append((hostile.answer, took, said))
    assert not wrong


def test_a_request_ends_when_its_time_is_over(hostile, monkeypatch):
    """However steadily it comes: the pace alone would let the largest file take years."""
    monkeypatch.setitem(
        ANSWERS, "steady", (lambda: itertools.chain([OK + b"\r\n" + SIGNATURE], slowly(bytes(999))), "")
    )
    monkeypatch.setattr(watch, "MIN_BYTES_PER_S", 1)
    monkeypatch.setenv(watch.ENV_SECONDS, "0.5")
    hostile.answer = "steady"
    url = f"http://127.0.0.1:{hostile.server_address[1]}/a.h5"
    with pytest.raises(UserError, match=r"not finished after 0.5 s; MOEREPLAY_DOWNLOAD_S allows"):
        tracegen.load(url)


def test_a_limit_is_a_positive_number(monkeypatch):
    for given in ("0", "-1", "nan", "inf", "many", "1e999"):
        monkeypatch.setenv(watch.ENV_SECONDS, given)
        with pytest.raises(UserError, match=r"MOEREPLAY_DOWNLOAD_S = .* expected a positive"):
            watch.time_limit(watch.ENV_SECONDS)
    monkeypatch.setenv(watch.ENV_SECONDS, "")
    assert watch.time_limit(watch.ENV_SECONDS) == 3600


def test_an_address_that_is_none_is_one_line():
    for url in (
        "http://[::1",
        "http://[::1]:x/a.h5",
        "http://a:99999/b",
        "http:///a",
        "http://",
        "http://a b/c",
        "http://\x00/",
        "http://a/\x00",
        "http://" + "a" * 70 + ".x/",
        "http://..",
        "ftp3://x/y",
        "http://\udcff/",
        "https://\u2160.\u00ad/",
        "http://a/\n",
    ):
        with pytest.raises(UserError) as error:
            tracegen.load(url)
        assert "\n" not in str(error.value), url
