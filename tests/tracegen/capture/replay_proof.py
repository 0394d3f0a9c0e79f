"""The proof that a capture is right: its trace, fed back to the model, gives the same logits.

Weights are rounded to the trace's half precision in the reference run too, so that the
comparison can be exact.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny_families
import torch
import transformers

import tracegen
from tracegen.capture.prepare import NEWEST, release
from tracegen.capture.sites import Site, find_sites, find_stacks
from tracegen.library import verify

PROMPT_TOKENS = (4, 7, 6)
"""Real tokens of the three prompts, padded on the left to the longest."""
NEW_TOKENS = 4
PREFILL, DECODE, TRAINING, ENCODER = range(4)
"""Phases of a trace's rows."""
REAL = sum(PROMPT_TOKENS)
DECODED = len(PROMPT_TOKENS) * (NEW_TOKENS - 1)
EXPECTED = sorted(
    (request, position, PREFILL if position < length else DECODE)
    for request, length in enumerate(PROMPT_TOKENS)
    for position in range(length + NEW_TOKENS - 1)
)
"""Each prompt once, and all generated tokens but the last, which is never routed."""
OLDER = release(transformers.__version__) < NEWEST
"""Whether transformers is an earlier one than what tables and tiny configurations are made for."""
UNEVEN_TOKENS = (3, 12, 7)
"""Prompts of which one is mostly padding, and all but one reach beyond a sparse attention."""


@dataclass(frozen=True)
class Proof:
    """What was found about one model type."""

    read_from: str
    """Class whose hook the routing is read from."""
    how: str
    """``experts`` or ``adapter``."""
    rows_as_expected: bool
    """One row per real token: prompts, and all generated tokens but the last."""
    replay_exact: bool
    """Captured ids and weights, fed back, give bit-identical logits."""
    shift_differs: bool
    """Every id moved by one expert gives other logits."""
    cached_equals_whole: float
    """Share of (layer, row) of a cached generation equal to one pass over the whole sequence;
    not a number if the model does not generate, or routes through an encoder."""
    padded_equals_whole: float
    """The same of a generation that is padded on the left."""


def prompts(lengths: tuple[int, ...] = PROMPT_TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded input ids and their mask."""
    generator = torch.Generator().manual_seed(5)
    width = max(lengths)
    ids = torch.randint(4, tiny_families.VOCAB, (len(lengths), width), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, width - length :] = 1
    return ids.masked_fill(mask == 0, tiny_families.PAD), mask


def given_back(model: Any, cache: Any) -> dict[str, Any]:
    """A cache as an argument, under the name that the installed transformers has for it."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def generate(model: Any, ids: torch.Tensor | None = None, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Greedy generation of NEW_TOKENS for every prompt; nothing ends early."""
    if ids is None:
        ids, mask = prompts()
    tokens: torch.Tensor = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
    )
    return tokens


def captured(model: Any, out: Path, **options: Any) -> tracegen.RoutingTrace:
    """The trace of a generation, whole."""
    with tracegen.capture(model, out, **options):
        generate(model)
    assert verify(out)
    assert not out.with_name(out.name + ".partial").exists()
    return tracegen.load(out)


@functools.cache
def prove(model_type: str, folder: Path) -> Proof:
    """Everything that is checked about one model type."""
    model = tiny_families.tiny_model(model_type, folder / model_type)
    sites = find_sites(model)
    stacks, _ = find_stacks(model, sites)
    sites = sorted((s for stack in stacks for s in stack.sites), key=lambda s: s.layer)
    inputs = forward_inputs(model)
    path = folder / f"{model_type}.h5"
    with Rounded(sites), torch.no_grad():
        with tracegen.capture(model, path):
            reference = model(**inputs).logits
        whole = tracegen.load(path)
        replayed = with_routing(model, inputs, stacks, whole, shift=0)
        shifted = with_routing(model, inputs, stacks, whole, shift=1)
    rows, unpadded, padded = generations(model, folder)
    return Proof(
        read_from=type(sites[0].module).__name__,
        how=sites[0].proof,
        rows_as_expected=rows,
        replay_exact=bool(torch.equal(real_rows(replayed, inputs), real_rows(reference, inputs))),
        shift_differs=not torch.equal(real_rows(shifted, inputs), real_rows(reference, inputs)),
        cached_equals_whole=unpadded,
        padded_equals_whole=padded,
    )


def real_rows(logits: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits of real tokens: padding rows are not in the trace."""
    if "decoder_input_ids" in inputs:
        return logits
    return logits[inputs["attention_mask"].bool()]


def forward_inputs(model: Any) -> dict[str, torch.Tensor]:
    """One forward pass over the padded prompts."""
    ids, mask = prompts()
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.flip(0)
    return inputs


class Rounded:
    """Round gate weights to half precision before the experts see them."""

    def __init__(self, sites: list[Site]) -> None:
        self._sites = sites
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        for site in self._sites:
            hook: Callable[..., Any]
            if site.receives:
                hook = lambda _m, args, kwargs: (  # noqa: E731
                    tuple(half(a) if i else a for i, a in enumerate(args)),
                    {k: v if k == "hidden_states" else half(v) for k, v in kwargs.items()},
                )
                handle = site.module.register_forward_pre_hook(hook, with_kwargs=True)
            else:
                hook = lambda _m, _a, output: tuple(half(part) for part in output)  # noqa: E731
                handle = site.module.register_forward_hook(hook)
            self._handles.append(handle)

    def __exit__(self, *_error: object) -> None:
        for handle in self._handles:
            handle.remove()


def half(value: Any) -> Any:
    """A float tensor through half precision; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(torch.float16).to(value.dtype)
    return value


def with_routing(model: Any, inputs: dict[str, torch.Tensor], stacks: Any, trace: Any, *, shift: int) -> torch.Tensor:
    """Logits of a pass in which every real row is routed as the trace says."""
    assert trace.gate_weights is not None
    handles = []
    layers = {int(number): at for at, number in enumerate(trace.moe_layer_index)}
    for stack in stacks:
        mask = inputs["attention_mask"]
        encoder_decoder = "decoder_input_ids" in inputs
        if encoder_decoder and not stack.encoder:
            mask = torch.ones_like(inputs["decoder_input_ids"])
        rows = trace.tokens.phase == ENCODER if stack.encoder else trace.tokens.phase != ENCODER
        keep = mask.reshape(-1).bool()
        for site in stack.sites:
            at = layers[site.layer]
            ids = torch.from_numpy(trace.layer_ids(at)[rows].astype(np.int64))
            chosen = torch.where(ids >= 0, (ids + shift) % trace.num_experts, ids)
            weights = torch.from_numpy(trace.gate_weights[at][rows].astype(np.float32))
            handles.append(substitute(site, keep, chosen, weights))
    try:
        logits: torch.Tensor = model(**inputs).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits


def substitute(site: Site, keep: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Any:
    """Hook that replaces what a site routes; padding rows keep the model's own routing."""
    kind = type(site.module).__name__

    def merged(read: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        own_ids, own_weights = read[0].long().clone(), read[1].clone()
        own_ids[keep], own_weights[keep] = ids, weights.to(own_weights.dtype)
        return own_ids, own_weights

    if site.receives:

        def before(module: Any, args: Any, kwargs: Any) -> Any:
            new_ids, new_weights = merged(site.read(module, args, kwargs, None))
            hidden = args[0] if args else kwargs["hidden_states"]
            if kind == "SwitchTransformersExperts":
                mask = torch.zeros(len(new_ids), 1, module.num_experts, dtype=torch.long)
                real = new_ids[:, 0] >= 0
                mask[real, 0, new_ids[real, 0]] = 1
                return (hidden, mask, new_weights), {}
            return (hidden, new_ids, new_weights), {}

        return site.module.register_forward_pre_hook(before, with_kwargs=True)

    def after(module: Any, args: Any, output: Any) -> Any:
        new_ids, new_weights = merged(site.read(module, args, {}, output))
        if kind == "Llama4Router":
            scores = torch.zeros_like(output[0]).scatter(1, new_ids, new_weights)
            return scores, output[1]
        order = new_ids.flatten().sort(stable=True).indices  # JetMoE
        sizes = torch.bincount(new_ids.flatten(), minlength=module.num_experts).tolist()
        tokens = order.div(module.top_k, rounding_mode="trunc")
        return order, tokens, new_weights.flatten()[order], sizes, output[4]

    return site.module.register_forward_hook(after)


def generations(model: Any, folder: Path) -> tuple[bool, float, float]:
    """Whether a generation has the rows that it should have, and the shares of :class:`Proof`."""
    if model.config.is_encoder_decoder or not hasattr(model, "generate"):
        return rows_without_prompts(model, folder), float("nan"), float("nan")
    ids, mask = prompts(UNEVEN_TOKENS)
    padded = cached_as_whole(model, ids, mask, folder)
    expected = sum(UNEVEN_TOKENS) + len(UNEVEN_TOKENS) * (NEW_TOKENS - 1)
    rows = tracegen.load(folder / "cached.h5").num_tokens == expected
    longest = ids[mask.all(dim=1)]
    # The batch has a sequence without padding too.
    whole = 1.0 if padded == 1 else cached_as_whole(model, longest, longest.sign(), folder)
    return rows, whole, padded


def rows_without_prompts(model: Any, folder: Path) -> bool:
    """Whether a decoder behind an encoder has one row for each token, or a pass for each input."""
    path = folder / "rows.h5"
    with torch.no_grad(), tracegen.capture(model, path, overwrite=True):
        if hasattr(model, "generate"):
            generate(model)
        else:
            model(**forward_inputs(model))
    expected = len(PROMPT_TOKENS) * NEW_TOKENS if hasattr(model, "generate") else sum(PROMPT_TOKENS)
    return int((tracegen.load(path).tokens.phase != ENCODER).sum()) == expected


def cached_as_whole(model: Any, ids: torch.Tensor, mask: torch.Tensor, folder: Path) -> float:
    """Share of (layer, row) of a generation that equals one unpadded pass for each sequence."""
    cached, whole = folder / "cached.h5", folder / "whole.h5"
    with torch.no_grad():
        with tracegen.capture(model, cached, overwrite=True):
            tokens = generate(model, ids, mask)[:, :-1]
        with tracegen.capture(model, whole, overwrite=True):
            for row, padding in enumerate((mask == 0).sum(dim=1).tolist()):
                model(input_ids=tokens[row : row + 1, padding:], use_cache=False)
    return equal_rows(tracegen.load(cached), tracegen.load(whole))


def equal_rows(one: Any, other: Any) -> float:
    """Share of (layer, row) with the same experts, requests and positions in order."""
    if one.num_tokens != other.num_tokens:
        return 0.0
    equal = [(in_order(one, row) == in_order(other, row)).all(axis=2) for row in np.unique(one.tokens.request).tolist()]
    return sum(int(same.sum()) for same in equal) / sum(same.size for same in equal)


def in_order(trace: Any, request: int) -> Any:
    """Experts of a request's rows by position, (layer, row, slot), each row's sorted."""
    rows = np.flatnonzero(trace.tokens.request == request)
    rows = rows[np.argsort(trace.tokens.position[rows])]
    return np.sort(trace.expert_ids[:, rows], axis=2)
