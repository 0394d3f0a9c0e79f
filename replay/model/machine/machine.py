"""The modelled system as a scheme sees it: parts, each with verbs of its own.

The module is long because every verb of a scheme is a method here, with its docstring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.arrays import Bytes, Ints, Ranks, Tasks
from replay.model.machine.buffers import Buffers
from replay.model.machine.caches import Caches
from replay.model.machine.communicators import runs_nccl
from replay.model.machine.domains import Domains
from replay.model.machine.host import AddedRow, AddedRows, Bools, Calls, Host, Launch, Operation, as_operation
from replay.model.machine.in_switch import InSwitch
from replay.model.machine.input_buffers import InputBuffers
from replay.model.machine.kinds import DISPATCH, EXPERTS, KIND_NAMES, Kind
from replay.model.machine.l2 import L2Caches
from replay.model.machine.merging import MergeUnits
from replay.model.machine.notes import Notes
from replay.model.machine.pace import Pace
from replay.model.machine.paths import Path, Paths
from replay.model.machine.rdma import Rdma
from replay.model.machine.resources import Discipline, IntsLike, Resources
from replay.model.machine.sms import Sms
from replay.model.machine.sync import Sync
from replay.model.machine.tasks import TaskBuilder
from replay.model.machine.times import NO_TIME, Costs, MemoryTraffic, Time
from replay.model.machine.transfers import Transfers
from replay.model.machine.vectors import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hwmodel import System
    from replay.engine import GraphBuilder
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.work.node_sample import NodeSample

WAVE_BYTES = 2048 * 16
"""What an SM's threads load at once: 2,048 of them (CUDA C++ programming guide, compute capability
9.0), 16 bytes each, the widest load. How finely kernels share memory, no cost of its own."""

PRODUCTS = {Kind.GEMM1, Kind.GEMM2, Kind.WGRAD}

__all__ = ["Ints", "IntsLike", "Machine", "MemoryTraffic", "Time"]


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
    launch, lead
        How hosts launch kernels, and by how much they begin before their GPUs; see `Host`.
    set_aside
        SMs per GPU of a communication stream; see `Sms`.
    sample
        The nodes whose ranks are replayed in full, where not all are; see `Pace`.
    is_shared
        Whether kernels of a GPU run side by side that have nothing to do with each other, as those
        of two micro-batches do. They share its memory: elementwise kernels leave room for others
        after each wave of their threads, and what kernels for rows copy on their SMs and what ports
        carry counts too, which by itself is far below the memory's rate.

    Attributes
    ----------
    ranks
        (rank,): their numbers.
    domains
        NVLink domains: who shares one, and who is whose peer in another.
    resources
        Ports, memories, hosts, hubs.
    costs
        Durations of work.
    network
        Ports between domains.
    transfers, switch, merging
        Stores and loads between GPUs; copies and sums that the switch makes; requests for one
        address that a proposed switch merges.
    sms, buffers, caches, l2, host
        SMs and who holds them, finite buffers, associative memories, the cache that tiles read
        through, the thread that launches kernels.
    vectors
        Vector cores, on machines that have some.
    sync
        Barriers, counts, notifications.
    notes
        Facts about the tasks that the result reports.
    serve, mark, gather, join, order, delay, meet, repeat
        See `TaskBuilder`.
    """

    def __init__(
        self,
        system: System,
        graph: GraphBuilder,
        num_ranks: int,
        uplinks: Discipline = "voq",
        launch: Launch | None = None,
        lead: Time = NO_TIME,
        set_aside: int = 0,
        sample: NodeSample | None = None,
        calls: Calls | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        self.system = system
        self.graph = graph
        self.num_ranks = num_ranks
        self.resources = Resources(graph, num_ranks, uplinks)
        self.ranks = self.resources.ranks
        self.notes = Notes(num_ranks)
        graph.on_block = self.notes.place
        self.costs = Costs(system)
        tasks = TaskBuilder(graph, self.resources, self.notes)
        self.serve, self.delay = tasks.serve, tasks.delay
        self.mark, self.gather, self.meet = tasks.mark, tasks.gather, tasks.meet
        self.order, self.join, self.repeat = tasks.order, tasks.join, tasks.repeat
        self._pace = None if sample is None else Pace(tasks, sample)
        self.domains = Domains(system.fabric, num_ranks)
        paths = Paths(system, self.resources, self.domains)
        self._paths = paths
        self.network = paths.network
        self.buffers = Buffers(graph, self.resources)
        input_buffers = InputBuffers(system, graph, self.buffers)
        rdma = Rdma(system, graph, sample)
        self.is_shared = is_shared
        self.transfers = Transfers(system, graph, paths, input_buffers, rdma, self.resources.hbm if is_shared else None)
        self.sms = Sms(self.resources, system.sm.num_sms, set_aside)
        self.vectors = Vectors(system, self.resources)
        self.caches = Caches(graph, self.resources, self.notes)
        self.l2 = L2Caches(system, graph, self.resources, self.caches)
        self.host = Host(system, self.resources, tasks, self.notes, launch, lead, calls)
        self.sync = Sync(system, tasks, paths, self.transfers, rdma, self.notes)
        self.switch = InSwitch(
            system,
            graph,
            self.resources,
            paths,
            self.transfers,
            self.buffers,
            self.caches,
            input_buffers,
        )
        self.merging = MergeUnits(
            system,
            graph,
            self.resources,
            self.transfers,
            self.switch,
            self.caches,
            input_buffers,
        )

    @property
    def has_nccl(self) -> bool:
        """Tell whether its GPUs run NCCL; engines beside the SMs copy where they do not."""
        return runs_nccl(self.system)

    @property
    def num_domains(self) -> int:
        """NVLink domains that the ranks in use are in."""
        return self.domains.num

    @property
    def has_experts(self) -> bool:
        """Tell whether experts do anything, or the communication is replayed without them."""
        return not self.graph.left_out >= EXPERTS

    def path(self, src: Ranks, dst: Ranks) -> Iterator[Path]:
        """Ports that messages between ranks pass; see `Paths`."""
        return self._paths(src, dst)

    # ---- kernels ---------------------------------------------------------------------------------

    def kernel(
        self,
        after: Tasks,
        what: str | Operation = "",
        *,
        kind: Kind | None = None,
        has_gap: bool = True,
        on: Bools | None = None,
    ) -> Tasks:
        """Launch a kernel behind `after`: (rank,) tasks at which it begins.

        Parameters
        ----------
        what
            The kernel, or its name in the list of operations.
        kind
            What all of the kernel does, where it does one thing; the kernel is left out where the
            graph leaves that out.
        has_gap
            False for a kernel that is on the GPU before its input is complete (programmatic
            dependent launch).
        on
            (rank,): GPUs whose programs have it; all by default. The others go on with `after`.
        """
        if kind in self.graph.left_out:
            return after.copy()
        after = self._behind_stack(what, after)
        behind = after if self._pace is None else self._pace(after)
        if kind in PRODUCTS:
            self.host.multiplies()
        return self.host.begin(behind, what, has_gap=has_gap, on=on)

    def memory_kernel(
        self,
        kind: Kind,
        nbytes: IntsLike | MemoryTraffic,
        after: Tasks,
        what: str | Operation = "",
        *,
        moves: str = "",
        has_gap: bool = True,
        least: Time = NO_TIME,
    ) -> Tasks:
        """Run an elementwise kernel that is limited by HBM: (rank,) tasks.

        Parameters
        ----------
        nbytes
            (rank,): what it reads and writes; bytes that are not told apart stream.
        what
            The kernel, or its name in the list of operations; that of its kind if it is empty.
        moves
            What it reads and writes, in words, if only its name is given.
        has_gap
            See `kernel`.
        least
            (rank,): what it takes at least, however few its bytes.
        """
        if isinstance(what, str):
            what = Operation(what or KIND_NAMES[kind], moves=moves)
        begun = self.kernel(after, what, kind=kind, has_gap=has_gap)
        return self.elementwise(kind, nbytes, begun, least=least)

    def small_kernels(
        self,
        kind: Kind,
        nbytes: IntsLike | MemoryTraffic,
        after: Tasks,
        what: str | Operation,
        *,
        least: Time = NO_TIME,
    ) -> Tasks:
        """Run elementwise kernels in a row: (rank,) tasks, those of the last.

        Parameters
        ----------
        nbytes
            (rank,): what they read and write, all together. The bytes are those of the last.
        what
            The kernels, one or more; or the name of one.
        least
            (rank,): what they take at least, however few their bytes, beside their starts.
        """
        if kind in self.graph.left_out:
            return after
        one = as_operation(what)
        after = self._behind_stack(one, after)
        each = self.costs.elementwise(0) * np.ones(one.launches - 1, np.int64)
        before = self.host.row(kind, each, after, one)
        return self.elementwise(kind, nbytes, self.kernel(before, one), least=least)

    def elementwise(
        self,
        kind: Kind,
        nbytes: IntsLike | MemoryTraffic,
        begun: Tasks,
        *,
        rows: IntsLike = 0,
        least: Time = NO_TIME,
    ) -> Tasks:
        """Move the bytes of an elementwise kernel that has begun: (rank,) tasks.

        Parameters
        ----------
        nbytes
            (rank,): what it reads and writes.
        rows
            (rank,): see `MemoryTraffic`, where reads and writes are not told apart.
        least
            See `memory_kernel`.
        """
        self.host.moves(nbytes, self.costs.beside_bytes(nbytes, least))
        late = self.costs.elementwise(nbytes, least) + self.costs.row_copies(rows)
        if not self.is_shared:
            return self.stream(kind, nbytes, self.ranks, begun, late=late)
        most = nbytes.both if isinstance(nbytes, MemoryTraffic) else nbytes
        waves = max(-(-int(np.max(most)) // (WAVE_BYTES * self.sms.count)), 1)
        whole = self.costs.stream(nbytes).ps * np.ones_like(self.ranks)
        for wave in range(waves):
            part = Time(whole * (wave + 1) // waves - whole * wave // waves)
            begun = self.serve(
                self.resources.hbm,
                part,
                kind=kind,
                rank=self.ranks,
                after=begun,
                late=late if wave == waves - 1 else NO_TIME,
            )
        return begun

    def enter(self, stage: str, after: Tasks, *, is_backward: bool) -> Tasks:
        """Come to a stage of a layer: (rank,) tasks that precede it, which are given back.

        What a stack does there is launched before the kernels that its list has it before.

        Parameters
        ----------
        stage, is_backward
            Its name and pass, as of `replay.model.machine.host.Calls`.
        """
        calls = self.host.enter(stage, is_backward=is_backward)
        if calls is not None:
            self.host.added = AddedRows(calls.added)
        return after

    def leave(self, after: Tasks) -> Tasks:
        """End a stage of a layer: (rank,) tasks, behind what a stack does there at last."""
        return self._add_rows(self.host.added.rest(), after)

    def _behind_stack(self, what: str | Operation, after: Tasks) -> Tasks:
        """Launch what a stack's list has before a kernel: (rank,) tasks."""
        rows = self.host.added.before(as_operation(what).name)
        return self._add_rows(rows, after) if rows else after

    def _add_rows(self, rows: Iterable[AddedRow], after: Tasks) -> Tasks:
        """Launch kernels of a stack and wait for them: (rank,) tasks."""
        held, self.host.added = self.host.added, AddedRows()
        for row in rows:
            self.notes.row, late = f"kernel list: {row.what.name}", Time(row.late_ps)
            if row.what.launches:
                least = self.costs.stream(row.nbytes) + late
                after = self.small_kernels(Kind.LAYOUT, row.nbytes, after, row.what, least=least)
            elif row.nbytes or row.late_ps:  # the scheme's kernels lack these
                self.host.moves(row.nbytes, late)
                nbytes = np.full(self.num_ranks, row.nbytes)
                after = self.stream(Kind.LAYOUT, nbytes, self.ranks, after, late=late)
            for _ in range(row.waits):
                self.host.wait(DISPATCH, after, row.what.name)
        self.host.added, self.notes.row = held, ""
        return after

    def keeping_up(self, needed: Time, nbytes: Bytes) -> int:
        """SMs of a GPU that do their work while its busiest port carries bytes.

        Parameters
        ----------
        needed
            (rank,): time that the work takes one SM.
        nbytes
            (rank,): payload on the busier of a GPU's ports.

        Returns
        -------
        As many as the busiest GPU needs for the busiest port; at least one, and at most a quarter
        of all, so that two such kinds of work leave half.
        """
        port_ps = int(np.max(self.system.link.port_duration_ps(nbytes)))
        sms = -(-int(np.max(needed.ps)) // port_ps) if port_ps else 1
        return min(max(sms, 1), max(self.sms.count // 4, 1))

    def storing_sms(self) -> int:
        """SMs of a GPU whose stores to peers fill its port, as `keeping_up` counts them."""
        many = np.array([2**30])  # bytes, so many that rounding to picoseconds does not count
        return self.keeping_up(self.costs.sm_store(many), many)

    def charge_copy(self, kinds: PhaseKinds, nbytes: Bytes, rank: Ranks, after: Tasks) -> None:
        """Occupy memory with what a kernel's SMs copy, where kernels share it.

        Nobody waits for it: what an exchange asks for is less than its share of a memory that
        serves all who ask, and others' requests do not stand before it as they do in the model.

        Parameters
        ----------
        nbytes, rank
            (task,): bytes that are read or written, and whose memory it is.
        after
            (task,): tasks behind which that is.
        """
        if self.is_shared:
            self.stream(kinds.memory, nbytes, rank, after)

    def stream(
        self,
        kind: Kind,
        nbytes: IntsLike | MemoryTraffic,
        rank: Ranks,
        after: Tasks,
        *,
        late: Time = NO_TIME,
    ) -> Tasks:
        """Read or write device memory: (task,) tasks.

        Parameters
        ----------
        nbytes, rank
            (task,): what is read and written, and whose memory it is; bytes that are not told
            apart stream.
        late
            From the last byte until the result is there.
        """
        return self.serve(
            self.resources.hbm[rank],
            self.costs.stream(nbytes),
            kind=kind,
            rank=rank,
            after=after,
            late=late,
        )
