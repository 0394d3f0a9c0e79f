"""Words of the facts of a scheme: number types and passes, memory that it allocates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.model.work.precision import FP4_TYPES, NUMBER_TYPES

if TYPE_CHECKING:
    from replay.model.arrays import Bytes

ALL_TYPES = frozenset(NUMBER_TYPES)
LIBRARY_WEIGHTS = FP4_TYPES  # grouped GEMMs of libraries take FP4 weights beside other rows
FORWARD = frozenset({"forward"})
BOTH_PASSES = frozenset({"forward", "backward"})


class Buffer(NamedTuple):
    """Device memory that is allocated on every GPU, beside tokens, weights and sums.

    Attributes
    ----------
    name
        What lies in it, such as "receive buffer".
    nbytes
        (rank,): its bytes on each GPU.
    stays
        Whether it is kept from layer to layer, as a communicator's buffers are, and not only as
        long as a layer runs.
    source
        Where its size is from, if it is not the scheme's own source.
    """

    name: str
    nbytes: Bytes
    stays: bool = False
    source: str = ""
