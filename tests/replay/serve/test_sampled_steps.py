"""An iteration over a recorded trace stands for several of its steps."""

from __future__ import annotations

import dataclasses

import pytest

import tracegen
from replay.errors import UserError
from replay.experiments.serve.layers import Moe, ServedLayers
from replay.experiments.serve.setup import ServingSetup
from replay.experiments.serve.spec import InferSpec

ASKED = InferSpec(
    trace="gpt-oss-20b-decode",
    decode_gpus=4,
    requests=32,
    prompt=64,
    output=4,
    sample_layers=1,
    scheme="deepep-ll",
)


def decoding(spec: InferSpec) -> ServedLayers:
    return ServingSetup.of(spec).times["decode"].layers["decode"]


def at_step(layers: ServedLayers, step: int, monkeypatch: pytest.MonkeyPatch) -> Moe:
    """Time of a layer in one step of the trace."""
    with monkeypatch.context() as patch:
        patch.setattr(type(layers.routing), "step", lambda *_: step)
        alone = dataclasses.replace(layers, routing=dataclasses.replace(layers.routing, sample_steps=None), _exact={})
        return alone.at(32, 64)


def test_it_is_the_mean_of_steps_in_the_middles_of_stretches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = decoding(ASKED.changed(sample_steps=3))
    found = layers.at(32, 64)
    assert layers.replays == 3
    number = tracegen.load("gpt-oss-20b-decode", layers=[0]).num_tokens // (4 * 32)
    each = [at_step(layers, int(share * number), monkeypatch) for share in (1 / 6, 1 / 2, 5 / 6)]
    assert len(set(each)) == 3
    for place in range(3):
        assert found[place] == pytest.approx(sum(one[place] for one in each) / 3)
    assert decoding(ASKED).at(32, 64) == at_step(layers, 0, monkeypatch)


def test_it_is_of_recorded_traces_alone_and_says_nothing_where_nobody_asks() -> None:
    with pytest.raises(UserError, match="steps are of a recorded trace"):
        ServingSetup.of(InferSpec(model="olmoe-1b-7b", sample_steps=2, decode_gpus=2))
    assert "sample_steps" not in ASKED.model_dump()
    assert ServingSetup.of(ASKED).run_id != ServingSetup.of(ASKED.changed(sample_steps=2)).run_id
