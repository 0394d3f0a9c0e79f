"""Places where a model's routing can be read: expert modules by signature, router adapters.

Reading what an experts module receives needs no list of model classes and sees what is
executed. The adapters are for three families whose experts do not receive ids.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

ID_NAMES = ("top_k_index", "router_indices", "selected_experts", "topk_idx", "topk_indices")
"""Names that the forward of an experts module gives to expert ids."""
WEIGHT_NAMES = ("top_k_weights", "routing_weights", "topk_weight", "topk_weights")
"""Names that it gives to gate weights."""

BROKEN = {
    "NllbMoeTop2Router": "NLLB-MoE: transformers 5 runs only the first two experts, since it reads "
    "a 0/1 mask as expert numbers; its routing says nothing about the model",
}
"""Router classes whose models must not be captured, and why."""

Reading = tuple["Tensor", "Tensor | None"]
"""Expert ids, integer (row, k), -1 where a token was dropped; gate weights (row, k)."""


@dataclass
class Site:
    """One MoE layer, and how to read its routing from a hook."""

    name: str
    """Path of the module within the model."""
    module: nn.Module
    layer: int
    """Decoder layer number."""
    num_experts: int
    """As the module says; 0 if it does not."""
    read: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Reading]
    """From the module, its arguments and its output."""
    receives: bool
    """Whether it is read from what the module receives, rather than from what it returns."""
    proof: str
    """``experts`` or ``adapter``: what the routing is read from."""


def find_sites(model: nn.Module) -> list[Site]:
    """Every place of a model where routing can be read, in module order.

    Parameters
    ----------
    model
        Any module.

    Raises
    ------
    UserError
        If the model is known to route wrongly.
    """
    sites = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in BROKEN:
            raise UserError(BROKEN[kind])
        site = _adapter(name, module) or _experts(name, module)
        if site is not None:
            sites.append(site)
    return sites


def layer_number(name: str) -> int | None:
    """Decoder layer number in the path of a module: the first number in it.

    Parameters
    ----------
    name
        Such as ``model.layers.3.mlp.experts``.

    Examples
    --------
    >>> layer_number("model.layers.3.mlp.experts"), layer_number("model.experts")
    (3, None)
    """
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found.group(1)) if found else None


def _experts(name: str, module: nn.Module) -> Site | None:
    """Site of an experts module that receives ids and weights, else None."""
    parameters = list(inspect.signature(type(module).forward).parameters)[1:]
    ids = next((n for n in ID_NAMES if n in parameters), None)
    weights = next((n for n in WEIGHT_NAMES if n in parameters), None)
    if ids is None or weights is None:
        return None
    places = (parameters.index(ids), parameters.index(weights))

    def read(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> Reading:
        found = [
            kwargs[argument] if argument in kwargs else args[place]
            for argument, place in zip((ids, weights), places, strict=True)
        ]
        read_ids, read_weights = (one.reshape(-1, one.shape[-1]) for one in found)
        if read_ids.shape != read_weights.shape:
            # transformers 5.0 hands weights of all experts to experts that look them up by slot.
            msg = (
                f"{name}: gate weights of shape {tuple(read_weights.shape)} are not of its expert "
                f"ids, {tuple(read_ids.shape)}, so that the model weighs other experts than it "
                "runs; some models did so in transformers 5.0, and later versions mended it"
            )
            raise UserError(msg)
        return read_ids, read_weights

    return Site(
        name=name,
        module=module,
        layer=layer_number(name) or 0,
        num_experts=0
        if getattr(module, "_is_expert_parallel", False)  # then it is the number on this rank
        else int(getattr(module, "total_experts", 0) or getattr(module, "num_experts", 0) or 0),
        read=read,
        receives=True,
        proof="experts",
    )


def _adapter(name: str, module: nn.Module) -> Site | None:
    """Site of one of the three families whose experts do not receive ids, else None."""
    kind = type(module).__name__
    if kind not in ADAPTERS or (kind == "JetMoeTopKGating" and ".mlp." not in f".{name}."):
        # JetMoE also routes its attention heads; they are not feed-forward experts.
        return None
    read, receives = ADAPTERS[kind]
    return Site(
        name=name,
        module=module,
        layer=layer_number(name) or 0,
        num_experts=int(getattr(module, "num_experts", 0) or 0),
        read=read,
        receives=receives,
        proof="adapter",
    )


def _read_llama4(module: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any) -> Reading:
    """Llama 4: all experts run on all tokens, with score 0 outside the router's top-k."""
    scores, logits = output
    # The same operation on the same tensor as in the router, so ties fall alike. The scores
    # would not do: a sigmoid can underflow to the 0 that stands for "not chosen".
    ids = logits.topk(module.top_k, dim=1).indices
    if bool(scores.scatter(1, ids, 0.0).any()):
        raise UserError(_contradiction(module, "scores", "logits"))
    return ids, scores.gather(1, ids)


def _read_jetmoe(module: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any) -> Reading:
    """JetMoE: the router hands on (token, slot) pairs sorted by expert, and group sizes."""
    import torch

    order, tokens, gates, sizes, _logits = output
    if not torch.equal(tokens, order.div(module.top_k, rounding_mode="trunc")):
        raise UserError(_contradiction(module, "token indices", "pairs"))
    pairs = order.numel()
    experts = torch.repeat_interleave(torch.as_tensor(sizes, device=order.device))
    ids = torch.empty(pairs, dtype=torch.int64, device=order.device)
    ids[order] = experts
    weights = torch.empty_like(gates)
    weights[order] = gates
    return ids.reshape(-1, module.top_k), weights.reshape(-1, module.top_k)


def _contradiction(module: Any, used: str, read: str) -> str:
    """Message on a router whose output contradicts itself: something has changed it."""
    return (
        f"the {used} that {type(module).__name__} returns are not of its {read}: its routing was "
        "overridden in part, and which experts run cannot be read"
    )


def _read_switch(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> Reading:
    """Switch: the experts receive a mask (row, 1, expert), all zero for a dropped token."""
    mask, weights = (
        kwargs[name] if name in kwargs else args[place]
        for place, name in ((1, "selected_experts"), (2, "routing_weights"))
    )
    mask = mask.reshape(-1, mask.shape[-1])
    ids = mask.argmax(dim=-1, keepdim=True)
    return ids.masked_fill(mask.sum(dim=-1, keepdim=True) == 0, -1), weights.reshape(-1, 1)


ADAPTERS: dict[str, tuple[Callable[..., Reading], bool]] = {
    "Llama4Router": (_read_llama4, False),
    "JetMoeTopKGating": (_read_jetmoe, False),
    "SwitchTransformersExperts": (_read_switch, True),
}
"""Class name to how it is read, and whether from what it receives."""


@dataclass
class LayerStack:
    """Layers that see the same rows, and the module whose forward is one step of them."""

    module: nn.Module
    encoder: bool
    sites: list[Site]


def find_stacks(model: Any, sites: list[Site]) -> tuple[list[LayerStack], list[str]]:
    """Group sites by the module whose input rows they see.

    Parameters
    ----------
    model
        A transformers model.
    sites
        As found in it.

    Returns
    -------
    The stacks, encoder first, layers numbered through all of them; and the names of
    sites left out because they are not in the text model (vision towers and the like).

    Raises
    ------
    UserError
        If no site is left, or two claim the same layer.
    """
    config = getattr(model, "config", None)
    stacks: list[LayerStack] = []
    if getattr(config, "is_encoder_decoder", False):
        encoder, decoder = model.get_encoder(), model.get_decoder()
        stacks = [LayerStack(encoder, True, []), LayerStack(decoder, False, [])]
    else:
        stacks = [LayerStack(model, False, [])]
    text = _text_part(model) if len(stacks) == 1 else None
    outside = []
    for site in sites:
        homes = [stack for stack in stacks if _contains(stack.module, site.module)]
        if not homes or (text is not None and not _contains(text, site.module)):
            outside.append(site.name)
        else:
            homes[0].sites.append(site)
    if not any(stack.sites for stack in stacks):
        outside = []
        stacks[-1].sites = list(sites)
    first = 0
    for stack in stacks:
        _check_layers(stack)
        for site in stack.sites:
            site.layer += first
        first += _num_layers(config, stack)
    return [stack for stack in stacks if stack.sites], outside


def _text_part(model: Any) -> nn.Module | None:
    """The text decoder of a model that has other parts too."""
    get_decoder = getattr(model, "get_decoder", None)
    decoder = get_decoder() if get_decoder is not None else None
    return decoder if hasattr(decoder, "named_modules") else None


def _contains(parent: nn.Module, child: nn.Module) -> bool:
    return any(module is child for module in parent.modules())


def _check_layers(stack: LayerStack) -> None:
    """Refuse two sites in one layer: the format has one routing per layer."""
    seen: dict[int, str] = {}
    for site in stack.sites:
        if site.layer in seen:
            msg = (
                f"{seen[site.layer]} and {site.name} both claim to be layer {site.layer}: "
                "one routing per layer and token can be recorded"
            )
            raise UserError(msg)
        seen[site.layer] = site.name


def _num_layers(config: Any, stack: LayerStack) -> int:
    """Layers of a stack, dense ones included."""
    stated = getattr(config, "num_layers" if stack.encoder else "num_decoder_layers", None)
    highest = max((site.layer for site in stack.sites), default=-1) + 1
    return max(int(stated or 0), highest)


def refuse_replaced_forward(site: Site) -> None:
    """Refuse a module whose forward somebody replaced: what it hands on cannot be seen.

    The wrapper that accelerate puts around a forward only moves tensors between devices.

    Parameters
    ----------
    site
        One that is read from what its module receives.

    Raises
    ------
    UserError
        If the module has a forward of its own instead of its class's.
    """
    own = vars(site.module).get("forward")
    if own is not None and hasattr(site.module, "_hf_hook"):
        own = vars(site.module).get("_old_forward")
    if site.receives and own is not None and _function(own) is not type(site.module).forward:
        msg = (
            f"layer {site.layer} ({site.name}): the forward of this module was replaced by "
            f"{getattr(own, '__qualname__', own)!r}, which may route otherwise than it is told; "
            "capture without it"
        )
        raise UserError(msg)


def _function(method: Any) -> Any:
    """Function of a bound method; anything else as it is."""
    return getattr(method, "__func__", method)


def is_torch_module(model: Any) -> bool:
    """Tell whether this is something hooks can be put on.

    Parameters
    ----------
    model
        Anything.
    """
    import torch

    return isinstance(model, torch.nn.Module)
