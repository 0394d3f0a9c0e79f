"""Kernels one after the other: collectives of a library between the products.

`tp-` schemes add sums up on every GPU by an all-reduce behind each half. `sp-` schemes gather rows
before it and scatter sums behind it. Rings are NCCL's; in the switch, sums and copies are made by
NVLink SHARP.

Sources: Megatron-LM (arXiv 1909.08053, 2205.05198); CAIS (arXiv 2605.05628) compares with TP-NVLS
and SP-NVLS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from replay.model.collectives import library
from replay.model.collectives.algorithm import Collective
from replay.schemes.tp.base import GATHER, REDUCE, TensorScheme
from replay.schemes.tp.traffic import one_way

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.work.transformer_layer import TensorLayer
    from replay.schemes.tp.kernels import TensorKernels


def too_few(algorithm: str, layer: TensorLayer) -> str:
    """Say that an algorithm exchanges between more GPUs than a layer has; empty if it does not."""
    least = library.find(algorithm).least_ranks
    if 1 < layer.num_ranks < least:
        return f"NCCL uses the switch for {least} GPUs or more, not for {layer.num_ranks}"
    return ""


class Collectives(TensorScheme):
    """Collectives between kernels.

    Parameters
    ----------
    way
        Whether rings or switches add up and copy.
    sequence_parallel
        See `TensorScheme`.
    """

    source = "Megatron-LM, megatron/core/tensor_parallel/mappings.py; NCCL"

    def __init__(self, way: Literal["ring", "nvls"], *, sequence_parallel: bool) -> None:
        self._algorithm = way
        self.sequence_parallel = sequence_parallel
        self.name = f"{'sp' if sequence_parallel else 'tp'}-{way}"
        moved = "all-gather and reduce-scatter" if sequence_parallel else "all-reduce"
        where = "in rings" if way == "ring" else "in the switch"
        self.summary = f"{moved} {where}, kernels in turn"
        moves = "ring" if way == "ring" else "switch"
        self.traffic = one_way(moves, sequence_parallel=sequence_parallel)
        self.needs = frozenset({"multicast", "reduction"} if way == "nvls" else ())
        super().__init__()

    def refuses(self, layer: TensorLayer) -> str:
        """Layers on fewer GPUs than the algorithm exchanges between."""
        return too_few(self._algorithm, layer) or super().refuses(layer)

    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """All-gather of rows."""
        return self._run(kernels, GATHER, "all_gather", after)

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Reduce-scatter of sums, or all-reduce."""
        operation: Collective = "reduce_scatter" if self.sequence_parallel else "all_reduce"
        return self._run(kernels, REDUCE, operation, after)

    def _run(self, kernels: TensorKernels, kinds: PhaseKinds, operation: Collective, after: Tasks) -> Ints:
        machine, layer = kernels.machine, kernels.layer
        begun = machine.kernel(after, operation.replace("_", "-"))
        nbytes = layer.tokens * layer.row_bytes
        algorithm = library.find(self._algorithm)
        return algorithm.build(machine, kinds, operation, nbytes, begun, payload=True)
