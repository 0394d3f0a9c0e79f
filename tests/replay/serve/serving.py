"""Iterations of small models, and the exact replay of the same layers as one chain."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.experiments.serve.iteration import Load
from replay.experiments.serve.layers import ServedLayers
from replay.experiments.serve.parts import EngineParts, LoadRows, slice_heads
from replay.experiments.serve.routing import RoutingSource
from replay.experiments.serve.times import ReplayedTimes
from replay.model.compute.dense import Between
from replay.model.work.context import Context
from replay.model.work.precision import Precision
from tracegen.generate import generate
from tracegen.models import load

MODEL = "deepseek-v2-lite"  # latent attention, a layer without experts, shared experts
RANKS, SAMPLE = 4, 2


@functools.cache
def times(
    scheme: str = "deepep-ll",
    prefill: str = "deepep",
    *,
    model: str = MODEL,
    tp: int = 1,
    interleave: str = "off",
    positions: int = 1000,
    tolerance: float = 0.02,
    most: int = 512,
) -> ReplayedTimes:
    """Iterations of a model on a few GPUs of one machine."""
    shape = load(model)
    layers = {}
    for phase, name, before in (("prefill", prefill, 0), ("decode", scheme, positions)):
        spec = RunSpec.model_validate({"scheme": name, "phase": phase, "interleave": interleave, "stack": "bare"})
        setup = set_up(spec, {})
        precision = Precision(shape.default_precision)
        layers[phase] = ServedLayers(
            setup,
            RoutingSource(shape, RANKS, SAMPLE),
            phase,  # type: ignore[arg-type]  # one of the two above
            EngineParts(shape, precision.gemm),
            before,
            tolerance,
            most,
        )
    system = setup.system
    return ReplayedTimes(
        system,
        shape,
        layers,  # type: ignore[arg-type]  # by the two phases
        EngineParts(slice_heads(shape, tp), precision.gemm),
        RANKS // tp,
        tp,
    )


def chain_ps(found: ReplayedTimes, loads: Sequence[Load], scheme: str, num_moe: int) -> int:
    """Time of the first MoE layers with all layers before them, as one chain of an exact replay."""
    phase = "prefill" if any(one.prefill for one in loads) else "decode"
    setup = set_up(RunSpec.model_validate({"scheme": scheme, "phase": phase, "stack": "bare"}), {})
    most = max(one.tokens for one in loads)
    trace = generate("uniform", found.shape, ranks=len(loads), tokens_per_rank=most, layers=num_moe, phase=phase)
    whole = setup.chain_settings.batch(trace, setup.system, 0)
    place = np.arange(whole.num_tokens) - np.repeat(np.arange(len(loads)) * most, most)
    wanted = np.array([one.tokens for one in loads])[whole.source_rank]
    batch = whole.of_tokens(np.flatnonzero(place < wanted))
    precision = Precision(found.shape.default_precision)
    ready = setup.prepare(trace, [batch])
    rows = LoadRows.of_loads(loads, (128, 128), 1)
    context = Context(rows.tokens, rows.positions, rows.pairs, rows.blocks, rows.longest)
    links = [
        dataclasses.replace(
            link,
            context=context,
            between=Between(found.shape, precision.gemm, is_decode=phase == "decode"),
        )
        for link in ready.links
    ]
    return dataclasses.replace(ready, links=links).makespan_ps()
