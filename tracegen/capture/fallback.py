"""Routing from gate modules, for transformers below 5 and for code outside the library.

There, experts do not receive ids. A gate that returns ids is believed. A gate that returns
scores is believed only for families whose routing is the plain top-k of them: with a
selection bias, expert groups or hashing, the top-k of the scores is not what is executed
(measured on 13 model types: it agrees for 0 to 56 % of the rows). No weights are recorded
where only scores are seen.

Measured with transformers 4.57.1 on tiny random models: the captured loads equal the rows that
each expert module really saw for mixtral, qwen2_moe, qwen3_moe, qwen3_next, olmoe, phimoe, jamba,
minimax, hunyuan_v1_moe (top-k of scores) and deepseek_v2, deepseek_v3, glm4_moe, dots1,
longcat_flash (ids that the gate returns, biases set). gpt_oss is read but could not be checked.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

from tracegen.capture.sites import Reading, Site, layer_number
from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

GATE_NAMES = ("gate", "router", "wg")
"""Names that MoE blocks give to their gate module."""
TOPK_NAMES = ("top_k", "topk", "num_experts_per_tok", "moe_topk")
PLAIN_TOPK = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "olmoe",
    "jamba",
    "minimax",
    "hunyuan_v1_moe",
    "phimoe",
)
"""Model types whose routing is the top-k of the gate's scores, bias and groups absent."""


def find_gates(model: Any) -> list[Site]:
    """Gate modules that sit beside experts.

    Parameters
    ----------
    model
        A transformers model, of any version, or with code of its own.

    Raises
    ------
    UserError
        If a gate returns scores only and the family's routing is not their plain top-k
        (when the model runs).
    """
    warnings.warn(
        "gate-logits: expert ids are derived from gate modules, not from what experts receive; "
        "check the load of a few layers against the model's own counters",
        stacklevel=4,
    )
    model_type = str(getattr(getattr(model, "config", None), "model_type", ""))
    modules = dict(model.named_modules())
    sites = []
    for name, module in modules.items():
        parent_name, _, last = name.rpartition(".")
        parent = modules.get(parent_name)
        if last not in GATE_NAMES or parent is None or not hasattr(parent, "experts"):
            continue
        topk = _first_int((module, parent, getattr(model, "config", None)), TOPK_NAMES)
        experts = _first_int((parent, module), ("num_experts", "n_routed_experts", "out_features"))
        if not topk or layer_number(name) is None:
            continue
        sites.append(
            Site(
                name=name,
                module=module,
                layer=layer_number(name) or 0,
                num_experts=experts,
                read=functools.partial(_read, topk, model_type),
                receives=False,
                proof="gate",
            )
        )
    return sites


def _first_int(owners: tuple[Any, ...], names: tuple[str, ...]) -> int:
    """First attribute of these names that is a positive integer, 0 if none is."""
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return 0


def _read(
    topk: int,
    model_type: str,
    _module: Any,
    _args: tuple[Any, ...],
    _kwargs: dict[str, Any],
    output: Any,
) -> Reading:
    """Ids that the gate returns, or the top-k of its scores where that is the routing."""
    tensors: list[Tensor] = [
        part.reshape(-1, part.shape[-1])
        for part in (output if isinstance(output, tuple | list) else (output,))
        if hasattr(part, "is_floating_point") and part.ndim >= 2
    ]
    for ids in tensors:
        if not ids.is_floating_point() and ids.shape[1] == topk:
            same = (t for t in tensors if t.is_floating_point() and t.shape == ids.shape)
            return ids, next(same, None)
    if model_type not in PLAIN_TOPK:
        msg = (
            f"the gates of {model_type or 'this model'} return scores, and it is not known that "
            f"its routing is their top-k; known: {', '.join(PLAIN_TOPK)}"
        )
        raise UserError(msg)
    scores = next((t for t in tensors if t.is_floating_point() and t.shape[1] >= topk), None)
    if scores is None:
        msg = f"the gates of {model_type} return neither ids nor scores"
        raise UserError(msg)
    return scores.topk(topk, dim=-1).indices, None
