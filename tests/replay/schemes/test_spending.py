"""What schemes spend beside the wire, by hand: memory, kernels, host waits, time of SMs.

On the layer of `spending`, with two-byte rows out and four-byte rows back, so that the two differ.
"""

from __future__ import annotations

import pytest
from round_machine import NS
from spending import (
    COLUMNS,
    COPIES_IN,
    COPIES_OUT,
    HIDDEN,
    INTERMEDIATE,
    OWNED,
    PAIRS,
    SENT,
    TOKENS,
    Each,
    each,
    layer,
    replay,
)

from replay.machine.kinds import Kind
from replay.work.layer import Precision

TYPES = Precision("bf16", combine="fp32")
TWO, FOUR = 2, 4
ROW, BACK = TWO * HIDDEN, FOUR * HIDDEN
WRITTEN = 2  # a byte that an elementwise kernel writes counts as two that it reads
PUSH, READ, WRITE = 10, 5, 20  # ps a byte: an SM stores to a peer, reads and writes its own memory
PULL = 20  # the slower of reading and writing

Costs = dict[tuple[Kind, str], Each]

FUSED = ["dysharp", "dysharp-comet", "dysharp-fusion-only", "moe-hub", "flashdmoe"]
APART = ["plain", "ideal", "dysharp-basic"]
KERNELS = {
    "plain": 6,  # stores, GEMM, activation, GEMM, stores, sums
    "ideal": 3,
    "dysharp": 1,
    "dysharp-comet": 2,
    "dysharp-fusion-only": 1,
    "dysharp-basic": 5,  # pushes, GEMM, activation, GEMM, pulls
    "moe-hub": 1,
    "flashdmoe": 1,
}
# FlashDMoE has four (expert, owner) on each GPU, whose tiles are worked on as if they were full.
ROWS = dict.fromkeys(KERNELS, PAIRS) | {"flashdmoe": (4 * 128,) * 3}
TILES = dict.fromkeys(KERNELS, 2) | {"flashdmoe": 4 * 2}
"""Heights of 64 rows on each GPU."""
OVERHEADS = dict.fromkeys(KERNELS, 2 * 11 * NS) | {"flashdmoe": 4 * 11 * NS // 2}
"""Overheads of one column of tiles; two blocks on an SM hide half of each other's."""
RESULTS = dict.fromkeys(KERNELS, BACK) | {"moe-hub": 0, "flashdmoe": 0}
"""Bytes of a row that the last GEMM writes to memory and not to another GPU."""


def tile_ps(scheme: str, columns: int, inner: int) -> Each:
    """SM time of one GEMM: an operation takes a picosecond."""
    one = TILES[scheme] * 2 * 64 * columns * inner + columns // 64 * OVERHEADS[scheme]
    return one, one, one


def weights(columns: int, inner: int) -> Each:
    """Bytes of two experts."""
    return (2 * TWO * columns * inner,) * 3


def memory_of_experts(scheme: str) -> Costs:
    rows, fused = ROWS[scheme], scheme in FUSED
    costs = {
        (Kind.GEMM1, "weights"): weights(COLUMNS, HIDDEN),
        (Kind.GEMM1, "activations"): each((ROW, rows)),
        (Kind.GEMM1, "results"): each((TWO * (INTERMEDIATE if fused else COLUMNS), rows)),
        (Kind.GEMM2, "weights"): weights(HIDDEN, INTERMEDIATE),
        (Kind.GEMM2, "results"): each((RESULTS[scheme], rows)),
    }
    if not fused:  # an activation kernel between the two
        costs[Kind.ACTIVATION, ""] = each((TWO * (COLUMNS + INTERMEDIATE), rows))
        costs[Kind.GEMM2, "activations"] = each((TWO * INTERMEDIATE, rows))
    return {key: spent for key, spent in costs.items() if any(spent)}


def memory_of_rows(scheme: str) -> Costs:
    if scheme == "plain":
        return {(Kind.UNPERMUTE, ""): each((BACK, OWNED), (WRITTEN * BACK, TOKENS))}
    if scheme == "ideal":
        return {}
    # What SMs add up is in their registers, or in the cache, and the sum is written.
    return {(Kind.COMBINE_MEMORY, ""): each((WRITTEN * BACK, TOKENS))}


PUSHES = each((PUSH * ROW, SENT), (PUSH * ROW, COPIES_IN))
IN_SWITCH: Costs = {
    # A token is stored once for all others, and once into the own memory; asked for once, and
    # added to the own row.
    (Kind.DISPATCH_SEND, ""): PUSHES,
    (Kind.COMBINE_SEND, ""): each((PULL * BACK, SENT)),
    (Kind.COMBINE_RECEIVE, ""): each(
        (READ * BACK, SENT), (READ * BACK, COPIES_IN), (WRITE * BACK, TOKENS)
    ),
}
MOVERS: dict[str, Costs] = {
    "ideal": {},
    "plain": {
        (Kind.DISPATCH_SEND, ""): each((PUSH * ROW, OWNED)),
        (Kind.COMBINE_SEND, ""): each((PUSH * BACK, PAIRS)),
    },
    "dysharp": IN_SWITCH,
    "dysharp-comet": IN_SWITCH,
    "dysharp-basic": IN_SWITCH,
    "dysharp-fusion-only": {
        (Kind.DISPATCH_SEND, ""): each((PUSH * ROW, COPIES_OUT), (PUSH * ROW, COPIES_IN)),
        (Kind.COMBINE_SEND, ""): each((PULL * BACK, COPIES_OUT)),
        (Kind.COMBINE_RECEIVE, ""): each(
            (READ * BACK, COPIES_OUT), (READ * BACK, COPIES_IN), (WRITE * BACK, TOKENS)
        ),
    },
    "moe-hub": {
        (Kind.DISPATCH_SEND, ""): each((PUSH * (ROW + 8), OWNED)),  # the return address
        (Kind.COMBINE_SEND, ""): each((PUSH * BACK, PAIRS)),
        (Kind.COMBINE_RECEIVE, ""): each((READ * BACK, OWNED), (WRITE * BACK, TOKENS)),
    },
    "flashdmoe": {
        (Kind.DISPATCH_SEND, ""): each((PUSH * ROW, OWNED)),
        # The epilogue sends; tiles are added to their tokens one by one.
        (Kind.COMBINE_RECEIVE, ""): each(((READ + WRITE) * BACK, OWNED)),
    },
}  # fmt: skip


@pytest.mark.parametrize("scheme", KERNELS)
class TestForward:
    """One layer, by hand."""

    def test_memory(self, scheme: str) -> None:
        expected = memory_of_experts(scheme) | memory_of_rows(scheme)
        assert replay(layer(TYPES), scheme).memory == expected

    def test_sms(self, scheme: str) -> None:
        experts = {
            (Kind.GEMM1, ""): tile_ps(scheme, COLUMNS, HIDDEN),
            (Kind.GEMM2, ""): tile_ps(scheme, HIDDEN, INTERMEDIATE),
        }
        assert replay(layer(TYPES), scheme).sms == experts | MOVERS[scheme]

    def test_kernels_and_host(self, scheme: str) -> None:
        spent = replay(layer(TYPES), scheme)
        assert spent.kernels == (KERNELS[scheme],) * 3
        assert spent.host_waits == (0, 0, 0)


@pytest.mark.parametrize("scheme", KERNELS)
def test_a_layer_ends_when_its_sums_are_written(scheme: str) -> None:
    spent = replay(layer(TYPES), scheme)
    graph, visible = spent.timeline.graph, spent.timeline.visible_ps
    last = Kind.GEMM2 if scheme == "ideal" else next(kind for kind, _ in memory_of_rows(scheme))
    for gpu in range(3):
        written = visible[(graph.kind == last) & (graph.rank == gpu)]
        assert visible[spent.ends[gpu]] >= written.max()


def gradients() -> tuple[Each, Each]:
    """Memory and SM time of the weight gradients of both projections."""
    rows = ((3, 2), (4, 2), (3, 2))  # of each GPU's experts
    memory, sms = [], []
    for of_gpu in rows:
        memory.append(
            sum(
                number * (inner + HIDDEN) * TWO + 2 * FOUR * inner * HIDDEN
                for number in of_gpu
                for inner in (COLUMNS, INTERMEDIATE)
            )
        )
        sms.append(
            sum(
                2 * number * inner * HIDDEN + (inner // 64) * (HIDDEN // 64) * 11 * NS
                for number in of_gpu
                for inner in (COLUMNS, INTERMEDIATE)
            )
        )
    return tuple(memory), tuple(sms)  # type: ignore[return-value]  # three GPUs


@pytest.mark.parametrize("scheme", KERNELS)
def test_weight_gradients_read_both_operands_and_their_accumulator(scheme: str) -> None:
    there, back = (replay(layer(TYPES, is_backward=way), scheme) for way in (False, True))
    memory, sms = gradients()
    # In blocks of whole bytes, one for each tile.
    assert back.memory[Kind.WGRAD, "gradients"] == pytest.approx(memory, abs=2 * (48 + 24))
    assert back.sms[Kind.WGRAD, ""] == sms
    assert not [key for key in there.memory | there.sms if key[0] == Kind.WGRAD]
    graph, visible = back.timeline.graph, back.timeline.visible_ps
    for gpu in range(3):
        last = visible[(graph.kind == Kind.WGRAD) & (graph.rank == gpu)].max()
        assert visible[back.ends[gpu]] >= last
    # Kernels of their own, or tiles of the one kernel.
    own = 2 if scheme in APART else 0
    assert back.kernels == (KERNELS[scheme] + own,) * 3
    assert back.host_waits == (0, 0, 0)


@pytest.mark.parametrize("scheme", APART)
def test_gradients_of_rows_pass_memory_between_kernels(scheme: str) -> None:
    memory = replay(layer(TYPES, is_backward=True), scheme).memory
    # Down projection first; the activation reads its result and the forward pass's, and writes the
    # gradients of both halves and the operand of a weight gradient.
    assert memory[Kind.GEMM2, "results"] == each((TWO * INTERMEDIATE, PAIRS))
    assert memory[Kind.ACTIVATION, ""] == each((2 * TWO * (COLUMNS + INTERMEDIATE), PAIRS))
    assert memory[Kind.GEMM1, "activations"] == each((TWO * COLUMNS, PAIRS))
    assert memory[Kind.GEMM1, "results"] == each((BACK, PAIRS))


def test_without_launch_on_arrival_kernels_follow_one_another() -> None:
    spent = replay(layer(TYPES), "moe-hub", dam=False)
    assert spent.kernels == (4, 4, 4)  # routing, two GEMMs, sums
    assert spent.host_waits == (0, 0, 0)
    fused = replay(layer(TYPES), "moe-hub")
    assert (spent.memory, spent.sms) == (fused.memory, fused.sms)
    assert replay(layer(TYPES, is_backward=True), "moe-hub", dam=False).kernels == (6, 6, 6)
