"""Settings of NCCL's grouped sends and receives, for every scheme that uses them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.model.collectives.pair_rules import rules_of, rules_on
from replay.model.collectives.point_to_point import all_to_all
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import Buffer
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.collectives.pair_rules import PairRules
    from replay.model.collectives.point_to_point import ExchangeTasks
    from replay.model.machine.communicators import Group
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split

FIFO_SOURCE = "NCCL src/transport/p2p.cc: 12 MiB for each peer and channel; net.cc: 16 chunks a channel"


@dataclass(frozen=True)
class NcclOptions(Options):
    """Settings of NCCL for grouped sends and receives."""

    channels: int = option(
        0,
        "Channels of the kernel; NCCL takes the next power of two. Each channel occupies one SM. "
        "0: as many as NCCL opens on the system.",
        "NCCL_MAX_P2P_NCHANNELS; the systems' numbers are in their presets",
    )
    chunk_bytes: int = option(
        524288,
        "Bytes of a slot in the FIFO of a connection. Data for a peer take one channel for every "
        "eighth of a slot, up to the peer's share of the channels.",
        "NCCL_P2P_NVL_CHUNKSIZE",
    )
    slots: int = option(8, "Slots in the FIFO of a connection.", "NCCL_STEPS")
    ll_bytes: int = option(
        16384,
        "Largest message on a channel that protocol LL carries.",
        "NCCL_P2P_LL_THRESHOLD",
        least=0,
    )

    pxn: bool = option(
        True,
        "Whether rows for another node are stored over NVLink to the GPU on the rail of their "
        "target, whose network card sends them. Otherwise the sender's own card does.",
        "NCCL_PXN_DISABLE and NCCL_P2P_PXN_LEVEL, on by default",
    )

    def rules(self, machine: Machine, group: Group = "all") -> PairRules:
        """Rules of NCCL's kernels of pairs, in the communicators of a `group`."""
        return rules_of(machine, group=group, **self._settings)

    def rules_on(self, system: System, num_ranks: int, group: Group) -> PairRules:
        """Rules on a system, for the communicators of a `group` of `num_ranks` ranks."""
        return rules_on(system, num_ranks, group=group, **self._settings)

    def num_channels(self, system: System, num_ranks: int | None = None) -> int:
        """Channels of a kernel, each on an SM; of a communicator of all GPUs by default."""
        return rules_on(system, num_ranks, **self._settings).num_channels

    def fifos(self, num_ranks: int, system: System) -> Buffer:
        """FIFOs that a communicator allocates for its peers.

        They are 2.8 GB on eight H100, where users see 3.3 GB in use (NVIDIA/nccl issue 1685).
        """
        rules = rules_on(system, num_ranks, **self._settings)
        nbytes = rules.fifo_bytes(num_ranks, system.fabric.gpus_per_domain)
        return Buffer("FIFOs of NCCL", np.full(num_ranks, nbytes), stays=True, source=FIFO_SOURCE)

    @property
    def network(self) -> str:
        """Class of what goes between nodes."""
        return "rail" if self.pxn else "direct"

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "channels": self.channels,
            "chunk_bytes": self.chunk_bytes,
            "slots": self.slots,
            "ll_bytes": self.ll_bytes,
            "pxn": self.pxn,
        }


FLAGS_IN_DATA = MappingProxyType(dict.fromkeys(("dispatch", "combine"), "few bytes have NCCL's flags in the data"))
"""`Scheme.unacknowledged` of what NCCL moves: protocol LL. By Simple a chunk's step is acknowledged."""


class SendsByNccl(Scheme):
    """A scheme whose rows travel in NCCL's grouped sends and receives."""

    options: NcclOptions = NcclOptions()
    unacknowledged = FLAGS_IN_DATA

    @property
    def network(self) -> str:  # type: ignore[override]  # an option decides; nobody sets it
        """Class of rows between nodes: by the rail of the target, unless an option says otherwise."""
        return self.options.network

    @property
    def full_nodes(self) -> str:  # type: ignore[override]  # likewise
        """Reason for full nodes, which PXN wants; else empty."""
        every = "PXN wants a GPU of every rail in each, pxn=false does not"
        return every if self.options.pxn else ""

    def communication_sms(self, system: System) -> int | None:
        """One SM a channel."""
        return self.options.num_channels(system)

    def channels(self, machine: Machine, rest: str = "") -> Split:
        """SMs of a kernel of NCCL's, and those that it leaves; a rank alone runs none.

        Parameters
        ----------
        rest
            What at least one further SM must do; see `split`.
        """
        alone = machine.num_ranks == 1
        held = {} if alone else {"channels": self.options.rules(machine).num_channels}
        return self.split(machine, rest=rest, **held)

    def exchange(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        sizes: Ints,
        begun: Tasks,
        *,
        payload: bool = True,
    ) -> ExchangeTasks:
        """Send `sizes` bytes (source, destination) in a kernel of NCCL's.

        Parameters
        ----------
        begun
            (rank,): it runs.
        payload
            Whether these are rows.
        """
        rules = self.options.rules(machine)
        channels = self.channels(machine).channels("nccl", rules.num_channels)
        return all_to_all(machine, kinds, channels, rules, sizes, begun, payload=payload)
