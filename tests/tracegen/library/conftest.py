"""A web server on the loopback that can misbehave, and settings that touch no home folder."""

import contextlib
import re
import shutil
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tracegen
from tracegen.library import cache, publish, resolve, transport, watch


@dataclass
class Server:
    """Files by path, faults to commit, and what was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etag: str | None = '"one"'
    """None sends no validator at all."""
    length: bool = True
    """Whether Content-Length is sent."""
    status: list[int] = field(default_factory=list)
    """Answers to the next requests; then as usual."""
    cut: list[int | None] = field(default_factory=list)
    """Bytes of the next bodies after which the connection is cut; None: not."""
    redirect: dict[str, str] = field(default_factory=dict)
    spoil: bool = False
    """Whether one bit of each body is wrong."""
    trickle: float = 0.0
    """Seconds between two bytes of a body of more than 10 kB."""
    silent: float = 0.0
    """Seconds before an answer."""
    endless: bool = False
    """Whether bodies go on for ever."""
    log: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of every request."""
    sent: int = 0
    """Bytes of bodies sent."""
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's `plan` says."""

    protocol_version = "HTTP/1.0"

    def log_message(self, *arguments):
        """Say nothing."""

    def do_GET(self):
        plan: Server = self.server.plan
        plan.log.append((self.path, self.headers.get("Range")))
        time.sleep(plan.silent)
        if plan.status:
            status = plan.status.pop(0)
            if status != 200:
                return self.send_error(status)
        if self.path in plan.redirect:
            self.send_response(302)
            self.send_header("Location", plan.redirect[self.path])
            return self.end_headers()
        if self.path not in plan.files:
            return self.send_error(404)
        return self.send(plan, plan.files[self.path])

    def send(self, plan, data):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        same = self.headers.get("If-Range", plan.etag) == plan.etag
        start, stop = 0, len(data)
        if wanted and plan.ranges and same:
            start, stop = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))
            if start >= len(data):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)
        if plan.etag:
            self.send_header("ETag", plan.etag)
        if plan.length:
            self.send_header("Content-Length", str(stop - start))
        # Before the head is sent: whoever needs no more than that asks again at once.
        most = plan.cut.pop(0) if plan.cut else None
        self.end_headers()
        with contextlib.suppress(OSError):
            self.body(plan, bytearray(data[start:stop]), most)
        return None

    def body(self, plan, data, most):
        if plan.spoil:
            data[len(data) // 2] ^= 1
        if most is not None:
            del data[most:]
        if plan.trickle and len(data) > 10_000:
            for byte in data:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(plan.trickle)
        else:
            plan.sent += len(data)  # before: whoever asked goes on as soon as it is written
            self.wfile.write(data)
        while plan.endless:
            self.wfile.write(bytes(2**16))
            plan.sent += 2**16


@pytest.fixture
def server():
    """Served until the end of the test."""
    plan = Server()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.plan = plan
    plan.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=lambda: httpd.serve_forever(0.02))
    thread.start()
    yield plan
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    """Nothing configured, an empty cache, no pauses, no proxy."""
    monkeypatch.setenv("MOEREPLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("MOEREPLAY_CATALOGUES", "MOEREPLAY_OFFLINE", "MOEREPLAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(cache, "WAIT_S", 0.0)
    monkeypatch.setattr(watch, "TIMEOUT_S", 5.0)
    resolve._read_remote.cache_clear()
    transport._opener.cache_clear()


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A catalogue of two traces: `one`, of 8 layers and 200 KB, and `two`."""
    where = tmp_path_factory.mktemp("catalogue")
    one = tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=2048, layers=8, seed=1)
    tracegen.write(one, where / "raw.h5")
    publish.add(where, str(where / "raw.h5"), name="one", citation="Us, 2026")
    publish.add(where, "toy-zipf", name="two")
    (where / "raw.h5").unlink()
    return where


@pytest.fixture
def remote(server, folder, monkeypatch) -> Server:
    """The server with that catalogue, configured."""
    for path in folder.iterdir():
        server.files[f"/t/{path.name}"] = path.read_bytes()
    monkeypatch.setenv("MOEREPLAY_CATALOGUES", f"{server.url}/t")
    return server


@pytest.fixture
def own_folder(folder, tmp_path) -> Path:
    """A copy of the catalogue that may be changed."""
    return Path(shutil.copytree(folder, tmp_path / "own"))
