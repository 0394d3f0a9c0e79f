"""Print the tables of the studies of whole steps, replay/studies/steps-*.md.

    python scripts/step_tables.py measured            # of one document
    python scripts/step_tables.py --keep out          # of all; results lie in out/ and are reused

Each table is a function below. A result in the folder is used again whatever has changed since in
moereplay: keep one folder for one version. The script is long because all tables stand in it, side
by side with what was published.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from replay.errors import UserError
from replay.experiments.serve import experiment as inference
from replay.experiments.serve.result import InferResult
from replay.experiments.serve.spec import InferSpec
from replay.experiments.train import experiment as training
from replay.experiments.train.result import TrainResult
from replay.experiments.train.spec import TrainSpec
from replay.files import write_text

US_PER_S = 1e6
EXPERTS = ("experts", "exchange", "peers")
"""What the experts' layers take, as `moe_share` of a training result counts it."""

Spec = TypeVar("Spec", TrainSpec, InferSpec)
Result = TypeVar("Result", TrainResult, InferResult)

kept: Path | None = None


def train(**settings: Any) -> TrainResult | str:
    """Replay a step of training, or say why it cannot be made."""
    return _kept("train", TrainSpec(**settings), training.run, TrainResult.model_validate_json)


def infer(**settings: Any) -> InferResult | str:
    """Serve a batch of requests, or say why it cannot be served."""
    return _kept("infer", InferSpec(**settings), inference.run, InferResult.model_validate_json)


def _kept(
    kind: str, spec: Spec, run: Callable[[Spec], Result], read: Callable[[str], Result]
) -> Result | str:
    """Take a result from the folder, or make it and leave it there."""
    text = json.dumps({kind: spec.model_dump(mode="json")}, sort_keys=True)
    name = f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if kept is not None and (kept / name).exists():
        return read((kept / name).read_text())
    begin = time.perf_counter()
    try:
        result = run(spec)
    except UserError as error:
        return str(error)
    said = json.dumps(dict(spec.settings()), sort_keys=True)
    print(f"{time.perf_counter() - begin:6.1f} s {kind} {said}", file=sys.stderr, flush=True)
    if kept is not None:
        write_text(kept / name, result.to_json())
    return result


def row(*cells: object) -> str:
    """One line of a table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def head(*names: str) -> None:
    """Print the head of a table: the first column is text, the others are numbers."""
    print(row(*names))
    print("|" + "|".join(" --- " if not i else " ---: " for i in range(len(names))) + "|")


def seconds(result: TrainResult, *causes: str) -> str:
    """What causes take of a step, mean over GPUs."""
    return f"{sum(result.mean_us(one) for one in causes) / US_PER_S:.2f}"


# ---- measured ------------------------------------------------------------------------------------

ZOO = "Qwen3-235B, 256 H100"
MEASURED: Mapping[str, tuple[dict[str, Any], str, float]] = {
    f"{ZOO}, TP2 PP8 EP32, DeepEP": (
        {"plan": "qwen3-235b-megatron", "sample_nodes": 2}, "step s", 19.7,
    ),
    f"{ZOO}, TP4 PP8 EP8, DeepEP": (
        {"plan": "qwen3-235b-megatron,tp=4,ep=8,dp=8,micro_batches=256"}, "step s", 29.0,
    ),
    f"{ZOO}, TP2 PP32 EP8, all-to-all": (
        {
            "plan": "qwen3-235b-megatron,pp=32,vpp=3,ep=8,dp=4,micro_batches=512,layers=0+94x1+0",
            "scheme": "megatron",
        },
        "step s", 24.2,
    ),
    "Mixtral 8x7B, 64 H100, PP4 EP8, all-to-all": (
        {"plan": "mixtral-8x7b-megatron", "scheme": "megatron"}, "TFLOP/s per GPU", 468,
    ),
    "Qwen3-30B, 16 H100, PP2 EP8, all-to-all (published: FP8)": (
        {
            "model": "qwen3-30b-a3b", "schedule": "interleaved",
            "plan": "pp=2,vpp=24,dp=8,ep=8,micro_batch=2,micro_batches=32,recompute=selective",
            "scheme": "megatron",
        },
        "tokens/s per GPU", 5275,
    ),
    "GPT-OSS-120B, 64 H100, PP4 EP8, all-to-all": (
        {
            "model": "gpt-oss-120b", "schedule": "1f1b", "scheme": "megatron",
            "plan": "pp=4,dp=16,ep=8,micro_batch=4,micro_batches=8,recompute=full",
        },
        "tokens/s per GPU", 5630,
    ),
    f"{ZOO}, TP2 PP8 EP32, DeepEP, forward beside backward": (
        {"plan": "qwen3-235b-megatron", "schedule": "megatron-overlap", "sample_nodes": 2},
        "step s", 17.6,
    ),
    "DeepSeek-V3, 1024 H100, FP8, TP2 PP8 EP64, DeepEP, beside": (
        {"plan": "deepseek-v3-megatron"}, "TFLOP/s per GPU", 368,
    ),
    "DeepSeek-V3, 2048 H800, FP8, PP16 EP64, DeepEP, DualPipe": (
        {"plan": "deepseek-v3"}, "tokens/s per GPU", 1e12 / (180_000 * 3600),
    ),
}  # fmt: skip
"""Whole steps that were measured: settings, what was published, and its value."""


def measured() -> None:
    """Print measured steps beside predicted ones."""
    head(
        "step", "published", "", "predicted", "predicted / published time", "attention s",
        "dense s", "experts s", "exchange s", "pipeline s", "head s", "end s", "MFU",
    )  # fmt: skip
    for name, (settings, unit, value) in MEASURED.items():
        result = train(**{"layers_sampled": 1, **settings})
        if isinstance(result, str):
            print(row(name, f"{value:,.1f}", unit, result))
            continue
        worth = result.efficiency
        predicted = {
            "step s": result.step_us / US_PER_S,
            "TFLOP/s per GPU": worth.tflop_per_s_per_gpu,
            "tokens/s per GPU": worth.tokens_per_s_per_gpu,
        }[unit]
        ratio = predicted / value if unit == "step s" else value / predicted
        print(
            row(
                name, f"{value:,.1f}", unit, f"{predicted:,.1f}", f"{ratio:.2f}",
                *(
                    seconds(result, one)
                    for one in ("attention", "dense", "experts")
                ),
                seconds(result, "exchange", "peers"), seconds(result, "pipeline"),
                seconds(result, "head"), seconds(result, "synchronise", "optimiser"),
                f"{worth.mfu:.1%}",
            ),
            flush=True,
        )  # fmt: skip


SMALL: Mapping[str, Any] = {
    "plan": "qwen3-235b-megatron,tp=4,ep=8,dp=8,micro_batches=256", "schedule": "interleaved",
    "layers_sampled": 1,
}  # fmt: skip
SLOW_HOSTS = {
    "overheads.launch_us": 18.0, "overheads.kernel_gap_stream_us": 8.0,
    "overheads.host_sync_us": 60.0, "overheads.poll_pinned_us": 8.0,
}  # fmt: skip
CHANGED: Mapping[str, Mapping[str, Any]] = {
    "as above": {},
    "shares of experts normal, 0.032 at 8 experts": {"routing": "normal:0.032"},
    "hosts and launches cost four times": {"overrides": SLOW_HOSTS},
    "both": {"routing": "normal:0.032", "overrides": SLOW_HOSTS},
}


def measured_changes() -> None:
    """Print what changes the step whose prediction is farthest from what was measured."""
    head(
        "TP4 PP8 EP8, DeepEP, 29.0 s published", "predicted s", "attention s", "experts s",
        "exchange s", "peers s",
    )  # fmt: skip
    for name, changes in CHANGED.items():
        result = train(**{**SMALL, **changes})
        if isinstance(result, str):
            print(row(name, result))
            continue
        causes = "attention", "experts", "exchange", "peers"
        print(
            row(
                name,
                f"{result.step_us / US_PER_S:.1f}",
                *(seconds(result, one) for one in causes),
            ),
            flush=True,
        )


# ---- schemes -------------------------------------------------------------------------------------

SHOWN = (
    "deepep-ll", "deepep", "megatron", "tutel", "deepep-v2", "hybrid-ep", "comet", "moe-hub",
    "dysharp", "ideal",
)  # fmt: skip
SERVED: Mapping[str, tuple[dict[str, Any], Sequence[str]]] = {
    "Qwen3-235B": ({"model": "qwen3-235b-a22b"}, SHOWN),
    "Mixtral 8x7B": ({"model": "mixtral-8x7b"}, SHOWN),
    "DeepSeek-V3": ({"model": "deepseek-v3"}, SHOWN),
}
SERVING: Mapping[str, Any] = {
    "system": "hgx-h200", "requests": 16, "prompt": 1024, "output": 512, "sample_layers": 1,
}  # fmt: skip
"""Requests per GPU, tokens of each, and one MoE layer in place of all."""


OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "deepep, DualPipe": {"scheme": "deepep", "schedule": "dualpipe"},
}
"""Columns of `print_steps` that are not a scheme alone."""


def print_steps(asked: Mapping[str, tuple[dict[str, Any], Sequence[str]]], proposal: str) -> None:
    """Print a table of training steps, with a column for each scheme."""
    made = {
        model: {
            one: train(**{"layers_sampled": 1, "scheme": one, **settings, **OTHERWISE.get(one, {})})
            for one in schemes
        }
        for model, (settings, schemes) in asked.items()
    }
    times = {
        model: {
            scheme: (result.step_us / US_PER_S, result.moe_share)
            for scheme, result in of.items()
            if isinstance(result, TrainResult)
        }
        for model, of in made.items()
    }
    print_ratios(times, proposal, "step s")
    refused = [
        f"{model}, {scheme}: {result.splitlines()[0]}"
        for model, of in made.items()
        for scheme, result in of.items()
        if isinstance(result, str)
    ]
    print_refused(refused)


def print_refused(refused: Sequence[str]) -> None:
    """Say what could not be made."""
    for line in refused:
        print(f"\n{line}")


def share(result: TrainResult, *causes: str) -> str:
    """Share of the step, mean over GPUs, that causes take."""
    return f"{sum(result.mean_us(one) for one in causes) / result.step_us:.0%}"


def phase_share(result: InferResult, phase: str) -> float:
    """Share of a phase that goes by with experts, exchange and waiting for peers."""
    spent = (result.prefill if phase == "prefill" else result.decode).spent_us
    return sum(spent.get(one, 0.0) for one in EXPERTS) / sum(spent.values())


def served_by_scheme() -> None:
    """Print prefill and decoding under every scheme that can."""
    print_served(SERVED, "deepep-ll", **SERVING)


def print_served(
    asked: Mapping[str, tuple[dict[str, Any], Sequence[str]]], proposal: str, **more: Any
) -> None:
    """Print two tables, of prefill and of decoding, with a column for each scheme."""
    made = {
        model: {one: infer(**{"scheme": one, **more, **settings}) for one in schemes}
        for model, (settings, schemes) in asked.items()
    }
    for phase, what in (("prefill", "last first token ms"), ("decode", "time per token ms")):
        times = {
            model: {
                scheme: (milliseconds(result, phase), phase_share(result, phase))
                for scheme, result in of.items()
                if isinstance(result, InferResult)
            }
            for model, of in made.items()
        }
        print_ratios(times, proposal, what)
    refused = [
        f"{model}, {scheme}: {result.splitlines()[0]}"
        for model, of in made.items()
        for scheme, result in of.items()
        if isinstance(result, str)
    ]
    print_refused(refused)


def milliseconds(result: InferResult, phase: str) -> float:
    """Time until the last request has its first token, or of a token while decoding."""
    return (result.ttft.last_us if phase == "prefill" else result.tpot.mean_us) / 1e3


def print_ratios(
    times: Mapping[str, Mapping[str, tuple[float, float]]], proposal: str, what: str
) -> None:
    """Print times over that of one scheme, each with the share of MoE, and geometric means."""
    schemes = list(dict.fromkeys(one for of in times.values() for one in of if one != proposal))
    head("", f"{proposal}: {what}", "MoE", *(f"{one} / {proposal}" for one in schemes))
    logs: dict[str, list[float]] = {one: [] for one in schemes}
    for model, of in times.items():
        if proposal not in of:
            continue
        time, share_of = of[proposal]
        cells = []
        for one in schemes:
            if one not in of:
                cells.append("")
                continue
            logs[one].append(math.log(of[one][0] / time))
            cells.append(f"{of[one][0] / time:.2f} ({of[one][1]:.0%})")
        print(row(model, f"{time:,.2f}", f"{share_of:.0%}", *cells))
    means = [f"{math.exp(sum(of) / len(of)):.2f}" if of else "" for of in logs.values()]
    print(row("geometric mean", "", "", *means))
    print()


# ---- DySHARP -------------------------------------------------------------------------------------

DYSHARP_SCHEMES = (
    "deepep", "deepep-v2", "nvls", "fastermoe", "tutel", "ccfuser", "comet", "dysharp-basic",
    "dysharp-comet", "dysharp-fusion-only", "dysharp",
)  # fmt: skip
NORMAL: Mapping[str, Any] = {"routing": "normal:0.032", "plan": "dysharp-l"}
DYSHARP: Mapping[str, tuple[dict[str, Any], Sequence[str]]] = {
    "GPT-OSS-120B": (
        {**NORMAL, "model": "gpt-oss-120b", "sequence": 4096},
        (*DYSHARP_SCHEMES, "deepep, DualPipe"),
    ),
    "Qwen3-235B": (
        {**NORMAL, "model": "qwen3-235b-a22b", "sequence": 4096},
        (*DYSHARP_SCHEMES, "deepep, DualPipe"),
    ),
}
DYSHARP_SERVED: Mapping[str, tuple[dict[str, Any], Sequence[str]]] = {
    "GPT-OSS-120B": ({"model": "gpt-oss-120b"}, DYSHARP_SCHEMES),
    "Qwen3-235B": ({"model": "qwen3-235b-a22b"}, DYSHARP_SCHEMES),
    "L": ({"model": "dysharp-l"}, ("deepep", "deepep-v2", "nvls", "comet", "dysharp")),
}


def dysharp_training() -> None:
    """Print steps of 16 stages, each an NVL32."""
    print_steps(DYSHARP, "dysharp")


def dysharp_serving() -> None:
    """Print a batch on one NVL32, with a power law's routing."""
    print_served(
        DYSHARP_SERVED, "dysharp", system="gh200-nvl32", requests=16, prompt=512, output=512,
        chunk=2048,
        sample_layers=1, routing="zipf:skew=1.5",
    )  # fmt: skip


# ---- MoE-Hub -------------------------------------------------------------------------------------

HUB_SCHEMES = ("megatron", "fastermoe", "tutel", "comet", "ccfuser", "moe-hub")
HUB_MODELS = {
    "Mixtral": "mixtral-8x7b", "Qwen2": "qwen2-moe-2.7b-e64", "Phi-3.5": "phi-3.5-moe",
}  # fmt: skip


def hub_forward() -> None:
    """Print forward passes of whole models: 16384 tokens on 2 to 16 GPUs of an H800 domain."""
    asked: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
        f"{label}, {gpus} GPUs": (
            {
                "model": model, "decode_gpus": gpus, "prompt": 16384 // gpus // 4,
                "chunk": 16384 // gpus, "overrides": {"fabric.num_gpus": gpus} if gpus > 8 else {},
            },
            HUB_SCHEMES,
        )
        for label, model in HUB_MODELS.items()
        for gpus in (2, 4, 8, 16)
    }  # fmt: skip
    print_served(
        asked, "moe-hub", system="hgx-h800", requests=4, output=32, sample_layers=1,
        routing="normal:share_std_e8=0.032", fit=False, precision="bf16",
    )  # fmt: skip


# ---- Pangu Ultra MoE -----------------------------------------------------------------------------

BEFORE: Mapping[str, Any] = {
    "plan": "pangu-ultra-moe,dp=32", "schedule": "interleaved", "scheme": "pangu",
    "routing": "normal:0.032", "layers_sampled": 1,
}  # fmt: skip
BESIDE: Mapping[str, Any] = {"schedule": "megatron-overlap"}
MOVED: Mapping[str, Any] = {"placement": "eplb:256"}
SIX: Mapping[str, Any] = {"plan": "pangu-ultra-moe"}
SKEWED: Mapping[str, Any] = {"routing": "zipf:0.6"}
PANGU: Mapping[str, Mapping[str, Any]] = {
    "before: interleaved, 4096 NPUs": {},
    "exchange in 4 parts": {"options": {"chunks": 4}},
    "forward beside backward": BESIDE,
    "experts moved": MOVED,
    "beside, moved": {**BESIDE, **MOVED},
    "beside, moved, 6144 NPUs": {**BESIDE, **MOVED, **SIX},
    "before, Zipf 0.6": SKEWED,
    "experts moved, Zipf 0.6": {**SKEWED, **MOVED},
    "replicas per step, Zipf 0.6": {**SKEWED, "placement": "ultraep:288"},
    "beside, Zipf 0.6": {**SKEWED, **BESIDE},
    "beside, moved, Zipf 0.6": {**SKEWED, **BESIDE, **MOVED},
    "before, 128 micro-batches": {"plan": "pangu-ultra-moe,dp=32,micro_batches=128"},
    "beside, moved, 6144 NPUs, 128 micro-batches": {
        **BESIDE, **MOVED, "plan": "pangu-ultra-moe,micro_batches=128",
    },
    "before, sequences of 8192": {
        "plan": "pangu-ultra-moe,dp=32,micro_batch=1", "sequence": 8192,
    },
    "beside, moved, 6144 NPUs, sequences of 8192": {
        **BESIDE, **MOVED, "plan": "pangu-ultra-moe,micro_batch=1", "sequence": 8192,
    },
}  # fmt: skip


def pangu() -> None:
    """Print Pangu Ultra MoE's step with one optimisation at a time, and one after the other."""
    head(
        "step", "step s", "over before", "tokens/s per NPU", "TFLOP/s per NPU", "MFU", "attention",
        "experts", "exchange", "peers", "bubble",
    )  # fmt: skip
    refused: list[str] = []
    before: TrainResult | None = None
    for name, changes in PANGU.items():
        result = train(**{**BEFORE, **changes})
        if isinstance(result, str):
            refused.append(f"{name}: {result}")
            continue
        before = before or result
        worth = result.efficiency
        gain = worth.tokens_per_s_per_gpu / before.efficiency.tokens_per_s_per_gpu
        print(
            row(
                name, f"{result.step_us / US_PER_S:.2f}", f"{gain:.2f}",
                f"{worth.tokens_per_s_per_gpu:,.0f}", f"{worth.tflop_per_s_per_gpu:.0f}",
                f"{worth.mfu:.1%}", share(result, "attention"), share(result, "experts"),
                share(result, "exchange"), share(result, "peers"), share(result, "pipeline"),
            ),
            flush=True,
        )  # fmt: skip
    print_refused(refused)


TABLES: Mapping[str, Sequence[Callable[[], None]]] = {
    "measured": (measured, measured_changes),
    "schemes": (served_by_scheme,),
    "dysharp": (dysharp_training, dysharp_serving),
    "moe-hub": (hub_forward,),
    "pangu": (pangu,),
}


def main(names: Iterable[str]) -> None:
    """Print the tables of some documents."""
    for name in names:
        print(f"# {name}")
        for table in TABLES[name]:
            print()
            table()
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tables of the studies of whole steps")
    parser.add_argument("names", nargs="*", choices=[*TABLES, []], help="[all]")
    parser.add_argument("--keep", type=Path, help="folder of results, used again")
    given = parser.parse_args()
    kept = given.keep
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    main(given.names or TABLES)
