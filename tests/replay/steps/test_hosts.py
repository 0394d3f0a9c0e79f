"""What hosts cost in a part of a step: none at no cost, and nothing else but their cost."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from loops import every
from small_shape import small_shape

import hwmodel
from replay.measure.activity import Activity
from replay.model.arrays import Ints
from replay.model.machine.host import OUTSIDE, Calls, Launch, StageCalls
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.proxies import locked_adds
from replay.model.machine.times import Time
from replay.model.work.stacks import Stack
from replay.steps import layer_passes
from replay.steps.layer_passes import LayerPasses, with_hosts
from replay.steps.plan import ParallelPlan
from replay.steps.replays import StepReplays
from replay.steps.stretches import Stretch, replay_stretch
from replay.steps.times import Cause, PassTime, PassTimes

RANKS, TOKENS = 4, 64
SHAPE = small_shape(num_layers=2, dense_layers=(0,), dense_intermediate=2048, num_kv_heads=8)
FREE = {f"overheads.{name}_us": 0.0 for name in ("launch", "graph_launch", "host_sync", "poll_pinned")}
SCHEMES = ("nccl-alltoall", "deepep", "dysharp")


def replayed(
    scheme: str = "nccl-alltoall",
    launch: Launch | None = "eager",
    *,
    overrides: Any = None,
    **settings: Any,
) -> list[PassTimes]:
    """Passes over a dense layer and over one with experts."""
    system = hwmodel.load("dgx-h100", overrides or {})
    plan = ParallelPlan(dp=RANKS, ep=RANKS)
    made = StepReplays(SHAPE, system, plan, TOKENS, "bf16", layers=1)
    ready, links = made._prepare(scheme)
    shared = made._shared_times
    passes = LayerPasses(system, ready.scheme, launch, shared.parts, shared.context, **settings)
    return [passes.dense(), passes.moe(links[0, False, 0], links[0, True, 0])]


def parts(layers: list[PassTimes]) -> dict[tuple[int, str], PassTime]:
    found = {}
    for number, layer in enumerate(layers):
        for field in dataclasses.fields(layer):
            one = getattr(layer, field.name)
            if one is not None:
                found[number, field.name] = one
    return found


def host_ps(one: PassTime) -> int:
    return int(np.sum(one.causes.get("host", 0)))


@pytest.mark.parametrize("launch", ["eager", pytest.param("graph", marks=pytest.mark.extended)])
@every("scheme", SCHEMES)
def test_a_part_is_that_of_free_hosts_and_what_hosts_cost(scheme: str, launch: Launch) -> None:
    """The twin is a machine whose launches and waits cost nothing."""
    settings: dict[str, Any] = {"splits_backward": True, "recompute": "selective"}
    if scheme != "dysharp":
        settings["beside"] = "dualpipe"
    slow = parts(replayed(scheme, launch, **settings))
    free = parts(replayed(scheme, launch, overrides=FREE, **settings))
    assert slow.keys() == free.keys()
    assert any(host_ps(one) for one in slow.values())
    for which, one in slow.items():
        twin = free[which]
        assert host_ps(twin) == 0
        host = one.causes.get("host", 0)
        assert (one.own + one.met - host).tolist() == (twin.own + twin.met).tolist(), which
        for cause, times in one.causes.items():
            if cause != "host":
                assert times.tolist() == twin.causes[cause].tolist(), (which, cause)


def test_kernels_that_were_launched_long_ago_cost_no_host() -> None:
    assert not any(host_ps(one) for one in parts(replayed(launch=None)).values())


def test_the_host_s_part_grows_with_the_cost_of_a_launch() -> None:
    costs = [
        sum(map(host_ps, parts(replayed(overrides={"overheads.launch_us": each})).values()))
        for each in (0.0, 4.5, 20.0, 60.0)
    ]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    # Launches of 60 us are longer than any kernel here: a host is behind in all of a pass.
    assert costs[3] - costs[2] > 10 * RANKS * 40e6


def test_what_hosts_cost_is_idle_time() -> None:
    """Kernels run for as long as under free hosts, but for waits for GPUs that come otherwise."""
    slow = parts(replayed(overrides={"overheads.launch_us": 60.0}))
    free = parts(replayed(overrides=FREE))
    for which, one in slow.items():
        idle = one.own + one.met - one.activity.active
        assert (one.activity.active <= one.own + one.met).all()
        others = free[which].own + free[which].met - free[which].activity.active
        host = one.causes.get("host", 0)
        assert (np.abs(idle - others - host) <= 0.01 * host).all(), which


def test_a_stack_s_host_is_paid_by_layers_and_ends_and_its_kernels_are_not() -> None:
    """On a host of half the speed, all that differs is the host's part."""
    found = []
    for speed in (1.0, 0.5):
        system = hwmodel.load("dgx-h100", {"host.speed": speed})
        stack = Stack.of("megatron-tuned", system)
        shape = SHAPE.model_copy(update={"vocab": 32_000})
        made = StepReplays(
            shape, system, ParallelPlan(dp=RANKS, ep=RANKS), TOKENS, "bf16", layers=1, stack=stack
        ).under("nccl-alltoall")
        found.append(parts([made.head, *made.layers[0]]))
    for which, one in found[0].items():
        other = found[1][which]
        assert host_ps(other) > host_ps(one) > 0, which
        for cause in one.causes.keys() - {"host"}:
            assert one.causes[cause].tolist() == other.causes[cause].tolist(), (which, cause)


def test_parts_that_no_launch_holds_up_are_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("replay_moe", "replay_stretch"):
        real = getattr(layer_passes, name)
        monkeypatch.setattr(
            layer_passes,
            name,
            lambda *given, real=real, name=name: calls.append(name) or real(*given),  # type: ignore[func-returns-value]
        )
    replayed("dysharp", overrides=FREE)
    assert calls.count("replay_moe") == 2
    assert calls.count("replay_stretch") == 2 + 2 * 2


def test_causes_by_hand() -> None:
    """The second GPU is slower with free hosts, and keeps its own causes."""
    causes = {"experts": np.array([10, 10]), "exchange": np.array([9, 1])}
    free = {"experts": np.array([11, 11]), "exchange": np.array([3, 1])}
    found = with_hosts(causes, free)  # type: ignore[arg-type]  # words
    assert {cause: times.tolist() for cause, times in found.items()} == {
        "experts": [11, 10],
        "exchange": [3, 1],
        "host": [5, 0],
    }


def test_kernels_outside_of_layers_cost_what_their_pass_costs() -> None:
    calls = Calls({(OUTSIDE, False): StageCalls(0), (OUTSIDE, True): StageCalls(100_000_000)})
    for one in replayed(launch="eager", calls=calls):
        assert (one.backward.own - one.forward.own >= 1e9).all()  # ten launches at least


def test_a_host_goes_on_while_its_gpu_waits_for_others() -> None:
    nothing = Activity(*np.zeros((3, 2), np.int64))
    causes: dict[Cause, Any] = {"attention": np.array([10, 20]), "dense": np.array([0, 10])}
    own = Stretch(causes, Time(np.array([5, -5])), nothing, pays_host=True)
    assert layer_passes._met_lead(own).ps.tolist() == [25, -5]  # type: ignore[union-attr]


@every(("adds", "late_us"), [(0, 0.0), (3, 3.0)])
def test_a_host_makes_up_for_adds_behind_its_last_launch(adds: int, late_us: float) -> None:
    """All hosts of the node stand still for each add, those of the other node for none."""
    system = hwmodel.load("dgx-h100-x2", {"host.locked_add_ns": 1000.0, "overheads.launch_us": 5.0})
    counters = np.full(adds, 2)

    def add(machine: Machine, after: Ints) -> dict[Cause, Ints]:
        done = machine.delay(Kind.ATTENTION, machine.costs.ns(50_000), machine.kernel(after, "attention"))
        locked_adds(machine, DISPATCH, counters, done[counters])
        return {"attention": done}

    lead = np.asarray(replay_stretch(system, 16, add, "eager").lead.ps) / 1e6
    assert lead[8:] == pytest.approx(50.0)
    assert lead[8:] - lead[:8] == pytest.approx(late_us)
