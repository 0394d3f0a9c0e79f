"""A chain composed of the times of its layers is the chain in which layers do not overlap."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
from loops import every
from small_shape import small_shape

import hwmodel
from replay.chains.replay import Replay
from replay.engine import schedule
from replay.experiments.layer.setup import set_up, spec_of
from replay.model.arrays import Ints
from replay.model.compute.dense import Between
from replay.schemes.registry import COMPARED
from replay.steps.layer_passes import LayerPasses
from replay.steps.times import PassTime
from tracegen.generate import generate

SMALL = small_shape(
    hidden=4096,
    moe_intermediate=1024,
    num_experts=16,
    topk=4,
    num_shared_experts=1,
    shared_intermediate=1024,
    num_layers=3,
    dense_layers=(0,),
    dense_intermediate=4096,
    num_heads=32,
    num_kv_heads=8,
)
H100 = hwmodel.load("dgx-h100")
# One of each way to wait for others.
RUNS = ("nccl-alltoall", "tutel", "deepep", "deepep-ll", "flashdmoe", "dysharp")


class Compared(NamedTuple):
    """Times of a chain in microseconds: composed, replayed, and with a barrier after each layer."""

    composed_us: float
    chain_us: float
    barrier_us: float


def timed_links(ready: Replay) -> list[PassTime]:
    """Replay the passes of a chain one by one."""
    found = []
    for link in ready.links:
        between, context = link.between, link.context
        assert between is not None
        assert context is not None
        values = {one.name: getattr(between, one.name) for one in dataclasses.fields(between)}
        parts = Between(**{**values, "is_backward": False})
        passes = LayerPasses(ready.system, ready.scheme, ready.launch, parts, context)
        shape, before = parts.shape, link.decoder_layer - 1
        while before in shape.dense_layers:
            dense = passes.dense()
            found.append(dense.backward if link.is_backward else dense.forward)
            before -= 1
        found.append(passes._moe_pass(link, "with", is_mtp=False, is_backward=link.is_backward))
    return found


def composed(passes: Iterable[PassTime]) -> Ints:
    """When each GPU is through with passes that all begin at once: (rank,) picoseconds."""
    ended: Ints = np.zeros(1, np.int64)  # of all GPUs alike
    for one in passes:
        come = ended + one.own
        ended = come.max() + one.met if one.meets else come
    return ended


def replayed(scheme: str, machine: hwmodel.System, ranks: int, tokens: int = 16, **settings: Any) -> Replay:
    trace = generate("zipf", SMALL, ranks=ranks, tokens_per_rank=tokens, seed=2, skew=0.5)
    settings |= {
        "scheme": scheme,
        "system": machine,
        "ranks": ranks,
        "phase": "prefill",
        "precision": "bf16",
        "stack": "bare",
    }
    spec, system_given, given = spec_of(None, settings)
    return set_up(spec, {"content_id": trace.content_id}, system_given, given).prepare(trace)


def compared(scheme: str, machine: hwmodel.System = H100, ranks: int = 4) -> Compared:
    both = "backward" in COMPARED[scheme].passes
    ready = replayed(scheme, machine, ranks, direction="training" if both else "forward")
    chain = ready.chain(compare_barrier=True)
    assert chain.barrier_us is not None
    end = int(composed(timed_links(ready)).max())
    return Compared(end / 1e6, chain.measures.makespan_us, chain.barrier_us)


@every("scheme", RUNS)
def test_composition_is_the_chain_with_a_barrier_after_each_layer(scheme: str) -> None:
    found = compared(scheme)
    assert found.composed_us == pytest.approx(found.barrier_us, rel=0.005)
    # What is lost are rows that leave early GPUs before the last one has come.
    assert found.composed_us == pytest.approx(found.chain_us, rel=0.02)


def test_several_nodes_compose_as_one_does() -> None:
    two = hwmodel.load("dgx-h100", {"fabric.num_gpus": 2, "fabric.num_domains": 2})
    found = compared("nccl-alltoall", two)
    assert found.composed_us == pytest.approx(found.barrier_us, rel=5e-3)


def test_a_layer_pays_for_the_adds_that_halt_hosts_behind_the_one_before() -> None:
    """Under UCCL's transport adds go on when a layer is over, while hosts launch what follows."""
    slow = hwmodel.load("aws-p5-x2", {"overheads.launch_us": 40.0})
    ready = replayed("deepep", slow, 16, 128, options={"transport": "uccl"})
    chain = dataclasses.replace(ready, meets=True).build()
    ended = schedule(chain.built.graph).visible_ps[chain.finishes[-1]]
    assert composed(timed_links(ready)).max() == pytest.approx(ended.max(), rel=0.02)


def test_gpus_that_do_not_meet_go_on_alone() -> None:
    own, met, none = np.array([3, 5]), np.array([10, 20]), np.zeros(2, np.int64)
    by_itself = PassTime(own, none, {"dense": own})
    together = PassTime(own, met, {"attention": own, "experts": met})
    assert composed([by_itself, by_itself]).tolist() == [6, 10]
    assert composed([by_itself, together, by_itself]).tolist() == [10 + 10 + 3, 10 + 20 + 5]
