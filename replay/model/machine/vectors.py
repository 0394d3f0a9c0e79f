"""Vector cores of an NPU: they move and add rows, and take nothing from what multiplies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.errors import UserError
from replay.model.machine.resources import ResourceClass
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from hwmodel import System
    from hwmodel.ai_core import AiCore
    from replay.model.arrays import Ints
    from replay.model.machine.resources import IntsLike, Resources


class Vectors:
    """The vector cores of every NPU of one system."""

    def __init__(self, system: System, resources: Resources) -> None:
        self._system, self._resources = system, resources

    @property
    def count(self) -> int:
        """Vector cores of an NPU.

        Raises
        ------
        UserError
            If the system's cores have none.
        """
        return self._system.sm.num_sms * self._cores.vector_cores

    def pool(self) -> Ints:
        """All vector cores of an NPU as servers of one queue: (rank,) resources.

        Raises
        ------
        UserError
            If the system's cores have none.
        """
        servers = self.count

        def make() -> Ints:
            return self._resources.each("vector cores", ResourceClass.VECTOR, servers=servers)

        return self._resources.once("vector cores", servers, make)

    def move(self, nbytes: IntsLike, *, quantised: bool = False) -> Time:
        """One vector core's loads of `nbytes`, and stores of them to peers or into its own memory.

        Parameters
        ----------
        quantised
            Whether it casts the row on its way, for which loading and storing wait.
        """
        time = Time(self._system.sm.push_ps(nbytes) * self._cores.vector_cores)
        return time + Time(self._cores.quantised_row_ps, ("ai_core.quantised_row_us",)) if quantised else time

    def add(self, nbytes_in: IntsLike, nbytes_out: IntsLike) -> Time:
        """One vector core's additions: loads of rows of `nbytes_in` in all, writes of `nbytes_out` of sums."""
        return Time(self._system.sm.reduce_ps(nbytes_in, nbytes_out) * self._cores.vector_cores)

    def sync_all(self) -> Time:
        """Meeting of all vector cores of an NPU inside a kernel."""
        return Time(self._cores.sync_all_ps, ("ai_core.sync_all_us",))

    @property
    def _cores(self) -> AiCore:
        cores = self._system.ai_core
        if cores is None:
            message = f"system {self._system.name!r} has no vector cores"
            raise UserError(message)
        return cores
