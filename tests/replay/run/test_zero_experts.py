"""Experts that do nothing: no row is sent to them, and they have no weights."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay
import tracegen
from replay.experiments.serve.room import least_room_of
from replay.steps import parameters
from tracegen import ModelShape, UserError
from tracegen.importers import read

SHAPE = """
name = "with-zero-experts"
[shape]
hidden = { value = 256, source = "invented for a test" }
moe_intermediate = { value = 128, source = "invented for a test" }
num_experts = { value = 24, source = "invented for a test" }
num_zero_experts = { value = 8, source = "invented for a test" }
topk = { value = 4, source = "invented for a test" }
num_layers = { value = 2, source = "invented for a test" }
gated = { value = true, source = "invented for a test" }
num_heads = { value = 8, source = "invented for a test" }
num_kv_heads = { value = 8, source = "invented for a test" }
head_dim = { value = 32, source = "invented for a test" }
"""


@pytest.fixture
def shape_file(tmp_path: Path) -> Path:
    path = tmp_path / "zero.toml"
    path.write_text(SHAPE)
    return path


@pytest.fixture
def shape(shape_file: Path) -> ModelShape:
    return tracegen.models.load(shape_file)


def imported(tmp_path: Path, **options: Any) -> tracegen.RoutingTrace:
    """64 tokens of 8 requests on two layers, with every one of the 24 ids."""
    rng = np.random.default_rng(3)
    ids = np.argsort(rng.random((64, 2, 24)), axis=2)[:, :, :4]
    assert set(ids.ravel()) == set(range(24))
    path = tmp_path / "ids.npz"
    np.savez(path, expert_ids=ids, request=np.repeat(np.arange(8), 8))
    return read([path], "arrays", **options).trace


def without_them(trace: tracegen.RoutingTrace) -> tracegen.RoutingTrace:
    """The same rows, recorded of a model of 16 experts, with empty slots for the others."""
    shape = trace.model_shape.model_copy(update={"num_experts": 16, "num_zero_experts": 0})
    ids = np.where(trace.expert_ids < 16, trace.expert_ids, trace.empty_slot)
    model = tracegen.TraceModel.from_shape(shape)
    return dataclasses.replace(trace, model=model, expert_ids=ids.astype(trace.expert_ids.dtype), stored_content_id="")


@pytest.mark.extended
@pytest.mark.parametrize("placement", ["contiguous", "eplb:24", "ultraep:32"])
def test_a_replay_is_that_of_empty_slots(tmp_path: Path, shape_file: Path, placement: str) -> None:
    trace = imported(tmp_path, model=shape_file)
    assert trace.model.num_zero_experts == 8 and trace.model.num_ffn_experts == 16
    settings: dict[str, Any] = {
        "ranks": 8,
        "scheme": "deepep",
        "barrier": True,
        "placement": placement,
    }
    ours = replay.run(trace, **settings).layers
    theirs = replay.run(without_them(trace), **settings).layers
    for one, other in zip(ours, theirs, strict=True):
        assert (one.routing, one.memory) == (other.routing, other.memory)
        assert one.measures.wire_bytes == other.measures.wire_bytes
        # The gate before the layer scores 24 experts and not 16.
        assert one.measures.makespan_us == pytest.approx(other.measures.makespan_us, rel=1e-5)
    visits = int((trace.expert_ids[0] < 16).sum())
    assert ours[0].routing.num_pairs == visits < trace.num_tokens * 4


def test_a_file_keeps_them_with_the_shape(tmp_path: Path, shape_file: Path) -> None:
    trace = imported(tmp_path, model=shape_file)
    tracegen.write(trace, tmp_path / "zero.h5")
    back = tracegen.load(tmp_path / "zero.h5")
    assert back.content_id == trace.content_id
    assert back.model.shape is not None and back.model.shape.num_zero_experts == 8
    sizes = imported(tmp_path, num_experts=24, zero_experts=8, hidden_size=256)
    assert sizes.model.num_ffn_experts == 16
    with pytest.raises(UserError, match="zero_experts 4 contradicts with-zero-experts, which has 8"):
        imported(tmp_path, model=shape_file, zero_experts=4)
    with pytest.raises(UserError, match="zero_experts 24: that is all of 24"):
        imported(tmp_path, num_experts=24, zero_experts=24, hidden_size=256)


def test_they_have_no_weights(shape: ModelShape) -> None:
    expert = 3 * 256 * 128
    count = parameters.count(shape)
    layers = [parameters.of_layer(shape, n) for n in range(2)]
    assert [layer.experts for layer in layers] == [16 * expert] * 2
    assert [layer.gate for layer in layers] == [256 * 24] * 2, "the gate scores all"
    # Of 4 choices among 24 of which 8 do nothing, 8/3 have weights.
    assert count.total - count.active == 2 * (16 * expert - 8 * expert // 3)
    plain = shape.model_copy(update={"num_zero_experts": 0})
    rooms = [least_room_of(one, 2**40, 4, 1, "bf16", 0).weights for one in (plain, shape)]
    assert rooms[0] - rooms[1] == 2 * 8 // 4 * expert * 2
