"""From a layer that was set up to its result."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hwmodel.units import PS_PER_US
from replay.engine import GraphBuilder, schedule
from replay.experiments.base.identity import model_by_value
from replay.experiments.base.result import SchemeDescription, SystemDescription, package_version
from replay.experiments.dense.measure import directions, skew_of
from replay.experiments.dense.result import TensorResult
from replay.experiments.dense.setup import DenseSetup
from replay.measure.measures import measures
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.schemes.tp.plain import NoCommunication

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.experiments.base.experiment import ReplayWatcher
    from replay.model.arrays import Ints
    from replay.schemes.tp.base import TensorScheme


def carry_out(setup: DenseSetup, watch: ReplayWatcher) -> TensorResult:
    """Replay what was set up; an observer is called with the schedule and its machine."""
    machine, ends, timeline = replay_layers(setup, setup.scheme)
    watch.saw(timeline, machine)
    alone = replay_layers(setup, NoCommunication(sequence_parallel=setup.scheme.sequence_parallel))[2]
    found = measures(timeline.graph, ends, machine, timeline, phases_separated=False)
    up, down = directions(found)
    return TensorResult(
        run_id=setup.run_id,
        version=package_version(),
        spec=setup.spec,
        model=model_by_value(setup.shape),
        system=SystemDescription.of(setup.system),
        scheme=SchemeDescription.of(setup.scheme, setup.system),
        sequence_parallel=setup.scheme.sequence_parallel,
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


def replay_layers(setup: DenseSetup, scheme: TensorScheme) -> tuple[Machine, Ints, Timeline]:
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
