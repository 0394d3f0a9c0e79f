"""A file on this machine, held against what a catalogue says of it.

A folder may come from a stranger as well as a URL may: by mail, in a repository, on a shared disk.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from tracegen.library.catalogue import Entry, sha256_of
from tracegen.shared import regular
from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from tracegen.file.reader import TraceFile


def is_here(path: Path, entry: Entry) -> bool:
    """Tell whether there is a file that can be read and has the size that a catalogue lists.

    Parameters
    ----------
    path
        Of the file.
    entry
        Statement of the catalogue.
    """
    try:
        return regular.is_file(path) and path.stat().st_size == entry.file_bytes
    except OSError:
        return False


def leads_out(path: Path, entry: Entry) -> bool:
    """Tell whether a file is a link to somewhere else than its catalogue's folder.

    Downloads of the Hugging Face Hub are such links. The stranger who made the folder chose where
    one leads, so its file is used only after `check_bytes`: then the stranger already knew all of
    its content.

    Parameters
    ----------
    path
        Of the file, in that folder.
    entry
        Statement of the catalogue.
    """
    folder = regular.real(path.parents[entry.file.count("/")])
    return not regular.real(path).is_relative_to(folder)


def check_bytes(path: Path, entry: Entry) -> None:
    """Refuse a file whose bytes are not those that a catalogue lists.

    Parameters
    ----------
    path
        Of the file.
    entry
        Statement of the catalogue.

    Raises
    ------
    UserError
        Naming what differs; if the file cannot be read.
    """
    try:
        found = path.stat()
        if found.st_size != entry.file_bytes:
            msg = f"{path}: {found.st_size} bytes; the catalogue says {entry.file_bytes}"
            raise UserError(msg)
        digest = _sha256_of(path, found.st_size, found.st_mtime_ns, found.st_ino)
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise UserError(msg) from error
    if digest != entry.sha256:
        msg = f"{path}: SHA-256 is {digest}, the catalogue says {entry.sha256}"
        raise UserError(msg)


@functools.lru_cache(maxsize=256)
def _sha256_of(path: Path, *_state: int) -> str:
    """The hash of a file, found once for each state: layers may be loaded one by one."""
    return sha256_of(path)


def check_header(file: TraceFile, entry: Entry) -> None:
    """Refuse a trace that is not the one that a catalogue lists.

    Parameters
    ----------
    file
        Open; it says its content id.
    entry
        Statement of the catalogue.

    Raises
    ------
    UserError
        Naming what differs.
    """
    if file.content_id != entry.content_id:
        msg = f"{file.name}: content id {file.content_id} is not the index's {entry.content_id}"
        raise UserError(msg)
    if file.file_bytes != entry.file_bytes:
        msg = f"{file.name}: {file.file_bytes} bytes; the index says {entry.file_bytes}"
        raise UserError(msg)
