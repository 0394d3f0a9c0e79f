"""What is known of a scheme beside its tasks: layers that it takes, memory that it allocates.

The facts are attributes of `replay.schemes.ep.base.Scheme`. What refuses a layer by them is here,
so that a scheme states what its code has and no scheme words the refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from replay.model.work.precision import NUMBER_TYPES

if TYPE_CHECKING:
    from replay.model.work.layer import LayerWork
    from replay.model.work.ragged import Ints

ALL_TYPES = frozenset(NUMBER_TYPES)
FORWARD = frozenset({"forward"})
BOTH_PASSES = frozenset({"forward", "backward"})


class Buffer(NamedTuple):
    """Device memory that is allocated on every GPU, beside tokens, weights and sums.

    Attributes
    ----------
    name
        What lies in it, such as "receive buffer".
    nbytes
        (rank,): its bytes on each GPU.
    stays
        Whether it is kept from layer to layer, as a communicator's buffers are, and not only as
        long as a layer runs.
    source
        Where its size is from, if it is not the scheme's own source.
    """

    name: str
    nbytes: Ints
    stays: bool = False
    source: str = ""


class Taker(Protocol):
    """The facts of a `Scheme` that exclude layers; its docstring explains them."""

    gemm_types: frozenset[str]
    dispatch_types: frozenset[str]
    combine_types: frozenset[str]
    passes: frozenset[str]
    puts_off_weights: bool
    most_ranks: int | None


def lacking(scheme: Taker, work: LayerWork) -> str:
    """Say which fact of a scheme excludes a layer.

    Parameters
    ----------
    work
        The layer.

    Returns
    -------
    The reason, such as "its kernels have no backward pass"; empty if no fact does.
    """
    if work.is_backward and "backward" not in scheme.passes:
        return "its kernels have no backward pass"
    if not work.is_backward and "forward" not in scheme.passes:
        return "it is of the backward pass alone"
    if work.puts_off_weights and not scheme.puts_off_weights:
        return "its weight gradients are part of its kernels and cannot be put off"
    types = work.precision
    for what, given, possible in (
        ("GEMMs", types.gemm, scheme.gemm_types),
        ("rows to the experts", types.dispatch, scheme.dispatch_types),
        ("rows back", types.combine, scheme.combine_types),
    ):
        if given not in possible:
            return f"its {what} are {' or '.join(sorted(possible))}, not {given}"
    if scheme.most_ranks is not None and work.num_ranks > scheme.most_ranks:
        return f"its code takes {scheme.most_ranks} ranks at most, not {work.num_ranks}"
    return ""
