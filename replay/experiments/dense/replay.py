"""From a spec to a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replay.engine import GraphBuilder, schedule
from replay.errors import UserError, unknown
from replay.experiments.dense.fit import check_fit
from replay.experiments.dense.measure import directions, skew_of
from replay.experiments.dense.result import TensorComparison, TensorResult
from replay.experiments.dense.setup import LayerRefusedError, Setup, sizes_of
from replay.experiments.dense.spec import TensorSpec
from replay.experiments.layer.result import SystemDescription
from replay.measure.measured import measures
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.schemes.registry import TENSOR_SCHEMES, find
from replay.schemes.tp.plain import NoCommunication

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.model.machine.machine import Ints
    from replay.schemes.outside import AllowCode
    from replay.schemes.tp.base import TensorScheme

BASELINE = "sp-nvls"
PS_PER_US = 1_000_000


def run(
    spec: TensorSpec | None = None,
    *,
    observe: Callable[[Timeline, Machine], object] | None = None,
    report: Callable[[str], object] | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> TensorResult:
    """Replay a layer under one scheme.

    Parameters
    ----------
    spec
        The settings; None takes the defaults.
    observe
        Called with the schedule and its machine.
    report
        Told in a line what a long replay takes.
    allow_code
        Whether a file that `spec` names as its scheme may be executed; one in `settings` is.
    settings
        Fields of `TensorSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    made = (spec or TensorSpec()).changed(**settings)
    setup = Setup.of(made, allow_code=allow_code or "scheme" in settings)
    check_fit([setup], _scheduled, report)
    return carry_out(setup, observe=observe)


def _scheduled(setup: Setup) -> Timeline:
    return replayed(setup, setup.scheme)[2]


def carry_out(
    setup: Setup, *, observe: Callable[[Timeline, Machine], object] | None = None
) -> TensorResult:
    """Replay what was set up."""
    machine, ends, timeline = replayed(setup, setup.scheme)
    if observe is not None:
        observe(timeline, machine)
    alone = replayed(setup, NoCommunication(sequence_parallel=setup.scheme.sequence_parallel))[2]
    found = measures(timeline.graph, ends, machine, timeline, phases_separated=False)
    values = setup.system.describe()
    name, num_gpus = values.pop("name"), values.pop("num_gpus")
    up, down = directions(found)
    return TensorResult(
        run_id=setup.run_id,
        version=_version(),
        spec=setup.spec,
        model=sizes_of(setup.shape),
        system=SystemDescription(name=name, num_gpus=num_gpus, values=values),
        scheme=setup.scheme.describe(setup.system),
        tp=setup.num_ranks,
        tokens=setup.sizes.tokens,
        sequence=setup.sizes.sequence,
        time_us=found.makespan_us,
        layer_us=found.makespan_us / setup.spec.layers,
        products_us=alone.makespan_ps / PS_PER_US,
        exposed_us=found.exposed_communication_us,
        up=up,
        down=down,
        communication_sms=setup.scheme.communication_sms(machine),
        skew=skew_of(timeline, machine),
        measures=found,
    )


def replayed(setup: Setup, scheme: TensorScheme) -> tuple[Machine, Ints, Timeline]:
    """Schedule the layers of all passes, one behind the other.

    Returns
    -------
    The machine, (rank,) the last task of each, and the schedule.
    """
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(setup.system, graph, setup.num_ranks, launch=setup.host_launch)
    at = machine.mark(machine.ranks)
    for layer in setup.layers:
        in_a_row = dataclasses.replace(layer, steps=layer.steps * setup.spec.layers)
        at = scheme.build(in_a_row, machine, at)
    return machine, at, schedule(graph.build())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("moereplay")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def compare(
    spec: TensorSpec | None = None,
    schemes: Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[], object] | None = None,
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> TensorComparison:
    """Replay a layer under several schemes.

    Parameters
    ----------
    spec
        The settings; its scheme and options are not heeded.
    schemes
        Names, or ``path/to/file.py:Name``, which executes the file; None takes every scheme that
        the system supports and that can run the layer.
    baseline
        Scheme that speed-ups are given over; None takes sp-nvls, else the first.
    options
        Options by name, by name of the scheme.
    progress
        Called for every scheme.
    report
        Told in a line what long replays take.
    settings
        Fields of `TensorSpec` by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    shared = (spec or TensorSpec()).changed(**settings)
    asked = {find(one, "tp").name: one for one in schemes or TENSOR_SCHEMES}
    names = list(asked)
    for name in options or {}:
        if name not in names:
            raise unknown("scheme with options", name, names)
    if baseline is not None and baseline not in names:
        raise unknown("baseline", baseline, names)
    setups: list[Setup] = []
    left_out: dict[str, str] = {}
    for name, reference in asked.items():
        own = dict((options or {}).get(name, {}))
        try:
            setups.append(Setup.of(shared.changed(scheme=reference, options=own)))
        except LayerRefusedError as error:
            if schemes or name == baseline:
                raise
            left_out[name] = error.reason
    if not setups:
        first = next(iter(left_out))
        message = f"no scheme can run this; {first}: {left_out[first]}"
        raise UserError(message)
    check_fit(setups, _scheduled, report)
    results = []
    for setup in setups:
        results.append(carry_out(setup))
        if progress is not None:
            progress()
    ran = [setup.scheme.name for setup in setups]
    return TensorComparison(
        baseline=baseline or (BASELINE if BASELINE in ran else ran[0]),
        results=results,
        left_out=left_out,
    )
