"""Costs of software around the work: launches, gaps, synchronisation, flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hwmodel.errors import unknown
from hwmodel.tables import OverheadsSpec
from hwmodel.units import ps_from_ns, ps_from_us, whole


@dataclass(frozen=True, slots=True)
class Overheads:
    """Fixed costs, all in picoseconds.

    Attributes
    ----------
    launch_ps
        CPU time of launching a kernel, at whose end it starts on an idle GPU.
    graph_launch_ps
        CPU time of launching a CUDA graph, however many kernels it has.
    host_sync_ps
        A small copy from device to host and a stream synchronisation.
    poll_pinned_ps
        From a GPU's store to pinned host memory until a polling CPU has seen it.
    copy_engine_start_ps
        Starting one copy on a copy engine.
    small_kernel_ps
        An elementwise kernel, beside its bytes.
    row_copy_ps
        A single row that a kernel copies to another place, beside its bytes.
    fence_ps
        Fence of DeepEP's normal kernels; fitted to whole calls, whose other single costs are in it.
    grid_barrier_ps
        All thread blocks of one GPU, inside a kernel.
    poll_ps
        Until a polling loop on the GPU has seen a flag that is already visible.
    flag_ps
        A signal to another GPU: store, way, visibility, poll.
    """

    launch_ps: int
    graph_launch_ps: int
    host_sync_ps: int
    poll_pinned_ps: int
    copy_engine_start_ps: int
    small_kernel_ps: int
    row_copy_ps: int
    fence_ps: int
    grid_barrier_ps: int
    poll_ps: int
    flag_ps: int
    _kernel_gap_graph_ps: int
    _kernel_gap_stream_ps: int
    _barrier_base_ps: int
    _barrier_per_peer_ps: int

    @classmethod
    def from_spec(cls, spec: OverheadsSpec, store_visibility_ps: int) -> Overheads:
        """Build from a preset's ``[overheads]`` table and the way of a store to a peer."""
        poll = ps_from_ns(spec.poll_ns.value)
        return cls(
            launch_ps=ps_from_us(spec.launch_us.value),
            graph_launch_ps=ps_from_us(spec.graph_launch_us.value),
            host_sync_ps=ps_from_us(spec.host_sync_us.value),
            poll_pinned_ps=ps_from_us(spec.poll_pinned_us.value),
            copy_engine_start_ps=ps_from_us(spec.copy_engine_start_us.value),
            small_kernel_ps=ps_from_us(spec.small_kernel_us.value),
            row_copy_ps=ps_from_ns(spec.row_copy_ns.value),
            fence_ps=ps_from_us(spec.fence_us.value),
            grid_barrier_ps=ps_from_us(spec.grid_barrier_us.value),
            poll_ps=poll,
            flag_ps=store_visibility_ps + poll,
            _kernel_gap_graph_ps=ps_from_us(spec.kernel_gap_graph_us.value),
            _kernel_gap_stream_ps=ps_from_us(spec.kernel_gap_stream_us.value),
            _barrier_base_ps=ps_from_ns(spec.barrier_base_ns.value),
            _barrier_per_peer_ps=ps_from_ns(spec.barrier_per_peer_ns.value),
        )

    def kernel_gap_ps(self, mode: Literal["stream", "graph"] = "stream") -> int:
        """Time from the work of a kernel to that of the next one: an end, a gap and a start.

        Parameters
        ----------
        mode
            Launched one by one into a stream, ahead of time, or as a CUDA graph.
        """
        if mode == "stream":
            return self._kernel_gap_stream_ps
        if mode == "graph":
            return self._kernel_gap_graph_ps
        raise unknown("launch mode", mode, ["graph", "stream"])

    def barrier_ps(self, num_gpus: int) -> int:
        """Time of a barrier among GPUs inside running kernels, after the last arrives.

        Parameters
        ----------
        num_gpus
            Members of the barrier. One alone waits for nobody.

        Notes
        -----
        ``base + (n - 1) x per_peer``: each member writes a flag to every other one
        and polls for theirs. What it stored before and waits for first is not in it.
        """
        members: int = whole(num_gpus, "num_gpus")
        if members < 2:
            return 0
        return self._barrier_base_ps + (members - 1) * self._barrier_per_peer_ps
