"""Rows that a reader hands on, before they are checked and become a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracegen.errors import UserError
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import DECODE, PREFILL

if TYPE_CHECKING:
    from tracegen.models import ModelShape
    from tracegen.trace.routing import RoutingTrace


class Imported(NamedTuple):
    """A trace, and what to tell the user about the dump."""

    trace: RoutingTrace
    notices: list[str]
    """Sentences with numbers: what looks wrong, what was dropped."""


@dataclass(frozen=True)
class Options:
    """Facts that the dump does not say."""

    model: str | Path | None = None
    """Name in the catalogue of shapes, or a TOML file; gives all sizes."""
    num_experts: int | None = None
    topk: int | None = None
    hidden_size: int | None = None
    moe_layers: tuple[int, ...] | None = None
    """Decoder layer number of each MoE layer, when the dump does not number them."""
    num_layers: int | None = None
    """Decoder layers, dense ones included, where a dump without header has one entry each."""
    prompt_len: int | None = None
    """Tokens of every prompt, where the dump does not say."""
    mask: Path | None = None
    """Attention mask of a padded tensor, .npy or .pt."""
    drop_repeats: bool = False
    """Leave out rows that repeat the row before in every layer (warm-up, padding)."""
    max_tokens: int = 2_000_000
    """Most rows drawn from counts, or read."""
    seed: int = 0
    """Of the rows drawn from counts."""
    title: str = ""
    license: str = ""
    dataset: str = ""
    source: str = ""
    """Origin of the dump: a URL, a repository and commit."""

    def shape(self) -> ModelShape | None:
        """Shape of the model, if one was named."""
        from tracegen.models import load

        return None if self.model is None else load(self.model)

    def experts(self) -> int:
        """Experts of a layer.

        Raises
        ------
        UserError
            If neither a model nor the number was given.
        """
        needs = "the dump does not say how many experts there are: give a model or num_experts"
        return self._given_or_of_model("num_experts", needs)

    def slots(self) -> int:
        """Experts per token.

        Raises
        ------
        UserError
            If neither a model nor the number was given.
        """
        needs = "the dump does not say how many experts a token has: give a model or topk"
        return self._given_or_of_model("topk", needs)

    def decoder_layers(self) -> int:
        """Decoder layers, dense ones included.

        Raises
        ------
        UserError
            If neither a model nor the number was given.
        """
        needs = "the dump has no header: give a model, or num_layers and topk"
        return self._given_or_of_model("num_layers", needs)

    def _given_or_of_model(self, name: str, needs: str) -> int:
        """A size as given, else the one of the model that was named."""
        given: int | None = getattr(self, name)
        if given is not None:
            return given
        shape = self.shape()
        if shape is None:
            raise UserError(needs)
        size: int = getattr(shape, name)
        return size


@dataclass
class Routed:
    """Rows as a reader found them."""

    ids: Array
    """Expert ids, integer (token, layer, k); -1 where a slot is empty."""
    request: Array
    """Request of each row, integer (token,)."""
    position: Array
    """Position in the request, integer (token,)."""
    phase: Array
    """uint8 (token,)."""
    step: Array
    """Forward pass of each row, integer, never falling (token,)."""
    layers: tuple[int, ...] | None = None
    """Decoder layer numbers if the dump has them."""
    weights: Array | None = None
    """Gate weights, float (token, layer, k)."""
    rank: Array | None = None
    """Source GPU, integer (token,)."""
    num_experts: int | None = None
    """If the dump says so."""
    labels: list[str] | None = None
    """Category of each request."""
    datasets: list[str] | None = None
    """Data set of each request."""
    order: str = "native"
    """Order of slots that the dump promises."""
    semantics: str = ""
    """Meaning of a weight."""
    drawn: bool = False
    """Whether the rows were drawn from counts."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason to number of rows."""
    notices: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Anything of the dump worth keeping in the provenance, JSON-ready."""


def from_sequences(sequences: list[Array], prompt_lens: list[int | None], **facts: Any) -> Routed:
    """Rows of dumps that hold one array per request.

    Parameters
    ----------
    sequences
        Ids (token, layer, k) of each request, from its first position.
    prompt_lens
        Tokens of each prompt; None if it is not known, all rows are then prefill.
    **facts
        Further fields of :class:`Routed`.

    Raises
    ------
    UserError
        If the sequences differ in layers or slots.
    """
    shapes = {sequence.shape[1:] for sequence in sequences}
    if len(shapes) != 1:
        msg = f"requests differ in (layers, slots): {sorted(shapes)}"
        raise UserError(msg)
    lengths = [len(sequence) for sequence in sequences]
    position = place_in_group(lengths)
    request = np.repeat(np.arange(len(lengths)), lengths)
    prompts = np.array(
        [
            length if known is None else known
            for known, length in zip(prompt_lens, lengths, strict=True)
        ]
    )
    phase = np.where(position < prompts[request], PREFILL, DECODE).astype(np.uint8)
    # One request at a time: a prompt is one pass, each later token another.
    begins = (position == 0) | (phase == DECODE)
    step = np.cumsum(begins) - 1
    return Routed(
        ids=np.concatenate(sequences).astype(np.int64),
        request=request,
        position=position,
        phase=phase,
        step=step,
        **facts,
    )
