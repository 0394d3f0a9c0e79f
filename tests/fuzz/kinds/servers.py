"""Servers that misbehave: each address says by its seed what its answers are."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from tests.fuzz import damage
from tests.fuzz.base import Case, Kind, World
from tests.fuzz.kinds.documents import ran
from tests.tracegen.library.conftest import Handler, Server

SECONDS, MEGABYTES = 3.0, 8.0
"""What a download may take here."""
FILES: dict[str, bytes] = {}
RAW = [
    b"",
    b"\0" * 5000,
    b"HTTP/1.1 200",
    b"SSH-2.0-x\r\n",
    b"HTTP/1.1 999 \xff\r\n\r\n",
    b"HTTP/9.9 200 OK\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nxxxxx",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1e9\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\nx",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 500 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 5-1/2\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 206 X\r\nContent-Range: bytes 0-0/9999999999999999999\r\nContent-Length: 1\r\n\r\na",
    b"HTTP/1.1 206 Partial\r\nContent-Range: \xff/\xfe\r\nContent-Length: 1\r\n\r\na",
    b"HTTP/1.1 302 Found\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /\xff\0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/x\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:99999/\r\n\r\n",
    b'HTTP/1.1 401 \x1b[31m\r\nWWW-Authenticate: Basic realm="\xff"\r\n\r\n',
    b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
]


class Unruly(Handler):
    """Answers by the seed in the first part of the path, each range otherwise."""

    def do_GET(self) -> None:
        seed, _, path = self.path.lstrip("/").partition("/")
        path = "/" + urlsplit(path).path.lstrip("/")
        rng = random.Random(f"{seed} {self.headers.get('Range')} {path}")
        plan = Server(files={f"/{seed}{name}": data for name, data in FILES.items()})
        self.server: Any = SimpleNamespace(plan=plan)
        kind = rng.randrange(14) if rng.random() < 0.6 else -1
        if kind == 0:
            with contextlib.suppress(OSError):
                self.wfile.write(rng.choice(RAW))
            return
        if kind == 1:
            self.raw_damage(plan.files.get(self.path, b"x"), rng)
            return
        if kind == 2:
            plan.status = [rng.choice([204, 301, 304, 400, 401, 403, 404, 416, 429, 500, 503, 599])]
        elif kind == 3:
            plan.cut = [rng.randrange(5000)]
        elif kind == 4:
            plan.redirect = {self.path: rng.choice([self.path, f"/{seed}x/index.toml", "//", "\\", f"/{seed}1{path}"])}
        elif kind == 5:
            plan.spoil = True
        elif kind == 6 and rng.random() < 0.1:
            plan.trickle = 0.01
        elif kind == 7 and rng.random() < 0.1:
            plan.silent = 2 * SECONDS
        elif kind == 8 and rng.random() < 0.3:
            plan.endless = True
        elif kind == 9:
            plan.ranges = False
        elif kind == 10:
            plan.etag = rng.choice([None, '"two"', f'"{rng.random()}"', 'W/"x"', "\x7f"])
        elif kind == 11:
            plan.length = False
        elif kind in (12, 13) and self.path in plan.files:
            is_text = not path.endswith(".h5")
            plan.files[self.path] = damage.file(plan.files[self.path], rng, is_text=is_text)
        with contextlib.suppress(OSError):
            super().do_GET()

    def raw_damage(self, data: bytes, rng: random.Random) -> None:
        """Send a whole answer with damaged bytes in its head."""
        head = damage.some_bytes(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "a"\r\n\r\n' % len(data), rng)
        with contextlib.suppress(OSError):
            self.wfile.write(head + data)


class Quiet(ThreadingHTTPServer):
    """A client that went away is no news."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing."""


def serve(ending: contextlib.ExitStack) -> int:
    """Serve from a process of its own until the end; the port."""
    server = Quiet(("127.0.0.1", 0), Unruly)
    child = os.fork()
    if not child:
        try:
            threading.stack_size(2**20)
            server.serve_forever()
        finally:
            os._exit(0)
    port = server.server_address[1]
    server.socket.close()

    def end() -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    ending.callback(end)
    return int(port)


class Servers(Kind):
    """A catalogue and its traces behind a server, and addresses of their own."""

    name = "servers"
    share = 3
    needs_server = True

    def prepare(self, shelf: Path) -> None:
        ran(f"trace generate zipf --model olmoe-1b-7b --ranks 2 --tokens-per-rank 40 --layers 2 --out {shelf / 'a.h5'}")
        ran(f"trace publish {shelf / 'cat'} {shelf / 'a.h5'} --title T --creator C --description D")
        for path in (shelf / "cat").rglob("*"):
            if path.is_file():
                FILES[f"/{path.relative_to(shelf / 'cat')}"] = path.read_bytes()

    def case(self, rng: random.Random, world: World) -> Case:
        from tracegen.library import cache, watch

        watch.TIMEOUT_S, cache.WAIT_S, watch.PATIENCE_S = 1.0, 0.0, 2.0
        os.environ.update(MOEREPLAY_DOWNLOAD_S=str(SECONDS), MOEREPLAY_DOWNLOAD_MB=str(MEGABYTES))
        url = f"http://127.0.0.1:{world.port}/{rng.randrange(2**40)}"
        trace = next(name for name in FILES if name.endswith(".h5"))
        words = rng.choice(
            [
                f"trace list --catalogue {url}",
                f"trace list --catalogue {url}/ --json",
                f"trace fetch a --catalogue {url}",
                f"trace fetch a --catalogue {url} --out out/f",
                f"trace fetch {url}{trace}",
                f"trace fetch {url}{trace} --out out/f",
                f"trace info {url}{trace}",
                f"trace convert {url}{trace} out/b.h5 --layers 0:1",
                f"trace stats {url}{trace}",
                f"run {url}{trace} --scheme ideal --layer 0 --json out/r.json",
                f"trace fetch {url}/x.h5",
                f"trace info {url}/index.toml",
                f"trace convert {url}{trace} out/b.h5 --tokens 0:5",
            ]
        )
        if rng.random() < 0.05:
            words = words.replace("127.0.0.1", rng.choice(["127.0.0.1:x", "[::", "\u2024", "localhost:0", "a" * 300]))
        return Case(words.split())


KINDS: list[Kind] = [Servers()]
assert socket  # the server listens on the loopback alone
