"""Catalogues: lists of traces, with the place and the hash of every file.

A catalogue is one text, `index.toml`, beside the trace files or at a URL. It may come from
a stranger: names, paths, sizes and texts are checked before anything is done with them.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tracegen.library.address import check_url as check_url
from tracegen.library.address import is_url, join
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder

INDEX = "index.toml"
"""File name of a catalogue."""
BUILT_IN = "built-in"
"""What stands for the catalogue that comes with the package, where one is named."""
VERSION = 1
"""Version of the catalogue format; a reader ignores keys that it does not know."""
MAX_INDEX_BYTES = 16 * 2**20
"""Largest catalogue that is read: some 20,000 traces."""
MAX_FILE_BYTES = 2**42
"""Largest trace file that a catalogue may list, 4 TiB; real ones have megabytes."""


_PART = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
_FILE = re.compile(rf"(?:{_PART}/){{0,7}}{_PART}\.(?:h5|hdf5)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
# What Windows opens as a device, whatever the suffix.
_DEVICES = re.compile(r"(?i)(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits.

    Parameters
    ----------
    path
        Of the file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_name(text: str) -> bool:
    """Tell whether a catalogue could list a trace under this name.

    Parameters
    ----------
    text
        As a user wrote it.
    """
    return _NAME.fullmatch(text) is not None and not _DEVICES.fullmatch(text)


def check_name(name: str) -> str:
    """Refuse names that could not stand in a catalogue, or that would be paths.

    Parameters
    ----------
    name
        Of a trace.

    Returns
    -------
    The same name.

    Raises
    ------
    UserError
        Saying what a name is made of.
    """
    try:
        return _name(name)
    except ValueError as error:
        msg = f"the name {name!r} {error}"
        raise UserError(msg) from error


def _printable(text: str) -> str:
    """Text that cannot move a terminal's cursor."""
    if not all(c.isprintable() for c in text):
        msg = "must not contain control characters"
        raise ValueError(msg)
    return text


def _name(text: str) -> str:
    if not is_name(text):
        msg = "must consist of letters, digits and . _ + -, at most 100"
        raise ValueError(msg)
    return text


def _file(text: str) -> str:
    if not _FILE.fullmatch(text) or any(_DEVICES.fullmatch(part) for part in text.split("/")):
        msg = "must be a relative path below the catalogue that ends in .h5 or .hdf5"
        raise ValueError(msg)
    return text


Line = Annotated[str, Field(max_length=4096), AfterValidator(_printable)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**32)]


class Entry(BaseModel):
    """One trace of a catalogue."""

    # Keys of later versions are ignored, so that an old reader can use a new catalogue.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: Annotated[str, AfterValidator(_name)]
    """By which commands find the trace."""
    title: Line
    """For people."""
    file: Annotated[str, AfterValidator(_file)]
    """Path of the file, relative to the catalogue."""
    url: Annotated[Line, AfterValidator(lambda url: url and check_url(url))] = ""
    """Address of the file if it is not beside the catalogue."""
    file_bytes: Annotated[int, Field(gt=0, le=MAX_FILE_BYTES)]
    """Size of the file."""
    sha256: Sha256
    """Of the file's bytes."""
    content_id: Sha256
    """Identity of the content; checked by :func:`tracegen.library.verify`."""
    model: Line
    """Name in the catalogue of model shapes, or of the checkpoint."""
    dataset: Line = ""
    """Texts that were routed; empty for synthetic traces."""
    kind: Line
    """synthetic, captured or imported."""
    phase: Line
    """prefill, decode, training or encoder."""
    num_layers: Count
    """MoE layers that it has."""
    num_tokens: Count
    """Tokens of each layer."""
    num_experts: Count
    """Routed experts of a layer."""
    topk: Count
    """Experts chosen per token."""
    num_ranks: Count = 0
    """Source GPUs the trace was made for; 0 where batches are formed at replay."""
    has_gate_weights: bool = False
    """Whether it has the weights of the chosen experts."""
    load_max_over_mean: Annotated[float, Field(ge=0, le=65_536, allow_inf_nan=False)] = 0.0
    """Tokens of the busiest expert over the mean expert's; median over layers. 0 if unknown."""
    load_gini: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Gini coefficient of the tokens per expert; median over layers."""
    license: Line
    """SPDX identifier."""
    citation: Line = ""
    """Publication to cite."""
    source: Line
    """Origin, or the command that makes the trace."""


@dataclass(frozen=True)
class Catalogue:
    """The traces of one place."""

    where: str
    """Folder or URL as it was given, or ``built-in``."""
    base: str
    """Folder or URL that the files of the entries are relative to."""
    entries: dict[str, Entry]

    def locate(self, entry: Entry) -> Path | str:
        """Path or URL of a trace's file.

        Parameters
        ----------
        entry
            Of this catalogue.
        """
        if entry.url:
            return entry.url
        return join(self.base, entry.file) if is_url(self.base) else Path(self.base) / entry.file


def index_of(where: str) -> tuple[str, str]:
    """Base and index of a catalogue given as a folder, a URL, or either's index itself.

    Parameters
    ----------
    where
        As a user wrote it.

    Returns
    -------
    Path or URL of the base, and of the index.
    """
    if is_url(where):
        check_url(where)
        parts = urlsplit(where)
        if parts.path.endswith(".toml"):
            above = parts._replace(path=parts.path.rpartition("/")[0])
            return urlunsplit(above), where
        return where, join(where, INDEX)
    path = regular.expand_home(where)
    return (str(path.parent), str(path)) if path.suffix == ".toml" else (where, str(path / INDEX))


def parse(text: str, where: str) -> dict[str, Entry]:
    """Entries of a catalogue.

    Parameters
    ----------
    text
        Of the index.
    where
        Name of the source in errors.

    Returns
    -------
    By name, in the order of the text.

    Raises
    ------
    UserError
        Naming the entry and the key that are wrong.
    """
    try:
        document = regular.parse_toml(text)
    except ValueError as error:
        msg = f"{where}: not a catalogue: {error}"
        raise UserError(msg) from error
    version = document.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        msg = f"{where}: catalogue version {version!r}; this moereplay reads {VERSION}"
        raise UserError(msg)
    listed = document.get("trace", [])
    if not isinstance(listed, list):
        msg = f"{where}: 'trace' must be an array of tables, written [[trace]]"
        raise UserError(msg)
    found: dict[str, Entry] = {}
    for number, item in enumerate(listed, 1):
        entry = _entry(item, f"{where}: trace {number}")
        if entry.name in found:
            msg = f"{where}: trace {number}: {entry.name} is listed twice"
            raise UserError(msg)
        found[entry.name] = entry
    return found


def _entry(item: Any, where: str) -> Entry:
    """One checked entry."""
    try:
        return Entry.model_validate(item)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        given = "" if problem["type"] == "missing" else f" ({problem['input']!r:.80})"
        msg = f"{where}: {key}: {problem['msg']}{given}"
        raise UserError(msg) from error


def text_of(entries: Iterable[Entry], comment: str) -> str:
    """A catalogue as TOML.

    Parameters
    ----------
    entries
        In the order in which they are to be listed.
    comment
        First line.

    Returns
    -------
    Readable by :func:`parse`; keys at their default are left out.
    """
    lines = [f"# {comment}", f"version = {VERSION}"]
    for entry in entries:
        lines += ["", "[[trace]]"]
        # TOML's strings, numbers and booleans are written as JSON writes them; entries hold
        # neither control characters nor anything nested.
        for key, value in entry.model_dump(exclude_defaults=True).items():
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def write(folder: Path, entries: Iterable[Entry], comment: str) -> None:
    """Put a catalogue into a folder, whole or not at all.

    Parameters
    ----------
    folder
        Must exist.
    entries, comment
        As for :func:`text_of`.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    ManagedFolder(folder).write_text(INDEX, text_of(entries, comment))


@functools.cache
def built_in() -> Catalogue:
    """The catalogue that comes with the package.

    Raises
    ------
    UserError
        If it is missing or malformed.
    """
    # The traces lie beside this package, in a source tree as in an installation. The import system
    # might find a folder `traces` of the user's instead.
    folder = Path(__file__).parents[2] / "traces"
    try:
        text = (folder / INDEX).read_text("utf-8")
    except (OSError, ValueError) as error:
        msg = f"the trace library is not usable: traces/{INDEX}: {error}"
        raise UserError(msg) from error
    return Catalogue(BUILT_IN, str(folder), parse(text, f"traces/{INDEX}"))


def read_folder(where: str) -> Catalogue:
    """The catalogue of a folder.

    Parameters
    ----------
    where
        The folder, or its index.

    Raises
    ------
    UserError
        If there is none, or it is malformed.
    """
    base, index = index_of(where)
    path = Path(index)
    try:
        text = regular.read_text(path, MAX_INDEX_BYTES)
    except OSError as error:
        msg = f"{path}: no such catalogue ({error.strerror})"
        raise UserError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path}: not a catalogue: {error}"
        raise UserError(msg) from error
    return Catalogue(where, base, parse(text, index))
