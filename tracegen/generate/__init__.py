"""Synthetic routing: one file per kind, all but ``latent`` independent from token to token.

Recorded traces have more: neighbouring tokens share experts, layers predict each
other, loads follow the topic. ``latent`` has that; the others are for controlled comparisons.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from tracegen.errors import UserError, unknown
from tracegen.generate import draw, latent_draw
from tracegen.generate.histogram import Histogram
from tracegen.generate.latent import Latent
from tracegen.generate.normal import Normal
from tracegen.generate.remote import Remote
from tracegen.generate.uniform import Uniform
from tracegen.generate.zipf import Zipf
from tracegen.models import ModelShape
from tracegen.models import load as load_model
from tracegen.trace import provenance
from tracegen.trace.checks import boundaries
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import (
    PHASES,
    RequestTable,
    TokenTable,
    TraceInfo,
    TraceModel,
    expert_dtype,
)

__all__ = ["GENERATORS", "Generator", "generate"]

MAX_ROWS = 2**28
"""Token rows times layers that one call makes: 2 GiB of ids at top-8."""


class Generator(Protocol):
    """A kind of skew: parameters as fields, and the weights they give a layer."""

    def weights(
        self, num_experts: int, topk: int, layer: int, rng: np.random.Generator
    ) -> npt.NDArray[np.float64]:
        """Weight of each expert of a layer, shape (expert,).

        Parameters
        ----------
        num_experts, topk
            Of the model.
        layer
            Position among the MoE layers.
        rng
            Stream of this layer's shape alone.
        """


GENERATORS: dict[str, type[BaseModel]] = {
    "histogram": Histogram,
    "latent": Latent,
    "normal": Normal,
    "remote": Remote,
    "uniform": Uniform,
    "zipf": Zipf,
}
"""Every kind by name; each is a frozen pydantic model, and a :class:`Generator` but for two.

``latent`` draws tokens that depend on one another, ``remote`` has weights for each GPU.
"""


def generate(
    kind: str,
    model: str | ModelShape,
    ranks: int = 8,
    tokens_per_rank: int = 4096,
    layers: int | None = None,
    seed: int = 0,
    steps: int = 1,
    phase: str = "prefill",
    topk: int | None = None,
    group_limited: bool = False,
    groups: tuple[int, int] | None = None,
    on_layer: Callable[[int], None] | None = None,
    **params: Any,
) -> RoutingTrace:
    """Make a synthetic trace with a source GPU for every token.

    Layer ``l`` is the same whatever the number of layers, step ``s`` whatever the
    number of steps.

    Parameters
    ----------
    kind
        Key of :data:`GENERATORS`.
    model
        Shape, or its name in the catalogue, or the path of a TOML file.
    ranks
        Source GPUs.
    tokens_per_rank
        Tokens of each GPU in each step.
    layers
        MoE layers, the first so many; None for all the model has.
    seed
        Non-negative; the same seed gives the same trace.
    steps
        Forward passes. In the decode phase each GPU's requests advance by one token a
        step; otherwise each step brings new sequences.
    phase
        One of :data:`tracegen.trace.tables.PHASES`.
    topk
        Experts per token; None for the model's.
    group_limited
        Whether tokens keep to ``topk_group`` of the model's ``n_group`` groups of experts,
        as the router of DeepSeek-V3 makes them. It lowers the number of GPUs that a
        token visits; published comparisons of dispatch schemes leave it out.
    groups
        Number of equal groups of neighbouring experts, and how many of them a token may choose
        from, if not the model's; tokens then keep to them.
    on_layer
        Called with the number of finished layers, to show progress.
    **params
        Fields of the kind, e.g. ``skew``.

    Returns
    -------
    Slots in order of choice. The content id depends on the arguments only.

    Raises
    ------
    UserError
        If a name is unknown or a value is not possible.

    Examples
    --------
    >>> trace = generate("zipf", "olmoe-1b-7b", ranks=2, tokens_per_rank=4, layers=1, skew=0.6)
    >>> trace.expert_ids.shape, trace.tokens.rank.tolist()
    ((1, 8, 8), [0, 0, 0, 0, 1, 1, 1, 1])
    """
    skew = _generator(kind, params)
    shape = _shape(model, topk, groups)
    num_layers = shape.num_moe_layers if layers is None else layers
    _check_counts(ranks, tokens_per_rank, num_layers, steps, seed, shape, phase)
    limit = (shape.n_group, shape.topk_group) if group_limited or groups else None
    if limit is not None and shape.topk_group == shape.n_group:
        msg = f"{shape.name} has no group-limited routing: a token may choose from all groups"
        raise UserError(msg)
    rows_per_step = ranks * tokens_per_rank
    tokens, requests = _tables(ranks, tokens_per_rank, steps, PHASES.index(phase))
    if isinstance(skew, Latent):
        tables = skew.tables(ranks, tokens_per_rank, steps, PHASES.index(phase), seed)
        tokens, requests = tables or (tokens, requests)
        model_of = skew.model(shape, num_layers, seed)
        shared = skew.latents(model_of, tokens, seed)
    ids = np.empty((num_layers, steps * rows_per_step, shape.topk), expert_dtype(shape.num_experts))
    for layer in range(num_layers):
        if isinstance(skew, Latent):
            for step in range(steps):
                rows = slice(step * rows_per_step, (step + 1) * rows_per_step)
                rng = draw.stream(seed, layer, step + 1)
                ids[layer, rows] = latent_draw.route(model_of, shared[rows], layer, rng, limit)
            if on_layer is not None:
                on_layer(layer + 1)
            continue
        rng = draw.stream(seed, layer, draw.SHAPE_STREAM)
        if isinstance(skew, Remote):
            weights = skew.weights_of_ranks(shape.num_experts, shape.topk, ranks)
        else:
            weights = [skew.weights(shape.num_experts, shape.topk, layer, rng)]
        for step in range(steps):
            rows = slice(step * rows_per_step, (step + 1) * rows_per_step)
            rng = draw.stream(seed, layer, step + 1)
            # Rows of a step are ordered by rank.
            ids[layer, rows] = np.concatenate(
                [
                    draw.topk_without_replacement(
                        rng, each, shape.topk, rows_per_step // len(weights), limit
                    )
                    for each in weights
                ]
            )
        if on_layer is not None:
            on_layer(layer + 1)
    arguments = {
        "kind": kind,
        "model": shape.name,
        "ranks": ranks,
        "tokens_per_rank": tokens_per_rank,
        "layers": num_layers,
        "seed": seed,
        "steps": steps,
        "phase": phase,
        "topk": shape.topk,
        "group_limited": limit is not None,
        **({"groups": list(groups)} if groups else {}),
        **cast("BaseModel", skew).model_dump(mode="json"),
    }
    return RoutingTrace(
        model=TraceModel.from_shape(shape),
        moe_layer_index=np.array(shape.moe_layer_index[:num_layers], np.uint16),
        expert_ids=ids,
        tokens=tokens,
        steps_indptr=boundaries(tokens.step),
        requests=requests,
        info=TraceInfo(
            kind="synthetic",
            title=f"{kind} routing for {shape.title or shape.name}",
            license="CC0-1.0",
            slot_order="weight_desc",
            provenance=provenance.record("tracegen.generate", parameters=arguments),
        ),
    )


def _generator(kind: str, params: dict[str, Any]) -> Generator | Remote:
    """The kind with its parameters, or an error that lists what there is."""
    if kind not in GENERATORS:
        raise unknown("generator", kind, GENERATORS)
    chosen = GENERATORS[kind]
    for name in params:
        if name not in chosen.model_fields:
            raise unknown(f"parameter of {kind}", name, chosen.model_fields)
    try:
        return cast("Generator | Remote", chosen(**params))
    except ValidationError as error:
        found = error.errors()[0]
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, UserError):
            raise cause from error
        place = ".".join(str(part) for part in found["loc"])
        msg = f"{kind}: {place}: {found['msg'].removeprefix('Value error, ')}"
        raise UserError(msg) from error


def _shape(model: str | ModelShape, topk: int | None, groups: tuple[int, int] | None) -> ModelShape:
    """The model's shape, with another top-k and other groups of experts if asked for."""
    shape = model if isinstance(model, ModelShape) else load_model(model)
    wanted: dict[str, Any] = {} if topk is None else {"topk": topk}
    if groups is not None:
        wanted |= {"n_group": groups[0], "topk_group": groups[1]}
    changes = {name: value for name, value in wanted.items() if value != getattr(shape, name)}
    if not changes:
        return shape
    try:
        return ModelShape(**{**shape.model_dump(), **changes})
    except ValidationError as error:
        given = ", ".join(f"{name} {value}" for name, value in changes.items())
        msg = f"{given} is not possible for {shape.name}: {error.errors()[0]['msg']}"
        raise UserError(msg) from error


def _check_counts(
    ranks: int,
    tokens_per_rank: int,
    layers: int,
    steps: int,
    seed: int,
    shape: ModelShape,
    phase: str,
) -> None:
    """Refuse sizes that make no trace, or one that does not fit into memory."""
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    for name, value, low, high in (
        ("ranks", ranks, 1, 2**16 - 1),
        ("tokens_per_rank", tokens_per_rank, 0, 2**31),
        ("layers", layers, 1, shape.num_moe_layers),
        ("steps", steps, 1, 2**31),
        ("seed", seed, 0, 2**63),
    ):
        if not low <= value <= high:
            msg = f"{name} is {value}; possible for {shape.name} are {low} to {high}"
            raise UserError(msg)
    rows = ranks * tokens_per_rank * steps * layers
    if rows > MAX_ROWS:
        msg = f"{rows} token rows over all layers; at most {MAX_ROWS} fit into one trace"
        raise UserError(msg)


def _tables(
    ranks: int, tokens_per_rank: int, steps: int, phase: int
) -> tuple[TokenTable, RequestTable]:
    """Columns of tokens and requests: rows by step, then by rank, then by position."""
    shape = (steps, ranks, tokens_per_rank)
    step, rank, offset = (grid.ravel() for grid in np.indices(shape))
    if PHASES[phase] == "decode":
        # Each GPU holds tokens_per_rank running requests; every step is their next token.
        request, position = rank * tokens_per_rank + offset, step
        count, prompt, output = ranks * tokens_per_rank, 0, steps
    else:
        request, position = step * ranks + rank, offset
        count, prompt, output = steps * ranks, tokens_per_rank, 0
    tokens = TokenTable(
        step=step.astype(np.uint32),
        request=request.astype(np.uint32),
        position=position.astype(np.uint32),
        phase=np.full(step.size, phase, np.uint8),
        rank=rank.astype(np.uint16),
    )
    requests = RequestTable(
        id=np.arange(count, dtype=np.uint32),
        prompt_len=np.full(count, prompt, np.uint32),
        output_len=np.full(count, output, np.uint32),
    )
    return tokens, requests
