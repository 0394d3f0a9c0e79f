"""A chain replayed layer by layer has the result of the whole, to the last number."""

from __future__ import annotations

import tracemalloc
from typing import Any, get_args

import pytest
from loops import every
from tiers import mostly_extended

import hwmodel
import replay
import tracegen
from replay.chains.chain import LayerTasks
from replay.chains.replay import Replay
from replay.chains.results import ChainMeter
from replay.engine.piece import Piece
from replay.engine.scheduler import OutOfOrderError
from replay.engine.taskgraph import GraphPart
from replay.experiments.layer.setup import set_up, spec_of
from replay.model.machine.host import Launch
from replay.schemes import SCHEMES

TRACE = tracegen.generate.generate("zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=12, layers=3, seed=1, skew=0.8)
UNEVEN = {"deepep": "graph", "nvls": "graph", "comet": "graph", "dysharp": "graph"}


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=3, turn=2))
def test_results_of_pieces_are_those_of_the_whole(scheme: str) -> None:
    settings = {"scheme": scheme, "system": hwmodel.load("dgx-h100"), "gemm_type": "bf16"}
    launch = UNEVEN.get(scheme, "eager")
    assert launch in get_args(Launch)
    timelines = []
    # An observer wants all of the schedule at once.
    whole = replay.run(TRACE, observe=timelines.append, launch=launch, **settings)
    in_pieces = replay.run(TRACE, launch=launch, **settings)
    assert len(timelines) == 1
    assert in_pieces.model_dump_json() == whole.model_dump_json()


TURNS = [
    ("deepep", "tbo", "bf16"),  # streams of their own for rows
    ("nvls", "dbo", "bf16"),
    ("deepep-ll", "tbo", "bf16"),  # hooks
    ("deepep-ll", "sbo", "fp8"),  # one micro-batch
]


@pytest.mark.extended
@pytest.mark.parametrize("launch", get_args(Launch))
@pytest.mark.parametrize(("scheme", "interleave", "gemm_type"), TURNS)
def test_micro_batches_in_turns_are_replayed_in_pieces_as_well(
    monkeypatch: pytest.MonkeyPatch, scheme: str, interleave: str, gemm_type: str, launch: str
) -> None:
    settings: dict[str, Any] = {
        "scheme": scheme,
        "system": hwmodel.load("dgx-h100"),
        "gemm_type": gemm_type,
        "interleave": interleave,
        "launch": launch,
    }
    whole = replay.run(TRACE, observe=lambda _: None, **settings)
    monkeypatch.delattr(Replay, "build")
    assert replay.run(TRACE, **settings).model_dump_json() == whole.model_dump_json()


def test_a_part_that_came_too_late_is_replayed_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"scheme": "deepep", "system": hwmodel.load("dgx-h100")}
    in_pieces = replay.run(TRACE, **settings)

    def too_late(*_: Any, **__: Any) -> Any:
        message = "a part was at its end before those before it went on"
        raise OutOfOrderError(message)

    monkeypatch.setattr(Replay, "stream", too_late)
    assert replay.run(TRACE, **settings).model_dump_json() == in_pieces.model_dump_json()


class Sizes:
    """Tasks that are in memory at a time, and of each layer."""

    def __init__(self) -> None:
        self.windows: list[int] = []
        self.layers: list[int] = []

    def begin(self, layer: LayerTasks, part: GraphPart) -> None:
        del layer
        self.layers.append(part.graph.num_tasks)

    def add(self, piece: Piece) -> None:
        self.windows.append(piece.timeline.graph.num_tasks)


def sizes_of(scheme: str, interleave: str) -> Sizes:
    """Sizes of windows and layers of a chain."""
    asked = {"scheme": scheme, "system": hwmodel.load("dgx-h100"), "interleave": interleave}
    spec, system, made = spec_of(None, asked)
    sizes = Sizes()
    set_up(spec, {}, system, made).prepare(TRACE).stream(sizes)
    assert len(sizes.layers) == 3
    return sizes


@every("scheme", ["deepep", "dysharp", "nccl-alltoall"])
def test_little_of_a_layer_is_left_when_the_next_one_begins(scheme: str) -> None:
    sizes = sizes_of(scheme, "off")
    assert max(sizes.windows) < 1.2 * max(sizes.layers)


@pytest.mark.parametrize("interleave", ["tbo", "dbo"])
def test_of_micro_batches_in_turns_half_a_layer_is_left_at_most(interleave: str) -> None:
    sizes = sizes_of("deepep", interleave)
    assert max(sizes.windows) < 1.5 * max(sizes.layers)


class Held:
    """Memory that is held when a piece has been measured."""

    def __init__(self) -> None:
        self.num_bytes: list[int] = []

    def begin(self, layer: LayerTasks, part: GraphPart) -> None:
        pass

    def add(self, piece: Piece) -> None:
        self.num_bytes.append(tracemalloc.get_traced_memory()[0])


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["deepep", "dysharp"])
def test_layers_that_are_over_take_no_memory(scheme: str) -> None:
    trace = tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=4, tokens_per_rank=128, layers=10, seed=1)
    spec, system, made = spec_of(None, {"scheme": scheme, "system": hwmodel.load("dgx-h100")})
    ready, held = set_up(spec, {}, system, made).prepare(trace), Held()
    tracemalloc.start()
    try:
        ready.stream(ChainMeter(), held)
    finally:
        tracemalloc.stop()
    # Of a layer that is over its sums stay, here about a fiftieth of what it took.
    assert (held.num_bytes[8] - held.num_bytes[3]) / 5 < 0.05 * held.num_bytes[3]
