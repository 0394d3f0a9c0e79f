"""Files of a folder, in the order in which they are read."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tracegen.shared import regular
from tracegen.shared.errors import UserError

LOADS = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".npy", ".npz", ".pt", ".safetensors")
"""Files of loads; the first four may be gzipped."""
TEXT = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".sse")
SUFFIXES: dict[str, tuple[str, ...]] = {
    "vllm": (".npy", ".npz", *TEXT),
    "sglang": (".pt", ".csv", *TEXT),
    "megatron": (".jsonl", ".jsonl.gz"),
    "rollout": (".pt", ".npy", ".npz"),
    "tensorrt-llm": TEXT,
    "counts": (*LOADS, *(f"{end}.gz" for end in LOADS[:4])),
    "llama.cpp": (".csv", ".csv.gz"),
    "gpt-oss": (".json", ".json.gz"),
    "arrays": (".npz", ".npy", ".safetensors", ".pt", ".parquet"),
    "flame": (".parquet",),
}
"""Ends of the names of a format's files."""
KNOWN = {end for ends in SUFFIXES.values() for end in ends}
WITH_LOADS = ("sglang", "tensorrt-llm")
"""Formats whose files may be loads in any layout."""
WHOLE = {"tensorrt-llm": "meta_info.json", "counts": "meta_info.json"}
"""A file in a folder that is one dump."""


def files_of(paths: list[Path], format: str) -> list[Path]:
    """Files that were named, and those of folders that were.

    Parameters
    ----------
    paths
        Files and folders.
    format
        Key of :data:`tracegen.importers.FORMATS`.

    Returns
    -------
    In the order given; those of a folder by name, numbers in names by value.

    Raises
    ------
    UserError
        If a path does not exist or is there twice, a file is of a kind that the format has not,
        or a folder has no file of it.
    """
    found: list[Path] = []
    for path in paths:
        if not regular.exists(path):
            msg = f"{path}: no such file"
            raise UserError(msg)
        is_dump = format in WHOLE and (path / WHOLE[format]).is_file()
        if is_dump and len(paths) > 1:
            msg = f"{path}: one folder of --format {format} is read, {len(paths)} paths were given"
            raise UserError(msg)
        ends = SUFFIXES[format]
        if is_dump or not path.is_dir():
            # Files under a name of their own (.log, .txt) are taken for what they hold.
            named = (*ends, *(SUFFIXES["counts"] if format in WITH_LOADS else ()))
            if not path.is_dir() and path.suffix in KNOWN and not path.name.lower().endswith(named):
                ends_read = ", ".join(named)
                msg = f"{path}: --format {format} reads {ends_read}, not {path.suffix}"
                raise UserError(msg)
            found.append(path)
            continue
        held = sorted((one for one in path.iterdir() if one.is_file()), key=_by_number)
        inside = [one for one in held if one.name.lower().endswith(ends)]
        if not inside:
            there = ", ".join(sorted(one.name for one in path.iterdir())[:8]) or "nothing"
            wanted = ", ".join((*ends, *([WHOLE[format]] if format in WHOLE else ())))
            msg = f"{path}: a folder without {wanted} of --format {format}; it has {there}"
            raise UserError(msg)
        found += inside
    path, times = Counter(found).most_common(1)[0]
    if times > 1:
        msg = f"{path}: the file was given {times} times"
        raise UserError(msg)
    return found


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Key under which rank10 comes after rank9."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
