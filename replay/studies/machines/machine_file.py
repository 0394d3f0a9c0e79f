"""A machine's file with constants that were fitted."""

from __future__ import annotations

import json
from collections.abc import Sequence


def written(
    text: str, key: str, value: float, source: str, spread: str | tuple[float, float] = "fitted"
) -> str:
    """Replace one constant and its source in a file's text, or add it to its section.

    Parameters
    ----------
    text
        Of a TOML file whose sections are one after another.
    key
        Such as ``warp.scan_ns``.
    spread
        A word, or the range that the value lies in nine times of ten.
    """
    section, _, leaf = key.partition(".")
    how = json.dumps(spread)
    if not isinstance(spread, str):
        how = f"{{ low = {spread[0]!r}, high = {spread[1]!r} }}"
    says = f'value = {value!r}, source = {json.dumps(source)}, confidence = "medium"'
    line = f"{leaf} = {{ {says}, spread = {how} }}"
    lines = text.splitlines()
    if f"[{section}]" not in lines:
        lines += ["", f"[{section}]"]
    first = lines.index(f"[{section}]") + 1
    heads = [at for at in range(first, len(lines)) if lines[at].startswith("[")]
    end = heads[0] if heads else len(lines)
    while not lines[end - 1]:
        end -= 1
    for at in range(first, end):
        if lines[at].startswith(f"{leaf} = "):
            lines[at] = line
            break
    else:
        lines.insert(end, line)
    return "\n".join(lines) + "\n"


def begun(name: str, base: str, summary: str, remarks: Sequence[str]) -> str:
    """Head of a file that takes all else from a base."""
    texts = {"base": base, "name": name, "summary": summary}
    lines = [*(f"# {one}".rstrip() for one in remarks), ""]
    return (
        "\n".join([*lines, *(f"{key} = {json.dumps(text)}" for key, text in texts.items())]) + "\n"
    )
