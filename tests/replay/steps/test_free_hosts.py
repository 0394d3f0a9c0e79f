"""Steps under a stack whose calls and waits cost hosts nothing: those without hosts, to the picosecond."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from loops import every
from small_shape import small_shape

import hwmodel
from hwmodel.quantity import Quantity
from replay.model.machine.host import Launch
from replay.model.work.stacks import Stack
from replay.model.work.stacks.costs import CallCost, CallCosts
from replay.steps import replays
from replay.steps.kernel_sizes import facts_of_step
from replay.steps.layer_passes import LayerPasses
from replay.steps.plan import ParallelPlan
from replay.steps.replays import StepReplays
from replay.steps.shared_times import SharedTimes
from replay.steps.times import PassTime, PassTimes, StepParts

FREE = {f"overheads.{name}_us": 0.0 for name in ("launch", "graph_launch", "host_sync", "poll_pinned")}
MACHINE, PAYS = hwmodel.load("dgx-h100", FREE), hwmodel.load("dgx-h100")
TOKENS = 128
GROUPED = small_shape(moe_intermediate=512, dense_layers=(0,), dense_intermediate=2048, num_kv_heads=4, vocab=32_000)
PLAN: dict[str, Any] = {"dp": 4, "ep": 4, "pp": 2, "layers": (2, 2)}
VIRTUAL: dict[str, Any] = {**PLAN, "vpp": 2, "layers": (0, 2, 2, 0), "recompute": "selective"}
STEPS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "waits": ("megatron-plain", "deepep", PLAN, {}),
    "one wait, made again": ("megatron-plain", "nccl-alltoall", {**PLAN, "recompute": "full"}, {}),
    "ends that are chunks": ("megatron-tuned:graphs=none", "hybrid-ep", VIRTUAL, {}),
    "graphs": ("megatron-tuned", "hybrid-ep", PLAN, {}),
    "unknown to the list": ("automodel", "dysharp", {**PLAN, "pp": 1, "layers": None}, {}),
    "weights put off": ("megatron-plain", "comet", PLAN, {"splits_backward": True}),
    "passes beside each other": ("megatron-plain", "deepep", PLAN, {"beside": "megatron"}),
}
"""Stack, scheme, plan and settings by what is paid there."""


def made(stack: Stack | None, scheme: str, plan: dict[str, Any], **settings: Any) -> StepParts:
    asked = {key: one for key, one in plan.items() if one is not None}
    given: dict[str, Any] = {"layers": 1, "stack": stack, **settings}
    return StepReplays(GROUPED, given.pop("system", MACHINE), ParallelPlan(**asked), TOKENS, "bf16", **given).under(
        scheme
    )


def stack_of(text: str, plan: dict[str, Any], settings: dict[str, Any]) -> Stack:
    asked = ParallelPlan(**{key: one for key, one in plan.items() if one is not None})
    return Stack.of(text, MACHINE, facts_of_step(GROUPED, asked, settings.get("beside")))


def free(stack: Stack) -> Stack:
    """The stack with calls that take its host no time; fast hosts take a picosecond, which times are rounded up to."""
    zero: Quantity[Any] = Quantity(value=0.0, source="at no cost", confidence="user")
    each = CallCost(about="a call at no cost", forward_us=zero, backward_us=zero)
    costs = CallCosts(dict.fromkeys(stack.costs.calls, each), operators=dict.fromkeys(stack.costs.operators, each))
    return dataclasses.replace(stack, costs=costs)


def without_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every kernel launched long ago, so that nothing of a host is replayed but its waits."""

    def passes(system: Any, scheme: Any, launch: Launch | None, *others: Any) -> LayerPasses:
        del launch
        return LayerPasses(system, scheme, None, *others)

    monkeypatch.setattr(replays, "LayerPasses", passes)
    monkeypatch.setattr(SharedTimes, "_launch", None)


@cache
def at_no_cost(paid: str) -> StepParts:
    """A step of `STEPS` whose hosts are replayed and cost nothing: one replay for both tests that ask for it."""
    text, scheme, plan, settings = STEPS[paid]
    return made(free(stack_of(text, plan, settings)), scheme, plan, **settings)


def passes_of(parts: StepParts) -> Iterator[tuple[str, PassTime]]:
    named: list[tuple[str, PassTimes]] = [("embedding", parts.embedding), ("head", parts.head)]
    named += [(f"layer {at}", one) for at, one in enumerate(parts.layers[0])]
    for name, times in named:
        for which in ("forward", "backward", "inputs", "weights", "beside"):
            one = getattr(times, which)
            if one is not None:
                yield f"{name}, {which}", one


def alike(parts: StepParts, others: StepParts) -> None:
    """Compare all times of two steps, and what they are spent on."""
    one, other = dict(passes_of(parts)), dict(passes_of(others))
    assert one.keys() == other.keys()
    for which, found in one.items():
        twin = other[which]
        assert found.own.tolist() == twin.own.tolist(), which
        assert found.met.tolist() == twin.met.tolist(), which
        for cause in found.causes.keys() | twin.causes.keys():
            if cause != "host":
                assert found.causes[cause].tolist() == twin.causes[cause].tolist(), (which, cause)
        assert not sum(int(each.causes["host"].sum()) for each in (found, twin) if "host" in each.causes), which
    assert parts.update == others.update
    assert (parts.hop, parts.synchronise, parts.hand_out) == (others.hop, others.synchronise, others.hand_out)


@every("paid", [name for name in STEPS if name != "graphs"])
def test_a_step_with_hosts_at_no_cost_is_that_without_hosts(paid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a stack's host does takes time by its cost alone, and not by being replayed.

    Kernels of a graph have shorter gaps between them, which are the GPU's.
    """
    text, scheme, plan, settings = STEPS[paid]
    found = at_no_cost(paid)
    with monkeypatch.context() as patched:
        without_hosts(patched)
        alike(found, made(free(stack_of(text, plan, settings)), scheme, plan, **settings))


@every("paid", [name for name, (_, _, plan, _) in STEPS.items() if plan.get("recompute") != "full"])
def test_a_step_is_that_of_free_hosts_and_what_hosts_cost(paid: str) -> None:
    """Part by part: without its cause `host`, a pass takes what it does at no cost.

    Where a backward pass makes all again, hosts also decide how long GPUs wait for each other in between.
    """
    text, scheme, plan, settings = STEPS[paid]
    stack = stack_of(text, plan, settings)
    pays = dict(passes_of(made(stack, scheme, plan, system=PAYS, **settings)))
    none = dict(passes_of(at_no_cost(paid)))
    assert pays.keys() == none.keys()
    for which, one in pays.items():
        twin = none[which]
        host = one.causes.get("host", 0 * one.own)
        assert (one.own + one.met - host).tolist() == (twin.own + twin.met).tolist(), which
    assert sum(int(one.causes["host"].sum()) for one in pays.values() if "host" in one.causes) > 0


def test_a_scheme_s_own_kernels_are_bare_under_a_stack_at_no_cost() -> None:
    """From when GPUs meet: the list has nothing of its own among rows and experts of such a scheme."""
    text, scheme, plan, settings = STEPS["unknown to the list"]
    stack = free(stack_of(text, plan, settings))
    listed, bare = (made(one, scheme, plan) for one in (stack, None))
    for which in ("forward", "backward"):
        one, other = (getattr(parts.layers[0][1], which) for parts in (listed, bare))
        assert one.met.tolist() == other.met.tolist(), which
        assert one.met.any()
