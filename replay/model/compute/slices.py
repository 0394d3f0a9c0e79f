"""GPUs that share the dense parts of a layer: tensor, sequence and context parallelism.

*Tensor parallelism* slices heads and inner widths over `tp` GPUs. Between their products each of
them owns the rows of an equal share of the tokens (sequence parallelism; Megatron-LM, arXiv
2205.05198): rows of all tokens are gathered before a product whose columns are sliced, and partial
sums scattered behind one whose rows are. In the backward pass the first becomes a gather of the
rows again, for the gradients of weights, and a scatter of the gradients' sums; the second a gather
of gradients.

*Context parallelism* slices every sequence over `cp` GPUs, two pieces each, one from its front and
one from its end, so that all have the same pairs of queries and keys. Before attention each gathers
the keys and values of the whole sequence, and in the backward pass again, with a scatter of the
sums of their gradients behind it (Llama 3, arXiv 2407.21783, section 3.3.2; Megatron-LM's
``cp_comm_type`` ``all_gather``).

What is left out: Megatron-LM hides the collectives of a backward pass behind the GEMMs beside them
where they do not depend on each other; here all follow one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from replay.model.compute.dense_kernels import BF16

if TYPE_CHECKING:
    from replay.model.collectives.algorithm import Collective
    from replay.model.compute.dense_kernels import Kernels
    from replay.model.machine.machine import Ints

Group = Literal["tp", "cp"]
CollectivePs = Callable[["Group", "Collective", int], int]


def _nothing(group: Group, collective: Collective, nbytes: int) -> int:
    message = f"{collective} of {nbytes} bytes in a {group} group of one GPU"
    raise AssertionError(message)


@dataclass(frozen=True)
class Slices:
    """How many GPUs share heads and widths, and sequences.

    Attributes
    ----------
    tp, cp
        GPUs of each group.
    collective_ps
        Time of a collective in such a group, from the bytes of the larger of a GPU's two buffers.
    """

    tp: int = 1
    cp: int = 1
    collective_ps: CollectivePs = _nothing

    def enter(self, kernels: Kernels, rows: Ints, width: int) -> None:
        """Gather rows before a product with sliced columns.

        Parameters
        ----------
        rows
            (rank,): rows of the whole group, the same on all its GPUs.
        width
            Values of a row.
        """
        if self.tp == 1:
            return
        # Backward, what was gathered is needed for gradients of weights alone.
        if not (kernels.is_backward and kernels.weights == "put off"):
            self._run(kernels, "tp", "all_gather", rows, width)
        if kernels.is_backward and kernels.weights != "alone":
            self._run(kernels, "tp", "reduce_scatter", rows, width)

    def leave(self, kernels: Kernels, rows: Ints, width: int) -> None:
        """Scatter partial sums behind a product with sliced rows; parameters as of `enter`."""
        if self.tp == 1:
            return
        # Backward, the gradient that both products of a GEMM multiply is gathered. Who puts one of
        # them off keeps it.
        what: Collective = "all_gather" if kernels.is_backward else "reduce_scatter"
        if kernels.weights != "alone":
            self._run(kernels, "tp", what, rows, width)

    def share_keys(self, kernels: Kernels, positions: Ints, width: int) -> None:
        """Gather keys and values of whole sequences.

        Parameters
        ----------
        positions
            (rank,): positions of the whole sequences.
        width
            Values of the keys and values of a position on a GPU.
        """
        if self.cp == 1 or kernels.weights == "alone":
            return
        self._run(kernels, "cp", "all_gather", positions, width)
        if kernels.is_backward:
            self._run(kernels, "cp", "reduce_scatter", positions, width)

    def _run(
        self, kernels: Kernels, group: Group, what: Collective, rows: Ints, width: int
    ) -> None:
        nbytes = int(rows.max()) * width * BF16
        kernels.exchange(what, self.collective_ps(group, what, nbytes))


WHOLE = Slices()
"""Every GPU has all heads, widths and sequences of its own tokens."""
