"""Resolution of names: catalogues in order, each read when its turn comes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tracegen import regular
from tracegen.errors import UserError, check_kind, unknown
from tracegen.library import catalogue as catalogues
from tracegen.library import listed, settings
from tracegen.library.catalogue import Catalogue, Entry, is_url

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A trace that a catalogue lists."""

    entry: Entry
    catalogue: str
    """Folder or URL of the catalogue, or ``built-in``."""
    location: Path | str
    """Path or URL of the file."""
    cached: Path | None
    """The downloaded file, if there is one."""

    @property
    def is_local(self) -> bool:
        """Whether it can be read without a connection."""
        return self.cached is not None or isinstance(self.location, Path)


def search(
    catalogue: str | None = None, *, offline: bool | None = None
) -> tuple[list[Found], list[str]]:  # fmt: skip
    """Every trace that can be named.

    Parameters
    ----------
    catalogue
        Folder or URL of the one catalogue to look into; None for all.
    offline
        Whether connections are forbidden; None leaves it to the settings.

    Returns
    -------
    The traces, and one line for each catalogue that could not be read or is not fresh. Of
    traces of one name only the first can be named, so only it is there.

    Raises
    ------
    UserError
        If the one catalogue asked for cannot be read.
    """
    present = settings.read(offline)
    found: dict[str, Found] = {}
    problems: list[str] = []
    for item in _catalogues(catalogue, present, problems):
        for entry in item.entries.values():
            found.setdefault(entry.name, _found(item, entry, present))
    return list(found.values()), problems


def resolve(
    name: str | Path, catalogue: str | None, present: settings.Settings
) -> Path | Found | str:
    """Place of a trace.

    Parameters
    ----------
    name
        Name in a catalogue, path or URL.
    catalogue
        Folder or URL of the one catalogue to look into; None for all.
    present
        Settings.

    Returns
    -------
    Path or URL that the user gave; of a name, what its catalogue says.

    Raises
    ------
    UserError
        If the name is nowhere, or the file does not exist or lies outside its catalogue.
    """
    check_kind("trace", name, (str, Path), "a file, a URL, or a name of `moereplay trace list`")
    text = str(name)
    if isinstance(name, str) and is_url(name):
        return catalogues.check_url(name)
    path = Path(name)
    if is_path(name):
        if not regular.is_file(path):
            msg = f"{text}: no such file"
            raise UserError(msg)
        return path
    found = lookup(name, catalogue, present)
    if found is None:
        known, problems = search(catalogue, offline=present.offline)
        error = unknown("trace", text, [item.entry.name for item in known])
        said = "".join(f"; {problem}" for problem in problems)
        msg = f"{error}; or give the path of a file{said}"
        raise UserError(msg)
    if isinstance(found.location, Path) and not found.location.is_file():
        msg = f"{text}: {found.location} is listed by {found.catalogue}, but is not there"
        raise UserError(msg)
    # What comes with the package is ours, and some installers lay links.
    if isinstance(found.location, Path) and found.catalogue != "built-in":
        listed.check_inside(found.location, found.entry)
    return found


def is_path(name: str | Path) -> bool:
    """Whether a path is meant rather than a name.

    Parameters
    ----------
    name
        As a user wrote it.
    """
    path = Path(name)
    is_path = isinstance(name, Path) or len(path.parts) > 1 or path.suffix in (".h5", ".hdf5")
    # A file of that name in the present folder is not the library's.
    return is_path or regular.is_file(path)


def lookup(
    name: str | Path, catalogue: str | None, present: settings.Settings
) -> Found | None:  # fmt: skip
    """Statement of the first catalogue that lists a name.

    Parameters
    ----------
    name, catalogue, present
        As for :func:`resolve`.

    Returns
    -------
    None for paths, URLs, and names that are nowhere.
    """
    if is_path(name) or is_url(str(name)):
        return None
    problems: list[str] = []
    for item in _catalogues(catalogue, present, problems):
        if str(name) in item.entries:
            for problem in problems:
                _log.warning("%s", problem)
            return _found(item, item.entries[str(name)], present)
    return None


def _catalogues(
    only: str | None, present: settings.Settings, problems: list[str]
) -> Iterator[Catalogue]:
    """Catalogues in the order in which they are searched, each read when its turn comes."""
    if only is not None:
        yield _read(only, present, problems)
        return
    yield catalogues.built_in()
    for where in present.catalogues:
        try:
            item = _read(where, present, problems)
        except UserError as error:
            # The others are still of use; whoever needs this one is told.
            problems.append(f"catalogue not read: {error}")
        else:
            yield item


def _read(where: str, present: settings.Settings, problems: list[str]) -> Catalogue:
    """One catalogue; a remote one is read once in a process."""
    if where == "built-in":
        return catalogues.built_in()
    if not is_url(where):
        return catalogues.read_folder(where)
    read, problem = _read_remote(where, present.cache, present.offline)
    if problem is not None:
        problems.append(problem)
    return read


@functools.cache
def _read_remote(where: str, cache_folder: Path, offline: bool) -> tuple[Catalogue, str | None]:
    """A remote catalogue, and the problem to tell the user, if there is one."""
    from tracegen.library import cache

    base, index = catalogues.index_of(where)
    text, problem = cache.read_index(cache_folder, index, offline)
    return Catalogue(where, base, catalogues.parse(text, index)), problem


def _found(item: Catalogue, entry: Entry, present: settings.Settings) -> Found:
    """An entry together with the place of its file."""
    location = item.locate(entry)
    cached = None
    if isinstance(location, str):
        from tracegen.library import cache

        cached = cache.cached(present.cache, entry)
    return Found(entry, item.where, location, cached)
