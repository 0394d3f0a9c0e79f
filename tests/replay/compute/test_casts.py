"""Rows that travel in another type than the GEMMs read: bytes and SM time by hand, by scheme."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import TaskGraph, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers as small_layers
from replay.schemes.options import about
from replay.schemes.registry import EXAMPLES

HIDDEN = 200
BYTES = {"bf16": 400, "fp8": 200 + 2 * 4, "fp32": 800}  # of a row; two FP8 scales
IDS = [[0, 1], [0, 1], [0, 2], [2, 3], [1, 3], [0, 3]]  # experts 0 and 1 on rank 0, 2 and 3 on 1
PAIRS = np.array([7, 5])  # (token, expert) of each rank
COPIES = np.array([5, 4])  # (token, rank)

KERNELS = {  # rows that a kernel of its own casts
    "nccl-alltoall": PAIRS,
    "pangu": PAIRS,
    "plain": PAIRS,
    "nvls": PAIRS,
    "dysharp-basic": PAIRS,
    "deepep": COPIES,
}
FUSED = {"comet", "flux", "flashdmoe", "dysharp", "dysharp-fusion-only", "dysharp-comet", "moe-hub"}
NO_CHANGES: Mapping[str, float] = MappingProxyType({})
OWN_TYPE = {"megatron", "megatron-allgather", "tutel", "fastermoe"}  # rows travel as tokens are
NOTHING = {"ideal"}  # its rows are where and what they should be

MIXED = [("fp8", "bf16"), ("bf16", "fp8"), ("fp32", "bf16")]


def work(rows_out: str, gemm: str, *, back: str = "bf16", is_backward: bool = False) -> LayerWork:
    ids = np.array(IDS, np.int32)
    return small_layers.work(
        ids,
        2,
        4,
        shape=ExpertShape(HIDDEN, 64),
        is_backward=is_backward,
        precision=Precision("bf16", gemm=gemm, dispatch=rows_out, combine=back),
    )


def graph_of(name: str, layer: LayerWork, changes: Mapping[str, float] = NO_CHANGES, **options: object) -> TaskGraph:
    """The scheme's graph where a byte takes a picosecond in memory, and in an SM each way."""
    system = hwmodel.load(
        "dgx-h100",
        {
            "hbm.peak_GB_per_s": 1000.0,
            "hbm.stream_efficiency": 1.0,
            "hbm.read_efficiency": 1.0,
            "hbm.write_efficiency": 1.0,
            "gpu.sm_read_GB_per_s": 1000.0,
            "gpu.sm_write_GB_per_s": 1000.0,
            "gpu.sm_push_GB_per_s": 1000.0,
            **changes,
        },
    )
    scheme = (SCHEMES | EXAMPLES)[name]
    return build_layer(layer, system, scheme.with_options({**scheme.unpadded, **options}))[0]


def cases(names: Iterable[str], types: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Schemes with types of rows out and of GEMMs that their code has."""
    return [
        (name, rows_out, gemm)
        for name in sorted(names)
        for rows_out, gemm in types
        if rows_out in find(name).dispatch_types and gemm in find(name).gemm_types
    ]


def spent(graph: TaskGraph, kind: Kind, *, in_memory: bool) -> list[int]:
    """Picoseconds of each rank's tasks of a kind, of those in memory or of those elsewhere."""
    is_memory = np.array([*graph.resources.groups, ""])[graph.resource] == "hbm"
    chosen = (graph.kind == kind) & (is_memory == in_memory)
    return np.bincount(graph.rank[chosen], graph.duration_ps[chosen], 2).astype(int).tolist()


def test_every_scheme_is_one_of_these() -> None:
    assert set(KERNELS) | FUSED | NOTHING <= set(SCHEMES | EXAMPLES)
    assert not FUSED & set(KERNELS)


@every(("name", "rows_out", "gemm"), cases(KERNELS, MIXED))
def test_a_kernel_reads_what_came_and_writes_operands(name: str, rows_out: str, gemm: str) -> None:
    graph = graph_of(name, work(rows_out, gemm))
    expected = (KERNELS[name] * (BYTES[rows_out] + BYTES[gemm])).tolist()
    assert spent(graph, Kind.CAST, in_memory=True) == expected
    assert spent(graph, Kind.CAST, in_memory=False) == [0, 0]


@every(("name", "rows_out", "gemm"), cases(FUSED, MIXED))
def test_a_fused_kernel_casts_every_row_on_an_sm(name: str, rows_out: str, gemm: str) -> None:
    graph = graph_of(name, work(rows_out, gemm))
    expected = (PAIRS * (BYTES[rows_out] + BYTES[gemm])).tolist()
    assert spent(graph, Kind.CAST, in_memory=True) == expected
    assert spent(graph, Kind.CAST, in_memory=False) == expected


def test_moe_hub_without_its_availability_manager_casts_too() -> None:
    graph = graph_of("moe-hub", work("fp8", "bf16"), dam=False)
    expected = (PAIRS * (BYTES["fp8"] + BYTES["bf16"])).tolist()
    assert spent(graph, Kind.CAST, in_memory=False) == expected


@pytest.mark.parametrize(("name", "one", "same"), cases({*KERNELS, *FUSED, *NOTHING}, ((one, one) for one in BYTES)))
def test_one_type_casts_nothing(name: str, one: str, same: str) -> None:
    assert not (graph_of(name, work(one, same)).kind == Kind.CAST).any()


@every("name", sorted({*KERNELS, *FUSED}))
def test_no_gemm_begins_before_the_cast(name: str) -> None:
    """On every rank the way from each cast leads to the first GEMM, which has as many new waits."""
    graph = graph_of(name, work("fp8", "bf16"))
    source, target = graph.edges()
    follows: dict[int, list[int]] = {}
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        follows.setdefault(one, []).append(other)
    for task in np.flatnonzero(graph.kind == Kind.CAST).tolist():
        seen, ahead = set(), [task]
        while ahead:
            new = [one for one in follows.get(ahead.pop(), []) if one not in seen]
            seen.update(new)
            ahead += new
        kinds = set(graph.kind[sorted(seen)].tolist())
        assert {Kind.GEMM1, Kind.GEMM2} <= kinds


@every("name", ["nccl-alltoall", "deepep", "nvls"])
def test_rows_are_copied_to_their_experts_as_operands(name: str) -> None:
    """FP8 rows out, BF16 GEMMs: the copies behind the cast have BF16 rows."""
    mixed, plain = (
        np.array(spent(graph_of(name, work(rows_out, "bf16")), Kind.PERMUTE, in_memory=True))
        for rows_out in ("fp8", "bf16")
    )
    sent = np.array([6, 6])  # pairs of each source
    tokens = np.array([3, 3])
    saved = {
        # Before the all-to-all rows are copied in the type that travels.
        "nccl-alltoall": (tokens + sent) * (BYTES["bf16"] - BYTES["fp8"]),
        "deepep": 0 * sent,
        # The kernel that picks rows out of all that were gathered is in front of the cast.
        "nvls": (COPIES + PAIRS) * (BYTES["bf16"] - BYTES["fp8"]),
    }[name]
    assert (plain - mixed).tolist() == saved.tolist()


@pytest.mark.parametrize("is_backward", [False, True])
def test_the_last_gemm_writes_what_travels_back(is_backward: bool) -> None:
    """FP32 rows back out of BF16 GEMMs: no kernel, but four bytes a value."""
    narrow, wide = (
        replay_layer(
            work("bf16", "bf16", back=back, is_backward=is_backward),
            hwmodel.load("dgx-h100"),
            SCHEMES["ideal"].with_options({"form": "kernels"}),
        ).measures.mechanisms.cache["results"]
        for back in ("bf16", "fp32")
    )
    more = int(PAIRS.sum()) * (BYTES["fp32"] - BYTES["bf16"])
    assert wide.first_bytes - narrow.first_bytes == more


@pytest.mark.parametrize("name", ["nccl-alltoall", "plain"])
def test_fp8_rows_back_are_made_at_the_experts_and_read_by_the_sum(name: str) -> None:
    bf16, fp8 = (
        np.array(spent(graph_of(name, work("bf16", "bf16", back=back)), Kind.UNPERMUTE, in_memory=True))
        for back in ("bf16", "fp8")
    )
    made = PAIRS * (BYTES["bf16"] + BYTES["fp8"])
    read = np.array([6, 6]) * (BYTES["bf16"] - BYTES["fp8"])  # of the rows of a rank's own tokens
    assert (fp8 - bf16).tolist() == (made - read).tolist()


# ---- before the dispatch -------------------------------------------------------------------------

TOKENS = np.array([3, 3])  # of each rank
SENT_ROWS = {  # rows that a kernel which casts stores, own copies included, and rows that it casts
    "dysharp": ([4, 5], TOKENS),
    "dysharp-basic": ([4, 5], TOKENS),
    "dysharp-comet": ([4, 5], TOKENS),
    "dysharp-fusion-only": ([4, 5], TOKENS),
    "moe-hub": ([6, 6], TOKENS),
    "flashdmoe": ([6, 6], [6, 6]),  # every packet's block casts for itself
}
CAST_KERNELS = {*KERNELS, "comet", "flux"} - set(SENT_ROWS)  # theirs may be fetched by several GPUs


def test_every_scheme_casts_in_one_of_two_ways() -> None:
    with_tests_of_their_own = {
        "ccfuser",
        "deepep-ll",
        "deepep-v2",
        "fastermoe",
        "flashinfer-push",
        "hybrid-ep",
        "megamoe",
        "megamoe-hopper",
        "mok",  # in FP8 as its rows come
        "nccl-allgather",  # that of nvls, where ranks have equally many tokens
        "nccl-ep",
        "trtllm-alltoall",
        "nccl-ep-ht",
    }
    others = NOTHING | OWN_TYPE | with_tests_of_their_own
    assert CAST_KERNELS | set(SENT_ROWS) | others == set(SCHEMES | EXAMPLES)


@every("is_backward", [False, True])
@every("gemm", ["fp8", "bf16"])
@every("name", sorted(CAST_KERNELS))
def test_a_kernel_casts_every_token_before_the_dispatch(name: str, gemm: str, is_backward: bool) -> None:
    graph = graph_of(name, work("fp8", gemm, is_backward=is_backward))
    expected = (TOKENS * (BYTES["bf16"] + BYTES["fp8"])).tolist()
    assert spent(graph, Kind.TOKEN_CAST, in_memory=True) == expected
    assert (graph.kind == Kind.TOKEN_CAST).sum() == 2


@every("stack", ["bare", "sglang", "vllm"])
def test_every_stack_of_deepep_casts(stack: str) -> None:
    graph = graph_of("deepep", work("fp8", "fp8"), stack=stack)
    expected = (TOKENS * (BYTES["bf16"] + BYTES["fp8"])).tolist()
    assert spent(graph, Kind.TOKEN_CAST, in_memory=True) == expected


def variants() -> list[tuple[str, dict[str, object]]]:
    """Schemes whose rows travel as FP8, with each flag turned and each word of each choice."""
    found: list[tuple[str, dict[str, object]]] = []
    # Warps of deepep-ll cast a token as they send it, which its own tests tell; a tile's turn is
    # behind the dispatch.
    for name, scheme in SCHEMES.items():
        if "fp8" not in scheme.dispatch_types or name in {*NOTHING, "deepep-ll"}:
            continue
        found.append((name, {}))
        for one in about(scheme.options):
            held = getattr(scheme.options, one.name)
            others = [not held] if isinstance(held, bool) else one.examples
            if one.name != "tile_order":
                # A list of kernels of a pair of passes has no layers by themselves; in DeepGEMM's
                # own comparison rows are cast before, which its own test tells.
                lists = (*getattr(scheme, "lists", ()), "deepgemm") if one.name == "stack" else ()
                if one.name == "transport":  # between nodes alone
                    continue
                found += [(name, {one.name: other}) for other in others if other != held and other not in lists]
    return found


@pytest.mark.parametrize("is_backward", [False, pytest.param(True, marks=pytest.mark.extended)])
@every(("name", "options"), variants())
def test_no_option_leaves_the_cast_of_tokens_out(name: str, options: dict[str, object], is_backward: bool) -> None:
    """Each token is read in BF16 once, and written in FP8 where no kernel sends it at once."""
    written = 0 if name in {*SENT_ROWS, "flashinfer-push"} else BYTES["fp8"]
    expected = (TOKENS * (BYTES["bf16"] + written)).tolist()
    back = "fp8" if name == "flashinfer-push" else "bf16"
    if is_backward and len(find(name).passes) == 1:
        return
    layer = work("fp8", "fp8", back=back, is_backward=is_backward)
    graph = graph_of(name, layer, **options)
    assert spent(graph, Kind.TOKEN_CAST, in_memory=True) == expected


@every("is_backward", [False, True])
@every("name", sorted(SENT_ROWS))
def test_a_kernel_that_sends_casts_as_it_reads(name: str, is_backward: bool) -> None:
    graph = graph_of(name, work("fp8", "fp8", is_backward=is_backward))
    assert spent(graph, Kind.TOKEN_CAST, in_memory=True) == (TOKENS * BYTES["bf16"]).tolist()
    rows, cast = (np.array(each) for each in SENT_ROWS[name])
    stored = BYTES["fp8"] + (8 if name == "moe-hub" else 0)  # with the address of the way back
    expected = (rows * stored + cast * BYTES["bf16"]).tolist()
    assert spent(graph, Kind.DISPATCH_SEND, in_memory=False) == expected


@pytest.mark.parametrize("segment_packets", [1, 0])
def test_parts_of_a_row_are_cast_by_their_bytes(segment_packets: int) -> None:
    graph = graph_of("dysharp", work("fp8", "fp8"), segment_packets=segment_packets)
    # Segments of 128 and 80 bytes: 246.2 and 153.8 bytes of the token, each rounded up.
    each = [247 + 154, 400][segment_packets == 0]
    expected = [4 * 208 + 3 * each, 5 * 208 + 3 * each]
    assert spent(graph, Kind.DISPATCH_SEND, in_memory=False) == expected


@every(
    ("name", "rows_out", "gemm"),
    cases({*CAST_KERNELS, *SENT_ROWS, *NOTHING}, (("bf16", "bf16"), ("fp32", "bf16"))),
)
def test_tokens_that_travel_as_they_are_are_not_cast(name: str, rows_out: str, gemm: str) -> None:
    graph = graph_of(name, work(rows_out, gemm))
    assert not (graph.kind == Kind.TOKEN_CAST).any()


@every("is_backward", [False, True])
@every("name", sorted({*CAST_KERNELS, *SENT_ROWS}))
def test_no_row_leaves_before_its_token_is_read(name: str, is_backward: bool) -> None:
    """In a memory so slow that nothing else counts, what leaves waits for what is cast."""
    slow = {"hbm.peak_GB_per_s": 0.001}
    graph = graph_of(name, work("fp8", "fp8", is_backward=is_backward), slow)
    timeline = schedule(graph)
    for rank in (0, 1):
        cast, sent = ((graph.kind == kind) & (graph.rank == rank) for kind in (Kind.TOKEN_CAST, Kind.DISPATCH_UP))
        first, last = (np.min, np.max) if name in SENT_ROWS else (np.max, np.max)
        assert timeline.start_ps[sent].min() >= first(timeline.end_ps[cast])
        assert timeline.start_ps[sent].max() >= last(timeline.end_ps[cast])


@every("name", ["dysharp", "flashdmoe", "moe-hub"])
def test_tokens_are_read_in_64_tasks_at_most(name: str) -> None:
    ids = np.arange(130, dtype=np.int32)[:, None] % 4
    layer = small_layers.work(ids, 2, 4, tokens_of_rank=[129, 1], precision="fp8", shape=ExpertShape(HIDDEN, 64))
    graph = graph_of(name, layer)
    reads = graph.rank[graph.kind == Kind.TOKEN_CAST].tolist()
    assert (reads.count(0), reads.count(1)) == (43, 1)  # 3 tokens each
    assert spent(graph, Kind.TOKEN_CAST, in_memory=True) == [129 * 400, 400]


# ---- between the GEMMs ---------------------------------------------------------------------------


@every("is_backward", [False, True])
@every("gemm", ["fp8", "bf16"])
def test_megatrons_activation_leaves_quantisation_to_the_next_kernel(gemm: str, is_backward: bool) -> None:
    graph = graph_of("nccl-alltoall", work("bf16", gemm, is_backward=is_backward))
    product, gate_up = 64, 128  # columns; values of two bytes, scales of FP8 for 128 values
    read, written = (product + gate_up, gate_up + product) if is_backward else (gate_up, product)
    quantised = product + 4 + (gate_up + 4 if is_backward else 0)
    kernels = [PAIRS * 2 * (read + written)]
    if gemm == "fp8":
        kernels.append(PAIRS * (2 * written + quantised))
    for rank in (0, 1):
        chosen = (graph.kind == Kind.ACTIVATION) & (graph.rank == rank)
        assert graph.duration_ps[chosen].tolist() == [each[rank] for each in kernels]


@every("name", ["nvls", "dysharp-basic", "plain"])
def test_other_activations_write_operands(name: str) -> None:
    graph = graph_of(name, work("fp8", "fp8"))
    assert spent(graph, Kind.ACTIVATION, in_memory=True) == (PAIRS * (2 * 128 + 64 + 4)).tolist()
    assert (graph.kind == Kind.ACTIVATION).sum() == 2
