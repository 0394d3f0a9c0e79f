"""The host of a serving engine: what it does between two steps, and the graphs that it captured.

Between two steps an engine schedules, builds inputs, takes what was sampled and detokenises, and
then launches: a captured graph, or kernel by kernel. It does this in turn with its GPUs, or
prepares a step while they run the one before; then only what is longer than that step is waited
for. Graphs are captured for some batch sizes: a batch is padded up to the next one, and one that is
larger than all is launched kernel by kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hwmodel.units import PS_PER_US
from replay.errors import UserError, quote_names, value_text
from replay.model.work.stacks import BARE, pays_hosts

HOST_US = 900.0
"""Of a step, beside its launch: Megatron-LM's engine on GB200, 64 requests per GPU (its ledger of
August 2026, 29b4491927, says about 900). Assumed for the other engines, and swept."""

REPLAY_US, NODE_NS = 4.75, 3.58
"""Launch of a captured graph by PyTorch, and what a node adds: a line through 4.78 us for 10 nodes
and 8.33 for 1,000, measured on an H100's Xeon (``host_costs.csv``). For the ledger's 1,163 nodes on
Grace this gives 8.9 us, where it says 9 to 10."""


@dataclass(frozen=True)
class EngineHost:
    """The host of an engine.

    Attributes
    ----------
    host_us
        Time of a step beside launching it.
    overlaps
        Whether the host prepares a step while GPUs run the one before.
    captured
        Batch sizes of a worker that graphs were captured for, ascending; empty where any size has
        its own.
    pads_travel
        Whether rows of padding choose experts, as rows of requests do.
    """

    host_us: float = 0.0
    overlaps: bool = True
    captured: tuple[int, ...] = ()
    pads_travel: bool = True

    def pad(self, requests: int) -> int:
        """Requests that a batch is run as: the next captured size, or as many as there are."""
        place = bisect_left(self.captured, requests)
        return self.captured[place] if requests and place < len(self.captured) else requests

    def is_captured(self, requests: int) -> bool:
        """Tell whether there is a graph for a batch."""
        return not self.captured or requests <= self.captured[-1]

    def exposed_ps(self, gpu_ps: int, kernels: int, launch_ps: int | None) -> int:
        """Time of a step in which its GPUs wait for the host.

        Parameters
        ----------
        gpu_ps
            Time of the step on the GPUs, without its first launch.
        kernels
            Number of its kernels.
        launch_ps
            Time of launching a kernel; None where all are nodes of one graph.
        """
        graph_ps = round(REPLAY_US * PS_PER_US + NODE_NS * kernels * PS_PER_US / 1000)
        host_ps = round(self.host_us * PS_PER_US)
        if not self.overlaps:
            return host_ps + (graph_ps if launch_ps is None else launch_ps)
        launching = graph_ps if launch_ps is None else kernels * launch_ps
        return max(0, host_ps + launching - gpu_ps)


def _multiples(first: int, end: int, step: int) -> tuple[int, ...]:
    return tuple(range(first, end + 1, step))


ENGINES: Mapping[str, EngineHost] = {
    # python/sglang/srt/server_args.py: _generate_cuda_graph_batch_sizes, for GPUs with 60 GB and
    # more and tp from 4 on (cuda_graph_max_bs 512); disable_overlap_schedule is False (001067fffe);
    # layers/moe/topk.py sets experts of padding to -1 (num_token_non_padded).
    "sglang": EngineHost(
        HOST_US,
        captured=(
            1,
            2,
            4,
            8,
            12,
            *_multiples(16, 256, 8),
            *_multiples(272, 511, 16),
            512,
        ),
        pads_travel=False,
    ),
    # vllm/config/compilation.py (002284db4c): max_cudagraph_capture_size, min(2 max_num_seqs, 512).
    # vllm/config/scheduler.py: async_scheduling (pull requests 19970 and 23569; off by default at
    # 01230b4012, taken as on).
    "vllm": EngineHost(HOST_US, captured=(1, 2, 4, *_multiples(8, 255, 8), *_multiples(256, 512, 16))),
    # tensorrt_llm/llmapi/llm_args.py (0004396720): BaseCudaGraphConfig with enable_padding, which
    # is off by default and taken as on, up to 128; disable_overlap_scheduler is False.
    "tensorrt-llm": EngineHost(HOST_US, captured=(1, 2, 4, *_multiples(8, 128, 8))),
    # Megatron-LM 29b4491927: as measured there, a step in turn with its host.
    # megatron/core/inference/batch_dimensions_utils.py: _calculate_cuda_graph_token_counts halves the most requests
    # again and again, which are taken to be a power of two that no batch exceeds.
    # token_dispatcher_inference.py: mask_routing_padding.
    "megatron": EngineHost(
        HOST_US, overlaps=False, captured=tuple(1 << power for power in range(13)), pads_travel=False
    ),
}
"""Engines by name: their own defaults, and the assumptions that are said above."""


STACKS: Mapping[str, str] = {
    **{name: name for name in ("sglang", "vllm", "tensorrt-llm")},
    "megatron-inference": "megatron",
}
"""Engines by the stack that they launch with."""


def engine_of_stack(stack: str | None) -> str | None:
    """Name the engine of a stack; None for none.

    Raises
    ------
    UserError
        If the stack is of no engine.
    """
    if not pays_hosts(stack):
        return None
    name = str(stack).partition(":")[0]
    if name not in STACKS:
        message = f"--stack {stack}: a batch is served by an engine; possible are {quote_names([*STACKS, BARE])}"
        raise UserError(message)
    return STACKS[name]


def engine_of(
    name: str | None, host_us: float | None, overlaps: bool | None, captured: str | None
) -> EngineHost | None:
    """An engine with settings in place of its own; None where none is asked for.

    Parameters
    ----------
    name
        Of `ENGINES`; None for a host without captured sizes, if another setting is given.
    captured
        Sizes, with commas between them; ``any`` for none.

    Raises
    ------
    UserError
        If sizes are no list of them.
    """
    settings = {
        "host_us": host_us,
        "overlaps": overlaps,
        "captured": None if captured is None else _sizes(captured),
    }
    given: dict[str, Any] = {key: one for key, one in settings.items() if one is not None}
    if name is None and not given:
        return None
    return replace(EngineHost() if name is None else ENGINES[name], **given)


def _sizes(text: str) -> tuple[int, ...]:
    if text == "any":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 9 and 0 < int(part) <= 2**16 for part in parts):
        message = (
            f"--captured {value_text(text)}: expected batch sizes from 1 to {2**16} with commas between "
            "them, such as 1,2,4,8, or any"
        )
        raise UserError(message)
    return tuple(sorted({int(part) for part in parts}))
