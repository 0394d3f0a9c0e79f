"""Shadowed experts: which ones, their weights on all GPUs, and their gradients back at home.

FasterMoE copies the weights of experts with many rows to all GPUs, which multiply their own rows of
these experts, so that such rows need not travel. Which experts: those of most rows first, as long
as that shortens a layer by its formula. With B rows for the expert that has most of those left, a
layer takes three times (forward, and twice as much backward) B rows through the experts' GEMMs,
four times B rows over the network (there and back, in both passes), and the weights of all
shadowed experts over the network. Numbers count as four bytes whatever their type, and all GPUs
decide alike.

Weights stand in one tensor for each expert: copied from its parameters at home, broadcast, and
copied on every GPU into the parameters of its first expert, whose own are kept aside. Backward,
their gradients are collected in the tensors, reduced to the home, and added there.

Sources: laekov/fastmoe ``fmoe/fastermoe/shadow_policy.py`` (``global_policy``), ``schedule.py``,
``expert_utils.py``, ``cuda/fastermoe/smart_schedule.h`` and ``.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.collectives import chains
from replay.model.compute.gemm import Gemm
from replay.model.compute.weight_copies import expert_bytes
from replay.model.machine.host import Operation
from replay.model.machine.kinds import WEIGHTS, Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

VALUE_BYTES = 4  # of the policy, "data type other than float" being left for later
ROW_PASSES, ROW_TRIPS = 3, 4  # of a row in GEMMs, and over the network, in both passes

FETCH = Operation("weights fetched", moves="an expert's weights, at home")
STASH = Operation("weights exchanged", moves="an expert's weights, the first time twice")
BROADCAST = Operation("broadcast of weights", moves="an expert's weights, out of FIFOs")
RESTORE = Operation("weights restored", moves="an expert's weights")
COLLECT = Operation("gradients collected", moves="an expert's gradients")
REDUCE = Operation("reduce of gradients", moves="an expert's gradients, out of FIFOs and own ones")
ADD = Operation("gradients added", moves="an expert's gradients, at home")


class Rates(NamedTuple):
    """Rates that the policy takes for the machine.

    Attributes
    ----------
    network
        Bytes per second out of a GPU.
    gemm
        Operations per second of a GPU.
    """

    network: float
    gemm: float


def rates_on(system: System, work: LayerWork, network: float = 0.0, gemm: float = 0.0) -> Rates:
    """Rates of a system, in GEMMs of the layer's type, where none are given.

    Parameters
    ----------
    network
        GB/s of FMOE_FASTER_GLBPLC_NETBW; 0 for the payload rate of a GPU's links, both ways busy.
    gemm
        TFLOP/s of FMOE_FASTER_GLBPLC_GPUTP; 0 for that of the main loops of full tiles.
    """
    return Rates(
        network * 1e9 or system.link.payload_bytes_per_s(both_ways=True),
        gemm * 1e12 or system.compute.peak_flop_per_s(work.precision.operands),
    )


def rates_of(machine: Machine, work: LayerWork, network: float = 0.0, gemm: float = 0.0) -> Rates:
    """Rates of a machine, for schemes, which do not see its system; see `rates_on`."""
    return rates_on(machine.system, work, network, gemm)


def choose(work: LayerWork, rates: Rates) -> Ints:
    """Choose experts to shadow: (shadow,) their numbers, ascending.

    Parameters
    ----------
    rates
        What the formula takes for the machine.

    Examples
    --------
    With r and w seconds for a row and for the weights of an expert, experts of 90, 50 and 40 rows
    are worth one shadow where ``90 r > 50 r + w``, and another where ``50 r + w > 40 r + 2 w``.
    """
    values = sum(gemm.n * gemm.k for gemm in Gemm.of_matrices(work))
    of_row = ROW_PASSES * 2 * values / rates.gemm
    of_row += ROW_TRIPS * work.shape.hidden * VALUE_BYTES / rates.network
    of_weights = values * VALUE_BYTES / rates.network
    order = np.argsort(-work.rows_of_expert, kind="stable")
    rows = work.rows_of_expert[order]
    best, count = float(rows[0]) * of_row if len(rows) else 0.0, 0
    while count + 1 < len(rows):
        takes = float(rows[count + 1]) * of_row + (count + 1) * of_weights
        if takes >= best:
            break
        best, count = takes, count + 1
    return np.sort(order[:count])


# ---- kernels -------------------------------------------------------------------------------------
# Those of a matrix each. All take and return (rank,) tasks.


def fetch(machine: Machine, work: LayerWork, expert: int, after: Tasks) -> Ints:
    """Copy an expert's parameters into its tensor, at home."""
    home = work.placement.expert_rank[expert : expert + 1].astype(np.int64)
    return _copy(machine, work, FETCH, after, home)


def broadcast(machine: Machine, work: LayerWork, expert: int, after: Tasks, channels: int) -> Ints:
    """Send an expert's tensor to all GPUs."""
    return _chain(machine, work, "broadcast", expert, after, channels)


def reduce(machine: Machine, work: LayerWork, expert: int, after: Tasks, channels: int) -> Ints:
    """Add the gradients of an expert up in its tensor at home."""
    return _chain(machine, work, "reduce", expert, after, channels)


def stash(machine: Machine, work: LayerWork, after: Tasks, *, is_first: bool) -> Ints:
    """Put a tensor in the place of an expert's parameters, which are copied first, if need be."""
    copies = 2 if is_first else 1
    return _copy(machine, work, STASH, after, machine.ranks, copies=copies)


def restore(machine: Machine, work: LayerWork, after: Tasks) -> Ints:
    """Put parameters back that were copied."""
    return _copy(machine, work, RESTORE, after, machine.ranks)


def collect(machine: Machine, work: LayerWork, rows: Counts, after: Tasks) -> Ints:
    """Copy gradients into the tensor; zeroes on GPUs that had no rows (rank,) for it."""
    return _copy(machine, work, COLLECT, after, machine.ranks, read=np.minimum(rows, 1))


def add(machine: Machine, work: LayerWork, expert: int, after: Tasks) -> Ints:
    """Add the sum of gradients to the home's own."""
    home = work.placement.expert_rank[expert : expert + 1].astype(np.int64)
    return _copy(machine, work, ADD, after, home, read=2)


def _copy(
    machine: Machine,
    work: LayerWork,
    what: Operation,
    after: Tasks,
    ranks: Ranks,
    *,
    copies: int = 1,
    read: Ints | int = 1,
) -> Ints:
    """Run elementwise kernels on `ranks`, for each matrix `copies` that read it `read` times."""
    on = np.isin(machine.ranks, ranks)
    for nbytes in expert_bytes(work, machine.system):
        for _ in range(copies):
            begun = machine.kernel(after, what, on=on)
            moved = MemoryTraffic(nbytes * read * np.ones_like(ranks), np.full(len(ranks), nbytes))
            after = begun.copy()
            after[ranks] = machine.stream(Kind.PLAN, moved, ranks, begun[ranks], late=machine.costs.elementwise(moved))
    return after


def _chain(
    machine: Machine,
    work: LayerWork,
    chain: chains.Chain,
    expert: int,
    after: Tasks,
    channels: int,
) -> Ints:
    begun = machine.kernel(after, BROADCAST if chain == "broadcast" else REDUCE)
    home, nbytes = int(work.placement.expert_rank[expert]), sum(expert_bytes(work, machine.system))
    return chains.run(machine, WEIGHTS, chain, nbytes, home, begun, channels=channels)
