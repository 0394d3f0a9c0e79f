"""Files in which a scheme is modelled."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from replay.schemes.base import AnyScheme

ROOT = Path(__file__).parents[2]


def modules_of(scheme: AnyScheme) -> list[str]:
    """Files of a scheme, by their paths in the project: that of its class, and what it uses of the same folder.

    A class that derives from one of another file is followed by it. A scheme from outside has the
    file that it was found in, a plug-in its modules by their dotted names.
    """
    if scheme.origin:
        return [scheme.origin.rpartition(":")[0]]
    own = type(scheme).__module__
    shared = own.rpartition(".")[0]
    folder = f"{shared}." if shared.count(".") > 2 else f"{own}."  # replay.schemes.ep has all kinds of schemes
    bases = [one.__module__ for one in type(scheme).__mro__ if one.__module__.startswith("replay.schemes.")]
    found, to_do = [own], [own]
    while to_do:
        for name in _modules_used(sys.modules[to_do.pop(0)]):
            if name.startswith(folder) and name not in found:
                found.append(name)
                to_do.append(name)
    found += [name for name in dict.fromkeys(bases) if name not in found and name.count(".") > 2 and _is_scheme(name)]
    return [path for name in found if (path := _path(sys.modules[name]))]


def _is_scheme(name: str) -> bool:
    """Tell whether a module has a scheme, and not what all schemes derive from."""
    return name.rpartition(".")[2] not in ("base", "staged", "facts")


def _modules_used(module: ModuleType) -> list[str]:
    """Names of the modules that a module takes functions, classes or modules from."""
    taken = (getattr(one, "__module__", None) or getattr(one, "__name__", "") for one in vars(module).values())
    return sorted({name for name in taken if isinstance(name, str) and name in sys.modules})


def _path(module: ModuleType) -> str:
    """Path of a module's file in the project, or its dotted name; empty for a package without code of its own."""
    file = Path(module.__file__ or "__init__.py")
    if module.__file__ and not file.is_relative_to(ROOT):
        return module.__name__
    return "" if file.name == "__init__.py" else file.relative_to(ROOT).as_posix()
