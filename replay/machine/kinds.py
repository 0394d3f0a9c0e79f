"""The kinds of task a scheme may add, and what each counts as in a result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """What a task is. `PHASE` and `ROLE` say how it is counted."""

    MARK = 0  # takes no time: a start, an end, a tile that became complete
    LAUNCH = 1  # launch latency, gap between kernels
    COUNT_UP = 2  # sizes exchanged before the rows can travel
    COUNT_DOWN = 3
    DISPATCH_SYNC = 4  # barriers, flags, host waits that the dispatch needs
    DISPATCH_SEND = 5  # an SM that stores or loads rows
    DISPATCH_REQUEST_UP = 6
    DISPATCH_REQUEST_DOWN = 7
    DISPATCH_UP = 8
    DISPATCH_DOWN = 9
    DISPATCH_ACK_UP = 10
    DISPATCH_ACK_DOWN = 11
    DISPATCH_RECEIVE = 12  # an SM that copies received rows to where they are wanted
    DISPATCH_MEMORY = 13  # HBM traffic of the copies
    PERMUTE = 14
    GEMM1 = 15
    GEMM1_MEMORY = 16  # weights and activations streamed for the tiles
    ACTIVATION = 17
    GEMM2 = 18
    GEMM2_MEMORY = 19
    UNPERMUTE = 20
    COMBINE_SYNC = 21
    COMBINE_SEND = 22
    COMBINE_REQUEST_UP = 23
    COMBINE_REQUEST_DOWN = 24
    COMBINE_UP = 25
    COMBINE_DOWN = 26
    COMBINE_ACK_UP = 27
    COMBINE_ACK_DOWN = 28
    COMBINE_RECEIVE = 29  # an SM that adds contributions and writes the token's row
    COMBINE_MEMORY = 30
    LAYOUT = 31  # kernels that only look at the routing
    NOTIFY_UP = 32  # "this token's rows are ready", from the expert's rank to the owner
    NOTIFY_DOWN = 33
    BETWEEN = 34  # everything of a layer that is not its routed experts
    WGRAD = 35  # gradients of the experts' weights
    WGRAD_MEMORY = 36
    SIGNAL_UP = 37  # "the rows of this expert are there, so many", from their owner to its rank
    SIGNAL_DOWN = 38
    GEMM2_SYNC = 39  # a scheduler inside the kernel hands out the tiles of the second GEMM


KIND_NAMES: tuple[str, ...] = tuple(kind.name.lower().replace("_", "-") for kind in Kind)

PHASES = (
    "layout",
    "dispatch",
    "permute",
    "gemm1",
    "activation",
    "gemm2",
    "wgrad",
    "unpermute",
    "combine",
    "between",
)
"""Phases of a layer in the order in which a token meets them, and what lies between layers."""


def phase_of(kind: Kind) -> str | None:
    """Phase a kind belongs to; None for launches and marks, which belong to no phase."""
    if kind in (Kind.MARK, Kind.LAUNCH):
        return None
    if kind in (Kind.COUNT_UP, Kind.COUNT_DOWN, Kind.SIGNAL_UP, Kind.SIGNAL_DOWN):
        return "dispatch"
    if kind in (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN):
        return "combine"
    return kind.name.split("_", maxsplit=1)[0].lower()


def phase_index(kind: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Position in `PHASES` of each kind, -1 for none."""
    phases = [phase_of(each) for each in Kind]
    table = np.array([PHASES.index(name) if name else -1 for name in phases], dtype=np.int64)
    index: npt.NDArray[np.int64] = table[kind]
    return index


COMPUTE = frozenset(
    {
        Kind.PERMUTE,
        Kind.GEMM1,
        Kind.GEMM1_MEMORY,
        Kind.ACTIVATION,
        Kind.GEMM2,
        Kind.GEMM2_MEMORY,
        Kind.UNPERMUTE,
        Kind.LAYOUT,
        Kind.BETWEEN,
        Kind.WGRAD,
        Kind.WGRAD_MEMORY,
    }
)
"""Work on a GPU's own data. Permutes and local reductions count too, as in COMET (section 5)."""

ROWS = frozenset({Kind.DISPATCH_UP, Kind.DISPATCH_DOWN, Kind.COMBINE_UP, Kind.COMBINE_DOWN})
"""Port tasks whose payload is token rows; every other port task carries only control."""


ACKS = frozenset(
    {Kind.DISPATCH_ACK_UP, Kind.DISPATCH_ACK_DOWN, Kind.COMBINE_ACK_UP, Kind.COMBINE_ACK_DOWN}
)
"""Acknowledgements of stores; they take room on the ports, but nobody waits for them."""


WIRE_ROLES = ("payload", "headers", "requests", "acks", "signals")
"""What bytes on a port are for. Headers: what a message of rows has beside payload; target lists,
row metadata and padding included. Signals: counts, flags, notifications."""


def wire_role(kind: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Position in `WIRE_ROLES` of each kind, rows as payload; -1 for what is not on a port."""

    def role(each: Kind) -> int:
        if each in ROWS:
            return WIRE_ROLES.index("payload")
        if not each.name.endswith(("_UP", "_DOWN")):
            return -1
        if "_REQUEST_" in each.name:
            return WIRE_ROLES.index("requests")
        return WIRE_ROLES.index("acks" if each in ACKS else "signals")

    index: npt.NDArray[np.int64] = np.array([role(each) for each in Kind], dtype=np.int64)[kind]
    return index


@dataclass(frozen=True)
class PhaseKinds:
    """The kinds of one of the two communication phases, so that one piece of code serves both."""

    sync: Kind
    send: Kind
    request_up: Kind
    request_down: Kind
    up: Kind
    down: Kind
    ack_up: Kind
    ack_down: Kind
    receive: Kind
    memory: Kind


DISPATCH = PhaseKinds(
    sync=Kind.DISPATCH_SYNC,
    send=Kind.DISPATCH_SEND,
    request_up=Kind.DISPATCH_REQUEST_UP,
    request_down=Kind.DISPATCH_REQUEST_DOWN,
    up=Kind.DISPATCH_UP,
    down=Kind.DISPATCH_DOWN,
    ack_up=Kind.DISPATCH_ACK_UP,
    ack_down=Kind.DISPATCH_ACK_DOWN,
    receive=Kind.DISPATCH_RECEIVE,
    memory=Kind.DISPATCH_MEMORY,
)
COMBINE = PhaseKinds(
    sync=Kind.COMBINE_SYNC,
    send=Kind.COMBINE_SEND,
    request_up=Kind.COMBINE_REQUEST_UP,
    request_down=Kind.COMBINE_REQUEST_DOWN,
    up=Kind.COMBINE_UP,
    down=Kind.COMBINE_DOWN,
    ack_up=Kind.COMBINE_ACK_UP,
    ack_down=Kind.COMBINE_ACK_DOWN,
    receive=Kind.COMBINE_RECEIVE,
    memory=Kind.COMBINE_MEMORY,
)
