"""The header of a captured trace, from a transformers configuration and its modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tracegen.models import ModelShape
from tracegen.models import config_names as names
from tracegen.trace.tables import TraceModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracegen.capture.sites import Site

BIAS_NAMES = ("e_score_correction_bias", "expert_bias", "moe_statics", "router_bias")


class _OfAllLayers:
    """Facts of a configuration on all layers; what differs between layers is not there.

    transformers refuses to read such an attribute off the whole configuration (heterogeneous
    models: attention with heads of two sizes, dense layers of several widths).
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._of_layers: dict[str, list[Any]] = {}
        names = getattr(config, "per_layer_attributes", None) or ()
        if names:
            layers = list(config.per_layer_config)
            self._of_layers = {n: [getattr(layer, n, None) for layer in layers] for n in names}

    def differing(self) -> list[str]:
        """Attributes that are not the same in all layers."""
        found = self._of_layers.items()
        return sorted(name for name, values in found if any(v != values[0] for v in values))

    def __getattr__(self, name: str) -> Any:
        if name not in self._of_layers:
            return getattr(self._config, name)
        if name in self.differing():
            raise AttributeError(name)
        return self._of_layers[name][0]


def text_config(model: Any) -> Any:
    """Configuration of the text decoder, without what differs between its layers.

    Parameters
    ----------
    model
        A transformers model.
    """
    config = model.config
    get = getattr(config, "get_text_config", None)
    return _OfAllLayers(config if get is None else get(decoder=True))


def note_on_layers(model: Any) -> str:
    """Sentence on what the header leaves out because layers differ in it, or nothing.

    Parameters
    ----------
    model
        A transformers model.
    """
    names = text_config(model).differing()
    if not names:
        return ""
    return f"Layers differ in {', '.join(names)}: the shape of the model is not stated."


def _get(config: Any) -> names.Get:
    """Values of a configuration by name; lists count by their largest."""

    def get(name: str) -> Any:
        value = getattr(config, name, None)
        return max(value) if isinstance(value, list | tuple) and value else value

    return get


def _first(config: Any, among: Sequence[str]) -> Any:
    """First of several attributes that is there and not None."""
    return names.first(_get(config), among)


def num_experts(model: Any, sites: Sequence[Site]) -> int:
    """Experts of a layer that can be chosen, zero experts included.

    Parameters
    ----------
    model
        A transformers model.
    sites
        Its MoE layers.
    """
    config = text_config(model)
    from_sites = max((site.num_experts for site in sites), default=0)
    stated = _first(getattr(config, "ffn_config", config), names.NUM_EXPERTS) or 0
    return from_sites or int(stated) + num_zero_experts(config)


def num_zero_experts(config: Any) -> int:
    """Identity experts at the end of the list (LongCat-Flash).

    Parameters
    ----------
    config
        Of the text decoder.
    """
    return int(_first(config, names.ZERO_EXPERTS) or 0)


def trace_model(model: Any, sites: Sequence[Site], topk: int) -> TraceModel:
    """Model header of the trace.

    Parameters
    ----------
    model
        A transformers model.
    sites
        Its MoE layers.
    topk
        Slots per token, as seen.
    """
    config = text_config(model)
    name = str(getattr(model.config, "_name_or_path", "") or "")
    if Path(name).exists():
        name = Path(name).name  # a folder of this machine means nothing elsewhere
    experts = num_experts(model, sites)
    scaling = _first(config, names.SCALING)
    groups = int(_first(config, names.GROUPS) or 1)
    model_type = str(getattr(config, "model_type", ""))
    dtype = getattr(model, "dtype", None)
    return TraceModel(
        num_experts=experts,
        top_k=topk,
        hidden_size=int(_first(config, names.HIDDEN) or 1),
        model_id=name,
        revision=str(getattr(model.config, "_commit_hash", None) or ""),
        model_type=model_type,
        num_shared_experts=names.shared_experts(_get(config), model_type, 0)[0],
        num_zero_experts=num_zero_experts(config),
        act_dtype_bytes=int(getattr(dtype, "itemsize", 2)),
        score_function=names.score_function(_get(config), model_type),
        norm_topk=_norm_topk(config, model_type),
        routed_scaling_factor=float(scaling) if isinstance(scaling, int | float) else 1.0,
        n_group=groups if experts % groups == 0 else 1,
        topk_group=int(_first(config, names.TOPK_GROUPS) or 1) if experts % groups == 0 else 1,
        expert_bias=_has_bias(model),
        shape=model_shape(model, sites, topk),
    )


def _norm_topk(config: Any, model_type: str) -> bool:
    """Tell whether chosen weights are scaled to sum to one."""
    stated = _first(config, names.NORM)
    return bool(names.family(model_type).get("norm_topk", True) if stated is None else stated)


def _has_bias(model: Any) -> bool:
    """Tell whether a selection bias is among the parameters or buffers."""
    tensors = [name for name, _ in model.named_parameters()]
    tensors += [name for name, _ in model.named_buffers()]
    return any(part in name for name in tensors for part in BIAS_NAMES)


def model_shape(model: Any, sites: Sequence[Site], topk: int) -> ModelShape | None:
    """Complete shape of the model for replay, or None if the configuration lacks something.

    Parameters
    ----------
    model
        A transformers model.
    sites
        Its MoE layers.
    topk
        Slots per token, as seen.
    """
    config = text_config(model)
    if config.differing():
        return None  # a shape has one value for all layers
    width = _expert_width(config, sites)
    model_type = str(getattr(config, "model_type", "model"))
    layers = _first(config, names.LAYERS)
    hidden = _first(config, names.HIDDEN)
    if not (width and layers and hidden) or getattr(config, "is_encoder_decoder", False):
        return None
    if (_first(config, names.ROWS) or hidden) != hidden:
        return None  # experts take rows of another length than attention, and a shape has one
    moe = {site.layer for site in sites}
    shared, shared_width = names.shared_experts(_get(config), model_type, int(width))
    dense = tuple(layer for layer in range(int(layers)) if layer not in moe)
    values: dict[str, Any] = {
        "name": model_type,
        "model_id": "" if Path(str(model.name_or_path)).exists() else str(model.name_or_path),
        "hidden": int(hidden),
        "moe_intermediate": int(width),
        "num_experts": num_experts(model, sites),
        "num_zero_experts": num_zero_experts(config),
        "topk": topk,
        "num_shared_experts": shared,
        "shared_intermediate": shared_width,
        "num_layers": int(layers),
        "dense_layers": dense,
        "dense_intermediate": int(_first(config, names.DENSE_WIDTH) or 0) if dense else 0,
        "gated": _gated(sites),
        "num_heads": _first(config, names.HEADS),
        "num_kv_heads": _first(config, names.KV_HEADS),
        "q_lora_rank": getattr(config, "q_lora_rank", None),
        "kv_lora_rank": getattr(config, "kv_lora_rank", None),
        "expert_bias": _has_bias(model),
    }
    if values["kv_lora_rank"]:
        for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            values[name] = getattr(config, name, None)
    elif values["num_heads"]:
        values["head_dim"] = int(getattr(config, "head_dim", None) or hidden // values["num_heads"])
    score = names.score_function(_get(config), model_type)
    if score:
        values["score_function"] = score
    groups = int(_first(config, names.GROUPS) or 1)
    if groups > 1:
        values |= {"n_group": groups, "topk_group": int(_first(config, names.TOPK_GROUPS) or 1)}
    values["norm_topk"] = _norm_topk(config, model_type)
    scaling = _first(config, names.SCALING)
    if isinstance(scaling, int | float) and scaling > 0:
        values["routed_scaling_factor"] = float(scaling)
    try:
        return ModelShape(**{name: value for name, value in values.items() if value is not None})
    except ValidationError:
        return None  # a trace without the shape can still be replayed with --model


def _expert_width(config: Any, sites: Sequence[Site]) -> int | None:
    """Inner width of a routed expert, if all layers have one: as their modules say, else stated."""
    for name in ("intermediate_dim", "intermediate_size", "expert_dim", "ffn_hidden_size"):
        value = getattr(sites[0].module, name, None)
        if isinstance(value, int) and value:
            same = all(getattr(site.module, name, None) == value for site in sites)
            return value if same else None
    stated = _first(getattr(config, "ffn_config", config), names.EXPERT_WIDTH)
    return int(stated) if isinstance(stated, int | float) and stated else None


def _gated(sites: Sequence[Site]) -> bool:
    """Tell whether an expert has a gate and an up projection."""
    names = [name for name, _ in sites[0].module.named_parameters()]
    return not any(name.split(".")[-1] == "up_proj" for name in names) or any("gate" in name for name in names)


def as_json(model: TraceModel) -> dict[str, Any]:
    """Model header as a JSON-ready dictionary.

    Parameters
    ----------
    model
        Of the trace.
    """
    values = dict(vars(model))
    values["shape"] = None if model.shape is None else model.shape.model_dump(mode="json")
    return values


def weight_semantics(sites: Sequence[Site], model_type: str) -> str:
    """Meaning of a recorded weight, in words.

    Parameters
    ----------
    sites
        MoE layers.
    model_type
        Of the configuration.
    """
    module = type(sites[0].module).__name__
    return f"as {module} of {model_type} {'receives' if sites[0].receives else 'returns'} it"


def source(model: Any) -> dict[str, Any]:
    """Model that was run, for the provenance.

    Parameters
    ----------
    model
        A transformers model.
    """
    config = model.config
    name = str(getattr(config, "_name_or_path", "") or "")
    found = {
        "model": Path(name).name if name and Path(name).exists() else name,
        "revision": str(getattr(config, "_commit_hash", None) or ""),
        "class": type(model).__name__,
        "dtype": str(getattr(model, "dtype", "")).removeprefix("torch."),
        "device": str(getattr(model, "device", "")).partition(":")[0],
        "attention": str(getattr(config, "_attn_implementation", None) or ""),
        "experts": str(getattr(config, "_experts_implementation", None) or ""),
    }
    return {key: value for key, value in found.items() if value}


def environment() -> dict[str, str]:
    """Versions of what the model ran on."""
    import torch
    import transformers

    return {"torch": str(torch.__version__), "transformers": transformers.__version__}
