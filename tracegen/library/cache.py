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

from tracegen.library import transport, watch
from tracegen.library.catalogue import Entry, sha256_of
from tracegen.library.watch import ConnectionLoss
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder

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
NOTE = "validator.json"
"""File that says what version of a URL was downloaded."""
SPARE_BYTES = 64 * 2**20
"""Room to be left on the disk, in bytes."""


def retry(action: Callable[[], T], attempts: int | None = None) -> T:
    """Call a function until the connection holds.

    Parameters
    ----------
    action
        Raises :class:`ConnectionLoss` when it may be tried again.
    attempts
        Largest number of attempts; None for :data:`ATTEMPTS`.

    Raises
    ------
    ConnectionLoss
        Of the last attempt.
    """
    for attempt in range((attempts or ATTEMPTS) - 1):
        with contextlib.suppress(ConnectionLoss):
            return action()
        time.sleep(WAIT_S * 2**attempt)
    return action()


def connect(url: str, attempts: int | None = None) -> transport.RemoteSource:
    """Connect to a remote file, in several attempts if need be.

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
    except ConnectionLoss as error:
        msg = f"{url}: {error}"
        raise UserError(msg) from error


def find_cached(cache: Path, entry: Entry) -> Path | None:
    """Path of a trace in the cache, or None if it is not there.

    Parameters
    ----------
    cache
        Folder of the cache.
    entry
        Of a catalogue.
    """
    files = _folder_of(cache, entry)
    found = files.stat(_name_of(entry))
    is_whole = found is not None and found.st_size == entry.file_bytes
    return files.path / _name_of(entry) if is_whole else None


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
    Path of a file whose bytes are those that the catalogue lists, and of which every value was
    checked.

    Raises
    ------
    UserError
        If it cannot be had, or is not what the catalogue says.
    """
    files, name = _folder_of(cache, entry), _name_of(entry)
    target, part = files.path / name, f"{name}.part"
    # Without the lock, since a cache shared by others may be read-only.
    if find_cached(cache, entry) and sha256_of(target) == entry.sha256:
        return target
    with _lock(files, name):
        if find_cached(cache, entry) and sha256_of(target) == entry.sha256:
            return target
        before = files.stat(part)
        found = _download(url, files, part, entry.file_bytes, on_bytes)
        if found != entry.sha256 and before is not None and before.st_size:
            # The part may have been of an earlier version of the file: once more, from the start.
            files.remove(part)
            found = _download(url, files, part, entry.file_bytes, on_bytes)
        if found != entry.sha256:
            files.remove(part)
            msg = f"{url}: SHA-256 is {found}, the catalogue says {entry.sha256}"
            raise UserError(msg)
        _verify(files, part, url, entry.content_id)
        files.rename(part, name)
    return target


def fetch_unlisted(cache: Path, url: str, offline: bool, on_bytes: OnBytes | None = None) -> Path:
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
    Path of a file of which every value was checked.

    Raises
    ------
    UserError
        If it cannot be had, or is no valid trace.
    """
    files = ManagedFolder(cache, "urls", hash_of(url))
    name = _last_part(url)
    target, part = files.path / name, f"{name}.part"
    if offline:
        if files.check(name):
            return target
        msg = f"{url}: not in the cache {cache}, and connections are switched off"
        raise UserError(msg)
    with _lock(files, name):
        source = connect(url)
        # Without a validator there is no telling: downloaded again.
        seen = [url, source.validator, source.size] if source.validator else None
        if files.check(name) and seen is not None and _note(files) == seen:
            return target
        # What was there may be of another version of the file, and no hash would tell.
        files.remove(part)
        _download(url, files, part, source.size, on_bytes)
        _verify(files, part, url, None)
        files.remove(NOTE)
        files.rename(part, name)
        if seen is not None:
            files.write_text(NOTE, json.dumps(seen))
    return target


def _download(url: str, files: ManagedFolder, part: str, size: int | None, on_bytes: OnBytes | None) -> str:
    """Complete a partial file; returns its SHA-256."""
    source = connect(url)
    if size is not None and source.size is not None and source.size != size:
        msg = f"{url}: {source.size} bytes; {size} were announced"
        raise UserError(msg)
    there = files.stat(part)
    _check_room(files.path, size, 0 if there is None else there.st_size)
    began, most_s = time.monotonic(), watch.time_limit(watch.ENV_SECONDS)
    with files.editor(part) as out:
        digest = _hash_of(out)
        failures = 0
        while size is None or out.tell() < size:
            before = out.tell()
            try:
                digest = _take(source, out, digest, size, on_bytes, files.path)
                if size is None:
                    break
                problem = f"{out.tell()} of {size} bytes arrived"
            except ConnectionLoss as error:
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
    source: transport.RemoteSource,
    out: BinaryIO,
    digest: hashlib._Hash,
    size: int | None,
    on_bytes: OnBytes | None,
    folder: Path,
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
            _check_room(folder, len(block), 0)
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
    most = watch.time_limit(watch.ENV_MEGABYTES)
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


def _verify(files: ManagedFolder, part: str, url: str, content_id: str | None) -> None:
    """Check every value of a downloaded file; remove it if it fails."""
    from tracegen.file import reader

    try:
        with reader.open_trace(files.path / part) as file:
            file.verify()
            if content_id not in (None, file.content_id):
                msg = f"content id {file.content_id} is not the catalogue's {content_id}"
                raise UserError(msg)
    except UserError as error:
        files.remove(part)
        problem = str(error).replace(f"{files.path / part}: ", "")
        msg = f"{url}: {problem}"
        raise UserError(msg) from error


def _folder_of(cache: Path, entry: Entry) -> ManagedFolder:
    """Folder of a listed trace."""
    return ManagedFolder(cache, "files", entry.sha256)


def _name_of(entry: Entry) -> str:
    """The file of a listed trace; its name is kept for messages."""
    return f"{entry.name}.h5"


def hash_of(url: str) -> str:
    """Give the name in the cache of a file that is known by its URL alone.

    Parameters
    ----------
    url
        The address.
    """
    return hashlib.sha256(url.encode()).hexdigest()


def _last_part(url: str) -> str:
    """A harmless file name that reminds of a URL."""
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    harmless = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return f"{harmless.removesuffix('.h5').lstrip('.')[:80] or 'trace'}.h5"


def _note(files: ManagedFolder) -> object:
    """Note about a downloaded file, or None."""
    try:
        return regular.parse_json(files.read_text(NOTE))
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        return None


def _check_room(folder: Path, size: int | None, present: int) -> None:
    """Refuse what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    wanted = (size or 0) - (present if size is not None else 0)
    if wanted + SPARE_BYTES > free:
        msg = f"{folder}: {wanted} bytes are needed, {free} are free"
        raise UserError(msg)


@contextlib.contextmanager
def _lock(files: ManagedFolder, name: str) -> Iterator[None]:
    """One process at a time; released by the system if that process is killed."""
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(files.present())
                lock = stack.enter_context(files.editor(f"{name}.lock"))
            except UserError as error:
                error.add_note("the cache is where MOEREPLAY_CACHE says")
                raise
            # Windows has no such lock: two processes there may fetch the same file twice.
            with contextlib.suppress(ImportError):
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        msg = f"{files.path / name}: cannot be written ({error.strerror}); see MOEREPLAY_CACHE"
        raise UserError(msg) from error
