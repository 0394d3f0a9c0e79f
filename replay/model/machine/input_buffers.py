"""Room in the switch's input buffers, which every message takes before it leaves its GPU.

Each link of a GPU ends in an input buffer of the switch. Here the buffers of all its links are one
lump per class of traffic: requests (stores, requests of loads, flags) have half of the virtual
channels, responses (data that was asked for, acknowledgements) the other half. A message takes room
of its class when it starts on the uplink and gives it back when it has left the downlink, a
multicast when the last copy has left, an answer to a reduction when it has been added. A GPU takes
in what arrives, so a downlink never waits for anything, and responses never wait for requests: room
always comes back.

A lump of several planes is exact where every message is spread over all links, as `Fabric`
assumes: all planes then fill alike. Within the lump a message that waits for one downlink does not
stop those behind it that go to others, until no room is left; then it stops all of its class.
Uplinks serve what has room: where requests have none, responses pass, and a short message may pass
a long one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from hwmodel import System
    from replay.engine import GraphBuilder
    from replay.model.arrays import Ints, Ranks
    from replay.model.machine.buffers import Buffers
    from replay.model.machine.resources import IntsLike

Traffic = Literal["requests", "responses"]
NOBODY = -1


class InputBuffers:
    """Input buffers of the switch of one system."""

    def __init__(self, system: System, graph: GraphBuilder, buffers: Buffers) -> None:
        self._fabric = system.fabric
        self._graph, self._buffers = graph, buffers
        self._room = system.switch.input_room_bytes

    @property
    def are_finite(self) -> bool:
        """Tell whether messages take room at all."""
        return self._room > 0

    def hold(
        self,
        traffic: Traffic,
        rank: Ranks,
        wire_bytes: IntsLike,
        left: Ints,
        freed_by: Ints,
        of: Ints | None = None,
        *,
        port_ps: IntsLike | None = None,
    ) -> None:
        """Let messages take room from their start on the uplink on.

        Parameters
        ----------
        traffic
            Class of the messages.
        rank
            (message,): whose uplinks.
        wire_bytes
            (message,) or the same for all.
        left
            (message,) tasks on the uplinks.
        freed_by
            (message,) tasks with whose end the room comes back, or (copy,) if `of` is given.
        of
            (copy,): the message that each is a copy of; the last copy counts.
        port_ps
            (message,) or the same for all: time on an uplink that is whole, if it is known.
        """
        if not self.are_finite or not len(left):
            return
        pools = self._buffers.reserve_unlisted(f"switch input buffer {{rank}}, {traffic}", self._room)
        held = self._fabric.held_in_switch_bytes(wire_bytes, port_ps)
        units = np.minimum(np.maximum(held, 1), self._room)
        if of is None:
            self._graph.take(left, pools[rank], units, released_by=freed_by)
            return
        units = np.broadcast_to(units, left.shape)
        copies = np.bincount(of, minlength=len(left)) > 0
        if not copies.all():  # to nobody: there is nothing to wait for
            alone = np.flatnonzero(~copies)
            self._graph.take(left[alone], pools[rank[alone]], units[alone])
        number = copies.cumsum() - 1
        self._graph.take_until_last(left[copies], pools[rank[copies]], units[copies], number[of], freed_by)

    def hold_on(self, issued: Ints, on: Ints, left: Ints, *, lanes: bool = False) -> None:
        """Let SMs hold on to what cannot leave.

        Parameters
        ----------
        issued, on
            (message,): the task that issues it, and the SM, or pool of SMs, on which that runs;
            `NOBODY` where nobody waits.
        left
            (message,) tasks on the uplinks.
        lanes
            Whether `on` numbers warps that serve one peer each.
        """
        waits = (on != NOBODY).nonzero()[0]
        if self.are_finite and len(waits):
            outboxes = self._buffers.outboxes_of(on[waits], lanes=lanes)
            self._graph.take(issued[waits], outboxes, released_by=left[waits])
