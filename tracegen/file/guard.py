"""Looking at a stranger's HDF5 file before believing it.

Nothing here reads data or allocates by what a file declares. Works on h5py objects
without importing h5py, which only the reader and the writer do.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from tracegen.file.schema import (
    LIMITS,
    MAX_CHUNK_BYTES,
    MAX_DEFLATE_RATIO,
    MAX_TEXT_BYTES,
    DatasetSchema,
    most_bytes,
)
from tracegen.shared.errors import UserError

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
"""HDF5 filter numbers that every HDF5 library can decode."""
COMPACT, CONTIGUOUS, CHUNKED = 0, 1, 2
"""HDF5 dataset layouts; the remaining one is virtual."""


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """Turn whatever HDF5 raises on a damaged file into one line for the user.

    Parameters
    ----------
    where
        File, and object within it if known.

    Raises
    ------
    UserError
        For every error of the file's own making.
    """
    try:
        yield
    except UserError as error:
        if str(error).startswith(where):
            raise  # said already, closer to the place
        msg = f"{where}: {error}"
        raise UserError(msg) from error
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        lines = str(error.args[0] if error.args else error).strip().splitlines()
        detail = lines[0] if lines else type(error).__name__
        msg = f"{where}: damaged, truncated or not HDF5 ({detail})"
        raise UserError(msg) from error


class Guard:
    """Access to the objects of one open file, each checked before it is handed out.

    Parameters
    ----------
    file
        Open ``h5py.File``.
    file_bytes
        Size of the file, in bytes: nothing in it can hold more than it.
    hard_link, group, dataset
        The h5py classes of those names.
    """

    def __init__(self, file: Any, file_bytes: int, hard_link: type, group: type[Any], dataset: type[Any]) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self._hard_link = hard_link
        self._group = group
        self._dataset = dataset
        self.sizes: dict[str, int] = {}
        """Size of each named dimension, from the datasets seen so far."""

    def object(self, path: str) -> Any:
        """Group or dataset at a path, or None where there is none.

        Raises
        ------
        UserError
            If a step on the way is a link to elsewhere.
        """
        node: Any = self._file
        for name in path.split("/"):
            if not isinstance(node, self._group):
                msg = f"/{path}: a dataset stands where a group belongs"
                raise UserError(msg)
            link = node.get(name, getlink=True)
            if link is None:
                return None
            if not isinstance(link, self._hard_link):
                msg = f"/{path} is a {type(link).__name__} to elsewhere; it must be stored here"
                raise UserError(msg)
            node = node[name]
        return node

    def attributes(self, path: str, wanted: dict[str, type]) -> dict[str, Any]:
        """Named attributes of a group or dataset, those that are there.

        Parameters
        ----------
        path
            Of the object; empty for the root.
        wanted
            Name to Python type: str, int, float or bool.

        Raises
        ------
        UserError
            If the object is missing, or an attribute is not a scalar of its type.
        """
        node = self.object(path) if path else self._file
        if node is None:
            msg = f"/{path} is missing"
            raise UserError(msg)
        return {
            name: self._attribute(node, f"/{path}", name, kind) for name, kind in wanted.items() if name in node.attrs
        }

    def _attribute(self, node: Any, where: str, name: str, kind: type) -> Any:
        """One attribute, checked before its value is read."""
        handle = node.attrs.get_id(name)
        dtype = handle.dtype
        # Text of variable length lives in HDF5's global heap, where a damaged size can make
        # the library loop for ever; text of fixed length lives in the attribute itself.
        is_text = dtype.kind == "S"
        kinds = {int: "iu", float: "iuf", bool: "b", str: ""}[kind]
        if handle.shape != () or not (is_text if kind is str else dtype.kind in kinds):
            msg = (
                f"{where}: attribute {name!r} must be one "
                f"{'text of fixed length' if kind is str else kind.__name__}, "
                f"not {dtype} {handle.shape}"
            )
            raise UserError(msg)
        if is_text and dtype.itemsize > most_bytes(name):
            # Everything that shows the trace shows its title.
            size, most = dtype.itemsize, most_bytes(name)
            msg = f"{where}: attribute {name!r} has {size} bytes; at most {most}"
            raise UserError(msg)
        value = node.attrs[name]
        if kind is not str:
            return kind(value)
        return value.decode("utf-8")

    def column(self, column: DatasetSchema) -> Any:
        """Dataset of the format, safe to read, or None if it is optional and absent.

        Raises
        ------
        UserError
            If it is missing, of a wrong type or shape, filtered or stored in a way
            that is not allowed, or declares more than the file can hold.
        """
        node = self.object(column.path)
        where = f"/{column.path}"
        if node is None:
            if column.required:
                msg = f"{where} is missing"
                raise UserError(msg)
            return None
        if not isinstance(node, self._dataset):
            msg = f"{where} must be a dataset"
            raise UserError(msg)
        self._check_type(node, where, column)
        self._check_dims(node, where, column)
        self._check_storage(node, where)
        return node

    def _check_type(self, node: Any, where: str, column: DatasetSchema) -> None:
        """Refuse any element type but the listed plain ones."""
        dtype = node.dtype
        if dtype.kind == "S":
            found = "S"
            if dtype.itemsize > MAX_TEXT_BYTES:
                msg = f"{where}: strings of {dtype.itemsize} bytes; at most {MAX_TEXT_BYTES}"
                raise UserError(msg)
        else:
            plain = dtype.names is None and dtype.subdtype is None and not dtype.metadata
            found = f"{dtype.kind}{dtype.itemsize}" if plain else "compound"
        if found not in column.types:
            msg = f"{where} holds {dtype}; it must be {' or '.join(column.types)}"
            raise UserError(msg)

    def _check_dims(self, node: Any, where: str, column: DatasetSchema) -> None:
        """Refuse a shape that is absurd or disagrees with another dataset's."""
        shape = node.shape
        if shape is None or len(shape) != len(column.dims):
            msg = f"{where} has shape {shape}; it must be ({', '.join(column.dims)})"
            raise UserError(msg)
        for dim, given in zip(column.dims, shape, strict=True):
            name, size = (dim[:-2], given - 1) if dim.endswith("+1") else (dim, given)
            if not 0 <= size <= LIMITS.get(name, size):
                msg = f"{where}: {size} along {name}; at most {LIMITS[name]}"
                raise UserError(msg)
            if self.sizes.setdefault(name, size) != size:
                msg = f"{where}: {size} along {name}, other datasets have {self.sizes[name]}"
                raise UserError(msg)

    def _check_storage(self, node: Any, where: str) -> None:
        """Refuse foreign filters and files, and more data than the file can hold."""
        creation = node.id.get_create_plist()
        layout = creation.get_layout()
        if layout not in (COMPACT, CONTIGUOUS, CHUNKED) or creation.get_external_count():
            msg = f"{where} is a virtual or external dataset; its data must be in this file"
            raise UserError(msg)
        filters = {creation.get_filter(i)[0] for i in range(creation.get_nfilters())}
        foreign = filters - {DEFLATE, SHUFFLE, FLETCHER32}
        if foreign:
            msg = f"{where}: HDF5 filter {min(foreign)}; allowed are gzip, shuffle and fletcher32"
            raise UserError(msg)
        logical = math.prod(node.shape) * node.dtype.itemsize
        if not logical:
            return
        ratio = 1
        if layout == CHUNKED:
            chunk_bytes = math.prod(node.chunks) * node.dtype.itemsize
            if chunk_bytes > MAX_CHUNK_BYTES:
                msg = f"{where}: chunks of {chunk_bytes} bytes; at most {MAX_CHUNK_BYTES}"
                raise UserError(msg)
            ratio = MAX_DEFLATE_RATIO if DEFLATE in filters else 1
        stored = node.id.get_storage_size()
        # Unwritten parts read as a fill value: a tiny file could declare any size.
        if stored > self._file_bytes or logical > stored * ratio:
            msg = (
                f"{where} declares {logical} bytes of data, but only {stored} are stored "
                f"in this file of {self._file_bytes} bytes"
            )
            raise UserError(msg)
        if layout == CHUNKED:
            pairs = zip(node.shape, node.chunks, strict=True)
            wanted = math.prod(-(-size // chunk) for size, chunk in pairs)
            if node.id.get_num_chunks() != wanted:
                msg = f"{where}: {node.id.get_num_chunks()} chunks are stored, {wanted} are declared"
                raise UserError(msg)
