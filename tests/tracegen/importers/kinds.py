"""Kinds of input that people have, by name, and what the import makes of each."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dumps import Array, routing

TOKENS = 12
IDS = routing(TOKENS)


class Kind(NamedTuple):
    """An input, and the ids that its trace has if it is read."""

    paths: list[Path]
    ids: Array = IDS
    format: str = "arrays"
    options: Mapping[str, Any] = MappingProxyType({})


KINDS: dict[str, Callable[[Path], Kind]] = {}
GIVES: dict[str, str] = {}
"""`read` or `refused`, by kind; behind a colon a sentence that is printed."""


def kind(name: str, gives: str) -> Callable[[Callable[[Path], Kind]], Callable[[Path], Kind]]:
    """Name an input, and say what it gives."""

    def named(make: Callable[[Path], Kind]) -> Callable[[Path], Kind]:
        KINDS[name], GIVES[name] = make, gives
        return make

    return named
