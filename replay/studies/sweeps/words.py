"""Words for the axes and settings of studies, which are called as files call them."""

from __future__ import annotations

from collections.abc import Mapping
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
    "shape.topk": "experts per token",
}
"""Words of settings whose own names do not say it."""

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


def fixed_text(fixed: Mapping[str, Any]) -> str:
    """Settings that all points share, in one line."""
    return ", ".join(f"{words(name)} {value}" for name, value in sorted(fixed.items()))
