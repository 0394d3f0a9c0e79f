"""Outcomes of two replays of a scheme, by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from replay.experiments.layer.result import Result
from replay.experiments.layer.tables.memory import memory_of
from replay.studies.differences.any_experiment import Numbers, came_out
from replay.studies.differences.pairs import without_code
from replay.studies.differences.parts import QuantityDifference, SchemeDifference, TimePart
from replay.studies.differences.path import by_cause, by_phase, ps

if TYPE_CHECKING:
    from replay.experiments.base.result import TimedResult
    from replay.studies.differences.pairs import Pair
    from replay.studies.differences.path import Ps


LEAVING, REACHING = ", leaving GPUs", ", reaching GPUs"
"""Ways of bytes, which multicast and sums in a switch make different."""

SM_TIMES = {
    "SMs computing": "computing_us",
    "SMs copying": "copying_us",
    "SMs waiting for L2": "waiting_for_l2_us",
    "SMs waiting for HBM": "waiting_for_hbm_us",
}
"""What SMs spend time on, and the fields of `SmTime` that have it."""


def outcome(pair: Pair) -> SchemeDifference:
    """Compare the results of one scheme.

    Causes and phases are those of layers. Of others every number of the result is a quantity, the
    largest share of change first; of a list of numbers it is the mean.
    """
    then, now = pair.before, pair.after
    is_of_layers = isinstance(then, Result)
    if is_of_layers:
        quantities = compare_quantities(numbers_of(then), numbers_of(now))
    else:
        quantities = sorted(compare_quantities(came_out(then), came_out(now)), key=lambda one: -one.share_moved)
    return SchemeDifference(
        name=pair.name,
        before_us=then.headline_us,
        after_us=now.headline_us,
        change_us=(ps(now.headline_us) - ps(then.headline_us)) / 1e6,
        by_cause=_parts(by_cause(then), by_cause(now)) if is_of_layers else [],
        by_phase=_parts(by_phase(then), by_phase(now)) if is_of_layers else [],
        quantities=quantities,
    )


def is_same(pair: Pair) -> bool:
    """Tell whether all that came out is the same."""
    one, other = pair.before, pair.after
    if isinstance(one, Result) and isinstance(other, Result):
        before, after = ([without_code(of.layers), without_code(of.chain), of.totals] for of in (one, other))
        return before == after
    return came_out(one) == came_out(other)


def _parts(before: Ps, after: Ps) -> list[TimePart]:
    """Parts of both, the largest change first; those that neither has are left out."""
    parts = [
        TimePart(
            name=name,
            before_us=before.get(name, 0) / 1e6,
            after_us=after.get(name, 0) / 1e6,
            change_us=(after.get(name, 0) - before.get(name, 0)) / 1e6,
        )
        for name in {**before, **after}
        if before.get(name) or after.get(name)
    ]
    return sorted(parts, key=lambda part: -abs(part.change_us))


def compare_quantities(then: Numbers, now: Numbers) -> list[QuantityDifference]:
    """Give what is measured or counted in both, and is not the same."""
    before, after = _one_way(then, now), _one_way(now, then)
    return [
        QuantityDifference(name=name, unit=unit, before=before[name, unit], after=after[name, unit])
        for name, unit in before
        if (name, unit) in after and before[name, unit] != after[name, unit]
    ]


def _one_way(numbers: Numbers, others: Numbers) -> Numbers:
    """Numbers with one for bytes that leave GPUs and that reach them, where these are as many in both results."""
    found = {}
    for (name, unit), number in numbers.items():
        both = [(name.removesuffix(LEAVING) + way, unit) for way in (LEAVING, REACHING)]
        if name.endswith(LEAVING) and all(len({of.get(one) for one in both}) == 1 for of in (numbers, others)):
            found[name.removesuffix(LEAVING), unit] = number
        elif not (name.endswith(REACHING) and (name.removesuffix(REACHING), unit) in found):
            found[name, unit] = number
    return found


def numbers_of(result: TimedResult, phases: Mapping[str, str] = MappingProxyType({})) -> Numbers:
    """Measures and counts on the schedules of a result, each summed over all GPUs.

    Parameters
    ----------
    phases
        Words of the result's experiment for phases, where it has others.
    """
    return dict(_quantities(result, phases))


def _quantities(result: TimedResult, phases: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], float]]:
    all_of = result.schedules
    exposed = sum(one.exposed_communication_us for one in all_of)
    yield ("exposed communication, mean of the GPUs", "us"), exposed
    yield ("bound", "us"), sum(one.bounds_us.largest_us for one in all_of)
    bounds = [one.bounds_us for one in all_of]
    yield ("wire bound", "us"), sum(one.port_us if one.phases_us is None else one.phases_us for one in bounds)
    for phase in ("dispatch", "combine"):
        word = phases.get(phase, phase)
        for what, ports in (
            ("payload", [one.payload_bytes[phase] for one in all_of]),
            ("on the wires", [one.wire_bytes[phase] for one in all_of]),
        ):
            yield (f"{word} {what}{LEAVING}", "bytes"), sum(sum(port.uplink) for port in ports)
            yield (f"{word} {what}{REACHING}", "bytes"), sum(sum(port.downlink) for port in ports)
    yield from _of_sms(result)
    yield from _of_memory(result)
    counted: Counter[str] = Counter()
    for one in all_of:
        counted.update({name: sum(of) for name, of in one.mechanisms.counters.items()})
    for name, count in counted.items():
        yield (name, ""), count
    yield ("tasks", ""), sum(one.num_tasks for one in all_of)


def _of_sms(result: TimedResult) -> Iterator[tuple[tuple[str, str], float]]:
    """Time of an SM by what it does, mean over all; and SMs that only communicate, of a dense layer."""
    spent = [one.sm_time_us for one in result.schedules if one.sm_time_us is not None]
    system = getattr(result, "system", None)
    num_sms = None if system is None else system.values.get("gpu.num_sms")
    for name, field in SM_TIMES.items():
        if spent and isinstance(num_sms, int):
            yield (f"{name}, mean of the SMs", "us"), sum(_mean(getattr(one, field)) for one in spent) / num_sms
    number = getattr(result, "communication_sms", None)
    if number is not None:
        yield ("SMs that only communicate", ""), number


def _of_memory(result: TimedResult) -> Iterator[tuple[tuple[str, str], float]]:
    """Memory of the GPU that needs most: of a layer, and with the experts of all layers of the model."""
    if not isinstance(result, Result):
        return
    memory = memory_of(result)
    if memory is not None:
        yield ("memory of a layer, fullest GPU", "bytes"), max(memory.total_bytes)
    if result.room is not None:
        yield ("memory with the experts of all layers", "bytes"), result.room.needed_bytes


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(len(numbers), 1)
