"""Opening files of maps of experts, which may be anybody's: nothing of them is executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay.errors import UserError
from replay.files import parse_json, read_text, real

LARGEST_FILE = 64_000_000  # bytes; a map of 100 layers and 10,000 slots has a tenth of it
ARRAYS = (".npy", ".npz", ".pt", ".pth", ".safetensors")
"""Suffixes of files of arrays; text is JSON, JSON lines or YAML."""
BALANCER = ("moe_config", "load_balancer")
"""Where the options of trtllm-serve have the balancer's settings, or the path of a file of them."""


def load_document(path: Path) -> Any:
    """Read a file as plain values, arrays as lists of numbers.

    Of the options of trtllm-serve it gives the settings of the load balancer, be they inline or in
    a file that the options name.

    Raises
    ------
    UserError
        If it cannot be read, or is none of these.
    """
    value = _plain(_load(path))
    settings = balancer_of(value)
    if isinstance(settings, str):
        return _plain(_load(beside(path, settings)))
    return value if settings is None else settings


def files_of(path: Path) -> list[Path]:
    """The files that hold a map: the file itself, and one that it names."""
    if path.suffix not in (".yaml", ".yml"):
        return [path]
    settings = balancer_of(_load(path))
    return [path, beside(path, settings)] if isinstance(settings, str) else [path]


def balancer_of(value: Any) -> Any:
    """Settings of the load balancer among options of trtllm-serve; None where there are none."""
    options, name = BALANCER
    held = value.get(options) if isinstance(value, Mapping) else None
    if isinstance(held, Mapping) and name in held:
        return held[name]
    # Options of an older server have it beside the others, as `moe_load_balancer`.
    return value.get("moe_load_balancer") if isinstance(value, Mapping) else None


def beside(path: Path, named: str) -> Path:
    """A file that another names, in the folder where that lies or below it.

    Raises
    ------
    UserError
        If it is elsewhere: a file of options must not open any other file of the user.
    """
    found = path.parent / named
    if not real(found).is_relative_to(real(path.parent)):
        message = f"placement file {path}: its options name a file of another folder, {found}; give that file itself"
        raise UserError(message)
    return found


def _load(path: Path) -> Any:
    if path.suffix in ARRAYS:
        return _arrays(path)
    try:
        text = read_text(path, LARGEST_FILE)
    except OSError as error:
        message = f"placement file {path}: {error.strerror}"
        raise UserError(message) from None
    except ValueError as error:
        message = f"placement file {path} is not text: {error}"
        raise UserError(message) from None
    if path.suffix in (".yaml", ".yml"):
        return _yaml(path, text)
    lines = [line for line in text.splitlines() if line.strip()] if ".jsonl" in path.name else None
    try:
        return parse_json(text) if lines is None else _last_map([parse_json(one) for one in lines])
    except ValueError as error:
        message = f"placement file {path} is not JSON: {error}"
        raise UserError(message) from None


def _last_map(records: list[Any]) -> Any:
    """The record of a map among JSON lines, the last where there are several."""
    maps = [one for one in records if isinstance(one, dict) and "initial_global_assignments" in one]
    return (maps or records or [None])[-1]


def _arrays(path: Path) -> Any:
    """Arrays of a file, read as the importers read them: nothing is unpickled."""
    from tracegen.importers import files  # numpy's and torch's readers, for these files alone
    from tracegen.importers.safetensors import load_safetensors

    where = f"placement file {path}"
    try:
        if path.stat().st_size > LARGEST_FILE:
            message = f"at most {LARGEST_FILE / 1e6:.0f} MB are read"
            raise UserError(message)
        if path.suffix == ".npy":
            return files.load_array(path, str(path))
        if path.suffix == ".npz":
            return files.load_npz(path)
        return load_safetensors(path) if path.suffix == ".safetensors" else files.load_tensors(path)
    except (OSError, UserError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"{where}: {str(reason).removeprefix(f'{path}: ')}"
        raise UserError(message) from None


def _plain(value: Any) -> Any:
    """Arrays as lists, containers kept."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _yaml(path: Path, text: str) -> Any:
    import yaml  # costs 20 ms that commands without such a file need not spend

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        message = f"placement file {path} is not YAML: {reason}"
        raise UserError(message) from None
