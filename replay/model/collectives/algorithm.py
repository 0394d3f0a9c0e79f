"""Algorithms of a library: the collectives that each runs, what it needs, how it is added.

A collective is one kernel on every rank. Its thread blocks have an SM each; what a block copies,
adds and stores limits the rate, so that few blocks are slow and more than fill the links change
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from replay.errors import UserError, unknown
from replay.model.machine.kinds import DISPATCH

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split

Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


@dataclass(frozen=True)
class CollectiveCall:
    """One collective, as a kernel is asked for it.

    Attributes
    ----------
    machine, kinds
        Where its tasks are added, and their kinds.
    collective, nbytes
        What is run, and its bytes as nccl-tests counts them: of the larger of a rank's two buffers.
    blocks
        Thread blocks of each rank; None is what the software takes.
    payload
        Whether the bytes count as payload, and not as what comes with it.
    beside
        SMs that are held at the same time, where the kernel runs beside others: it takes an SM for
        each of its blocks out of them for as long as it runs, and shares device memory with the
        others. None for a kernel that runs alone.
    """

    machine: Machine
    kinds: PhaseKinds
    collective: Collective
    nbytes: int
    blocks: int | None = None
    payload: bool = False
    beside: Split | None = None

    @property
    def share(self) -> int:
        """Bytes of each rank's share of the buffer, rounded up."""
        return -(-self.nbytes // self.machine.num_ranks)

    @property
    def carries_payload(self) -> bool:
        """Tell whether what is sent is payload; a byte that is passed on for none is not."""
        return self.payload and self.nbytes > 0


@dataclass(frozen=True)
class Way:
    """One way to run a collective.

    Attributes
    ----------
    name
        Algorithm and protocol.
    blocks
        Thread blocks of each rank.
    estimate_ps
        Its time by formula, from the start of the kernel; 0 of an algorithm with one way.
    build
        Adds its tasks from (rank,) begins: (rank,) the last task of every rank.
    """

    name: str
    blocks: int
    estimate_ps: int
    build: Callable[[Ints], Ints] = field(repr=False)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that a scheme, or a user, can name.

    Attributes
    ----------
    name
        As it is asked for.
    collectives
        What it runs.
    summary
        One line for people.
    source
        Where the kernels are published.
    ways
        Ways to run a call that `check` does not refuse, of which the software takes that which its
        formula says is the quickest.
    needs
        Capabilities without which it has no kernel, by name.
    least_ranks
        Ranks below which it has no kernel.
    crosses
        What it runs over several NVLink domains, where the software says how many blocks.
    """

    name: str
    collectives: tuple[Collective, ...]
    summary: str
    source: str
    ways: Callable[[CollectiveCall], list[Way]] = field(repr=False)
    needs: tuple[str, ...] = ()
    least_ranks: int = 1
    crosses: tuple[Collective, ...] = ()

    def build(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        collective: Collective,
        nbytes: int,
        begun: Tasks,
        *,
        blocks: int | None = None,
        payload: bool = False,
        beside: Split | None = None,
    ) -> Tasks:
        """Add the tasks of one kernel: (rank,) the last task of every rank.

        Parameters
        ----------
        begun
            (rank,): when each rank's kernel begins. The others are those of `CollectiveCall`.

        Raises
        ------
        UserError
            If it has no kernel for this on such a machine, or the GPU has fewer SMs than blocks.
        """
        self.check(machine, collective, blocks=blocks, beside=beside)
        call = CollectiveCall(machine, kinds, collective, nbytes, blocks, payload, beside)
        return _quickest(self.ways(call)).build(begun)

    def lacks(self, system: System) -> list[str]:
        """Capabilities that it needs and a system does not have."""
        offered = {capability.value for capability in system.capabilities}
        return [need for need in self.needs if need not in offered]

    def check(
        self,
        machine: Machine,
        collective: Collective,
        *,
        blocks: int | None = None,
        beside: Split | None = None,
    ) -> None:
        """Refuse what it has no kernel for; the parameters are those of `build`.

        Raises
        ------
        UserError
            See `build`.
        """
        system, who = machine.system, f"algorithm {self.name}"
        if collective not in self.collectives:
            raise unknown(f"collective of {who}", collective, self.collectives)
        if missing := self.lacks(system):
            message = f"{who} needs {' and '.join(missing)}, which {system.name} does not have"
            raise UserError(message)
        if machine.num_ranks < self.least_ranks:
            message = f"{who} needs {self.least_ranks} ranks or more, not {machine.num_ranks}"
            raise UserError(message)
        if machine.num_domains > 1:
            if collective not in self.crosses:
                message = f"{who} has no {collective} over several NVLink domains"
                raise UserError(f"{message}; {machine.num_domains} are in use")
            if blocks is not None or beside is not None:
                message = f"{who} has as many blocks as network cards say over several domains"
                raise UserError(f"{message}, and is not modelled beside other kernels there")
        if blocks is not None and not 1 <= blocks <= machine.sms.count:
            message = f"{who}: {blocks} thread blocks; possible: 1 to {machine.sms.count}, "
            raise UserError(f"{message}one an SM")

    def way(self, machine: Machine, collective: Collective, nbytes: int, blocks: int | None = None) -> Way:
        """The way that is taken, such as ``"ring LL128"``, where `blocks` are asked for or none."""
        return _quickest(self.ways(CollectiveCall(machine, DISPATCH, collective, nbytes, blocks)))


def _quickest(ways: list[Way]) -> Way:
    """The way that takes the least time by its formula; the first of equals."""
    return min(ways, key=lambda way: way.estimate_ps)
