"""References of a collective's spec, resolved, and the identity that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import hwmodel
from hwmodel.units import BYTES_PER_GB
from replay.engine import GraphBuilder
from replay.errors import UserError
from replay.experiments.base.identity import identity_of
from replay.experiments.collective.spec import CODE, MOST_RANKS_OF_ENGINES, USUAL, size_text
from replay.model.collectives import library
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.collective.spec import CollectiveSpec
    from replay.model.collectives.algorithm import Algorithm


@dataclass(frozen=True)
class CollectiveSetup:
    """A spec with what its references lead to.

    Attributes
    ----------
    num_ranks
        GPUs that take part.
    """

    spec: CollectiveSpec
    system: System
    algorithms: tuple[Algorithm, ...]
    num_ranks: int

    @classmethod
    def of(cls, spec: CollectiveSpec) -> Self:
        """Follow the references of a spec.

        Raises
        ------
        UserError
            If a name is unknown, a buffer does not fit a GPU's memory, or an algorithm has no
            kernel for this on such a machine.
        """
        system = hwmodel.load(spec.system, dict(spec.overrides))
        num_ranks = system.num_gpus if spec.ranks is None else spec.ranks
        if "algorithms" not in spec.model_fields_set and num_ranks <= MOST_RANKS_OF_ENGINES:
            able = [name for name in USUAL if not library.find(name).lacks(system)]
            if able and able[0] not in spec.algorithms:
                spec = spec.changed(algorithms=able[:1])
        algorithms = tuple(library.find(name) for name in spec.algorithms)
        if not 2 <= num_ranks <= system.num_gpus:
            message = f"{num_ranks} ranks; possible on {system.name}: 2 to {system.num_gpus}"
            raise UserError(message)
        for size in spec.num_bytes:
            if 2 * size > system.hbm.num_bytes:
                most = size_text(1 << (system.hbm.num_bytes // 2).bit_length() - 1)
                message = (
                    f"two buffers of {size_text(size)}B are more than the {system.hbm.num_bytes / BYTES_PER_GB:,.1f} "
                    f"GB of a GPU of {system.name}; what fits: up to {most}B (--bytes {most})"
                )
                raise UserError(message)
        setup = cls(spec, system, algorithms, num_ranks)
        machine = setup.machine()
        for algorithm in algorithms:
            if missing := algorithm.lacks(system):
                runs = [
                    name
                    for name, one in library.ALGORITHMS.items()
                    if not one.lacks(system) and spec.op in one.collectives
                ]
                message = f"algorithm {algorithm.name} needs {' and '.join(missing)}, which {system.name} does not have"
                raise UserError(f"{message}; there run: {', '.join(runs)}")
            algorithm.check(machine, spec.op, blocks=spec.blocks)
        return setup

    def machine(self) -> Machine:
        """Make the machine, with nothing to do."""
        return Machine(self.system, GraphBuilder(KIND_NAMES), self.num_ranks)

    @property
    def run_id(self) -> str:
        """Identity of the result: of everything that decides it."""
        entered = {"system": self.system.describe()}
        return identity_of(CODE, self.spec, entered, bytes=self.spec.num_bytes, ranks=self.num_ranks)
