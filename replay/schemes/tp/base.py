"""The definition of a scheme of tensor parallelism.

A scheme says how rows of all tokens come to every GPU (`gather`) and how partial sums are added up
(`reduce`), or how these are one with the products beside them (`enter`, `leave`). Like schemes of
experts it has no clock and no randomness, and moves bytes by verbs of the machine.

The kinds of a gather's tasks are those of a dispatch, the kinds of a reduction's tasks those of a
combine: results call these phases by their own names.
"""

from __future__ import annotations

from abc import abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.work.transformer_layer import Core, Enter, Leave, Norm
from replay.schemes.base import AnyScheme
from replay.schemes.tp.kernels import TensorKernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.transformer_layer import Product, Step, TensorLayer
    from replay.schemes.tp.traffic import TensorTraffic

GATHER, REDUCE = DISPATCH, COMBINE


class TensorScheme(AnyScheme):
    """One way to move rows and sums of a layer under tensor parallelism.

    Attributes
    ----------
    sequence_parallel
        Whether a GPU owns the rows of a share of the tokens between the halves. Without it, all
        GPUs have all rows there, and `gather` moves nothing.
    traffic
        Classes of its payload (`replay.schemes.tp.traffic`).
    exact
        Options under which the payload is that of the classes to the byte, where a finite table
        makes it more otherwise.
    """

    kind = "tp"
    sequence_parallel: bool = True
    traffic: TensorTraffic
    exact: Mapping[str, Any] = MappingProxyType({})

    def refuses(self, layer: TensorLayer) -> str:
        """Say why the scheme cannot run a layer; empty if it can."""
        if self.sequence_parallel and layer.tokens % layer.num_ranks:
            return f"{layer.num_ranks} GPUs cannot own equal shares of {layer.tokens} tokens"
        return ""

    def communication_sms(self, machine: Machine) -> int:
        """SMs per GPU that do nothing but communicate, while a kernel of the scheme does."""
        return 0

    # ---- a layer ---------------------------------------------------------------------------------

    def build(self, layer: TensorLayer, machine: Machine, start: Tasks) -> Tasks:
        """Add the tasks of a layer.

        The contract (``moereplay schemes check NAME``, `replay.schemes.contract`) demands:

        - Rank r does nothing for the layer before ``start[r]``, and everything that its SMs do for
          it is over when the task returned for it is visible.
        - The payload on every port is that of the closed forms of the scheme's classes
          (`replay.schemes.tp.traffic`), to the byte. Flags, requests and packets of
          synchronisation are no payload.
        - Tasks of products have the kinds `Kind.GEMM1` (of `Enter`) and `Kind.GEMM2` (of `Leave`),
          and multiply exactly the rows of the layer; none runs before its rows are there.

        Parameters
        ----------
        machine
            Resources and transfers; its `graph` receives the tasks.
        start
            (rank,) tasks: the rows that the first step needs are in place.

        Returns
        -------
        (rank,) tasks.
        """
        kernels = TensorKernels(machine, layer, layer.own_rows if self.sequence_parallel else layer.tokens)
        return self.carry_out(kernels, layer.steps, start)

    def carry_out(self, kernels: TensorKernels, steps: tuple[Step, ...], after: Tasks) -> Tasks:
        """Carry out steps one after the other: (rank,) tasks."""
        for step in steps:
            after = self.step(kernels, step, after)
        return after

    def step(self, kernels: TensorKernels, step: Step, after: Tasks) -> Tasks:
        """Carry out one step: (rank,) tasks."""
        if isinstance(step, Norm):
            return kernels.norm(step, after)
        if isinstance(step, Core):
            return kernels.works(step.works, after)
        return (self.enter if isinstance(step, Enter) else self.leave)(kernels, step, after)

    def enter(self, kernels: TensorKernels, step: Any, after: Tasks) -> Tasks:
        """Gather rows and multiply them; backward, also make the weights' gradient: (rank,) tasks.

        Parameters
        ----------
        step
            An `Enter`.
        """
        assert isinstance(step, Enter)
        owned = self.sequence_parallel and kernels.layer.num_ranks > 1
        if owned and is_plain(step):
            done = self.gather_and_multiply(kernels, step.product, after)
        else:
            ready = kernels.works(step.before, self.gather_rows(kernels, after))
            done = kernels.product(step.product, Kind.GEMM1, ready)
        return kernels.gradient(step.product, done) if kernels.layer.is_backward else done

    def leave(self, kernels: TensorKernels, step: Any, after: Tasks) -> Tasks:
        """Multiply and add partial sums up; backward, also make the weights' gradient.

        Parameters
        ----------
        step
            A `Leave`.

        Returns
        -------
        (rank,) tasks.
        """
        assert isinstance(step, Leave)
        is_backward = kernels.layer.is_backward
        # The rows that the forward pass gathered, which the weights' gradient needs.
        ready = self.gather_rows(kernels, after) if is_backward else after
        if is_plain(step) and kernels.layer.num_ranks > 1:
            summed = self.multiply_and_reduce(kernels, step.product, ready)
        else:
            done = kernels.works(step.after, kernels.product(step.product, Kind.GEMM2, ready))
            summed = self.reduce(kernels, done) if kernels.layer.num_ranks > 1 else done
        return kernels.gradient(step.product, summed) if is_backward else summed

    def gather_rows(self, kernels: TensorKernels, after: Tasks) -> Tasks:
        """(rank,) tasks when every GPU has the rows of all tokens: `after`, if it has them."""
        alone = kernels.layer.num_ranks == 1
        return after if alone or not self.sequence_parallel else self.gather(kernels, after)

    # ---- what a scheme says ----------------------------------------------------------------------

    @abstractmethod
    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Bring the rows of all tokens to every GPU, where each of several owns some: (rank,)."""

    @abstractmethod
    def reduce(self, kernels: TensorKernels, after: Tasks) -> Tasks:
        """Add the partial sums of all GPUs up, of which there are several: (rank,) tasks.

        Every GPU gets the sums of the rows that it owns, or of all where none owns any.
        """

    def gather_and_multiply(self, kernels: TensorKernels, product: Product, after: Tasks) -> Tasks:
        """Gather rows and multiply them, by several GPUs and with nothing between: (rank,) tasks.

        A scheme overrides it in which the two are one.
        """
        return kernels.product(product, Kind.GEMM1, self.gather_rows(kernels, after))

    def multiply_and_reduce(self, kernels: TensorKernels, product: Product, after: Tasks) -> Tasks:
        """Multiply and add partial sums up, likewise: (rank,) tasks."""
        return self.reduce(kernels, kernels.product(product, Kind.GEMM2, after))

    def describe(self, system: System | None = None, trials: Sequence[Any] = ()) -> dict[str, Any]:
        """Describe the scheme with its classes of traffic and who owns rows."""
        return {
            **super().describe(system, trials),
            "sequence_parallel": self.sequence_parallel,
            "traffic": self.traffic._asdict(),
        }


def is_plain(step: Enter | Leave) -> bool:
    """Tell whether a product is one matrix, with nothing between it and its gather, or its sums."""
    around = step.before if isinstance(step, Enter) else step.after
    return step.product.groups == 1 and not around
