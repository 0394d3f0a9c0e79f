"""Synthetic routing: one file per kind, all but ``latent`` independent from token to token.

Recorded traces have more: neighbouring tokens share experts, layers predict each
other, loads follow the topic. ``latent`` has that; the others are for controlled comparisons.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from tracegen.generate import draw, latent_draw
from tracegen.generate.balancedness import Balancedness
from tracegen.generate.histogram import Histogram
from tracegen.generate.latent import Latent
from tracegen.generate.normal import Normal
from tracegen.generate.remote import Remote
from tracegen.generate.token_imbalance import TokenImbalance
from tracegen.generate.uniform import Uniform
from tracegen.generate.zipf import Zipf
from tracegen.models import ModelShape
from tracegen.models import load as load_model
from tracegen.shared.errors import UserError, unknown
from tracegen.shared.strict import mistake_in
from tracegen.trace import provenance
from tracegen.trace.arrays import place_in_group
from tracegen.trace.checks import boundaries
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.rows_of_loads import rows_with_loads
from tracegen.trace.tables import (
    PHASES,
    RequestTable,
    SlotOrder,
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

    def weights(self, num_experts: int, topk: int, layer: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
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
    "balancedness": Balancedness,
    "histogram": Histogram,
    "latent": Latent,
    "normal": Normal,
    "remote": Remote,
    "token-imbalance": TokenImbalance,
    "uniform": Uniform,
    "zipf": Zipf,
}
"""Every kind by name; each is a frozen pydantic model, and a :class:`Generator` but for four.

``latent`` draws tokens that depend on one another, ``remote`` has weights for each GPU, and
``balancedness`` and ``token-imbalance`` give rows rather than weights.
"""


Kind = Generator | Latent | Remote | Balancedness | TokenImbalance
"""What a kind can be."""
SLOT_ORDERS: dict[type, SlotOrder] = {Balancedness: "native", TokenImbalance: "id_asc"}
"""Order of a token's slots where it is not that of the draws."""
MOST_TOKENS = 2**31
"""Tokens of a GPU in a step."""


def generate(
    kind: str,
    model: str | ModelShape,
    ranks: int = 8,
    tokens_per_rank: int | Sequence[int] = 4096,
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
        Tokens of each GPU in each step: one number, or one for each GPU; some may have none.
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
    of_rank, uneven = _tokens_of_ranks(skew, ranks, tokens_per_rank)
    _check_counts(of_rank, num_layers, steps, seed, shape, phase)
    if (group_limited or groups) and isinstance(skew, Balancedness | TokenImbalance):
        msg = f"{kind}: its loads leave no choice of groups; leave out group_limited and groups"
        raise UserError(msg)
    limit = (shape.n_group, shape.topk_group) if group_limited or groups else None
    if limit is not None and shape.topk_group == shape.n_group:
        msg = f"{shape.name} has no group-limited routing: a token may choose from all groups"
        raise UserError(msg)
    tokens, requests = _tables(of_rank, steps, PHASES.index(phase))
    if isinstance(skew, Latent):
        if uneven:
            msg = "latent: its requests are drawn for equal GPUs; give one number of tokens per rank"
            raise UserError(msg)
        tables = skew.tables(ranks, int(of_rank[0]), steps, PHASES.index(phase), seed)
        tokens, requests = tables or (tokens, requests)
        model_of = skew.model(shape, num_layers, seed)
        shared = skew.latents(model_of, tokens, seed)
    total = int(of_rank.sum())
    ids = np.empty((num_layers, steps * total, shape.topk), expert_dtype(shape.num_experts))
    for layer in range(num_layers):
        rows_of = None if isinstance(skew, Latent) else _rows(skew, shape, of_rank, layer, seed, limit)
        for step in range(steps):
            rows, rng = slice(step * total, (step + 1) * total), draw.stream(seed, layer, step + 1)
            if rows_of is not None:
                ids[layer, rows] = rows_of(step, rng)
            else:
                ids[layer, rows] = latent_draw.route(model_of, shared[rows], layer, rng, limit)
        if on_layer is not None:
            on_layer(layer + 1)
    notes = ""
    if isinstance(skew, Balancedness | TokenImbalance):
        notes = skew.remark(shape.num_experts, shape.topk, of_rank)
    arguments = {
        "kind": kind,
        "model": shape.name,
        "ranks": ranks,
        "tokens_per_rank": of_rank.tolist() if uneven else int(of_rank[0]),
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
            # The last rank that has tokens says how many there are, unless others come after it.
            num_ranks=0 if of_rank[-1] else ranks,
            slot_order=SLOT_ORDERS.get(type(skew), "weight_desc"),
            provenance=provenance.record("tracegen.generate", parameters=arguments, notes=notes),
        ),
    )


def _tokens_of_ranks(
    skew: Kind, ranks: int, tokens_per_rank: int | Sequence[int]
) -> tuple[npt.NDArray[np.int64], bool]:
    """Tokens of each GPU, and whether they are not all the same."""
    if not 1 <= ranks < 2**16:
        msg = f"ranks is {ranks}; possible are 1 to {2**16 - 1}"
        raise UserError(msg)
    if isinstance(tokens_per_rank, Sequence):
        if len(tokens_per_rank) != ranks:
            msg = f"tokens_per_rank has {len(tokens_per_rank)} numbers for {ranks} ranks"
            raise UserError(msg)
        given = list(tokens_per_rank)
    elif isinstance(skew, TokenImbalance) and 0 <= tokens_per_rank <= MOST_TOKENS:
        given = skew.tokens_of_ranks(ranks, tokens_per_rank).tolist()
    else:
        given = [tokens_per_rank] * ranks
    for number in (min(given), max(given)):
        if not 0 <= number <= MOST_TOKENS:
            msg = f"tokens_per_rank is {number}; possible are 0 to {MOST_TOKENS}"
            raise UserError(msg)
    return np.array(given, np.int64), len(set(given)) > 1


def _rows(
    skew: Generator | Remote | Balancedness | TokenImbalance,
    shape: ModelShape,
    of_rank: npt.NDArray[np.int64],
    layer: int,
    seed: int,
    limit: tuple[int, int] | None,
) -> Callable[[int, np.random.Generator], npt.NDArray[Any]]:
    """Function from step and its stream to the ids (token, k) of one layer, rows by rank."""
    experts, topk = shape.num_experts, shape.topk
    of_layer = draw.stream(seed, layer, draw.SHAPE_STREAM)
    if isinstance(skew, TokenImbalance):
        return lambda step, rng: skew.rows(experts, topk, of_rank, step, rng)
    if isinstance(skew, Balancedness):
        counts = skew.expert_loads(experts, topk, of_rank, of_layer)
        return lambda _step, rng: rows_with_loads(counts, int(of_rank.sum()), topk, rng)
    if isinstance(skew, Remote):
        parts = list(zip(skew.weights_of_ranks(experts, topk, of_rank.size), of_rank, strict=True))
    else:
        parts = [(skew.weights(experts, topk, layer, of_layer), of_rank.sum())]
    return lambda _step, rng: np.concatenate(
        [draw.topk_without_replacement(rng, w, topk, int(count), limit) for w, count in parts]
    )


def _generator(kind: str, params: dict[str, Any]) -> Kind:
    """The kind with its parameters, or an error that lists what there is."""
    if kind not in GENERATORS:
        raise unknown("generator", kind, GENERATORS)
    chosen = GENERATORS[kind]
    for name in params:
        if name not in chosen.model_fields:
            raise unknown(f"parameter of {kind}", name, chosen.model_fields)
    try:
        return cast("Kind", chosen(**params))
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(cause, UserError):
            raise cause from error
        place, problem = mistake_in(error)
        msg = f"{place if place == kind else f'{kind}: {place}'}: {problem}"
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
    of_rank: npt.NDArray[np.int64],
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
        ("layers", layers, 1, shape.num_moe_layers),
        ("steps", steps, 1, 2**31),
        ("seed", seed, 0, 2**63),
    ):
        if not low <= value <= high:
            msg = f"{name} is {value}; possible for {shape.name} are {low} to {high}"
            raise UserError(msg)
    rows = int(of_rank.sum()) * steps * layers
    if rows > MAX_ROWS:
        msg = f"{rows} token rows over all layers; at most {MAX_ROWS} fit into one trace"
        raise UserError(msg)


def _tables(of_rank: npt.NDArray[np.int64], steps: int, phase: int) -> tuple[TokenTable, RequestTable]:
    """Columns of tokens and requests: rows by step, then by rank, then by position."""
    total = int(of_rank.sum())
    step = np.repeat(np.arange(steps), total)
    rank = np.tile(np.repeat(np.arange(of_rank.size), of_rank), steps)
    offset = np.tile(place_in_group(of_rank), steps)
    if PHASES[phase] == "decode":
        # Each GPU holds so many running requests; every step is their next token.
        request, position = np.tile(np.arange(total), steps), step
        prompt_len, output_len = np.zeros(total), np.full(total, steps)
    else:
        busy = of_rank > 0
        request = step * int(busy.sum()) + (np.cumsum(busy) - 1)[rank]
        position = offset
        prompt_len = np.tile(of_rank[busy], steps)
        output_len = np.zeros(prompt_len.size)
    tokens = TokenTable(
        step=step.astype(np.uint32),
        request=request.astype(np.uint32),
        position=position.astype(np.uint32),
        phase=np.full(step.size, phase, np.uint8),
        rank=rank.astype(np.uint16),
    )
    requests = RequestTable(
        id=np.arange(prompt_len.size, dtype=np.uint32),
        prompt_len=prompt_len.astype(np.uint32),
        output_len=output_len.astype(np.uint32),
    )
    return tokens, requests
