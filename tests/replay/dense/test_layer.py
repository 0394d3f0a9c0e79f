"""The work of a layer against closed forms of the Megatron papers, and against slow counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

from replay.errors import UserError
from replay.model.work.transformer_layer import (
    Attention,
    Core,
    Elementwise,
    Enter,
    Leave,
    Norm,
    Product,
    Sizes,
    Step,
    TensorLayer,
    Work,
    layer_of,
)
from replay.model.work.transformer_shape import LayerShape, load
from replay.schemes.tp.traffic import gathers_of

TILE = 128


def sizes(tokens: int, sequence: int, *, is_decode: bool = False, tile: int = TILE) -> Sizes:
    return Sizes(tokens, sequence, is_decode, tile, tile)


def gpt(hidden: int = 1024, num_heads: int = 16) -> LayerShape:
    """A layer as of GPT-3: every head has its keys, inner width of four times the hidden one."""
    return LayerShape(
        name="gpt",
        hidden=hidden,
        intermediate=4 * hidden,
        gated=False,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden // num_heads,
        num_layers=1,
    )


def llama(num_kv_heads: int = 4) -> LayerShape:
    return LayerShape(
        name="llama",
        hidden=512,
        intermediate=1536,
        gated=True,
        num_heads=16,
        num_kv_heads=num_kv_heads,
        head_dim=32,
        num_layers=1,
    )


def works_of(step: Step) -> list[Work]:
    """All works of a step, its product included."""
    if isinstance(step, Enter):
        return [*step.before, step.product]
    if isinstance(step, Leave):
        return [step.product, *step.after]
    return list(step.works) if isinstance(step, Core) else []


def products(layer: TensorLayer) -> list[Product]:
    return [work for step in layer.steps for work in works_of(step) if isinstance(work, Product)]


def attention(layer: TensorLayer) -> Attention:
    (found,) = (work for step in layer.steps for work in works_of(step) if isinstance(work, Attention))
    return found


# ---- operations ----------------------------------------------------------------------------------


@every("num_ranks", [1, 2, 8])
def test_operations_are_those_of_the_papers(num_ranks: int) -> None:
    """24 s b h^2 of products, and half of 4 s^2 b h of attention, since half is masked.

    arXiv 2104.04473, appendix: 24 s b h^2 + 4 s^2 b h for each layer.
    """
    b, s, h = 3, 1024, 1024
    layer = layer_of(gpt(h), num_ranks, sizes(b * s, s, tile=1))
    assert num_ranks * sum(product.flop for product in products(layer)) == 24 * s * b * h**2
    # With tiles of one position, half the pairs and the diagonal are computed.
    found = attention(layer)
    assert num_ranks * 4 * found.scores.pairs * found.width == 4 * b * h * (s * (s + 1) // 2)


def test_causal_tiles_are_computed_whole() -> None:
    s, h = 1024, 1024
    found, tiles = attention(layer_of(gpt(h), 1, sizes(s, s))), s // TILE
    assert found.scores.pairs * found.width == h * TILE**2 * tiles * (tiles + 1) // 2
    assert found.scores.blocks * found.width == h * tiles
    assert found.scores.longest == TILE**2 * tiles


@given(
    length=st.integers(1, 700),
    rows=st.sampled_from([1, 16, 64, 128]),
    keys=st.sampled_from([1, 32, 128, 176]),
)
def test_pairs_are_those_of_tiles_that_some_query_may_see(length: int, rows: int, keys: int) -> None:
    computed = 0
    for first in range(0, length, rows):
        last_query = min(first + rows, length) - 1
        for key in range(0, length, keys):
            computed += rows * keys * (key <= last_query)
    assert Sizes(length, length, False, rows, keys).pairs == computed


@given(tokens=st.integers(1, 900), sequence=st.integers(1, 300))
def test_sequences_do_not_see_each_other(tokens: int, sequence: int) -> None:
    full, rest = divmod(tokens, sequence)
    alone = sizes(sequence, sequence).pairs * full
    alone += sizes(rest, rest).pairs if rest else 0
    assert sizes(tokens, sequence).pairs == alone


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_a_backward_pass_has_as_many_operations_for_rows_as_the_forward_pass(
    num_ranks: int,
) -> None:
    """And as many again for weights: two for one (arXiv 2104.04473)."""
    for shape in (gpt(), llama(), load("mixtral-8x7b"), load("llama-2-70b")):
        forward, backward = (
            layer_of(shape, num_ranks, sizes(1024, 512), is_backward=is_backward) for is_backward in (False, True)
        )
        assert sum(one.flop for one in products(forward)) == sum(one.flop for one in products(backward))


def test_attention_is_computed_again_on_the_way_back() -> None:
    """The same pairs, and beside them sums of rows, and gradients of queries cleared and cast."""
    forward, backward = (
        attention(layer_of(gpt(), 4, sizes(2048, 512), is_backward=is_backward)) for is_backward in (False, True)
    )
    assert backward.scores == forward.scores
    assert backward.nbytes == 2 * forward.nbytes
    (core,) = (
        step
        for step in layer_of(gpt(), 4, sizes(2048, 512), is_backward=True).steps
        if isinstance(step, Core) and any(isinstance(work, Attention) for work in step.works)
    )
    rows = 2048 * gpt().num_heads // 4 * forward.width
    assert core.works[0] == Elementwise((4 + 4) * rows)
    assert core.works[2] == Elementwise(6 * rows)


def test_heads_that_share_keys_add_up_their_gradients() -> None:
    """Of keys and of values: what each of four query heads made, and their sum, of each GPU."""
    for num_ranks, heads in ((1, 16 + 4), (4, 4 + 1), (8, 2 + 1), (16, 0)):
        layer = layer_of(llama(), num_ranks, sizes(2048, 512), is_backward=True)
        core = next(
            step
            for step in layer.steps
            if isinstance(step, Core) and any(isinstance(work, Attention) for work in step.works)
        )
        added = [Elementwise(2 * 2048 * heads * 32)] * 2 if heads else []
        assert list(core.works[3:-1]) == added


@every("name", ["llama-2-70b", "gpt-3-175b", "llama-3-8b", "palm-540b"])
@every("num_ranks", [1, 2, 4, 8])
def test_weights_of_all_gpus_are_those_of_the_layer(name: str, num_ranks: int) -> None:
    shape = load(name)
    layer = layer_of(shape, num_ranks, sizes(1024, 512))
    held = num_ranks * sum(one.n * one.k * one.groups for one in products(layer))
    kv_heads = max(shape.num_kv_heads, num_ranks)  # copied where there are fewer than GPUs
    heads = 2 * shape.num_heads + 2 * kv_heads  # queries and output; keys and values
    matrices = 3 if shape.gated else 2
    assert held == shape.hidden * (heads * shape.head_dim + matrices * shape.intermediate)


def test_key_value_heads_are_copied_where_there_are_fewer_than_gpus() -> None:
    shape = llama(num_kv_heads=2)
    first = products(layer_of(shape, 8, sizes(256, 128)))[0]
    assert first.n == (16 // 8 + 2 * 1) * 32
    assert products(layer_of(shape, 2, sizes(256, 128)))[0].n == (16 // 2 + 2 * 1) * 32


# ---- bytes ---------------------------------------------------------------------------------------


def test_attention_reads_queries_keys_values_and_writes_sums() -> None:
    layer = layer_of(llama(), 2, sizes(256, 128))
    queries = sums = 256 * 8 * 32
    keys = values = 256 * 2 * 32
    assert attention(layer).nbytes == 2 * (queries + keys + values + sums)


def test_decoding_reads_the_context_of_every_token() -> None:
    layer = layer_of(llama(), 2, sizes(16, 1000, is_decode=True))
    found = attention(layer)
    assert found.is_decode
    assert (found.scores.pairs, found.width) == (16 * 1000 * 8, 32)  # of 8 heads
    assert found.nbytes == 2 * (2 * 16 * 8 * 32 + 2 * 16 * 1000 * 2 * 32)


def test_elementwise_kernels_read_and_write_their_rows() -> None:
    norm, _, between, _, _, _, activation, _ = layer_of(llama(), 2, sizes(256, 128)).steps
    assert norm == Norm(4 * 512 * 2)  # residual and sum in; residual and norm out
    assert isinstance(between, Core)
    assert isinstance(activation, Core)
    columns = (8 + 2 * 2) * 32
    assert between.works[0] == Elementwise(2 * 256 * columns * 2)
    assert activation.works == (Elementwise(256 * (2 * 768 + 768) * 2),)


# ---- steps ---------------------------------------------------------------------------------------


def names(layer: TensorLayer) -> list[str]:
    return [type(step).__name__ for step in layer.steps]


def test_order_of_steps() -> None:
    half = ["Norm", "Enter", "Core", "Leave"]
    assert names(layer_of(llama(), 2, sizes(256, 128))) == half * 2
    back = layer_of(llama(), 2, sizes(256, 128), is_backward=True)
    assert names(back) == ["Enter", "Core", "Leave", "Norm"] * 2
    # The gradient comes to the network first, whose last product is its first on the way back.
    assert products(back)[0] == Product(256, 1536 // 2, 512)
    assert products(back)[1] == Product(256, 512, 2 * 1536 // 2)


def test_sub_layers_reach_from_the_last_product_of_one_half_to_the_first_of_the_other() -> None:
    heads, keys, inner = 16 * 32 // 2, 2 * 4 * 32 // 2, 1536 // 2
    expected = {
        ("attention-to-mlp", False): [(512, heads), (2 * inner, 512)],
        ("mlp-to-attention", False): [(512, inner), (heads + keys, 512)],
        # On the way back attention is followed by the network of the layer before.
        ("attention-to-mlp", True): [(512, heads + keys), (inner, 512)],
        ("mlp-to-attention", True): [(512, 2 * inner), (heads, 512)],
    }
    for (part, is_backward), sides in expected.items():
        layer = layer_of(
            llama(),
            2,
            sizes(256, 128),
            is_backward=is_backward,
            part=part,  # type: ignore[arg-type]  # a word of the table above
        )
        assert names(layer) == ["Leave", "Norm", "Enter"]
        assert [(one.n, one.k) for one in products(layer)] == sides, (part, is_backward)


def test_a_backward_pass_gathers_twice_for_each_reduction() -> None:
    forward = layer_of(llama(), 2, sizes(256, 128))
    backward = layer_of(llama(), 2, sizes(256, 128), is_backward=True)
    assert [gathers_of(forward), forward.num(Leave)] == [2, 2]
    assert [gathers_of(backward), backward.num(Leave)] == [4, 2]


# ---- experts -------------------------------------------------------------------------------------


def test_experts_are_sliced_and_get_all_chosen_rows() -> None:
    shape = load("mixtral-8x7b")
    layer = layer_of(shape, 8, sizes(1024, 512))
    qkv, _, gate, up, down = products(layer)
    assert qkv.groups == 1
    assert gate == Product(1024, 8, 4096)
    assert up == Product(2 * 1024, 2 * 14336 // 8, 4096, groups=8)
    assert down == Product(2 * 1024, 4096, 14336 // 8, groups=8)


def test_zero_experts_are_scored_and_have_no_product() -> None:
    shape = load("mixtral-8x7b").model_copy(update={"num_zero_experts": 4})
    _, _, gate, up, down = products(layer_of(shape, 8, sizes(1024, 512)))
    assert gate == Product(1024, 8, 4096)
    assert (up.rows, up.groups) == (down.rows, down.groups) == (1024, 4)


def test_shared_experts_multiply_all_rows_beside() -> None:
    shape = LayerShape(
        name="shared",
        hidden=256,
        intermediate=128,
        gated=True,
        num_heads=8,
        num_kv_heads=8,
        head_dim=32,
        num_layers=1,
        num_experts=4,
        topk=2,
        num_shared_experts=2,
        shared_intermediate=64,
    )
    for is_backward in (False, True):
        layer = layer_of(shape, 4, sizes(64, 32), is_backward=is_backward)
        sides = [(one.rows, one.n, one.k) for one in products(layer)]
        up, down = (64, 2 * 128 // 4, 256), (64, 256, 128 // 4)
        expected = [(64, 32, 256), (64, 256, 64)] if is_backward else [up, down]
        assert all(one in sides for one in expected)


# ---- mistakes ------------------------------------------------------------------------------------


@every(
    ("shape", "num_ranks", "sentence"),
    [
        (
            gpt(num_heads=8),
            3,
            "3 GPUs cannot share the attention heads of gpt equally: 8; these can: 1, 2, 4, 8 (tp)",
        ),
        (
            llama().model_copy(update={"num_heads": 12, "num_kv_heads": 12, "intermediate": 512}),
            6,
            "6 GPUs cannot share the inner width of llama equally: 512; these can: 1, 2, 4 (tp)",
        ),
        (
            llama(4).model_copy(update={"num_heads": 12}),
            6,
            "llama has key-value heads 4, which 6 GPUs can neither share nor copy equally",
        ),
    ],
)
def test_what_cannot_be_sliced_is_refused(shape: LayerShape, num_ranks: int, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        layer_of(shape, num_ranks, sizes(256, 128))
    assert str(caught.value) == sentence


def test_decoding_has_no_way_back() -> None:
    with pytest.raises(UserError, match="decoding has no backward pass"):
        layer_of(llama(), 2, sizes(16, 128, is_decode=True), is_backward=True)
