"""Schemes whose kernels give their SMs back: a layer in stages, between which another may run.

An engine that alternates two micro-batches (`replay.chains.micro_batches`) runs stages of the one
while rows of the other travel. A scheme can be interleaved so if its layer is kernels that follow
one another: those that move rows have a stream and SMs of their own, or, with a hook, there are two
of them each way, and between departure and arrival no SM is held. A scheme that fuses communication
with the experts' GEMMs has nothing to give back. With a hook something else of the same layer may
run there too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Literal, Self

from replay.model.compute.weight_gradients import weight_gradient_kernels
from replay.schemes.ep.base import Scheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

Stage = Literal["send", "receive", "experts", "combine", "finish"]
STAGES: tuple[Stage, ...] = ("send", "receive", "experts", "combine", "finish")
"""Stages of a layer, in order.

send
    Until rows can leave: counts and casts; with a hook also the kernel that lets them leave.
receive
    Until the rows of all ranks are there: the dispatch; with a hook the kernel that waits for them.
experts
    Until rows can go back: permutes, GEMMs, sums of its own GPU. All but the second GEMM where rows
    leave beside it.
combine
    The combine; with a hook the kernel that lets rows leave.
finish
    What the owner does behind it; with a hook first the kernel that waits for the rows.
"""

MOVING = frozenset[Stage]({"receive", "combine"})
"""Stages that run on the communication stream, where the scheme has one."""

Stages = Generator["Ints", "Ints", "Ints"]
"""A layer being described: gives (rank,) tasks that end a stage, takes those that begin the next.

What it takes comes after what it gave. It returns the tasks that end the last stage.
"""

Releases = Literal["stream", "hook"]

Interleave = Literal["tbo", "dbo", "sbo", "dualpipe", "megatron"]
"""What an engine launches beside what; see `replay.chains.micro_batches`, and for the last two
`replay.chains.pass_pairs`, in which a forward pass runs beside a backward pass."""


def through(stages: Stages, enter: Callable[[Stage, Ints], Ints] | None = None) -> Ints:
    """Describe what is left of a layer, each stage right behind the other: (rank,) its ends.

    Parameters
    ----------
    enter
        Comes to a stage behind (rank,) tasks, and gives those that begin it; for each but the
        first. None begins them right behind these.
    """
    following = iter(STAGES[1:])
    try:
        ended = next(stages)
        while True:
            ended = stages.send(ended if enter is None else enter(next(following), ended))
    except StopIteration as stop:
        ends: Ints = stop.value
        return ends


class StagedScheme(Scheme):
    """A scheme whose layer can be interrupted between stages.

    Attributes
    ----------
    releases
        How SMs become free for another micro-batch: "stream" where the kernels that move rows run
        on a stream of their own, beside those that compute, on `Scheme.communication_sms` SMs;
        "hook" where nothing holds an SM between a kernel that sends and one that receives.
    interleaves
        Orders of launches that it has kernels for.
    """

    puts_off_weights = True
    releases: Releases = "stream"
    interleaves: frozenset[Interleave] = frozenset({"tbo", "dbo", "dualpipe", "megatron"})

    @abstractmethod
    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add the tasks of one layer, stage by stage; see `Scheme.build`."""

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add all stages, one right behind the other."""

        def enter(stage: Stage, after: Tasks) -> Ints:
            return machine.enter(stage, machine.leave(after), is_backward=work.is_backward)

        return machine.leave(through(self.stages(work, machine, enter(STAGES[0], start)), enter))

    def weight_gradients(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Add gradients of the experts' weights that a backward pass has put off.

        A scheme overrides it whose experts do not run as
        `replay.model.compute.experts.separate_kernels`.

        Parameters
        ----------
        work
            See `build`; with `puts_off_weights`.
        after
            (rank,): what they wait for, the stage "experts" of the pass among it.

        Returns
        -------
        (rank,) tasks at their end.
        """
        return weight_gradient_kernels(machine, work, after)

    def stream_sms(self, work: LayerWork, system: System) -> int:
        """SMs per GPU of its communication stream; none with a hook, which has no such stream."""
        if self.releases == "hook":
            return 0
        held = self.communication_sms(system)
        assert held is not None, "a scheme with a stream of its own states its SMs"
        return held

    def interleave(self, kind: Interleave) -> Self:
        """The scheme as an engine calls it that launches stages in such an order."""
        assert kind in self.interleaves
        return self


class ListedExchanges(StagedScheme):
    """A scheme of two exchanges, around which a stack's list may have all kernels of a layer.

    Attributes
    ----------
    lists
        Names of the lists that it can run with, which its option `stack` takes.
    """

    lists: tuple[str, ...] = ()

    @property
    @abstractmethod
    def kernel_list(self) -> str:
        """Name of the list (`replay.model.work.kernel_lists`); empty where the stages are used."""

    @abstractmethod
    def dispatch(self, work: LayerWork, machine: Machine, start: Tasks) -> Ints:
        """Add all kernels of the dispatch: (rank,) marks of the end."""

    @abstractmethod
    def combine(self, work: LayerWork, machine: Machine, start: Tasks) -> Ints:
        """Add all kernels of the combine: (rank,) marks of the end."""
