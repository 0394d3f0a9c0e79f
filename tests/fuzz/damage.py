"""What befalls an input: its bytes, its words, its values. All from the generator that is given."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
import tomllib
from collections.abc import Callable
from typing import Any

SCRIPT = "</script><script>alert(1)</script>"
"""A text that no page may have as it is."""
CODE = "canary/planted.py:Planted"
"""A scheme whose file leaves a mark when it is executed."""
MARK = "executed"
SOUND = 0.06
"""Share of files that are left as they are: if all were refused, that would show little."""

TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\n",
    "a\r\nb",
    "\x1b[2J\x1b[31m",
    "\u202eabc",
    "\ufeff",
    "é",
    "日本",
    "\ud800",
    "\U0001f600",
    "n" * 300,
    "n" * 70_000,
    "../../canary/secret",
    "canary/secret",
    "/etc/passwd",
    "/dev/zero",
    "given",
    "..",
    ".",
    "~",
    "~nobody/x",
    CODE,
    SCRIPT,
    "<b>&amp;\"'",
    "%s%n%x",
    "$(id)",
    "`id`",
    "=1+1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "0",
    "9" * 5000,
    "0x10",
    "1_000",
    "²",
    "true",
    "none",
    "null",
    "{}",
    "[]",
    "http://127.0.0.1:1/x",
    "file:///etc/passwd",
    "a=b",
    "a:b:c",
    "1:2",
    "::",
    ",",
    "all",
    "1..9999999999",
    "CON",
    "__import__('os').mkdir('executed')",
    "{0.__class__}",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    0.5,
    -0.0,
    1e-308,
    5e-324,
    1e308,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**26,
    10**400,
    1e22,
)
CONSTANTS = (None, True, False, float("nan"), float("inf"), float("-inf"))


def value(rng: random.Random) -> Any:
    """Give what a JSON document may hold where something else is meant."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(TEXTS)
    if kind == 5:
        return rng.choice(CONSTANTS)
    if kind == 6:
        return rng.choice([[], {}, [[]], [None], {"": None}, [[1], [1, 2]], {"value": {}}])
    return [rng.choice(NUMBERS) for _ in range(rng.choice([1, 2, 3, 1000]))]


def near(number: float, rng: random.Random) -> Any:
    """Give a number like one that is there."""
    return rng.choice(
        [
            number + 1,
            number - 1,
            -number,
            number * 2,
            number * 10**9,
            number / 3,
            str(number),
            float(number),
            [number],
        ]
    )


def document(whole: Any, rng: random.Random) -> Any:
    """Change a few places of a document, each somewhere in its tree."""
    whole = copy.deepcopy(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        whole = _change(whole, rng, deepest=rng.randrange(1, 7))
    return whole


def _change(node: Any, rng: random.Random, deepest: int) -> Any:
    keys = [*node] if isinstance(node, dict) else [*range(len(node))] if isinstance(node, list) else []
    if not keys or not deepest:
        if isinstance(node, int | float) and rng.random() < 0.5 and abs(node) < 1e300:
            return near(node, rng)
        return value(rng)
    inner = [one for one in keys if isinstance(node[one], dict | list)]
    key = rng.choice(inner if inner and deepest > 1 and rng.random() < 0.85 else keys)
    if deepest > 1 and isinstance(node[key], dict | list):
        node[key] = _change(node[key], rng, deepest - 1)
        return node
    kind = rng.randrange(9)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = copy.deepcopy(node[rng.choice(keys)])
    elif kind == 2 and isinstance(node, list):
        node[key:key] = [copy.deepcopy(node[key])] * rng.choice([1, 2, 100])
    elif kind == 2:
        node[rng.choice(TEXTS)] = node.pop(key)
    elif kind == 3:
        node[key] = [node[key]]
    elif kind == 4 and isinstance(node[key], list):
        node[key] = node[key][: rng.randrange(len(node[key]) + 1)]
    else:
        node[key] = _change(node[key], rng, 0)
    return node


_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[-+]?\d[\d_.]*(?:[eE][-+]?\d+)?|[A-Za-z_][\w-]*|[\[\]{}=,:.\n]')


def text(whole: str, rng: random.Random) -> str:
    """Change a few words, numbers, signs or lines of TOML, YAML, CSV, JSON."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = [*_TOKEN.finditer(whole)]
        if not places:
            break
        one = rng.choice(places)
        start, stop, found = one.start(), one.end(), one.group()
        kind = rng.randrange(10)
        if kind == 0:
            new = ""
        elif kind == 1:
            new = rng.choice(places).group()
        elif kind == 2:
            new = found + found
        elif kind == 3:  # a whole line, left out or twice
            start, stop = whole.rfind("\n", 0, start) + 1, whole.find("\n", stop) + 1 or len(whole)
            new = whole[start:stop] * rng.choice([0, 2])
        elif kind == 4 and rng.random() < 0.3:
            depth = rng.choice([10, 40, 5000])
            new = rng.choice(
                [
                    "[" * depth + "]" * depth,
                    '{"a":' * depth + "1" + "}" * depth,
                    "a." * depth + "a",
                    "[" * depth,
                ]
            )
        elif found[0].isdigit() or found[0] in "+-":
            try:
                new = str(near(float(found), rng) if rng.random() < 0.4 else rng.choice(NUMBERS))
            except (ValueError, OverflowError):
                new = "1"
        elif found[0] == '"':
            new = rng.choice([*map(_quoted, TEXTS), "1", "true", "[]", "{}", "nan"])
        else:
            new = rng.choice([*TEXTS, _quoted(rng.choice(TEXTS)), "1", "[", "}", "\n", "{}"])
        whole = whole[:start] + new + whole[stop:]
    return whole


def _quoted(said: str) -> str:
    return json.dumps(said, ensure_ascii="\ud800" in said).replace("\x7f", "\\u007f")


def some_bytes(whole: bytes, rng: random.Random) -> bytes:
    """Damage some bytes: single bits, extremes, noise, runs, moved and repeated pieces."""
    data = bytearray(whole or b"\0")
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        # The header and the object headers at its side decide everything else.
        at = rng.randrange(rng.choice([len(data), min(len(data), 4096), min(len(data), 512)]))
        kind = rng.randrange(7)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
        elif kind == 2:
            data[at] = rng.randrange(256)
        elif kind == 3:
            width = rng.choice([2, 4, 8])
            number = rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(data), at])
            data[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == 4:
            data[at : at + rng.randrange(1, 64)] = rng.randbytes(rng.randrange(1, 64))
        elif kind == 5:
            other, length = rng.randrange(len(data)), rng.randrange(1, 600)
            data[at : at + length] = data[other : other + length]
        else:
            del data[rng.randrange(len(data)) :]
            data.extend(bytes(8))
    return bytes(data)


def _is_text(whole: bytes) -> bool:
    try:
        whole.decode()
    except UnicodeDecodeError:
        return False
    return True


def file(whole: bytes, rng: random.Random, *, is_text: bool = True) -> bytes:
    """Change the content of a file, as a document, a text or bytes."""
    kind = rng.random()
    if kind < SOUND:
        return whole
    if not is_text or kind < 0.13 or b"\0" in whole or not _is_text(whole):
        return some_bytes(whole, rng)
    said = whole.decode()
    if kind < 0.85:
        # A line each is no document, and some numbers cannot be written.
        with contextlib.suppress(ValueError):
            if said[:1] in "[{":
                return json.dumps(document(json.loads(said), rng)).encode()
            changed = document(tomllib.loads(said), rng)
            if not isinstance(changed, dict):
                changed = {"": changed}
            lines = [f"{json.dumps(key)} = {_toml(inner)}\n" for key, inner in changed.items()]
            return "".join(lines).encode("utf-8", "surrogatepass")
    return text(said, rng).encode("utf-8", "surrogatepass")


def _toml(node: Any) -> str:
    """Write a value as TOML: tables inline, and what TOML cannot have as something else."""
    if isinstance(node, dict):
        return "{ " + ", ".join(f"{_quoted(str(key))} = {_toml(one)}" for key, one in node.items()) + " }"
    if isinstance(node, list):
        return "[" + ", ".join(map(_toml, node)) + "]"
    if isinstance(node, str):
        return _quoted(node)
    if isinstance(node, float):
        return str(node).replace("e+", "e")
    return "[]" if node is None else str(node).lower()


Damage = Callable[[bytes, random.Random], bytes]
