"""One replay of a sweep: what a point asks for, found and checked, and carrying it out.

A result is taken from an earlier sweep only where its identity says that computing it anew would
give the same bytes; see `replay.experiments.base.identity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replay.errors import RefusedError
from replay.experiments.base.experiment import EXPERIMENTS, SpecInputs
from replay.experiments.base.identity import code_identity, code_of, identity
from replay.experiments.base.scheme_experiment import SchemeExperiment
from replay.schemes.registry import EVERY, find
from replay.studies.sweeps.points import Point, split_groups
from replay.studies.sweeps.study import LAYER
from replay.studies.sweeps.trace_task import TracedTask, traced_task

if TYPE_CHECKING:
    from replay.experiments.base.experiment import AnyExperiment
    from replay.experiments.base.result import ResultBase
    from replay.experiments.base.spec import Spec
    from replay.schemes.outside import AllowCode


class Kinship:
    """Setups of points that differ in the scheme alone: the last one is kept.

    Parameters
    ----------
    key
        Equal for such points.
    """

    file = None

    def __init__(self, key: str) -> None:
        self.key = key
        self.last: Any = None

    def check(self) -> None:
        """Do nothing: no recorded trace is there to check."""

    def load(self) -> Kinship:
        """Give the holder of the setup that the first point makes and the others reuse."""
        return self


@dataclass(frozen=True)
class ExperimentTask:
    """One replay of any experiment.

    Attributes
    ----------
    experiment, spec
        What is replayed, and its settings.
    id
        Identity of the replay.
    source
        Origin that it shares with other tasks: of its trace, or of its setup.
    code
        SHA-256 of the files that its schemes are of.
    refused
        Why the scheme or the machine cannot do it; empty where they can.
    """

    experiment: str
    spec: Spec
    id: str
    source: Kinship
    code: frozenset[str]
    refused: str = ""

    @property
    def description(self) -> Mapping[str, Any]:
        """Settings of the request, in words; `id` has it by value."""
        return {
            "experiment": self.experiment,
            "settings": self.spec.settings(),
            "code": sorted(self.code),
        }

    def run(self, shared: Kinship) -> ResultBase:
        """Replay.

        Raises
        ------
        UserError
            If what was asked for does not fit together.
        """
        if self.refused:
            raise RefusedError(self.refused)
        experiment = EXPERIMENTS[self.experiment]
        setup = experiment.setup(self.spec, SpecInputs(like=shared.last, allow_code=self.code))
        if setup.run_id != self.id:  # a file that both name was another for the one before
            setup = experiment.setup(self.spec, SpecInputs(allow_code=self.code))
        shared.last = setup
        result: ResultBase = experiment.carry_out(setup)
        return result


def make_task(point: Point, allow_code: AllowCode = False) -> TracedTask | ExperimentTask:
    """Find and check everything that a point asks for, as far as possible before it runs.

    Parameters
    ----------
    point
        What is asked for.
    allow_code
        Whether a scheme's file that it names may be executed, see `replay.schemes.find`.

    Raises
    ------
    UserError
        If something named does not exist, or a value is not possible for it.
    """
    if point.experiment == LAYER:  # their traces are made of settings that no spec has
        return traced_task(point, allow_code)
    experiment = EXPERIMENTS.find(point.experiment)
    spec = spec_of(point, allow_code)
    kin = Kinship(identity({"experiment": experiment.name, "settings": _without_scheme(spec)}))
    code = _code_in(spec, allow_code)
    try:
        found = experiment.setup(spec, SpecInputs(allow_code=allow_code)).run_id
    except RefusedError as error:
        reason = str(error)
        return ExperimentTask(experiment.name, spec, _refused_id(experiment, spec, reason), kin, code, reason)
    return ExperimentTask(experiment.name, spec, found, kin, code)


def spec_of(point: Point, allow_code: AllowCode = False) -> Spec:
    """Make the spec that a point of an experiment asks for, but for layers of a trace.

    Parameters and errors as those of `make_task`.
    """
    experiment = EXPERIMENTS.find(point.experiment)
    settings, options = split_groups(point.settings)
    if "system" in options:
        settings["overrides"] = options.pop("system")
    for other, given in options.items():  # mistakes in the options of others are mistakes too
        EVERY[other].with_options({name: str(value) for name, value in given.items()})
    scheme = settings.pop("scheme", None)
    spec = experiment.spec(**settings)
    if not isinstance(experiment, SchemeExperiment):
        return spec
    reference = experiment.reference(spec) if scheme is None else str(scheme)
    for one in experiment.schemes_of(reference):
        find(one, None, allow_code=allow_code)
    made: Spec = experiment.under(spec, reference, options)[1]
    return made


def _without_scheme(spec: Spec) -> dict[str, Any]:
    """Settings that schemes do not decide."""
    own = {*spec.OPTIONS_OF, *spec.OPTIONS_OF.values()}
    return spec.model_dump(mode="json", exclude=own)


def _code_in(spec: Spec, allow_code: AllowCode) -> frozenset[str]:
    """SHA-256 of the files that its schemes are of."""
    values = spec.model_dump(include=set(spec.OPTIONS_OF))
    named = [str(one) for one in values.values() if one]
    codes = [find(one, None, allow_code=allow_code).code for one in named]
    return frozenset(one for one in codes if one)


def _refused_id(experiment: AnyExperiment, spec: Spec, reason: str) -> str:
    """Identity of a refusal, which holds its reason: what refuses is asked each time."""
    rooms = tuple(experiment.code)
    return identity(
        {
            "code": [code_identity(), code_of(rooms)],
            "experiment": experiment.name,
            "settings": spec.model_dump(mode="json"),
            "refused": reason,
        }
    )
