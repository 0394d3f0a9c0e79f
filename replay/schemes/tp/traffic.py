"""Classes of payload traffic of a gather and of a reduction: bytes on every port, by closed form.

N GPUs own an equal *share* each of the rows of all tokens: tokens x hidden x 2 bytes / N. A class
(`Traffic`) says how many shares cross the uplink and the downlink of every GPU in one gather, or in
one reduction. A layer has one gather for each `Enter`, one reduction for each `Leave`, and in its
backward pass one more gather for each `Leave`.

Flags, requests and packets of synchronisation are no payload. The contract of schemes counts the
same bytes row by row (`replay.schemes.contract.tensor_layers`) and demands them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.model.work.transformer_layer import Enter, Leave
from replay.schemes.ep.traffic import Traffic

if TYPE_CHECKING:
    from replay.model.work.transformer_layer import TensorLayer


NONE = Traffic("nothing", "0", "0")
GATHERS: dict[str, Traffic] = {
    "none": NONE,
    "ring": Traffic("every row handed round a ring of the GPUs", "N - 1", "N - 1"),
    "direct": Traffic("every row from its owner to each other GPU", "N - 1", "N - 1"),
    "switch": Traffic("every row once to the switch, which copies it to all GPUs, its owner included", "1", "N"),
    "merged": Traffic("every row once to the switch, which answers all other GPUs with it", "1", "N - 1"),
}
"""Ways of rows to all GPUs."""

REDUCES: dict[str, Traffic] = {
    "none": NONE,
    "ring": Traffic("sums handed round a ring, each GPU adding its own, to their owner", "N - 1", "N - 1"),
    "direct": Traffic("the partial sum of every row from each other GPU to its owner", "N - 1", "N - 1"),
    "switch": Traffic(
        "the partial sums of all GPUs to the switch, the owner's included; one sum to the owner",
        "N",
        "1",
    ),
    "merged": Traffic("the partial sums of all other GPUs to the switch; one sum to the owner", "N - 1", "1"),
    "ring-all": Traffic("sums handed round a ring, then handed round to all GPUs", "2 (N - 1)", "2 (N - 1)"),
    "direct-all": Traffic("as direct, and every sum from its owner to each other GPU", "2 (N - 1)", "2 (N - 1)"),
    "switch-all": Traffic("as switch, and every sum back to the switch, which copies it to all GPUs", "N + 1", "N + 1"),
}
"""Ways of partial sums to the owner of each row, or to all GPUs."""


class TensorTraffic(NamedTuple):
    """Classes of a scheme.

    Attributes
    ----------
    gather, reduce
        Names in `GATHERS` and `REDUCES`.
    """

    gather: str
    reduce: str


def one_way(moves: str, *, sequence_parallel: bool) -> TensorTraffic:
    """Classes of a scheme that gathers rows and adds sums up in the same way.

    Parameters
    ----------
    sequence_parallel
        Whether GPUs own rows. Otherwise nothing is gathered, and all GPUs get all sums.
    """
    return TensorTraffic(moves, moves) if sequence_parallel else TensorTraffic("none", f"{moves}-all")


def gathers_of(layer: TensorLayer) -> int:
    """Times that the rows of all tokens are gathered."""
    return layer.num(Enter) + (layer.num(Leave) if layer.is_backward else 0)
