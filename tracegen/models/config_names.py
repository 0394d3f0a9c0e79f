"""Names that configurations of models give to sizes, and what a family's code does unsaid.

One table for whoever reads a configuration: a capture, which has a model's configuration in memory,
and :mod:`tracegen.models.config`, which has its ``config.json`` alone. The names are those of the
configurations and attribute maps of transformers 5.24, and of vLLM's and SGLang's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Get = Callable[[str], Any]
"""Value of a configuration by its name; None where it has none."""

HIDDEN = ("hidden_size", "d_model", "n_embd")
# LongCat's layers are counted in num_layers; its num_hidden_layers is that of attention, twice so.
LAYERS = ("num_layers", "num_hidden_layers", "n_layers", "n_layer")
NUM_EXPERTS = (
    "n_routed_experts",
    "num_local_experts",
    "num_experts",
    "moe_num_experts",
    "num_routed_experts",
)
"""Names that configurations give to the number of routed experts."""
ZERO_EXPERTS = ("zero_expert_num",)
"""Identity experts at the end of the list, which are not among `NUM_EXPERTS` (LongCat-Flash)."""
TOPK = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
    "experts_per_token",
)
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "shared_experts_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
)
"""Inner width of all shared experts together, but where `SHARED` says how many there are."""
EXPERT_WIDTH = (
    "moe_intermediate_size",
    "expert_ffn_hidden_size",
    "intermediate_size",
    "ffn_hidden_size",
)
DENSE_WIDTH = (
    "intermediate_size_mlp",
    "dense_intermediate_size",
    "intermediate_size",
    "ffn_dim",
    "ffn_hidden_size",
)
ROWS = ("moe_latent_size", "moe_hidden_size")
"""Length of the rows that experts take, where tokens are projected before they are sent."""
HEADS = ("num_attention_heads", "n_heads")
KV_HEADS = ("num_key_value_heads", "kv_n_heads", *HEADS)
SCORE = ("scoring_func", "score_function", "score_func", "moe_router_activation_func")
SCORES = {name: name for name in ("softmax", "sigmoid", "sqrtsoftplus")}
NORM = ("norm_topk_prob", "moe_renormalize", "route_norm")
SCALING = (
    "routed_scaling_factor",
    "route_scale",
    "moe_routed_scaling_factor",
    "router_scaling_factor",
    "moe_router_scaling_factor",
)
GROUPS = ("n_group", "num_expert_group")
TOPK_GROUPS = ("topk_group",)
MTP = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_hidden_layers")
VOCAB = ("vocab_size",)
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

_BIASED = {"score_function": "sigmoid", "expert_bias": True}
_PLAIN = {"score_function": "softmax"}
_SOFTMAX = {**_PLAIN, "norm_topk": True}
_TOPK = {"score_function": "topk_softmax"}

_NORMED = {  # q_norm and k_norm (or query_layernorm, q_layernorm) of the attention
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_next", "qwen3_5_moe"), "head"),
    **dict.fromkeys(("dots1", "exaone_moe", "hy_v3", "laguna", "afmoe", "hunyuan_v1_moe", "lfm2_moe"), "head"),
    **dict.fromkeys(("olmoe", "minimax_m2"), "all"),
}
_SHARED_GATE = ("qwen2_moe", "qwen3_next", "qwen3_5_moe")
"""Families whose shared experts have `shared_expert_gate`."""

_ROUTERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mixtral", "minimax", "minimax_m1", "minimax_text_01"), _SOFTMAX),
    **dict.fromkeys(("qwen3_5_moe", "mistral_large4"), _SOFTMAX),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "qwen3_next"), _PLAIN),
    **dict.fromkeys(("qwen3_omni_moe", "qwen4_exp", "olmoe", "deepseek_v2", "mistral4"), _PLAIN),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear", "dots1"), _BIASED),
    **dict.fromkeys(("glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa"), _BIASED),
    **dict.fromkeys(("glm5_next", "exaone_moe", "bailing_hybrid", "hy_v3", "hy_v4"), _BIASED),
    **dict.fromkeys(("hy_v4_vl", "minimax_m2", "minimax_m3_vl", "mimo_v2_flash"), _BIASED),
    **dict.fromkeys(("solar_open", "laguna", "afmoe", "dots3_note", "axk1"), _BIASED),
    **dict.fromkeys(("gpt_oss", "granitemoe", "granitemoeshared", "granitemoehybrid"), _TOPK),
    "hunyuan": {**_PLAIN, "norm_topk": False},
    "hunyuan_v1_moe": {**_SOFTMAX, "num_shared_experts": 1},
    "jetmoe": _TOPK,
    "deepseek_v4": {"score_function": "sqrtsoftplus", "expert_bias": True},
    "ernie4_5_moe": {**_SOFTMAX, "expert_bias": True},
    "lfm2_moe": {"score_function": "sigmoid"},
    "llama4": {"score_function": "sigmoid", "norm_topk": False, "num_shared_experts": 1},
    "longcat_flash": {"score_function": "softmax", "norm_topk": False, "expert_bias": True},
    "nemotron_h": {**_BIASED, "gated": False},
    "phimoe": {"score_function": "sparsemixer", "norm_topk": False},
}

FAMILIES: dict[str, dict[str, Any]] = {
    name: {
        **router,
        **({"qk_norm": _NORMED[name]} if name in _NORMED else {}),
        **({"shared_gate": True} if name in _SHARED_GATE else {}),
    }
    for name, router in _ROUTERS.items()
}
"""By `model_type`: what the modelling code of a family does and its configuration does not say.

From the routers, experts and attention of transformers 5.24 (``modeling_*.py``). What the configuration says
goes before it.
"""


def first(get: Get, names: Sequence[str]) -> Any:
    """Find the first of several values that is there.

    Parameters
    ----------
    get
        Gives a configuration's value by name; None if it has none.
    names
        In the order in which they are meant.
    """
    return next((value for name in names if (value := get(name)) is not None), None)


def family(model_type: str) -> dict[str, Any]:
    """Look up what goes unsaid in a family, or nothing of one that is not known.

    Parameters
    ----------
    model_type
        Of the text decoder or of the model that has it: ``llama4_text`` is of ``llama4``.
    """
    return FAMILIES.get(model_type) or FAMILIES.get(model_type.removesuffix("_text"), {})


def shared_experts(get: Get, model_type: str, width: int) -> tuple[int, int]:
    """Count the experts that every token visits, and give the inner width of each.

    Parameters
    ----------
    get
        Of the text decoder's configuration.
    model_type
        Of the same.
    width
        Of a routed expert, which shared ones have where nothing else is stated.

    Returns
    -------
    Both zero where there are none.
    """
    stated, together = first(get, SHARED), int(first(get, SHARED_WIDTH) or 0)
    if stated is None and not together and get("residual_moe") is True:
        together = int(first(get, DENSE_WIDTH) or 0)  # Grok-2's dense network beside the experts
    if stated is None:
        stated = 1 if together else family(model_type).get("num_shared_experts", 0)
    if not stated:
        return 0, 0
    if not together:
        return int(stated), width
    return (int(stated), together // int(stated)) if together % int(stated) == 0 else (1, together)


def score_function(get: Get, model_type: str) -> str:
    """Name the function from scores to weights, or nothing where neither says.

    Parameters
    ----------
    get
        Of the text decoder's configuration.
    model_type
        Of the same.
    """
    stated = SCORES.get(str(first(get, SCORE) or ""), "")
    return stated or str(family(model_type).get("score_function", ""))
