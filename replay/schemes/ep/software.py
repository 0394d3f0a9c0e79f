"""What a scheme's software launches for a layer, as a list that can be printed and checked.

The list names every kernel of a layer in the order in which a host thread launches it, and every
wait of that thread. Schemes call the machine's verbs with the same names, and the contract compares
the list with what was really launched. Kernels of shared experts beside the dispatch are in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from replay.model.compute.calls import QUANTISE
from replay.model.compute.casts import CAST_TOKENS
from replay.model.compute.experts import QUANTISATION
from replay.model.machine.host import Operation
from replay.model.work.precision import Precision

if TYPE_CHECKING:
    from replay.model.work.capacity import Carried
    from replay.model.work.layer import LayerWork


class Outline(NamedTuple):
    """What the kernels of a layer may depend on.

    Attributes
    ----------
    num_ranks, num_experts
        GPUs of the group, and experts of all of them.
    precision
        Number types of the GEMMs and of the rows.
    is_backward
        Whether gradients flow.
    busy_experts
        Experts with rows, of the GPU that has most such; None for all of a GPU's.
    top_k
        Experts of a token.
    num_shadowed
        Experts whose weights the scheme brings to all GPUs.
    num_domains
        NVLink domains that the GPUs lie in.
    """

    num_ranks: int = 8
    num_experts: int = 256
    precision: Precision = Precision("fp8")
    is_backward: bool = False
    busy_experts: int | None = None
    top_k: int = 8
    num_shadowed: int = 0
    num_domains: int = 1

    @classmethod
    def of(cls, work: LayerWork, carried: Carried | None = None, num_domains: int = 1) -> Outline:
        """That of a layer, and of what a scheme makes of it."""
        busy = max(int((work.rows_of_expert[own] > 0).sum()) for own in work.experts_of_rank)
        return cls(
            work.num_ranks, work.num_experts, work.precision, work.is_backward, busy,
            work.expert_ids.shape[1], carried.num_shadowed if carried else 0, num_domains,
        )  # fmt: skip

    @property
    def calls(self) -> int:
        """Calls of a library that multiplies expert by expert; an expert without rows has none."""
        each = -(-self.num_experts // self.num_ranks)
        return each if self.busy_experts is None else self.busy_experts

    @property
    def tokens(self) -> tuple[Listed, ...]:
        """The kernel that casts tokens before they travel, where there is one."""
        cast = Listed(CAST_TOKENS, moves="tokens in BF16, rows that travel")
        return (cast,) if self.precision.casts_tokens else ()

    @property
    def received(self) -> tuple[Listed, ...]:
        """The kernel that casts received rows, where there is one."""
        return kernels("cast") if self.precision.casts_dispatched else ()

    @property
    def results(self) -> tuple[Listed, ...]:
        """The kernel that casts results, where there is one."""
        return kernels("unpermute") if self.precision.casts_results else ()

    @property
    def has_several_experts(self) -> bool:
        """Whether a GPU has more than one expert."""
        return self.num_experts > self.num_ranks


TYPICAL = Outline()


@dataclass(frozen=True)
class Listed:
    """Kernels of one name in a row, or a wait of the host.

    Attributes
    ----------
    name
        As the machine's verbs are given it.
    launches
        Kernels per layer and GPU; 0 for a wait of the host, which no CUDA graph can hold.
    moves
        What of device memory they read and write, where it is not in the name.
    source
        Where it is from, if it is not the scheme's own source.
    """

    name: str
    launches: int = 1
    moves: str = ""
    source: str = ""


GROUPED = Listed("gemm1", 1, "operands and results of all experts", "grouped GEMM of all experts")
ACTIVATION = Listed("activation", moves="results of the first GEMM, operands of the second")
QUANTISED = Listed(QUANTISATION, moves="what the activation wrote, operands with scales")
QUANTISED_CALL = Listed(
    QUANTISE,
    moves="rows of one expert, operands with scales",
    source="TransformerEngine pytorch/csrc/extensions/cast.cpp, one by one",
)
WGRAD = Listed("wgrad", moves="operands; the FP32 gradient, read and written")


def experts(*, is_backward: bool, quantises_apart: bool = False) -> tuple[Listed, ...]:
    """Kernels of `replay.model.compute.experts.separate_kernels`, which explains the parameters.

    Whether operands are FP8 at all is for the caller to know.
    """
    first, second = GROUPED, replace(GROUPED, name="gemm2")
    between = (ACTIVATION, *((QUANTISED,) if quantises_apart else ()))
    if is_backward:
        return second, WGRAD, *between, first, WGRAD
    return first, *between, second


def expert_calls(layer: Outline, *, quantises: bool = False) -> tuple[Listed, ...]:
    """Kernels of `replay.model.compute.calls.per_expert_kernels`, which explains the parameter."""
    quantises = quantises and layer.precision.gemm == "fp8"
    before = (replace(QUANTISED_CALL, launches=layer.calls),) if quantises else ()
    first, second, gradient = (
        Listed(name, layer.calls, source="a GEMM for each expert with rows")
        for name in ("gemm1", "gemm2", "wgrad")
    )
    listed: tuple[Listed, ...] = (*before, first, ACTIVATION, *before, second)
    if layer.is_backward:
        listed = (*before, second, gradient, ACTIVATION, *before, first, gradient)
    return tuple(one for one in listed if one.launches)


def kernels(*names: str) -> tuple[Listed, ...]:
    """Kernels of which there is nothing more to say than their names."""
    return tuple(Listed(name) for name in names)


def launched(program: Iterable[Operation]) -> list[Operation]:
    """A host's program with kernels of one name in a row as one entry."""
    found: list[Operation] = []
    for one in program:
        if found and found[-1].name == one.name and one.launches and found[-1].launches:
            found[-1] = Operation(one.name, found[-1].launches + one.launches)
        else:
            found.append(one)
    return found


def as_program(listed: Sequence[Listed]) -> list[Operation]:
    """A list as the host program that it stands for."""
    return launched(Operation(one.name, one.launches) for one in listed)
