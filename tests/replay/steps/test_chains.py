"""A chain composed of the times of its layers is the chain in which layers do not overlap."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every

import hwmodel
from replay.experiments.layer.setup import set_up, spec_of
from replay.schemes.registry import COMPARED
from replay.steps.chains import Compared, compare, composed
from replay.steps.times import Timed
from tracegen.generate import generate
from tracegen.models import ModelShape

SMALL = ModelShape(
    name="small", hidden=4096, moe_intermediate=1024, num_experts=16, topk=4, num_shared_experts=1,
    shared_intermediate=1024, num_layers=3, dense_layers=(0,), dense_intermediate=4096, gated=True,
    num_heads=32, num_kv_heads=8, head_dim=128,
)  # fmt: skip
H100 = hwmodel.load("dgx-h100")
# One of each way to wait for others; STEPS.md has all.
RUNS = ("nccl-alltoall", "tutel", "deepep", "deepep-ll", "flashdmoe", "dysharp")


def compared(scheme: str, machine: hwmodel.System = H100, ranks: int = 4) -> Compared:
    trace = generate("zipf", SMALL, ranks=ranks, tokens_per_rank=16, seed=2, skew=0.5)
    both = "backward" in COMPARED[scheme].passes
    settings = {
        "scheme": scheme, "system": machine, "ranks": ranks, "phase": "prefill",
        "direction": "training" if both else "forward", "precision": "bf16",
    }  # fmt: skip
    spec, system_given, given = spec_of(None, settings)
    setup = set_up(spec, {"content_id": trace.content_id}, system_given, given)
    ready = setup.prepared(trace)
    return compare(ready.links, machine, setup.scheme, ready.launch)


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


def test_gpus_that_do_not_meet_go_on_alone() -> None:
    own, met, none = np.array([3, 5]), np.array([10, 20]), np.zeros(2, np.int64)
    by_itself = Timed(own, none, {"dense": own})
    together = Timed(own, met, {"attention": own, "experts": met})
    assert composed([by_itself, by_itself]).tolist() == [6, 10]
    assert composed([by_itself, together, by_itself]).tolist() == [10 + 10 + 3, 10 + 20 + 5]
