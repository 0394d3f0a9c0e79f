"""Names of traces that were fetched: from then on they work without their catalogue.

Each is noted in the cache with the statement of its catalogue, so that what it names is told from
another trace of that name, and checked as if the catalogue had been asked.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tracegen.library import catalogue
from tracegen.library.address import full
from tracegen.library.catalogue import Catalogue, Entry
from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder

MOST_BYTES = 2**18
"""Bytes of a note; an entry has at most eight texts of 4 KB."""

_log = logging.getLogger(__name__)


class FetchedName(BaseModel):
    """A name, and what the catalogue said of it when the trace was fetched."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    catalogue: str
    """Folder, in full, or URL."""
    trace: Entry

    @property
    def origin(self) -> Catalogue:
        """Catalogue that the trace was fetched from, with this one entry."""
        base, _ = catalogue.index_of(self.catalogue)
        return Catalogue(self.catalogue, base, {self.trace.name: self.trace})


def note(cache: Path, where: str, entry: Entry) -> None:
    """Keep the name of a trace that was fetched.

    Parameters
    ----------
    cache
        Folder of the cache.
    where
        Folder or URL of the catalogue.
    entry
        What it says of the trace.
    """
    place = full(where)
    files = ManagedFolder(cache, "fetched", hashlib.sha256(place.encode()).hexdigest())
    document = {"catalogue": place, "trace": entry.model_dump(exclude_defaults=True)}
    try:
        with files.present():
            files.write_text(f"{entry.name}.json", json.dumps(document) + "\n")
    except UserError as error:  # a cache that others share may be read-only
        _log.warning("%s has no name of its own from now on: %s", entry.name, error)


def names(cache: Path | None, name: str | None = None) -> Iterator[Catalogue]:
    """Catalogues that traces were fetched from, each with one of these traces.

    Parameters
    ----------
    cache
        Folder of the cache; None if there is none.
    name
        Of the traces; None for all.
    """
    if cache is None or (name is not None and not catalogue.is_name(name)):
        return
    for path in sorted((cache / "fetched").glob(f"*/{name or '*'}.json")):
        try:
            text = ManagedFolder(cache, "fetched", path.parent.name).read_text(path.name, MOST_BYTES)
            yield FetchedName.model_validate_json(text).origin
        except (OSError, UnicodeDecodeError, ValidationError, UserError):
            _log.warning("%s is passed over: it says of no trace that it was fetched", path)
