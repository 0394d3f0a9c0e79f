"""Putting traces into a catalogue, and a catalogue into a folder that can be uploaded."""

from __future__ import annotations

import datetime
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from tracegen import library
from tracegen.library import card, catalogue, describe, resolve, view
from tracegen.library.card import FolderFacts
from tracegen.library.catalogue import INDEX, Entry
from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder

COMMENT = "Written by moereplay. content_id: what a trace says, not its bytes."
"""First line of the catalogues written here."""
TABLES = "tables"
"""Folder of the tables, beside the traces."""


def add(
    folder: Path,
    trace: str,
    *,
    name: str | None = None,
    dataset: str = "",
    citation: str = "",
    source: str = "",
    replace: bool = False,
) -> Entry:
    """Copy a trace into a folder and list it in the folder's catalogue.

    Parameters
    ----------
    folder
        Of the catalogue; made if need be.
    trace
        Name in a catalogue, path or URL.
    name
        Name in the catalogue; by default the one it has.
    dataset, citation, source
        See :class:`tracegen.library.Entry`; by default as listed where it is from.
    replace
        Whether a trace of that name may be replaced.

    Returns
    -------
    The new entry.

    Raises
    ------
    UserError
        If the trace is not valid or has no licence, or the name is taken.
    """
    if name is None:
        last = str(resolve.split(trace, None)[0]).rpartition("/")[2]
        name = Path(last).name.removesuffix(".h5").removesuffix(".hdf5")
    catalogue.check_name(name)
    if name in library.entries() and not _is_built_in(trace, name):
        msg = f"{name} comes with the package and could not be found by that name; give another"
        raise UserError(msg)
    present = catalogue.read_folder(str(folder)).entries if (folder / INDEX).exists() else {}
    if name in present and not replace:
        msg = f"{folder}: {name} is listed already; --force replaces it"
        raise UserError(msg)
    source_listing = library.lookup(trace)
    files = ManagedFolder(folder)
    described = source_listing.entry if source_listing else None
    path = library.find(trace)
    with files.present(), files.draft_of(f"{name}.h5") as draft:
        # Copied first and checked then: what is listed is what was checked.
        shutil.copyfile(path, draft)
        try:
            entry = describe.entry(
                draft,
                name,
                dataset=dataset or (described.dataset if described else ""),
                citation=citation or (described.citation if described else ""),
                source=source or (described.source if described else ""),
                file_name=f"{name}.h5",
            )
        except UserError as error:  # of the copy, which nobody has named
            raise UserError(str(error).replace(str(draft), trace)) from error
        if not entry.license:
            msg = f"{trace}: says nothing of its licence; nobody could use it"
            raise UserError(msg)
    entries = sorted({**present, name: entry}.items())
    catalogue.write(folder, [item for _, item in entries], COMMENT)
    return entry


def publish(
    folder: Path,
    traces: Sequence[str],
    about: FolderFacts,
    *,
    with_token_ids: bool = False,
    with_tables: bool = True,
    replace: bool = False,
) -> list[Entry]:
    """Make a folder to upload as it is: files, catalogue, data set card, Croissant metadata.

    Parameters
    ----------
    folder
        To make; appears complete or not at all.
    traces
        Names in catalogues, paths or URLs.
    about
        For the card.
    with_token_ids
        Whether traces with vocabulary entries may be published: they are the texts.
    with_tables
        Whether each trace is also there as a table (Parquet), which never has the texts.
    replace
        Whether the folder may be replaced.

    Returns
    -------
    Its entries.

    Raises
    ------
    UserError
        If a trace is not valid, has no licence or would publish texts; if the folder exists; if
        what writes tables is not installed.
    """
    _check_target(folder, replace)
    for name in ("title", "creator"):
        if not getattr(about, name).strip():
            msg = f"--{name} is empty: the data set card needs one"
            raise UserError(msg)
    if with_tables:
        view.check_installed()
    if about.base_url:
        catalogue.check_url(about.base_url)
    for trace in traces:
        with library.open_trace(trace) as file:
            if file.has_token_ids and not with_token_ids:
                msg = (
                    f"{trace}: holds token ids, that is the texts; leave them out with "
                    "`moereplay trace convert --without token_id`, or publish --with-token-ids"
                )
                raise UserError(msg)
    draft = folder.absolute().with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        entries = [
            add(draft, trace, dataset=about.dataset, citation=about.citation, source=about.source) for trace in traces
        ]
        views = {
            one.name: view.write(draft / one.file, draft, f"{TABLES}/{one.name}.parquet")
            for one in (entries if with_tables else [])
        }
        texts = card.texts(entries, views, about, datetime.datetime.now(datetime.UTC).date())
        for name, text in texts.items():
            ManagedFolder(draft).write_text(name, text)
        if folder.exists():
            shutil.rmtree(folder)
        draft.replace(folder)
    except OSError as error:
        msg = f"{folder}: cannot be written ({error.strerror})"
        raise UserError(msg) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return entries


def _check_target(folder: Path, replace: bool) -> None:
    """Refuse to overwrite what was not asked for, or what was never published from here."""
    if not folder.name or not folder.absolute().parent.is_dir():
        msg = f"{folder}: the folder {folder.absolute().parent} does not exist"
        raise UserError(msg)
    if not folder.exists():
        return
    if not replace:
        msg = f"{folder} exists; --force replaces it"
        raise UserError(msg)
    if not (folder / INDEX).is_file() or not (folder / card.CROISSANT).is_file():
        # Somebody's home, perhaps.
        msg = f"{folder} exists and was not made by `publish`; it is not replaced"
        raise UserError(msg)


def _is_built_in(trace: str, name: str) -> bool:
    """Tell whether a trace is the one of that name that comes with the package."""
    with library.open_trace(trace) as file:
        return file.content_id == library.entries()[name].content_id
