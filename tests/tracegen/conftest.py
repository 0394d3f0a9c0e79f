"""A trace small enough to check by eye, with everything a file can hold."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegen
from tracegen import RequestTable, RoutingTrace, TokenTable, TraceInfo, TraceModel


def tiny_trace() -> RoutingTrace:
    """Two MoE layers (1 and 3), five tokens in two steps, top-2 of 6, one empty slot."""
    ids = np.array(
        [
            [[4, 0], [1, 5], [2, 255], [0, 4], [3, 1]],
            [[0, 1], [0, 1], [0, 1], [5, 0], [2, 3]],
        ],
        np.uint8,
    )
    weights = np.broadcast_to(np.array([0.75, 0.25], np.float16), ids.shape).copy()
    weights[0, 2, 1] = 0
    flags = np.zeros((2, 5), np.uint8)
    flags[0, 2] = 1
    return RoutingTrace(
        model=TraceModel(num_experts=6, top_k=2, hidden_size=16, model_id="tiny"),
        moe_layer_index=np.array([1, 3], np.uint16),
        expert_ids=ids,
        gate_weights=weights,
        flags=flags,
        tokens=TokenTable(
            step=np.array([0, 0, 0, 1, 1], np.uint32),
            request=np.array([0, 0, 1, 0, 1], np.uint32),
            position=np.array([0, 1, 0, 2, 1], np.uint32),
            phase=np.array([0, 0, 0, 1, 1], np.uint8),
            rank=np.array([0, 0, 1, 0, 1], np.uint16),
            token_id=np.array([17, -1, 3, 4, 5], np.int32),
        ),
        steps_indptr=np.array([0, 3, 5], np.uint64),
        requests=RequestTable(
            id=np.array([0, 1], np.uint32),
            prompt_len=np.array([2, 1], np.uint32),
            output_len=np.array([1, 1], np.uint32),
            dataset=np.array(["exams", "exams"]),
            label=np.array(["law", "mathématiques"]),
            arrival=np.array([0.0, 0.5]),
        ),
        info=TraceInfo(
            kind="synthetic",
            title="Two layers by hand",
            license="CC0-1.0",
            created_utc="2026-11-21T00:00:00+00:00",
            slot_order="weight_desc",
            weight_semantics="softmax over the chosen experts",
            weight_row_sum="1",
            provenance={"tool": "by hand"},
        ),
    )


@pytest.fixture
def tiny() -> RoutingTrace:
    return tiny_trace()


@pytest.fixture(scope="session")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The tiny trace as a file, written once."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.h5"
    tracegen.write(tiny_trace(), path)
    return path.read_bytes()


@pytest.fixture
def tiny_file(tmp_path: Path, tiny_bytes: bytes) -> Path:
    path = tmp_path / "tiny.h5"
    path.write_bytes(tiny_bytes)
    return path


@pytest.fixture
def changed() -> Callable[..., RoutingTrace]:
    """The tiny trace with some fields replaced; token columns as `tokens_<name>`."""

    def change(**fields: Any) -> RoutingTrace:
        trace = tiny_trace()
        columns = {k.removeprefix("tokens_"): fields.pop(k) for k in [*fields] if k[:7] == "tokens_"}
        fields["tokens"] = dataclasses.replace(trace.tokens, **columns)
        return dataclasses.replace(trace, **fields)

    return change


def assert_same(left: RoutingTrace, right: RoutingTrace) -> None:
    """Every array and every field equal, types included."""
    for name in ("moe_layer_index", "expert_ids", "gate_weights", "flags", "steps_indptr"):
        _same_array(name, getattr(left, name), getattr(right, name))
    for table in ("tokens", "requests"):
        for name, column in vars(getattr(left, table)).items():
            _same_array(f"{table}.{name}", column, getattr(getattr(right, table), name))
    assert left.model == right.model


def _same_array(name: str, left: Any, right: Any) -> None:
    if left is None or right is None:
        assert left is right, name
        return
    if left.dtype.kind != "U":
        assert left.dtype == right.dtype, name
    np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.fixture(scope="session")
def same() -> Callable[[RoutingTrace, RoutingTrace], None]:
    return assert_same
