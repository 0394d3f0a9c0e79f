"""Opening files of strangers: arrays without pickle, tensors with weights only, JSON.

Longer than most modules: what is refused of a stranger's file can be read in one place.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import io
import math
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers import saved_arrays
from tracegen.importers.values import as_array
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

MAX_GUNZIPPED_BYTES = 2**30
"""Longest text that a compressed file may become."""

MAX_DUMP_BYTES = 2**34
"""Of a file that is read whole: two million tokens of 60 layers at top-8 take half of it."""


_REFUSED = re.compile(r"WeightsUnpickler error: (.+?)(?: was not an allowed|\n|$)")
"""Of torch: what in a file it would have to unpickle."""


def load_bytes(path: Path) -> bytes:
    """Content of a file.

    Parameters
    ----------
    path
        Of the file.

    Raises
    ------
    UserError
        If it cannot be read, is no regular file, or is larger than any dump.
    """
    try:
        return regular.read_bytes(path, MAX_DUMP_BYTES)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise UserError(msg) from error


def load_array(source: Path | bytes, where: str) -> Array:
    """A ``.npy`` array; type and shape are read from its header, pickle is refused.

    Parameters
    ----------
    source
        Path, or the bytes of such a file.
    where
        Name of the source in errors.

    Raises
    ------
    UserError
        If it is none, holds objects, or declares more than is there.
    """
    data = source if isinstance(source, bytes) else load_bytes(source)
    try:
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        if dtype.hasobject:
            msg = f"{where}: holds Python objects, which only unpickling could read: refused"
            raise UserError(msg)
        # Before anything is allocated by what the header declares.
        if math.prod(shape) * dtype.itemsize > len(data) - stream.tell():
            msg = f"{where}: declares {shape} of {dtype}, more than its {len(data)} bytes"
            raise UserError(msg)
        stream.seek(0)
        array: Array = np.load(stream, allow_pickle=False)
    except UserError:
        raise
    except Exception as error:  # numpy reads the header as Python reads a program
        msg = f"{where}: not an .npy array ({first_line(error)})"
        raise UserError(msg) from error
    return array


def first_line(error: Exception) -> str:
    """First line of a library's message on a file that is not its own, which may be all of the file."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def load_npz(path: Path) -> dict[str, Array]:
    """Arrays of an ``.npz`` archive, without pickle.

    Parameters
    ----------
    path
        Of the archive.

    Raises
    ------
    UserError
        If it is none, or an array in it holds objects.
    """
    try:
        regular.check(path)
        with zipfile.ZipFile(path) as archive:
            _check_unpacked(archive, path)
            return {
                entry.filename.removesuffix(".npy"): load_array(archive.read(entry), f"{path}: {entry.filename}")
                for entry in archive.infolist()
            }
    except UserError:
        raise
    except Exception as error:  # encrypted, packed by what Python has not, cut off, ...
        msg = f"{path}: not an .npz archive ({first_line(error)})"
        raise UserError(msg) from error


def _check_unpacked(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an archive that becomes much larger when it is unpacked."""
    total = sum(entry.file_size for entry in archive.infolist())
    most = max(MAX_GUNZIPPED_BYTES, path.stat().st_size)
    if total > most:
        msg = f"{path}: {total} bytes unpacked; at most {most}"
        raise UserError(msg)


def load_tensors(path: Path) -> Any:
    """Content of a file of ``torch.save``, tensors as arrays; only tensors and plain containers.

    Parameters
    ----------
    path
        Of a ``.pt`` file.

    Raises
    ------
    UserError
        If torch is missing, or the file holds anything that must be unpickled.
    """
    try:
        import torch
    except ImportError as error:
        msg = f"{path}: reading .pt files needs torch: pip install 'moereplay[capture]'"
        raise UserError(msg) from error
    try:
        regular.check(path)
        with _numpy_arrays_allowed(torch), warnings.catch_warnings(action="ignore"):
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    _check_unpacked(archive, path)
            return _plain(torch.load(path, map_location="cpu", weights_only=True))
    except UserError:
        raise
    except pickle.UnpicklingError as error:  # the rest of its text tells how to run the file's code
        said = _REFUSED.search(str(error))
        cut = "cut, or with objects that only unpickling could read"
        told = f"it holds more: {said[1][:200]}" if said else cut
        msg = f"{path}: not a file of plain tensors ({told})"
        raise UserError(msg) from error
    except Exception as error:  # pickle, zip and torch each have their own
        msg = f"{path}: not a file of plain tensors ({first_line(error)[:200]})"
        raise UserError(msg) from error


def _numpy_arrays_allowed(torch: Any) -> contextlib.AbstractContextManager[Any]:
    """Loading with weights only, where arrays of numbers count as weights."""
    if not hasattr(torch.serialization, "safe_globals"):  # before torch 2.5
        return contextlib.nullcontext()
    allowed: contextlib.AbstractContextManager[Any]
    allowed = torch.serialization.safe_globals(saved_arrays.stand_ins())
    return allowed


def _plain(value: Any) -> Any:
    """Tensors as arrays, containers kept."""
    if isinstance(value, saved_arrays.SavedArray):
        return value.array
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        declared, stored = tensor.nbytes, tensor.untyped_storage().nbytes()
        if declared > max(stored, MAX_GUNZIPPED_BYTES):  # numbers that are many times the same
            raise ValueError(f"declares {tuple(tensor.shape)}, {declared} bytes of {stored}")
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def load_text(path: Path) -> str:
    """Text of a file, gunzipped if its name ends in ``.gz``.

    Parameters
    ----------
    path
        Of the file.

    Raises
    ------
    UserError
        If it cannot be read, is not UTF-8, or unpacks to more than a GiB.
    """
    try:
        if path.suffix != ".gz":
            return regular.read_text(path, MAX_DUMP_BYTES)
        regular.check(path)
        with gzip.open(path) as packed:
            data = packed.read(MAX_GUNZIPPED_BYTES + 1)
        if len(data) > MAX_GUNZIPPED_BYTES:
            msg = f"{path}: unpacks to more than {MAX_GUNZIPPED_BYTES} bytes"
            raise UserError(msg)
        return data.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or error
        msg = f"{path}: cannot be read as text ({told})"
        raise UserError(msg) from error


def load_json(text: str, where: str) -> Any:
    """A JSON value.

    Parameters
    ----------
    text
        Of it.
    where
        File and line, for errors.

    Raises
    ------
    UserError
        If it is not JSON.
    """
    try:
        return regular.parse_json(text)
    except ValueError as error:
        msg = f"{where}: not JSON ({error})"
        raise UserError(msg) from error


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of a ``.json`` (one, or a list) or ``.jsonl`` file, with where they stand.

    Parameters
    ----------
    path
        Of the file.

    Raises
    ------
    UserError
        If it holds anything else.
    """
    text = load_text(path)
    if ".jsonl" in path.name:
        lines = enumerate(text.splitlines(), 1)
        found = [(f"{path}, line {n}", load_json(line, f"{path}, line {n}")) for n, line in lines if line.strip()]
    else:
        value = load_json(text, str(path))
        found = [(f"{path}, entry {n}", entry) for n, entry in enumerate(value if isinstance(value, list) else [value])]
    for where, entry in found:
        if not isinstance(entry, dict):
            msg = f"{where}: not an object"
            raise UserError(msg)
        yield where, entry


def load_prompt_lengths(path: Path, requests: int) -> list[int]:
    """Tokens of each prompt, from a file of lengths or of token ids.

    Parameters
    ----------
    path
        ``.npy`` with lengths (request,), token ids (request, token) padded with -1, or the token
        ids (token,) of one request; ``.json`` or ``.jsonl`` with one entry a request: a length, a
        list of token ids, or an object with ``prompt_token_ids`` or ``prompt_len``.
    requests
        Number of requests.

    Raises
    ------
    UserError
        If it is none of them.
    """
    if path.suffix == ".npy":
        array = load_array(path, str(path))
        if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
            msg = f"{path}: {array.dtype} {array.shape}; lengths or token ids are expected"
            raise UserError(msg)
        if array.ndim == 1 and requests == 1 and array.size != 1:
            return [array.size]
        lengths = array if array.ndim == 1 else (array.astype(np.int64) >= 0).sum(axis=1)
        return [int(length) for length in lengths]
    text = load_text(path)
    if ".jsonl" in path.name:
        entries = [load_json(line, str(path)) for line in text.splitlines() if line.strip()]
    else:
        entries = load_json(text, str(path))
    found = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        value = entry
        if isinstance(entry, dict):
            value = entry.get("prompt_token_ids", entry.get("prompt_len"))
        length = len(value) if isinstance(value, list) else value
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            msg = f"{path}, entry {number}: {str(entry)[:60]!r} is no length and no token ids"
            raise UserError(msg)
        found.append(length)
    return found


def from_base64(text: Any, where: str) -> bytes:
    """Bytes of a base64 text.

    Parameters
    ----------
    text
        As found in JSON.
    where
        For errors.

    Raises
    ------
    UserError
        If it is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        msg = f"{where}: not base64 ({error})"
        raise UserError(msg) from error


def integers(array: Any, dims: int, where: str) -> Array:
    """An array of integers with so many dimensions.

    Parameters
    ----------
    array
        As read.
    dims
        Dimensions it must have.
    where
        For errors.

    Raises
    ------
    UserError
        If it is anything else.
    """
    found = as_array(array, where)
    if found.dtype.kind not in "iu":
        msg = f"{where}: {found.dtype} {found.shape}; integers are expected"
        raise UserError(msg)
    if found.ndim != dims:
        msg = f"{where}: {found.dtype} {found.shape}; {dims} dimensions are expected"
        raise UserError(msg)
    if found.size and int(found.max()) > np.iinfo(np.int64).max:
        msg = f"{where}: {found.max()} is no expert id"  # as a signed number it would be negative
        raise UserError(msg)
    return found.astype(np.int64)
