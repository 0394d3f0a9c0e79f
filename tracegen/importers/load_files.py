"""Files of loads: how they are recognised, and what each holds."""

from __future__ import annotations

from pathlib import Path

from tracegen.importers import files, load_tables, load_values
from tracegen.importers.folders import LOADS
from tracegen.importers.load_values import LoadPart
from tracegen.importers.safetensors import load_safetensors
from tracegen.shared.errors import UserError


def holds_loads(path: Path) -> bool:
    """Tell whether a file holds loads, rather than tokens or responses of a server.

    Parameters
    ----------
    path
        Of a file; tables are always taken for loads, JSON lines for responses.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    name = path.name.removesuffix(".gz").lower()
    if path.is_dir() or name.endswith(".jsonl"):
        return False
    if name.endswith((".csv", ".tsv", ".parquet")):
        return True
    if name.endswith(".json"):
        value = files.load_json(files.load_text(path), str(path))
    elif name.endswith((".pt", ".pth")):
        value = files.load_tensors(path)
    else:
        return name.endswith(LOADS)
    if load_tables.columns_of(value) is not None:
        return True
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return False
    return load_values.part_of(value, str(path)) is not None


def load_parts(path: Path) -> list[LoadPart]:
    """Loads of one file, separate for each rank that it names.

    Parameters
    ----------
    path
        Of the file.

    Raises
    ------
    UserError
        If it holds none.
    """
    name, where = path.name.removesuffix(".gz"), str(path)
    suffix = Path(name).suffix.lower()
    if suffix in (".csv", ".tsv", ".parquet"):
        return load_tables.parts_of_table(path, suffix)
    if suffix == ".jsonl":
        lines = list(files.json_objects(path))
        table = load_tables.columns_of([line for _, line in lines])
        if table is not None:
            return load_tables.parts_of_columns(table, where)
        return load_values.parts_of_lines(lines, where)
    if suffix == ".json":
        value = files.load_json(files.load_text(path), where)
    elif suffix == ".npy":
        value = files.load_array(path, where)
    elif suffix == ".npz":
        value = files.load_npz(path)
    elif suffix in (".pt", ".pth"):
        value = files.load_tensors(path)
    elif suffix == ".safetensors":
        value = load_safetensors(path)
    else:
        msg = f"{path}: loads are read from {', '.join(LOADS)}, or a folder of TensorRT-LLM"
        raise UserError(msg)
    table = load_tables.columns_of(value)
    if table is not None:
        return load_tables.parts_of_columns(table, where)
    part = load_values.part_of(value, where)
    if part is None:
        raise load_values.no_loads(value, where)
    return [part]
