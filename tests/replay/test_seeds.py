"""Seeds: the same one gives the same numbers, another one others, wherever something is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replay
from replay.chains.jitter import read
from replay.chains.layer_sampling import choose
from replay.experiments import train as training
from replay.experiments.serve.arrivals.replay import requests_of
from replay.experiments.serve.arrivals.spec import ArrivalSpec
from replay.experiments.serve.requests import draw_requests, lengths
from replay.experiments.serve.rules import Drafts
from replay.experiments.serve.setup import ServingSetup
from replay.experiments.serve.spec import InferSpec
from replay.model.work.placement import place
from replay.schemes.contract.layers import draw as draw_choices
from replay.studies.uncertainty import draws
from replay.studies.uncertainty.routing import draw_routing as other_routing
from tracegen.generate import generate
from tracegen.imitate.resemblance import independent_zipf

TRACE = generate("zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=8, layers=2, skew=0.6, seed=1)
SERVED = InferSpec(model="olmoe-1b-7b", decode_gpus=2, sample_layers=1, routing="zipf:0.6")
STEP = {
    "model": "olmoe-1b-7b",
    "plan": "dp=4,ep=4",
    "sequence": 64,
    "layers_sampled": 1,
    "scheme": "deepep",
    "routing": "zipf:0.6",
}
MANY = np.arange(40)


def delays(seed: int) -> list[int]:
    jitter = read("lognormal:5:0.5", seed)
    assert jitter is not None
    return jitter.delays_ps(8, (0, 1)).tolist()


def arriving(what: str) -> Callable[[int], list[int]]:
    def of(seed: int) -> list[int]:
        made = draw_requests(30, (lengths("uniform:1:99"), lengths("lognormal:50:0.5")), seed=seed)
        return list(getattr(made, what).tolist())

    return of


def asked_for(what: str) -> Callable[[int], list[int]]:
    def of(seed: int) -> list[int]:
        asked = ArrivalSpec(
            **SERVED.model_dump(),
            arrivals="10",
            count=30,
            prompts="uniform:1:99",
            outputs="uniform:1:99",
            arrival_seed=seed,
        )
        return list(getattr(requests_of(asked), what).tolist())

    return of


def served_routing(seed: int) -> list[int]:
    trace, _ = ServingSetup.of(SERVED.changed(seed=seed)).times["decode"].layers["decode"].routing.of_size(16, "decode")
    return list(trace.expert_ids.ravel().tolist())


DRAWN: dict[str, Callable[[int], Any]] = {
    "delays of GPUs": delays,
    "delays of a replay": lambda seed: (
        replay.run(TRACE, scheme="ideal", jitter="lognormal:50:0.5", jitter_seed=seed).totals.makespan_us
    ),
    "delays of a step": lambda seed: training.run(**STEP, jitter="lognormal:50:0.5", jitter_seed=seed).step_us,
    "routing of a step": lambda seed: training.run(**STEP, seed=seed).step_us,
    "routing of requests": served_routing,
    "arrivals": arriving("arrival_ps"),
    "prompts": arriving("prompt"),
    "outputs": arriving("output"),
    "arrivals asked for": asked_for("arrival_ps"),
    "prompts asked for": asked_for("prompt"),
    "requests of a trace": lambda seed: draw_requests(30, TRACE, seed=seed).arrival_ps.tolist(),
    "accepted drafts": lambda seed: Drafts(4, 0.7, seed).tokens(MANY, MANY + 1).tolist(),
    "a generated trace": lambda seed: generate(
        "uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=8, layers=1, seed=seed
    ).expert_ids.tolist(),
    "an imitation": lambda seed: independent_zipf(TRACE, seed).expert_ids.tolist(),
    "a placement": lambda seed: place(f"random:{seed}", 64, 4).expert_rank.tolist(),
    "a small layer": lambda seed: draw_choices(16, 8, 2, seed=seed).tolist(),
    "layers of a sample": lambda seed: choose([(0.0,)] * 20, 4, seed).places.tolist(),
    "deviations": lambda seed: draws.deviation(seed, 0, "gpu.clock"),
    "other routing": lambda seed: other_routing(TRACE, seed, 0, 2).expert_ids.tolist(),
}


@pytest.mark.parametrize("what", DRAWN)
def test_a_seed_decides_what_is_drawn(what: str) -> None:
    found = [DRAWN[what](seed) for seed in (3, 3, 4)]
    assert found[0] == found[1], "the same seed"
    assert found[0] != found[2], "another seed"


def test_draws_differ_by_number_and_by_name() -> None:
    given = [(3, 0, "one"), (3, 1, "one"), (3, 0, "other"), (4, 0, "one")]
    assert len({draws.share(*each) for each in given}) == 4
    routings = [other_routing(TRACE, 3, number, 2).expert_ids for number in (0, 0, 1)]
    assert (routings[0] == routings[1]).all()
    assert (routings[0] != routings[2]).any()


def test_each_layer_stage_and_gpu_has_delays_of_its_own() -> None:
    jitter = read("lognormal:5:0.5", 3)
    assert jitter is not None
    keys = [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2)]
    delays_ps = np.stack([jitter.delays_ps(8, key) for key in keys])
    assert len(np.unique(delays_ps)) == delays_ps.size
