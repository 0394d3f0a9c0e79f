"""Parts of an iteration beside the MoE layers: attention, dense layers, both ends.

The kernels are those of `replay.model.compute.dense.Between`, which a chain of layers has between
its MoE layers. Here prompts and decoded tokens may be in one iteration: projections and norms take
the rows of all, and attention itself is a kernel for each of the two, as vLLM runs latent attention
(vllm-project/vllm, ``v1/attention/backends/mla/common.py``).

With tensor parallelism of attention a worker is several GPUs. Each has its share of the heads for
all rows of the worker, and its share of the rows everywhere else. The rows are gathered before the
projections, and summed and scattered behind them (sgl-project/sglang, ``layers/communicator.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.dense import Between
from replay.model.work.context import Context

if TYPE_CHECKING:
    from replay.experiments.serve.iteration import Load, PromptPiece
    from replay.experiments.serve.stream import KernelTotals
    from replay.model.arrays import Ints
    from replay.model.compute.listed_kernels import ListedKernels
    from replay.model.work.kernel_lists import KernelSizes
    from replay.model.work.stacks import Stack
    from tracegen import ModelShape


@dataclass(frozen=True, kw_only=True)
class LoadRows(Context):
    """Rows and contexts that kernels find in some loads.

    Attributes
    ----------
    tokens
        (load,): rows of each GPU outside attention: those of a worker, over its GPUs.
    positions, pairs
        (load,): of both kinds of tokens together.
    worker
        (load,): rows of a worker.
    decode, prefill
        The tokens of each kind.
    sampled
        (load,): rows of which the next token is asked for.
    requests
        (load,): requests that are decoded.
    """

    worker: Ints
    decode: Context
    prefill: Context
    sampled: Ints
    requests: Ints

    @property
    def whole(self) -> Context:
        """The rows of a worker, of both kinds."""
        return Context(self.worker, self.positions, self.pairs)

    @classmethod
    def of_loads(cls, loads: Sequence[Load], tile: tuple[int, int], tp: int) -> LoadRows:
        """Count what loads find.

        Parameters
        ----------
        loads
            (load,).
        tile
            Queries and keys of a tile of a prefill kernel, see `Context.of`.
        tp
            GPUs of a worker.
        """
        decode = _of_decoded(loads)
        prefill = [[_of_piece(piece, tile) for piece in load.prefill] for load in loads]
        tokens, positions, pairs, blocks = (
            np.array([sum(one[i] for one in pieces) for pieces in prefill], np.int64) for i in range(4)
        )
        longest = [max((one[-1] for one in pieces), default=0) for pieces in prefill]
        prompts = Context(tokens, positions, pairs, blocks, np.array(longest, np.int64))
        worker = decode.tokens + prompts.tokens
        ends = np.array([len(load.prefill) for load in loads], np.int64)
        return cls(
            tokens=-(-worker // tp),
            positions=decode.positions + prompts.positions,
            pairs=decode.pairs + prompts.pairs,
            blocks=prompts.blocks,
            longest=prompts.longest,
            worker=worker,
            decode=decode,
            prefill=prompts,
            sampled=decode.tokens + ends,
            requests=np.array([load.decoding for load in loads], np.int64),
        )


def _of_decoded(loads: Sequence[Load]) -> Context:
    """Every token attends to the cache of its request, and to those before it in the iteration."""
    requests = np.array([load.decoding for load in loads], np.int64)
    queries = np.array([load.queries for load in loads], np.int64)
    cached = np.array([load.positions for load in loads], np.int64)
    return Context(
        tokens=requests * queries,
        positions=cached + requests * queries,
        pairs=queries * cached + requests * (queries * (queries + 1) // 2),
        requests=requests,
    )


def _of_piece(piece: PromptPiece, tile: tuple[int, int]) -> tuple[int, ...]:
    """Counts of a piece, in the order of a `Context`'s, by tiles as `Context.of` has them."""
    rows, keys = tile
    last = piece.before + np.minimum(np.arange(rows, piece.tokens + rows, rows), piece.tokens)
    pairs = rows * (-(-last // keys) * keys)
    counted = (int(pairs.sum()), pairs.size, int(pairs.max(initial=0)))
    return piece.tokens, piece.before + piece.tokens, *counted


@dataclass(frozen=True)
class EngineParts(Between):
    """The parts of a serving engine's iteration that are not MoE layers.

    Parameters
    ----------
    shape
        Shape of the model, with the heads of one GPU: see `slice_heads`.
    """

    def moe(self, stream: KernelTotals, rows: LoadRows) -> None:
        """Add what lies before an MoE layer, without layers that have no experts."""
        with stream.on("attention"):
            self._attend_and_choose(stream, rows)
        if not self.shared_beside:
            with stream.on("dense") as machine:
                self.shared_experts(machine, rows, stream.ranks)

    def dense(self, stream: KernelTotals, rows: LoadRows) -> None:
        """Add a layer without experts."""
        with stream.on("attention"):
            self._attend_to(stream, rows)
        with stream.on("dense"):
            self._dense(stream.kernels(self.precision, self._times), rows)

    def ends(self, stream: KernelTotals, rows: LoadRows) -> None:
        """Add the embedding, the last norm, the output head, and sampling.

        Only rows whose next token is asked for go through the head. Every GPU has the whole head
        for its own rows (SGLang's ``--enable-dp-lm-head``). Sampling: temperature and softmax, each
        a pass over FP32 logits, and a kernel that reads the probabilities (sgl-project/sglang,
        ``layers/sampler.py``); what it reads again where top-k or top-p asks for it is left out.
        """
        if self.shape.vocab is None:
            return
        kernels = stream.kernels(self.precision, self._times)
        share = -(-rows.sampled * rows.tokens // np.maximum(rows.worker, 1))
        with stream.on("head"):
            self._run(kernels, "tokens", rows)
            self._run(kernels, "norm", rows)
            self._run(kernels, "sampling", Context(share, share, share))

    def draft(self, stream: KernelTotals, rows: LoadRows) -> None:
        """Add what a layer of multi-token prediction has before its MoE layer, and ends.

        The embedding of the token and the row of the layer before are normed and joined by a
        projection (DeepSeek-V3 technical report, section 2.2).
        """
        with stream.on("dense"):
            self._run(stream.kernels(self.precision, self._times), "joined", rows)
        self.moe(stream, rows)
        self.ends(stream, replace(rows, sampled=rows.requests))  # the last verified token's

    # ---- attention of both kinds of tokens -------------------------------------------------------

    def _attend_and_choose(self, stream: KernelTotals, rows: LoadRows) -> None:
        """Add attention and the choice of experts."""
        self._run(stream.kernels(self.precision, self._times), "sum", rows)
        self._attend_to(stream, rows)
        self._choose(stream.kernels(self.precision, self._times), rows)

    def _attend_to(self, stream: KernelTotals, rows: LoadRows) -> None:
        """Add attention with its projections."""
        kernels = stream.kernels(self.precision, self._times)
        self._project(kernels, rows)
        self._attend(kernels, rows)

    def _project(self, kernels: ListedKernels, context: Context) -> None:
        """Norm of own rows; queries, keys and values of the worker's."""
        if not self.shape.num_heads:
            return
        assert isinstance(context, LoadRows)
        self._run(kernels, "norm", context)
        if not self.shape.kv_lora_rank:
            self._run(kernels, "grouped queries", context.whole)
            return
        self._run(kernels, "latent queries", context.whole)
        for part, some in (("absorption", context.decode), ("expansion", context.prefill)):
            if some.tokens.any():
                self._run(kernels, part, some)

    def _attend(self, kernels: ListedKernels, context: Context) -> None:
        """Attention itself of each kind, and the output projection of both."""
        if not self.shape.num_heads:
            return
        assert isinstance(context, LoadRows)
        for some, is_decode in ((context.decode, True), (context.prefill, False)):
            if some.tokens.any():
                self._mix(kernels, some, is_decode=is_decode)
        self._run(kernels, "output", context.whole)


@dataclass(frozen=True)
class ListedEngineParts(EngineParts):
    """The parts of an iteration that only decodes, with attention as the list of its stack has it.

    The router is the list's where that knows the scheme: where experts are chosen depends on it.
    Shared experts, layers without experts and ends are as without a stack.

    Parameters
    ----------
    stack
        What launches them, which `has_kernels_of` the model.
    sizes
        Of a layer; tokens and positions are those of the loads.
    scheme
        Name of the one that brings rows to experts.
    """

    stack: Stack = field(kw_only=True)
    sizes: KernelSizes = field(kw_only=True)
    scheme: str = field(kw_only=True)

    @staticmethod
    def has_kernels_of(stack: Stack, shape: ModelShape, precision: str, tp: int) -> bool:
        """Tell whether a list has a model's attention, whole and in these types."""
        has_types = precision in stack.kernels.types
        return bool(tp == 1 and shape.num_heads and has_types and stack.has_attention_of(shape))

    def _attend_and_choose(self, stream: KernelTotals, rows: LoadRows) -> None:
        if not self.stack.knows(self.scheme):
            super()._attend_and_choose(stream, rows)
            return
        self._run(stream.kernels(self.precision, self._times), "sum", rows)
        self._attend_to(stream, rows)
        self._run_listed(stream, "router", rows)

    def _attend_to(self, stream: KernelTotals, rows: LoadRows) -> None:
        self._run_listed(stream, "attention", rows)

    def _run_listed(self, stream: KernelTotals, part: str, rows: LoadRows) -> None:
        kernels = stream.kernels(
            self.precision, self._times, lambda kernels: self._mix(kernels, rows.decode, is_decode=True)
        )
        listed = self.stack.kernels.on_ranks(
            self.sizes,
            self.stack.options,
            part,
            "forward",
            tokens=rows.tokens,
            positions=rows.positions,
        )
        kernels.run(listed)


def slice_heads(shape: ModelShape, tp: int) -> ModelShape:
    """The shape with the heads that one of `tp` GPUs has.

    Heads of keys and values are copied where there are fewer than GPUs, as engines do.
    """
    if tp == 1 or not shape.num_heads:
        return shape
    width = shape.head_dim or shape.hidden // shape.num_heads
    heads = {"num_heads": shape.num_heads // tp}
    if not shape.kv_lora_rank:
        heads["head_dim"] = width
        heads["num_kv_heads"] = max(1, (shape.num_kv_heads or shape.num_heads) // tp)
    return shape.model_copy(update=heads)
