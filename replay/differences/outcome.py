"""What came out of two replays of a scheme, by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from replay.differences.parts import Outcome, Part, Quantity
from replay.machine.kinds import KIND_NAMES, KINDS, Kind, phase_of

if TYPE_CHECKING:
    from replay.differences.pairs import Pair
    from replay.measure.parts import PortBytes
    from replay.run.result import Result

LAUNCHES = "launches"
"""Where the critical path's time is that belongs to no phase: hosts, and gaps between kernels."""

Ps = dict[str, int]


def outcome(pair: Pair) -> Outcome:
    """Compare the results of one scheme."""
    before, after = pair.before.totals.makespan_us, pair.after.totals.makespan_us
    return Outcome(
        name=pair.name,
        before_us=before,
        after_us=after,
        change_us=(_ps(after) - _ps(before)) / 1e6,
        by_cause=_parts(_by_cause(pair.before), _by_cause(pair.after)),
        by_phase=_parts(_by_phase(pair.before), _by_phase(pair.after)),
        quantities=list(_quantities(pair.before, pair.after)),
    )


def _ps(us: float) -> int:
    """Whole picoseconds, which sums of microseconds lose in their last digit."""
    return round(us * 1e6)


def _by_cause(result: Result) -> Ps:
    """Causes of the critical path, where queueing is told apart by what was served meanwhile."""
    spent: Counter[str] = Counter()
    for measures in result.measured:
        path = measures.critical_path
        spent.update({cause: _ps(time) for cause, time in path.by_cause_us.items()})
        for kind, time in path.queueing_behind_us.items():
            spent[f"queueing behind {_role(kind)}"] += _ps(time)
            spent["queueing"] -= _ps(time)
    return spent


def _by_phase(result: Result) -> Ps:
    spent: Counter[str] = Counter()
    for measures in result.measured:
        for name, times in measures.critical_path.by_kind_us.items():
            spent[_phase(name)] += sum(_ps(time) for time in times.values())
    return spent


def _phase(kind: str) -> str:
    """Phase of a kind by its name; older versions had kinds that are not there any more."""
    if kind not in KIND_NAMES:
        return kind
    return phase_of(Kind(KIND_NAMES.index(kind))) or LAUNCHES


def _role(kind: str) -> str:
    """What the service of a kind is, by its name."""
    return KINDS[Kind(KIND_NAMES.index(kind))].role if kind in KIND_NAMES else kind


def _parts(before: Ps, after: Ps) -> list[Part]:
    """Parts of both, the largest change first; those that neither has are left out."""
    parts = [
        Part(
            name=name,
            before_us=before.get(name, 0) / 1e6,
            after_us=after.get(name, 0) / 1e6,
            change_us=(after.get(name, 0) - before.get(name, 0)) / 1e6,
        )
        for name in {**before, **after}
        if before.get(name) or after.get(name)
    ]
    return sorted(parts, key=lambda part: -abs(part.change_us))


def _quantities(before: Result, after: Result) -> Iterator[Quantity]:
    """What is measured or counted in both, and is not the same."""
    then, now = dict(_measured(before)), dict(_measured(after))
    for name in then:
        if name in now and then[name] != now[name]:
            yield Quantity(name=name[0], unit=name[1], before=then[name], after=now[name])


def _measured(result: Result) -> Iterator[tuple[tuple[str, str], float]]:
    """Name and unit of each quantity, and its sum over the parts of a result and the GPUs."""
    all_of = result.measured
    yield ("exposed communication, mean of the GPUs", "us"), result.totals.exposed_communication_us
    yield ("bound", "us"), result.totals.bound_us
    for phase in ("dispatch", "combine"):
        yield (f"{phase} payload", "bytes"), _bytes(one.payload_bytes[phase] for one in all_of)
        yield (f"{phase} on the wires", "bytes"), _bytes(one.wire_bytes[phase] for one in all_of)
    spent = [one.sm_time_us for one in all_of if one.sm_time_us is not None]
    for name in ("computing", "copying", "waiting_for_l2", "waiting_for_hbm"):
        if spent:
            time = sum(sum(getattr(one, f"{name}_us")) for one in spent)
            yield (f"SMs {name.replace('_', ' ').replace(' l2', ' L2').replace(' hbm', ' HBM')}",
                   "us"), time  # fmt: skip
    if result.room is not None:
        yield ("memory of the GPU that needs most", "bytes"), result.room.needed_bytes
    counted: Counter[str] = Counter()
    for one in all_of:
        counted.update({name: sum(of) for name, of in one.mechanisms.counters.items()})
    for name, count in counted.items():
        yield (name, ""), count
    yield ("tasks", ""), sum(one.num_tasks for one in all_of)


def _bytes(ports: Iterable[PortBytes]) -> int:
    """Bytes that left all GPUs."""
    return sum(sum(port.uplink) for port in ports)
