"""The kinds of task a scheme may add, and what each counts as in a result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """The kinds of task. `KINDS` says how each is counted."""

    MARK = 0  # takes no time: a start, an end, a tile that became complete
    LAUNCH = 1  # gap between kernels, start of blocks
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
    ACTIVATION = 16
    GEMM2 = 17
    UNPERMUTE = 18
    COMBINE_SYNC = 19
    COMBINE_SEND = 20
    COMBINE_REQUEST_UP = 21
    COMBINE_REQUEST_DOWN = 22
    COMBINE_UP = 23
    COMBINE_DOWN = 24
    COMBINE_ACK_UP = 25
    COMBINE_ACK_DOWN = 26
    COMBINE_RECEIVE = 27  # an SM that adds contributions and writes the token's row
    COMBINE_MEMORY = 28
    LAYOUT = 29  # kernels that only look at the routing
    NOTIFY_UP = 30  # "this token's rows are ready", from the expert's rank to the owner
    NOTIFY_DOWN = 31
    BETWEEN = 32  # elementwise kernels between the routed experts of two layers: norms, casts
    WGRAD = 33  # gradients of the experts' weights
    SIGNAL_UP = 34  # "the rows of this expert are there, so many", from their owner to its rank
    SIGNAL_DOWN = 35
    GEMM2_SYNC = 36  # a scheduler inside the kernel hands out the tiles of the second GEMM
    CAST = 37  # rows that arrived change their number type
    DENSE_GEMM = 38  # products between the routed experts of two layers: projections, gate, FFN
    ATTENTION = 39
    HOST = 40  # a host thread launches kernels, beside whatever its GPU does
    TOKEN_CAST = 41  # tokens become the rows that travel
    PLAN = 42  # kernels that place experts for the rows of this layer, and reroute rows
    PLAN_SYNC = 43  # barriers and flags that these and the copies of weights need
    LOADS_UP = 44  # loads of experts, plans and flags between GPUs
    LOADS_DOWN = 45
    WEIGHTS_SEND = 46  # an SM that stores or loads weights of experts, or gradients of them
    WEIGHTS_REQUEST_UP = 47
    WEIGHTS_REQUEST_DOWN = 48
    WEIGHTS_UP = 49
    WEIGHTS_DOWN = 50
    WEIGHTS_ACK_UP = 51
    WEIGHTS_ACK_DOWN = 52
    WEIGHTS_MEMORY = 53
    DELAY = 54  # a GPU is held up at the begin of a layer, see `replay.chains.jitter`


KIND_NAMES: tuple[str, ...] = tuple(kind.name.lower().replace("_", "-") for kind in Kind)

PHASES = (
    "placement",
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

WIRE_ROLES = ("payload", "headers", "requests", "acks", "signals", "weights")
"""What bytes on a port are for. Headers: what a message of rows has beside payload; target lists,
row metadata and padding included. Signals: counts, flags, notifications. Weights: those of experts
that are copied between GPUs, their headers included."""

Role = Literal["compute", "copying", "serialisation", "overhead"]


@dataclass(frozen=True)
class KindRecord:
    """Place of a kind in a result.

    Attributes
    ----------
    phase
        One of `PHASES`; None for launches and marks, which belong to no phase.
    role
        What the time of its service is. ``"compute"`` is work on a GPU's own data; permutes and
        local reductions count too, as in COMET (section 5). ``"copying"`` is what SMs and memory do
        for rows that travel, ``"serialisation"`` a message on a port.
    on_wire
        One of `WIRE_ROLES`: what a message is for; None for what is not one.
    """

    phase: str | None
    role: Role
    on_wire: str | None = None


def _message(phase: str, purpose: str) -> KindRecord:
    return KindRecord(phase, "serialisation", purpose)


def _compute(phase: str) -> KindRecord:
    return KindRecord(phase, "compute")


KINDS: dict[Kind, KindRecord] = {
    Kind.MARK: KindRecord(None, "overhead"),
    Kind.LAUNCH: KindRecord(None, "overhead"),
    Kind.HOST: KindRecord(None, "overhead"),
    Kind.DELAY: KindRecord(None, "overhead"),
    Kind.LAYOUT: _compute("layout"),
    Kind.COUNT_UP: _message("dispatch", "signals"),
    Kind.COUNT_DOWN: _message("dispatch", "signals"),
    Kind.SIGNAL_UP: _message("dispatch", "signals"),
    Kind.SIGNAL_DOWN: _message("dispatch", "signals"),
    Kind.DISPATCH_SYNC: KindRecord("dispatch", "overhead"),
    Kind.DISPATCH_SEND: KindRecord("dispatch", "copying"),
    Kind.DISPATCH_REQUEST_UP: _message("dispatch", "requests"),
    Kind.DISPATCH_REQUEST_DOWN: _message("dispatch", "requests"),
    Kind.DISPATCH_UP: _message("dispatch", "payload"),
    Kind.DISPATCH_DOWN: _message("dispatch", "payload"),
    Kind.DISPATCH_ACK_UP: _message("dispatch", "acks"),
    Kind.DISPATCH_ACK_DOWN: _message("dispatch", "acks"),
    Kind.DISPATCH_RECEIVE: KindRecord("dispatch", "copying"),
    Kind.DISPATCH_MEMORY: KindRecord("dispatch", "copying"),
    Kind.PERMUTE: _compute("permute"),
    Kind.CAST: _compute("permute"),
    Kind.TOKEN_CAST: _compute("permute"),
    Kind.GEMM1: _compute("gemm1"),
    Kind.ACTIVATION: _compute("activation"),
    Kind.GEMM2: _compute("gemm2"),
    Kind.GEMM2_SYNC: KindRecord("gemm2", "overhead"),
    Kind.WGRAD: _compute("wgrad"),
    Kind.UNPERMUTE: _compute("unpermute"),
    Kind.NOTIFY_UP: _message("combine", "signals"),
    Kind.NOTIFY_DOWN: _message("combine", "signals"),
    Kind.COMBINE_SYNC: KindRecord("combine", "overhead"),
    Kind.COMBINE_SEND: KindRecord("combine", "copying"),
    Kind.COMBINE_REQUEST_UP: _message("combine", "requests"),
    Kind.COMBINE_REQUEST_DOWN: _message("combine", "requests"),
    Kind.COMBINE_UP: _message("combine", "payload"),
    Kind.COMBINE_DOWN: _message("combine", "payload"),
    Kind.COMBINE_ACK_UP: _message("combine", "acks"),
    Kind.COMBINE_ACK_DOWN: _message("combine", "acks"),
    Kind.COMBINE_RECEIVE: KindRecord("combine", "copying"),
    Kind.COMBINE_MEMORY: KindRecord("combine", "copying"),
    Kind.PLAN: _compute("placement"),
    Kind.PLAN_SYNC: KindRecord("placement", "overhead"),
    Kind.LOADS_UP: _message("placement", "signals"),
    Kind.LOADS_DOWN: _message("placement", "signals"),
    Kind.WEIGHTS_SEND: KindRecord("placement", "copying"),
    Kind.WEIGHTS_REQUEST_UP: _message("placement", "requests"),
    Kind.WEIGHTS_REQUEST_DOWN: _message("placement", "requests"),
    Kind.WEIGHTS_UP: _message("placement", "weights"),
    Kind.WEIGHTS_DOWN: _message("placement", "weights"),
    Kind.WEIGHTS_ACK_UP: _message("placement", "acks"),
    Kind.WEIGHTS_ACK_DOWN: _message("placement", "acks"),
    Kind.WEIGHTS_MEMORY: KindRecord("placement", "copying"),
    Kind.BETWEEN: _compute("between"),
    Kind.DENSE_GEMM: _compute("between"),
    Kind.ATTENTION: _compute("between"),
}


def phase_of(kind: Kind) -> str | None:
    """Phase a kind belongs to; None for launches and marks, which belong to no phase."""
    return KINDS[kind].phase


def among(kinds: Iterable[Kind]) -> npt.NDArray[np.bool_]:
    """Tell whether each kind is one of those given: (kind,)."""
    chosen = np.zeros(len(Kind), np.bool_)
    chosen[list(kinds)] = True
    chosen.flags.writeable = False
    return chosen


def _places(names: list[str | None], known: tuple[str, ...]) -> npt.NDArray[np.int8]:
    places = np.array([-1 if name is None else known.index(name) for name in names], np.int8)
    places.flags.writeable = False
    return places


PHASE_OF_KIND = _places([KINDS[kind].phase for kind in Kind], PHASES)
"""(kind,): position in `PHASES` of each, -1 for none."""

WIRE_ROLE_OF_KIND = _places([KINDS[kind].on_wire for kind in Kind], WIRE_ROLES)
"""(kind,): position in `WIRE_ROLES` of each, rows as payload; -1 for what is not on a port."""


COMPUTE = frozenset(kind for kind in Kind if KINDS[kind].role == "compute")
"""Work on a GPU's own data."""

EXPERTS = frozenset(
    {
        Kind.CAST,
        Kind.GEMM1,
        Kind.ACTIVATION,
        Kind.GEMM2_SYNC,
        Kind.GEMM2,
        Kind.WGRAD,
    }
)
"""What experts do once their rows are there, and no part of the exchange. Rows are permuted,
unpermuted and made ready to travel for the exchange."""

ROWS = frozenset(kind for kind in Kind if KINDS[kind].on_wire == "payload")
"""Port tasks whose payload is token rows; every other port task carries only control."""

ACKS = frozenset(kind for kind in Kind if KINDS[kind].on_wire == "acks")
"""Acknowledgements of stores; they take room on the ports, but nobody waits for them."""


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
"""Of rows on their way to their experts."""
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
"""Of results on their way back."""
WEIGHTS = PhaseKinds(
    sync=Kind.PLAN_SYNC,
    send=Kind.WEIGHTS_SEND,
    request_up=Kind.WEIGHTS_REQUEST_UP,
    request_down=Kind.WEIGHTS_REQUEST_DOWN,
    up=Kind.WEIGHTS_UP,
    down=Kind.WEIGHTS_DOWN,
    ack_up=Kind.WEIGHTS_ACK_UP,
    ack_down=Kind.WEIGHTS_ACK_DOWN,
    receive=Kind.WEIGHTS_SEND,
    memory=Kind.WEIGHTS_MEMORY,
)
"""Of weights of experts that are copied between GPUs, and of their gradients."""
_SYNCS = {"placement": Kind.PLAN_SYNC, "dispatch": Kind.DISPATCH_SYNC, "combine": Kind.COMBINE_SYNC}
_FLAGS = {
    "placement": (Kind.LOADS_UP, Kind.LOADS_DOWN),
    "dispatch": (Kind.SIGNAL_UP, Kind.SIGNAL_DOWN),
    "combine": (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN),
}


def sync_of(message: Kind) -> Kind:
    """Kind of waiting in the phase of a kind of message."""
    return _SYNCS[str(phase_of(message))]


def flags_of(sync: Kind) -> tuple[Kind, Kind]:
    """Kinds of the flags, on the way out and in, that a barrier of a phase sends."""
    return _FLAGS[str(phase_of(sync))]


COUNTS = PhaseKinds(
    sync=Kind.DISPATCH_SYNC,
    send=Kind.DISPATCH_SYNC,
    request_up=Kind.COUNT_UP,
    request_down=Kind.COUNT_DOWN,
    up=Kind.COUNT_UP,
    down=Kind.COUNT_DOWN,
    ack_up=Kind.DISPATCH_ACK_UP,
    ack_down=Kind.DISPATCH_ACK_DOWN,
    receive=Kind.DISPATCH_SYNC,
    memory=Kind.DISPATCH_MEMORY,
)
"""Of a collective that tells the ranks how many rows will travel."""
