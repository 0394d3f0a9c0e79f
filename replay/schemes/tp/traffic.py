"""Classes of payload traffic of a gather and of a reduction: bytes on every port, by closed form.

N GPUs own an equal *share* each of the rows of all tokens: tokens x hidden x 2 bytes / N. A class
says how many shares cross the uplink and the downlink of every GPU in one gather, or in one
reduction. A layer has one gather for each `Enter`, one reduction for each `Leave`, and in its
backward pass one more gather for each `Leave`.

Flags, requests and packets of synchronisation are no payload. The contract of schemes
(``tests/replay/dense/test_contract.py``) counts the same bytes row by row and demands them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from replay.model.work.transformer_layer import Enter, Leave

if TYPE_CHECKING:
    from replay.model.work.transformer_layer import TensorLayer

Shares = Callable[[int], int]


@dataclass(frozen=True)
class TrafficClass:
    """One class.

    Attributes
    ----------
    moves
        What travels, in words.
    up_form, down_form
        Shares on every uplink and downlink, as text.
    up, down
        The same by number of GPUs, of which there are several.
    """

    moves: str
    up_form: str
    down_form: str
    up: Shares
    down: Shares


def _others(num_ranks: int) -> int:
    return num_ranks - 1


def _all(num_ranks: int) -> int:
    return num_ranks


def _one(num_ranks: int) -> int:
    return 1


NONE = TrafficClass("nothing", "0", "0", lambda _: 0, lambda _: 0)
GATHERS: dict[str, TrafficClass] = {
    "none": NONE,
    "ring": TrafficClass(
        "every row handed round a ring of the GPUs", "N - 1", "N - 1", _others, _others
    ),
    "direct": TrafficClass(
        "every row from its owner to each other GPU", "N - 1", "N - 1", _others, _others
    ),
    "switch": TrafficClass(
        "every row once to the switch, which copies it to all GPUs, its owner included",
        "1", "N", _one, _all,
    ),
    "merged": TrafficClass(
        "every row once to the switch, which answers all other GPUs with it",
        "1", "N - 1", _one, _others,
    ),
}  # fmt: skip
"""Ways of rows to all GPUs."""

REDUCES: dict[str, TrafficClass] = {
    "none": NONE,
    "ring": TrafficClass(
        "sums handed round a ring, each GPU adding its own, to their owner",
        "N - 1", "N - 1", _others, _others,
    ),
    "direct": TrafficClass(
        "the partial sum of every row from each other GPU to its owner",
        "N - 1", "N - 1", _others, _others,
    ),
    "switch": TrafficClass(
        "the partial sums of all GPUs to the switch, the owner's included; one sum to the owner",
        "N", "1", _all, _one,
    ),
    "merged": TrafficClass(
        "the partial sums of all other GPUs to the switch; one sum to the owner",
        "N - 1", "1", _others, _one,
    ),
    "ring-all": TrafficClass(
        "sums handed round a ring, then handed round to all GPUs",
        "2 (N - 1)", "2 (N - 1)", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1),
    ),
    "direct-all": TrafficClass(
        "as direct, and every sum from its owner to each other GPU",
        "2 (N - 1)", "2 (N - 1)", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1),
    ),
    "switch-all": TrafficClass(
        "as switch, and every sum back to the switch, which copies it to all GPUs",
        "N + 1", "N + 1", lambda n: n + 1, lambda n: n + 1,
    ),
}  # fmt: skip
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


class PortBytes(NamedTuple):
    """Payload on every GPU's uplink and downlink."""

    up: int
    down: int


def gathers_of(layer: TensorLayer) -> int:
    """How many times the rows of all tokens are gathered."""
    return layer.num(Enter) + (layer.num(Leave) if layer.is_backward else 0)


def payload_of(layer: TensorLayer, traffic: TensorTraffic) -> dict[str, PortBytes]:
    """Payload of a layer by phase, "gather" and "reduce", on every GPU.

    Parameters
    ----------
    layer
        Of whose tokens each GPU owns an equal number.
    """
    several = layer.num_ranks > 1
    share = layer.owned * layer.row_bytes * several
    gather, reduce = GATHERS[traffic.gather], REDUCES[traffic.reduce]
    num = {"gather": gathers_of(layer), "reduce": layer.num(Leave)}
    return {
        phase: PortBytes(
            num[phase] * share * one.up(layer.num_ranks),
            num[phase] * share * one.down(layer.num_ranks),
        )
        for phase, one in (("gather", gather), ("reduce", reduce))
    }
