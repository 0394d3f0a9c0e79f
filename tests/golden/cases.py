"""The frozen cases as data: a trace, a machine, settings of `replay.run`, and what runs on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from measures import Value, flatten, flatten_sliced

import hwmodel
import replay
import tracegen
from replay.errors import RefusedError
from replay.experiments import dense as tensor
from replay.experiments.dense.setup import DenseSetup
from replay.experiments.dense.spec import TensorSpec
from replay.schemes import supporting_schemes
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.schemes.registry import COMPARED, EXAMPLES, TENSOR_EXAMPLES
from tracegen.generate import generate

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """One scheme with options of its own.

    Attributes
    ----------
    scheme
        A name of `replay.SCHEMES`.
    options
        Options that are not the scheme's defaults.
    tune
        Whether `replay.run` chooses among the scheme's candidates.
    """

    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tune: bool = False

    @property
    def label(self) -> str:
        """Key of the run in a frozen file."""
        words = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.scheme, *words, *["tuned"] * self.tune])


@dataclass(frozen=True)
class Case:
    """One trace on one machine, replayed under every scheme that the machine supports.

    Attributes
    ----------
    system
        Name of a system of `hwmodel`.
    settings
        Keyword arguments of `replay.run` that all runs share; hosts are bare unless they say otherwise.
    generate
        Keyword arguments of `tracegen.generate.generate`; None where `load` says what to read.
    load
        Keyword arguments of `tracegen.load`.
    more
        Runs with options, beside one run of every scheme with its defaults.
    without
        Schemes that refuse the case for more than their number types and passes.
    by_name
        Schemes that it runs, some found by name alone; none for all that are compared.
    """

    system: str
    settings: Mapping[str, Any]
    generate: Mapping[str, Any] | None = None
    load: Mapping[str, Any] | None = None
    more: tuple[Run, ...] = ()
    without: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()

    def runs(self) -> dict[str, Run]:
        """Every run of the case by its label, of the schemes whose code has its layers."""
        direction, precision = self.settings.get("direction"), self.settings.get("precision")
        if self.by_name:
            return {run.label: run for run in (*map(Run, self.by_name), *self.more)}
        plain = [
            Run(name)
            for name in supporting_schemes(hwmodel.load(self.system))
            if name not in self.without
            and (direction is None or "backward" in COMPARED[name].passes)
            and (precision is None or precision in COMPARED[name].gemm_types)
            and (precision is None or precision in COMPARED[name].dispatch_types)
        ]
        return {run.label: run for run in (*plain, *self.more)}


@dataclass(frozen=True)
class SlicedCase:
    """A layer under tensor parallelism, under every scheme of it that has code for the layer.

    Attributes
    ----------
    settings
        Keyword arguments of `replay.experiments.dense.run` that all runs share.
    more
        Runs with options, beside one run of every scheme with its defaults.
    by_name
        See `Case`.
    """

    settings: Mapping[str, Any]
    more: tuple[Run, ...] = ()
    by_name: tuple[str, ...] = ()

    def runs(self) -> dict[str, Run]:
        """Every run of the case by its label."""
        plain = [Run(name) for name in self.by_name or tensor.SCHEMES if self._has(name)]
        return {run.label: run for run in (*plain, *self.more)}

    def _has(self, scheme: str) -> bool:
        try:
            DenseSetup.of(TensorSpec(scheme=scheme, **self.settings))
        except RefusedError:
            return False
        return True


CASES: dict[str, Case | SlicedCase] = {
    # Two steps of two layers in a chain; the same work with barriers is timed beside it.
    "decode-chain": Case(
        system="dgx-h100",
        generate={
            "kind": "zipf",
            "model": "olmoe-1b-7b",
            "ranks": 4,
            "tokens_per_rank": 6,
            "layers": 2,
            "steps": 2,
            "phase": "decode",
            "seed": 11,
            "skew": 0.6,
        },
        settings={"steps": 2, "compare_barrier": True},
        more=(
            Run("dysharp", {"slots": "source", "tile_order": "arrival", "gemm2_sms": 44}),
            Run("flux", {"message_rows": 2, "column_block": 1024}),
            Run("deepep-ll", {"hook": True, "max_tokens": 16}),
            Run("nccl-alltoall", {"channels": 8, "chunk_bytes": 4096, "ll_bytes": 256}),
            Run("megatron", {"experts": "cutlass"}),
            Run("megatron-allgather", {"experts": "cutlass"}),
            Run("tutel", {"capacity": 1.0, "overlap_degree": 2}),
            Run("fastermoe", {"group_size": 2}),
            Run("deepep-v2", {"num_sms": 8, "overlap": False}),
            Run("hybrid-ep", {"num_sms": 8}),
            Run("nccl-ep-ht", {"num_sms": 8, "windows": True}),
            Run("comet", {"dispatch_sms": 18, "message_rows": 8}),
            Run("ccfuser", {"pad_tiles": False, "repeats": True}),
            Run("megamoe", {"tile_rows": 64}),
            Run("megamoe-hopper", {"schedule": "waves"}),
            Run("fastermoe", {"shadowing": True}),
            Run("nccl-ep", {"hook": True}),
        ),
    ),
    # Two micro-batches in turns, of a model with shared experts.
    "two-micro-batches": Case(
        system="dgx-h100",
        generate={
            "kind": "zipf",
            "model": "qwen2-moe-2.7b-e64",
            "ranks": 4,
            "tokens_per_rank": 13,
            "layers": 2,
            "phase": "decode",
            "seed": 21,
            "skew": 0.6,
        },
        settings={"interleave": "dbo"},
        without=tuple(
            name
            for name, one in replay.SCHEMES.items()
            if not (isinstance(one, StagedScheme) and "dbo" in one.interleaves)
        ),
    ),
    # One isolated layer of many small experts in FP8, tokens limited to groups of experts.
    "prefill-layer": Case(
        system="dgx-h100",
        generate={
            "kind": "normal",
            "model": "deepseek-v3",
            "ranks": 8,
            "tokens_per_rank": 24,
            "layers": 1,
            "phase": "prefill",
            "seed": 12,
            "skew": 0.5,
            "group_limited": True,
        },
        settings={"precision": "fp8"},
        without=("flashinfer-push",),  # whose rows back are FP8, too
        more=(
            Run("deepep", {"stack": "sglang", "num_sms": 8, "dispatch_chunk": 2}),
            Run("flashdmoe", {"capacity_factor": 1.0, "send_padding": True}),
            Run("deepep-ll", {"overlap_sms": 3, "hook": True}),
            Run("trtllm-alltoall", {"side": "two"}),
            Run("dysharp", {"addressing": "explicit", "loopback": True, "segment_packets": 16}),
            Run("dysharp", {"tlb_entries": 8, "tile_entries": 8, "readiness_entries": 8}),
        ),
    ),
    # Every layer by itself, with the experts placed by a file that differs between the layers.
    "prefill-barrier-placed": Case(
        system="hgx-h20",
        generate={
            "kind": "uniform",
            "model": "qwen2-moe-2.7b-e64",
            "ranks": 4,
            "tokens_per_rank": 20,
            "layers": 2,
            "phase": "prefill",
            "seed": 13,
        },
        settings={"barrier": True, "placement": f"file:{FOLDER / 'placement.json'}"},
        without=(
            "tutel",
            "fastermoe",
            "nccl-ep",
            "nccl-ep-ht",
            "flashinfer-push",
            "trtllm-alltoall",
        ),  # GPUs have different numbers of experts
        more=(
            Run("moe-hub", {"rpm": False, "aau_entries": 16}),
            Run("nvls", {"loopback": False, "block_rows": 3}),
            Run("dysharp-comet", {"reduction": "wait", "target_lists": "kept"}),
        ),
    ),
    # The machine whose switches multicast to targets named by each packet.
    "dynamic-multicast": Case(
        system="gh200-nvl32",
        generate={
            "kind": "zipf",
            "model": "qwen3-235b-a22b",
            "ranks": 32,
            "tokens_per_rank": 3,
            "layers": 1,
            "phase": "decode",
            "seed": 14,
            "skew": 0.8,
        },
        settings={"placement": "round-robin"},
        without=("nccl-ep-ht",),  # a domain of more than 8 GPUs
        more=(
            Run("dysharp", {"answers": "expert", "target_lists": "stripped", "tile_rows": 64}),
            Run("dysharp-basic", {"addressing": "free", "multimem_queue": 0}),
            Run("moe-hub", {"dam": False, "piece_bytes": 1024}),
        ),
    ),
    # The layers from the last to the first, with gradients of the weights.
    "backward-chain": Case(
        system="hgx-b200",
        generate={
            "kind": "uniform",
            "model": "mixtral-8x7b",
            "ranks": 4,
            "tokens_per_rank": 16,
            "layers": 2,
            "phase": "prefill",
            "seed": 15,
        },
        settings={"direction": "backward", "compare_barrier": True},
        more=(
            Run("deepep", {"cached_layout": True, "ring_tokens": 4, "combine_chunk": 2}),
            Run("dysharp-fusion-only", {"segment_packets": 16, "slots": "source"}),
            Run("flashdmoe", {"pad_tiles": False, "tile_order": "expert"}),
        ),
    ),
    # Forward, then backward, each layer by itself and in FP8.
    "training-barrier": Case(
        system="dgx-h100",
        generate={
            "kind": "zipf",
            "model": "phi-3.5-moe",
            "ranks": 4,
            "tokens_per_rank": 10,
            "layers": 1,
            "phase": "prefill",
            "seed": 16,
            "skew": 0.4,
        },
        settings={"direction": "training", "precision": "fp8", "barrier": True},
        more=(
            Run("flux", tune=True),
            Run("dysharp-basic", {"reduction_timeout_ns": 200, "segment_packets": 8}),
            Run("moe-hub", {"rpm": False, "dam": False}),
        ),
    ),
    # NPUs in a full mesh, rows in one byte a value.
    "ascend-mesh": Case(
        system="atlas-800t-a2",
        generate={
            "kind": "zipf",
            "model": "olmoe-1b-7b",
            "ranks": 8,
            "tokens_per_rank": 6,
            "layers": 2,
            "phase": "decode",
            "seed": 31,
            "skew": 0.6,
        },
        settings={"precision": "fp8"},
    ),
    # Dies of two nodes of a domain with two tiers of switches.
    "ascend-tiers": Case(
        system="cloudmatrix384",
        generate={
            "kind": "uniform",
            "model": "deepseek-v3",
            "ranks": 32,
            "tokens_per_rank": 2,
            "layers": 1,
            "phase": "decode",
            "seed": 32,
        },
        settings={"precision": "bf16"},
    ),
    # Two nodes of eight GPUs, under every scheme that knows a network between them.
    "two-nodes": Case(
        system="dgx-h100-x2",
        generate={
            "kind": "zipf",
            "model": "olmoe-1b-7b",
            "ranks": 16,
            "tokens_per_rank": 9,
            "layers": 1,
            "phase": "decode",
            "seed": 33,
            "skew": 0.6,
        },
        settings={},
        without=tuple(name for name, one in COMPARED.items() if not one.network),
        more=(
            Run("nccl-alltoall", {"pxn": False}),
            Run("tutel", {"use_2dh": True}),
            Run("pangu", {"chunks": 4}),
        ),
    ),
    # A recorded trace without ranks: tokens of three layers and two steps, batched by us.
    "recorded-decode": Case(
        system="dgx-h100",
        load={
            "name": "gpt-oss-20b-decode",
            "layers": [0, 11, 23],
            "tokens": slice(1000, 9000),
        },
        settings={"ranks": 8, "tokens_per_rank": 4, "step": 5, "steps": 2, "layer": [0, 2]},
        without=("nccl-ep",),  # rows of 2880 values
        more=(
            Run("dysharp-comet", {"slots": "source", "multimem_queue": 4}),
            Run("nvls", {"num_sms": 4, "block_rows": 1}),
        ),
    ),
    # Training in a chain on switches that neither copy nor add: some schemes do not run here.
    "training-plain-switch": Case(
        system="dgx-a100",
        generate={
            "kind": "histogram",
            "model": "mixtral-8x7b",
            "ranks": 8,
            "tokens_per_rank": 5,
            "layers": 1,
            "steps": 2,
            "phase": "prefill",
            "seed": 17,
            "load": [[9, 1, 4, 2, 7, 3, 5, 1]],
        },
        settings={"direction": "training", "steps": 2, "placement": "random:3"},
        more=(
            Run("dysharp-fusion-only", {"tlb_entries": 4, "gemm2_sms": 32}),
            Run("nccl-alltoall", {"slots": 2, "chunk_bytes": 2048, "ll_bytes": 0}),
            Run("pangu", {"chunks": 2, "counts": "histogram"}),
        ),
    ),
    # Hosts of what serves and trains with each scheme, which are the default.
    "practice-decode": Case(
        system="dgx-h100",
        generate={
            "kind": "zipf",
            "model": "olmoe-1b-7b",
            "ranks": 4,
            "tokens_per_rank": 6,
            "layers": 1,
            "phase": "decode",
            "seed": 35,
            "skew": 0.6,
        },
        settings={"stack": None},
        by_name=("deepep", "deepep-ll", "nvls"),
    ),
    "practice-training": Case(
        system="dgx-h100",
        generate={
            "kind": "uniform",
            "model": "olmoe-1b-7b",
            "ranks": 4,
            "tokens_per_rank": 16,
            "layers": 1,
            "phase": "prefill",
            "seed": 36,
        },
        settings={"stack": None, "direction": "training"},
        by_name=("nccl-alltoall", "deepep", "deepep-v2", "comet"),
    ),
    # Schemes that comparisons leave out unless they are named.
    "by-name": Case(
        system="dgx-h100",
        generate={
            "kind": "zipf",
            "model": "olmoe-1b-7b",
            "ranks": 4,
            "tokens_per_rank": 64,
            "layers": 1,
            "phase": "prefill",
            "seed": 34,
            "skew": 0.6,
        },
        settings={"direction": "training"},
        by_name=tuple(EXAMPLES),
        more=(
            Run("plain", {"num_sms": 8}),
            Run("nccl-allgather", {"gathers_at_once": False}),
            Run("mok", {"minibatch_rows": 512, "pad_tiles": False}),
        ),
    ),
    "sliced-by-name": SlicedCase(
        settings={"model": "llama-2-7b", "tp": 4, "tokens": 64, "direction": "training"},
        by_name=tuple(TENSOR_EXAMPLES),
        more=(Run("sp-direct", {"num_sms": 8}),),
    ),
    # Both passes of a sliced layer whose rows are gathered and sums reduced.
    "sliced-training": SlicedCase(
        settings={"model": "llama-2-7b", "tp": 4, "tokens": 512, "direction": "training"},
        more=(
            Run("coconet", {"sequence_parallel": True, "blocks": 8}),
            Run("coconet-nvls", {"chunks": 2}),
            Run("fuselib", {"sequence_parallel": True, "pushing_blocks": 8}),
            Run("cais", {"merge": False}),
            Run("cais", {"coordination": False, "table_bytes": 5120}),
            Run("cais", {"overlap": False}),
            Run("t3", {"overlap_gather": False, "near_memory": False}),
            Run("ladm", {"own_rows_first": True}),
        ),
    ),
    # Sliced experts for a few tokens.
    "sliced-decode": SlicedCase(
        settings={"model": "mixtral-8x7b", "tokens": 16, "phase": "decode", "sequence": 512},
        more=(
            Run("fuselib-nvls", {"sequence_parallel": True}),
            Run("t3-nvls", {"engine_start": False}),
        ),
    ),
}
"""Every case by name; the name is also that of its frozen file."""


@cache
def _trace(name: str) -> tracegen.RoutingTrace:
    case = CASES[name]
    assert isinstance(case, Case)
    if case.load is not None:
        return tracegen.load(**case.load)
    return generate(**case.generate)


def replayed(name: str, label: str) -> dict[str, Value]:
    """Replay one run of a case and flatten what it measured."""
    case = CASES[name]
    run = case.runs()[label]
    timelines: list[Any] = []
    if isinstance(case, SlicedCase):
        sliced = tensor.run(
            scheme=run.scheme,
            options=dict(run.options),
            observe=lambda timeline, _: timelines.append(timeline),
            **case.settings,
        )
        return flatten_sliced(sliced, timelines[0])
    result = replay.run(
        _trace(name),
        system=case.system,
        scheme=run.scheme,
        options=run.options,
        tune=run.tune,
        observe=timelines.append,
        **{"stack": "bare", **case.settings},
    )
    return flatten(_trace(name), result, timelines)
