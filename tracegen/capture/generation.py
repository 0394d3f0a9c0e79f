"""Sequences that a call of ``generate`` or ``forward`` works on, read from its arguments."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

SPECULATIVE = (
    "assistant_model",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "use_mtp",
    "speculation_type",
)
"""Arguments of generate that make it check proposed tokens and reject some."""
OTHERWISE = {
    "penalty_alpha": "contrastive search runs the model on several candidates for each token",
    "dola_layers": "its code is on the Hub, and not known here",
    "constraints": "constrained decoding is a beam search",
    "force_words_ids": "constrained decoding is a beam search",
    "token_healing": "it generates the last token of each prompt again, one prompt after another",
}
"""Arguments of generate with which it runs the model otherwise than step by step, and how."""
CONTINUOUS = (
    "generate_batch",
    "init_continuous_batching",
    "continuous_batching_context_manager",
)
"""Methods of a model that batch requests as they come."""


@dataclass
class GenerateCall:
    """One call of ``generate``."""

    width: int
    """Columns of the padded prompts as given; 1 if generation starts from nothing."""
    mask: Any
    """Attention mask of the prompts (sequence, column), or None if all is real."""
    stop_ids: tuple[int, ...]
    """Tokens that, once fed after the prompt, say that the sequence had ended."""
    chunked: bool
    """Whether prompts may take several passes."""

    def prompt_columns(self, past: int, columns: int) -> int:
        """Columns of prompt, those in a cache included.

        Parameters
        ----------
        past
            Columns the cache holds already.
        columns
            Columns of the first pass.
        """
        if not self.chunked:
            return past + columns
        # With a cache, a prompt is given whole, or only what is new under a whole mask.
        known = None if self.mask is None else int(self.mask.shape[1])
        given_whole = self.width > past and known in (None, self.width)
        return self.width if given_whole else past + self.width

    def mask_part(self, size: int, first: int, columns: int) -> Array | None:
        """Mask of some columns, as far as they are prompt; everything later is real.

        Parameters
        ----------
        size
            Sequences; a multiple of the prompts when several are sampled from each.
        first, columns
            First of the columns, and their number.
        """
        if self.mask is None:
            return None
        mask = to_numpy(self.mask).astype(np.bool_)
        mask = np.repeat(mask, max(1, size // len(mask)), axis=0)
        real = np.ones((size, columns), np.bool_)
        part = mask[:size, first : first + columns]
        real[:, : part.shape[1]] = part
        return real


def to_numpy(tensor: Any) -> Array:
    """Values of a tensor on the host.

    Parameters
    ----------
    tensor
        On any device.
    """
    array: Array = tensor.detach().cpu().numpy()
    return array


def to_host(tensors: list[Any]) -> list[Array]:
    """Values of one tensor per layer, in one transfer where they are alike.

    Parameters
    ----------
    tensors
        Of all layers, on any devices.
    """
    import torch

    if len({(tensor.device, tensor.shape) for tensor in tensors}) == 1:
        return list(to_numpy(torch.stack(tensors)))
    return [to_numpy(tensor) for tensor in tensors]


def arguments(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call by name; those at places without a name by their number.

    Parameters
    ----------
    method
        Bound method that is called.
    args, kwargs
        As given.
    """
    if not args:
        return kwargs
    names = [
        name
        for name, p in inspect.signature(method).parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names += [f"argument {place + 1}" for place in range(len(names), len(args))]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def text_positions(given: Any, size: int, columns: int) -> Array | None:
    """Positions of the inputs in their texts, (row, column), None if they are not known.

    Parameters
    ----------
    given
        The argument ``position_ids``: (row or 1, column), or with a leading axis of four of
        which the first is of the text and the others of pictures.
    size, columns
        Rows and columns of the input. A single column says nothing.
    """
    if columns > 1 and getattr(given, "ndim", 0) == 3 and given.shape[0] == 4:
        given = given[0]
    if columns == 1 or getattr(given, "ndim", 0) != 2 or given.shape[1] != columns:
        return None
    return np.broadcast_to(to_numpy(given), (size, columns))


def past_counts(mask: Any, size: int, past: int) -> Array:
    """Real tokens of each sequence that a cache holds.

    Parameters
    ----------
    mask
        Attention mask over the cache and the new columns, if it has two dimensions.
    size
        Sequences.
    past
        Columns that the cache holds.
    """
    if past and getattr(mask, "ndim", 0) == 2 and mask.shape[1] >= past:
        counts: Array = to_numpy(mask[:, :past]).astype(np.bool_).sum(axis=1)
        return counts
    return np.full(size, past, np.int64)


def describe_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GenerateCall:
    """Meaning of a call of generate for the capture.

    Parameters
    ----------
    model
        Whose generate is called.
    args, kwargs
        As given to it.

    Raises
    ------
    UserError
        If it is one that cannot be recorded faithfully.
    """
    given = arguments(model.generate, args, kwargs)
    configs = [given.get("generation_config"), getattr(model, "generation_config", None)]

    def setting(name: str) -> Any:
        if name in given:
            return given[name]  # None, too: it switches off what the configuration says
        stated = (getattr(config, name, None) for config in configs)
        return next((value for value in stated if value is not None), None)

    if (setting("num_beams") or 1) > 1:
        msg = (
            f"num_beams={setting('num_beams')}: beam search reorders sequences between steps, "
            "so rows cannot be assigned to requests; use num_beams=1 (sampling is fine)"
        )
        raise UserError(msg)
    for name in SPECULATIVE:
        if setting(name):
            msg = f"{name} is set: speculative decoding routes tokens that are then rejected"
            raise UserError(msg)
    for name, why in OTHERWISE.items():
        if setting(name):
            msg = f"{name} is set: {why}; capture without it"
            raise UserError(msg)
    if (setting("guidance_scale") or 1) != 1:
        msg = (
            f"guidance_scale={setting('guidance_scale')}: classifier-free guidance runs the model "
            "a second time in every step, on a prompt of its own; capture without it"
        )
        raise UserError(msg)
    inputs = next(
        (given[name] for name in ("inputs_embeds", "input_ids", "inputs") if given.get(name) is not None),
        None,
    )
    mask = given.get("attention_mask")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        inputs, mask = given.get("decoder_input_ids"), given.get("decoder_attention_mask")
    eos, pad = _ids(setting("eos_token_id")), _ids(setting("pad_token_id"))
    if mask is None and inputs is not None and inputs.ndim == 2 and pad and not set(pad) & set(eos):
        real = inputs != pad[0]
        mask = None if bool(real.all()) else real  # as generate itself infers it
    others = any(setting(name) for name in ("stop_strings", "stopping_criteria", "max_time"))
    return GenerateCall(
        width=1 if inputs is None else int(inputs.shape[1]),
        mask=mask,
        stop_ids=(*eos, *(pad if others else ())),
        chunked=bool(setting("prefill_chunk_size")),
    )


def _ids(value: Any) -> tuple[int, ...]:
    """Token ids from None, a number, a list or a tensor."""
    if value is None:
        return ()
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(int(i) for i in value) if isinstance(value, list | tuple) else (int(value),)


@dataclass(frozen=True, eq=False)
class Watcher:
    """Callbacks around each call of generate."""

    begin: Callable[[GenerateCall], None]
    end: Callable[[], None]


_watchers: weakref.WeakKeyDictionary[Any, list[Watcher]] = weakref.WeakKeyDictionary()
"""Of each model that is captured; several captures may watch one."""
_watching = threading.Lock()


def watch(model: Any, watcher: Watcher) -> None:
    """Tell of every call of a model's generate, until :func:`unwatch`.

    Parameters
    ----------
    model
        A transformers model; one without generate is left alone.
    watcher
        Called around each call.
    """
    generate = getattr(model, "generate", None)
    if generate is None:
        return
    with _watching:
        told = _watchers.setdefault(model, [])
        told.append(watcher)
        if len(told) > 1:
            return

    @functools.wraps(generate)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = describe_call(model, args, kwargs)
        now = list(told)
        try:
            for one in now:
                one.begin(call)
            return generate(*args, **kwargs)
        finally:
            for one in now:
                one.end()

    def refuse(name: str) -> Callable[..., Any]:
        def method(*_args: Any, **_kwargs: Any) -> Any:
            msg = f"{name} packs sequences into one row, which cannot be taken apart"
            raise UserError(msg)

        return method

    # On the instance, so that other models of the class are not touched.
    model.__dict__["generate"] = wrapper
    for name in CONTINUOUS:
        if hasattr(model, name):
            model.__dict__[name] = refuse(name)


def unwatch(model: Any, watcher: Watcher) -> None:
    """Undo :func:`watch`.

    Parameters
    ----------
    model, watcher
        As given to it.
    """
    with _watching:
        told = _watchers.get(model, [])
        if watcher in told:
            told.remove(watcher)
            if not told:
                for name in ("generate", *CONTINUOUS):
                    model.__dict__.pop(name, None)
                del _watchers[model]
