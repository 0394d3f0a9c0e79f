"""Label of a finished trace, set anew: title, licence, source and notes.

None of them is part of the content, so that the content id stays, and with it every result that
names it. The bytes of the file change: a file that a catalogue lists with their SHA-256 is refused.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tracegen import library
from tracegen.library import catalogue, resolve
from tracegen.library.catalogue import INDEX
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace import provenance
from tracegen.trace.tables import TraceInfo

ABOVE = 8
"""Folders above a file in which a catalogue may list it."""


def describe(
    trace: str | Path,
    *,
    title: str | None = None,
    license: str | None = None,
    source: str | None = None,
    notes: str | None = None,
    max_bytes: int | None = None,
) -> str:
    """Set what a trace says of itself; the file is replaced whole or not at all.

    Parameters
    ----------
    trace
        Path of the file.
    title, license
        New ones; None leaves what is there.
    source
        Where the trace is from, as ``import --source`` says it.
    notes
        Anything else a reader must know.
    max_bytes
        Refuse to allocate more than this, in bytes; None for 4 GiB.

    Returns
    -------
    The content id, which stays.

    Raises
    ------
    UserError
        If there is nothing to set, the file is no valid trace, a text is too long, or a catalogue
        lists the file.
    """
    given = {"title": title, "license": license, "source": source, "notes": notes}
    if all(text is None for text in given.values()):
        msg = "nothing to set: give --title, --license, --source or --notes"
        raise UserError(msg)
    path = Path(trace)
    if isinstance(trace, str) and not resolve.is_path(trace):
        msg = (
            f"{trace}: describe takes a file of yours; a copy of a trace of a catalogue is made by "
            f"`moereplay trace convert {trace} FILE`"
        )
        raise UserError(msg)
    _refuse_listed(path)
    loaded = library.load(path, max_bytes=max_bytes)
    from tracegen.file.writer import write

    changed = dataclasses.replace(loaded, info=_info(loaded.info, title, license, source, notes))
    return write(changed, path, overwrite=True)


def _info(info: TraceInfo, title: str | None, license: str | None, source: str | None, notes: str | None) -> TraceInfo:
    """The same with new texts."""
    record = info.provenance
    if source is not None or notes is not None:
        record = dict(record or provenance.record("moereplay trace describe"))
        if source is not None:
            record["source"] = {**record.get("source", {}), "origin": source}
        if notes is not None:
            record["notes"] = notes
    return dataclasses.replace(
        info,
        title=info.title if title is None else title,
        license=info.license if license is None else license,
        provenance=record,
    )


def _refuse_listed(path: Path) -> None:
    """Refuse a file whose bytes a catalogue states."""
    for named in dict.fromkeys((path.absolute(), regular.real(path))):
        for folder in named.parents[:ABOVE]:
            index = folder / INDEX
            if not index.is_file():
                continue
            file = named.relative_to(folder).as_posix()
            try:
                entries = catalogue.read_folder(str(folder)).entries.values()
            except UserError:
                continue  # what is no catalogue lists nothing
            for entry in entries:
                if not entry.url and entry.file == file:
                    msg = (
                        f"{path} is listed by {index} with the hash of its bytes: describe the "
                        f"file that it is a copy of, and add or publish that one again"
                    )
                    raise UserError(msg)
