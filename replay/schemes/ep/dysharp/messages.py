"""Messages of DySHARP's rows: what the push (`push.py`) and the pull (`pull.py`) have in common.

Where the switch copies and adds, a message is one unit of a token (`units.py`), whatever GPUs it is
for; elsewhere it is one copy. A message goes in segments of a few packets (`segment_packets`).

Source: arXiv 2605.05607, sections III-A to III-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.in_switch import UNNAMED, NamingFlits
from replay.schemes.ep.dysharp.options import RowOptions, SwitchOptions

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.dysharp.hub import Hub
    from replay.schemes.ep.dysharp.units import Units

IDS_PER_FLIT = 8  # a target extension flit holds eight 16-bit expert ids (section III-B)


class Messages:
    """Messages of one layer's rows, one way.

    Parameters
    ----------
    options
        `SwitchOptions` have the switch copy and add; with plain `RowOptions` it passes on what
        goes to, and comes from, each GPU.
    units
        What of each token is one message.
    hub
        Tables at the destinations.
    kernel
        SMs of the kernel that moves the rows.
    """

    def __init__(
        self,
        work: LayerWork,
        machine: Machine,
        options: RowOptions,
        units: Units,
        hub: Hub,
        kernel: Split,
    ) -> None:
        self._work, self._machine, self._units, self._hub = work, machine, units, hub
        self._options, self._kernel = options, kernel
        self._switch = options if isinstance(options, SwitchOptions) else None
        loops = self._switch is not None and self._switch.loopback
        self._through = np.flatnonzero(~units.in_place | loops)
        self._inside = np.flatnonzero(units.in_place & (not loops))

    def _messages(self) -> tuple[Ints, Ints]:
        """Units of the messages to the switch (message,), and the message of each copy (copy,)."""
        unit = self._units.of_copy[self._through]
        if self._switch is None:
            return unit, np.arange(len(unit))
        leaves = np.zeros(len(self._units), np.bool_)
        leaves[unit] = True
        return leaves.nonzero()[0], (leaves.cumsum() - 1)[unit]

    def _segments(self, row_bytes: int) -> tuple[Ints, Ints]:
        """Bytes and packets of each segment of a row: two (segment,)."""
        payload = self._machine.transfers.packet_bytes
        size = self._options.segment_packets * payload or row_bytes
        sizes = np.full(-(-row_bytes // size), size, np.int64)
        sizes[-1] = row_bytes - size * (len(sizes) - 1)
        return sizes, -(-sizes // payload)

    def _naming(self, sends: Ints, of: Ints, num: int) -> NamingFlits:
        """Flits that name the targets of messages of `num` segments each."""
        work, switch = self._work, self._switch
        assert switch is not None
        if switch.addressing == "free":
            return UNNAMED
        if switch.addressing == "explicit":
            further = np.repeat(np.bincount(of, minlength=len(sends)) - 1, num)
            return NamingFlits(at_source=further, answered=further)
        experts = work.copy_pairs[self._through]
        listed = np.bincount(of, weights=experts, minlength=len(sends)).astype(np.int64)
        at_source = -(-listed // IDS_PER_FLIT)
        at_target = {
            "trimmed": -(-experts // IDS_PER_FLIT),
            "kept": at_source[of],
            "stripped": np.zeros_like(experts),
        }[switch.target_lists]
        return NamingFlits(np.repeat(at_source, num), np.repeat(at_target, num))

    def _queue(self, phase: str, sends: Ints, issued: Ints, sent: Ints, packets: Ints) -> None:
        """Hold places in the SMs' queues from the issue of packets until they have left."""
        work, switch = self._work, self._switch
        assert switch is not None
        if not switch.multimem_queue:
            return
        num_sms = switch.dispatch_sms if phase == "dispatch" else switch.combine_sms
        most = int(packets.max())
        room = most + max(switch.multimem_queue, most)
        pools = self._machine.buffers.pools(f"MultimemQ ({phase})", room, num_sms)
        lane = self._units.lane(sends, num_sms)
        pool = pools.reshape(work.num_ranks, num_sms)[self._units.place[sends], lane]
        units = np.tile(packets, len(sends))
        self._machine.graph.take(issued, np.repeat(pool, len(packets)), units, released_by=sent)


def of_segments(of: Ints, num: int) -> Ints:
    """(copy x segment,): the message of each segment, messages having `num` segments."""
    message: Ints = (of[:, None] * num + np.arange(num)).ravel()
    return message
