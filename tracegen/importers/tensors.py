"""Dumps that are one tensor of ids per request: vLLM, verl, slime, NeMo-RL.

vLLM (``enable_return_routed_experts``; docs.vllm.ai, training/routed_experts): an array
(token, layer, k) a request, as ``.npy`` or, over HTTP, base64 of an ``.npy`` file in
``choices[i].routed_experts``; the prompt's part may be apart in ``prompt_routed_experts``.
Layers are all decoder layers, dense ones zero, or MoE layers only. verl and slime (rollout
routing replay): (batch, token, layer, k), prompts left-padded with zeros; NeMo-RL: -1 rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.routed import Options, Routed, from_sequences
from tracegen.trace.arrays import Array

IDS = ("routed_experts", "rollout_routed_experts")
"""Names of the tensor of ids."""
PADDING = "padding of a rectangular tensor"


def read_vllm(paths: list[Path], options: Options) -> Routed:
    """Requests of vLLM.

    Parameters
    ----------
    paths
        ``.npy`` or ``.npz`` files, one per request, or files of responses.
    options
        ``prompt_len`` counts for arrays that do not say where the prompt ends.

    Raises
    ------
    UserError
        If a file holds no routed experts.
    """
    sequences: list[Array] = []
    prompts: list[int | None] = []
    for path in paths:
        if path.suffix == ".npy":
            sequences.append(files.integers(files.load_array(path, str(path)), 3, str(path)))
            prompts.append(options.prompt_len)
        elif path.suffix == ".npz":
            arrays = files.load_npz(path)
            if "routed_experts" not in arrays:
                msg = f"{path}: no 'routed_experts'; it has {', '.join(sorted(arrays))}"
                raise UserError(msg)
            sequences.append(files.integers(arrays["routed_experts"], 3, str(path)))
            known = arrays.get("prompt_token_ids")
            prompts.append(options.prompt_len if known is None else int(known.size))
        else:
            for where, entry in files.json_objects(path):
                _response(entry, where, options, sequences, prompts)
    if not sequences:
        msg = f"{paths[0]}: no response has 'routed_experts'; was the server asked for them?"
        raise UserError(msg)
    return from_sequences(sequences, prompts)


def _response(
    entry: dict[str, Any],
    where: str,
    options: Options,
    sequences: list[Array],
    prompts: list[int | None],
) -> None:
    """Requests of one response."""
    usage = entry.get("usage")
    stated = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    choices = entry.get("choices", [entry])
    for number, choice in enumerate(choices if isinstance(choices, list) else []):
        if not isinstance(choice, dict) or choice.get("routed_experts") is None:
            continue
        place = f"{where}, choice {number}"
        part = _packed(choice["routed_experts"], place)
        head = choice.get("prompt_routed_experts", entry.get("prompt_routed_experts"))
        if head is not None:
            first = _packed(head, f"{place}, prompt")
            sequences.append(np.concatenate([first, part]))
            prompts.append(len(first))
            continue
        sequences.append(part)
        prompts.append(int(stated) if isinstance(stated, int) else options.prompt_len)


def _packed(value: Any, where: str) -> Array:
    """Ids from base64 of an ``.npy`` file, or from nested lists."""
    if isinstance(value, str):
        value = files.load_array(files.from_base64(value, where), where)
    return files.integers(value, 3, where)


def read_rollout(paths: list[Path], options: Options) -> Routed:
    """Rollouts of verl, slime or NeMo-RL.

    Parameters
    ----------
    paths
        ``.npy`` or ``.pt`` files with (batch, token, layer, k) or (token, layer, k).
    options
        ``mask`` names an attention mask (batch, token); without it leading and trailing
        rows that are all zero or all -1 count as padding.

    Raises
    ------
    UserError
        If there is no such tensor, or the mask does not fit.
    """
    sequences: list[Array] = []
    padding = 0
    for path in paths:
        ids, mask = _tensor(path)
        if options.mask is not None:
            mask = _mask(options.mask)
        ids = ids[None] if ids.ndim == 3 else ids
        ids = files.integers(ids, 4, str(path))
        if mask is not None:
            mask = mask.reshape(-1, mask.shape[-1])
            if mask.shape != ids.shape[:2]:
                msg = f"{path}: the mask is {mask.shape}, the ids are {ids.shape[:2]} tokens"
                raise UserError(msg)
        for row, sequence in enumerate(ids):
            real = _real(sequence) if mask is None else mask[row].astype(np.bool_)
            padding += int((~real).sum())
            sequences.append(sequence[real])
    routed = from_sequences(sequences, [options.prompt_len] * len(sequences))
    if padding:
        routed.dropped[PADDING] = padding
        if options.mask is None:
            routed.notices.append(
                "No attention mask was given: rows at either end that are all zero or all -1 were "
                "taken for padding."
            )
    return routed


def _real(sequence: Array) -> Array:
    """Rows between padding at either end, bool (token,)."""
    is_filled = ~((sequence == 0).all(axis=(1, 2)) | (sequence == -1).all(axis=(1, 2)))
    filled = np.flatnonzero(is_filled)
    is_real = np.zeros(len(sequence), np.bool_)
    if filled.size:
        is_real[filled[0] : filled[-1] + 1] = True
    return is_real


def _tensor(path: Path) -> tuple[Array, Array | None]:
    """Ids and mask of a file."""
    if path.suffix == ".npy":
        return files.load_array(path, str(path)), None
    value = files.load_tensors(path)
    if not isinstance(value, dict):
        return np.asarray(value), None
    for name in IDS:
        if name in value:
            mask = value.get("attention_mask")
            return np.asarray(value[name]), None if mask is None else np.asarray(mask)
    msg = f"{path}: none of {', '.join(IDS)}; it has {', '.join(sorted(map(str, value)))}"
    raise UserError(msg)


def _mask(path: Path) -> Array:
    """Attention mask of a file of its own."""
    if not path.exists():
        msg = f"{path}: no such file"
        raise UserError(msg)
    found = files.load_array(path, str(path)) if path.suffix == ".npy" else files.load_tensors(path)
    return np.asarray(found)
