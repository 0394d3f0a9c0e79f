"""Catalogues behind addresses, and the copies of them that are kept."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tracegen.library import cache as cache_files
from tracegen.library import transport
from tracegen.library.catalogue import MAX_INDEX_BYTES
from tracegen.library.watch import ConnectionLoss
from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder


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
    files, name = ManagedFolder(cache, "catalogues"), f"{cache_files.hash_of(url)}.toml"
    copy = _copy_of(files, name)
    if offline:
        if copy is not None:
            return copy, None
        msg = f"{url}: not in the cache {cache}, and connections are switched off"
        raise UserError(msg)
    try:
        # Little patience where there is something to fall back on.
        text = _read_small(cache_files.connect(url, 2 if copy is not None else None), MAX_INDEX_BYTES)
    except UserError as error:
        if copy is None:
            raise
        return copy, f"{error}; using what was read before"
    # A cache that cannot be written is no loss here.
    with contextlib.suppress(OSError, UserError), files.present():
        files.write_text(name, text)
    return text, None


def _copy_of(files: ManagedFolder, name: str) -> str | None:
    """Text of a catalogue that was read before."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return files.read_text(name, MAX_INDEX_BYTES)
    return None


def _read_small(source: transport.RemoteSource, limit: int) -> str:
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
            raise ConnectionLoss(msg)
        return bytes(data)

    try:
        return cache_files.retry(whole).decode("utf-8")
    except ConnectionLoss as error:
        msg = f"{source.url}: {error}"
        raise UserError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{source.url}: not a catalogue: {error}"
        raise UserError(msg) from error
