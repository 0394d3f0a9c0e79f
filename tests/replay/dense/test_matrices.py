"""Products as kernels and as tiles: the same rows, columns and cost, however they are run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.transformer_layer import Product
from replay.schemes.contract.case import one_flop_per_picosecond, system_for
from replay.schemes.tp import matrices

RANKS = 2


def machine_of(*, flop: bool = False) -> Machine:
    system = one_flop_per_picosecond() if flop else system_for(RANKS)
    return Machine(system, GraphBuilder(KIND_NAMES), RANKS)


def flop_by_rank(machine: Machine, kind: Kind) -> list[int]:
    graph = machine.graph.build()
    of_kind = graph.kind == kind
    done = np.zeros(RANKS, np.int64)
    np.add.at(done, graph.rank[of_kind], graph.duration_ps[of_kind])
    return done.tolist()


@given(rows=st.integers(1, 5000), groups=st.sampled_from([1, 3, 8]), num_ranks=st.integers(1, 4))
def test_rows_are_spread_evenly_over_groups(rows: int, groups: int, num_ranks: int) -> None:
    work = matrices.work_of(num_ranks, Product(rows, 64, 64, groups))
    counts = work.rows_of_expert.reshape(num_ranks, groups)
    assert (counts.sum(axis=1) == rows).all()
    assert counts.max() - counts.min() <= 1
    assert (work.placement.expert_rank == np.repeat(np.arange(num_ranks), groups)).all()


@settings(max_examples=20)
@given(
    rows=st.integers(1, 3000),
    n=st.integers(1, 40),
    groups=st.sampled_from([1, 4]),
    num_sms=st.sampled_from([132, 116, 66]),
)
def test_tiles_multiply_every_row_and_column_once(rows: int, n: int, groups: int, num_sms: int) -> None:
    product, machine = Product(rows, n * 64, 128, groups), machine_of(flop=True)
    begun = machine.mark(machine.ranks)
    tiles, first_row = matrices.cut(machine, product, Kind.GEMM1, num_sms)
    found = matrices.tiles_of(
        machine,
        product,
        Kind.GEMM1,
        machine.sms.for_kernels(),
        begun[tiles.rank],
        cuts=(tiles, first_row),
    )
    for rank in range(RANKS):
        mine = np.flatnonzero(tiles.rank == rank)
        ends = first_row[mine] + tiles.rows[mine]
        assert first_row[mine][0] == 0
        assert (first_row[mine][1:] == ends[:-1]).all()  # no gap and no overlap
        assert ends[-1] == rows
    for tile in range(len(tiles)):
        assert found.columns[found.tasks.column_tile == tile].sum() == product.n
    assert flop_by_rank(machine, Kind.GEMM1) == [product.flop] * RANKS


@pytest.mark.parametrize("groups", [1, 4])
def test_a_kernel_takes_as_long_as_its_tiles_behind_the_same_launch(groups: int) -> None:
    """Whoever cuts a product into tiles pays for them as whoever runs a kernel does."""
    product = Product(4096, 2048, 1024, groups)
    ends = []
    for is_cut in (False, True):
        machine = machine_of()
        start, pool = machine.mark(machine.ranks), machine.sms.for_kernels()
        if is_cut:
            begun = machine.kernel(start)
            cuts = matrices.cut(machine, product, Kind.GEMM1, machine.sms.compute)
            tiles = matrices.tiles_of(machine, product, Kind.GEMM1, pool, begun[cuts[0].rank], cuts=cuts)
            end = machine.gather(tiles.tasks.done, cuts[0].rank, begun)
        else:
            end = matrices.kernel(machine, product, Kind.GEMM1, pool, start)
        ends.append(schedule(machine.graph.build()).visible_ps[end].tolist())
    assert ends[0] == pytest.approx(ends[1], rel=0.01)


def test_fewer_sms_take_longer() -> None:
    times = []
    for num_sms in (132, 66):
        machine = machine_of()
        begun = machine.kernel(machine.mark(machine.ranks))
        split = machine.sms.split("a test", {"compute": num_sms})
        pool = split.pool("compute", num_sms)
        product = Product(8192, 4096, 1024)
        cuts = matrices.cut(machine, product, Kind.GEMM1, num_sms)
        matrices.tiles_of(machine, product, Kind.GEMM1, pool, begun[cuts[0].rank], cuts=cuts)
        times.append(schedule(machine.graph.build()).visible_ps.max())
    assert 1.7 < times[1] / times[0] < 2.2


@pytest.mark.parametrize("groups", [1, 4])
def test_gradient_of_weights_has_the_operations_of_the_product(groups: int) -> None:
    machine, product = machine_of(flop=True), Product(1000, 256, 512, groups)
    matrices.gradient(machine, product, machine.sms.for_kernels(), machine.mark(machine.ranks))
    assert flop_by_rank(machine, Kind.WGRAD) == pytest.approx([product.flop] * RANKS, rel=1e-3)


def test_a_product_with_few_tiles_is_cut_along_its_inner_dimension() -> None:
    """A library does so, and a small product takes a fraction of the time of its tiles in turn."""
    times = {}
    for k in (1024, 8192):
        machine = machine_of()
        end = matrices.kernel(
            machine,
            Product(128, 256, k),
            Kind.GEMM1,
            machine.sms.for_kernels(),
            machine.mark(machine.ranks),
        )
        times[k] = int(schedule(machine.graph.build()).visible_ps[end].max())
    assert times[8192] < 4 * times[1024]
