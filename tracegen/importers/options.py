"""Options of an import: facts that the dump does not say. One that is given is used or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracegen.shared.errors import UserError, value_text

if TYPE_CHECKING:
    from tracegen.models import ModelShape

LEAST = {
    **dict.fromkeys(("num_experts", "topk", "hidden_size", "num_layers", "max_tokens"), 1),
    **dict.fromkeys(("tp", "pp", "ranks"), 1),
    **dict.fromkeys(("zero_experts", "prompt_len", "start_len"), 0),
}
"""Smallest value of each number."""

_PROMPTS = "the dump, or --prompts, says where prompts end, or there are no requests"
_RANKS = "the dump does not say which rank recorded what"
UNUSED = {
    "moe_layers": "the dump numbers its layers",
    "prompt_len": _PROMPTS,
    "prompts": _PROMPTS,
    "start_len": "the dump says where rows begin, or holds no requests",
    "ranks": _RANKS,
    "tp": _RANKS,
    "pp": _RANKS,
    "mask": "padded tensors and plain arrays without a mask of their own have one",
    "columns": "only plain arrays have names of their own",
    "drop_repeats": "rows were drawn from counts, and repeat nothing",
    "seed": "nothing was drawn",
    "dataset": "the dump names the data set of each request",
    "topk": "the dump says it",
}
"""Why nothing used an option that was given."""
NEEDED = {
    "num_experts": "the dump does not say how many experts there are: give --model or --num-experts",
    "topk": "the dump does not say how many experts a token has: give --model or --topk",
    "num_layers": "the dump has no header: give --model, or --num-layers and --topk",
}
"""What to give where neither the dump nor an option says a size."""


@dataclass(frozen=True)
class ImportOptions:
    """Facts that the dump does not say.

    An object remembers which of its fields were read: what nobody read was of no use, and
    :meth:`refuse_unused` says so. A reader therefore reads a field only where it counts.
    """

    model: str | Path | None = None
    """Name in the catalogue of shapes, or a TOML file; gives all sizes."""
    num_experts: int | None = None
    """Experts of a layer, those that do nothing included."""
    zero_experts: int | None = None
    """Experts that do nothing, the last of all ids."""
    topk: int | None = None
    hidden_size: int | None = None
    moe_layers: tuple[int, ...] | None = None
    """Decoder layer number of each MoE layer, when the dump does not number them."""
    num_layers: int | None = None
    """Decoder layers, dense ones included."""
    prompt_len: int | None = None
    """Tokens of every prompt, where the dump does not say."""
    prompts: Path | None = None
    """Prompt of each request, in order: lengths or token ids, .npy, .json or .jsonl."""
    start_len: int | None = None
    """Position of every request's first row, where earlier rows were not asked for."""
    ranks: int | None = None
    """Processes of the run, those included that had no token."""
    tp: int | None = None
    """Neighbouring ranks that saw the same tokens; None to find out."""
    pp: int | None = None
    """Pipeline stages; None to find out."""
    mask: Path | None = None
    """Attention mask of a padded tensor, .npy or .pt."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names that arrays have in the files, by what they are."""
    drop_repeats: bool = False
    """Leave out rows that repeat the row before in every layer (warm-up, padding), and passes that
    were only recomputed."""
    max_tokens: int = 2_000_000
    """Most rows drawn from counts, or read."""
    seed: int = 0
    """Of the rows drawn from counts."""
    title: str = ""
    license: str = ""
    dataset: str = ""
    source: str = ""
    """Origin of the dump: a URL, a repository and commit."""
    _read: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can have."""
        for name, lowest in LEAST.items():
            given = vars(self)[name]
            if given is not None and given < lowest:
                msg = f"{option_text(name)} is {given}; it must be {lowest} or more"
                raise UserError(msg)

    def __getattribute__(self, name: str) -> Any:
        """Read a field, and remember that it was read."""
        value = object.__getattribute__(self, name)
        if name in NAMES:
            object.__getattribute__(self, "_read").add(name)
        return value

    def refuse_unused(self, given: Mapping[str, Any], format: str) -> None:
        """Refuse options that were given and never read.

        Parameters
        ----------
        given
            Options by name, those given at their default included.
        format
            Name of the format.

        Raises
        ------
        UserError
            Naming each, and why it is of no use.
        """
        unread = [name for name in given if name not in self._read]
        if unread:
            msg = "; ".join(
                f"{option_text(name)} {_value(given[name])}".rstrip()
                + f" is of no use to this {format} dump: {UNUSED.get(name, 'nothing asks for it')}"
                for name in unread
            )
            raise UserError(msg)

    def shape(self) -> ModelShape | None:
        """Shape of the model, if one was named."""
        from tracegen.models import load

        return None if self.model is None else load(self.model)

    def size(self, name: Literal["num_experts", "topk", "num_layers"]) -> int:
        """A size as given, else the one of the model that was named.

        Parameters
        ----------
        name
            Of the field.

        Raises
        ------
        UserError
            If neither a model nor the size was given, or both and they differ.
        """
        shape = self.shape()
        self.hold_against(name, None if shape is None else getattr(shape, name), "the model")
        given: int | None = getattr(self, name)
        if given is not None:
            return given
        if shape is None:
            raise UserError(NEEDED[name])
        size: int = getattr(shape, name)
        return size

    def hold_against(self, name: str, found: object, where: str) -> None:
        """Refuse an option that contradicts what is known.

        Parameters
        ----------
        name
            Of the field.
        found
            Its value elsewhere; None where it is not known.
        where
            Who says so, for the message.

        Raises
        ------
        UserError
            If both are there, and differ.
        """
        given = getattr(self, name)
        if given is not None and found is not None and given != found:
            msg = f"{option_text(name)} {_value(given)} contradicts {where}, which has {_value(found)}"
            raise UserError(msg)


NAMES = tuple(one.name for one in fields(ImportOptions) if one.init)
"""Of all options."""
_TYPED = re.compile("--(" + "|".join(sorted(NAMES, key=len, reverse=True)).replace("_", "-") + r")\b")


def option_text(name: str) -> str:
    """An option as it is typed.

    Examples
    --------
    >>> option_text("num_experts")
    '--num-experts'
    """
    return "--" + name.replace("_", "-")


def as_arguments(sentence: str) -> str:
    """A sentence in which options are called as arguments of :func:`tracegen.importers.read`.

    Examples
    --------
    >>> as_arguments("give --model or --num-experts; --force overwrites")
    'give model or num_experts; --force overwrites'
    """
    return _TYPED.sub(lambda found: found[1].replace("-", "_"), sentence)


def _value(value: object) -> str:
    """The value of an option as it is typed."""
    if value is True:
        return ""
    if isinstance(value, tuple) and len(value) <= 8:
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={other}" for name, other in value.items())
    return str(value) if isinstance(value, int | str | Path) else value_text(value)
