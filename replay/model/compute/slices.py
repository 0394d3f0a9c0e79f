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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.model.collectives.algorithm import Collective
    from replay.model.work.kernel_lists.lists import Group

CollectivePs = Callable[["Group", "Collective", int], int]
"""Time of a collective in a group, from the bytes of the larger of a GPU's two buffers."""


def nobody(group: Group, collective: Collective, nbytes: int) -> int:
    """Refuse a collective of a GPU alone."""
    message = f"{collective} of {nbytes} bytes in a {group} group of one GPU"
    raise AssertionError(message)


@dataclass(frozen=True)
class Slices:
    """Numbers of GPUs that share heads and widths, and sequences.

    Attributes
    ----------
    tp, cp
        GPUs of each group.
    collective_ps
        Time of a collective in such a group, from the bytes of the larger of a GPU's two buffers.
    """

    tp: int = 1
    cp: int = 1
    collective_ps: CollectivePs = nobody


WHOLE = Slices()
"""Every GPU has all heads, widths and sequences of its own tokens."""
