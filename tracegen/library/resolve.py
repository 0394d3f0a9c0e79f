"""Resolution of names: catalogues in order, each read when its turn comes."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tracegen import models
from tracegen.library import catalogue as catalogues
from tracegen.library import entry_files, fetched_names, settings
from tracegen.library.address import check_url, full, is_url
from tracegen.library.catalogue import BUILT_IN, Catalogue, Entry
from tracegen.models import config
from tracegen.shared import regular
from tracegen.shared.errors import UserError, check_kind, unknown

MARK = "#"
"""Between a catalogue and a name in it: ``https://example.org/traces#their-trace``."""

SHORT = 3
"""Letters that are too few to be the begin of a model's name."""
ALIKE = 0.8
"""Likeness of a name to a model's, as `difflib` counts it, from which on the model may be meant."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedTrace:
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
        """Tell whether it is on this machine, with the size that its catalogue lists."""
        if isinstance(self.location, Path):
            return entry_files.is_here(self.location, self.entry)
        return self.cached is not None

    @property
    def reference(self) -> str:
        """Name that leads to it and no other, whichever catalogues are configured."""
        return f"{self.catalogue}{MARK}{self.entry.name}"


def search(catalogue: str | None = None, *, offline: bool | None = None) -> tuple[list[ListedTrace], list[str]]:
    """Every trace that can be named.

    Parameters
    ----------
    catalogue
        Folder or URL of the one catalogue to look into; None for all.
    offline
        Whether connections are forbidden; None leaves it to the settings.

    Returns
    -------
    The traces, and one line for each catalogue that could not be read or is not fresh, and for
    each name that needs its catalogue. Of traces of one name in configured catalogues only the
    first can be named, so only it is there.

    Raises
    ------
    UserError
        If the one catalogue asked for cannot be read.
    """
    present = settings.Settings(offline)
    found: dict[str, list[ListedTrace]] = {}
    problems: list[str] = []
    for item in _catalogues(catalogue, present, problems):
        for entry in item.entries.values():
            found.setdefault(entry.name, [_listing(item, entry, present)])
    for item in fetched_names.names(present.present_cache) if catalogue is None else ():
        for entry in item.entries.values():
            found.setdefault(entry.name, []).append(_listing(item, entry, present))
    several = {name: _several(ones) for name, ones in found.items()}
    problems += [_ambiguity(ones) for ones in several.values() if len(ones) > 1]
    return [one for ones in several.values() for one in ones], problems


def resolve(name: str | Path, catalogue: str | None, present: settings.Settings) -> Path | ListedTrace | str:
    """Place of a trace.

    Parameters
    ----------
    name
        Name in a catalogue, alone or as ``CATALOGUE#NAME``, path or URL.
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
        If the name is nowhere or that of several traces, or the file does not exist.
    """
    check_kind("trace", name, (str, Path), "a file, a URL, or a name of `moereplay trace list`")
    name, catalogue = split(name, catalogue)
    text = str(name)
    if isinstance(name, str) and is_url(name):
        return check_url(name)
    path = Path(name)
    if is_path(name):
        if config.is_config(text) and config.says_so(path):
            msg = (
                f"{text}: a model's configuration, and no trace; "
                f"`moereplay trace generate zipf --model {text} --out FILE` makes one of it"
            )
            raise UserError(msg)
        if reason := regular.why_no_file(path):
            msg = f"{text}: {reason}"
            raise UserError(msg)
        return path
    found = lookup(name, catalogue, present)
    if found is None:
        known, problems = search(catalogue, offline=present.offline)
        error = unknown("trace", text, [item.entry.name for item in known])
        said = "".join(f"; {problem}" for problem in problems)
        msg = f"{error}; or give the path of a file{_of_model(text)}{said}"
        raise UserError(msg)
    if isinstance(found.location, Path) and not found.location.is_file():
        msg = f"{text}: {found.location} is listed by {found.catalogue}, but is not there"
        raise UserError(msg)
    return found


def _of_model(name: str) -> str:
    """Say how a trace of a model is made, for a name that is nearly a model's; empty for others."""
    known = [*models.names(), *models.aliases()]
    near = [one for one in known if one.startswith(name)] if len(name) > SHORT else []
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=ALIKE)
    if not near:
        return ""
    made = f"moereplay trace generate uniform --model {near[0]} --out trace.h5"
    return f". {near[0]} is a model: `{made}` makes a trace of it; `moereplay trace models` lists all"


def split(name: str | Path, catalogue: str | None) -> tuple[str | Path, str | None]:
    """Name and catalogue of a reference to a trace.

    Parameters
    ----------
    name
        As a user wrote it: ``CATALOGUE#NAME``, or anything else, which stays as it is.
    catalogue
        The one catalogue asked for otherwise; None for none.

    Raises
    ------
    UserError
        If both name a catalogue.

    Examples
    --------
    >>> split("https://example.org/traces#one", None), split("one", "shelf")
    (('one', 'https://example.org/traces'), ('one', 'shelf'))
    """
    where, _, last = str(name).rpartition(MARK)
    is_file = isinstance(name, Path) or regular.exists(name) or last.endswith((".h5", ".hdf5"))
    if not where or is_file or not catalogues.is_name(last):
        return name, catalogue
    if catalogue is not None:
        msg = f"{name}: names its catalogue, and so does {catalogue}; give one of them"
        raise UserError(msg)
    return last, where


def is_path(name: str | Path) -> bool:
    """Tell whether a path is meant rather than a name.

    Parameters
    ----------
    name
        As a user wrote it.
    """
    path = Path(name)
    is_path = isinstance(name, Path) or len(path.parts) > 1 or path.suffix in (".h5", ".hdf5")
    # A file of that name in the present folder is not the library's.
    return is_path or regular.is_file(path)


def lookup(name: str | Path, catalogue: str | None, present: settings.Settings) -> ListedTrace | None:
    """Statement of the first catalogue that lists a name.

    Parameters
    ----------
    name, catalogue, present
        As for :func:`resolve`.

    Returns
    -------
    None for paths, URLs, and names that are nowhere.

    Raises
    ------
    UserError
        If traces of this name were fetched that are not the same, or not the one found first.
    """
    name, catalogue = split(name, catalogue)
    if is_path(name) or is_url(str(name)):
        return None
    problems: list[str] = []
    found: list[ListedTrace] = []
    for item in _catalogues(catalogue, present, problems):
        if str(name) in item.entries:
            for problem in problems:
                _log.warning("%s", problem)
            found = [_listing(item, item.entries[str(name)], present)]
            break
    if catalogue is None and not (found and found[0].catalogue == BUILT_IN):
        for item in fetched_names.names(present.present_cache, str(name)):
            found += [_listing(item, entry, present) for entry in item.entries.values()]
    found = _several(found)
    if len(found) > 1:
        raise UserError(_ambiguity(found))
    return found[0] if found else None


def _several(found: list[ListedTrace]) -> list[ListedTrace]:
    """Traces of one name that are not the same: the first, and others that were fetched.

    What its catalogue says now stands for what it said when the trace was fetched. A name of the
    package is that of the package.
    """
    if not found or found[0].catalogue == BUILT_IN:
        return found[:1]
    different = {found[0].entry.content_id: found[0]}
    for one in found[1:]:
        if one.catalogue != full(found[0].catalogue):
            different.setdefault(one.entry.content_id, one)
    return list(different.values())


def _ambiguity(found: list[ListedTrace]) -> str:
    """The sentence that says how different traces of one name are told apart."""
    name = found[0].entry.name
    return f"{name} names different traces: write {' or '.join(one.reference for one in found)}"


def _catalogues(only: str | None, present: settings.Settings, problems: list[str]) -> Iterator[Catalogue]:
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
    if where == BUILT_IN:
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
    from tracegen.library import remote_index

    base, index = catalogues.index_of(where)
    text, problem = remote_index.read_index(cache_folder, index, offline)
    return Catalogue(where, base, catalogues.parse(text, index)), problem


def _listing(item: Catalogue, entry: Entry, present: settings.Settings) -> ListedTrace:
    """An entry together with the place of its file."""
    location = item.locate(entry)
    cached = None
    if isinstance(location, str):
        from tracegen.library import cache

        cached = cache.find_cached(present.cache, entry)
    return ListedTrace(entry, item.where, location, cached)
