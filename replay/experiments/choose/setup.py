"""References of a search's spec, resolved, and the identity that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import hwmodel
import tracegen.models
from replay.errors import UserError
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import identity_of, model_by_value, scheme_by_value
from replay.experiments.choose import search
from replay.experiments.choose import space as spaces
from replay.experiments.choose.spec import CODE
from replay.schemes.registry import find

if TYPE_CHECKING:
    from replay.experiments.choose.search import Possible
    from replay.experiments.choose.space import Space
    from replay.experiments.choose.spec import ChooseSpec


@dataclass(frozen=True)
class ChooseSetup:
    """A spec with the space that it refers to, and what of that is possible.

    Attributes
    ----------
    possible
        Candidates on each system, with their bounds.
    """

    spec: ChooseSpec
    space: Space
    possible: list[Possible]

    @classmethod
    def of(cls, spec: ChooseSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Read the space, and count and bound its candidates.

        Parameters
        ----------
        given
            May have a `Space` as ``space``.

        Raises
        ------
        UserError
            If something that spec or space names does not exist, or the space is too large.
        """
        space = given.objects.get("space")
        if space is None and spec.space is None:
            message = "which space? Give a TOML file, or a name of `moereplay choose --list`"
            raise UserError(message)
        space = _on(space or spaces.load(str(spec.space)), spec.systems)
        return cls(spec, space, search.everywhere(space, allow_code=given.allow_code))

    @property
    def run_id(self) -> str:
        """Identity of the result: of everything that decides it."""
        schemes = [find(one.scheme, allow_code=False) for one in self.space.systems]
        entered = {
            "space": self.space.model_dump(mode="json"),
            "model": model_by_value(tracegen.models.load(self.space.model)),
            "systems": [hwmodel.load(one.system).describe() for one in self.space.systems],
            "schemes": [scheme_by_value(one) for one in schemes],
        }
        return identity_of(CODE, self.spec, entered)


def _on(space: Space, systems: list[str]) -> Space:
    """Put other systems in place of a space's; a scheme that is not given is that of the first."""
    if not systems:
        return space
    known = {where.system: where.scheme for where in space.systems}
    chosen = []
    for text in systems:
        name, _, scheme = text.partition(":")
        usual = known.get(name, space.systems[0].scheme)
        chosen.append(spaces.Where(system=name, scheme=scheme or usual))
    return space.model_copy(update={"systems": chosen})
