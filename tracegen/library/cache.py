"""Downloaded traces: fetched once, whole or not at all, and only if every byte is right.

Files lie in the cache under their SHA-256, so that catalogues share them. An interrupted
download stays as `.part` and is taken up again; the file itself appears by renaming.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from tracegen import output
from tracegen.errors import UserError
from tracegen.library import transport, watch
from tracegen.library.catalogue import MAX_INDEX_BYTES, Entry, sha256_of
from tracegen.library.watch import Interrupted

T = TypeVar("T")
OnBytes = Callable[[int, int | None], None]
"""Called with the bytes had so far and, if known, those there will be."""

ATTEMPTS = 5
"""Connections in a row without progress after which a transfer is given up."""
PROGRESS_BYTES = 64 * 2**10
"""Bytes that count as progress."""
WAIT_S = 0.5
"""Pause before the second attempt, in seconds; doubled with each further one."""
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
SPARE_BYTES = 64 * 2**20
"""Room to be left on the disk, in bytes."""


def retry(action: Callable[[], T], attempts: int | None = None) -> T:
    """Call a function until the connection holds.

    Parameters
    ----------
    action
        Raises :class:`Interrupted` when it may be tried again.
    attempts
        Largest number of attempts; None for :data:`ATTEMPTS`.

    Raises
    ------
    Interrupted
        The last one.
    """
    for attempt in range((attempts or ATTEMPTS) - 1):
        with contextlib.suppress(Interrupted):
            return action()
        time.sleep(WAIT_S * 2**attempt)
    return action()


def connect(url: str, attempts: int | None = None) -> transport.Source:
    """A remote file, attempts included.

    Parameters
    ----------
    url
        Of the file.
    attempts
        Largest number of attempts; None for :data:`ATTEMPTS`.

    Raises
    ------
    UserError
        If it cannot be reached.
    """
    try:
        return retry(lambda: transport.connect(url), attempts)
    except Interrupted as error:
        msg = f"{url}: {error}"
        raise UserError(msg) from error


def cached(cache: Path, entry: Entry) -> Path | None:
    """Path of a trace in the cache, or None if it is not there.

    Parameters
    ----------
    cache
        Folder of the cache.
    entry
        Of a catalogue.
    """
    path = _place(cache, entry)
    return path if path.is_file() and path.stat().st_size == entry.file_bytes else None


def fetch(cache: Path, entry: Entry, url: str, on_bytes: OnBytes | None = None) -> Path:
    """Path of a listed trace in the cache, downloaded if need be.

    Parameters
    ----------
    cache
        Folder of the cache; made if need be.
    entry
        Entry of the catalogue.
    url
        Its address.
    on_bytes
        Told of progress.

    Returns
    -------
    Of a file whose bytes are those that the catalogue lists, and of which every value was checked.

    Raises
    ------
    UserError
        If it cannot be had, or is not what the catalogue says.
    """
    target = _place(cache, entry)
    # Without the lock, since a cache shared by others may be read-only.
    if cached(cache, entry) and sha256_of(target) == entry.sha256:
        return target
    with _locked(target):
        if cached(cache, entry) and sha256_of(target) == entry.sha256:
            return target
        part = target.with_name(target.name + ".part")
        resumed = part.is_file() and part.stat().st_size > 0
        found = _download(url, part, entry.file_bytes, on_bytes)
        if found != entry.sha256 and resumed:
            # The part may have been of an earlier version of the file: once more, from the start.
            part.unlink()
            found = _download(url, part, entry.file_bytes, on_bytes)
        if found != entry.sha256:
            part.unlink()
            msg = f"{url}: SHA-256 is {found}, the catalogue says {entry.sha256}"
            raise UserError(msg)
        _verify(part, url, entry.content_id)
        part.replace(target)
    return target


def fetch_unlisted(
    cache: Path, url: str, offline: bool, on_bytes: OnBytes | None = None
) -> Path:  # fmt: skip
    """Path in the cache of a trace that no catalogue lists, downloaded if it changed.

    Parameters
    ----------
    cache
        Folder of the cache; made if need be.
    url
        Its address.
    offline
        Use what is there without asking the server.
    on_bytes
        Told of progress.

    Returns
    -------
    Of a file of which every value was checked.

    Raises
    ------
    UserError
        If it cannot be had, or is no valid trace.
    """
    target = cache / "urls" / hashlib.sha256(url.encode()).hexdigest() / _last_part(url)
    note = target.with_name("validator.json")
    if offline:
        if target.is_file():
            return target
        msg = f"{url}: not in the cache {cache}, and connections are switched off"
        raise UserError(msg)
    with _locked(target):
        source = connect(url)
        # Without a validator there is no telling: downloaded again.
        seen = [url, source.validator, source.size] if source.validator else None
        if target.is_file() and seen is not None and _noted(note) == seen:
            return target
        part = target.with_name(target.name + ".part")
        # What was there may be of another version of the file, and no hash would tell.
        part.unlink(missing_ok=True)
        _download(url, part, source.size, on_bytes)
        _verify(part, url, None)
        note.unlink(missing_ok=True)
        part.replace(target)
        if seen is not None:
            note.write_text(json.dumps(seen), "utf-8")
    return target


def read_index(cache: Path, url: str, offline: bool) -> tuple[str, str | None]:
    """Text of a remote catalogue; the one read last where there is no connection.

    Parameters
    ----------
    cache
        Folder of the cache; made if need be.
    url
        Of the index.
    offline
        Use what is there without asking the server.

    Returns
    -------
    The text, and what the user should know about it if it is not fresh.

    Raises
    ------
    UserError
        If it is neither reachable nor in the cache.
    """
    copy = cache / "catalogues" / f"{hashlib.sha256(url.encode()).hexdigest()}.toml"
    if offline:
        if copy.is_file():
            return copy.read_text("utf-8"), None
        msg = f"{url}: not in the cache {cache}, and connections are switched off"
        raise UserError(msg)
    try:
        # Little patience where there is something to fall back on.
        text = _read_small(connect(url, 2 if copy.is_file() else None), MAX_INDEX_BYTES)
    except UserError as error:
        if not copy.is_file():
            raise
        return copy.read_text("utf-8"), f"{error}; using what was read before"
    with contextlib.suppress(OSError, UserError):  # a cache that cannot be written is no loss here
        _make_folder(copy.parent)
        output.write_text(copy, text)
    return text, None


def _read_small(source: transport.Source, limit: int) -> str:
    """A whole text of bounded size."""

    def whole() -> bytes:
        data = bytearray()
        for block in source.stream(0):
            data += block
            if len(data) > limit:
                msg = f"{source.url}: larger than {limit} bytes"
                raise UserError(msg)
        if source.size is not None and len(data) < source.size:
            msg = f"{len(data)} of {source.size} bytes arrived"
            raise Interrupted(msg)
        return bytes(data)

    try:
        return retry(whole).decode("utf-8")
    except Interrupted as error:
        msg = f"{source.url}: {error}"
        raise UserError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{source.url}: not a catalogue: {error}"
        raise UserError(msg) from error


def _download(url: str, part: Path, size: int | None, on_bytes: OnBytes | None) -> str:
    """Complete a partial file; returns its SHA-256."""
    source = connect(url)
    if size is not None and source.size is not None and source.size != size:
        msg = f"{url}: {source.size} bytes; {size} were announced"
        raise UserError(msg)
    _check_room(part, size)
    began, most_s = time.monotonic(), watch.allowed(watch.ENV_SECONDS)
    with part.open("a+b") as out:
        digest = _hash_of(out)
        failures = 0
        while size is None or out.tell() < size:
            before = out.tell()
            try:
                digest = _take(source, out, digest, size, on_bytes)
                if size is None:
                    break
                problem = f"{out.tell()} of {size} bytes arrived"
            except Interrupted as error:
                problem = str(error)
            failures = 1 if out.tell() - before >= PROGRESS_BYTES else failures + 1
            if out.tell() != size:
                if time.monotonic() - began > most_s:
                    msg = (
                        f"{url}: {out.tell()} bytes after {most_s:g} s; {watch.ENV_SECONDS} allows "
                        "more, and the same command goes on from there"
                    )
                    raise UserError(msg)
                if failures >= ATTEMPTS:
                    msg = f"{url}: {problem}; given up after {ATTEMPTS} attempts"
                    raise UserError(msg)
                time.sleep(WAIT_S * 2 ** (failures - 1))
        return digest.hexdigest()


def _take(
    source: transport.Source,
    out: BinaryIO,
    digest: hashlib._Hash,
    size: int | None,
    on_bytes: OnBytes | None,
) -> hashlib._Hash:
    """Append what arrives over one connection."""
    for block in source.stream(out.tell()):
        if not block:
            # The server begins at the beginning: it knows no ranges, or the file changed.
            out.truncate(0)
            out.seek(0)
            digest = hashlib.sha256()
            continue
        if out.tell() == 0 and not block.startswith(HDF5_SIGNATURE[: len(block)]):
            msg = f"{source.url}: not HDF5; it begins with {block[:40]!r}"
            raise UserError(msg)
        _check_size(source.url, out.tell() + len(block), size)
        if size is None:
            _check_room(Path(out.name), len(block))
        out.write(block)
        digest.update(block)
        if on_bytes is not None:
            on_bytes(out.tell(), size)
    return digest


def _check_size(url: str, found: int, size: int | None) -> None:
    """Refuse more than was announced, and without end what was not."""
    if size is not None and found > size:
        msg = f"{url}: the server sends more than {size} bytes"
        raise UserError(msg)
    most = watch.allowed(watch.ENV_MEGABYTES)
    if size is None and found > most * 1e6:
        msg = (
            f"{url}: more than {most:g} MB, and the server does not say how much there is; "
            f"{watch.ENV_MEGABYTES} allows more"
        )
        raise UserError(msg)


def _hash_of(out: BinaryIO) -> hashlib._Hash:
    """Running SHA-256 of an open file, read to its end."""
    digest = hashlib.sha256()
    out.seek(0)
    while block := out.read(transport.BLOCK_BYTES):
        digest.update(block)
    return digest


def _verify(part: Path, url: str, content_id: str | None) -> None:
    """Check every value of a downloaded file; remove it if it fails."""
    from tracegen.file import reader

    try:
        with reader.open_trace(part) as file:
            file.verify()
            if content_id not in (None, file.content_id):
                msg = f"content id {file.content_id} is not the catalogue's {content_id}"
                raise UserError(msg)
    except UserError as error:
        part.unlink()
        problem = str(error).replace(f"{part}: ", "")
        msg = f"{url}: {problem}"
        raise UserError(msg) from error


def _place(cache: Path, entry: Entry) -> Path:
    """Path at which a listed trace belongs; its name is kept for messages."""
    return cache / "files" / entry.sha256 / f"{entry.name}.h5"


def _last_part(url: str) -> str:
    """A harmless file name that reminds of a URL."""
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    harmless = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return f"{harmless.removesuffix('.h5').lstrip('.')[:80] or 'trace'}.h5"


def _noted(note: Path) -> object:
    """Note about a downloaded file, or None."""
    try:
        return json.loads(note.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _check_room(path: Path, size: int | None) -> None:
    """Refuse what the disk cannot hold."""
    present = path.stat().st_size if path.is_file() else 0
    free = shutil.disk_usage(path.parent).free
    wanted = (size or 0) - (present if size is not None else 0)
    if wanted + SPARE_BYTES > free:
        msg = f"{path.parent}: {wanted} bytes are needed, {free} are free"
        raise UserError(msg)


def _make_folder(folder: Path) -> None:
    """Make a folder of the cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{folder}: cannot be made ({error.strerror}); see MOEREPLAY_CACHE"
        raise UserError(msg) from error


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process at a time; released by the system if that process is killed."""
    _make_folder(target.parent)
    try:
        with target.with_name(f"{target.name}.lock").open("wb") as lock:
            # Windows has no such lock: two processes there may fetch the same file twice.
            with contextlib.suppress(ImportError):
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        msg = f"{target}: cannot be written ({error.strerror}); see MOEREPLAY_CACHE"
        raise UserError(msg) from error
