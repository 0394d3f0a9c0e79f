"""Rows of the table of IMPORTERS.md: inputs by the name that they have in it."""

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


def kind(name: str) -> Callable[[Callable[[Path], Kind]], Callable[[Path], Kind]]:
    """Name a row of the table."""

    def named(make: Callable[[Path], Kind]) -> Callable[[Path], Kind]:
        KINDS[name] = make
        return make

    return named
