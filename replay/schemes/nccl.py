"""Settings of NCCL's grouped sends and receives, for every scheme that uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.pair_rules import rules_of, rules_on
from replay.schemes.facts import Buffer
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.machine.machine import Machine
    from replay.machine.pair_rules import PairRules

FIFO_SOURCE = "NCCL src/transport/p2p.cc: 12 MiB for each peer and channel"


@dataclass(frozen=True)
class NcclOptions(Options):
    """Settings of NCCL for grouped sends and receives."""

    channels: int = option(
        0,
        least=0,
        help="Channels of the kernel; NCCL takes the next power of two. Each channel occupies one "
        "SM. 0: as many as NCCL opens on the system.",
        source="NCCL_MAX_P2P_NCHANNELS; the systems' numbers are in their presets",
    )
    chunk_bytes: int = option(
        524288,
        least=1,
        unit="bytes",
        help="Data of one slot. What goes to a peer has one channel for every eighth of it, up to "
        "the peer's share of the channels.",
        source="NCCL_P2P_NVL_CHUNKSIZE",
    )
    slots: int = option(
        8,
        least=1,
        help="Slots in the FIFO of a connection.",
        source="NCCL_STEPS",
    )
    ll_bytes: int = option(
        16384,
        least=0,
        unit="bytes",
        help="Largest message on a channel that protocol LL carries.",
        source="NCCL_P2P_LL_THRESHOLD",
    )

    def rules(self, machine: Machine) -> PairRules:
        """How NCCL's kernels of pairs go about it."""
        return rules_of(machine, **self._settings)

    def num_channels(self, system: System) -> int:
        """Channels of a kernel, each on an SM."""
        return rules_on(system, **self._settings).num_channels

    def fifos(self, num_ranks: int, system: System) -> Buffer:
        """FIFOs that a communicator allocates for its peers."""
        nbytes = rules_on(system, **self._settings).fifo_bytes(num_ranks)
        return Buffer("FIFOs of NCCL", np.full(num_ranks, nbytes), stays=True, source=FIFO_SOURCE)

    @property
    def _settings(self) -> dict[str, int]:
        return {
            "channels": self.channels, "chunk_bytes": self.chunk_bytes,
            "slots": self.slots, "ll_bytes": self.ll_bytes,
        }  # fmt: skip
