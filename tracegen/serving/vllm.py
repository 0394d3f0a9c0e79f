"""A plug-in of vLLM that records the routing of every worker, or has it follow a trace.

See SERVING.md beside this file. vLLM calls :func:`register` in each of its processes (entry point
``vllm.general_plugins``). It does nothing unless the environment names a folder or a file. What is
recorded are the ids that vLLM's own ``RoutedExpertsCapturer`` keeps for its rows: logical experts,
before load balancing replaces them; whatever goes wrong with a recording is logged and ends the
recording, and the engine goes on. What follows are the routers of vLLM's routing simulator.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracegen.serving.plan import FILE, PlanBuffer, RoutePlan
from tracegen.serving.record import PassRecorder
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import DECODE, PREFILL

FOLDER = "MOEREPLAY_RECORD"
"""Environment variable with the folder to record to."""
CAPTURER = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
SIMULATOR = "vllm.model_executor.layers.fused_moe.router.routing_simulator_router"
STRATEGY, STRATEGY_NAME = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "moereplay"
"""Environment variable of vLLM that has routers simulated, and what it must be."""
RUNNERS = ("vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu_model_runner")
"""Modules of vLLM's two model runners; which of them runs is decided when the engine starts."""
NEEDS = "{variable} needs a vLLM with {part} (tried with 0.32 and 0.33); unset it to serve without"
RECORDING = NEEDS.format(variable=FOLDER, part="RoutedExpertsCapturer")
FOLLOWING = NEEDS.format(variable=FILE, part="RoutingSimulator")
log = logging.getLogger("vllm.moereplay")


def register() -> None:
    """Have every model runner of this process record or follow, if the environment asks for it.

    A vLLM that lacks what recording needs serves without, and logs that as an error.

    Raises
    ------
    UserError
        If a plan cannot be followed: what would be measured then is another routing.
    """
    folder, plan = os.environ.get(FOLDER), os.environ.get(FILE)
    if not folder and not plan:
        return
    try:
        import_module(CAPTURER)
        runners = _runners()
    except Exception as error:  # of whatever version is installed
        if plan:
            raise UserError(f"{FOLLOWING} ({error})") from error
        log.error("nothing is recorded: %s (%s)", RECORDING, error)
        return
    routes = _plan(Path(plan)) if plan else None
    for runner in runners:
        attach(runner, Path(folder) if folder else None, routes)


def _runners() -> list[Any]:
    """Classes of the model runners that vLLM may use."""
    runners = [import_module(name).GPUModelRunner for name in RUNNERS]
    if import_module("vllm.platforms").current_platform.is_cpu():
        # Loads models in a way of its own.
        runners.append(import_module("vllm.v1.worker.cpu_model_runner").CPUModelRunner)
    return runners


def _plan(path: Path) -> RoutePlan:
    """A plan, after its strategy is known to vLLM."""
    try:
        simulator = import_module(SIMULATOR)
    except ImportError as error:
        msg = f"{FOLLOWING} ({error})"
        raise UserError(msg) from error
    if os.environ.get(STRATEGY, "").lower() != STRATEGY_NAME:
        msg = f"{FILE} is followed by simulated routers only: set {STRATEGY}={STRATEGY_NAME}"
        raise UserError(msg)
    register_strategy(simulator)
    return RoutePlan.load(path)


def register_strategy(simulator: Any) -> None:
    """Make the strategy known to vLLM, whose routers look it up while the model is made.

    Parameters
    ----------
    simulator
        vLLM's module of the routing simulator.
    """
    base: Any = simulator.RoutingStrategy

    class PlanPlaceholder(base):  # type: ignore[misc]  # a class of vLLM, which nothing is known of here
        """Stand-in for the plan until a model is loaded and its layers are known."""

        def route_tokens(self, *args: Any, **kwargs: Any) -> Any:
            msg = f"a router of a model that was not loaded as a whole cannot follow {FILE}"
            raise UserError(msg)

    simulator.RoutingSimulator.register_strategy(STRATEGY_NAME, PlanPlaceholder())


def attach(runner_class: Any, folder: Path | None, plan: RoutePlan | None = None) -> None:
    """Wrap the methods of a model runner that load a model, prepare a batch and run it.

    Parameters
    ----------
    runner_class
        A ``GPUModelRunner`` of vLLM, of either generation, or a class derived from it.
    folder
        To record to; None not to record. What goes wrong then is logged, and ends the recording.
    plan
        To follow; None not to. What goes wrong then ends the pass.
    """
    if "moereplay_attached" in vars(runner_class):
        return  # vLLM may call plug-ins more than once
    runner_class.moereplay_attached = True
    if folder is not None:
        _wrap(runner_class, "moereplay", lambda runner: RunnerRecording(runner, folder), is_harmless=True)
    if plan is not None:
        _wrap(runner_class, "moereplay_guide", lambda runner: Guide(runner, plan))


def _wrap(runner_class: Any, held: str, make: Callable[[Any], Any], *, is_harmless: bool = False) -> None:
    """Have a part of each runner see its passes.

    Parameters
    ----------
    runner_class
        Whose methods are wrapped.
    held
        Attribute of a runner that holds its part, None once that has failed.
    make
        Makes the part of a runner whose model is loaded.
    is_harmless
        Whether the engine goes on without the part when that fails.
    """

    def wrap_method(name: str, after: Callable[..., None]) -> None:
        original = vars(runner_class).get(name)
        if original is None:
            return

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(self, *args, **kwargs)
            try:
                after(self, made, *args, **kwargs)
            except Exception as error:
                if not is_harmless:
                    raise
                log.error("nothing more is recorded: %s", error, exc_info=not isinstance(error, UserError))
                setattr(self, held, None)
            return made

        setattr(runner_class, name, method)

    def on_load(self: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        if not hasattr(self, held):  # a derived class may call the method of its base
            setattr(self, held, make(self))

    def on_prepare(self: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        part = getattr(self, held)
        if part is not None:
            part.begin(made)

    def prepared_before(
        self: Any,
        made: Any,
        scheduler_output: Any,
        num_scheduled_tokens: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        part = getattr(self, held)
        if part is not None:
            lengths = np.asarray(num_scheduled_tokens)
            part.begin(_batch(self.input_batch, scheduler_output, lengths))

    def on_execute(self: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        part = getattr(self, held)
        if part is not None:
            part.end()

    wrap_method("load_model", on_load)
    wrap_method("prepare_inputs", on_prepare)
    wrap_method("_prepare_inputs", prepared_before)
    wrap_method("execute_model", on_execute)


def _batch(running: Any, scheduled: Any, lengths: Array) -> SimpleNamespace:
    """The batch of a pass of the first model runner, with the names that the second has for it."""
    names = list(running.req_ids)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    first = np.asarray(running.num_computed_tokens_cpu)[: len(names)]
    drafts = [len(scheduled.scheduled_spec_decode_tokens.get(name, ())) for name in names]
    return SimpleNamespace(
        req_ids=names,
        num_tokens=int(starts[-1]),
        query_start_loc_np=starts,
        positions=np.repeat(first, lengths) + place_in_group(lengths),
        prefill_len_np=np.asarray(running.num_prompt_tokens)[: len(names)].copy(),
        num_draft_tokens_per_req=np.array(drafts),
    )


def _rows(batch: Any) -> tuple[int, Array, Array, Array]:
    """Tokens of a batch, where its requests begin, how long they are, and positions."""
    tokens = int(batch.num_tokens)
    starts = np.asarray(batch.query_start_loc_np)[: len(batch.req_ids) + 1]
    position = batch.positions[:tokens]
    position = position.cpu().numpy() if hasattr(position, "cpu") else position
    return tokens, starts, np.diff(np.minimum(starts, tokens)), position


class Guide:
    """Routers of one model runner that follow a plan.

    Parameters
    ----------
    runner
        The model runner, its model loaded.
    plan
        What is followed.

    Raises
    ------
    UserError
        If routers of this engine see rows of other ranks, or the plan is of another model.
    """

    def __init__(self, runner: Any, plan: RoutePlan) -> None:
        parallel = runner.vllm_config.parallel_config
        for name, is_on in (
            ("--data-parallel-size", parallel.data_parallel_size > 1),
            ("sequence parallelism of MoE layers", parallel.use_sequence_parallel_moe),
            ("--enable-dbo", getattr(parallel, "enable_dbo", False)),
        ):
            if is_on:
                msg = f"{name}: routers see other rows than those of the batch; unset {FILE}"
                raise UserError(msg)
        layers = {
            int(module.layer_id): module.router
            for module in runner.model.modules()
            if hasattr(getattr(module, "router", None), "_compute_routing")
        }
        self.buffer: PlanBuffer | None = None
        for layer, router in layers.items():
            if self.buffer is None:
                experts = int(router.global_num_experts)
                state = getattr(router, "eplb_state", None)
                if state is not None and state.logical_replica_count is not None:
                    experts = len(state.logical_replica_count)  # replicas are no experts
                self.buffer = PlanBuffer(plan, runner.max_num_tokens, runner.device, experts, int(router.top_k))
            self.buffer.of_layer(layer, 0)
            router._compute_routing = functools.partial(self._route, layer)
        log.info("%d layers follow the plan of %s", len(layers), FILE)

    def begin(self, batch: Any) -> None:
        """Lay out the rows of the pass that follows.

        Parameters
        ----------
        batch
            vLLM's ``InputBatch``, or one like it.
        """
        _, _, lengths, position = _rows(batch)
        if self.buffer is not None:  # a stage of a pipeline may have no MoE layer
            self.buffer.fill(list(batch.req_ids), lengths, position)

    def end(self) -> None:
        """Leave the rows of the pass as they are: the next one lays out its own."""

    def _route(
        self, layer: int, hidden_states: Any, router_logits: Any, indices_type: Any, **_: Any
    ) -> tuple[Any, Any]:
        """Weights, all the same, and ids of the rows of a pass, as a router of vLLM has them."""
        assert self.buffer is not None  # who has no buffer has no router
        # A copy: what comes after may write into it.
        ids = self.buffer.of_layer(layer, hidden_states.shape[0]).clone()
        if indices_type is not None:
            ids = ids.to(indices_type)
        weights = hidden_states.new_full(ids.shape, 1 / ids.shape[1]).float()
        return weights, ids


class RunnerRecording:
    """Recording of one model runner.

    Parameters
    ----------
    runner
        The model runner, its model loaded.
    folder
        To record to.

    Raises
    ------
    UserError
        If the engine returns routed experts itself, which takes the same hooks.
    """

    def __init__(self, runner: Any, folder: Path) -> None:
        vllm_capturer = import_module(CAPTURER)
        config = runner.vllm_config
        aux = getattr(config, "aux_output_config", None)
        if getattr(aux, "enable_return_routed_experts", False):
            msg = (
                "vLLM returns routed experts itself (--enable-return-routed-experts), with the "
                f"hooks that recording needs: import its responses, or unset {FOLDER} or that flag"
            )
            raise UserError(msg)
        self.bound: set[int] = set()
        bound = self.bound

        base: Any = vllm_capturer.RoutedExpertsCapturer

        class Capturer(base):  # type: ignore[misc]
            """vLLM's capturer, which also notes the layers of this process."""

            def capture(self, layer_id: int, topk_ids: Any) -> None:
                bound.add(layer_id)
                super().capture(layer_id, topk_ids)

        self.capturer = Capturer(runner.max_num_tokens, config)
        vllm_capturer.bind_routed_experts_capturer(runner.model, self.capturer)
        parallel = config.parallel_config
        rank = parallel.data_parallel_rank * parallel.world_size + parallel.rank
        num_ranks = parallel.data_parallel_size * parallel.world_size
        self.recorder = PassRecorder(folder, rank, num_ranks)
        self.batch: Any = None
        log.info("recording the routing of rank %d to %s", rank, folder)

    def begin(self, batch: Any) -> None:
        """Note the batch of the pass that follows.

        Parameters
        ----------
        batch
            vLLM's ``InputBatch``, or one like it.
        """
        self.batch = batch
        # A layer that does not run leaves no row of an earlier pass behind.
        self.capturer.device_buffer.fill_(-1)

    def end(self) -> None:
        """Record the pass that has run; passes without requests have no batch."""
        batch, self.batch = self.batch, None
        if batch is None:
            return
        tokens, starts, lengths, position = _rows(batch)
        prompt = np.repeat(np.asarray(batch.prefill_len_np)[: lengths.size], lengths)
        layers = tuple(sorted(self.bound))
        ids = self.capturer.device_buffer[:tokens].cpu().numpy()[:, list(layers)]
        draft = np.zeros(tokens, np.uint8)
        if batch.num_draft_tokens_per_req is not None:
            # Drafts are the last tokens of their request.
            drafts = np.asarray(batch.num_draft_tokens_per_req)[: lengths.size]
            left = np.repeat(starts[1:], lengths) - np.arange(tokens)
            draft[left <= np.repeat(drafts, lengths)] = 1
        columns = {
            "position": position,
            "phase": np.where(position < prompt, PREFILL, DECODE).astype(np.uint8),
            "draft": draft,
        }
        self.recorder.add(layers, ids, list(batch.req_ids), lengths, columns)
