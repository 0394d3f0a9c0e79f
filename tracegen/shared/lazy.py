"""Names of a package that are imported on first use.

A command's ``--help`` should not wait for libraries that it does not use. So a package whose names
come from several modules says where each one lives, and nothing is imported until one is asked for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package.

    Parameters
    ----------
    package
        Its ``__name__``.
    homes
        Module by the name that lives there, such as ``{"load": "hwmodel.catalog"}``; a name of
        another spelling there follows a colon: ``{"open": "tracegen.library:open_trace"}``. After a
        colon alone the module itself has the name.

    Returns
    -------
    A function of a name, which raises `AttributeError` for one that has no home.
    """

    def find(name: str) -> Any:
        if name not in homes:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        home, colon, spelling = homes[name].partition(":")
        value: Any = importlib.import_module(home)
        if spelling or not colon:
            value = getattr(value, spelling or name)
        setattr(sys.modules[package], name, value)
        return value

    return find
