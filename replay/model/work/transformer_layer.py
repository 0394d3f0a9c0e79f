"""The work of one transformer layer under tensor parallelism, which every scheme is given.

The layer's weights are sliced over a group of GPUs. Attention and feed-forward network each begin
with a product whose columns are sliced, and end with one whose rows are: every GPU then has partial
sums of all tokens, which have to be added up. With *sequence parallelism* a GPU owns the rows of an
equal share of the tokens between these: rows are gathered before the first product, and their sums
scattered after the second. Without it every GPU has all rows, and sums are added up everywhere.

Everything here is counted from sizes, by the list ``bare`` (`replay.model.work.kernel_lists`);
nothing here knows time. A layer is a sequence of steps, in
which a scheme finds what it moves: `Enter` (rows of all tokens, then a product), `Core`, `Leave`
(a product, then sums of all tokens), and `Norm`, which works on the rows that a GPU owns.

Sources: Megatron-LM (arXiv 1909.08053; arXiv 2205.05198 for sequence parallelism and the gathers of
its backward pass, ``megatron/core/tensor_parallel/layers.py``).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from hwmodel.attention import Scores
from replay.errors import UserError
from replay.model.work.kernel_lists import KernelSizes, ListedOperation, load

if TYPE_CHECKING:
    from replay.model.work.kernel_lists.lists import Pass
    from replay.model.work.transformer_shape import LayerShape

BF16 = 2  # bytes of a value of rows, weights and sums

Part = Literal["layer", "attention-to-mlp", "mlp-to-attention"]
"""The whole layer, or a *sub-layer*: the last product of one half, the sums of all tokens, the norm
and the first product of the other half, as the pass comes to them. On the way back attention is
followed by the network of the layer before."""


@dataclass(frozen=True)
class Product:
    """A GEMM on every GPU: (rows, k) x (k, n), for each of `groups` weight matrices.

    Attributes
    ----------
    rows
        Of all groups together, spread over them as evenly as they go.
    n, k
        Columns of the result, and of the operand, on each GPU.
    groups
        Weight matrices, one for each expert.
    """

    rows: int
    n: int
    k: int
    groups: int = 1

    @property
    def flop(self) -> int:
        """Operations on each GPU."""
        return 2 * self.rows * self.n * self.k


@dataclass(frozen=True)
class Elementwise:
    """A kernel that reads and writes so many bytes of each GPU's memory."""

    nbytes: int


@dataclass(frozen=True)
class Attention:
    """Attention itself, for the heads of each GPU.

    Attributes
    ----------
    scores
        Pairs of query and key.
    width
        Values of a head.
    nbytes
        Bytes read and written.
    """

    scores: Scores[int]
    width: int
    nbytes: int
    is_decode: bool


Work = Product | Elementwise | Attention


@dataclass(frozen=True)
class Norm:
    """Residual addition and norm of the rows that a GPU owns, `row_bytes` read and written each."""

    row_bytes: int


@dataclass(frozen=True)
class Enter:
    """Rows of all tokens are needed: `before` and `product` read them."""

    product: Product
    before: tuple[Work, ...] = ()


@dataclass(frozen=True)
class Core:
    """Step between the two products."""

    works: tuple[Work, ...]


@dataclass(frozen=True)
class Leave:
    """`product` and `after` make partial sums of the rows of all tokens."""

    product: Product
    after: tuple[Work, ...] = ()


Step = Norm | Enter | Core | Leave


@dataclass(frozen=True)
class TensorLayer:
    """A layer, or a part of one, in one pass.

    Attributes
    ----------
    num_ranks
        GPUs that the weights are sliced over.
    tokens, hidden
        Rows of the whole group, and values of a row.
    steps
        In the order in which they are carried out. The first step finds its rows in place: those
        that each GPU owns, or all, as the scheme has it.
    is_backward
        Whether gradients flow. Each `Enter` and `Leave` then has the gradient of its weights to
        make, besides; that of a `Leave` needs the rows of all tokens that the forward pass
        gathered, which sequence parallelism did not keep.
    """

    num_ranks: int
    tokens: int
    hidden: int
    steps: tuple[Step, ...]
    is_backward: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a token's row."""
        return self.hidden * BF16

    @property
    def own_rows(self) -> int:
        """Rows that a GPU owns under sequence parallelism."""
        return self.tokens // self.num_ranks

    def num(self, kind: type[Step]) -> int:
        """Number of steps of a kind."""
        return sum(isinstance(step, kind) for step in self.steps)


@dataclass(frozen=True)
class Sizes:
    """Rows of a batch.

    Attributes
    ----------
    tokens
        Of the whole group.
    sequence
        Tokens of each sequence, the last of which may be shorter; in decoding, positions that each
        token attends to.
    is_decode
        Whether every token continues a sequence of its own.
    query_tile, key_tile
        Queries and keys of a tile of the attention kernel.
    """

    tokens: int
    sequence: int
    is_decode: bool
    query_tile: int
    key_tile: int

    @property
    def pairs(self) -> int:
        """Pairs of query and key that are computed: tiles that the causal mask does not hide."""
        if self.is_decode:
            return self.tokens * self.sequence
        return int(self._tiles.sum())

    @property
    def blocks(self) -> int:
        """Tiles of queries; none in decoding, whose kernels are no such blocks."""
        return len(self._tiles)

    @property
    def longest(self) -> int:
        """Pairs of the tile of queries that has most."""
        return int(self._tiles.max(initial=0))

    @cached_property
    def _tiles(self) -> npt.NDArray[np.int64]:
        """(tile,): pairs of each tile of queries."""
        if self.is_decode:
            return np.zeros(0, np.int64)
        full, rest = divmod(self.tokens, self.sequence)
        rows, keys = self.query_tile, self.key_tile
        ends = [np.minimum(np.arange(rows, length + rows, rows), length) for length in (*(self.sequence,) * full, rest)]
        return rows * keys * -(-np.concatenate(ends) // keys)

    @property
    def positions(self) -> int:
        """Positions whose keys and values are read."""
        return self.tokens * self.sequence if self.is_decode else self.tokens


def layer_of(
    shape: LayerShape,
    num_ranks: int,
    sizes: Sizes,
    *,
    is_backward: bool = False,
    part: Part = "layer",
) -> TensorLayer:
    """Count the work of one layer.

    Raises
    ------
    UserError
        If heads or widths cannot be sliced over the GPUs, or decoding has a backward pass.
    """
    _check(shape, num_ranks, sizes, is_backward=is_backward)
    counted = _LayerSteps(shape, num_ranks, sizes, is_backward)
    steps = counted.steps()
    if part != "layer":
        steps = _sub_layer(steps, after_attention=part == "attention-to-mlp", backward=is_backward)
    return TensorLayer(num_ranks, sizes.tokens, shape.hidden, steps, is_backward)


def _check(shape: LayerShape, num_ranks: int, sizes: Sizes, *, is_backward: bool) -> None:
    sliced = (
        ("attention heads", shape.num_heads),
        ("inner width", shape.intermediate),
        ("inner width of shared experts", shape.num_shared_experts * shape.shared_intermediate),
    )
    common = math.gcd(*(size for _, size in sliced))
    for what, size in sliced:
        if size % num_ranks:
            fit = ", ".join(str(n) for n in range(1, common + 1) if common % n == 0)
            message = f"{num_ranks} GPUs cannot share the {what} of {shape.name} equally: {size}; these can: {fit} (tp)"
            raise UserError(message)
    kv_heads = shape.num_kv_heads
    if kv_heads % num_ranks and num_ranks % kv_heads:
        message = (
            f"{shape.name} has key-value heads {kv_heads}, which {num_ranks} GPUs can neither share nor copy equally"
        )
        raise UserError(message)
    if sizes.is_decode and is_backward:
        message = "decoding has no backward pass"
        raise UserError(message)


def _sub_layer(steps: tuple[Step, ...], *, after_attention: bool, backward: bool) -> tuple[Step, ...]:
    """Steps from the `Leave` of one half to the `Enter` of the other."""
    twice = (*steps, *steps)  # the layer behind is like this one
    leaves = [place for place, step in enumerate(twice) if isinstance(step, Leave)]
    first = leaves[0 if after_attention != backward else 1]
    last = next(place for place in range(first, len(twice)) if isinstance(twice[place], Enter))
    return twice[first : last + 1]


class _LayerSteps:
    """Steps of one layer, of the bare list's kernels for slices of its sizes; see `layer_of`."""

    def __init__(self, shape: LayerShape, num_ranks: int, sizes: Sizes, is_backward: bool) -> None:
        self._shape, self._n, self._sizes, self._is_backward = shape, num_ranks, sizes, is_backward
        self._bare = load("bare")
        self._options = self._bare.option_values(gated=shape.gated)
        self._of_gpu = KernelSizes(
            tokens=sizes.tokens,
            positions=sizes.positions,
            hidden=shape.hidden,
            heads=shape.num_heads // num_ranks,
            kv_heads=max(1, shape.num_kv_heads // num_ranks),  # copied where fewer than GPUs
            width=shape.head_dim,
            experts=shape.num_experts,
            topk=shape.topk,
            shared=shape.num_shared_experts * shape.shared_intermediate // num_ranks,
        )

    def steps(self) -> tuple[Step, ...]:
        (norm,) = self._rows("norm", tokens=1)
        between = Norm(norm.moves)
        halves = [self._attention(), self._experts() if self._shape.num_experts else self._mlp()]
        if self._is_backward:
            return tuple(step for half in reversed(halves) for step in (*half, between))
        return tuple(step for half in halves for step in (between, *half))

    def _rows(self, part: str, **sizes: int) -> tuple[ListedOperation, ...]:
        """Rows of a part, without gradients of weights: a `Product` stands for both of its own."""
        direction: Pass = "backward" if self._is_backward else "forward"
        if not self._bare.has(part, direction):
            return ()
        given = dataclasses.replace(self._of_gpu, **sizes)
        rows = self._bare.operations(given, self._options, parts=(part,), direction=direction)
        return tuple(row for row in rows if not row.weights)

    # ---- attention -------------------------------------------------------------------------------

    def _attention(self) -> tuple[Step, ...]:
        queries, positions = self._rows("grouped queries")
        (output,) = self._rows("output")
        (itself,) = self._rows("attention")
        around = tuple(map(_elementwise, self._rows("gradients of attention")))
        moved, attention = _elementwise(positions), self._itself(itself)
        if self._is_backward:
            before, *behind = around
            core = Core((before, attention, *behind, moved))
            return Enter(_product(output)), core, Leave(_product(queries))
        return Enter(_product(queries)), Core((moved, attention)), Leave(_product(output))

    def _itself(self, row: ListedOperation) -> Attention:
        assert row.scores is not None
        (heads, width, _), sizes = row.scores, self._sizes
        scores = Scores(heads * sizes.pairs, heads * sizes.blocks, sizes.longest)
        return Attention(scores, width, row.moves, sizes.is_decode)

    # ---- feed-forward network --------------------------------------------------------------------

    def _mlp(self) -> tuple[Step, ...]:
        first, activation, second = self._network(self._sizes.tokens, self._shape.intermediate // self._n)
        return (Enter(first), Core((activation,)), Leave(second))

    def _network(self, rows: int, inner: int, groups: int = 1) -> tuple[Product, Elementwise, Product]:
        """A network of this inner width: its products in the order of the pass."""
        up, activation, down = self._rows("network", tokens=rows, inner=inner)
        first, second = (down, up) if self._is_backward else (up, down)
        return _product(first, groups), _elementwise(activation), _product(second, groups)

    def _experts(self) -> tuple[Step, ...]:
        """Experts, each sliced over all GPUs; every GPU chooses for all tokens, as they are there.

        Rows are spread evenly over the experts: no routing is known here. Those of zero experts
        stay as they are.
        """
        shape, tokens, hidden = self._shape, self._sizes.tokens, self._shape.hidden
        with_weights = shape.num_experts - shape.num_zero_experts
        rows = tokens * shape.topk * with_weights // shape.num_experts
        first, activation, second = self._network(rows, shape.intermediate // self._n, with_weights)
        gate, scores = self._rows("gate")
        spread = Elementwise((tokens + rows) * hidden * BF16)
        before: tuple[Work, ...] = (_product(gate), _elementwise(scores), spread)
        after: tuple[Work, ...] = (Elementwise((rows + tokens) * hidden * BF16),)
        if self._is_backward:
            before, after = (spread,), (*after, _product(gate))
        if self._of_gpu.shared:
            (added,) = self._rows("sum")
            one, between, other = self._network(tokens, self._of_gpu.shared)
            before = (*before, one, between, other)
            after = (*after, _elementwise(added))
        return (Enter(first, before), Core((activation,)), Leave(second, after))


def _product(row: ListedOperation, groups: int = 1) -> Product:
    assert row.gemm is not None
    return Product(*row.gemm, groups)


def _elementwise(row: ListedOperation) -> Elementwise:
    return Elementwise(row.moves)
