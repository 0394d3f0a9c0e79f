"""A plug-in of SGLang whose simulated routers follow a trace; see SERVING.md beside this file.

SGLang calls :func:`register` in each of its processes (entry point ``sglang.srt.plugins``). It does
nothing unless the environment names a file. With ``SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS=1`` SGLang
writes balanced experts over what its routers chose; this writes those of the plan instead, at the
same place: what SGLang records, returns or balances afterwards are these. Checked against 0.5.23.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.serving.plan import FILE, PlanBuffer, RoutePlan
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

SWITCH = "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS"
TOPK, RUNNER = "sglang.srt.layers.moe.topk", "sglang.srt.model_executor.model_runner"
SIMULATION = "apply_routing_simulation"
MOST_TOKENS = 32_768
"""Of a pass: SGLang makes graphs of routers before it says how large passes become."""
log = logging.getLogger("sglang.moereplay")


def register() -> None:
    """Have the simulated routers of this process follow a plan, if the environment asks for it.

    Raises
    ------
    SystemExit
        If they could not: SGLang would note any other error and serve without.
    """
    path = os.environ.get(FILE)
    if not path:
        return
    try:
        if os.environ.get(SWITCH, "").lower() not in ("1", "true", "yes", "y"):
            msg = f"{FILE} is followed by simulated routers only: set {SWITCH}=1"
            raise UserError(msg)
        attach(SimulatedRouters(RoutePlan.load(Path(path))))
    except UserError as error:
        raise SystemExit(f"moereplay: {error}") from error


def attach(routers: SimulatedRouters) -> None:
    """Replace SGLang's own simulation by routers that follow a plan.

    Parameters
    ----------
    routers
        What SGLang calls instead of its own simulation.

    Raises
    ------
    UserError
        If this SGLang has no such places.
    """
    try:
        hooks = import_module("sglang.srt.plugins.hook_registry")
        getattr(import_module(TOPK), SIMULATION)
        getattr(import_module(RUNNER).ModelRunner, "forward")  # noqa: B009 - whether it is there
    except (ImportError, AttributeError) as error:
        msg = f"{FILE} needs an SGLang with {SIMULATION} (tried with 0.5.23); unset it ({error})"
        raise UserError(msg) from error
    hooks.HookRegistry.register(f"{TOPK}.{SIMULATION}", routers.choose, hooks.HookType.REPLACE)
    before = f"{RUNNER}.ModelRunner.forward"
    hooks.HookRegistry.register(before, routers.begin, hooks.HookType.BEFORE)
    log.info("simulated routers follow %s", FILE)


class SimulatedRouters:
    """Routers of one process that follow a plan.

    Parameters
    ----------
    plan
        What is followed.
    """

    def __init__(self, plan: RoutePlan) -> None:
        self.plan = plan
        self.buffer: PlanBuffer | None = None
        self._first: tuple[list[str], Array, Array] | None = None

    def begin(self, runner: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Lay out the rows of the pass that follows.

        Parameters
        ----------
        runner
            Of SGLang's model; draft models choose by themselves.
        batch
            SGLang's ``ForwardBatch``.

        Raises
        ------
        UserError
            If routers see rows of other ranks, or of draft tokens.
        """
        if getattr(runner, "is_draft_worker", False) or not batch.rids:
            return
        others = getattr(batch, "global_num_tokens_cpu", None)
        if others is not None and len(others) > 1:
            msg = f"--enable-dp-attention: routers see rows of other ranks; unset {FILE}"
            raise UserError(msg)
        if batch.forward_mode.is_target_verify():
            msg = f"speculative decoding: draft tokens cannot follow a trace; unset {FILE}"
            raise UserError(msg)
        lengths = np.ones(len(batch.rids), np.int64)
        if batch.extend_seq_lens_cpu is not None and batch.forward_mode.is_extend():
            lengths = np.array(batch.extend_seq_lens_cpu, np.int64)
        position = batch.positions[: int(lengths.sum())].cpu().numpy()
        if self.buffer is None:  # no router has said yet how many experts there are
            self._first = (list(batch.rids), lengths, position)
        else:
            self.buffer.fill(list(batch.rids), lengths, position)

    def choose(
        self,
        topk_ids: Any,
        topk_weights: Any,
        num_experts: int,
        *,
        num_routed_topk: int,
        layer_id: int,
        **_: Any,
    ) -> None:
        """Write the plan's experts over those of a router; weights stay as they are.

        Parameters
        ----------
        topk_ids, topk_weights
            Tensors (token, k), of which the first ``num_routed_topk`` columns are routed experts.
        num_experts
            Of the layer.
        num_routed_topk
            Routed experts of a token.
        layer_id
            Decoder layer.
        """
        if self.buffer is None:
            self.buffer = PlanBuffer(self.plan, MOST_TOKENS, topk_ids.device, int(num_experts), num_routed_topk)
            if self._first is not None:
                self.buffer.fill(*self._first)
        topk_ids[:, :num_routed_topk].copy_(self.buffer.of_layer(layer_id, topk_ids.shape[0]))
