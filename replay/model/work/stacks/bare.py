"""Rows of the bare list for GPUs with unequal work."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replay.model.work.kernel_lists import load
from replay.model.work.stacks.sizes import even_sizes

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints
    from replay.model.work.kernel_lists import RankedOperation
    from replay.model.work.kernel_lists.lists import Pass
    from tracegen.models import ModelShape

BARE = "bare"
"""The list of what a model needs and no more."""
HOSTLESS = (BARE, "deepgemm")
"""Names of no host: that list; and DeepGEMM's own comparison, whose kernels a scheme has itself."""


class BareRows:
    """Launches of a model's dense parts and ends without a stack.

    Parameters
    ----------
    tp, cp
        GPUs that share heads and widths, and sequences.
    """

    def __init__(self, shape: ModelShape, tp: int = 1, cp: int = 1) -> None:
        self._list, self._tp = load(BARE), tp
        self._sizes = even_sizes(shape, tokens=0, ranks=1, tp=tp, cp=cp)
        self._options = self._list.option_values(gated=shape.gated)

    def of(
        self,
        part: str,
        direction: Pass,
        tokens: Counts,
        positions: Ints | None = None,
        *,
        inner: int = 0,
    ) -> tuple[RankedOperation, ...]:
        """Rows of a part in one pass.

        Parameters
        ----------
        tokens
            (rank,): tokens of each GPU.
        positions
            (rank,): positions whose keys and values it reads; where attention is, or its keys are.
        inner
            Columns between the two products of a network, on all GPUs that share it.
        """
        sizes = dataclasses.replace(self._sizes, inner=inner // self._tp)
        return self._list.on_ranks(
            sizes,
            self._options,
            part,
            direction,
            tokens=tokens,
            positions=tokens if positions is None else positions,
        )
