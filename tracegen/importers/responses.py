"""Responses of servers that return routed experts: SGLang's and vLLM's, and batches of them.

SGLang (return_routed_experts): base64 of raw int32 of (rows, decoder layers, topk) without a
header, in ``meta_info.routed_experts``, or in ``sglext.routed_experts`` of OpenAI-compatible
responses, there of the first choice only. Rows are positions from ``routed_experts_start_len`` of
the request to the last token but one. vLLM (enable_return_routed_experts): base64 of an ``.npy``
file, or lists, in ``choices[i].routed_experts``, from ``routed_experts_prompt_start`` of the
request; the prompt's part may be apart in ``prompt_routed_experts``. A batch file has such
responses at ``response.body`` of each line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.options import Options
from tracegen.importers.routed import Routed, Sequence, first_position, from_sequences
from tracegen.importers.values import integer
from tracegen.trace.arrays import Array

START_NAMES = ("routed_experts_start_len", "routed_experts_prompt_start")
"""How SGLang and vLLM call the position of the first row that was asked for."""
MOST_TOKENS = 2**31
"""Of a request."""


def _bodies(path: Path, without: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Responses of a file; those of a batch file are taken out of their lines."""
    for where, entry in files.json_objects(path):
        if "custom_id" not in entry and "response" not in entry:
            yield where, entry
            continue
        response = entry.get("response")
        body = response.get("body", response) if isinstance(response, dict) else None
        if entry.get("error") or not isinstance(body, dict):
            without.append(where)
            continue
        yield where, body


def _count(places: list[Any], names: tuple[str, ...], where: str) -> int | None:
    """The first number of tokens with one of these names in some objects; None if there is none.

    Raises
    ------
    UserError
        If it is no number of tokens.
    """
    for place in places:
        for name in names:
            if isinstance(place, dict) and place.get(name) is not None:
                found = integer(place, name, where)
                if not 0 <= found <= MOST_TOKENS:
                    msg = f"{where}: {name} is {found}; no request has so many tokens"
                    raise UserError(msg)
                return found
    return None


def sglang_responses(paths: list[Path], options: Options) -> Routed:
    """Responses with ids in ``meta_info`` or ``sglext``.

    Parameters
    ----------
    paths
        ``.json`` or ``.jsonl`` files, batches included.
    options
        ``num_layers`` and ``topk``, or a model; ``start_len`` where responses do not repeat it.

    Raises
    ------
    UserError
        If no response has ids, or their number does not fit the tokens.
    """
    layers, topk = options.decoder_layers(), options.slots()
    sequences: list[Sequence] = []
    without: list[str] = []
    several = 0
    for path in paths:
        for where, entry in _bodies(path, without):
            meta, extension, usage = (
                entry.get(name) or {} for name in ("meta_info", "sglext", "usage")
            )
            holder = next(
                (o for o in (meta, extension) if isinstance(o, dict) and "routed_experts" in o),
                None,
            )
            if holder is None or holder["routed_experts"] is None:
                without.append(where)
                continue
            ids = _raw(holder["routed_experts"], layers, topk, where)
            stated = [holder, meta, entry, entry.get("request")]
            start = _count(stated, START_NAMES, where)
            prompt = _count([meta, usage], ("prompt_tokens",), where)
            completion = _count([meta, usage], ("completion_tokens",), where)
            choices = entry.get("choices")
            if isinstance(choices, list) and len(choices) > 1:
                # The ids are of the first choice, the usage counts all of them.
                several, completion = several + 1, None
            start = options.start_len if start is None else start
            tokens = None if prompt is None or completion is None else prompt + completion
            begin = first_position(len(ids), start, tokens, prompt, where)
            sequences.append(Sequence(ids, prompt, begin))
    if not sequences:
        msg = (
            f"{paths[0]}: no response has meta_info.routed_experts or sglext.routed_experts; was "
            "return_routed_experts set?"
        )
        raise UserError(msg)
    routed = from_sequences(sequences, options)
    tell_missing(routed, without)
    if several:
        routed.notices.append(
            f"{several} responses have several choices; SGLang returns the ids of the first."
        )
    return routed


def _raw(packed: Any, layers: int, topk: int, where: str) -> Array:
    """Ids of raw int32."""
    data = files.from_base64(packed, where)
    if len(data) % (4 * layers * topk):
        msg = (
            f"{where}: {len(data)} bytes are no whole number of tokens of {layers} "
            f"layers x top-{topk} int32"
        )
        raise UserError(msg)
    return np.frombuffer(data, "<i4").reshape(-1, layers, topk).astype(np.int64)


def tell_missing(routed: Routed, without: list[str]) -> None:
    """Say how many responses had nothing to import.

    Parameters
    ----------
    routed
        Its notices are added to.
    without
        Where those responses stand.
    """
    if without:
        routed.notices.append(
            f"{len(without)} responses, failed ones included, hold no routed experts and were "
            f"left out; the first is {without[0]}."
        )


def vllm_responses(
    path: Path, options: Options, sequences: list[Sequence], without: list[str]
) -> None:
    """Sequences of a file of vLLM's responses.

    Parameters
    ----------
    path
        ``.json`` or ``.jsonl`` file, batches included.
    options
        ``start_len`` where responses do not repeat it.
    sequences
        Those found are added to it.
    without
        Where responses without routed experts stand is added to it.

    Raises
    ------
    UserError
        If ids are not what they should be.
    """
    for where, entry in _bodies(path, without):
        stated = _count([entry.get("usage"), entry], ("prompt_tokens",), where)
        completion = _count([entry.get("usage")], ("completion_tokens",), where)
        known = entry.get("prompt_token_ids")
        if stated is None and isinstance(known, list):
            stated = len(known)
        # The Python interface calls them outputs.
        choices = entry.get("choices", entry.get("outputs", [entry]))
        count = 0
        for number, choice in enumerate(choices if isinstance(choices, list) else []):
            if not isinstance(choice, dict) or choice.get("routed_experts") is None:
                continue
            count += 1
            place = f"{where}, choice {number}"
            ids = _packed(choice["routed_experts"], place)
            head = choice.get("prompt_routed_experts", entry.get("prompt_routed_experts"))
            start = _count([choice, entry, entry.get("request")], START_NAMES, place)
            start = options.start_len if start is None else start
            prompt, begin = stated, start or 0
            if head is not None:
                first = _packed(head, f"{place}, prompt")
                if first.shape[1:] != ids.shape[1:]:
                    sizes = f"{ids.shape[1:]}, in the prompt {first.shape[1:]}"
                    msg = f"{place}: (layers, slots) are {sizes}"
                    raise UserError(msg)
                prompt = len(first) + begin
                ids = np.concatenate([first, ids])
            elif prompt is not None and completion is not None and len(choices) == 1:
                begin = _vllm_begin(len(ids), start, prompt, completion, place)
            sequences.append(Sequence(ids, prompt, begin))
        if not count:
            without.append(where)


def _vllm_begin(rows: int, start: int | None, prompt: int, completion: int, where: str) -> int:
    """Position of the first row: some versions return the rows of generated tokens alone."""
    begin = start or 0
    if begin + rows in (prompt + completion - 1, prompt + completion):
        return begin
    if start is None and rows in (completion - 1, completion):
        return prompt
    msg = (
        f"{where}: {rows} rows from position {begin} for a prompt of {prompt} and {completion} "
        "more tokens. Were they asked for with routed_experts_prompt_start? Then give --start-len"
    )
    raise UserError(msg)


def _packed(value: Any, where: str) -> Array:
    """Ids from base64 of an ``.npy`` file, or from nested lists."""
    if isinstance(value, str):
        value = files.load_array(files.from_base64(value, where), where)
    return files.integers(value, 3, where)
