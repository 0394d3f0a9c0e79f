"""Routing with the structure of recorded traces: locality, topics, pairs, layers that agree."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, model_validator

from tracegen.generate import draw, latent_draw, latent_kinds
from tracegen.generate.latent_file import read
from tracegen.generate.latent_kinds import KindModel
from tracegen.generate.latent_model import MAX_SHARED, SCALES, LatentModel, normal_quantile
from tracegen.models import ModelShape
from tracegen.shared.errors import UserError
from tracegen.shared.strict import Strict
from tracegen.trace.arrays import Array, Floats
from tracegen.trace.tables import PHASES, RequestTable, TokenTable

_LENGTHS_STREAM = 2**31 + 16
"""Key of the stream of request lengths; no layer and no other purpose has it."""


def _share(default: float) -> Any:
    """A share of what decides about an expert."""
    return Field(default=default, ge=0, le=MAX_SHARED, allow_inf_nan=False)


class Latent(Strict):
    """Scores from latents that last a token, a few, a request, or a run of requests.

    See :mod:`tracegen.generate.latent_model` for the model. ``parameters`` takes all of it from a
    file of ``moereplay trace imitate``; without one, factors are drawn, and the shares say how much
    of what decides about an expert lasts how long. Their defaults are rounded means over the
    layers and experts of the fit to gpt-oss-20b-decode that ships with this package.
    """

    parameters: str = ""
    """Parameter file; nothing but ``num_types`` and ``mean_output_len`` may be given with it."""
    skew: float = Field(default=0.5, ge=0, le=3, allow_inf_nan=False)
    """Standard deviation of the logarithm of the experts' loads. Recorded traces: 0.5 for prompts
    of several domains on DeepSeek-V2-Lite (deepseek-ai/ESFT), 1.2 for gpt-oss-20b-decode."""
    token: float = _share(0.27)
    """Share that lasts a token, in all layers alike."""
    fast: float = _share(0.22)
    """Share that lasts about two tokens."""
    slow: float = _share(0.15)
    """Share that lasts some dozens of tokens."""
    request: float = _share(0.19)
    """Share of a request's topic."""
    drift: float = _share(0.07)
    """Share that a run of requests has in common: the mix of topics drifts."""
    pair: float = Field(default=0.2, ge=0, le=1, allow_inf_nan=False)
    """Share of its partner's score that each expert takes; all experts of a layer are paired."""
    width: int = Field(default=8, ge=1, le=256)
    """Latents of each scale; fewer make experts more alike."""
    early_locality: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    """Lasting shares of the first layer over those from a quarter of the depth on; early layers
    of recorded traces look at the token rather than at what came before it."""
    num_types: int = Field(default=0, ge=0, le=10**6)
    """Vocabulary that token latents are drawn from; 0 for a new one each time."""
    type_exponent: float = Field(default=1.0, ge=0, le=10, allow_inf_nan=False)
    """Zipf exponent of the vocabulary."""
    mean_output_len: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """Decode: requests end after so many tokens on average and others arrive in their place;
    0 for requests that last the whole trace."""

    @model_validator(mode="after")
    def _check(self) -> Latent:
        """Shares are parts of one whole, and a file is not contradicted."""
        total = sum(getattr(self, name) for name in SCALES)
        if total > MAX_SHARED:
            msg = f"the shares of {', '.join(SCALES)} sum to {total:g}, over {MAX_SHARED}"
            raise ValueError(msg)
        allowed = {"parameters", "num_types", "type_exponent", "mean_output_len"}
        extra = sorted(self.model_fields_set - allowed)
        if self.parameters and extra:
            msg = f"{', '.join(extra)} cannot be given with a parameter file, which says it"
            raise ValueError(msg)
        return self

    def weights(self, num_experts: int, topk: int, layer: int, rng: np.random.Generator) -> Floats:
        """Popularity of the experts of a layer without latents, shape (expert,).

        Parameters
        ----------
        num_experts, topk, layer
            Of the layer.
        rng
            Stream of this layer's shape alone.
        """
        return np.asarray(np.exp(self.skew * rng.standard_normal(num_experts)))

    def model(self, shape: ModelShape, num_layers: int, seed: int) -> LatentModel | KindModel:
        """Parameters for the first layers of a model.

        Parameters
        ----------
        shape
            Of the model.
        num_layers
            MoE layers.
        seed
            Of the drawn factors; without effect on a parameter file.

        Raises
        ------
        UserError
            If the parameter file is for another model.
        """
        if self.parameters:
            return self._from_file(shape, num_layers)
        one = [self._drawn_layer(shape, layer, seed) for layer in range(num_layers)]
        bias, factors, pairs, mixing = zip(*one, strict=True)
        by_scale = {name: np.stack([f[name] for f in factors]) for name in SCALES}
        return LatentModel(
            moe_layer_index=shape.moe_layer_index[:num_layers],
            topk=shape.topk,
            bias=np.stack(bias),
            factors=by_scale,
            private=np.zeros((num_layers, shape.num_experts, 0)),
            pairs=np.stack(pairs),
            pair_mixing=np.stack(mixing),
            num_types=self.num_types,
            type_exponent=self.type_exponent,
        )

    def _from_file(self, shape: ModelShape, num_layers: int) -> LatentModel | KindModel:
        """Parameters of the file, as far as they are asked for."""
        import dataclasses

        found = read(self.parameters)
        has = (found.num_experts, found.topk)
        if has != (shape.num_experts, shape.topk) or num_layers > found.num_layers:
            msg = (
                f"{self.parameters} is for {found.num_layers} layers of {has[0]} experts, top-"
                f"{has[1]}; {num_layers} of {shape.num_experts}, top-{shape.topk}, were asked for"
            )
            raise UserError(msg)
        given = sorted(self.model_fields_set & {"num_types", "type_exponent"})
        if isinstance(found, KindModel):
            if given:
                msg = f"{', '.join(given)} cannot be given with {self.parameters}: kinds are in it"
                raise UserError(msg)
            return found
        return dataclasses.replace(found, **{name: getattr(self, name) for name in given})

    def _drawn_layer(self, shape: ModelShape, layer: int, seed: int) -> tuple[Floats, dict[str, Floats], Array, Floats]:
        """Bias, factors, pairs and their mixing of one layer, whatever the number of layers."""
        rng = draw.stream(seed, layer, draw.SHAPE_STREAM)
        experts = shape.num_experts
        popularity = self.weights(experts, shape.topk, layer, rng)
        bias = normal_quantile(shape.topk * popularity / popularity.sum())
        depth = 4 * layer / max(shape.num_moe_layers, 1)
        lasting = min(1.0, self.early_locality + (1 - self.early_locality) * depth)
        factors = {}
        for name in SCALES:
            share = getattr(self, name) * (1.0 if name == "token" else lasting)
            direction = rng.standard_normal((experts, self.width))
            direction /= np.linalg.norm(direction, axis=1, keepdims=True)
            factors[name] = np.sqrt(share) * direction
        partners = rng.permutation(experts)[: experts // 2 * 2].reshape(-1, 2)
        return bias, factors, partners, np.full(experts // 2, self.pair)

    def tables(
        self, ranks: int, tokens_per_rank: int, steps: int, phase: int, seed: int
    ) -> tuple[TokenTable, RequestTable] | None:
        """Columns of tokens and requests where requests come and go.

        Parameters
        ----------
        ranks, tokens_per_rank, steps, phase
            As for :func:`tracegen.generate.generate`; phase by number.
        seed
            Of the lengths.

        Returns
        -------
        None where all requests last as long as the trace.
        """
        if PHASES[phase] != "decode" or not self.mean_output_len or not ranks * tokens_per_rank:
            return None
        slots = ranks * tokens_per_rank
        rng = draw.stream(seed, _LENGTHS_STREAM, 0)
        # Geometric lengths have no memory: what is left of a running request is one of them too.
        ends = 1 / max(self.mean_output_len, 1.0)
        remaining = rng.geometric(ends, slots)
        position = np.zeros(slots, np.int64)
        request, arrival = np.arange(slots), [0.0] * slots
        rows = np.empty((2, steps, slots), np.int64)
        for step in range(steps):
            rows[0, step], rows[1, step] = request, position
            position, remaining = position + 1, remaining - 1
            ended = np.flatnonzero(remaining == 0)
            remaining[ended] = rng.geometric(ends, ended.size)
            position[ended] = 0
            request = request.copy()
            request[ended] = len(arrival) + np.arange(ended.size)
            if step + 1 < steps:
                arrival += [float(step + 1)] * ended.size
        flat = rows.reshape(2, -1)
        lengths = np.bincount(flat[0], minlength=len(arrival))
        tokens = TokenTable(
            step=np.repeat(np.arange(steps), slots).astype(np.uint32),
            request=flat[0].astype(np.uint32),
            position=flat[1].astype(np.uint32),
            phase=np.full(flat[0].size, phase, np.uint8),
            rank=np.tile(np.repeat(np.arange(ranks), tokens_per_rank), steps).astype(np.uint16),
        )
        requests = RequestTable(
            id=np.arange(len(arrival), dtype=np.uint32),
            prompt_len=np.zeros(len(arrival), np.uint32),
            output_len=lengths.astype(np.uint32),
            # Steps stand for seconds: only a replay knows how long a step takes.
            arrival=np.array(arrival),
        )
        return tokens, requests

    def latents(self, model: LatentModel | KindModel, tokens: TokenTable, seed: int) -> Floats:
        """Latents of every token; see :func:`tracegen.generate.latent_draw.latents`."""
        if isinstance(model, KindModel):
            return latent_kinds.latents(model, tokens.request, tokens.position, seed)
        return latent_draw.latents(model, tokens.request, tokens.position, seed)
