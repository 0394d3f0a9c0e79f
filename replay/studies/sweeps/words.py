"""Words for the axes, settings and values of studies, looked up by their names in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WORDS = {
    "ranks": "GPUs",
    "tokens_per_rank": "tokens per GPU",
    "total_tokens": "tokens of all GPUs",
    "expert_tp": "GPUs per expert",
    "trace.skew": "Zipf exponent",
    "trace.kind": "routing",
    "trace.model": "model",
    "trace.file": "trace",
    "trace.layers": "layers",
    "trace.share_std_e8": "deviation of shares",
    "shape.topk": "experts per token",
    "shape.topk_group": "groups per token",
    "shape.n_group": "groups of experts",
    "dysharp.tlb_entries": "entries",
}
"""Words of settings whose own names do not say it."""

COUNTED = frozenset({"GPUs", "nodes", "tokens", "experts", "groups", "layers", "links", "slots", "entries", "SMs"})
"""First words of settings that are numbers of something."""

BYTES = "bytes"
_UNITS = ("bytes", "KiB", "MiB", "GiB")
_STEP = 1024
_WHOLE = 100  # of a unit, from which on there is no fraction

_PARTS = {"num": "", "sms": "SMs", "gpu": "GPU", "gpus": "GPUs", "tp": "TP", "gbps": "GB/s", "us": "us"}


def words(setting: str) -> str:
    """Words for an axis or a setting, such as ``SMs of deepep`` for ``deepep.num_sms``."""
    if setting in WORDS:
        return WORDS[setting]
    group, dot, name = setting.rpartition(".")
    said = " ".join(one for part in name.split("_") if (one := _PARTS.get(part, part)))
    if not dot or group in ("trace", "shape") or group.startswith("system"):
        return said
    return f"{said} of {group}"


def value_words(axis: str, label: str) -> str:
    """Words for a value of an axis, which stand for themselves in a sentence.

    Examples
    --------
    >>> [value_words("tokens_per_rank", one) for one in ("1", "1024")]
    ['1 token per GPU', '1,024 tokens per GPU']
    >>> value_words("bytes", "1048576"), value_words("skew", "none"), value_words("loads", "even")
    ('1 MiB', 'no skew', 'even loads')
    """
    said = words(axis)
    if axis == BYTES and label.isdecimal():
        return size(float(label))
    if label == "none":
        return f"no {said}"
    if label.isdecimal():
        counted, space, rest = said.partition(" ")
        if counted not in COUNTED:
            return f"{said} {label}"
        return f"{int(label):,} {counted.removesuffix('s') if int(label) == 1 else counted}{space}{rest}"
    if _is_number(label):
        return f"{said} {label}"
    # A lone adjective wants its noun; names have digits or hyphens, or are of schemes.
    return f"{label} {said}" if label.isalpha() and label.islower() and axis != "scheme" else label


def size(num_bytes: float) -> str:
    """A number of bytes in the largest unit that it is at least one of.

    Examples
    --------
    >>> size(1000), size(1536 << 10), size(1023 << 10)
    ('1,000 bytes', '1.5 MiB', '1,023 KiB')
    """
    power = 0
    while num_bytes >= _STEP and power < len(_UNITS) - 1:
        num_bytes, power = num_bytes / _STEP, power + 1
    return f"{num_bytes:{',.0f' if num_bytes >= _WHOLE else '.3g'}} {_UNITS[power]}"


def condition(axis: str, label: str) -> str:
    """Words for a condition, such as ``without skew`` or ``with 4 experts per token``."""
    return f"without {words(axis)}" if label == "none" else f"with {value_words(axis, label)}"


def together(names: Sequence[str]) -> str:
    """Names in one phrase, ``and`` before the last."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def fixed_text(fixed: Mapping[str, Any]) -> str:
    """Settings that all points share, in one line.

    Examples
    --------
    >>> fixed_text({"tune": False, "ranks": 8, "barrier": True})
    'barrier yes, GPUs 8, options as shipped'
    """
    return ", ".join(
        ("options searched" if value else "options as shipped")
        if name == "tune"
        else f"{words(name)} {('no', 'yes')[value] if isinstance(value, bool) else value}"
        for name, value in sorted(fixed.items())
    )
