"""A synthetic trace of the parameters that were fitted: as many requests, one after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracegen.generate.latent_draw import route_layers
from tracegen.generate.latent_kinds import KindModel, latents
from tracegen.trace import provenance
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.checks import boundaries
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import DECODE, RequestTable, TokenTable, TraceInfo


def synthesise(
    model: KindModel,
    like: RoutingTrace,
    *,
    seed: int = 0,
    on_layer: Callable[[int], None] | None = None,
) -> RoutingTrace:
    """Make a trace of as many requests as were fitted, one after another.

    Parameters
    ----------
    model
        From :func:`tracegen.imitate.fit.fit`.
    like
        The trace it was fitted to; only its model header is taken.
    seed
        The same seed gives the same trace.
    on_layer
        Called with the number of finished layers.
    """
    tokens, requests = _tables(model, int(like.tokens.phase[0]), seed)
    drawn = latents(model, tokens.request, tokens.position, seed, balance=True)
    ids = route_layers(model, drawn, seed, on_layer)
    arguments = {"seed": seed, "num_requests": model.num_requests}
    return RoutingTrace(
        model=like.model,
        moe_layer_index=np.array(model.moe_layer_index, np.uint16),
        expert_ids=ids,
        tokens=tokens,
        steps_indptr=boundaries(tokens.step),
        requests=requests,
        info=TraceInfo(
            kind="synthetic",
            title=f"imitation of {like.info.title}",
            license=like.info.license,
            slot_order="weight_desc",
            provenance=provenance.record(
                "moereplay trace imitate",
                parameters=arguments,
                source=dict(model.source),
                parents=[like.content_id],
            ),
        ),
    )


def _tables(model: KindModel, phase: int, seed: int) -> tuple[TokenTable, RequestTable]:
    """Requests with lengths as described, in random order, one token per step."""
    rng = np.random.default_rng(seed)
    count = model.num_requests
    even = (np.arange(count) + 0.5) / count

    def lengths(quantiles: tuple[int, ...]) -> Array:
        grid = np.linspace(0, 1, len(quantiles))
        return rng.permutation(np.rint(np.interp(even, grid, quantiles)).astype(np.int64))

    recorded, prompt = lengths(model.num_tokens), lengths(model.prompt_len)
    request = np.repeat(np.arange(count), recorded)
    offset = place_in_group(recorded)
    decode = phase == DECODE
    step = np.arange(request.size) if decode else request
    tokens = TokenTable(
        step=step.astype(np.uint32),
        request=request.astype(np.uint32),
        position=(np.repeat(prompt, recorded) + offset).astype(np.uint32),
        phase=np.full(request.size, phase, np.uint8),
    )
    requests = RequestTable(
        id=np.arange(count, dtype=np.uint32),
        prompt_len=(prompt if decode else recorded).astype(np.uint32),
        output_len=(recorded if decode else 0 * recorded).astype(np.uint32),
    )
    return tokens, requests
