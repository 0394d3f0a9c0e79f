"""The modelled system as a scheme sees it: parts, each with verbs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.machine.buffers import Buffers
from replay.machine.caches import Caches
from replay.machine.host import Host
from replay.machine.in_switch import InSwitch
from replay.machine.kinds import Kind
from replay.machine.notes import Notes
from replay.machine.paths import Path, Paths
from replay.machine.resources import Discipline, Ints, IntsLike, Resources
from replay.machine.sms import Sms
from replay.machine.sync import Sync
from replay.machine.tasks import Tasks
from replay.machine.times import NO_TIME, Costs, Time
from replay.machine.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmodel import System
    from replay.graph import GraphBuilder

__all__ = ["Ints", "IntsLike", "Machine", "Time"]


class Machine:
    """One system in one task graph.

    Parameters
    ----------
    system
        The hardware model.
    graph
        Builder that receives the resources and tasks.
    num_ranks
        Ranks in use; rank r runs on GPU r.
    uplinks
        Discipline of the uplinks.

    Attributes
    ----------
    ranks
        (rank,): their numbers.
    resources
        Ports, memories, hosts, hubs.
    costs
        Durations of work.
    transfers, switch
        Stores and loads between GPUs; copies and sums that the switch makes.
    sms, buffers, caches, host
        SMs and who holds them, finite buffers, associative memories, the thread that launches
        kernels.
    sync
        Barriers, counts, notifications.
    notes
        Facts about the tasks that the result reports.
    serve, mark, gather, delay
        See `Tasks`.
    """

    def __init__(
        self, system: System, graph: GraphBuilder, num_ranks: int, uplinks: Discipline = "voq"
    ) -> None:
        self.system = system
        self.graph = graph
        self.num_ranks = num_ranks
        self.resources = Resources(graph, num_ranks, uplinks)
        self.ranks = self.resources.ranks
        self.notes = Notes(num_ranks)
        self.costs = Costs(system)
        tasks = Tasks(graph, self.resources)
        self.serve, self.delay = tasks.serve, tasks.delay
        self.mark, self.gather = tasks.mark, tasks.gather
        paths = Paths(system, self.resources)
        self._paths = paths
        self.transfers = Transfers(system, graph, paths)
        self.sms = Sms(self.resources, system.sm.num_sms)
        self.buffers = Buffers(graph, self.resources)
        self.caches = Caches(graph, self.resources, self.notes)
        self.host = Host(system, self.resources, tasks)
        self.sync = Sync(system, tasks, paths, self.transfers)
        self.switch = InSwitch(
            system, graph, self.resources, paths, self.transfers, self.buffers, self.caches
        )

    def path(self, src: Ints, dst: Ints) -> Iterator[Path]:
        """Ports that messages between ranks pass; see `Paths`."""
        return self._paths(src, dst)

    # ---- kernels ---------------------------------------------------------------------------------

    def kernel(self, after: Ints) -> Ints:
        """Begin a kernel that was launched ahead: (rank,) tasks after the gap between kernels."""
        return self.delay(Kind.LAUNCH, Time(self.system.overheads.kernel_gap_ps()), after)

    def memory_kernel(self, kind: Kind, nbytes: Ints, after: Ints) -> Ints:
        """Run an elementwise kernel that is limited by HBM: (rank,) tasks.

        Parameters
        ----------
        nbytes
            (rank,): bytes read plus bytes written.
        """
        late = Time(self.system.overheads.small_kernel_ps)
        return self.stream(kind, nbytes, self.ranks, self.kernel(after), late=late)

    def stream(
        self, kind: Kind, nbytes: IntsLike, rank: Ints, after: Ints, *, late: Time = NO_TIME
    ) -> Ints:
        """Read or write device memory: (task,) tasks.

        Parameters
        ----------
        nbytes, rank
            (task,): bytes read plus bytes written, and whose memory it is.
        late
            From the last byte until the result is there.
        """
        return self.serve(
            self.resources.hbm[rank], self.costs.stream(nbytes),
            kind=kind, rank=rank, after=after, late=late,
        )  # fmt: skip
