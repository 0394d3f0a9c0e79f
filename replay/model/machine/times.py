"""Times that a scheme may hold but not look into, and what turns sizes into them.

A scheme names its work in bytes, rows and tokens; `Costs` says how long the work takes on this
machine. The answer is a `Time`: a scheme adds times up, multiplies them by counts and hands them
to the machine, and has no use for the number inside. Times that a scheme states itself are in
nanoseconds (`Costs.ns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from hwmodel.system import Capability
from hwmodel.units import ps_from_ns
from replay.model.arrays import Bytes, Ints
from replay.model.machine.resources import IntsLike

if TYPE_CHECKING:
    from hwmodel import System
    from hwmodel.nccl import Protocol

PS_PER_NS = 1000

RELEASED_GPUS = 8
"""Of a domain in which a release was measured (deepep_low_latency_b200: 4 and 8). Of more it is
taken to last as long; their number would extrapolate tens of us."""

Stored = Literal["nothing", "each", "multicast", "any"]
"""What others are told of, and what a GPU waits for before it tells them:

- ``"nothing"``: it has stored nothing that they read, or its stores say so themselves (flags in the
  data; puts of a queue that the flag follows). It waits for nothing.
- ``"each"``: stores to each peer, whose acknowledgement comes back.
- ``"multicast"``: stores that the switch copied, whose acknowledgement comes back, and behind it
  ``switch.multicast_release_ns``.
- ``"any"``: whatever it wrote, in its own memory or elsewhere, by a fence as DeepEP's notify kernels
  have it: ``overheads.fence_us``. That is fitted to whole calls of DeepEP and holds what else such
  a call pays once; it is no time of one instruction.
"""


OWN = "time of its own"
"""What a time has beside values of the system: constants of software, or of bytes and rows."""


@dataclass(frozen=True, slots=True)
class Time:
    """Durations: one, or one for each task.

    Attributes
    ----------
    ps
        Whole picoseconds, for the machine alone: `tests/replay/schemes/test_rule.py` keeps schemes
        from reading them.
    of
        Values of the system that it is made of, such as ``overheads.fence_us``, each once. Software's
        own times have none, nor have those of bytes and rows; what holds one beside values has `OWN`.
    """

    ps: IntsLike
    of: tuple[str, ...] = ()

    @staticmethod
    def from_keys(ps: IntsLike, *of: str) -> Time:
        """A time of values of the system; of none where there is nothing to it."""
        return Time(ps, of if _is_some(ps) else ())

    def __add__(self, other: Time) -> Time:
        """One after the other."""
        return Time(self.ps + other.ps, self._with(other))

    def __mul__(self, times: IntsLike) -> Time:
        """The same thing so many times, one after the other."""
        return Time(self.ps * times, self.of)

    __rmul__ = __mul__

    def shared_by(self, workers: int) -> Time:
        """Work that so many workers divide evenly, rounded up."""
        return Time(-(-self.ps // workers), self.of)

    def _with(self, other: Time) -> tuple[str, ...]:
        """Values that both are made of, and `OWN` where one of them is of none; nothing has none."""
        if self.of == other.of:
            return self.of
        mine = (self.of or (OWN,)) if _is_some(self.ps) else ()
        more = (other.of or (OWN,)) if _is_some(other.ps) else ()
        return tuple(sorted({*mine, *more}))

    @staticmethod
    def where(chosen: npt.NDArray[np.bool_], then: Time, otherwise: Time) -> Time:
        """One time for the tasks that are `chosen` (task,), another for the rest."""
        return Time(np.where(chosen, then.ps, otherwise.ps), then._with(otherwise))

    @staticmethod
    def longer(one: Time, other: Time) -> Time:
        """Two things at once: task by task, the one that takes longer."""
        return Time(np.maximum(one.ps, other.ps), one._with(other))


def _is_some(ps: IntsLike) -> bool:
    """Tell whether any of some durations is not zero; `numpy.any` takes several times as long."""
    return ps != 0 if type(ps) is int else bool(np.asarray(ps).any())


NO_TIME = Time(0)

WAY = ("link.propagation_ns", "switch.traversal_ns")
"""What the way of a message from GPU to GPU is made of."""
VISIBILITY, POLL = "gpu.write_visibility_ns", "overheads.poll_ns"
MEMORY_LOAD, CACHE_LOAD = "hbm.latency_ns", "gpu.l2_latency_ns"
SMALL_KERNEL = "overheads.small_kernel_us"


@dataclass(frozen=True, slots=True)
class MemoryTraffic:
    """Bytes that an elementwise kernel reads from device memory and writes there.

    Attributes
    ----------
    read, written
        (task,).
    rows
        (task,): single rows that the kernel copies to other places, as permutes do; none where it
        reads rows in order, or several at once to add them up.
    """

    read: IntsLike
    written: IntsLike
    rows: IntsLike = 0

    @property
    def both(self) -> IntsLike:
        """(task,): bytes read plus bytes written."""
        return np.add(self.read, self.written)


class Costs:
    """Durations of work on an idle server of a machine."""

    def __init__(self, system: System) -> None:
        self._system = system

    def ns(self, nanoseconds: int) -> Time:
        """A time that a scheme states: an option of its own, or a measured constant of software."""
        return Time(nanoseconds * PS_PER_NS)

    # ---- one SM ----------------------------------------------------------------------------------

    def sm_store(self, nbytes: IntsLike) -> Time:
        """One SM's stores of bytes to peers or into its own GPU's memory."""
        return Time(self._system.sm.push_ps(nbytes))

    def sm_load(self, nbytes: IntsLike) -> Time:
        """One SM's loads of bytes from peers, and stores of them to its own memory."""
        return Time(self._system.sm.pull_ps(nbytes))

    def sm_copy(self, nbytes: IntsLike) -> Time:
        """One SM's copies of bytes within its GPU."""
        return Time(self._system.sm.copy_out_ps(nbytes))

    def sm_add(self, nbytes_in: IntsLike, nbytes_out: IntsLike) -> Time:
        """One SM's additions: reads of rows of `nbytes_in` in all, and writes of `nbytes_out` of sums."""
        return Time(self._system.sm.reduce_ps(nbytes_in, nbytes_out))

    # ---- single warps ----------------------------------------------------------------------------

    def warp_scan(self, tokens: IntsLike) -> Time:
        """A warp's looks at tokens one after the other, to decide for each whether to go on."""
        return Time(tokens * self._system.warps.scan_ps)

    def warp_copy(self, row_bytes: int, *, unroll: int, readers: float = 1.0) -> Time:
        """A warp's copy of one row; see `hwmodel.warps.Warps.copy_ps`."""
        return Time(self._system.warps.copy_ps(row_bytes, unroll, readers))

    def warps_add(self, sources: IntsLike, row_bytes: int, *, num_warps: int, waiting_bytes: int) -> Time:
        """SM time of adding up one row from its sources; see `hwmodel.warps.Warps.reduce_ps`."""
        return Time(self._system.warps.reduce_ps(sources, row_bytes, num_warps=num_warps, waiting_bytes=waiting_bytes))

    def warps_add_late(self, sources: IntsLike, row_bytes: int) -> Time:
        """Time from the end of `warps_add` until the sum is written."""
        return Time(self._system.warps.reduce_latency_ps(sources, row_bytes), (CACHE_LOAD, "warp.reduce_wait_ns"))

    def bulk_copies(self, rows: IntsLike, row_bytes: int) -> Time:
        """SM time of rows that pass shared memory; see `hwmodel.warps.Warps.bulk_ps`."""
        return Time(self._system.warps.bulk_ps(rows, row_bytes))

    def bulk_late(self, sources: IntsLike, row_bytes: int) -> Time:
        """Time from the end of `bulk_copies` until the sum of their rows is written."""
        return Time(self._system.warps.bulk_latency_ps(sources, row_bytes), (MEMORY_LOAD, "warp.reduce_wait_ns"))

    def choices(self, rows: IntsLike) -> Time:
        """Rows of a token's choices, one after the other, beside their bytes."""
        return Time(rows * self._system.warps.choice_ps)

    # ---- memory ----------------------------------------------------------------------------------

    def stream(self, nbytes: IntsLike | MemoryTraffic) -> Time:
        """Reads or writes of device memory, as operands stream or as elementwise kernels do."""
        hbm = self._system.hbm
        if isinstance(nbytes, MemoryTraffic):
            return Time(hbm.elementwise_ps(nbytes.read, nbytes.written))
        return Time(hbm.stream_ps(nbytes))

    def missed_bytes(self, nbytes: Bytes, waiting: Ints) -> Ints:
        """Bytes of those that peers have written which device memory reads again: (task,).

        Parameters
        ----------
        nbytes
            (task,): bytes that a task reads.
        waiting
            (task,): bytes that wait to be read on its GPU. The L2 cache has all of them where they
            are few, and none where they are as many as it has room for.
        """
        room = self._system.l2.num_bytes
        return nbytes * np.minimum(waiting, room) // room

    def l2_access(self, nbytes: IntsLike) -> Time:
        """Reads or writes by all SMs together of bytes that are in the L2 cache."""
        return Time(self._system.l2.read_ps(nbytes))

    def fits_cache(self, nbytes: int) -> bool:
        """Tell whether so many bytes stay in the L2 cache from kernel to kernel."""
        return bool(nbytes <= self._system.l2.num_bytes)

    def elementwise(self, nbytes: IntsLike | MemoryTraffic, least: Time = NO_TIME) -> Time:
        """An elementwise kernel beside its bytes, with what they lack of `least`."""
        overheads = self._system.overheads
        rows = nbytes.rows if isinstance(nbytes, MemoryTraffic) else 0
        late = Time(overheads.small_kernel_ps, (SMALL_KERNEL,)) + self.row_copies(rows)
        return late if least is NO_TIME else late + self.beside_bytes(nbytes, least)

    def beside_bytes(self, nbytes: IntsLike | MemoryTraffic, least: Time) -> Time:
        """Rest, after its bytes have moved, of the least that a kernel takes."""
        if least is NO_TIME:
            return NO_TIME
        return Time.from_keys(np.maximum(least.ps - self.stream(nbytes).ps, 0), *least.of, OWN)

    def row_copies(self, rows: IntsLike) -> Time:
        """Single rows that a kernel copies to other places, beside their bytes."""
        return Time.from_keys(self._system.overheads.row_copy_ps * rows, "overheads.row_copy_ns")

    def memory_load(self) -> Time:
        """One load that goes to device memory."""
        return Time(self._system.hbm.latency_ps, (MEMORY_LOAD,))

    def cache_load(self) -> Time:
        """One load that finds its data in the L2 cache."""
        return Time(self._system.warps.cache_latency_ps, (CACHE_LOAD,))

    def visible(self) -> Time:
        """Time from a store's arrival in a GPU's memory until other SMs of the GPU see it."""
        return Time(self._system.fabric.write_visibility_ps, (VISIBILITY,))

    # ---- telling one another ---------------------------------------------------------------------

    def post(self) -> Time:
        """A warp's work for a write to another domain and for the signal behind it."""
        return Time(self._system.fabric.network.post_ps, ("nic.post_ns",))

    def behind(self, stored: Stored) -> Time:
        """Time from the arrival of stores until a flag that tells of them may leave.

        All barriers and flags pay it (`Sync.fence`, `Sync.flag`, `Sync.barrier`), and the tails of
        rings and of NCCL's chunks, which are times without a message of their own.
        """
        if stored == "nothing":
            return NO_TIME
        if stored == "any":
            return Time(self._system.overheads.fence_ps, ("overheads.fence_us",))
        way = Time(self._system.fabric.uplink_latency_ps + self._system.fabric.downlink_latency_ps, WAY)
        if stored == "each":
            return way
        return way + Time.from_keys(self._system.switch.multicast_release_ps, "switch.multicast_release_ns")

    def write_through(self) -> Time:
        """Time from a store to a peer until its source knows that it is in the peer's memory.

        It is `behind` with the way there.
        """
        return self.behind("each") + self.visible() + self.behind("each")

    def release(self, gpus: int) -> Time:
        """Time that a release of system scope takes for each peer stored to, behind `behind("each")`.

        ``warp.release_ns``, fitted to DeepEP's low-latency kernels, which pay it as barriers behind stores
        to the `gpus` of a domain do (`Sync.barrier`) and TensorRT-LLM's kernels. Flags to one peer do not:
        no measurement tells what these take. Of more than `RELEASED_GPUS` nobody has measured it,
        and nobody at all on machines that do not run CUDA.
        """
        if Capability.CUDA not in self._system.capabilities:
            return NO_TIME
        peers = min(gpus, RELEASED_GPUS) - 1
        return Time.from_keys(peers * self._system.warps.release_ps, "warp.release_ns")

    def remote_load(self) -> Time:
        """One load from a peer's memory, there and back, where nothing else is on the way."""
        fabric = self._system.fabric
        one_way = fabric.uplink_latency_ps + fabric.downlink_latency_ps
        return Time(2 * one_way + fabric.read_access_ps, (*WAY, "gpu.remote_read_access_ns"))

    def entering(self, nbytes: IntsLike) -> Time:
        """Occupation of a GPU's ports in one direction by data of loads."""
        link = self._system.link
        return Time(link.port_duration_ps(link.response_wire_bytes(nbytes, 1)))

    def poll(self) -> Time:
        """Time until a loop that polls has seen a flag that is already visible."""
        return Time(self._system.overheads.poll_ps, (POLL,))

    def flag(self, stored: Stored = "nothing") -> Time:
        """A flag to another GPU behind stores: what they wait for, store, way, visibility, poll.

        A time without a message; `Sync.flag` adds one that takes its room on the ports.
        """
        return self.behind(stored) + Time(self._system.overheads.flag_ps, (*WAY, VISIBILITY, POLL))

    def copy_engine_start(self) -> Time:
        """Starting one copy on a copy engine."""
        return Time(self._system.overheads.copy_engine_start_ps, ("overheads.copy_engine_start_us",))

    def host_flag(self) -> Time:
        """A flag between a GPU and a thread of its host, either way: a store over PCIe, a poll."""
        return Time(self._system.overheads.poll_pinned_ps, ("overheads.poll_pinned_us",))

    def host_load(self) -> Time:
        """A load of the host out of its GPU's memory: over PCIe and back."""
        return Time(2 * self._system.fabric.network.pcie_ps, ("pcie.latency_ns",))

    def locked_add(self) -> Time:
        """An addition of the host to memory that it does not cache, which locks the bus of its node."""
        return Time(ps_from_ns(self._system.host.locked_add_ns.value), ("host.locked_add_ns",))

    def library_start(self, protocol: Protocol) -> Time:
        """Time from the start of a kernel of NCCL with rings or trees until its first chunk leaves."""
        return Time(protocol.start_ps, (f"nccl.{protocol.name.lower()}_start_us",))

    def pair_start(self, *, is_ll: bool) -> Time:
        """As `library_start`, of NCCL's kernel of sends and receives under protocol LL or Simple."""
        nccl = self._system.nccl
        if is_ll:
            return Time(nccl.pair_ll_start_ps, ("nccl.pair_ll_start_us",))
        return Time(nccl.pair_simple_start_ps, ("nccl.pair_simple_start_us",))

    def multicast_start(self) -> Time:
        """Time from the start of NCCL's kernel of a collective in the switch until its first access."""
        return Time(self._system.nccl.nvls_start_ps, ("nccl.nvls_start_us",))

    def proxy_step(self) -> Time:
        """A step of the host's thread that sees to what NCCL sends out of a node."""
        return Time(self._system.nccl.proxy_step_ps, ("nccl.proxy_step_us",))

    def meeting(self, members: int) -> Time:
        """Meeting of members of an NVLink domain inside running kernels, from the last arrival on."""
        keys = ("overheads.barrier_base_ns", "overheads.barrier_per_peer_ns")
        return Time.from_keys(self._system.overheads.barrier_ps(members), *keys)

    def grid_barrier(self) -> Time:
        """Meeting of all thread blocks of one kernel on one GPU."""
        return Time(self._system.overheads.grid_barrier_ps, ("overheads.grid_barrier_us",))
