"""What schemes spend beside the wire, by hand: memory, kernels, host waits, time of SMs.

On the layer of `spending`, with two-byte rows out and four-byte rows back, so that the two differ.
"""

from __future__ import annotations

import pytest
from loops import every
from round_machine import NS
from spending import (
    COLUMNS,
    COPIES_IN,
    COPIES_OUT,
    HELD,
    HIDDEN,
    INTERMEDIATE,
    OWNED,
    PAIRS,
    SENT,
    STAYED,
    TOKENS,
    Each,
    Spent,
    each,
    layer,
)
from spending import replay as replay_on

from replay.model.machine.kinds import Kind
from replay.model.work.layer import LayerWork, Precision
from replay.schemes import SCHEMES

TYPES = Precision("bf16", combine="fp32")
TWO, FOUR = 2, 4
ROW, BACK = TWO * HIDDEN, FOUR * HIDDEN
WRITTEN = 2  # a byte that a kernel writes counts as two that it reads
PUSH, READ, WRITE = 10, 5, 20  # ps a byte: an SM stores to a peer, reads and writes its own memory
PULL = 20  # the slower of reading and writing

Costs = dict[tuple[Kind, str], Each]

KERNELS = {
    "plain": 6,  # stores, GEMM, activation, GEMM, stores, sums
    "ideal": 3,
    "dysharp": 1,
    "dysharp-comet": 2,
    "dysharp-fusion-only": 1,
    "dysharp-basic": 5,  # pushes, GEMM, activation, GEMM, pulls
    "moe-hub": 1,
    "flashdmoe": 1,
    # Counts, sums to send, gather, four sums to receive, three copies of splits beside that of the
    # wait, three of the row map; permute, rows, weights, chunk map, sort; experts; chunk map,
    # unsort, rows, sums.
    "nccl-alltoall": 1 + 1 + 1 + 4 + 3 + 3 + 5 + 3 + 4,
    # A call for each of two experts in either GEMM; or seven copies of arguments before it.
    "megatron": 1 + 1 + 1 + 4 + 3 + 3 + 5 + (2 + 1 + 2) + 4,
    "megatron cutlass": 1 + 1 + 1 + 4 + 3 + 3 + 5 + (8 + 1 + 8) + 4,
    # Three gathers; a slice, its sum and cast, row map, permute, the slice and selection of weights by a mask (seven);
    # experts; sums, a cast to the type of the rows back, reduce-scatter, a cast.
    "megatron-allgather": 3 + 3 + 3 + 1 + 7 + (2 + 1 + 2) + 1 + 1 + 1 + 1,
    # Three choices: masks, places, ids; largest place, all-reduce; casts, zeroes, encode; rows,
    # order of experts, experts, order of ranks, rows; decode and additions.
    "tutel": 2 * 3 + (5 + 7 + 8) + 3 + 3 + 1 + (2 + 1 + 3) + 1 + 1 + 3 + 1 + 1 + (3 + 2),
    # Layout, notify, dispatch, GEMM, activation, GEMM, notify, combine; and the stack's.
    "deepep bare": 8 + 2,
    "deepep sglang": 8 + 1 + 3 + 1,
    "deepep vllm": 8 + 7 + 1 + 1,
    "megamoe": 2,  # tokens to where peers read them
    "megamoe-hopper": 2,
    "deepep-ll": 6,  # ids, dispatch, GEMM, activation, GEMM, combine
    "deepep-v2": 5,  # dispatch, GEMM, activation, GEMM, combine; no gap before the epilogues
    # Gather, two memsets, scan, padded counts; expected values, meeting, dispatch, meeting, permute; experts;
    # unpermute, and the same four of the combine.
    "hybrid-ep": 5 + 5 + 3 + 5,
    "nvls": 12,  # three gathers, two counts, permute, experts, zeroes, scatter-add, reduce-scatter
    # Ids to all, two kernels of indices, buffer, barrier, two of indices; dispatch and GEMM;
    # barrier, activation, three copies, a counter, indices; GEMM and combine; barrier, flags, sums.
    "flux": 7 + 1 + 7 + 1 + 3,
    "comet": 4,
    # Counts, gather, positions, seven lists; copies to the heap, three kernels of zeros, barrier;
    # get and GEMM, activation, zeros, GEMM and put, barrier; zeros, order, sums.
    "ccfuser": 3 + 7 + 1 + 3 + 1 + 5 + 3,
}
"""Of each scheme, and of options of some; what comes behind the name is explained by `OPTIONS`."""
OPTIONS = {
    "megatron cutlass": {"experts": "cutlass"},
    "deepep bare": {"stack": "bare"},
    "deepep sglang": {"stack": "sglang"},
    "deepep vllm": {"stack": "vllm"},
    "moe-hub without counters": {"dam": False},
    "ccfuser": {"loads_ahead": True},
}
KERNELS_BACK = KERNELS | {
    "plain": 6 + 2,
    "ideal": 3 + 2,
    "dysharp-basic": 5 + 2,
    "nccl-alltoall": 1 + 1 + 1 + 5 + 1 + 2 + 1,  # no counts, no maps; gradients of weights go back
    "megatron": 1 + 1 + 1 + (4 * 2 + 1) + 1 + 2 + 1,
    "megatron cutlass": 1 + 1 + 1 + (4 * 8 + 1) + 1 + 2 + 1,
    "megatron-allgather": 1 + 1 + (4 * 2 + 1) + 1 + 1 + 1 + 1 + 1,  # and gradients of probabilities
    "tutel": (2 + 1 + 3) + 3 + 1 + 1 + 5 + 1 + 1 + (3 + 2),  # and gradients of gate weights
    # What engines add is for serving; the layout and its counts are known.
    **dict.fromkeys(("deepep bare", "deepep sglang", "deepep vllm"), 2 + 1 + 5 + 1 + 2),
    "deepep-v2": 1 + 5 + 1,
    "hybrid-ep": 5 + 5 + 5,
    "nvls": 1 + 1 + 5 + 2 + 1,
    "flux": 4 + 1 + 7 + 1 + 3 + 2,  # ids and the first indices are known
    "comet": 2 + 2,
    "ccfuser": 1 + 3 + 1 + 5 + 2 + 2 * 2,  # with a transpose before the gradients; added at once
}
"""Of a backward pass, with a kernel for the weight gradients of each projection or none."""
WAITS = dict.fromkeys(KERNELS, 0) | dict.fromkeys(
    (
        "nccl-alltoall",
        "megatron",
        "megatron cutlass",
        "tutel",
        "deepep bare",
        "deepep sglang",
        "deepep vllm",
        "deepep-v2",
        "flux",
        "ccfuser",
        "hybrid-ep",
    ),
    1,
)
WAITS["megatron-allgather"] = 2
FUSED = [
    "dysharp",
    "dysharp-comet",
    "dysharp-fusion-only",
    "moe-hub",
    "flashdmoe",
    "comet",
    "megamoe",
    "megamoe-hopper",
]
APART = [
    "plain",
    "ideal",
    "dysharp-basic",
    "nccl-alltoall",
    "megatron",
    "megatron cutlass",
    "deepep bare",
    "hybrid-ep",
    "nvls",
    "flux",
]
CACHED = [
    "dysharp",
    "dysharp-comet",
    "dysharp-fusion-only",
    "moe-hub",
    "flashdmoe",
    "comet",
    "megamoe",
    "megamoe-hopper",
]
"""The last GEMM finds in the cache what the first wrote."""

# FlashDMoE has four (expert, owner) on each GPU, whose tiles are worked on as if they were full.
# Behind DeepEP each of two experts has whole tiles.
PADDED = dict.fromkeys(("deepep sglang", "deepep vllm", "deepep-v2"), (2 * 128,) * 3)
ROWS = dict.fromkeys(KERNELS, PAIRS) | {"flashdmoe": (4 * 128,) * 3, "deepep-ll": (2 * 64,) * 3}
ROWS |= PADDED | {"ccfuser": (4 * 64,) * 3}  # of four (expert, owner), too
ROWS |= {"tutel": (2 * 3 * 3,) * 3}  # the largest load of a rank for an expert is three rows
WORKED_ON = PADDED | {scheme: ROWS[scheme] for scheme in ("ccfuser", "tutel")}
"""Rows that the activation works on."""
TILES = dict.fromkeys(KERNELS, 2) | {"flashdmoe": 4 * 2, "deepep sglang": 2 * 2, "ccfuser": 4}
"""Heights of 64 rows on each GPU; vLLM's padding is not multiplied."""
OVERHEADS = dict.fromkeys(KERNELS, 2 * 11 * NS) | {"flashdmoe": 4 * 11 * NS // 2}
OVERHEADS |= {"ccfuser": 4 * 11 * NS}
"""Overheads of one column of tiles; two blocks on an SM hide half of each other's."""
RESULTS = dict.fromkeys(KERNELS, BACK) | dict.fromkeys(("moe-hub", "flashdmoe", "megamoe", "megamoe-hopper"), 0)
"""Bytes of a row that the last GEMM writes to memory and not to another GPU."""


def replay(work: LayerWork, scheme: str, **options: str) -> Spent:
    return replay_on(work, scheme.partition(" ")[0], **OPTIONS.get(scheme, {}), **options)


def test_every_scheme_is_here() -> None:
    # They take no mixed types, or no rows in FP8; by hand in their own tests.
    elsewhere = {
        "fastermoe",
        "nccl-ep",
        "nccl-ep-ht",
        "flashinfer-push",
        "pangu",
        "trtllm-alltoall",
    }
    assert {scheme.partition(" ")[0] for scheme in KERNELS} | elsewhere == {*SCHEMES, "plain"}


WIDTHS = {
    "deepep-ll": 16,
    "ccfuser": 512,
    "megamoe": 128,
    "megamoe-hopper": 128,
    "flashdmoe": 128,
}  # deepep-ll: all in one wave
FORWARD_ONLY = ("deepep-ll", "megamoe", "megamoe-hopper")


def column_tiles(scheme: str, columns: int) -> int:
    return -(-columns // WIDTHS.get(scheme, 64))


def tile_ps(scheme: str, columns: int, inner: int) -> Each:
    """SM time of one GEMM: an operation takes a picosecond."""
    overheads = column_tiles(scheme, columns) * OVERHEADS[scheme]
    one = TILES[scheme] * 2 * 64 * columns * inner + overheads
    return one, one, one


def hopper_ps(kind: Kind, spent: Each) -> Each:
    """With what warps do beside the products: two experts have 3 and 2, 4 and 2, 3 and 2 rows."""
    columns = COLUMNS if kind == Kind.GEMM1 else HIDDEN
    tiles = column_tiles("megamoe-hopper", columns)
    loads = 2 * tiles * 20 * NS * (2 if kind == Kind.GEMM1 else 8)
    found = []
    for one, rows in zip(spent, ((3, 2), (4, 2), (3, 2)), strict=True):
        # Seven passes of two bytes, in GEMM-1 three of half as many; shared memory passes a byte a
        # picosecond.
        staged = sum(rows) * columns * (3 if kind == Kind.GEMM1 else 14)
        found.append(one + loads + staged)
    return found[0], found[1], found[2]


def weights(columns: int, inner: int) -> Each:
    """Bytes of two experts."""
    return (2 * TWO * columns * inner,) * 3


def memory_of_experts(scheme: str) -> Costs:
    rows, fused = ROWS[scheme], scheme in FUSED
    costs = {
        (Kind.GEMM1, "weights"): weights(COLUMNS, HIDDEN),
        (Kind.GEMM1, "activations"): each((ROW, rows)),
        (Kind.GEMM1, "results"): each((WRITTEN * TWO * (INTERMEDIATE if fused else COLUMNS), rows)),
        (Kind.GEMM2, "weights"): weights(HIDDEN, INTERMEDIATE),
        (Kind.GEMM2, "results"): each((WRITTEN * RESULTS[scheme], rows)),
    }
    if not fused:  # an activation kernel between the two
        costs[Kind.ACTIVATION, ""] = each((TWO * (COLUMNS + INTERMEDIATE), WORKED_ON.get(scheme, PAIRS)))
    if scheme not in CACHED:
        costs[Kind.GEMM2, "activations"] = each((TWO * INTERMEDIATE, rows))
    return {key: spent for key, spent in costs.items() if any(spent)}


# What SMs add up is in their registers, or in the cache, and the sum is written.
SUMS = each((WRITTEN * BACK, TOKENS))
# Rows that wait for others in memory are read from there.
ANSWERED = each((BACK, PAIRS), (WRITTEN * BACK, TOKENS))
DYSHARP = ["dysharp-basic", "dysharp-fusion-only", "dysharp-comet", "dysharp"]
EVERY, SLOTS, EXPERTS = (1, 1, 1), 6 * 3, 2
"""Each GPU; (token, place among three) of all tokens; experts of a GPU."""

# ---- NCCL ----
GATE = 4
NCCL_ROWS: Costs = {
    # A flag for each token and expert, looked at and then mapped in five passes of four bytes;
    # a count of each expert; four bytes for each row and sort.
    (Kind.LAYOUT, ""): each((6 * (1 + 1 + 5 * 4), TOKENS), (6 * 8, EVERY), (2 * 4, PAIRS)),
    # Gate weights are brought into the order of experts with their rows.
    (Kind.PERMUTE, ""): each((ROW, TOKENS), (WRITTEN * ROW, OWNED), ((1 + WRITTEN) * (ROW + GATE), PAIRS)),
    (Kind.DISPATCH_MEMORY, ""): each((2 * (ROW + GATE), PAIRS)),
    (Kind.COMBINE_MEMORY, ""): each((2 * BACK, OWNED)),
    (Kind.UNPERMUTE, ""): each(((1 + WRITTEN) * BACK, PAIRS), (BACK, OWNED), (WRITTEN * BACK, TOKENS)),
}
# ---- Megatron-LM's all-gather dispatcher ----
# Every rank has three tokens, of nobody if not its own: nine in all, of four-byte probabilities.
ALL, FLAGS = 9, 9 * EXPERTS
ALL_GATHER_ROWS: Costs = {
    (Kind.LAYOUT, ""): each((FLAGS * ((3 + 2 * 4) + (1 + 5 * 4) + (4 + 3 * 4)), EVERY)),
    (Kind.PERMUTE, ""): each((ROW, HELD), (WRITTEN * ROW, PAIRS)),
    # Of maps and probabilities of all six experts, and of rows, in and out of buffers.
    (Kind.DISPATCH_MEMORY, ""): each((2 * ALL * (6 + 6 * 4 + ROW), EVERY)),
    (Kind.COMBINE_MEMORY, ""): each((2 * ALL * BACK, EVERY)),
    # A row for each token of anybody, as tokens are, then as rows go back; its own ones after.
    (Kind.UNPERMUTE, ""): each(
        (BACK, PAIRS),
        (ALL * (WRITTEN * ROW + ROW + WRITTEN * BACK), EVERY),
        (3 * (BACK + WRITTEN * ROW), EVERY),
    ),
}
# ---- Tutel ----
# Of three choices among six experts: masks and places with eight and four bytes, ids; three times
# the places for the largest one.
ONE_HOT = 3 * (6 + 2) * 8 + 6 * (3 * (12 + 8 + 20 + 8) + 2 * (8 + 8)) + 3 * 12 + 3 * 3 * 4
CAPACITIES = ROWS["tutel"]  # as many rows leave a GPU as come
TUTEL_ROWS: Costs = {
    (Kind.LAYOUT, ""): each((ONE_HOT, TOKENS)),
    # Tokens in FP32, zeroes, rows, the buffer as it travels; rows by expert.
    (Kind.PERMUTE, ""): each(
        (ROW + WRITTEN * BACK, TOKENS),
        (WRITTEN * BACK, CAPACITIES),
        ((1 + WRITTEN) * BACK, OWNED),
        (BACK + WRITTEN * ROW, CAPACITIES),
        ((1 + WRITTEN) * ROW, CAPACITIES),
    ),
    (Kind.DISPATCH_MEMORY, ""): each((2 * ROW, CAPACITIES)),
    (Kind.COMBINE_MEMORY, ""): each((2 * BACK, CAPACITIES)),
    # A row for each choice, two additions of two.
    (Kind.UNPERMUTE, ""): each(
        ((1 + WRITTEN) * BACK, CAPACITIES),
        (BACK, OWNED),
        (3 * WRITTEN * BACK, TOKENS),
        (2 * (2 + WRITTEN) * BACK, TOKENS),
    ),
}
# ---- DeepEP ----
IDS, INDEX, WEIGHTS = 3 * 8, 3 * 4, 3 * 4
DEEPEP_ROWS: Costs = {
    (Kind.LAYOUT, ""): each((IDS + 3, TOKENS)),  # and whether a token goes to each of three GPUs
    (Kind.DISPATCH_MEMORY, ""): each((2 * (ROW + 4 + IDS + WEIGHTS), HELD)),
    (Kind.COMBINE_MEMORY, ""): SUMS,
}
BARE: Costs = {
    (Kind.PERMUTE, ""): each((ROW, HELD), (WRITTEN * ROW, PAIRS)),
    (Kind.UNPERMUTE, ""): each((BACK, PAIRS), (WRITTEN * BACK, HELD)),
}
ALL_ROWS = PADDED["deepep sglang"]
SGLANG: Costs = {
    (Kind.PERMUTE, ""): each(
        (INDEX + WRITTEN * IDS, TOKENS),  # ids in eight bytes
        (WRITTEN * 4 * EXPERTS, EVERY),  # counts
        ((1 + WRITTEN) * 4 * EXPERTS, EVERY),
        (WRITTEN * 4, ALL_ROWS),  # the expert of each row
        (ROW + IDS + WRITTEN * IDS, HELD),
        (WRITTEN * ROW, PAIRS),  # rows, and where they are
    ),
    (Kind.UNPERMUTE, ""): each((IDS + WEIGHTS + IDS + WRITTEN * BACK, HELD), (BACK, PAIRS)),
}
VLLM: Costs = {
    (Kind.PERMUTE, ""): each(
        ((3 + 2 * WRITTEN) * IDS, HELD),  # global ids in three kernels
        (WRITTEN * 4 * EXPERTS, EVERY),
        (WRITTEN * 4, ALL_ROWS),  # nobody's, before some are
        ((1 + WRITTEN) * 4 * EXPERTS, EVERY),
        (WRITTEN * 4, PAIRS),
        (ROW + IDS + WRITTEN * INDEX, HELD),
        (WRITTEN * ROW, PAIRS),
    ),
    (Kind.UNPERMUTE, ""): each(
        (IDS + WEIGHTS + INDEX + WRITTEN * BACK, HELD),
        (BACK, PAIRS),
        ((1 + WRITTEN) * BACK, TOKENS),  # the result once more
    ),
}
# Rows of 768 values are sent as if they had 2048, as the low-latency kernels are compiled.
LL_MESSAGE, LL_BACK = TWO * 2048 + 16, FOUR * 2048
LOW_LATENCY_ROWS: Costs = {
    (Kind.LAYOUT, ""): each((3 * (4 + 8), TOKENS)),
    # Tokens to the staging buffer; slots to where the GEMMs read them.
    (Kind.DISPATCH_MEMORY, ""): each((ROW + LL_MESSAGE, TOKENS), (2 * LL_MESSAGE, PAIRS)),
    # Rows that came are in the cache.
    (Kind.COMBINE_MEMORY, ""): each((LL_BACK, PAIRS), (LL_BACK, TOKENS)),
}
# A slot has room for ids, weights, the source and the places of a list, in steps of 32 bytes.
V2_SLOT = ROW + 64
SEVERAL, ALONE = ((2, 2, 1), (4, 4, 2)), (1, 2, 3)
"""(token, GPU) with several experts there, and these; (token, GPU) with one."""
V2_ROWS: Costs = {
    # Slots to the experts' rows, each with its weight; where a row is from and its places.
    (Kind.PERMUTE, ""): each((V2_SLOT + WRITTEN * 4 * (2 + 3), HELD), (WRITTEN * (ROW + 4), PAIRS)),
    (Kind.COMBINE_MEMORY, ""): each((BACK, PAIRS)),
    (Kind.UNPERMUTE, ""): each((BACK, COPIES_OUT), (BACK, COPIES_IN), (WRITTEN * BACK, TOKENS)),
}
# Rows are padded to 1024 values.
HYBRID_OUT, HYBRID_BACK = TWO * 1024, FOUR * 1024
HYBRID_ROWS: Costs = {
    # Sums of 108 blocks for each GPU and own expert, flags of three tokens of each GPU, a token's places;
    # a flag and a place of a received token with each own expert.
    (Kind.LAYOUT, ""): each((108 * (3 + 2) * 8 + 3 * 3 * 8 + 3 * 3 * 4, EVERY), (2 * (1 + 4), HELD)),
    # Places are read again either way, gate weights of a row's own experts alone.
    (Kind.PERMUTE, ""): each((HYBRID_OUT + 2 * 4, HELD), (4 + WRITTEN * (ROW + 4), PAIRS)),
    (Kind.UNPERMUTE, ""): each((BACK, PAIRS), (2 * 4 + WRITTEN * HYBRID_BACK, HELD)),
    (Kind.COMBINE_MEMORY, ""): each((WRITTEN * HYBRID_BACK, TOKENS)),
}
# ---- NVLS ----
NVLS_ROWS: Costs = {
    (Kind.LAYOUT, ""): each((SLOTS * 8 + 2 * 4 * EXPERTS, EVERY)),
    (Kind.PERMUTE, ""): each((SLOTS * (8 + 4), EVERY), (ROW, HELD), (WRITTEN * ROW, PAIRS)),
    # Zeroes for all six tokens; rows are added to what is there.
    (Kind.UNPERMUTE, ""): each((WRITTEN * 6 * BACK, EVERY), (BACK, PAIRS), ((1 + WRITTEN) * BACK, HELD)),
    (Kind.COMBINE_MEMORY, ""): SUMS,
}
# ---- flux ----
FLUX_ROWS: Costs = {
    # Slots counted, and placed; the token of each row; rows by source; in the end the rows of each
    # token here, their number, its place and its owner, and the GPUs that own tokens have rows on.
    (Kind.LAYOUT, ""): each(
        (4 * SLOTS * (1 + 2 + 1 + 1), EVERY),
        (4 * (1 + 3 + 1), PAIRS),
        (4 * 4, HELD),
        (4, COPIES_OUT),
        (4, COPIES_IN),
        (4, TOKENS),
    ),
    (Kind.DISPATCH_MEMORY, ""): each(((1 + WRITTEN) * ROW, TOKENS)),
    (Kind.COMBINE_MEMORY, ""): each((BACK, PAIRS), (WRITTEN * BACK, COPIES_IN)),
    (Kind.UNPERMUTE, ""): each((BACK, COPIES_OUT), (BACK, COPIES_IN), (WRITTEN * BACK, TOKENS)),
}
# ---- CCFuser ----
ALL_TILES = ROWS["ccfuser"]  # none is full, so that all count as remote
CCFUSER_ROWS: Costs = {
    (Kind.LAYOUT, ""): each((4 * (1 + 3), OWNED)),
    (Kind.PERMUTE, ""): each(
        (ROW, TOKENS),
        (WRITTEN * ROW, OWNED),
        (WRITTEN * (ROW + TWO * COLUMNS + BACK), ALL_TILES),  # zeros
    ),
    (Kind.DISPATCH_MEMORY, ""): each(((1 + WRITTEN) * ROW, STAYED)),
    (Kind.COMBINE_MEMORY, ""): each(((1 + WRITTEN) * BACK, STAYED)),
    (Kind.UNPERMUTE, ""): each(
        (WRITTEN * BACK, ALL_TILES),
        (WRITTEN * BACK, OWNED),  # zeros
        ((1 + WRITTEN) * BACK, OWNED),
        (BACK, OWNED),
        (WRITTEN * BACK, TOKENS),
    ),
}
# ---- MegaMoE ----
MEGAMOE_ROWS: Costs = {
    (Kind.LAYOUT, ""): each((2 * IDS, TOKENS)),  # looked at twice
    (Kind.DISPATCH_MEMORY, ""): each(((1 + WRITTEN) * ROW, TOKENS)),
    (Kind.COMBINE_MEMORY, ""): each((BACK, OWNED), (WRITTEN * BACK, TOKENS)),
}
# Pulled by warps that multiply nothing, stored by the epilogue.
MEGAMOE_SMS: Costs = {
    (Kind.COMBINE_RECEIVE, ""): each((READ * BACK, OWNED), (WRITE * BACK, TOKENS)),
}
ROW_KERNELS: dict[str, Costs] = {
    **{scheme: {(Kind.COMBINE_MEMORY, ""): SUMS} for scheme in KERNELS},
    "plain": {(Kind.UNPERMUTE, ""): each((BACK, OWNED), (WRITTEN * BACK, TOKENS))},
    "ideal": {},
    **dict.fromkeys(("nccl-alltoall", "megatron", "megatron cutlass"), NCCL_ROWS),
    "tutel": TUTEL_ROWS,
    "megatron-allgather": ALL_GATHER_ROWS,
    "deepep bare": DEEPEP_ROWS | BARE,
    "deepep sglang": DEEPEP_ROWS | SGLANG,
    "deepep vllm": DEEPEP_ROWS | VLLM,
    "deepep-ll": LOW_LATENCY_ROWS,
    "deepep-v2": V2_ROWS,
    "hybrid-ep": HYBRID_ROWS,
    "nvls": NVLS_ROWS,
    "flux": FLUX_ROWS,
    "comet": {(Kind.LAYOUT, ""): each((6, TOKENS)), (Kind.COMBINE_MEMORY, ""): ANSWERED},
    "ccfuser": CCFUSER_ROWS,
    "megamoe": MEGAMOE_ROWS,
    "megamoe-hopper": MEGAMOE_ROWS,
    **{scheme: {(Kind.COMBINE_MEMORY, ""): ANSWERED} for scheme in DYSHARP},
}
"""Memory of all that moves rows and counts them."""


PUSHES = each((PUSH * ROW, SENT), (PUSH * ROW, COPIES_IN))
IN_SWITCH: Costs = {
    # A token is stored once for all others, and once into its own memory; asked for once, and
    # added to its own row.
    (Kind.DISPATCH_SEND, ""): PUSHES,
    (Kind.COMBINE_SEND, ""): each((PULL * BACK, SENT)),
    (Kind.COMBINE_RECEIVE, ""): each((READ * BACK, SENT), (READ * BACK, COPIES_IN), (WRITE * BACK, TOKENS)),
}
LEFT, CAME = each((1, OWNED), (-1, STAYED)), each((1, PAIRS), (-1, STAYED))
"""(token, expert) that leave their owner, and that come to their expert's GPU."""
FOREIGN = each((1, HELD), (-1, COPIES_IN))
"""(token, GPU) of other GPUs' tokens."""
SOURCES = ((2, 2, 3), (1, 2), (1,))
"""GPUs that return a row of each token, by owner."""
# A token is looked at in 3 ns and its row begun in 40; 0.6 rounds of five loads are 100 ns each and
# their latency, 20 ns of the cache and 40 of memory for one of the 11 / 6 warps that read it.
A_ROW_OUT = 3 * NS + 40 * NS + round(0.6 * (120 * NS + 40 * NS * 6 / 11))
A_SUM = [6 * (10 + sources * 2) * NS for sources in range(4)]  # six steps of 512 bytes
WARPS: Costs = {
    (Kind.DISPATCH_SEND, ""): each((A_ROW_OUT, COPIES_OUT), (A_ROW_OUT, COPIES_IN)),
    (Kind.DISPATCH_RECEIVE, ""): each((2 * (60 + 20) * NS, HELD)),
    (Kind.COMBINE_SEND, ""): each((40 * NS + 3 * (100 + 60) * NS // 2, HELD)),  # of four loads
    (Kind.COMBINE_RECEIVE, ""): tuple(sum(A_SUM[sources] for sources in of_owner) for of_owner in SOURCES),  # type: ignore[dict-item]  # three GPUs
}
NCCL_SMS: Costs = {
    # Protocol LL passes a byte in 100 ps; what stays is read and written.
    (Kind.DISPATCH_SEND, ""): each((100 * (ROW + GATE), LEFT), (PULL * (ROW + GATE), STAYED)),
    (Kind.COMBINE_SEND, ""): each((100 * BACK, CAME), (PULL * BACK, STAYED)),
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
        (Kind.COMBINE_RECEIVE, ""): each((READ * BACK, COPIES_OUT), (READ * BACK, COPIES_IN), (WRITE * BACK, TOKENS)),
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
    **dict.fromkeys(("nccl-alltoall", "megatron", "megatron cutlass"), NCCL_SMS),
    "megatron-allgather": {},  # a ring's blocks hold no SM that another kernel would have
    "tutel": {
        # Six rows to a GPU are within protocol LL on the way out, beyond it on the way back.
        (Kind.DISPATCH_SEND, ""): each((100 * ROW, (12,) * 3), (PULL * ROW, (6,) * 3)),
        (Kind.COMBINE_SEND, ""): each((PUSH * BACK, (12,) * 3), (PULL * BACK, (6,) * 3)),
        (Kind.COMBINE_RECEIVE, ""): each((40 * BACK, (12,) * 3)),
    },
    "deepep bare": WARPS,
    "deepep sglang": WARPS,
    "deepep vllm": WARPS,
    "deepep-ll": {
        # Begun, rounds of eight loads of a warp, the token from memory.
        (Kind.DISPATCH_SEND, ""): each(
            (60 * NS + 40 * NS + 120_469, TOKENS)  # LL_MESSAGE / (8 * 512) * 120 ns
        ),
        # Rounds of seven loads; each GPU has rows of four (expert, owner).
        (Kind.DISPATCH_RECEIVE, ""): each((4 * (40 * NS + 183_571), (1, 1, 1))),
        (Kind.COMBINE_SEND, ""): each((PUSH * LL_BACK, PAIRS)),
        (Kind.COMBINE_RECEIVE, ""): each((READ * LL_BACK, OWNED), (WRITE * LL_BACK, TOKENS)),
    },
    "deepep-v2": {
        (Kind.DISPATCH_SEND, ""): each((PUSH * V2_SLOT, COPIES_OUT), (PUSH * V2_SLOT, COPIES_IN)),
        (Kind.COMBINE_SEND, ""): each((PUSH * BACK, ALONE), (WRITE * BACK, SEVERAL[0]), (READ * BACK, SEVERAL[1])),
    },
    "hybrid-ep": {
        # A look at each GPU for a row and for its gate weights, longer than the stores take.
        (Kind.DISPATCH_SEND, ""): each((30 * NS * 3 * 2, TOKENS)),
        # Into shared memory, and the sums out of it.
        (Kind.COMBINE_SEND, ""): each((READ * HYBRID_BACK, COPIES_OUT), (READ * HYBRID_BACK, COPIES_IN)),
        (Kind.COMBINE_RECEIVE, ""): each((WRITE * HYBRID_BACK, TOKENS)),
    },
    "nvls": {
        (Kind.DISPATCH_SEND, ""): each((PUSH * (ROW + IDS + WEIGHTS), TOKENS)),
        (Kind.COMBINE_SEND, ""): each((PULL * BACK, TOKENS)),
    },
    "flux": {
        (Kind.DISPATCH_SEND, ""): each((PULL * ROW, CAME)),
        (Kind.COMBINE_SEND, ""): each((READ * BACK, PAIRS), (WRITE * BACK, COPIES_IN), (PUSH * BACK, FOREIGN)),
    },
    "comet": {
        (Kind.DISPATCH_SEND, ""): each((PULL * ROW, CAME)),
        (Kind.COMBINE_SEND, ""): each((PUSH * BACK, CAME)),
        (Kind.COMBINE_RECEIVE, ""): each((READ * BACK, OWNED), (WRITE * BACK, TOKENS)),
    },
    "megamoe": MEGAMOE_SMS,
    "megamoe-hopper": MEGAMOE_SMS,
    "ccfuser": {
        # A turn of a loop copies 4 KiB and waits for a peer's memory or its own; two or three rows.
        (Kind.DISPATCH_SEND, ""): each((520 * NS, (2, 3, 2)), (60 * NS, (2, 2, 2)), (PULL * ROW, STAYED)),
        # Or for the cache, a row of 3 KiB at a time.
        (Kind.COMBINE_SEND, ""): each((20 * NS, PAIRS), (PUSH * BACK, CAME), (PULL * BACK, STAYED)),
    },
}


@pytest.mark.parametrize("scheme", KERNELS)
class TestForward:
    """One layer, by hand."""

    def test_memory(self, scheme: str) -> None:
        expected = memory_of_experts(scheme) | ROW_KERNELS[scheme]
        assert replay(layer(TYPES), scheme).memory == expected

    def test_sms(self, scheme: str) -> None:
        experts = {
            (Kind.GEMM1, ""): tile_ps(scheme, COLUMNS, HIDDEN),
            (Kind.GEMM2, ""): tile_ps(scheme, HIDDEN, INTERMEDIATE),
        }
        if scheme == "megamoe-hopper":
            experts = {key: hopper_ps(key[0], spent) for key, spent in experts.items()}
        assert replay(layer(TYPES), scheme).sms == experts | MOVERS[scheme]

    def test_cache(self, scheme: str) -> None:
        # Each tile draws a block of either operand. Each expert has one row of tiles, so that two
        # columns share the load of its rows; FlashDMoE's and CCFuser's have two and share nothing,
        # MegaMoE's for Hopper share nothing.
        heights = 2 if scheme in ("flashdmoe", "ccfuser") else 1
        sharing = 1 if heights == 2 or scheme == "megamoe-hopper" else 2
        expected = {}
        for kind, columns, inner in (
            (Kind.GEMM1, COLUMNS, HIDDEN),
            (Kind.GEMM2, HIDDEN, INTERMEDIATE),
        ):
            expected[kind, "weights"] = each((heights, weights(columns, inner)))
            row = TWO * inner * column_tiles(scheme, columns) // sharing
            expected[kind, "activations"] = each((row, ROWS[scheme]))
        assert replay(layer(TYPES), scheme).cache == expected

    def test_kernels_and_host(self, scheme: str) -> None:
        spent = replay(layer(TYPES), scheme)
        assert spent.kernels == (KERNELS[scheme],) * 3
        assert spent.host_waits == (WAITS[scheme],) * 3


@every("is_backward", [False, True])
@every("scheme", KERNELS)
def test_a_layer_ends_when_sms_and_memory_have_done_all(scheme: str, is_backward: bool) -> None:
    if scheme in FORWARD_ONLY and is_backward:
        return
    # DySHARP's results are pulled, when their GPU may have gone on.
    options = {"results": "cache"} if scheme in DYSHARP else {}
    spent = replay(layer(TYPES, is_backward=is_backward), scheme, **options)
    for gpu, works in enumerate(spent.works):
        assert spent.timeline.visible_ps[spent.ends[gpu]] >= works.max()


def gradients(scheme: str, num_sms: int) -> tuple[Each, Each]:
    """Memory and SM time of the weight gradients of both projections, on so many SMs.

    Six bytes of a value's sum pass at a byte a picosecond, shared by all SMs, which multiply nothing meanwhile.
    """
    rows = ((3, 2), (4, 2), (3, 2))  # of each GPU's experts
    if scheme == "tutel":
        rows = ((9, 9),) * 3
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
                2 * number * inner * HIDDEN + (inner // 64) * (HIDDEN // 64) * 11 * NS + 6 * inner * HIDDEN * num_sms
                for number in of_gpu
                for inner in (COLUMNS, INTERMEDIATE)
            )
        )
    return tuple(memory), tuple(sms)  # type: ignore[return-value]  # three GPUs


@every("scheme", [name for name in KERNELS if name not in FORWARD_ONLY])
def test_weight_gradients_read_both_operands_and_their_accumulator(scheme: str) -> None:
    there, back = (replay(layer(TYPES, is_backward=way), scheme) for way in (False, True))
    memory, sms = gradients(scheme, back.machine.sms.compute)
    # In blocks of whole bytes, one for each tile.
    assert back.memory[Kind.WGRAD, "gradients"] == pytest.approx(memory, abs=2 * (48 + 24))
    assert back.sms[Kind.WGRAD, ""] == sms
    assert not [key for key in there.memory | there.sms if key[0] == Kind.WGRAD]
    graph, visible = back.timeline.graph, back.timeline.visible_ps
    for gpu in range(3):
        last = visible[(graph.kind == Kind.WGRAD) & (graph.rank == gpu)].max()
        assert visible[back.ends[gpu]] >= last
    assert back.kernels == (KERNELS_BACK[scheme],) * 3
    assert back.host_waits == (1 if scheme == "flux" else 0,) * 3


@every("scheme", APART)
def test_gradients_of_rows_pass_memory_between_kernels(scheme: str) -> None:
    memory = replay(layer(TYPES, is_backward=True), scheme).memory
    # Down projection first; the activation reads its result and the forward pass's, and writes the
    # gradients of both halves and the operand of a weight gradient.
    assert memory[Kind.GEMM2, "results"] == each((WRITTEN * TWO * INTERMEDIATE, PAIRS))
    assert memory[Kind.ACTIVATION, ""] == each((2 * TWO * (COLUMNS + INTERMEDIATE), PAIRS))
    assert memory[Kind.GEMM1, "activations"] == each((TWO * COLUMNS, PAIRS))
    assert memory[Kind.GEMM1, "results"] == each((WRITTEN * BACK, PAIRS))


def test_without_launch_on_arrival_kernels_follow_one_another() -> None:
    spent = replay(layer(TYPES), "moe-hub without counters")
    assert spent.kernels == (4, 4, 4)  # routing, two GEMMs, sums
    assert spent.host_waits == (0, 0, 0)
    fused = replay(layer(TYPES), "moe-hub")
    assert (spent.memory, spent.sms) == (fused.memory, fused.sms)
    assert replay(layer(TYPES, is_backward=True), "moe-hub without counters").kernels == (6, 6, 6)
