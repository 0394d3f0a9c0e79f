"""Expert ids of one request as servers and trainers put them into JSON: (token, layer, k).

- base64 of an ``.npy`` file (vLLM, since PR 28284), or of raw bytes: int32, or the type that
  ``routed_experts_dtype`` beside it names (SGLang, PRs 12162 and 31219);
- ``nrlre1:<type>:<S>x<L>x<K>:<base64>`` (NeMo-RL, ``routed_experts_codec.py``);
- an object with ``data`` (base64 or lists), ``shape`` and ``dtype`` (prime-rl and its router: uint8
  where the type is not said), or with the names that encoders of NumPy arrays use;
- lists: nested, or flat where layers and slots are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracegen.importers import files
from tracegen.importers.options import ImportOptions
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

TYPES = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
"""Types that ids may have on the wire, little-endian."""
ENVELOPE = "nrlre1:"
"""Begin of NeMo-RL's text."""
DATA_NAMES = ("data", "values", "__ndarray__")
"""Names for the content of an object that is an array."""
TYPE, SHAPE = "routed_experts_dtype", "routed_experts_shape"
"""What a response says beside its ids."""


def unpack(
    value: Any,
    where: str,
    options: ImportOptions,
    stated: Mapping[str, Any],
    default: str | None,
    due: int | None = None,
) -> Array:
    """Ids of a value in any of these forms.

    Parameters
    ----------
    value
        As found in JSON.
    where
        For errors.
    options
        ``num_layers`` and ``topk``, or a model, where the value has no shape.
    stated
        What stands beside the value: its type and shape.
    default
        Type of raw bytes that nothing names; None if there is none.
    due
        Rows that the request should have, if that is known.

    Returns
    -------
    Integer (token, layer, k).

    Raises
    ------
    UserError
        If it is none of them, or they do not fit.
    """
    if isinstance(value, str):
        if value.startswith(ENVELOPE):
            return _envelope(value, where)
        if value.lstrip().startswith(("[", "array(", "tensor(")):
            msg = (
                f"{where}: routed experts are the printed text of an array, of which the middle is "
                "left out: write array.tolist()"
            )
            raise UserError(msg)
        data = files.from_base64(value, where)
        if data.startswith(np.lib.format.MAGIC_PREFIX):
            return files.integers(files.load_array(data, where), 3, where)
        return _raw(data, where, options, stated, default, due)
    if isinstance(value, dict):
        return _object(value, where)
    if isinstance(value, list) and value and isinstance(value[0], int):
        return _rows(files.integers(value, 1, where), where, options)
    return files.integers(value, 3, where)


def is_filler(ids: Array) -> Array:
    """Rows that no router chose: all 0 (verl), all -1, or experts 0 to k-1 each time (NeMo-RL).

    Parameters
    ----------
    ids
        Integer (token, layer, k).

    Returns
    -------
    bool (token,).
    """
    fillers = [np.array(0), np.array(-1)]
    if ids.shape[1] > 1:  # in one layer alone, a router may choose so
        fillers.append(np.arange(ids.shape[2]))
    found: Array = np.any([(ids == filler).all(axis=(1, 2)) for filler in fillers], axis=0)
    return found


def _type(name: Any, where: str) -> np.dtype[Any]:
    """Type of a name, such as ``uint8`` or ``torch.uint8``."""
    text = str(name).removeprefix("torch.").removeprefix("numpy.").removeprefix("np.")
    if text not in TYPES and not re.fullmatch(r"[<|=]?[iu][1248]", text):
        msg = f"{where}: {str(name)[:40]!r} is no type of expert ids; possible: {', '.join(TYPES)}"
        raise UserError(msg)
    return np.dtype(text).newbyteorder("<")


def _raw(
    data: bytes,
    where: str,
    options: ImportOptions,
    stated: Mapping[str, Any],
    default: str | None,
    due: int | None,
) -> Array:
    """Ids of bytes without a header."""
    name = stated.get(TYPE) or default
    if name is None:
        msg = (
            f"{where}: {len(data)} bytes without the header of an .npy file, and no {TYPE} says "
            "what they are; are they SGLang's? Then give --format sglang"
        )
        raise UserError(msg)
    kind, shape = _type(name, where), stated.get(SHAPE)
    if shape is not None:
        return _reshape(data, kind, shape, where)
    layers, topk = options.size("num_layers"), options.size("topk")
    row = layers * topk
    if TYPE not in stated and due and len(data) != due * row * kind.itemsize:
        for other in ("uint8", "uint16"):
            if len(data) == due * row * np.dtype(other).itemsize:
                msg = (
                    f"{where}: {len(data)} bytes are the {due} rows that are due if their type is "
                    f"{other}, but no {TYPE} says so, and without it they are {kind.name}; add "
                    f'"{TYPE}": "{other}" to the response'
                )
                raise UserError(msg)
    if len(data) % (kind.itemsize * row):
        msg = f"{where}: {len(data)} bytes are no whole number of tokens of {layers} layers x top-{topk} {kind.name}"
        raise UserError(msg)
    return np.frombuffer(data, kind).reshape(-1, layers, topk).astype(np.int64)


def _reshape(data: bytes, kind: np.dtype[Any], shape: Any, where: str) -> Array:
    """Ids of bytes whose shape is stated."""
    try:
        sizes = tuple(int(size) for size in shape)
    except (TypeError, ValueError, OverflowError):
        sizes = ()
    if len(sizes) != 3 or min(sizes) < 0 or math.prod(sizes) * kind.itemsize != len(data):
        msg = f"{where}: {len(data)} bytes of {kind.name} are not of shape {str(shape)[:40]} (tokens, layers, k)"
        raise UserError(msg)
    return np.frombuffer(data, kind).reshape(sizes).astype(np.int64)


def _envelope(text: str, where: str) -> Array:
    """Ids of NeMo-RL's text."""
    name, _, rest = text.removeprefix(ENVELOPE).partition(":")
    shape, _, data = rest.partition(":")
    return _reshape(files.from_base64(data, where), _type(name, where), shape.split("x"), where)


def _object(value: Mapping[str, Any], where: str) -> Array:
    """Ids of an object that is an array."""
    data = next((value[name] for name in DATA_NAMES if value.get(name) is not None), None)
    shape = value.get("shape")
    if isinstance(data, str) and shape is not None:
        kind = _type(value.get("dtype") or "uint8", where)
        return _reshape(files.from_base64(data, where), kind, shape, where)
    if isinstance(data, list):
        return files.integers(data, 3, where)
    msg = f"{where}: an object with {', '.join(sorted(value)[:6])}; data and shape are expected"
    raise UserError(msg)


def _rows(flat: Array, where: str, options: ImportOptions) -> Array:
    """Ids of a flat list."""
    layers, topk = options.size("num_layers"), options.size("topk")
    if flat.size % (layers * topk):
        msg = f"{where}: {flat.size} ids are no whole number of tokens of {layers} x top-{topk}"
        raise UserError(msg)
    return flat.reshape(-1, layers, topk)
