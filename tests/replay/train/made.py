"""Times of a step's parts made by hand, in place of level one, which has tests of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from replay.measure.activity import Activity
from replay.model.arrays import Ints
from replay.schemes import Scheme, find
from replay.schemes.ep.base import LayerRefusedError
from replay.steps.chunks import chunks_of
from replay.steps.layer_passes import alone
from replay.steps.plan import ParallelPlan
from replay.steps.times import Cause, PassTime, PassTimes, StageHop, StepParts

MS = 1_000_000_000  # picoseconds
EXCHANGE_MS = {"deepep": 4, "nccl-alltoall": 6, "dysharp": 1, "ideal": 0}
"""By scheme; the others refuse to train."""


class MadeReplays:
    """What `replay.steps.replays.StepReplays` is to level two, without a replay."""

    slower = slower_attention = 1.0
    streaming_ms = 0  # of a layer's pass, in device memory
    stack = None

    def __init__(self, shape: Any, system: Any, plan: ParallelPlan, *, sequence: int, **_: Any) -> None:
        self.shape, self.plan, self.system = shape, plan, system
        self.facts = {
            "sequence": sequence,
            "tokens_per_gpu": plan.tokens_per_gpu(sequence),
            "gpus": plan.peers,
            "expert_gpus": plan.ep,
            "moe_layers": shape.num_moe_layers,
            "replayed_layers": [[0, 5]],
            "sampled_nodes": None,
            "routing": "by hand",
            "left_out": ["nothing but this"],
        }

    rows = 0  # to be replayed

    def on(self, system: Any) -> MadeReplays:
        """The same on another system: experts and attention take as long as its clock says."""
        found = copy.copy(self)
        found.system, found.slower = system, self.slower * self.system.spec.gpu.clock_GHz.value
        found.slower /= system.spec.gpu.clock_GHz.value
        blocks = [one.spec.attention.block_ns.value for one in (self.system, system)]
        found.slower_attention = self.slower_attention * blocks[1] / blocks[0]
        return found

    def under(self, scheme: Scheme | str, _: Callable[[], None] | None = None) -> StepParts:
        name = (find(scheme) if isinstance(scheme, str) else scheme).name
        if name not in EXCHANGE_MS:
            message = f"scheme {name!r}: no backward pass"
            raise LayerRefusedError(message)
        ranks, exchange = self.plan.peers, EXCHANGE_MS[name] * MS

        def timed(attention: int, experts: int) -> PassTime:
            looked = round(attention * MS * self.slower_attention)
            own = looked + MS * np.arange(ranks)  # the first comes earliest
            multiplied = round(experts * MS * self.slower)
            met = np.full(ranks, multiplied + exchange)
            computing, moving = np.full(ranks, multiplied), np.full(ranks, exchange)
            causes: dict[Cause, Ints] = {"attention": own, "experts": computing, "exchange": moving}
            streaming = np.full(ranks, self.streaming_ms * MS)
            activity = Activity(own + computing, moving, 0 * moving, streaming)
            return PassTime(own, met, causes, activity)

        def head(factor: int) -> PassTime:
            own = np.full(ranks, factor * MS)
            return alone({"head": own}, Activity(own, 0 * own, 0 * own))

        layer = PassTimes(timed(3, 5), timed(6, 10))
        chunks = [(one.start, one.stop) for one in chunks_of(self.shape, self.plan)]
        return StepParts(
            num_ranks=ranks,
            layers=[[layer] * (self.shape.num_layers + self.plan.mtp)],
            embedding=PassTimes(head(1), head(1)),
            head=PassTimes(head(2), head(4)),
            hop=StageHop(MS // 2, MS // 100),
            synchronise=dict.fromkeys(chunks, 7 * MS),
            update=dict.fromkeys(chunks, 3 * MS),
        )
