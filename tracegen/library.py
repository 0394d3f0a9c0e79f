"""Named traces: the index that ships with the package, and loading by name or path."""

import contextlib
import functools
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

from tracegen.errors import UserError, unknown_name
from tracegen.trace import RoutingTrace

if TYPE_CHECKING:
    from tracegen.hdf5 import TraceFile


class Entry(BaseModel):
    """One trace of the library, as `index.toml` describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    title: str
    file: str
    """File name beside the index."""
    file_bytes: int
    content_id: str
    """Identity of the content; checked by :func:`verify`."""
    model: str
    """Name in the catalogue of model shapes."""
    kind: str
    phase: str
    num_layers: int
    num_tokens: int
    num_experts: int
    topk: int
    num_ranks: int = 0
    """Source GPUs the trace was made for; 0 where batches are formed at replay."""
    has_gate_weights: bool = False
    license: str
    source: str
    """Where it is from, or the command that makes it."""


@functools.cache
def entries() -> dict[str, Entry]:
    """Every trace of the library by name.

    Raises
    ------
    UserError
        If the index is missing or malformed.
    """
    try:
        text = (resources.files("traces") / "index.toml").read_text("utf-8")
        listed = [Entry.model_validate(entry) for entry in tomllib.loads(text)["trace"]]
    except (ModuleNotFoundError, OSError, KeyError, ValueError, ValidationError) as error:
        msg = f"the trace library is not usable: traces/index.toml: {error}"
        raise UserError(msg) from error
    return {entry.name: entry for entry in listed}


def find(name: str | Path) -> Path:
    """Path of a trace.

    Parameters
    ----------
    name
        Name in the library, or a path: anything with a folder, an ``.h5`` or ``.hdf5``
        suffix, or that exists.

    Raises
    ------
    UserError
        If the name is not in the library, the file does not exist, or a URL was given.
    """
    text = str(name)
    if "://" in text:
        msg = f"{text}: URLs are not supported; download the file and give its path"
        raise UserError(msg)
    path = Path(name)
    is_path = isinstance(name, Path) or len(path.parts) > 1 or path.suffix in (".h5", ".hdf5")
    if is_path or path.is_file():
        if not path.is_file():
            msg = f"{text}: no such file"
            raise UserError(msg)
        return path
    known = entries()
    if text not in known:
        problem = unknown_name("trace", text, known)
        msg = f"{problem}; or give the path of a file"
        raise UserError(msg)
    return Path(str(resources.files("traces") / known[text].file))


def load(
    name: str | Path,
    layers: Sequence[int] | None = None,
    tokens: slice | None = None,
    max_bytes: int | None = None,
) -> RoutingTrace:
    """Load a trace, or part of one, by name or path.

    Parameters
    ----------
    name
        Name in the library, or the path of a file.
    layers
        Positions among the MoE layers, ascending; None for all.
    tokens
        Token rows, without stride; None for all.
    max_bytes
        Refuse to allocate more than this, in bytes; None for 4 GiB.

    Returns
    -------
    Every value read is checked; the content id is that of the whole file and is
    believed (``moereplay trace validate`` recomputes it).

    Raises
    ------
    UserError
        If there is no such trace, or it is damaged or not what the format says.
    """
    from tracegen import hdf5

    with hdf5.open_trace(find(name)) as file:
        return file.read(layers, tokens, hdf5.MAX_LOAD_BYTES if max_bytes is None else max_bytes)


@contextlib.contextmanager
def open_trace(name: str | Path | BinaryIO) -> "Iterator[TraceFile]":
    """Open a trace by name or path: the header now, the body on request.

    Parameters
    ----------
    name
        Name in the library, the path of a file, or a binary file object that can seek.

    Yields
    ------
    The open file.

    Raises
    ------
    UserError
        If there is no such trace or it is not one this reader knows.
    """
    from tracegen import hdf5

    with hdf5.open_trace(find(name) if isinstance(name, str | Path) else name) as file:
        yield file


def verify(name: str | Path) -> str:
    """Check every value of a trace, its content id, and the index if it is in the library.

    Parameters
    ----------
    name
        Name in the library, or the path of a file.

    Returns
    -------
    The content id.

    Raises
    ------
    UserError
        Naming what is wrong.
    """
    with open_trace(name) as file:
        file.verify()
        entry = entries().get(str(name))
        # A file of that name in the present folder is not the library's.
        listed = entry is not None and not Path(name).is_file()
        if entry is not None and listed and file.content_id != entry.content_id:
            msg = f"{name}: content id {file.content_id} is not the index's {entry.content_id}"
            raise UserError(msg)
        return file.content_id
