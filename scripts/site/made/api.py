"""Pages of the public names of packages, which Sphinx fills from their docstrings.

A package is public by stating its names (``__all__``); `MORE` are modules that those need who write
a scheme, or who replay what has no package of its own names.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from made import Made
from made.fields import behind
from made.text import anchor_of, code, of_docstring, toctree

PACKAGES = ("replay", "tracegen", "hwmodel")
MORE = (
    "replay.experiments.serve.replay",
    "replay.experiments.serve.spec",
    "replay.model.machine.kinds",
    "replay.model.machine.machine",
    "replay.schemes.ep.base",
    "replay.schemes.options",
    "replay.model.work.layer",
)
"""Modules without a list of names that are public all the same."""


def modules() -> list[str]:
    """Names of all that have a page, sorted, the three packages first."""
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found += [
            one.name
            for one in pkgutil.walk_packages(package.__path__, f"{name}.")
            if one.ispkg and hasattr(importlib.import_module(one.name), "__all__")
        ]
    return [*PACKAGES, *sorted([*found, *MORE])]


def pages() -> Iterator[Made]:
    """The list of modules, and a page for each."""
    names = modules()
    lines = ["# API\n", "Names that are not here may change from one version to the next.\n"]
    lines += [f"[{code(name)}]({name}.md)\n: {_first_line(name)}\n" for name in names]
    lines.append(toctree((f"{name}.md" for name in names), hidden=True))
    yield Made("api/index.md", "\n".join(lines))
    homes: dict[int, str] = {}  # the page that describes an object, by the object's identity
    for name in names:
        yield Made(f"api/{name}.md", _page(name, homes, names))


def _first_line(name: str) -> str:
    first = (importlib.import_module(name).__doc__ or "").strip().partition("\n\n")[0]
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(first.split()))


def _page(name: str, homes: dict[int, str], pages_of: Collection[str]) -> str:
    module = importlib.import_module(name)
    parts = [f"# {name}\n", _directive("automodule", name, members=False)]
    for word in _names(module):
        value = getattr(module, word)
        if inspect.ismodule(value):
            continue  # a page of its own
        package = f"{name}.{word}"  # a function may have the name of the package that defines it
        home = package if package in pages_of else homes.setdefault(id(value), name)
        if home != name:
            parts.append(f"{code(word)}\n: See [{code(home)}]({home}.md).\n")
        elif inspect.isclass(value):
            parts.append(_directive("autoclass", f"{name}.{word}", members=True))
        elif inspect.isroutine(value):
            parts.append(_directive("autofunction", f"{name}.{word}", members=False))
        else:
            about = _about_value(module, word)
            parts.append(f"[{code(word)}]{{#{anchor_of(word)}}}\n: {about}\n")
    return "\n".join(parts)


def _names(module: Any) -> list[str]:
    """Public names of a module, as it lists them; without a list, what it defines."""
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return listed
    return [
        word
        for word, value in vars(module).items()
        if not word.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value) or word in _behind(module.__name__))
        and getattr(value, "__module__", module.__name__) == module.__name__
    ]


def _about_value(module: Any, word: str) -> str:
    """What stands behind a constant in the source of a module, its own or one it imports from.

    Raises
    ------
    ValueError
        If nothing stands there.
    """
    wanted = getattr(module, word)
    for name, home in list(sys.modules.items()):
        if name.split(".")[0] not in PACKAGES:
            continue
        # Its home may have it under another name.
        for known in [word, *(key for key, one in vars(home).items() if one is wanted)]:
            if getattr(home, known, None) is wanted and (found := _behind(name).get(known)):
                return of_docstring(found)
    message = f"{module.__name__}.{word} is not described"
    raise ValueError(message)


@cache
def _behind(name: str) -> dict[str, str]:
    """Texts right behind the constants of a module, or before them as ``#:``."""
    source = inspect.getsource(sys.modules[name])
    before = re.findall(r"((?:^#: .*\n)+)^(\w+)\b", source, re.MULTILINE)
    marked = {word: re.sub(r"^#: ", "", text, flags=re.MULTILINE) for text, word in before}
    return marked | behind(ast.parse(source).body)


def _directive(kind: str, name: str, *, members: bool) -> str:
    options = "   :members:\n   :member-order: bysource\n" if members else ""
    return f"```{{eval-rst}}\n.. {kind}:: {name}\n{options}```\n"
