"""No GPU of a chain ever uses more SMs than it has, whatever else waits for it."""

from __future__ import annotations

import numpy as np
import pytest
from round_machine import round_machine

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES, find
from replay.schemes.contract.basics import frees
from replay.schemes.contract.case import Case, chain_of
from replay.schemes.contract.layers import draw, work
from replay.schemes.contract.sms import Use, most_in_use
from replay.schemes.registry import EXAMPLES

FEW_SMS = 32  # so that a layer of few tiles fills them
LAYERS = {
    "skewed": lambda: work(draw(1600, 8, 2, skew=0.7), 4, 8, shape=ExpertShape(1024, 512)),
    "backward": lambda: work(draw(1600, 8, 2, skew=0.7), 4, 8, shape=ExpertShape(1024, 512), is_backward=True),
    "two own all tokens": lambda: work(
        draw(1600, 8, 2), 4, 8, tokens_of_rank=[0, 1500, 100, 0], shape=ExpertShape(1024, 512)
    ),
    "rows that take longer to send": lambda: work(
        draw(800, 8, 2, skew=0.7),
        4,
        8,
        tokens_of_rank=[0, 700, 50, 50],
        shape=ExpertShape(8192, 64),
    ),
    "shared experts": lambda: work(draw(1600, 8, 2, skew=0.7), 4, 8, shape=ExpertShape(1024, 256)).with_shared(1024),
    "backward, shared experts": lambda: work(
        draw(1600, 8, 2, skew=0.7), 4, 8, shape=ExpertShape(1024, 256), is_backward=True
    ).with_shared(1024),
}
#: What would take all SMs here: NCCL's kernels beside experts, and SMs that move rows.
NARROW = {"fastermoe": {"channels": 16}, "mok": {"forward_sms": 8, "backward_sms": 8}}
EVERY_TIME = ("two own all tokens", "backward, shared experts")

LATER = [name for name in LAYERS if name not in EVERY_TIME]
"""Of these each scheme has one, in the extended tier."""
CASES = [
    pytest.param(scheme, name, marks=pytest.mark.extended if name in LATER else ())
    for number, scheme in enumerate([*SCHEMES, *EXAMPLES])
    for name in (*EVERY_TIME, LATER[number % len(LATER)])
]


def taken(scheme: str, name: str) -> LayerWork:
    """A layer, if the scheme has code for it."""
    layer = LAYERS[name]()
    if find(scheme).refuses(layer):
        pytest.skip("the scheme has no code for such a layer")
    return layer


@pytest.mark.parametrize(("scheme", "name"), CASES)
def test_no_instant_has_more_sms_in_use_than_there_are(scheme: str, name: str) -> None:
    system = hwmodel.load("dgx-h100", {"gpu.num_sms": FEW_SMS})
    narrow = find(scheme).with_options(NARROW.get(scheme, {}))
    # The contract looks at chains of three, on some layers.
    built = chain_of(taken(scheme, name), system, narrow, num_layers=2)
    most = most_in_use(schedule(built.graph), built.machine)
    assert most.sms <= FEW_SMS
    assert most.sms > FEW_SMS // 2  # they are used


@pytest.mark.parametrize(("scheme", "name"), CASES)
def test_a_rank_ends_when_its_sms_are_free(scheme: str, name: str) -> None:
    assert not list(frees(Case(find(scheme), name, taken(scheme, name))))


def test_a_second_kernel_waits_for_the_first_on_its_own_gpu() -> None:
    # GPU 0 multiplies for all, and its own few tokens are ready elsewhere long before.
    owner = np.repeat(np.arange(4), [50, 600, 600, 600])
    ids = np.where(owner == 0, 2, np.arange(len(owner)) % 2).astype(np.int32)[:, None]
    layer = work(ids, 4, 8, tokens_of_rank=[50, 600, 600, 600], shape=ExpertShape(1024, 1024))
    scheme = find("dysharp-comet").with_options({"dispatch_sms": 2, "combine_sms": 16})
    system = hwmodel.load("dgx-h100", {"gpu.num_sms": FEW_SMS})
    built = chain_of(layer, system, scheme)
    assert most_in_use(schedule(built.graph), built.machine).sms <= FEW_SMS


def test_kernels_that_follow_one_another_do_not_add_up() -> None:
    assert used((0, 10), (10, 20)) == Use(60, 0, 0)


def test_kernels_at_one_time_do() -> None:
    assert used((0, 10), (9, 20)) == Use(120, 0, 9)


def used(*times: tuple[int, int]) -> Use:
    """Sixty SMs each for so long, under names of their own."""
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 2)
    for number, (start, end) in enumerate(times):
        pool = machine.sms.pool(f"kernel {number}", 60)
        ready = machine.graph.add_one(resource=-1, duration_ps=start, kind=Kind.MARK, rank=0)
        machine.graph.add(60, resource=pool[0], duration_ps=end - start, kind=Kind.GEMM1, rank=0, after=ready)
    return most_in_use(schedule(machine.graph.build()), machine)


def test_warps_of_an_sm_are_one_sm() -> None:
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 2)
    kernel = machine.sms.split("a kernel", {})
    warps = kernel.warp_lanes("senders", 3, 4)
    further = kernel.channels("receivers", 3, on="senders")
    for queues in (*warps[1, 0], *warps[1, 2], further[1, 2]):
        machine.graph.add(2, resource=int(queues), duration_ps=50, kind=Kind.DISPATCH_SEND, rank=1)
    assert most_in_use(schedule(machine.graph.build()), machine) == Use(2, 1, 0)


def test_a_kernel_between_layers_has_the_whole_gpu() -> None:
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 1)
    machine.graph.add(1, resource=-1, duration_ps=50, kind=Kind.ATTENTION, rank=0)
    pool = machine.sms.pool("sm", 100)
    ready = machine.graph.add_one(resource=-1, duration_ps=30, kind=Kind.MARK, rank=0)
    machine.graph.add(3, resource=pool[0], duration_ps=50, kind=Kind.GEMM1, rank=0, after=ready)
    assert most_in_use(schedule(machine.graph.build()), machine) == Use(103, 0, 30)


def test_nothing_uses_nothing() -> None:
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 1)
    machine.mark(np.zeros(1, np.int64))
    assert most_in_use(schedule(machine.graph.build()), machine).sms == 0
