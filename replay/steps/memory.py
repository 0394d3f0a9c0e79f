"""Memory of a GPU of each stage of a training plan, and the refusal of what does not fit.

Nothing is counted for CUDA contexts, libraries and what an allocator wastes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from hwmodel.units import ceil_div
from replay.errors import RefusedError, UserError
from replay.steps import activations, parameters, plan_fit
from replay.steps.chunks import chunks_of
from replay.steps.plan import ParallelPlan
from replay.steps.recipes import BF16, FP32, weight_bytes

if TYPE_CHECKING:
    from hwmodel import System
    from replay.steps.recipes import Recipe
    from tracegen.models import ModelShape

GIB = 1 << 30


class StageRetention(NamedTuple):
    """Retention of a schedule on a stage.

    Attributes
    ----------
    chunks
        Numbers of the model's chunks whose weights the stage has.
    in_flight
        Micro-batches' activations of one chunk that it keeps at most.
    """

    chunks: tuple[int, ...]
    in_flight: float


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each GPU of a stage.

    Attributes
    ----------
    weights, gradients
        Of the stage's layers, and of embedding and head where it has them.
    optimiser
        Its own copy of the weights, and moments, sliced over all GPUs that have these (ZeRO-1).
    activations
        What the forward passes of the micro-batches in flight keep.
    at_work
        What the backward pass of the layer that needs most computes again, and gradients of its
        activations.
    logits
        Of the output head, once.
    hops
        Rows that are sent to other stages and received of them, and gradients.
    exchange
        Always 0: buffers of the scheme are not counted, and results have the part all the same.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int
    at_work: int
    logits: int
    hops: int
    exchange: int = 0

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return sum(asdict(self).values())

    def largest(self) -> list[tuple[str, int]]:
        """Give the parts, the largest first."""
        return sorted(asdict(self).items(), key=lambda part: -part[1])


def stages(
    shape: ModelShape,
    plan: ParallelPlan,
    recipe: Recipe,
    sequence: int,
    kept: Sequence[StageRetention],
    *,
    copies: int = 1,
) -> list[StageMemory]:
    """Count the memory of every stage.

    Parameters
    ----------
    sequence
        Tokens of a sequence.
    kept
        (pp,): what the schedule keeps on each stage.
    copies
        Stages that have the same chunk, over which the optimiser is sliced, too.

    Raises
    ------
    UserError
        If the plan's chunks do not fit the model.
    """
    chunks = chunks_of(shape, plan)
    tokens = plan.tokens_per_gpu(sequence)
    # Zero experts keep no rows; their share of the choices is that among the experts.
    rows = int(tokens * shape.topk * shape.num_ffn_experts / shape.num_experts)
    found = []
    for stage in kept:
        layers = [layer for chunk in stage.chunks for layer in chunks[chunk]]
        mine = [parameters.of_layer(shape, layer, plan.tp, plan.ep) for layer in layers]
        predicting = sum(layer >= shape.num_layers for layer in layers)
        is_last = len(chunks) - 1 in stage.chunks
        ends = _ends(shape, plan.tp, 0 in stage.chunks or predicting, is_last or predicting)
        experts = sum(layer.experts for layer in mine)
        others = sum(layer.without_experts for layer in mine) + ends
        activated, at_work = 0, 0
        for layer in layers:
            each, again = activations.of_layer(shape, layer, recipe, plan.recompute, tokens, rows, plan.tp)
            activated += each
            gradients = activations.gradients_of_layer(shape, layer, tokens, rows)
            at_work = max(at_work, again + gradients)
        optimised = ceil_div(others, plan.dp * plan.cp * copies)
        optimised += ceil_div(experts, plan.expert_dp * copies)
        heads = is_last + predicting
        found.append(
            StageMemory(
                weights=sum(weight_bytes(layer, recipe.weights) for layer in mine) + BF16 * ends,
                gradients=recipe.gradients * (others + experts),
                optimiser=recipe.optimiser * optimised,
                activations=int(activated * stage.in_flight / max(len(stage.chunks), 1)),
                at_work=at_work,
                logits=heads * tokens * (shape.vocab or 0) * (BF16 + FP32),
                hops=4 * tokens * shape.hidden * BF16 if plan.pp > 1 else 0,
            )
        )
    return found


def _ends(shape: ModelShape, tp: int, has_embedding: bool | int, has_head: bool | int) -> int:
    """Parameters of embedding, last norm and head; tied ones lie on both ends of a pipeline."""
    found = parameters.of_norm(shape) if has_head else 0
    if shape.tied_embeddings:
        return found + (parameters.of_embedding(shape, tp) if has_embedding or has_head else 0)
    found += parameters.of_embedding(shape, tp) if has_embedding else 0
    return found + (parameters.of_head(shape, tp) if has_head else 0)


def require(
    shape: ModelShape,
    plan: ParallelPlan,
    system: System,
    needs: Callable[[ParallelPlan], list[StageMemory]],
) -> list[StageMemory]:
    """Refuse a plan that does not fit the GPUs of a system.

    Parameters
    ----------
    needs
        Gives the memory of every stage of a plan, or raises UserError for one that cannot be.

    Returns
    -------
    The memory of every stage.

    Raises
    ------
    UserError
        Says which stage needs most and for what, and which changes of a size would fit or, if none
        does, which several fit together or need least. All have as many GPUs and as large a batch.
    """
    found = needs(plan)
    room = system.hbm.num_bytes
    worst = max(range(len(found)), key=lambda stage: found[stage].total)
    if found[worst].total <= room:
        return found
    parts = ", ".join(f"{name.replace('_', ' ')} {nbytes / GIB:.1f}" for name, nbytes in found[worst].largest()[:3])
    message = (
        f"plan: stage {worst} needs {found[worst].total / GIB:.1f} GiB on each GPU, "
        f"{system.name} has {room / GIB:.1f}; most for {parts}\n"
    )
    raise RefusedError(message + _advice(shape, plan, room, needs))


def _advice(
    shape: ModelShape,
    plan: ParallelPlan,
    room: int,
    needs: Callable[[ParallelPlan], list[StageMemory]],
) -> str:
    """Sentence on changes of a size that fit, or else on several that fit together or need least."""
    tried = _alternatives(shape, plan, needs)
    fit = [f"{_words(change)} ({most / GIB:.1f} GiB)" for most, change, _ in tried if most <= room]
    if fit:
        return f"these fit: {'; '.join(fit)}"
    if not tried:
        return "no change of one size helps"
    changed, least, said = dict[str, int | str](), math.inf, ""
    while tried and min(tried, key=itemgetter(0))[0] < least:  # one change more, until it fits or none helps
        least, change, plan = min(tried, key=itemgetter(0))
        changed |= change
        said = f"{_words(changed)} ({least / GIB:.1f} GiB)"
        if least <= room:
            return f"this fits: {said}"
        tried = _alternatives(shape, plan, needs)
    return f"nothing fits on as many GPUs; least needs {said}"


def _words(change: Mapping[str, int | str]) -> str:
    return ",".join(f"{name}={value}" for name, value in change.items())


def _alternatives(
    shape: ModelShape, plan: ParallelPlan, needs: Callable[[ParallelPlan], list[StageMemory]]
) -> list[tuple[int, dict[str, int | str], ParallelPlan]]:
    """Bytes of the fullest GPU, change and plan, for each change of a plan that a model allows."""
    found = []
    for change in _changes(plan):
        sizes = plan.model_dump(exclude_none=True)
        if {"pp", "vpp"} & change.keys():
            sizes.pop("layers", None)  # of other chunks
        try:
            other = ParallelPlan(**{**sizes, **change})
            plan_fit.check_model(other, shape)
            found.append((max(stage.total for stage in needs(other)), change, other))
        except UserError:
            continue
    return found


def _changes(plan: ParallelPlan) -> Iterator[dict[str, int | str]]:
    """Sizes that take less memory, with as many GPUs and sequences of a step."""
    if plan.recompute == "none":
        yield {"recompute": "selective"}
    if plan.recompute != "full":
        yield {"recompute": "full"}
    if plan.micro_batch % 2 == 0:
        yield {"micro_batch": plan.micro_batch // 2, "micro_batches": 2 * plan.micro_batches}
    yield {"ep": 2 * plan.ep}
    if plan.dp % 2 == 0:
        for name in ("tp", "cp", "pp"):
            more, batches = 2 * getattr(plan, name), 2 * plan.micro_batches
            yield {name: more, "dp": plan.dp // 2, "micro_batches": batches}
