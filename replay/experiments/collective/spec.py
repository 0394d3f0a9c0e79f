"""Settings of a collective alone: what it does, how large, by which algorithms, on which machine.

Sizes are those of nccl-tests (``doc/PERFORMANCE.md`` of NVIDIA/nccl-tests): a size is the larger of
a rank's two buffers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator

from replay.errors import UserError, unknown
from replay.experiments.base.spec import OVERRIDES, SYSTEM, Overrides, Several, Spec, plain
from replay.model.collectives.algorithm import COLLECTIVES, Collective

MOST_SIZES = 64
_SIZE = re.compile(r"(\d{1,18})([KMG]?)", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3}
_SHORT: dict[str, Collective] = {each.replace("_", ""): each for each in COLLECTIVES}

CODE = ("experiments/collective",)
"""Rooms that decide a result, beside those of every replay."""


MOST_RANKS_OF_ENGINES = 8
"""GPUs for which serving engines ship kernels of their own: vLLM's custom_all_reduce.py, 2, 4, 6 and 8."""
USUAL = ("nccl", "two-shot")
"""Algorithms where none is named: the first that the machine can run, an engine's up to its most GPUs."""


class CollectiveSpec(Spec):
    """Everything that decides the times of a collective.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    op: Collective = Field("all_reduce", description="Collective: all_reduce, all_gather or reduce_scatter.")
    sizes: str = Field(
        "1M..1G",
        alias="bytes",
        description="Bytes of the larger buffer of each GPU: a list (1M,3M), or a range that doubles "
        "(1M..1G); K, M and G are powers of 1024.",
    )
    algorithms: Several = Field(
        [USUAL[0]],
        alias="algorithm",
        min_length=1,
        description="A name of `moereplay collective --list`; repeatable [nccl; two-shot on up to 8 GPUs "
        "without CUDA].",
    )
    system: str = SYSTEM
    overrides: Overrides = OVERRIDES
    ranks: int | None = Field(None, description="GPUs that take part [all of the system].")
    blocks: int | None = Field(
        None, description="Thread blocks of the kernel on each GPU [as many as the library starts]."
    )

    @field_validator("op", mode="before")
    @classmethod
    def _canonical(cls, given: Any) -> Any:
        return collective_of(given) if isinstance(given, str) else given

    @field_validator("sizes", mode="before")
    @classmethod
    def _text(cls, given: Any) -> Any:
        """Take a number, and several of them, for the text that says them."""
        several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        numbers = [plain(one) for one in several]
        if all(isinstance(one, int) and not isinstance(one, bool) for one in numbers):
            given = ",".join(map(size_text, numbers))
        if isinstance(given, str):
            sizes_of(given)
        return given

    @property
    def num_bytes(self) -> list[int]:
        """Each size, in bytes."""
        return sizes_of(self.sizes)


def collective_of(word: str) -> Collective:
    """Read the name of a collective: ``allreduce``, ``all-reduce`` or ``all_reduce``.

    Raises
    ------
    UserError
        If there is none of the name.
    """
    short = word.replace("-", "").replace("_", "").lower()
    if short not in _SHORT:
        raise unknown("collective", word, _SHORT)
    return _SHORT[short]


def sizes_of(text: str) -> list[int]:
    """Read sizes as nccl-tests writes them: ``8M``, a list ``1M,3M`` or a range ``1M..1G``.

    K, M and G are powers of 1024. A range doubles from its first size up to its last.

    Raises
    ------
    UserError
        If a size is none, a range does not rise, or there are too many.

    Examples
    --------
    >>> sizes_of("512,1k..4K")
    [512, 1024, 2048, 4096]
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low = _size(first, text)
        high = _size(last, text) if dots else low
        if high < low:
            message = f"bytes {text}: a range rises; {part.strip()!r} does not"
            raise UserError(message)
        while low <= high and len(sizes) <= MOST_SIZES:
            sizes.append(low)
            low *= 2
    if len(sizes) > MOST_SIZES:
        message = f"bytes {text}: more than {MOST_SIZES} sizes"
        raise UserError(message)
    return sizes


def size_text(nbytes: int) -> str:
    """Write a size as nccl-tests does: with K, M, G where it is a multiple of these.

    Examples
    --------
    >>> size_text(16 << 20), size_text(1000)
    ('16M', '1000')
    """
    for letter, power in reversed(_UNITS.items()):
        if nbytes and nbytes % 1024**power == 0:
            return f"{nbytes // 1024**power}{letter}"
    return str(nbytes)


def _size(word: str, text: str) -> int:
    found = _SIZE.fullmatch(word.strip())
    size = 0 if found is None else int(found[1]) * 1024 ** _UNITS[found[2].upper()]
    if not size:
        message = (
            f"bytes {text}: {word.strip()!r} is no size; possible: a number from 1 on, with K, M "
            "or G for powers of 1024, lists such as 1M,3M and ranges such as 1M..1G"
        )
        raise UserError(message)
    return size
