"""CoCoNet: order of chunks, their flags, SMs and memory of the kernel beside, and what overlaps."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from loops import every
from one_step import OneStep, product_ps

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.errors import UserError
from replay.model.arrays import Ints
from replay.model.collectives import library
from replay.model.machine.kinds import COMBINE, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.transformer_layer import Enter, Leave
from replay.schemes.contract.graph_facts import Dependencies
from replay.schemes.contract.sms import most_in_use
from replay.schemes.registry import find

if TYPE_CHECKING:
    from collections.abc import Callable

N, TOKENS, HIDDEN, INNER = 8, 2048, 2048, 2048
BLOCKS = 16


CHUNKS = 4
"""Of each owner, where a test does not say otherwise: fewer tasks than with one for each block."""


@cache
def leave(scheme: str = "coconet", **options: Any) -> OneStep:
    options.setdefault("chunks", CHUNKS)
    return OneStep(scheme, Leave, k=INNER, tokens=TOKENS, hidden=HIDDEN, **options)


@cache
def enter(scheme: str = "coconet", **options: Any) -> OneStep:
    options["sequence_parallel"] = True
    options.setdefault("chunks", CHUNKS)
    return OneStep(scheme, Enter, k=0, n=4096, tokens=TOKENS, hidden=HIDDEN, **options)


def begins(step: OneStep, kind: Kind, rank: int) -> Ints:
    """Starts of a GPU's tasks of a kind, in order of the tasks."""
    return step.timeline.start_ps[step.tasks(kind, rank)]


def polled_ps(step: OneStep) -> int:
    costs = step.machine.costs
    return int((costs.visible() + costs.poll()).ps)


# ---- what overlaps -------------------------------------------------------------------------------


@pytest.mark.extended
@every("sequence_parallel", [False, True])
@every("scheme", ["coconet", "coconet-nvls"])
def test_overlap_saves_time_but_neither_part_is_faster_than_alone(scheme: str, sequence_parallel: bool) -> None:
    step = leave(scheme, sequence_parallel=sequence_parallel)
    apart = leave(scheme, sequence_parallel=sequence_parallel, overlap=False)
    product = product_ps(step, Kind.GEMM2, 132 - BLOCKS)
    shares = 2 * (N - 1) / N if scheme == "coconet" else 1
    if sequence_parallel and scheme == "coconet":
        shares /= 2
    wire = step.wire_ps(int(shares * step.buffer_bytes))
    assert max(product, wire) < step.time_ps < apart.time_ps
    assert product + wire < apart.time_ps


@pytest.mark.parametrize("scheme", ["coconet", "coconet-nvls"])
def test_rows_are_multiplied_as_they_come(scheme: str) -> None:
    step, apart = enter(scheme), enter(scheme, overlap=False)
    product = product_ps(step, Kind.GEMM1, 132 - BLOCKS)
    wire = step.wire_ps(step.buffer_bytes * (N - 1) // N)
    assert max(product, wire) < step.time_ps < apart.time_ps
    assert product + wire < apart.time_ps


def test_without_overlap_it_is_a_product_and_a_ring_in_turn() -> None:
    """But for the start of the ring's kernel, which the product hides.

    Its channels go on one by one, where a ring alone has them in step.
    """
    step = leave(overlap=False)
    machine = Machine(hwmodel.load("dgx-h100"), GraphBuilder(KIND_NAMES), N)
    begun = machine.mark(machine.ranks)
    library.find("ring").build(machine, COMBINE, "all_reduce", step.buffer_bytes, begun, blocks=BLOCKS, payload=True)
    ring = schedule(machine.graph.build()).makespan_ps
    product = product_ps(step, Kind.GEMM2, 132 - BLOCKS)
    start = machine.system.nccl.simple.start_ps
    assert step.time_ps == pytest.approx(product + ring - start, rel=0.1)


def test_fewer_chunks_overlap_less() -> None:
    times = [leave(chunks=chunks).time_ps for chunks in (8, 4, 1)]
    assert times[0] < times[1] < times[2] < leave(overlap=False).time_ps


def test_a_block_has_one_chunk_at_most() -> None:
    times = [leave(blocks=3, chunks=chunks).time_ps for chunks in (0, 3, 99)]
    assert len(set(times)) == 1


# ---- order and flags -----------------------------------------------------------------------------


def in_order(step: OneStep, kind: Kind, rank: int, place: Callable[[Ints, Ints], Ints]) -> bool:
    """Whether tiles start in the order of a place, by their first and last rows."""
    tasks, first, rows = step.rows(kind, rank, 132 - BLOCKS)
    places = place(first, first + rows - 1)
    order = np.lexsort((places, step.timeline.start_ps[tasks]))
    assert len(np.unique(places)) > 1
    return bool((np.diff(places[order]) >= 0).all())


@pytest.mark.parametrize("rank", [0, 5])
def test_the_product_begins_with_what_the_ring_sends_first(rank: int) -> None:
    step = leave()
    share = step.layer.own_rows
    assert in_order(step, Kind.GEMM2, rank, lambda first, _: (rank - 1 - first // share) % N)


@pytest.mark.parametrize("rank", [0, 5])
def test_the_product_begins_with_own_rows_and_follows_the_ring(rank: int) -> None:
    """On average: channels go on alone, and some are ahead."""
    step = enter()
    tasks, first, rows = step.rows(Kind.GEMM1, rank, 132 - BLOCKS)
    place = (rank - (first + rows - 1) // step.layer.own_rows) % N
    starts = step.timeline.start_ps[tasks]
    assert (np.diff([starts[place == one].mean() for one in range(N)]) > 0).all()
    ports = step.tasks(Kind.DISPATCH_DOWN, rank)
    arrived = step.timeline.end_ps[ports[step.graph.payload_bytes[ports] > 0]].min()
    assert starts[place == 0].max() < arrived < starts[place == 1].min()


@pytest.mark.parametrize("rank", [0, 5])
def test_in_the_switch_all_gpus_make_the_same_chunks_first(rank: int) -> None:
    """First halves of all shares, then second ones."""
    step = leave("coconet-nvls", chunks=2)
    share = step.layer.own_rows
    assert in_order(step, Kind.GEMM2, rank, lambda first, _: first % share * 2 // share)


def test_a_chunk_leaves_when_its_tiles_are_done_and_its_flag_is_seen() -> None:
    """The first chunk of a GPU is the columns of one channel in the rows of the GPU before it."""
    step = leave()
    for rank in range(N):
        tasks, first, rows = step.rows(Kind.GEMM2, rank, 132 - BLOCKS)
        share, before = step.layer.own_rows, (rank - 1) % N
        of_chunk = (first < (before + 1) * share) & (first + rows > before * share)
        known = step.timeline.end_ps[tasks[of_chunk]].min() + polled_ps(step)
        assert begins(step, Kind.COMBINE_SEND, rank).min() >= known
        assert begins(step, Kind.COMBINE_UP, rank).min() >= known


def test_flags_take_their_time() -> None:
    """The first chunk of a product that is longer than the start of the ring's kernel."""
    first = []
    for ns in (200.0, 20200.0):
        overrides = (("overheads.poll_ns", ns),)
        step = OneStep("coconet", Leave, k=16384, tokens=512, hidden=512, overrides=overrides, chunks=CHUNKS)
        first.append(begins(step, Kind.COMBINE_SEND, 0).min())
    assert first[1] - first[0] == 20_000_000


def test_the_last_chunks_own_tiles_are_waited_for() -> None:
    step = leave()
    for rank in range(N):
        last = step.timeline.end_ps[step.tasks(Kind.GEMM2, rank)].max()
        assert step.timeline.end_ps[step.tasks(Kind.COMBINE_SEND, rank)].max() > last


@pytest.mark.parametrize("rank", [0, 3])
def test_a_ring_adds_what_the_product_has_made(rank: int) -> None:
    """What a GPU sends, the sums of others' rows, waits for all its tiles that have such rows."""
    step = leave(sequence_parallel=True)
    tasks, first, rows = step.rows(Kind.GEMM2, rank, 132 - BLOCKS)
    share = step.layer.own_rows
    own = (first >= rank * share) & (first + rows <= (rank + 1) * share)
    ports = step.tasks(Kind.COMBINE_UP, rank)
    sent = ports[step.graph.payload_bytes[ports] > 0]
    before = Dependencies(step.timeline).before(sent.tolist())
    assert before & set(tasks.tolist()) == set(tasks[~own].tolist())


@pytest.mark.parametrize("rank", [0, 3])
def test_the_switch_sums_when_all_gpus_have_flagged(rank: int) -> None:
    step = leave("coconet-nvls", chunks=2)
    share, made = step.layer.own_rows, []
    for gpu in range(N):
        tasks, first, rows = step.rows(Kind.GEMM2, gpu, 132 - BLOCKS)
        of_chunk = (first < rank * share + share // 2) & (first + rows > rank * share)
        made.append(step.timeline.end_ps[tasks[of_chunk]].max())
    costs = step.machine.costs
    told = int((costs.behind("any") + costs.poll()).ps)
    asked = begins(step, Kind.COMBINE_REQUEST_UP, rank).min()
    assert asked > max(made) + polled_ps(step) + told


@pytest.mark.parametrize(("scheme", "stores"), [("coconet", 2 * (N - 1) + 1), ("coconet-nvls", 3)])
def test_rows_are_read_when_their_flag_has_been_seen(scheme: str, stores: int) -> None:
    """Stores become visible 50 us later: of the rows, of the flag behind them, of the chunk's flag.

    In a ring the first two come in each of its steps, in which some wait for nothing else.
    """
    quick, slow = (enter(scheme, overrides=(("gpu.write_visibility_ns", ns),)) for ns in (500.0, 50500.0))
    later = slow.time_ps - quick.time_ps
    assert later > (stores * 0.5 if scheme == "coconet" else stores) * 49_000_000


# ---- who pays ------------------------------------------------------------------------------------


def test_the_kernel_beside_takes_sms_from_the_product() -> None:
    few, many = leave(blocks=16), leave(blocks=66)
    assert product_ps(few, Kind.GEMM2, 116) < product_ps(many, Kind.GEMM2, 66)
    ends = [step.timeline.end_ps[step.tasks(Kind.GEMM2)].max() for step in (few, many)]
    assert ends[1] - ends[0] > 0.5 * (product_ps(many, Kind.GEMM2, 66) - product_ps(few, Kind.GEMM2, 116))
    for step, blocks in ((few, 16), (many, 66)):
        assert find("coconet", "tp").with_options({"blocks": blocks}).communication_sms(step.machine) == blocks
        held = step.machine.sms.ledger[-1].held
        assert sum(held.values()) == 132
        assert held["coconet-product"] == 132 - blocks


@pytest.mark.parametrize("scheme", ["coconet", "coconet-nvls"])
def test_product_and_collective_share_the_sms(scheme: str) -> None:
    for step in (leave(scheme), enter(scheme)):
        assert most_in_use(step.timeline, step.machine).sms <= 132
        kind = Kind.GEMM2 if step is leave(scheme) else Kind.GEMM1
        starts = step.timeline.start_ps[step.tasks(kind, 0)]
        assert (starts == starts.min()).sum() <= 132 - BLOCKS


@pytest.mark.parametrize("scheme", ["coconet", "coconet-nvls"])
def test_few_blocks_are_the_limit(scheme: str) -> None:
    step = leave(scheme, blocks=2)
    moved = 2 * (N - 1) * step.buffer_bytes // N if scheme == "coconet" else step.buffer_bytes // N
    least = int(step.machine.costs.sm_store(moved).shared_by(2).ps)
    assert least < step.time_ps
    assert leave(scheme).time_ps < step.time_ps


def test_blocks_that_leave_no_sm_are_refused() -> None:
    with pytest.raises(UserError, match=r"option blocks=132 of scheme 'coconet'.*must multiply"):
        leave(blocks=132)


def test_the_ring_reads_and_writes_device_memory() -> None:
    """Own chunk; what came and its own one; the sum besides; then copies: 22 shares of 8 GPUs."""
    step = leave()
    share = step.buffer_bytes // N
    shares = 1 + 2 * (N - 2) + 3 + 2 * (N - 1)
    expected = int(step.machine.costs.stream(shares * share).ps)
    for rank in range(N):
        assert step.spent_ps(Kind.COMBINE_MEMORY, rank) == pytest.approx(expected, rel=0.01)


def test_the_switch_reads_and_writes_every_members_memory() -> None:
    step = leave("coconet-nvls")
    expected = int(step.machine.costs.stream(2 * step.buffer_bytes).ps)
    alone = leave("coconet-nvls", sequence_parallel=True)
    scattered = int(alone.machine.costs.stream(step.buffer_bytes * (N + 1) // N).ps)
    gathered = enter("coconet-nvls")
    spread = int(gathered.machine.costs.stream(step.buffer_bytes * (N + 1) // N).ps)
    for rank in range(N):
        assert step.spent_ps(Kind.COMBINE_MEMORY, rank) == pytest.approx(expected, rel=0.01)
        assert alone.spent_ps(Kind.COMBINE_MEMORY, rank) == pytest.approx(scattered, rel=0.01)
        assert gathered.spent_ps(Kind.DISPATCH_MEMORY, rank) == pytest.approx(spread, rel=0.01)


def test_blocks_in_the_switch_load_and_store_their_share() -> None:
    step = leave("coconet-nvls")
    costs, share = step.machine.costs, step.buffer_bytes // N
    each = int((costs.sm_load(share) + costs.sm_store(share)).ps)
    for rank in range(N):
        assert step.spent_ps(Kind.COMBINE_SEND, rank) == pytest.approx(each, rel=0.01)


def test_two_kernels_are_launched_at_a_time() -> None:
    step = leave()
    launches = step.graph.kind == Kind.LAUNCH
    started = step.timeline.start_ps[launches & (step.graph.rank == 0)]
    assert len(started) == 2 and started[0] == started[1]


def test_rows_and_sums_take_the_time_of_their_ports() -> None:
    """No more than a port carries: payload over the time of a ring whose product is nothing."""
    small = OneStep("coconet", Leave, k=64, tokens=8192, hidden=8192, chunks=4)
    wire = small.wire_ps(2 * (N - 1) * small.buffer_bytes // N)
    assert wire < small.time_ps < 1.25 * wire


def test_options_that_are_not_possible_are_refused_in_one_line() -> None:
    for option in ({"blocks": 0}, {"chunks": -1}, {"overlap": "perhaps"}):
        with pytest.raises(UserError) as refusal:
            find("coconet", "tp").with_options(option)
        assert "\n" not in str(refusal.value)


def test_two_gpus_exchange_without_the_switch() -> None:
    layer = OneStep("coconet", Leave, k=64, num_ranks=2, tokens=64, hidden=64).layer
    assert find("coconet-nvls", "tp").refuses(layer) == ("NCCL uses the switch for 3 GPUs or more, not for 2")


def test_options_are_in_the_description() -> None:
    described = find("coconet", "tp").with_options({"sequence_parallel": "true"}).describe()
    assert described["sequence_parallel"] is True
    assert described["options"] == {
        "blocks": 16,
        "chunks": 0,
        "overlap": True,
        "sequence_parallel": True,
    }
    names = [find("coconet", "tp"), find("coconet", "tp").with_options({"sequence_parallel": True})]
    assert [one.traffic for one in names] == [("none", "ring-all"), ("ring", "ring")]
