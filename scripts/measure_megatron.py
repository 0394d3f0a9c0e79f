"""Measure the kernels and the host time of one MoE layer of Megatron-Core, on one GPU.

Usage: python scripts/measure_megatron.py layer --sources FOLDER --out FILE.csv [--budget SECONDS]

The folder holds the package `megatron` of a release of Megatron-Core (Apache-2.0; nothing of it is
part of this project). The layer is Megatron's own (local) one, without Transformer Engine:
attention in parts, an unfused router, the all-to-all dispatcher with one GPU, one MLP after
another. Rows come by range of modules in the order of the program:

* `kernel`: a kernel under PyTorch's profiler, with the range that launched it; in a backward pass,
  with the range whose forward operator it belongs to
* `call`: calls of CUDA's runtime by name, other than launches, the same way
* `host`: host microseconds of a range without profiler, median of nine passes. A range that waits
  for the GPU contains the wait.

Needs torch and an NVIDIA GPU; with `--cpu` operators stand for kernels, which checks this program.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_times import Gpu, Row, write_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HIDDEN, HEADS, KV_HEADS, HEAD = 2048, 32, 4, 128
EXPERTS, TOPK, INNER = 16, 8, 768  # a GPU's share of Qwen3-30B-A3B's experts at EP8
PASSES = 9
PREFIX = "range:"
LAUNCHES = (
    "LaunchKernel",
    "cudaGetDevice",
    "cudaOccupancy",
    "cudaFuncGet",
    "cudaFuncSet",
    "cudaStreamIsCapturing",
    "cudaPeekAtLastError",
    "cudaDeviceGetAttribute",
)


def layer(gpu: Gpu) -> Iterator[Row]:
    """Kernels by range, and host time by range."""
    torch = gpu.torch
    if gpu.sources is None:
        sys.exit("measure_megatron: --sources must name the folder that holds megatron/")
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(gpu.sources))
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29533"),
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("GLOO_SOCKET_IFNAME", "lo"),
    ):
        os.environ.setdefault(name, value)
    torch.distributed.init_process_group("nccl" if gpu.device == "cuda" else "gloo")
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import (
        model_parallel_cuda_manual_seed,
    )

    parallel_state.initialize_model_parallel()
    if gpu.device == "cuda":
        model_parallel_cuda_manual_seed(1)
    for fused in (False, True):
        for tokens in (512, 4096) if gpu.device == "cuda" else (64,):
            setting = f"{tokens} tokens, activation {'compiled' if fused else 'in parts'}"
            try:
                yield from _measured(gpu, setting, tokens, fused)
            except Exception as error:  # what comes behind it is measured all the same
                print("failed:", setting, repr(error)[:500], flush=True)


def _built(gpu: Gpu, fused: bool) -> tuple[Any, Any]:
    """Give the layer and its rotary embedding."""
    torch = gpu.torch
    from megatron.core.models.common.embeddings.rotary_pos_embedding import (
        RotaryEmbedding,
    )
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
    )
    from megatron.core.transformer.spec_utils import (
        build_module,
    )
    from megatron.core.transformer.transformer_config import (
        TransformerConfig,
    )

    small = gpu.device == "cpu"
    config = TransformerConfig(
        num_layers=1,
        hidden_size=256 if small else HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=KV_HEADS,
        kv_channels=8 if small else HEAD,
        ffn_hidden_size=INNER,
        moe_ffn_hidden_size=64 if small else INNER,
        num_moe_experts=EXPERTS,
        moe_router_topk=TOPK,
        moe_token_dispatcher_type="alltoall",
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=1e-3,
        moe_router_dtype="fp32",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        qk_layernorm=True,
        bf16=True,
        params_dtype=torch.bfloat16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=fused,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
        use_cpu_initialization=small,
    )
    spec = get_gpt_layer_local_spec(
        num_experts=EXPERTS, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
    )
    found = build_module(spec, config=config, layer_number=1).to(gpu.device).train()
    rotary = RotaryEmbedding(config.kv_channels, 1.0, use_cpu_initialization=small)
    return found.to(torch.bfloat16), rotary


def _ranges(built: Any) -> dict[str, tuple[Any, str]]:
    """Name of a range to the object and the method that it is."""
    block, dispatcher = built.mlp, built.mlp.token_dispatcher
    attention = built.self_attention
    return {
        "norm before attention": (built.input_layernorm, "forward"),
        "queries, keys, values": (attention, "get_query_key_value_tensors"),
        "core attention": (attention.core_attention, "forward"),
        "output projection": (attention.linear_proj, "forward"),
        "attention, rest": (attention, "forward"),
        "norm before experts": (built.pre_mlp_layernorm, "forward"),
        "router": (block, "route"),
        "dispatch preprocess": (block, "preprocess"),
        "dispatch": (block, "dispatch"),
        "dispatch postprocess": (dispatcher, "dispatch_postprocess"),
        "experts": (block.experts, "forward"),
        "combine preprocess": (dispatcher, "combine_preprocess"),
        "combine": (block, "combine"),
        "combine postprocess": (dispatcher, "combine_postprocess"),
        "MoE layer, rest": (block, "forward"),
    }


class _Clock:
    """Host seconds of each range in its own right, without those of the ranges within."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._open: list[list[float]] = []

    def timed(self, name: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call, and count what it took."""
        begin = time.perf_counter()
        self._open.append([0.0])
        try:
            return call(*given, **named)
        finally:
            whole = time.perf_counter() - begin
            within = self._open.pop()[0]
            self.spent[name] += whole - within
            if self._open:
                self._open[-1][0] += whole


def _recorded(torch: Any, name: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    with torch.profiler.record_function(PREFIX + name):
        return call(*given, **named)


def _measured(gpu: Gpu, setting: str, tokens: int, fused: bool) -> Iterator[Row]:
    torch = gpu.torch
    torch.manual_seed(0)
    built, rotary = _built(gpu, fused)
    width = built.config.hidden_size
    rows = torch.randn(tokens, 1, width, device=gpu.device, dtype=torch.bfloat16)
    rows.requires_grad_()
    gradient = torch.randn_like(rows)
    positions = rotary(tokens)
    mask = torch.ones(1, 1, tokens, tokens, device=gpu.device, dtype=torch.bool).triu(1)

    def forward() -> Any:
        out = built(rows, attention_mask=mask, rotary_pos_emb=positions)
        return out[0] if isinstance(out, tuple) else out

    def cleared() -> None:
        for parameter in built.parameters():
            parameter.grad = None
        rows.grad = None

    ranges = _ranges(built)
    kept = {name: getattr(thing, method) for name, (thing, method) in ranges.items()}
    begun = time.perf_counter()
    for _ in range(3):
        cleared()
        forward().backward(gradient)
    gpu.wait()
    print(setting, "warm after", round(time.perf_counter() - begun, 1), "s", flush=True)

    passes: list[dict[str, float]] = []
    for _ in range(PASSES):
        clock = _Clock()
        for name, (thing, method) in ranges.items():
            setattr(thing, method, partial(clock.timed, name, kept[name]))
        cleared()
        gpu.wait()
        out = clock.timed("layer, rest", forward)
        clock.timed("(wait behind the forward pass)", gpu.wait)
        clock.timed("(backward pass)", out.backward, gradient)
        clock.timed("(wait behind the backward pass)", gpu.wait)
        passes.append(dict(clock.spent))
    for name in (
        *ranges,
        "layer, rest",
        "(wait behind the forward pass)",
        "(backward pass)",
        "(wait behind the backward pass)",
    ):
        times = [1e6 * found.get(name, 0.0) for found in passes]
        yield (
            "host",
            setting,
            "backward" if "backward" in name else "forward",
            name,
            "",
            1,
            round(statistics.median(times), 1),
            round(min(times), 1),
            round(max(times), 1),
        )

    for name, (thing, method) in ranges.items():
        setattr(thing, method, partial(_recorded, torch, name, kept[name]))
    cleared()
    with torch.profiler.profile(activities=_activities(gpu)) as profiled:
        out = forward()
        gpu.wait()
        out.backward(gradient)
        gpu.wait()
    for name, (thing, method) in ranges.items():
        setattr(thing, method, kept[name])
    yield from _rows_of(gpu, setting, profiled.events())


def _activities(gpu: Gpu) -> list[Any]:
    kinds = gpu.torch.profiler.ProfilerActivity
    return [kinds.CPU] if gpu.device == "cpu" else [kinds.CPU, kinds.CUDA]


def _rows_of(gpu: Gpu, setting: str, events: Any) -> Iterator[Row]:
    """Kernels and calls of the runtime in order, each with pass and range."""
    host = sorted(
        (event for event in events if str(event.device_type).endswith("CPU")),
        key=lambda event: event.time_range.start,
    )
    backward_scope = 1

    def above(event: Any) -> Iterator[Any]:
        while event is not None:
            yield event
            event = event.cpu_parent

    def named(event: Any) -> str | None:
        for parent in above(event):
            if parent.name.startswith(PREFIX):
                return str(parent.name[len(PREFIX) :])
        return None

    forward_of: dict[int, str] = {}
    for event in host:
        if event.sequence_nr >= 0 and event.scope != backward_scope:
            # The last operator of a sequence number is the one that made the node.
            forward_of[event.sequence_nr] = named(event) or "layer, rest"

    def place(event: Any) -> tuple[str, str]:
        for parent in above(event):
            if parent.scope == backward_scope or parent.name.startswith("autograd::engine"):
                if parent.sequence_nr >= 0:
                    return "backward", forward_of.get(parent.sequence_nr, "layer, rest")
                if "evaluate_function" in parent.name:
                    return "backward", "(gradients added up)"
        return "forward", named(event) or "layer, rest"

    calls: Counter[tuple[str, str, str]] = Counter()
    order = 0
    for event in host:
        if gpu.device == "cpu":
            leaf = event.name.startswith("aten::") and not event.cpu_children
            kernels = [(event.name, event.time_range.elapsed_us())] if leaf else []
        else:
            kernels = [
                (kernel.name, kernel.duration)
                for kernel in event.kernels
                if not kernel.name.startswith(PREFIX)  # ranges have a span on the GPU too
            ]
        for kernel, spent in kernels:
            yield ("kernel", setting, *place(event), kernel[:160], order, round(spent, 2), "", "")
            order += 1
        if event.name.startswith("cu") and not any(part in event.name for part in LAUNCHES):
            calls[*place(event), event.name] += 1
    device = [event for event in events if not str(event.device_type).endswith("CPU")]
    seen = sum(not event.name.startswith(PREFIX) for event in device)
    print(setting, order, "kernels with a range, of", seen, "events on the GPU", flush=True)
    for (phase, where, call), count in calls.items():
        yield ("call", setting, phase, where, call, count, 0, "", "")


if __name__ == "__main__":
    write_tables(
        str(__doc__).splitlines()[0],
        {
            "layer": (
                ("row", "setting", "pass", "range", "name", "order_or_count", "time_us", "low_us", "high_us"),
                layer,
            ),
        },
    )
