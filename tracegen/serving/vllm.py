"""A plug-in of vLLM that records the routing of every worker; see SERVING.md beside this file.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``). It does
nothing unless the environment names a folder. What is recorded are the ids that vLLM's own
``RoutedExpertsCapturer`` keeps for its rows: logical experts, before load balancing replaces them.
Whatever goes wrong with a recording is logged, and ends the recording; the engine goes on.
"""

from __future__ import annotations

import functools
import logging
import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.serving.record import Recorder
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import DECODE, PREFILL

FOLDER = "MOEREPLAY_RECORD"
"""Environment variable with the folder to record to."""
CAPTURER = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
RUNNERS = ("vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu_model_runner")
"""Modules of vLLM's two model runners; which of them runs is decided when the engine starts."""
NEEDS = (
    f"recording needs a vLLM with RoutedExpertsCapturer (tried with 0.32 and 0.33); unset {FOLDER} "
    "to serve without"
)
log = logging.getLogger("vllm.moereplay")


def register() -> None:
    """Have every model runner of this process record, if the environment asks for it.

    A vLLM that lacks what is needed serves without a recording, and logs that as an error.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    try:
        import_module(CAPTURER)
        runners = [import_module(name).GPUModelRunner for name in RUNNERS]
        if import_module("vllm.platforms").current_platform.is_cpu():
            # Loads models in a way of its own.
            runners.append(import_module("vllm.v1.worker.cpu_model_runner").CPUModelRunner)
        for runner in runners:
            attach(runner, Path(folder))
    except Exception as error:  # of whatever version is installed
        log.error("nothing is recorded: %s (%s)", NEEDS, error)


def attach(runner_class: Any, folder: Path) -> None:
    """Wrap the methods of a model runner that load a model, prepare a batch and run it.

    Parameters
    ----------
    runner_class
        A ``GPUModelRunner`` of vLLM, of either generation, or a class derived from it.
    folder
        To record to.
    """
    if "moereplay_attached" in vars(runner_class):
        return  # vLLM may call plug-ins more than once
    runner_class.moereplay_attached = True

    def wrapped(name: str, after: Any) -> None:
        original = vars(runner_class).get(name)
        if original is None:
            return

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(self, *args, **kwargs)
            try:
                after(self, made, *args, **kwargs)
            except Exception as error:
                log.error(
                    "nothing more is recorded: %s", error, exc_info=not isinstance(error, UserError)
                )
                self.moereplay = None
            return made

        setattr(runner_class, name, method)

    def loaded(self: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        if not hasattr(self, "moereplay"):  # a derived class may call the method of its base
            self.moereplay = Worker(self, folder)

    def prepared(self: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        if self.moereplay is not None:
            self.moereplay.begin(made)

    def prepared_before(
        self: Any,
        made: Any,
        scheduler_output: Any,
        num_scheduled_tokens: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if self.moereplay is not None:
            lengths = np.asarray(num_scheduled_tokens)
            self.moereplay.begin(_batch(self.input_batch, scheduler_output, lengths))

    def executed(self: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        if self.moereplay is not None:
            self.moereplay.end()

    wrapped("load_model", loaded)
    wrapped("prepare_inputs", prepared)
    wrapped("_prepare_inputs", prepared_before)
    wrapped("execute_model", executed)


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


class Worker:
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
            """vLLM's, which also keeps in mind the layers of this process."""

            def capture(self, layer_id: int, topk_ids: Any) -> None:
                bound.add(layer_id)
                super().capture(layer_id, topk_ids)

        self.capturer = Capturer(runner.max_num_tokens, config)
        vllm_capturer.bind_routed_experts_capturer(runner.model, self.capturer)
        parallel = config.parallel_config
        rank = parallel.data_parallel_rank * parallel.world_size + parallel.rank
        self.recorder = Recorder(folder, rank)
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
        tokens = int(batch.num_tokens)
        starts = np.asarray(batch.query_start_loc_np)[: len(batch.req_ids) + 1]
        lengths = np.diff(np.minimum(starts, tokens))
        position = batch.positions[:tokens]
        position = position.cpu().numpy() if hasattr(position, "cpu") else position
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
