"""Responses of servers that return routed experts, batches and streams of them, and conversations.

SGLang (return_routed_experts; checked against 0.5.23): raw int32 of (rows, decoder layers, topk),
or the type of ``routed_experts_dtype`` (PR 31219), in ``meta_info`` of ``/generate`` or, asked for
with return_meta_info, of each choice; else in ``sglext`` of OpenAI-compatible responses, there of
the first choice only. Rows are positions from ``routed_experts_start_len`` of the request to the
last token but one; layers that choose by a hash of the token (DeepSeek V4) are zeros.

vLLM (enable_return_routed_experts; checked against 0.33): an ``.npy`` file in
``choices[i].routed_experts``, from ``routed_experts_prompt_start`` of the request; 0.21 has the
prompt's part apart in ``prompt_routed_experts``; ``LLM.generate`` has ``outputs`` instead.

Streams have ids in their last chunk: SGLang's all, vLLM's of ``/inference/v1/generate``. Beside
them stand NVIDIA Dynamo (``nvext``), NeMo-Gym (``output``) and verifiers (``trajectory``), with a
turn each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracegen.importers.options import ImportOptions
from tracegen.importers.packed_ids import SHAPE, TYPE, is_filler, unpack
from tracegen.importers.routed_rows import RoutedRows, Sequence, first_position, from_sequences
from tracegen.importers.streams import documents
from tracegen.importers.values import integer
from tracegen.shared.errors import UserError

START_NAMES = ("routed_experts_start_len", "routed_experts_prompt_start")
"""How SGLang and vLLM call the position of the first row that was asked for."""
IDS, PROMPT_IDS = "routed_experts", "prompt_routed_experts"
CHOICES = ("choices", "outputs", "output", "trajectory")
"""Where a response, vLLM's Python interface, NeMo-Gym and verifiers have their answers."""
EXTENSIONS = ("meta_info", "sglext", "nvext", "tokens")
"""Objects of a choice or a response that may hold the ids."""
PROMPT_TOKENS = ("prompt_token_ids", "prompt_ids")
ANSWER_TOKENS = ("token_ids", "generation_token_ids", "completion_ids")
"""Lists of tokens, whose length counts where no number is stated."""
MOST_TOKENS = 2**31
"""Of a request."""


class ChoiceIds(NamedTuple):
    """Ids of one choice as they were found, and what is known of its tokens."""

    where: str
    ids: Any
    head: Any
    """Ids of the prompt, where they are apart."""
    prompt: int | None
    completion: int | None
    start: int | None
    """Position of the first row."""
    stated: dict[str, Any]
    """Type and shape of the ids."""


class ResponseDialect(NamedTuple):
    """Marks of the responses of an engine."""

    type: str | None
    """Of raw bytes that nothing names."""
    is_exact: bool
    """Whether every version returns a row less than tokens."""
    missing: str
    """Said where no response holds ids."""


SGLANG = ResponseDialect(
    "int32",
    is_exact=True,
    missing="no response has meta_info.routed_experts or sglext.routed_experts; was return_routed_experts set?",
)
VLLM = ResponseDialect(
    None,
    is_exact=False,
    missing="no response has 'routed_experts'; was the server asked for them "
    "(--enable-return-routed-experts)? It streams them from /inference/v1/generate alone",
)
TENSORRT_LLM = ResponseDialect(
    None,
    is_exact=True,
    missing="neither a folder of EXPERT_STATISTIC_PATH nor outputs with 'routed_experts'",
)


def read_responses(engine: ResponseDialect, paths: list[Path], options: ImportOptions) -> RoutedRows:
    """Read files that hold nothing but responses.

    Parameters
    ----------
    engine
        Whose they are.
    paths
        Of the files.
    options
        As of :class:`Responses`.

    Raises
    ------
    UserError
        As :meth:`Responses.read` and :meth:`Responses.routed_rows`.
    """
    found = Responses(engine, options)
    for path in paths:
        found.read(path)
    return found.routed_rows(paths[0])


class Responses:
    """Sequences of responses, file by file.

    Parameters
    ----------
    engine
        Whose responses they are.
    options
        ``num_layers`` and ``topk``, or a model, where ids have no shape; ``start_len`` where
        responses do not repeat it.
    """

    def __init__(self, engine: ResponseDialect, options: ImportOptions) -> None:
        self.engine, self.options = engine, options
        self.sequences: list[Sequence] = []
        self.without: list[str] = []
        """Where those stand that hold nothing."""
        self.first_only = self.streams = 0
        """Responses with several choices and ids of one, and streams."""

    def read(self, path: Path) -> None:
        """Add the sequences of a file.

        Parameters
        ----------
        path
            Of it.

        Raises
        ------
        UserError
            If ids are not what they should be, or their number does not fit the tokens.
        """
        for where, entry, is_stream in documents(path):
            self.streams += is_stream
            request = entry.get("request")
            if "custom_id" in entry or "response" in entry:
                # A line of a batch, or a request beside its response.
                response = entry.get("response")
                body = response.get("body", response) if isinstance(response, dict) else None
                entry = {} if entry.get("error") or not isinstance(body, dict) else body
            before = len(self.sequences)
            for answer in self._answers(where, entry, request):
                self.sequences.append(self._sequence(answer))
            if len(self.sequences) == before:
                self.without.append(where)

    def routed_rows(self, path: Path) -> RoutedRows:
        """Rows of all sequences, and remarks on them for the user.

        Parameters
        ----------
        path
            Path of the first file, for errors.

        Raises
        ------
        UserError
            If there are no rows.
        """
        if not self.sequences:
            msg = f"{path}: {self.engine.missing}"
            if self.streams:
                msg += "; a stream has them in its last chunk: was it cut?"
            raise UserError(msg)
        routed = from_sequences(self.sequences, self.options)
        if self.without:
            routed.notices.append(
                f"{len(self.without)} responses, failed ones included, hold no routed experts and "
                f"were left out; the first is {self.without[0]}."
            )
        if self.first_only:
            routed.notices.append(
                f"{self.first_only} responses have several choices and the ids of one, as SGLang "
                "returns them without return_meta_info."
            )
        return routed

    def _answers(self, where: str, entry: dict[str, Any], request: Any) -> Iterator[ChoiceIds]:
        """Choices of a response that have ids, and what is known of their tokens."""
        choices, whole = _choices(entry), _places(entry)
        holders = [_holder(choice) for choice in choices]
        if not any(holders):
            # Ids of the response, which are those of its first choice.
            holders = [_holder(entry)]
            self.first_only += len(choices) > 1 and holders != [None]
        usage = [entry.get("usage")]
        for number, holder in enumerate(holders):
            if holder is None:
                continue
            choice = choices[number] if choices else entry
            near = [*_places(holder), *_places(choice)]
            far = [*whole, *usage]
            place = where if choice is entry else f"{where}, choice {number}"
            stated = [*near, *whole, request]
            inside = holder.get(IDS) if isinstance(holder.get(IDS), dict) else None
            counted = [*near, *(far if len(choices) < 2 else [])]
            start = _count([inside], ("start",), (), where)
            if start is None:
                start = _count(stated, START_NAMES, (), where)
            yield ChoiceIds(
                place,
                holder.get(IDS),
                holder.get(PROMPT_IDS, entry.get(PROMPT_IDS)),
                _count([*near, *far], ("prompt_tokens",), PROMPT_TOKENS, where),
                _count(counted, ("completion_tokens",), ANSWER_TOKENS, where),
                self.options.start_len if start is None else start,
                {name: _first(stated, name) for name in (TYPE, SHAPE) if _first(stated, name)},
            )

    def _sequence(self, answer: ChoiceIds) -> Sequence:
        """Rows of an answer, held against its tokens."""
        where, _, _, prompt, completion, start, stated = answer
        begin = start or 0
        total = None if prompt is None or completion is None else prompt + completion
        due = None if total is None else total - 1 - begin
        ids, head = (
            None if packed is None else unpack(packed, place, self.options, stated, self.engine.type, rows)
            for packed, place, rows in (
                (answer.ids, where, due),
                (answer.head, f"{where}, prompt", None),
            )
        )
        if head is not None:
            if prompt is not None and begin + len(head) != prompt:
                msg = f"{where}: {len(head)} rows of a prompt of {prompt} tokens, from {begin}: they must end with it"
                raise UserError(msg)
            if ids is not None and head.shape[1:] != ids.shape[1:]:
                sizes = f"{ids.shape[1:]}, in the prompt {head.shape[1:]}"
                msg = f"{where}: (layers, slots) must be the same; they are {sizes}"
                raise UserError(msg)
            rows = head if ids is None else np.concatenate([head, ids])
            return Sequence(rows, begin + len(head), begin)
        assert ids is not None  # whoever holds nothing is no answer
        if due is not None and len(ids) == due + 1 and is_filler(ids[-1:]).any():
            ids = ids[:-1]  # for the last token, which is never routed
        if self.engine.is_exact:
            begin = first_position(len(ids), start, total, prompt, where)
        elif prompt is not None and completion is not None:
            begin = _loose_begin(len(ids), start, prompt, completion, where)
        return Sequence(ids, prompt, begin)


def _choices(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers of a response; itself if it has none."""
    found = next((entry[name] for name in CHOICES if isinstance(entry.get(name), list)), [entry])
    return [one for one in found if isinstance(one, dict)]


def _places(holder: dict[str, Any]) -> list[dict[str, Any]]:
    """An object and its extensions."""
    return [holder, *(holder[name] for name in EXTENSIONS if isinstance(holder.get(name), dict))]


def _holder(holder: dict[str, Any]) -> dict[str, Any] | None:
    """The one of an object and its extensions that has ids."""
    return next(
        (one for name in (IDS, PROMPT_IDS) for one in _places(holder) if one.get(name) is not None),
        None,
    )


def _first(places: list[Any], name: str) -> Any:
    """Value of the first object that has something under a name."""
    found = (one.get(name) for one in places if isinstance(one, dict))
    return next((value for value in found if value is not None), None)


def _count(places: list[Any], names: tuple[str, ...], lists: tuple[str, ...], where: str) -> int | None:
    """A number of tokens as the first object states it that does, or lists them.

    Raises
    ------
    UserError
        If it is no number of tokens.
    """
    for place in (place for place in places if isinstance(place, dict)):
        for name in names:
            if place.get(name) is not None:
                found = integer(place, name, where)
                if not 0 <= found <= MOST_TOKENS:
                    msg = f"{where}: {name} is {found}; no request has so many tokens"
                    raise UserError(msg)
                return found
        for name in lists:
            if isinstance(place.get(name), list):
                return len(place[name])
    return None


def _loose_begin(rows: int, start: int | None, prompt: int, completion: int, where: str) -> int:
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
