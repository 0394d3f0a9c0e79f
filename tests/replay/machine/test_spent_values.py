"""Values of a system that times of tasks are made of: each task whose time a value changes names it."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, get_args

import numpy as np
import pytest
from tiers import mostly_extended

from hwmodel import System
from hwmodel.specs import SystemSpec
from replay.engine import GraphBuilder, TaskGraph
from replay.experiments.base.names import UNREAL
from replay.measure.origins import OVERHEAD, UNSENT
from replay.model.machine.host import UNSTAGED, Launch
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.notes import SpentValues
from replay.model.machine.times import OWN, Time
from replay.model.work.layer import LayerWork
from replay.schemes import SCHEMES, find
from replay.schemes.contract.case import Case
from replay.schemes.contract.layers import ACROSS, LAYERS

SECTIONS = ("overheads", "nccl", "ai_core")
UNTOLD = {
    "nccl.ll_channel_GB_per_s": "a rate of bytes",
    "nccl.ll128_channel_GB_per_s": "a rate of bytes",
    "nccl.copy_GB_per_s": "a rate of bytes",
    "nccl.ring_channels": "a count, by which tasks are laid out",
    "nccl.nvls_channels": "a count, by which tasks are laid out",
    "nccl.pair_channels": "a count, by which tasks are laid out",
    "ai_core.vector_cores": "a count, by which tasks are laid out",
    "ai_core.l0c_bytes": "a size, by which tiles are laid out",
    "ai_core.quantised_row_us": "work of a vector core on rows, which is copying",
    "ai_core.num_reads": "of kernels that multiply",
    "ai_core.read_bytes": "of kernels that multiply",
    "overheads.copy_engine_start_us": "copying: the engine is busy; of tensor parallelism alone",
    "nccl.nvls_start_us": "of collectives in the switch, of tensor parallelism and alone",
    "nccl.simple_start_us": "a ring's of tensor parallelism and of collectives alone, as nccl.ll_start_us",
}
"""Values that no overhead and no latency of a kernel names, with the reason."""


TOGETHER = ("cann-ep", "deepep", "deepep-ll", "nccl-alltoall", "megatron-allgather")
"""Schemes that name all others; each of the rest is examined by itself."""
MORE = 1.001
"""Factor by which a value is moved: not so far that another protocol is the faster one."""


class Told(NamedTuple):
    """A graph, and the values that its tasks name."""

    graph: TaskGraph
    spent: list[SpentValues]

    def values(self, task: int, cause: str) -> tuple[str, ...]:
        """Values of a task's service or latency."""
        for one in self.spent:
            if one.first <= task < one.past:
                return one.latency if cause == "latency" else one.service
        return ()

    def every(self) -> set[str]:
        """All values that any task names."""
        return {value for one in self.spent for value in (*one.latency, *one.service)}


def told(case: Case, work: LayerWork, system: System, launch: Launch | None) -> Told:
    """Lay a layer out on a machine."""
    machine = Machine(system, GraphBuilder(KIND_NAMES), work.num_ranks, case.scheme.uplinks, launch)
    begun = machine.enter(UNSTAGED, machine.mark(machine.ranks), is_backward=False)
    case.scheme.build(work, machine, begun)
    return Told(machine.graph.build(), machine.notes.spent)


def keys(system: System) -> list[str]:
    """Values of what is examined that a system has."""
    return [key for key in system.spec.present() if key.partition(".")[0] in SECTIONS]


def moved(system: System, *moving: str) -> System:
    """The same system with values of other sizes, or where one is none with it."""
    values = system.spec.model_dump()
    for key in moving:
        section, _, leaf = key.partition(".")
        entry = values[section][leaf]
        values[section][leaf] = entry | {"value": type(entry["value"])(entry["value"] * MORE or 100), "spread": "held"}
    return System.from_spec(SystemSpec.model_validate(values), system.num_gpus)


def cases(name: str) -> list[tuple[Case, LayerWork]]:
    """A layer within a node and one of several, where the scheme takes them."""
    scheme = find(name)
    if scheme.is_tuned(None):
        scheme = scheme.with_options({})
    inside, across = LAYERS["zipf 8 ranks"](), ACROSS["2 domains of 8"]
    made = [Case(scheme, "zipf 8 ranks", inside), Case(scheme, "2 domains of 8", across.make(), across.domain_size)]
    return [(case, case.work) for case in made if not case.refusal]


@cache
def named_by(name: str) -> frozenset[str]:
    """Values that overhead and latencies of a scheme name, each task examined with every value.

    Those that no task names are moved together, and must change none; the others one by one. Schemes that
    name all values together have both layers launched in both ways, all others each in one.
    """
    found: set[str] = set()
    for place, (case, work) in enumerate(cases(name)):
        for launch in get_args(Launch) if name in TOGETHER else get_args(Launch)[place : place + 1]:
            before = told(case, work, case.system, launch)
            told_of = [key for key in keys(case.system) if key not in UNTOLD or "_us" in key or "_ns" in key]
            named = before.every()
            unnamed = [key for key in told_of if key not in named]
            after = told(case, work, moved(case.system, *unnamed), launch)
            if after.graph.num_tasks == before.graph.num_tasks and not changed(before, after):
                told_of = [key for key in told_of if key in named]
            for key in told_of:
                after = told(case, work, moved(case.system, key), launch)
                if after.graph.num_tasks != before.graph.num_tasks:
                    continue  # sizes were chosen by it
                found |= {key} if examine(before, after, key) else set()
    return frozenset(found)


def examine(before: Told, after: Told, key: str) -> bool:
    """Tell whether a value changes times, each of which must name it; one named alone is in proportion."""
    found = changed(before, after)
    for task, cause, then, now in found:
        both = [one.values(task, cause) for one in (before, after)]
        assert any(key in values for values in both), f"{cause} of task {task} is of {both}"
        if both == [(key,)] * 2:  # and no other protocol was chosen by it
            assert now / then == pytest.approx(MORE, rel=1e-5), (task, cause)
    return bool(found)


def changed(before: Told, after: Told) -> list[tuple[int, str, int, int]]:
    """Tasks whose overhead or latency another machine changes, with both times."""
    found: list[tuple[int, str, int, int]] = []
    for cause, kinds in (("duration", OVERHEAD), ("latency", UNSENT)):
        then, now = (getattr(one.graph, f"{cause}_ps") for one in (before, after))
        chosen = np.isin(before.graph.kind, [KIND_NAMES.index(kind) for kind in kinds])
        tasks = np.flatnonzero(chosen & (then != now))
        found += [(task, cause, int(then[task]), int(now[task])) for task in tasks.tolist()]
    return found


@pytest.mark.parametrize("name", mostly_extended(SCHEMES, kept=("deepep", "nccl-alltoall")))
def test_a_task_whose_time_a_value_changes_names_it(name: str) -> None:
    """A new cost without its value would be a hidden consumer."""
    assert bool(named_by(name)) is (name not in UNREAL)


@pytest.mark.extended
def test_every_value_of_software_is_named_or_exempt_with_a_reason() -> None:
    every = {key for name in TOGETHER for case, _ in cases(name) for key in keys(case.system)}
    named = set().union(*(named_by(name) for name in TOGETHER))
    assert every - named == UNTOLD.keys() & every
    assert UNTOLD.keys() <= every


def test_a_time_is_of_the_values_that_it_adds_up() -> None:
    one, other, own = Time(2, ("a.x",)), Time(3, ("a.y",)), Time(5)
    assert (one + other).of == ("a.x", "a.y") and (one + one).of == ("a.x",)
    assert (one + own).of == ("a.x", OWN) and (one + Time(0)).of == ("a.x",) and (own + own).of == ()
    assert (one * 3).of == one.shared_by(2).of == ("a.x",)
    either = np.array([True, False])
    assert Time.where(either, one, other).of == Time.longer(one, other).of == ("a.x", "a.y")
    assert not Time.from_keys(0, "a.x").of and Time.from_keys(1, "a.x").of == ("a.x",)
