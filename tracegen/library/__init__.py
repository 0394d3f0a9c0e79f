"""Named traces: what catalogues list, and loading by name, path or URL.

A trace is looked for in the catalogue that comes with the package, then in those of the
environment variable ``MOEREPLAY_CATALOGUES`` or of the configuration file, in order. The
files of a remote catalogue are downloaded once into a cache; when only some layers or
tokens are asked for, only the bytes that hold them are.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tracegen.library import catalogue as catalogues
from tracegen.library import entry_files, fetched_names, resolve, settings
from tracegen.library.catalogue import Entry
from tracegen.library.resolve import ListedTrace, search
from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder

if TYPE_CHECKING:
    from tracegen.file.reader import TraceFile
    from tracegen.library.cache import OnBytes
    from tracegen.trace.routing import RoutingTrace

__all__ = [
    "Entry",
    "ListedTrace",
    "entries",
    "fetch",
    "find",
    "load",
    "lookup",
    "name_notice",
    "open_trace",
    "search",
    "verify",
]


def entries() -> dict[str, Entry]:
    """Every trace that comes with the package, by name.

    Raises
    ------
    UserError
        If the index is missing or malformed.
    """
    return dict(catalogues.built_in().entries)


def lookup(name: str | Path, catalogue: str | None = None) -> ListedTrace | None:
    """Statement of the first catalogue that lists a name.

    Parameters
    ----------
    name
        Anything that :func:`load` takes.
    catalogue
        Folder or URL of the one catalogue to look into; None for all.

    Returns
    -------
    None for paths, URLs, and names that are nowhere.
    """
    return resolve.lookup(name, catalogue, settings.Settings())


def find(name: str | Path, catalogue: str | None = None) -> Path:
    """Path of a trace, downloaded if need be.

    Parameters
    ----------
    name
        Name in a catalogue, a URL, or a path: anything with a folder, an ``.h5`` or
        ``.hdf5`` suffix, or that exists.
    catalogue
        Folder or URL of the one catalogue to look into; None for all.

    Raises
    ------
    UserError
        If the name is in no catalogue, or the file does not exist, cannot be had or has not the
        bytes that its catalogue lists.
    """
    present = settings.Settings()
    return _have(resolve.resolve(name, catalogue, present), present)


def fetch(
    name: str,
    catalogue: str | None = None,
    *,
    offline: bool | None = None,
    out: Path | None = None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Get a trace onto this machine, whole and checked.

    Parameters
    ----------
    name
        Name in a catalogue, or a URL. What is a local file already is left where it is.
    catalogue
        Folder or URL of the one catalogue to look into; None for all.
    offline
        Whether connections are forbidden; None leaves it to the settings.
    out
        Folder for a copy; None for none.
    on_bytes
        Told of progress: bytes had so far and, if known, those there will be.

    Returns
    -------
    Path of the copy, or else of the file in the cache.

    Raises
    ------
    UserError
        If it cannot be had, or is not what its catalogue says.
    """
    present = settings.Settings(offline)
    place = resolve.resolve(name, catalogue, present)
    path = _have(place, present, on_bytes)
    if isinstance(place.location if isinstance(place, ListedTrace) else place, Path):
        with _open(place, present, path) as file:
            file.verify()  # as what is downloaded was, before it came into the cache
    if isinstance(place, ListedTrace) and place.catalogue != catalogues.BUILT_IN:
        fetched_names.note(present.cache, place.catalogue, place.entry)
    return path if out is None else _copy(path, out, place)


def name_notice(name: str, catalogue: str | None = None, *, offline: bool | None = None) -> str:
    """Say that the name of a fetched trace means another one, or several, without its catalogue.

    Parameters
    ----------
    name, catalogue, offline
        As for :func:`fetch`.

    Returns
    -------
    Empty where the name alone is enough.
    """
    present = settings.Settings(offline)
    place = resolve.resolve(name, catalogue, present)
    if not isinstance(place, ListedTrace):
        return ""
    try:
        alone = resolve.lookup(place.entry.name, None, present)
    except UserError as error:
        return str(error)
    if alone is None or alone.entry.content_id == place.entry.content_id:
        return ""
    return (
        f"{place.entry.name} alone is the trace of that name of the catalogue {alone.catalogue}; "
        f"write {place.reference} for this one"
    )


def load(
    name: str | Path,
    layers: Sequence[int] | None = None,
    tokens: slice | None = None,
    max_bytes: int | None = None,
    catalogue: str | None = None,
) -> RoutingTrace:
    """Load a trace, or part of one, by name, path or URL.

    Parameters
    ----------
    name
        Name in a catalogue, the path of a file, or a URL.
    layers
        Positions among the MoE layers, ascending; None for all.
    tokens
        Token rows, without stride; None for all.
    max_bytes
        Refuse to allocate more than this, in bytes; None for 4 GiB.
    catalogue
        Folder or URL of the one catalogue to look into; None for all.

    Returns
    -------
    Every value read is checked. The content of a whole trace must be what its content id says; a
    part has a content id of its own. A remote trace is downloaded if all of it is asked for, and
    else read in place; the bytes of a listed file that is on this machine must be those that are
    listed.

    Raises
    ------
    UserError
        If there is no such trace, or it is damaged or not what the format or its catalogue says.
    """
    from tracegen.file import reader

    present = settings.Settings()
    place = resolve.resolve(name, catalogue, present)
    path = _on_this_machine(place, present)
    if path is not None or (layers is None and tokens is None):
        path = _have(place, present)
    with _open(place, present, path) as file:
        return file.read(layers, tokens, reader.MAX_LOAD_BYTES if max_bytes is None else max_bytes)


@contextlib.contextmanager
def open_trace(name: str | Path | BinaryIO, catalogue: str | None = None) -> Iterator[TraceFile]:
    """Open a trace by name, path or URL: the header now, the body on request.

    Parameters
    ----------
    name
        Name in a catalogue, the path of a file, a URL, or a binary file object that can seek.
    catalogue
        Folder or URL of the one catalogue to look into; None for all.

    Yields
    ------
    The open file. A remote one that is not in the cache is read in place, by ranges.

    Raises
    ------
    UserError
        If there is no such trace or it is not one this reader knows.
    """
    from tracegen.file import reader

    if not isinstance(name, str | Path):
        with reader.open_trace(name) as file:
            yield file
        return
    present = settings.Settings()
    place = resolve.resolve(name, catalogue, present)
    with _open(place, present, _on_this_machine(place, present)) as file:
        yield file


def verify(name: str | Path, catalogue: str | None = None) -> str:
    """Check every value of a trace, its content id, and what a catalogue says of it.

    Parameters
    ----------
    name
        Name in a catalogue, the path of a file, or a URL.
    catalogue
        Folder or URL of the one catalogue to look into; None for all.

    Returns
    -------
    The content id.

    Raises
    ------
    UserError
        Naming what is wrong.
    """
    present = settings.Settings()
    place = resolve.resolve(name, catalogue, present)
    with _open(place, present, _have(place, present)) as file:
        file.verify()
        return file.content_id


def _on_this_machine(place: Path | ListedTrace | str, present: settings.Settings) -> Path | None:
    """The file, if reading it needs no connection."""
    if isinstance(place, Path):
        return place
    if isinstance(place, ListedTrace) and isinstance(place.location, Path):
        return place.location
    is_cached = isinstance(place, ListedTrace) and place.cached is not None
    return _have(place, settings.Settings(offline=True)) if is_cached or present.offline else None


def _have(place: Path | ListedTrace | str, present: settings.Settings, on_bytes: OnBytes | None = None) -> Path:
    """The file, downloaded if need be; of a listed one, with the bytes that are listed."""
    from tracegen.library import cache

    if isinstance(place, Path):
        return place
    if isinstance(place, str):
        return cache.fetch_unlisted(present.cache, place, present.offline, on_bytes)
    if isinstance(place.location, Path):
        entry_files.check_bytes(place.location, place.entry)
        return place.location
    if not present.offline:
        return cache.fetch(present.cache, place.entry, place.location, on_bytes)
    if place.cached is None:
        msg = f"{place.entry.name}: not in the cache {present.cache}, and connections are switched off"
        raise UserError(msg)
    return place.cached


@contextlib.contextmanager
def _open(place: Path | ListedTrace | str, present: settings.Settings, path: Path | None) -> Iterator[TraceFile]:
    """Open a file of this machine, or a remote one, and compare it with what its catalogue says."""
    from tracegen.file import reader

    if path is None:
        assert not isinstance(place, Path)  # which needs no connection
        with _open_remote(place, present) as file:
            yield file
    else:
        if isinstance(place, ListedTrace) and entry_files.leads_out(path, place.entry):
            entry_files.check_bytes(path, place.entry)
        with reader.open_trace(path) as file:
            if isinstance(place, ListedTrace):
                entry_files.check_header(file, place.entry)
            yield file


@contextlib.contextmanager
def _open_remote(place: ListedTrace | str, present: settings.Settings) -> Iterator[TraceFile]:
    """Open a remote file in place, or download it if its server sends whole files only."""
    from tracegen.file import reader
    from tracegen.library import cache
    from tracegen.library.remote_file import RemoteFile

    source = cache.connect(place if isinstance(place, str) else str(place.location))
    if not source.has_ranges:
        with _open(place, present, _have(place, present)) as file:
            yield file
        return
    remote = RemoteFile(source, cache.retry)
    with reader.open_trace(remote) as file:  # type: ignore[arg-type] # it reads, seeks and tells
        if isinstance(place, ListedTrace):
            entry_files.check_header(file, place.entry)
        yield file


def _copy(path: Path, folder: Path, place: Path | ListedTrace | str) -> Path:
    """A copy of a file under the name of its trace."""
    target = folder / (f"{place.entry.name}.h5" if isinstance(place, ListedTrace) else path.name)
    files = ManagedFolder(folder)
    with files.present():
        if files.check(target.name):
            msg = f"{target} exists"
            raise UserError(msg)
        with files.draft_of(target.name) as draft:
            shutil.copyfile(path, draft)
    return target
