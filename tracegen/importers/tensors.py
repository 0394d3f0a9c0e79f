"""Dumps that are one tensor of ids per request: vLLM, verl, slime, NeMo-RL.

vLLM (``enable_return_routed_experts``; docs.vllm.ai, training/routed_experts): an array
(token, layer, k) a request, as ``.npy`` or in a response. Layers are all decoder layers, dense
ones zero, or MoE layers only. verl (1dda039): (batch, token, layer, k) int16, prompts left-padded
with zeros. NeMo-RL (7ea279a): padded with experts 0 to k-1, rows that are missing are -1. slime
(624b824) and its kin: samples with ``tokens``, ``response_length`` and int32
``rollout_routed_experts`` (tokens - 1, layers, k): the last token is never routed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers import files
from tracegen.importers.ids import ExpertIds, expert_ids, tell
from tracegen.importers.options import ImportOptions
from tracegen.importers.packed_ids import is_filler
from tracegen.importers.padding import load_mask
from tracegen.importers.responses import START_NAMES, VLLM, Responses
from tracegen.importers.routed_rows import RoutedRows, Sequence, first_position, from_sequences
from tracegen.importers.values import as_array, integer
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

IDS = ("rollout_routed_experts", "routed_experts")
"""Names of the tensor of ids."""
PADDING = "padding of a rectangular tensor"


def read_vllm(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Requests of vLLM.

    Parameters
    ----------
    paths
        ``.npy`` or ``.npz`` files, one per request, or files of responses.
    options
        ``prompts`` or ``prompt_len`` count for arrays that do not say where the prompt ends,
        ``start_len`` for those that do not begin at the first token.

    Raises
    ------
    UserError
        If a file holds no routed experts.
    """
    found: list[ExpertIds] = []
    responses = Responses(VLLM, options)
    for path in paths:
        if path.suffix == ".npy":
            ids = _ids(files.load_array(path, str(path)), 3, str(path), found)
            responses.sequences.append(Sequence(ids, None, options.start_len or 0))
        elif path.suffix == ".npz":
            responses.sequences.append(_request(path, options.start_len or 0, found))
        else:
            responses.read(path)
    routed = responses.routed_rows(paths[0])
    tell(routed, found)
    return routed


def _ids(array: Any, dims: int, where: str, found: list[ExpertIds]) -> Array:
    """Ids of so many dimensions, added to those found."""
    one = expert_ids(array, where)
    if one.ids.ndim != dims:
        axes = ("batch", "token", "layer", "k")[-dims:]
        msg = f"{where}: {np.asarray(array).dtype} {one.ids.shape}; ({', '.join(axes)}) is expected"
        raise UserError(msg)
    found.append(one)
    return one.ids


def _request(path: Path, begin: int, found: list[ExpertIds]) -> Sequence:
    """A request saved with its prompt: token ids of it, or its routing apart."""
    arrays = files.load_npz(path)
    if "routed_experts" not in arrays:
        msg = f"{path}: no 'routed_experts'; it has {', '.join(sorted(arrays))}"
        raise UserError(msg)
    ids = _ids(arrays["routed_experts"], 3, str(path), found)
    known = arrays.get("prompt_token_ids")
    prompt = None if known is None else int(known.size)
    head = arrays.get("prompt_routed_experts")
    if head is not None:
        head = _ids(head, 3, f"{path}: prompt_routed_experts", found)
        if head.shape[1:] != ids.shape[1:]:
            msg = f"{path}: the prompt has {head.shape[1:]} (layers, slots), not {ids.shape[1:]}"
            raise UserError(msg)
        prompt = begin + len(head)
        ids = np.concatenate([head, ids])
    return Sequence(ids, prompt, begin)


def read_rollout(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Rollouts of verl, slime or NeMo-RL.

    Parameters
    ----------
    paths
        ``.npy``, ``.npz`` or ``.pt`` files with (batch, token, layer, k) or (token, layer, k), or
        with slime's samples.
    options
        ``mask`` names an attention mask (batch, token); without it leading and trailing
        rows that nothing chose count as padding.

    Raises
    ------
    UserError
        If there is no such tensor, the mask does not fit, or a sample has other rows than tokens.
    """
    sequences: list[Sequence] = []
    found: list[ExpertIds] = []
    padding = 0
    for path in paths:
        value = _content(path)
        samples = _samples(value, str(path))
        if samples is not None:
            sequences += [_sample(sample, options, where) for where, sample in samples]
            continue
        ids, mask = _tensor(value, path)
        if options.mask is not None:
            if mask is not None:
                msg = f"{path}: --mask was given, and the file has a mask of its own"
                raise UserError(msg)
            mask = load_mask(options.mask, len(paths))
        ids = _ids(ids[None] if ids.ndim == 3 else ids, 4, str(path), found)
        if mask is not None:
            mask = mask.reshape(-1, mask.shape[-1])
            if mask.shape != ids.shape[:2]:
                msg = f"{path}: the mask is {mask.shape}, the ids are {ids.shape[:2]} tokens"
                raise UserError(msg)
        for row, sequence in enumerate(ids):
            real = _real(sequence) if mask is None else mask[row].astype(np.bool_)
            padding += int((~real).sum())
            sequences.append(Sequence(sequence[real], None, options.start_len or 0))
    if not sequences:
        msg = f"{paths[0]}: no samples"
        raise UserError(msg)
    routed = from_sequences(sequences, options)
    tell(routed, found)
    if padding:
        routed.dropped[PADDING] = padding
        if options.mask is None:
            routed.notices.append(
                "No attention mask was given: rows at either end that are all zero, all -1, or "
                "the first experts in every layer were taken for padding."
            )
    return routed


def _real(sequence: Array) -> Array:
    """Rows between padding at either end, bool (token,)."""
    filled = np.flatnonzero(~is_filler(sequence))
    is_real = np.zeros(len(sequence), np.bool_)
    if filled.size:
        is_real[filled[0] : filled[-1] + 1] = True
    return is_real


def _content(path: Path) -> Any:
    """Content of a file: an array, or containers of arrays."""
    if path.suffix == ".npy":
        return files.load_array(path, str(path))
    return files.load_npz(path) if path.suffix == ".npz" else files.load_tensors(path)


def _samples(value: Any, where: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Samples of a rollout, each with its tokens; None if these are not samples.

    slime saves them as a list, as ``samples`` of a dictionary, or as columns with one entry each.
    A list of arrays of unequal length holds the ids of a sample each, and nothing else.
    """
    packed = value
    if isinstance(value, dict) and "tokens" not in value:
        packed = next((value[name] for name in IDS if name in value), None)
    if (
        isinstance(packed, list)
        and all(isinstance(one, np.ndarray) and one.ndim == 3 for one in packed)
        and len({one.shape for one in packed}) > 1
    ):
        value = [{IDS[0]: one} for one in packed]
    if isinstance(value, dict) and isinstance(value.get("samples"), list):
        value = value["samples"]
    if isinstance(value, dict) and "tokens" in value:
        name = next((name for name in IDS if name in value), None)
        if name is None:
            return None
        if isinstance(value[name], list) and len(value[name]) == len(value["tokens"]):
            value = _samples_of_columns(value, name, where)
        else:
            value = [value]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    return [(f"{where}, sample {number}", one) for number, one in enumerate(value)]


def _samples_of_columns(value: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    """Samples of columns with an entry for each."""
    columns = {"tokens": value["tokens"], name: value[name]}
    if value.get("response_lengths") is not None:
        columns["response_length"] = value["response_lengths"]
    sizes = {what: len(part) for what, part in columns.items() if isinstance(part, list | np.ndarray)}
    if len(sizes) < len(columns) or len(set(sizes.values())) > 1:
        msg = f"{where}: columns with an entry for each sample are expected; their lengths: {sizes}"
        raise UserError(msg)
    return [dict(zip(columns, entry, strict=True)) for entry in zip(*columns.values(), strict=True)]


def _sample(sample: dict[str, Any], options: ImportOptions, where: str) -> Sequence:
    """One sample of slime, its rows held against its tokens."""
    packed = next((sample[name] for name in IDS if sample.get(name) is not None), None)
    if packed is None:
        msg = f"{where}: none of {', '.join(IDS)}; it has {', '.join(sorted(map(str, sample)))}"
        raise UserError(msg)
    ids = files.integers(packed, 3, where)
    total = answer = None
    if sample.get("tokens") is not None:
        total = len(files.integers(sample["tokens"], 1, f"{where}: tokens"))
    if sample.get("response_length") is not None:
        answer = integer(sample, "response_length", where)
    prompt = None if total is None or answer is None else total - answer
    if prompt is not None and prompt < 0:
        msg = f"{where}: response_length is {answer}, of {total} tokens in all"
        raise UserError(msg)
    stated = [integer(sample, name, where) for name in START_NAMES if sample.get(name) is not None]
    start = stated[0] if stated else options.start_len
    return Sequence(ids, prompt, first_position(len(ids), start, total, prompt, where))


def _tensor(value: Any, path: Path) -> tuple[Array, Array | None]:
    """Ids and mask of a file."""
    if not isinstance(value, dict):
        return as_array(value, str(path)), None
    for name in IDS:
        if name in value:
            mask, where = value.get("attention_mask"), f"{path}: attention_mask"
            ids = as_array(value[name], f"{path}: {name}")
            return ids, None if mask is None else as_array(mask, where)
    msg = f"{path}: none of {', '.join(IDS)}; it has {', '.join(sorted(map(str, value)))}"
    raise UserError(msg)
