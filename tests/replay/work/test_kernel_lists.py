"""Lists of kernels: what they count, and that they are data."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from replay.errors import UserError
from replay.model.work.kernel_lists import (
    Expression,
    KernelList,
    KernelSizes,
    ListedOperation,
    load,
    names,
)
from replay.model.work.kernel_lists.lists import Pass

QWEN3_30B = KernelSizes(
    tokens=4096,
    tp=1,
    ranks=16,
    hidden=2048,
    experts=128,
    topk=8,
    heads=32,
    kv_heads=4,
    width=128,
    local=8,
    rows=8 * 4096,
    copies=6 * 4096,
    inner=768,
    vocab=151936,
    parameters=48 * 23 + 3,
)
LAYER = ("attention", "router", "dispatch", "experts", "combine", "gradients")


def kernels(sizes: KernelSizes, parts: tuple[str, ...], preset: str = "", **options: Any) -> int:
    found = load("megatron")
    chosen = found.option_values(preset, **options)
    return sum(one.profiler_kernels for one in found.operations(sizes, chosen, parts=parts))


def waits(**options: Any) -> int:
    found = load("megatron")
    ops = found.operations(QWEN3_30B, found.option_values(**options), parts=LAYER)
    return sum(one.waits for one in ops)


def test_a_tuned_layer_has_fewer_kernels_than_were_profiled() -> None:
    """463,348 in a step of 48 layers and 64 micro-batches, Megatron-Bridge 7ded17dae (25 July 2026).

    The list's are those that the sources name, a kernel for each product of cuBLAS, without copies that
    the driver makes and memsets, which a profiler does not count. Permutes were kernels of their own
    then; they are within HybridEP's since d398aaca2 (31 July), as the preset has it. Its DeepEP was
    34152ae (docker/Dockerfile.ci), in which a kernel of its own gives rows their places.
    """
    profiled = {"preset": "tuned", "permute_in_exchange": False, "places_apart": True}
    layer = kernels(QWEN3_30B, LAYER, **profiled)
    ends = kernels(QWEN3_30B, ("embedding", "head"), **profiled)
    step = 64 * (48 * layer + ends) + kernels(QWEN3_30B, ("optimizer",), **profiled)
    assert kernels(QWEN3_30B, LAYER, "tuned") == 138
    # Two permutes, two unpermutes, a meeting of a node before each exchange, and places.
    assert layer == 138 + 9
    assert step == 451_457 + 64 * 48
    assert (463_348 - step) / (64 * 48) == pytest.approx(2.87, abs=1e-2)  # if all are of layers
    found = load("megatron")
    rows = found.operations(QWEN3_30B, found.option_values(**profiled), parts=LAYER)
    copies = [(one.name, one.by_driver) for one in rows if one.by_driver]
    assert copies == [("inputs of the graph", 1), ("random logits", 1), ("inputs of the graph", 4)]


@pytest.mark.parametrize("local", [1, 8, 32])
def test_experts_have_six_products_each_and_three_kernels_of_activations(local: int) -> None:
    sizes = dataclasses.replace(QWEN3_30B, local=local)
    assert kernels(sizes, ("experts",)) == 6 * local + 3
    # Gradients of weights stay calls of cuBLAS: experts have other numbers of rows.
    assert kernels(sizes, ("experts",), grouped="cutlass") == 4 + 2 * local + 3


def test_a_replayed_graph_has_launches_of_its_own() -> None:
    """Each generator that it draws from gets a seed and an offset; autograd clears two gradients for it."""
    found = load("megatron")

    def beside(**options: Any) -> dict[str, int]:
        rows = found.operations(QWEN3_30B, found.option_values(**options), parts=("router",))
        return {one.name: one.kernels for one in rows if not one.captured and one.kernels > one.by_driver}

    assert beside() == {}
    cleared = {"zeroes for gradients that nothing gives": 2}
    assert beside(graphs="router") == cleared
    drawn = "seeds and offsets of random numbers"
    assert beside(graphs="router", force_balance=True) == {drawn: 2, **cleared}
    assert beside(graphs="attention", force_balance=True) == {"mask of zeroes": 1, drawn: 4, **cleared}


def test_autograd_clears_gradients_of_results_without_any() -> None:
    """Of maps and indices, which `Function` and custom operators give beside rows."""
    torch = pytest.importorskip("torch")

    class Choice(torch.autograd.Function):  # type: ignore[misc, name-defined]  # torch is imported here alone
        @staticmethod
        def forward(ctx: Any, logits: Any) -> Any:
            chosen = logits > 0
            ctx.mark_non_differentiable(chosen)
            return logits * 2, chosen

        @staticmethod
        def backward(ctx: Any, of_values: Any, of_map: Any) -> Any:
            assert of_map.dtype == torch.bool
            return of_values * 2

    logits = torch.randn(4, 4, requires_grad=True)
    values, _ = Choice.apply(logits)
    _, backward = operators(values.backward, torch.ones_like(values))
    assert backward.count("zeros") == 1

    def cleared(**options: Any) -> int:
        found = load("megatron")
        parts = ("router", "dispatch", "combine")
        rows = found.operations(QWEN3_30B, found.option_values(**options), parts=parts, direction="backward")
        return sum(one.kernels for one in rows if one.name.startswith("zeroes for"))

    assert cleared() == 3  # a row map, and both maps of chunks
    assert cleared(router_fusion=True) == 3 + 2
    assert cleared(router_fusion=True, aux_loss=False) == 3 + 1
    assert cleared(permute_fusion=False) == 0
    assert cleared(dispatcher="deepep") == 2  # indices and a row map
    assert cleared(dispatcher="deepep", experimental=True) == 3
    assert cleared(dispatcher="hybridep") == 0


def test_unfused_choices_cost_their_kernels_each() -> None:
    """12 forward and 6 backward in place of one each; their loss 8 + 4 for 2, and 4 for 2.

    A fused kernel's map has a gradient of zeroes, which autograd makes.
    """
    fused = kernels(QWEN3_30B, ("router",), router_fusion=True, aux_loss=False)
    assert kernels(QWEN3_30B, ("router",), aux_loss=False) - fused == 12 + 6 - 3
    both = kernels(QWEN3_30B, ("router",), router_fusion=True)
    assert kernels(QWEN3_30B, ("router",)) - both == 12 + 6 - 3 + 12 - 2 + 4 - 3


def test_permutes_of_core_0_9_have_an_index_for_each_value() -> None:
    """Two sums by atomics, five kernels that find each address, and gate weights at home."""
    values = QWEN3_30B.tokens * QWEN3_30B.topk * QWEN3_30B.hidden
    found, parts = load("megatron"), ("dispatch", "combine")

    def rows(**options: Any) -> list[ListedOperation]:
        chosen = found.option_values(permute_fusion=False, **options)
        return list(found.operations(QWEN3_30B, chosen, parts=parts))

    old, new = rows(permute_by_value=True), rows()
    laws = sorted(one.law for one in old if one.law)
    assert laws == [("atomic", 1, values)] * 2 + [("strided", 1, values)] * 5
    assert sorted(one.law for one in new if one.law) == [("atomic", 1, values)] * 2
    assert not [one for one in old if one.name == "all-to-all of gate weights"]
    assert len([one for one in new if one.name == "all-to-all of gate weights"]) == 2
    own = [one for one in old if one.source.startswith("early")]
    moved = sum(one.moves for one in own if one.kind != "tiny")
    of_tokens = QWEN3_30B.tokens * QWEN3_30B.hidden
    forward = 4 + 2 + 6 + 4 + 2  # gathered, cleared, added up, times weights, summed
    backward = 2 + 4 + 2 + 4 + 6  # times weights twice, summed, gathered, added up
    assert moved == (forward + backward) * values + 4 * 2 * of_tokens


def test_biases_of_experts_are_added_one_after_the_other() -> None:
    """By three kernels of two for each expert forward, four backward, and joined twice."""
    found, sizes = load("megatron"), dataclasses.replace(QWEN3_30B, local=16)
    values = sizes.rows * sizes.hidden

    def more(what: str, part: str, direction: Pass) -> int:
        counts = [
            sum(
                getattr(one, what)
                for one in found.operations(
                    sizes, found.option_values(biases=biases), parts=(part,), direction=direction
                )
            )
            for biases in (True, False)
        ]
        return counts[0] - counts[1]

    assert more("kernels", "experts", "forward") == 2 * 16 + 1
    assert more("moves", "experts", "forward") == (2 + 6 + 4) * values
    assert more("kernels", "experts", "backward") == 4 * 16 + 1
    assert more("moves", "experts", "backward") == (4 + 2 + 4 + 2 + 4) * values
    assert more("kernels", "gradients", "backward") == 2 * 16 + 3
    assert more("moves", "attention", "forward") == 4 * sizes.tokens * sizes.hidden
    assert more("moves", "attention", "backward") == 2 * sizes.tokens * sizes.hidden


def test_a_loss_without_fusion_goes_over_the_scores_in_fp32() -> None:
    """Forward 38 bytes of a score, backward 14; sums of three all-reduces over slices."""
    found = load("megatron")
    for tp in (1, 2):
        sizes = dataclasses.replace(QWEN3_30B, tp=tp, vocab=1000)
        scores = tp * sizes.tokens * 1000
        for direction, each in (("forward", 6 + 4 + 8 + 8 + 4 + 8), ("backward", 8 + 6)):
            ops = found.operations(sizes, found.option_values(te_loss=False), parts=("head",), direction=direction)
            assert sum(one.moves for one in ops if one.moves % scores == 0) == each * scores
            reduced = [one.kernels for one in ops if one.collective == "all_reduce"]
            assert sum(reduced) == 3 * (tp > 1) * (direction == "forward")
            assert not [one for one in ops if one.call == "triton"]


def test_hosts_wait_once_for_splits_and_eight_times_for_indices() -> None:
    assert waits() == 1
    assert waits(dispatcher="deepep") == 1 + 3 + 3 + 1
    assert waits(dispatcher="deepep", experimental=True) == 1 + 3 + 1
    assert waits(dispatcher="deepep", experimental=True, pads_permute=False) == 1
    assert waits(dispatcher="hybridep") == 1


def test_tensor_parallelism_adds_collectives_and_copies_of_heads() -> None:
    def exchanges(tp: int, kv_heads: int) -> int:
        sizes = dataclasses.replace(QWEN3_30B, tp=tp, kv_heads=kv_heads)
        found = load("megatron")
        ops = found.operations(sizes, found.option_values(), parts=("attention",))
        return sum(one.kernels for one in ops if one.call == "nccl")

    assert [exchanges(1, 4), exchanges(4, 4), exchanges(8, 4)] == [0, 5, 7]


def test_products_are_those_of_the_model() -> None:
    found = load("megatron")
    ops = found.operations(QWEN3_30B, found.option_values(), parts=("attention", "experts"))
    products = {(one.name, one.direction): one.gemm for one in ops if one.gemm}
    assert products["queries, keys, values", "forward"] == (4096, 40 * 128, 2048)
    assert products["up", "forward"] == (4096, 2 * 768, 2048)
    flop = sum(2 * m * n * k * one.kernels for one in ops if one.gemm for m, n, k in [one.gemm])
    weights = (40 * 128 + 32 * 128) * 2048 * 4096 + 3 * 768 * 2048 * 8 * 4096
    assert flop == 3 * 2 * weights


DEEPSEEK_V3 = dataclasses.replace(
    QWEN3_30B,
    hidden=7168,
    experts=256,
    heads=128,
    q_rank=1536,
    kv_rank=512,
    nope=128,
    rope=64,
    value=128,
    inner=2048,
)


@pytest.mark.parametrize(("q_rank", "kernels"), [(1536, 14 + 24), (0, 12 + 20)])
def test_latent_attention_has_the_products_of_its_shape(q_rank: int, kernels: int) -> None:
    sizes = dataclasses.replace(DEEPSEEK_V3, q_rank=q_rank)
    found = load("megatron")
    ops = found.operations(sizes, found.option_values(), parts=("latent attention",))
    assert sum(one.kernels for one in ops) == kernels
    flop = {
        direction: sum(
            2 * m * n * k for one in ops if one.gemm and one.direction == direction for m, n, k in [one.gemm]
        )
        for direction in ("forward", "backward")
    }
    queries = 128 * 192 * (q_rank or 7168) + q_rank * 7168
    weights = queries + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert flop == {"forward": 2 * 4096 * weights, "backward": 4 * 4096 * weights}


KERNELS_OF = {
    "topk": 2,  # chosen, sorted
    "scatter": 2,  # into a copy
    "copy_": 0,  # of one type and contiguous: no kernel
    "_softmax": 1,
    "_softmax_backward_data": 1,
}
"""Of PyTorch's operators on CUDA, where they are not one."""

NO_KERNEL = {
    *("alias", "as_strided", "detach", "expand", "reshape", "select", "slice", "squeeze", "t"),
    *("transpose", "unsqueeze", "view", "lift_fresh"),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
}


def operators(of: Any, *arguments: Any) -> tuple[Any, list[str]]:
    """What a function gives, and the operators that it calls."""
    mode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode

    class Log(mode):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.called: list[str] = []

        def __torch_dispatch__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = called.__name__.partition(".")[0]
            if name not in NO_KERNEL:
                self.called.append(name)
            return called(*args, **(kwargs or {}))

    with Log() as log:
        given = of(*arguments)
    return given, log.called


def test_unfused_choices_are_as_pytorch_dispatches_them() -> None:
    """A CPU casts before and behind a softmax of other types, which CUDA's kernel does itself."""
    torch = pytest.importorskip("torch")

    def chosen(logits: Any) -> tuple[Any, Any]:
        scores, ids = torch.topk(logits, 4, dim=1)
        probabilities = torch.softmax(scores, -1, dtype=torch.float32).type_as(logits)
        table = torch.zeros_like(logits).scatter(1, ids, probabilities)
        return table, torch.zeros_like(logits).int().scatter(1, ids, 1).bool()

    logits = torch.randn(64, 16, dtype=torch.bfloat16, requires_grad=True)
    (table, _), forward = operators(chosen, logits)
    forward.remove("_to_copy")
    assert sum(KERNELS_OF.get(name, 1) for name in forward) == 12
    _, backward = operators(table.backward, torch.ones_like(table))
    backward.remove("_to_copy")
    assert sum(KERNELS_OF.get(name, 1) for name in backward) == 6


FP8_V3 = dataclasses.replace(
    QWEN3_30B,
    hidden=7168,
    experts=256,
    heads=128,
    q_rank=1536,
    kv_rank=512,
    nope=128,
    rope=64,
    value=128,
    inner=2048,
    shared=2048,
    dense=18432,
    local=4,
    ranks=64,
)


def casts(part: str, direction: Any, **options: Any) -> tuple[int, int]:
    """Kernels that FP8 adds to a part, and the bytes that it moves more."""
    found = load("megatron")

    def both(**options: Any) -> tuple[int, int]:
        ops = found.operations(FP8_V3, found.option_values(**options), parts=(part,), direction=direction)
        return sum(one.kernels for one in ops), sum(one.moves for one in ops if not one.gemm)

    (kernels, moved), (before, moved_before) = both(**options), both()
    return kernels - before, moved - moved_before


@pytest.mark.parametrize(("local", "delayed"), [(4, 1), (64, 1), (65, 2)])
def test_every_expert_is_cast_alone_but_under_delayed_scaling(local: int, delayed: int) -> None:
    """Two casts a pass and each expert; rows padded twice, results once, both ways back."""
    sizes = dataclasses.replace(FP8_V3, local=local)
    found, pads = load("megatron"), 3 * delayed

    def added(**options: Any) -> int:
        def kernels(**chosen: Any) -> int:
            ops = found.operations(sizes, found.option_values(**chosen), parts=("experts",))
            return sum(one.kernels for one in ops)

        return kernels(**options) - kernels()

    assert added(fp8="blockwise") == 4 * local + 2 * pads
    assert added(fp8="tensorwise") == 4 * 4 * local + 2 * pads
    assert added(fp8="delayed") == 4 * delayed + 2 * pads
    assert added(fp8="blockwise", router_pads=True) == 4 * local
    assert added(fp8="blockwise", dispatcher="deepep") == 4 * local
    assert added(fp8="blockwise", dispatcher="deepep", pads_permute=False) == 4 * local + 2 * pads
    assert added(fp8="blockwise", first=True) == 6 * local + 2 * pads
    assert added(fp8="blockwise", fp8_weights="each") == 6 * local + 2 * pads
    assert added(fp8="blockwise", first=True, fp8_weights="primary") == 4 * local + 2 * pads
    assert added(fp8="blockwise", blackwell=True) == (4 + 12) * local + 2 * pads
    assert added(fp8="blockwise", grouped="cutlass") == 4 * local + 2 * pads


def test_casts_with_one_scale_allocate_for_each_expert() -> None:
    """Values, their transpose and a scale; blocks share two of each kind."""
    found, sizes = load("megatron"), dataclasses.replace(FP8_V3, local=16)

    def tensors(fp8: str) -> list[int]:
        ops = found.operations(sizes, found.option_values(fp8=fp8), parts=("experts",))
        return [one.tensors for one in ops if ", cast" in one.name]

    assert tensors("tensorwise") == tensors("delayed") == [3 * 16] * 4
    assert tensors("blockwise") == [4] * 4


def test_a_cast_reads_two_bytes_and_writes_one_by_rows_and_one_by_columns() -> None:
    """One scale a tensor reads everything once more; its largest value comes first."""
    rows, hidden, inner = FP8_V3.rows, FP8_V3.hidden, FP8_V3.inner
    forward = 4 * rows * (hidden + inner)
    backward = 4 * rows * (hidden + 2 * inner)
    given = {"router_pads": True}
    assert casts("experts", "forward", fp8="blockwise", **given) == (8, forward)
    assert casts("experts", "backward", fp8="blockwise", **given) == (8, backward)
    assert casts("experts", "forward", fp8="tensorwise", **given) == (32, forward * 6 // 4)
    assert casts("experts", "backward", fp8="tensorwise", blackwell=True, **given) == (32, backward * 5 // 4)
    padded = (2 * 4 * hidden + 8) * rows
    assert casts("experts", "forward", fp8="blockwise") == (8 + 3, forward + padded)


def test_attention_is_cast_once_more_where_its_input_is_kept() -> None:
    """The output layer keeps its rows in BF16 and casts them again for its weight's gradient."""
    tokens, hidden, width = FP8_V3.tokens, FP8_V3.hidden, 128 * 128
    assert casts("attention", "forward", fp8="blockwise") == (2, tokens * (4 * hidden + 3 * width))
    assert casts("attention", "backward", fp8="blockwise") == (
        3,
        tokens * (4 * hidden + 3 * width + 4 * (128 + 2 * 4) * 128),
    )
    assert casts("attention", "forward", fp8="delayed") == (2, tokens * (hidden + 4 * width))
    assert casts("attention", "forward", fp8="tensorwise") == (3 + 4, tokens * (4 * hidden + 5 * width))
    assert casts("attention", "backward", fp8="tensorwise") == (
        3 * 4,
        6 * tokens * (hidden + width + (128 + 2 * 4) * 128),
    )
    assert casts("latent attention", "forward", fp8="blockwise")[0] == 5
    assert casts("latent attention", "backward", fp8="blockwise")[0] == 6


def test_rows_with_one_scale_that_are_gathered_are_cast_by_rows_alone() -> None:
    """Each GPU of tensor parallelism transposes all that it gathered; blocks are gathered by columns, too."""
    found, parts = load("megatron"), ("attention", "shared")
    cast = ("cast behind the norm", "gradients of the output, cast", "gradients of down, cast", "rows, cast again")

    def moved(fp8: str, tp: int) -> dict[str, int]:
        sizes = dataclasses.replace(FP8_V3, tp=tp, positions=tp * FP8_V3.tokens)
        ops = found.operations(sizes, found.option_values(fp8=fp8), parts=parts)
        return {one.name: one.moves for one in ops if one.kind != "exchange"}

    values = FP8_V3.tokens * FP8_V3.hidden
    for fp8 in ("tensorwise", "blockwise"):
        alone, sliced = moved(fp8, 1), moved(fp8, 2)
        assert [alone[one] - sliced[one] for one in cast] == [values * (fp8 == "tensorwise")] * 4
    alone, sliced = moved("delayed", 1), moved("delayed", 2)
    assert alone["rows, cast"] - sliced["rows, cast"] == values
    assert "transpose behind the norm" in alone
    assert "transpose behind the norm" not in sliced
    assert sliced["transpose of gathered rows"] == 2 * 2 * values


def test_padding_by_the_choice_waits_before_the_permute() -> None:
    found = load("megatron")

    def order(**options: Any) -> list[str]:
        ops = found.operations(FP8_V3, found.option_values(**options), parts=("dispatch",))
        return [one.name for one in ops if one.waits or one.name == "permute"]

    assert order() == ["permute", "wait for splits"]
    assert order(fp8="blockwise", router_pads=True) == ["wait before the permute", "permute"]
    assert casts("dispatch", "forward", router_pads=True)[0] == 8 + 1


def test_padding_of_the_routing_map_is_as_pytorch_dispatches_it() -> None:
    torch = pytest.importorskip("torch")

    def padded(table: Any) -> Any:
        table = table.transpose(0, 1)
        missing = (-table.sum(dim=1)) % 16
        places = torch.cumsum((table == 0).int(), dim=1)
        table[places <= missing.unsqueeze(1)] = 1
        return table.transpose(0, 1)

    table, called = operators(padded, torch.rand(64, 8) < 0.3)
    assert (table.sum(dim=0) % 16 == 0).all()
    called = [name for name in called if name not in ("arange", "lift_fresh")]
    assert len(called) == 8


def test_a_pair_of_deepseek_has_the_kernels_of_its_trace() -> None:
    """deepseek-ai/profile-data 4496024, train.json: kernels of each phase of each of four layers.

    Left out is a kernel that three of them have once. Attention's and the router's phases are one.
    """
    found = load("deepseek")
    ops = found.operations(FP8_V3, found.option_values())
    of = {(one.part, one.direction): 0 for one in ops}
    for one in ops:
        of[one.part, one.direction] += one.kernels
    assert list(of.items()) == [
        (("combine", "backward"), 3),
        (("attention", "forward"), 29),
        (("router", "forward"), 36),
        (("experts", "backward"), 29),
        (("dispatch", "forward"), 3),
        (("dispatch", "backward"), 2),
        (("experts' weights", "backward"), 12),
        (("experts", "forward"), 19),
        (("router", "backward"), 31),
        (("attention", "backward"), 69),
        (("attention's weights", "backward"), 5),
        (("combine", "forward"), 2),
    ]
    assert 4 * sum(of.values()) + 3 == 963
    streams = [one.stream for one in ops for _ in range(one.kernels)]
    assert 4 * streams.count("communication") == 40
    assert 4 * streams.count("weights") == 16


def test_a_pair_of_deepseek_multiplies_thrice_and_projects_up_again() -> None:
    found = load("deepseek")
    ops = found.operations(FP8_V3, found.option_values())
    flop = sum(2 * m * n * k * one.kernels for one in ops if one.gemm for m, n, k in [one.gemm])
    up = 1536 * 128 * 192 + 512 * 128 * 256
    weights = up + 7168 * (1536 + 576 + 128 * 128 + 256 + 3 * 2048)
    assert flop == 2 * 4096 * (3 * (weights + 8 * 3 * 2048 * 7168) + up)
    assert sum(one.waits for one in ops) == 1


@pytest.mark.parametrize(("local", "streams"), [(1, 1), (3, 3), (4, 4), (8, 4)])
def test_calls_of_experts_fork_and_join_four_streams(local: int, streams: int) -> None:
    """An event, a wait of each stream, an event of each and a wait for each, six times."""
    found = load("megatron")
    sizes = dataclasses.replace(QWEN3_30B, local=local)
    ops = found.operations(sizes, found.option_values(), parts=("experts",))
    assert sum(one.events for one in ops) == 6 * (1 + 3 * streams)


def test_streams_are_those_of_what_runs_beside() -> None:
    found = load("megatron")

    def streams(part: str, **options: Any) -> dict[str, str]:
        ops = found.operations(FP8_V3, found.option_values(**options), parts=(part,), direction="forward")
        return {one.name: one.stream for one in ops}

    assert set(streams("shared").values()) == {"compute"}
    shared = streams("shared", overlap="shared")
    assert shared.pop("sum with routed experts") == "compute"
    assert shared.pop("streams wait for each other") == "compute"
    assert set(shared.values()) == {"shared"}
    alone, beside = streams("combine"), streams("combine", overlap="passes")
    assert beside.pop("sort by rank") == beside.pop("chunk map") == "compute"
    assert beside.pop("order of chunks") == "compute"
    assert set(alone.values()) == {"compute"}
    assert set(beside.values()) == {"communication"}
    assert streams("dispatch", dispatcher="hybridep")["scan"] == "compute"
    assert streams("dispatch", dispatcher="hybridep", overlap="passes")["scan"] == "communication"
    assert streams("dispatch", dispatcher="deepep")["dispatch"] == "communication"


def test_streams_by_overlap_need_the_option() -> None:
    row = {"name": "x", "source": "a 1", "stream": {"passes": "communication"}}
    part = {"name": "p", "direction": "forward", "rows": (row,)}
    with pytest.raises(ValueError, match="of no option 'overlap'"):
        KernelList(name="n", title="t", sources={"a": "b"}, parts=(part,))


GPT_OSS_20B = KernelSizes(
    tokens=8192,
    tp=1,
    ranks=8,
    hidden=2880,
    experts=32,
    topk=4,
    heads=64,
    kv_heads=8,
    width=64,
    local=4,
    rows=4 * 8192,
    copies=3 * 8192,
    inner=2880,
    vocab=201088,
    parameters=24 * 16,
)


def test_automodel_waits_for_its_biases() -> None:
    """A copy from pageable memory that is not asynchronous ends with a wait, one for each bias."""
    found = load("automodel")

    def layer(**options: Any) -> tuple[int, int]:
        ops = found.operations(GPT_OSS_20B, found.option_values("gpt-oss-20b", **options), parts=LAYER)
        return sum(one.kernels for one in ops), sum(one.waits for one in ops)

    assert layer() == (153, 3)
    assert layer(biases=False) == (153 - (5 + 8) - (2 + 6 + 6) - 2, 1)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("megatron-inference", 31), ("vllm", 20), ("sglang", 18), ("tensorrt-llm", 20)],
)
def test_decoding_layers_have_their_kernels(name: str, kernels: int) -> None:
    """Ledgers: 24.2 and later 19.1 of Megatron-LM, 17.0 of vLLM, which fuses more."""
    sizes = dataclasses.replace(QWEN3_30B, tokens=64, rows=512, copies=200, local=32, ranks=4)
    found = load(name)
    ops = found.operations(sizes, found.option_values())
    assert sum(one.kernels for one in ops) == kernels
    assert not any(one.waits or one.copies for one in ops)
    assert {one.graph for one in ops} == {"step"}


FUSIONS: dict[str, int | bool | str] = {
    "one_table": True,
    "fused_activation": True,
    "fused_choice": True,
    "fused_qk_norms": True,
    "fused_residuals": 2,
    "bf16_sums": True,
}


def test_fusions_of_decoding_take_away_their_kernels() -> None:
    """Beside the ledger's steps: 1,163 kernels, later 916, and vLLM's 817, in 48 layers."""
    sizes = dataclasses.replace(QWEN3_30B, tokens=64, rows=512, copies=200, local=32, ranks=4)

    def kernels(name: str, **options: int | bool | str) -> int:
        found = load(name)
        return sum(one.kernels for one in found.operations(sizes, found.option_values(**options)))

    alone = {name: kernels("megatron-inference", **{name: value}) for name, value in FUSIONS.items()}
    assert {name: 31 - count for name, count in alone.items()} == {
        "one_table": 4,
        "fused_activation": 2,
        "fused_choice": 2,
        "fused_qk_norms": 2,
        "fused_residuals": 2,
        "bf16_sums": 1,
    }
    assert kernels("megatron-inference", fused_residuals=1) == 30
    first = kernels("megatron-inference", one_table=True, fused_activation=True, fused_choice=True)
    last = kernels("megatron-inference", **FUSIONS)
    vllm = kernels("vllm", fuses_norms=True)
    assert (first, last, vllm) == (23, 18, 18)
    assert [48 * count for count in (first, last, vllm)] == [1104, 864, 864]  # 5 and 6 % fewer, 6 % more


@pytest.mark.parametrize(
    ("sms", "requests", "kernels"), [(132, 52, 2), (132, 53, 1), (148, 59, 2), (148, 60, 1), (0, 1, 1)]
)
def test_attention_splits_keys_where_thread_blocks_are_few(sms: int, requests: int, kernels: int) -> None:
    """Four heads of keys: 211 thread blocks are 0.8 times two on each of 132 SMs, 237 on each of 148."""
    sizes = dataclasses.replace(QWEN3_30B, sms=sms, tokens=requests, rows=512, copies=200, local=32, ranks=4)
    found = load("megatron-inference")
    ops = found.operations(sizes, found.option_values())
    assert [one.kernels for one in ops if one.name == "attention"] == [kernels]


def test_expressions_are_arithmetic_and_conditions() -> None:
    given: dict[str, int | bool | str] = {"a": 7, "b": 2, "mode": "x"}
    assert Expression("a // b * 3 - 1").value(given) == 8
    assert Expression("not (a > 9 or mode != 'x') and b <= 2").value(given) is True
    for text in ("open('f')", "a ** b", "a.real", "[a]", "1 < a < 9", "lambda: 1"):
        with pytest.raises(UserError, match="more than arithmetic"):
            Expression(text).value(given | {"open": 1})
    with pytest.raises(UserError, match="needs c"):
        Expression("c + 1").value(given)
    with pytest.raises(UserError, match="no expression"):
        Expression("a +").value(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "fast"}, "unknown preset"),
        ({"fusion": True}, "unknown option"),
        ({"dispatcher": "nvls"}, "possible are alltoall, allgather, deepep, hybridep"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load("megatron").option_values(**options)


def test_wrong_names_are_named() -> None:
    with pytest.raises(UserError, match="unknown stack"):
        load("megatrom")
    found = load("megatron")
    with pytest.raises(UserError, match="unknown part"):
        found.operations(QWEN3_30B, found.option_values(), parts=("attend",))


@pytest.mark.parametrize("name", names())
def test_every_row_can_be_computed_under_every_preset(name: str) -> None:
    found = load(name)
    for preset in ("", *found.presets):
        every = found.operations(QWEN3_30B, found.option_values(preset))
        assert every or found.deepep
        for one in every:
            assert one.kind != "gemm" or one.gemm is not None, one.name
            assert one.kernels or one.copies or one.waits or one.moves or one.kind == "tiny"
