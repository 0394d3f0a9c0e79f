"""The layers of a configuration that have no experts, and whether attention differs between them.

Families say it in many ways; each of them is a rule of :data:`RULES`, tried in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

MOST = 65_536
"""Decoder layers that a trace can number."""

Config = Mapping[str, Any]
Rule = Callable[[Config, int], "Iterable[int] | None"]
"""Layers with experts of so many, or None where a configuration does not say it in this way."""


def dense_layers(config: Config, count: int) -> tuple[tuple[int, ...], str]:
    """Find the layers without routed experts.

    Parameters
    ----------
    config
        Of the text decoder.
    count
        Its layers.

    Returns
    -------
    Their numbers, ascending, and the name of the value that says so.

    Raises
    ------
    ValueError
        If the value is not what it should be.
    """
    for name, rule in RULES.items():
        try:
            found = rule(config, count)
        except (TypeError, ValueError, ZeroDivisionError, AttributeError):
            given = str(config.get(name))[:40]
            msg = f"{name} is {given!r}, which does not say which layers have experts"
            raise ValueError(msg) from None
        if found is not None:
            moe = set(found)
            if not moe or not moe <= set(range(count)):
                msg = f"{name} gives no layers with experts among the {count}"
                raise ValueError(msg)
            return tuple(layer for layer in range(count) if layer not in moe), name
    return (), ""


def other_attention(config: Config) -> str:
    """Name the value that says that attention is not the same in all layers, or nothing.

    Parameters
    ----------
    config
        Of the text decoder. Windows are no difference: they have the same projections.
    """
    for name in ("layer_types", "layers_block_type"):
        kinds = config.get(name)
        if isinstance(kinds, list) and any(kind not in ALIKE for kind in map(str, kinds)):
            return name
    for name in ("attn_type_list", "num_attention_heads_per_layer"):
        if isinstance(kinds := config.get(name), list) and len({*map(str, kinds)}) > 1:
            return name
    for name in DIFFERENT:
        if config.get(name):
            return name
    for name in WINDOWED:
        if config.get(f"swa_{name}") not in (None, config.get(name)):
            return f"swa_{name}"
    for name in ("full_attention_interval", "attn_layer_period"):
        if isinstance(config.get(name), int) and config[name] > 1:
            return name
    return ""


DIFFERENT = (
    "linear_attn_config",
    "hybrid_override_pattern",
    "compress_ratios",
    "per_layer_config",
    "attention_other_setting",
    "use_cla",  # Hunyuan-Large: layers share keys and values
)
"""Values that, where they are there, say that attention differs between layers."""
WINDOWED = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
"""Sizes that layers with a window may have of their own, by a name with ``swa_`` before it."""
ALIKE = ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")
"""Kinds of attention with the projections of all heads."""


def _int(config: Config, name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or not -1 <= value < 2**31:
        raise ValueError(name)
    return value


def _by_kind(name: str, word: str, *, is_moe: bool = True) -> Rule:
    """A list with a word for every layer: for those with experts, or for those without."""

    def rule(config: Config, count: int) -> Iterable[int] | None:
        kinds = config.get(name)
        if kinds is None:
            return None
        if not isinstance(kinds, list | str) or len(kinds) < count:
            raise ValueError(name)
        return [layer for layer in range(count) if (kinds[layer] == word) == is_moe]

    return rule


def _by_list(config: Config, count: int) -> Iterable[int] | None:
    found = config.get("moe_layers")
    if found is None:
        return None
    return [layer for layer in found if _is_layer(layer, count)]


def _by_names(config: Config, count: int) -> Iterable[int] | None:
    found = config.get("moe_layers_enum")
    return None if not found else [int(layer) for layer in found.split(",")]


def _is_layer(layer: Any, count: int) -> bool:
    if type(layer) is not int or not 0 <= layer < count:
        raise ValueError(layer)
    return True


def _frequency(config: Config, count: int) -> Iterable[int] | None:
    """A list of 0 and 1, or every so many behind the first dense ones."""
    every = config.get("moe_layer_freq")
    if isinstance(every, list):
        if len(every) < count:
            raise ValueError(every)
        return [layer for layer in range(count) if every[layer]]
    begin = config.get("first_k_dense_replace")
    if every is None and begin is None:
        return None
    begin, every = _int(config, "first_k_dense_replace", 0), _int(config, "moe_layer_freq", 1)
    return [layer for layer in range(max(begin, 0), count) if layer % every == 0]


def _behind(config: Config, count: int) -> Iterable[int] | None:
    if config.get("num_dense_layers") is None:
        return None
    return range(max(_int(config, "num_dense_layers"), 0), count)


def _by_interval(config: Config, count: int) -> Iterable[int] | None:
    if config.get("interleave_moe_layer_step") is None:
        return None
    step = _int(config, "interleave_moe_layer_step")
    return range(step - 1, count, step)


def _sparse(config: Config, count: int) -> Iterable[int] | None:
    step, only = config.get("decoder_sparse_step"), config.get("mlp_only_layers")
    if step is None and not only:
        return None
    dense, step = set(only or ()), _int(config, "decoder_sparse_step", 1)
    return [layer for layer in range(count) if layer not in dense and (layer + 1) % step == 0]


def _between(config: Config, count: int) -> Iterable[int] | None:
    begin = config.get("moe_layer_start_index")
    if begin is None:
        return None
    begin, end = _int(config, "moe_layer_start_index"), _int(config, "moe_layer_end_index", -1)
    every = _int(config, "moe_layer_interval", 1)
    last = count - 1 if end == -1 else min(end, count - 1)
    return [layer for layer in range(begin, last + 1) if (layer + 1) % every == 0]


def _periodic(config: Config, count: int) -> Iterable[int] | None:
    if config.get("expert_layer_period") is None:
        return None
    return range(_int(config, "expert_layer_offset", 0), count, _int(config, "expert_layer_period"))


RULES: dict[str, Rule] = {
    "mlp_layer_types": _by_kind("mlp_layer_types", "dense", is_moe=False),
    "layers_block_type": _by_kind("layers_block_type", "moe"),
    "hybrid_override_pattern": _by_kind("hybrid_override_pattern", "E"),
    "moe_layers": _by_list,
    "moe_layers_enum": _by_names,
    "moe_layer_freq": _frequency,
    "num_dense_layers": _behind,
    "interleave_moe_layer_step": _by_interval,
    "decoder_sparse_step": _sparse,
    "moe_layer_start_index": _between,
    "expert_layer_period": _periodic,
}
"""By the value that says it: which layers have experts."""
