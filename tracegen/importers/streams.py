"""Documents of a file of responses: JSON, JSON lines, or streams of server-sent events.

A stream is many documents of one response (``data: {...}`` lines, or the chunks themselves, one a
line); they are put together by the name that each repeats, up to ``[DONE]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tracegen.importers import files
from tracegen.shared.errors import UserError

FIELDS = ("data:", "event:", "id:", "retry:", ":")
"""Begins of the lines of an event stream; the last one is a comment."""
DONE = "[DONE]"
DELTA = "token_ids"
"""Of vLLM: the list of which a chunk has what came since the last one."""


class ResponseDocument(NamedTuple):
    """A response, and where it stands."""

    where: str
    entry: dict[str, Any]
    is_stream: bool
    """Whether it was put together from chunks."""


def documents(path: Path) -> Iterator[ResponseDocument]:
    """Responses of a file, in the order of their first chunks.

    Parameters
    ----------
    path
        ``.json``, ``.jsonl``, or a stream as it came, maybe gzipped.

    Raises
    ------
    UserError
        Naming file and line of what is not JSON, or no object.
    """
    text = files.load_text(path)
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line]
    if lines and lines[0][1].startswith(FIELDS):
        yield from _streams(_events(path, lines))
        return
    yield from _streams(_parts(path, text, lines))


def _parts(path: Path, text: str, lines: list[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Objects of a JSON file, or of the lines of one; a line may be a list of them."""
    if ".jsonl" in path.name or (len(lines) > 1 and _is_whole(lines[0][1])):
        values = [(f"{path}, line {n}", files.load_json(s, f"{path}, line {n}")) for n, s in lines]
    else:
        values = [(str(path), files.load_json(text, str(path)))]
    for where, value in values:
        if not isinstance(value, list):
            yield where, _object(value, where)
            continue
        for number, entry in enumerate(value):
            place = f"{where}, entry {number}"
            yield place, _object(entry, place)


def _is_whole(line: str) -> bool:
    """Tell whether a line is a JSON document of its own, as in a file of lines named ``.json``."""
    if line[:1] != "{":
        return False
    try:
        files.load_json(line, "")
    except UserError:
        return False
    return True


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{where}: not an object"
        raise UserError(msg)
    return value


def _events(path: Path, lines: list[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Objects of an event stream; None where a response ends."""
    for number, line in lines:
        where = f"{path}, line {number}"
        if not line.startswith(FIELDS):
            msg = f"{where}: no line of an event stream, as the first ones are (data: {{...}})"
            raise UserError(msg)
        if not line.startswith("data:"):
            continue
        content = line.removeprefix("data:").strip()
        if content == DONE:
            yield where, None
        elif content:
            entry = _object(files.load_json(content, where), where)
            yield where, {**entry, "object": entry.get("object") or "chunk"}


def _streams(parts: Iterator[tuple[str, dict[str, Any] | None]]) -> Iterator[ResponseDocument]:
    """Documents, with the chunks of a response put together."""
    open_streams: dict[str, ResponseDocument] = {}
    for where, entry in parts:
        if entry is None:
            yield from open_streams.values()
            open_streams.clear()
        elif not str(entry.get("object", "")).endswith("chunk"):
            yield ResponseDocument(where, entry, is_stream=False)
        else:
            name = _name(entry)
            known = open_streams.setdefault(name, ResponseDocument(where, {}, is_stream=True))
            _add(known.entry, entry)
    yield from open_streams.values()


def _name(entry: dict[str, Any]) -> str:
    """Name that all chunks of a response repeat."""
    meta = entry.get("meta_info")
    own = entry.get("id") or entry.get("request_id")
    if own is None and isinstance(meta, dict):
        own = meta.get("id")
    # SGLang numbers the requests of a batch, which share one stream.
    return f"{own} {entry.get('index', '')}" if meta is not None else str(own)


def _add(into: dict[str, Any], chunk: dict[str, Any]) -> None:
    """Take what a later chunk says: it adds to lists of tokens, and replaces anything else."""
    for name, value in chunk.items():
        known = into.get(name)
        if value is None:
            continue
        if name == DELTA and isinstance(known, list) and isinstance(value, list):
            into[name] = known + value
        elif isinstance(known, dict) and isinstance(value, dict):
            into[name] = known | {key: one for key, one in value.items() if one is not None}
        elif name == "choices" and isinstance(value, list):
            into[name] = _choices(known if isinstance(known, list) else [], value)
        else:
            into[name] = value


def _choices(known: list[Any], new: list[Any]) -> list[Any]:
    """Choices by their index; a chunk without any, such as the one with the usage, changes none."""
    found: dict[int, dict[str, Any]] = {}
    for one in (*known, *new):
        if isinstance(one, dict):
            index = one.get("index")
            _add(found.setdefault(index if isinstance(index, int) else 0, {}), one)
    return [found[index] for index in sorted(found)]
