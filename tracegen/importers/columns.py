"""Arrays of a file by what they are, whatever the file calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers import files
from tracegen.importers.options import ImportOptions
from tracegen.importers.safetensors import load_safetensors
from tracegen.importers.values import as_array, few, numbers_in
from tracegen.shared import regular
from tracegen.shared.errors import UserError, unknown
from tracegen.trace.arrays import Array

NAMES = {
    "ids": ("expert_ids", "routed_experts", "topk_ids", "routing_map", "ids"),
    "weights": ("weights", "gate_weights", "topk_weights"),
    "layers": ("layers", "moe_layer_index"),
    "label": ("label", "labels"),
    "mask": ("mask", "attention_mask", "valid"),
    "num_ranks": ("num_ranks", "world_size"),
    **{name: (name,) for name in ("step", "request", "position", "phase", "rank", "draft")},
    **{name: (name,) for name in ("layer", "token", "slot")},
}
"""What an array is, and what it may be called."""
INDEX = ("__index_level_0__",)
"""Columns that pandas adds by itself."""
SHOWN = 20
"""Names of a file's arrays that a message shows."""
MOST_TIMES = 200
"""Times that values of a table may take the bytes of their file, above a GiB."""
VALUE_BYTES = 8
MOST_TEXT_BYTES = 4096
"""Of a label."""


def load_columns(path: Path, options: ImportOptions) -> tuple[dict[str, Array], list[str]]:
    """Arrays of a file by what they are.

    Parameters
    ----------
    path
        ``.npz``, ``.npy``, ``.safetensors``, ``.pt`` or ``.parquet``.
    options
        ``columns`` says what arrays are called that have names of their own.

    Returns
    -------
    Arrays by the keys of :data:`NAMES`, and what to tell the user.

    Raises
    ------
    UserError
        If the file is none of them, has no expert ids, or not what an option names.
    """
    load = {
        ".npz": files.load_npz,
        ".npy": lambda path: {"expert_ids": files.load_array(path, str(path))},
        ".safetensors": load_safetensors,
        ".pt": _tensors,
        ".parquet": ParquetColumns,
    }
    if path.suffix not in load:
        msg = f"{path}: {', '.join(load)} are read, not {path.suffix or 'files without suffix'!r}"
        raise UserError(msg)
    found: Any = load[path.suffix](path)
    present = sorted(map(str, found.keys()))
    there = few(present, SHOWN) or "nothing"
    names = {
        what: next(name for name in known if name in present)
        for what, known in NAMES.items()
        if any(name in present for name in known)
    }
    for given, name in options.columns.items():
        what = next((key for key, known in NAMES.items() if given in (key, *known)), None)
        if what is None:
            raise unknown("array in --columns", given, NAMES)
        if name not in present:
            msg = f"{path}: --columns {given}={name}: no array {name!r}; it has {there}"
            raise UserError(msg)
        names[what] = name
    notes = []
    if "ids" not in names and len(present) == 1 and path.suffix != ".parquet":
        # What a file holds alone is what it was saved for.
        names["ids"] = present[0]
        notes.append(f"The only array, {present[0]!r}, was taken for the expert ids.")
    if "ids" not in names and (layers := _layers(found, present)) is not None:
        numbers, ids = layers
        notes.append(f"Arrays of {len(numbers)} layers, named by number, were put side by side.")
        return {"ids": ids, "layers": numbers}, notes
    if "ids" not in names:
        msg = f"{path}: none of {', '.join(NAMES['ids'])}; it has {there} (--columns ids=NAME says which)"
        raise UserError(msg)
    unread = [name for name in present if name not in names.values() and name not in INDEX]
    if unread:
        notes.append(f"Not read, since their names say nothing: {few(unread, SHOWN)} (--columns says).")
    return {what: found[name] for what, name in names.items()}, notes


def _layers(found: Any, present: list[str]) -> tuple[Array, Array] | None:
    """Numbers of layers and their ids, where each array is one layer's (token, k).

    None where names have no number each, or arrays are none of ids of the same tokens.
    """
    numbers = numbers_in(present)
    if numbers is None or len(present) < 2:
        return None
    arrays = [found[name] for name in present]
    if {array.ndim for array in arrays} != {2} or len({array.shape for array in arrays}) != 1:
        return None
    order = np.argsort(numbers)
    return np.array(numbers)[order], np.stack([arrays[place] for place in order], axis=1)


def _tensors(path: Path) -> dict[str, Array]:
    """Tensors of a file of ``torch.save``: a dictionary of them, or one.

    Raises
    ------
    UserError
        If it holds anything else.
    """
    found = files.load_tensors(path)
    named = found if isinstance(found, dict) else {"expert_ids": found}
    if not all(isinstance(part, np.ndarray | int | float | str | list) for part in named.values()):
        msg = f"{path}: {type(found).__name__}; a tensor, or a dictionary of tensors, is expected"
        raise UserError(msg)
    return {str(name): as_array(part, f"{path}: {name}") for name, part in named.items()}


def request_numbers(request: Array, names: dict[str, int]) -> Array:
    """Numbers of requests that have names; numbers stay.

    Parameters
    ----------
    request
        Of each row.
    names
        Numbers of the names of the files before, to which those of this one are added.
    """
    if request.dtype.kind != "U":
        return request
    found, place = np.unique(request, return_inverse=True)
    # In the order in which they come, as the trace will have them.
    first = np.unique(place, return_index=True)[1]
    for name in found[np.argsort(first)].tolist():
        names.setdefault(name, len(names))
    return np.array([names[name] for name in found.tolist()], np.int64)[place].reshape(request.shape)


class ParquetColumns:
    """Columns of a Parquet file as arrays, read when they are asked for.

    Parameters
    ----------
    path
        Of the file.

    Raises
    ------
    UserError
        If pyarrow is missing, or the file is no Parquet.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            msg = f"{path}: reading parquet needs pyarrow: pip install 'moereplay[parquet]'"
            raise UserError(msg) from error
        self._path, self._errors = path, (pyarrow.ArrowException, OSError, ValueError)
        try:
            regular.check(path)  # opening a pipe would wait for ever
            with parquet.ParquetFile(path) as file:
                self._names = [str(name) for name in file.schema_arrow.names]
        except self._errors as error:
            msg = f"{path}: not a Parquet file ({files.first_line(error)})"
            raise UserError(msg) from error

    def keys(self) -> list[str]:
        """Names of all columns."""
        return self._names

    def __getitem__(self, name: str) -> Array:
        """One column, lists of equal length as further dimensions.

        Raises
        ------
        UserError
            If lists differ in length, or cells are empty that are no numbers.
        """
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self._path) as file:
                _check_unpacked(file, name, self._path.stat().st_size)
                kind = file.schema_arrow.field(name).type
            # Texts are read as they are stored, each once, for one may stand in a million rows.
            texts = [name] if pyarrow.types.is_string(kind) else None
            with parquet.ParquetFile(self._path, read_dictionary=texts) as file:
                table = file.read(columns=[name])
            # A name may have a dot, which Parquet takes for a column within a column.
            column, shape = table.column(0).combine_chunks(), [table.num_rows]
            while pyarrow.types.is_list(column.type) or _is_other_list(column.type):
                if column.null_count:
                    raise ValueError(f"{name} has empty cells")
                fixed = getattr(column.type, "list_size", None)
                lengths = {fixed} if fixed else set(column.value_lengths().to_pylist()) or {0}
                if len(lengths) > 1:
                    raise ValueError(f"{name} has lists of unequal length")
                shape.append(lengths.pop())
                column = column.flatten()
            if pyarrow.types.is_dictionary(column.type):
                _check_texts(column.dictionary, name)
                column = column.dictionary_decode()
            is_number = pyarrow.types.is_integer(column.type)
            if column.null_count and is_number:
                column = column.cast(pyarrow.float64())  # a gap becomes NaN
            elif column.null_count and not pyarrow.types.is_floating(column.type):
                raise ValueError(f"{name} has empty cells")
            values = column.to_numpy(zero_copy_only=False)
            is_text = values.dtype == object
            if is_text:
                _check_texts(column, name)
            return np.asarray(values.astype(np.str_) if is_text else values).reshape(shape)
        except (*self._errors, AttributeError, IndexError, KeyError) as error:
            msg = f"{self._path}: not a table of arrays ({files.first_line(error)})"
            raise UserError(msg) from error


def _check_unpacked(file: Any, name: str, file_bytes: int) -> None:
    """Refuse a column of a small file that fills a machine: equal values take no room in it."""
    found = file.metadata
    values = sum(
        column.num_values
        for group in map(found.row_group, range(found.num_row_groups))
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.")
    )
    most = max(files.MAX_GUNZIPPED_BYTES, MOST_TIMES * file_bytes)
    if values * VALUE_BYTES > most:
        message = f"{name} has {values} values in {file_bytes} bytes"
        raise ValueError(message)


def _check_texts(column: Any, name: str) -> None:
    """Refuse long texts: numpy gives every row the room of the longest."""
    from pyarrow import compute

    try:
        longest = compute.max(compute.binary_length(column)).as_py() or 0
    except NotImplementedError:  # what is no text is refused by who wants it
        return
    if longest > MOST_TEXT_BYTES:
        message = f"{name} has a text of {longest} bytes; at most {MOST_TEXT_BYTES}"
        raise ValueError(message)


def _is_other_list(kind: Any) -> bool:
    """Tell whether a column is of the further kinds of lists of Arrow."""
    import pyarrow

    return bool(pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_large_list(kind))
