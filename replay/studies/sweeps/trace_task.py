"""A point of layers of a trace as a task, whose trace is neither read nor made to plan it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hwmodel
from replay.errors import UserError
from replay.experiments.base.spec import DEFAULT_SYSTEM
from replay.experiments.layer.experiment import EXPERIMENT
from replay.experiments.layer.setup import LayerSetup, TracedSetup, find_scheme, set_up, spec_of
from replay.schemes import Scheme
from replay.schemes.registry import COMPARED
from replay.studies.sweeps.points import GROUPS, Point, split_groups
from replay.studies.sweeps.source import TraceOrigin, generated_origin, recorded_origin

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.layer.result import Result
    from replay.schemes.outside import AllowCode
    from replay.studies.sweeps.study import Scalar
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class TracedTask:
    """One replay of layers.

    Attributes
    ----------
    source
        The trace.
    setup
        Everything else that decides the result.
    """

    source: TraceOrigin
    setup: LayerSetup

    @property
    def id(self) -> str:
        """Identity of the replay."""
        return self.setup.run_id

    @property
    def description(self) -> Mapping[str, Any]:
        """Everything that decides the result."""
        return self.setup.description

    @property
    def code(self) -> frozenset[str]:
        """SHA-256 of the file that the scheme is of, if it is of one."""
        return frozenset([self.setup.scheme.code] if self.setup.scheme.code else [])

    def run(self, trace: RoutingTrace) -> Result:
        """Replay.

        Raises
        ------
        UserError
            If scheme, system and trace do not fit together.
        """
        # The spec refers to no trace: one that lies in two files has one identity and one result.
        spec = self.setup.spec.changed(content_id=trace.content_id)
        setup = dataclasses.replace(self.setup, spec=spec)
        return EXPERIMENT.carry_out(TracedSetup.on(setup, trace))


def traced_task(point: Point, allow_code: AllowCode = False) -> TracedTask:
    """Make the task of a point of layers; parameters and errors as those of `make_task`."""
    settings, given = split_groups(point.settings)
    groups = {name: given.get(name, {}) for name in (*GROUPS, "system", *COMPARED)}
    scheme = _scheme(settings.pop("scheme", None), groups, allow_code)
    system = _system(settings.pop("system", DEFAULT_SYSTEM), groups["system"])
    if "total_tokens" in settings:
        _share_tokens(settings, system)
    spec, _, _ = spec_of(None, {**settings, "system": system, "scheme": scheme})
    if "file" in groups["trace"]:
        source = recorded_origin(groups["trace"], groups["shape"])
    else:
        source, spec = generated_origin(groups["trace"], groups["shape"], spec, system)
    task = TracedTask(source, set_up(spec, source.identity, system, scheme))
    assert task.id  # what it is made of, a placement file for one, can be read
    return task


def _scheme(name: Any, groups: Mapping[str, Mapping[str, Scalar]], allow_code: AllowCode) -> Scheme:
    chosen = find_scheme(name, allow_code=allow_code)
    for other, scheme in COMPARED.items():  # mistakes in the options of others are mistakes too
        # As text, like on the command line: a whole number will do for an option with a fraction.
        options = {key: str(value) for key, value in groups[other].items()}
        if options:
            changed = scheme.with_options(options)
            chosen = changed if scheme is chosen else chosen
    return chosen


def _system(name: str, overrides: Mapping[str, Scalar]) -> System:
    """A machine: one that comes with the package is made once, and a file may have changed."""
    if name in hwmodel.names():
        return _preset(name, tuple(sorted(overrides.items())))
    return hwmodel.load(name, overrides)


@functools.lru_cache(maxsize=64)
def _preset(name: str, overrides: tuple[tuple[str, Scalar], ...]) -> System:
    return hwmodel.load(name, dict(overrides))


def _share_tokens(settings: dict[str, Any], system: System) -> None:
    total = settings.pop("total_tokens")
    if "tokens_per_rank" in settings:
        message = "total_tokens and tokens_per_rank say the same thing: give one"
        raise UserError(message)
    ranks = settings.setdefault("ranks", system.num_gpus)
    if total % ranks:
        message = f"total_tokens = {total} cannot be shared equally by {ranks} ranks"
        raise UserError(message)
    settings["tokens_per_rank"] = total // ranks
