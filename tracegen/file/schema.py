"""Names, types, dimensions and limits of the file format; `FORMAT.md` says it in prose."""

from typing import NamedTuple

FORMAT_NAME = "moe-routing-trace"
FIRST = "1.0.0"
VERSION = "1.1.0"
"""The newest; a file is of the lowest version that has all it says."""
MAJOR = 1
TOKENS_PER_CHUNK = 8192
"""Tokens of one layer in a chunk: replay reads layer by layer, tools read token ranges."""

LIMITS = {
    "layer": 1024,
    "token": 2**32 - 1,
    "k": 255,
    "expert": 65_534,
    "step": 2**32 - 1,
    "request": 2**32 - 1,
}
"""Largest size of each dimension; a file that declares more is refused unread."""

MAX_CHUNK_BYTES = 64 * 2**20
"""Largest decoded chunk that a reader accepts."""
MAX_TEXT_BYTES = 4096
"""Longest string of the request table, and longest title, in bytes of UTF-8."""
MAX_ATTRIBUTE_BYTES = 60_000
"""Longest attribute, below the 64 KiB that HDF5 keeps in an object header."""
LONG_ATTRIBUTES = ("provenance", "shape")
"""Attributes that are JSON; the others are lines, and have at most `MAX_TEXT_BYTES`."""
MAX_DEFLATE_RATIO = 1032
"""DEFLATE cannot shrink data further than this (zlib, technical details)."""


class DatasetSchema(NamedTuple):
    """One dataset of the format."""

    path: str
    types: tuple[str, ...]
    """Kind and bytes; ``S`` is text of fixed length."""
    dims: tuple[str, ...]
    required: bool
    field: str
    """Attribute of the table in :mod:`tracegen.trace.tables` that it becomes."""


COLUMNS: dict[str, DatasetSchema] = {
    column.path: column
    for column in (
        DatasetSchema("model/moe_layer_index", ("u2",), ("layer",), True, "moe_layer_index"),
        DatasetSchema("routing/expert_ids", ("u1", "u2"), ("layer", "token", "k"), True, "expert_ids"),
        DatasetSchema("routing/gate_weights", ("f2",), ("layer", "token", "k"), False, "gate_weights"),
        DatasetSchema("routing/flags", ("u1",), ("layer", "token"), False, "flags"),
        DatasetSchema("tokens/step", ("u4",), ("token",), True, "step"),
        DatasetSchema("tokens/request", ("u4",), ("token",), True, "request"),
        DatasetSchema("tokens/position", ("u4",), ("token",), True, "position"),
        DatasetSchema("tokens/phase", ("u1",), ("token",), True, "phase"),
        DatasetSchema("tokens/rank", ("u2",), ("token",), False, "rank"),
        DatasetSchema("tokens/token_id", ("i4",), ("token",), False, "token_id"),
        DatasetSchema("steps/indptr", ("u8",), ("step+1",), True, "steps_indptr"),
        DatasetSchema("requests/id", ("u4",), ("request",), False, "id"),
        DatasetSchema("requests/prompt_len", ("u4",), ("request",), False, "prompt_len"),
        DatasetSchema("requests/output_len", ("u4",), ("request",), False, "output_len"),
        DatasetSchema("requests/dataset", ("S",), ("request",), False, "dataset"),
        DatasetSchema("requests/label", ("S",), ("request",), False, "label"),
        DatasetSchema("requests/arrival", ("f8",), ("request",), False, "arrival"),
        DatasetSchema("summary/load", ("u8",), ("layer", "expert"), True, "load"),
    )
}
"""Every dataset of version 1.0, in the order in which a writer makes them."""


def columns_of(group: str) -> tuple[DatasetSchema, ...]:
    """Datasets of one group.

    Parameters
    ----------
    group
        E.g. ``"tokens"``.

    Returns
    -------
    In the order of :data:`COLUMNS`.
    """
    return tuple(column for column in COLUMNS.values() if column.path.startswith(f"{group}/"))


def most_bytes(attribute: str) -> int:
    """Bytes of UTF-8 that the text of an attribute has at most.

    Parameters
    ----------
    attribute
        Its name.

    Examples
    --------
    >>> most_bytes("title"), most_bytes("provenance")
    (4096, 60000)
    """
    return MAX_ATTRIBUTE_BYTES if attribute in LONG_ATTRIBUTES else MAX_TEXT_BYTES


def metadata_bytes(num_layers: int, num_tokens: int) -> int:
    """Bytes that a writer has HDF5 set aside at a time for everything but data.

    Enough to hold it all in one piece: by HDF5's default of 2 KiB the indexes of chunks end
    up all over the file, and opening it over a network takes ten times the requests.

    Parameters
    ----------
    num_layers
        Layers of all arrays over (layer, token) together.
    num_tokens
        Rows.

    Examples
    --------
    >>> metadata_bytes(2, 5), metadata_bytes(2 * 58, 65_536)
    (2048, 118784)
    """
    # A node of the index takes 3.1 KB for 32 to 64 chunks.
    return min(max(2048, 128 * num_layers * -(-num_tokens // TOKENS_PER_CHUNK)), 2**20)
