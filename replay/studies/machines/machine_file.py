"""A machine's file with constants that were fitted."""

from __future__ import annotations

from collections.abc import Sequence


def file_text(text: str, key: str, value: float, source: str, spread: str | tuple[float, float] = "fitted") -> str:
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
    how = quote(spread) if isinstance(spread, str) else f"{{ low = {spread[0]!r}, high = {spread[1]!r} }}"
    says = f'value = {value!r}, source = {quote(source)}, confidence = "medium"'
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


def head_text(name: str, base: str, summary: str, remarks: Sequence[str]) -> str:
    """Head of a file that takes all else from a base."""
    texts = {"base": base, "name": name, "summary": summary}
    lines = [*(f"# {_printable(one)}".rstrip() for one in remarks), ""]
    return "\n".join([*lines, *(f"{key} = {quote(text)}" for key, text in texts.items())]) + "\n"


def quote(text: str) -> str:
    r"""Write a text as TOML has it, whatever it holds: names of files hold anything.

    Examples
    --------
    >>> print(quote('a "b"'), quote("two\nlines"))
    "a \"b\"" "two\u000alines"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_printable(escaped)}"'


def _printable(text: str) -> str:
    """Text of one line, of signs that TOML allows; bytes of a name that are no text become U+FFFD.

    JSON will not do: it writes a sign beyond 16 bits as two halves, and 0x7f as it is.
    """
    return "".join(one if one.isprintable() else _escape(ord(one)) for one in text)


def _escape(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
