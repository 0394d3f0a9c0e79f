"""The dense exchange by NCCL: its kernels, what they take, and who is refused."""

from __future__ import annotations

import numpy as np
import pytest

import hwmodel
from replay.chains.host_program import can_be_captured, typical_program
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, schedule
from replay.model.collectives.nccl import NCCL
from replay.model.machine.kinds import DISPATCH, KIND_NAMES
from replay.model.machine.machine import Machine
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers as small_layers

GATHERS = ["all-gather of rows", "all-gather of expert ids", "all-gather of gate weights"]


def names(scheme: str, **options: bool) -> list[str]:
    return [one.name for one in typical_program(find(scheme).with_options(options)) or ()]


def work(tokens_of_rank: list[int]):
    ids = np.tile(np.array([[0, 5, 9]], np.int32), (sum(tokens_of_rank), 1))
    return small_layers.work(ids, len(tokens_of_rank), 16, tokens_of_rank=tokens_of_rank)


def test_it_has_the_kernels_of_the_switch_s_and_can_be_captured() -> None:
    once = names("nccl-allgather")
    assert once == names("nvls", gathers_at_once=True)
    assert can_be_captured(typical_program(find("nccl-allgather")))
    assert names("nccl-allgather", gathers_at_once=False) == names("nvls")
    assert [one for one in names("nvls") if one not in once] == GATHERS
    assert "nccl-allgather" not in SCHEMES


def test_gathers_take_what_nccl_takes() -> None:
    system, layer = hwmodel.load("dgx-h100"), work([16] * 8)
    machine = Machine(system, GraphBuilder(KIND_NAMES), 8)
    nbytes = layer.num_tokens * layer.dispatch_row_bytes
    NCCL.build(machine, DISPATCH, "all_gather", nbytes, machine.mark(machine.ranks))
    alone = schedule(machine.graph.build()).makespan_ps
    scheme = find("nccl-allgather").with_options({"gathers_at_once": False})
    graph, _, _ = build_layer(layer, system, scheme)
    timeline = schedule(graph)
    moving = (graph.payload_bytes > 0) & np.isin(graph.kind, [DISPATCH.up, DISPATCH.down])
    gap = system.overheads.kernel_gap_ps("stream")
    assert timeline.visible_ps[moving].max() <= gap + alone
    assert timeline.start_ps[moving].min() >= gap
    assert graph.payload_bytes[graph.kind == DISPATCH.up].sum() == 7 * nbytes


def test_ranks_have_equally_many_tokens() -> None:
    scheme = find("nccl-allgather")
    assert scheme.refuses(work([3, 2])) == "its ranks have equally many tokens"
    assert not scheme.refuses(work([3, 3]))


@pytest.mark.parametrize("backward", [False, True])
def test_one_kernel_gathers_all_where_ids_are_not_known(backward: bool) -> None:
    layer = work([4] * 4).with_changes(is_backward=backward)
    system = hwmodel.load("dgx-h100")
    times = [
        schedule(
            build_layer(layer, system, find("nccl-allgather").with_options({"gathers_at_once": one}))[0]
        ).makespan_ps
        for one in (False, True)
    ]
    assert (times[0] == times[1]) if backward else (times[0] > times[1])
