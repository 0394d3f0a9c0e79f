"""Kernels that every scheme has take what the hardware model says, wherever they stand."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every

from hwmodel.attention import Scores
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.transformer_layer import (
    Attention,
    Core,
    Elementwise,
    Norm,
    Step,
    TensorLayer,
)
from replay.schemes.contract.case import system_for
from replay.schemes.tp.kernels import TensorKernels
from replay.schemes.tp.plain import NoCommunication

RANKS, TOKENS, HIDDEN = 4, 4096, 2048


def layer_of(*steps: Step, is_backward: bool = False) -> TensorLayer:
    return TensorLayer(RANKS, TOKENS, HIDDEN, steps, is_backward)


def replayed(layer: TensorLayer, *, sequence_parallel: bool = True) -> Timeline:
    """The kernels of a layer without communication."""
    machine = Machine(system_for(RANKS), GraphBuilder(KIND_NAMES), RANKS)
    NoCommunication(sequence_parallel=sequence_parallel).build(layer, machine, machine.mark(machine.ranks))
    return schedule(machine.graph.build())


def service_ps(timeline: Timeline, kind: Kind) -> list[int]:
    """Durations of the tasks of a kind."""
    found: list[int] = timeline.graph.duration_ps[timeline.graph.kind == kind].tolist()
    return found


@every(
    ("is_decode", "is_backward", "which"),
    [(False, False, "forward_ps"), (True, False, "decode_ps"), (False, True, "backward_ps")],
)
def test_attention_takes_what_its_kernel_does(is_decode: bool, is_backward: bool, which: str) -> None:
    scores = Scores(10**9, 10**4, 10**6)
    work = Attention(scores, 128, 10**8, is_decode)
    timeline = replayed(layer_of(Core((work,)), is_backward=is_backward))
    given = (4 * 10**9 * 128,) if is_decode else (scores, 128, 128)
    expected = getattr(system_for(RANKS).attention, which)(*given, work.nbytes)
    assert service_ps(timeline, Kind.ATTENTION) == [expected] * RANKS


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_a_norm_works_on_the_rows_between_the_halves(sequence_parallel: bool) -> None:
    """Own rows under sequence parallelism, else those of all tokens on every GPU."""
    timeline = replayed(layer_of(Norm(4 * HIDDEN * 2)), sequence_parallel=sequence_parallel)
    rows = TOKENS // RANKS if sequence_parallel else TOKENS
    machine = Machine(system_for(RANKS), GraphBuilder(KIND_NAMES), RANKS)
    expected = int(machine.costs.stream(rows * 4 * HIDDEN * 2).ps)
    assert service_ps(timeline, Kind.BETWEEN) == [expected] * RANKS


def test_elementwise_kernels_stream_their_bytes_one_after_another() -> None:
    timeline = replayed(layer_of(Core((Elementwise(10**8), Elementwise(2 * 10**8)))))
    once, twice = sorted(set(service_ps(timeline, Kind.BETWEEN)))
    assert twice == pytest.approx(2 * once, rel=0.01)
    of_rank = timeline.graph.rank == 0
    tasks = np.flatnonzero(of_rank & (timeline.graph.kind == Kind.BETWEEN))
    assert timeline.start_ps[tasks[1]] > timeline.end_ps[tasks[0]]  # a kernel each, with its gap


def test_kernels_have_all_sms() -> None:
    machine = Machine(system_for(RANKS), GraphBuilder(KIND_NAMES), RANKS)
    assert TensorKernels(machine, layer_of(), 0).pool.shape == (RANKS,)
    assert machine.sms.compute == machine.sms.count
