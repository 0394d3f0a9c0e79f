"""Measure training steps of a small MoE transformer on one GPU, and list their kernels.

Usage: python scripts/measure_step.py WHAT --out FILE.csv [--budget SECONDS]
    steps    time of a step, of its host and of its kernels: eager, with waits, in CUDA graphs
    kernels  every kernel of an eager step of one layer, in order, with what launched it

A step is timed alone (`step_ms`, from an idle GPU to an idle GPU) and as one of some in a row
(`row_ms`); `host_ms` is until the host has issued it. Columns from `launches` on are of one step
under PyTorch's profiler, which slows the host, not the kernels. Needs torch and a GPU of Hopper's
kind.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_times import Gpu, Row, attempt, print_system, spread, write_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS = (512, 8192, 128, 2048, 32768)  # of the most value first
LONGEST = 2048
STEP_WARM_UPS, STEPS, STEPS_IN_A_ROW = 3, 9, 8
KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
PHASES = ("forward", "backward", "optimizer")
PARTS = ("embedding", "attention", "experts", "head")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer."""

    layers: int = 4
    hidden: int = 1024
    heads: int = 8
    experts: int = 16
    width: int = 512
    top_k: int = 4
    vocabulary: int = 8192


NAMES = tuple(field.name for field in fields(Sizes))


class Step:
    """A training step in its phases.

    Parameters
    ----------
    variant
        `eager`; `waits`: eager, and the host reads each layer's numbers of rows; `graph`: forward
        and backward are a CUDA graph; `graph of all`: the optimiser too.
    """

    def __init__(self, torch: Any, variant: str, tokens: int, sizes: Sizes, marks: bool) -> None:
        from moe_transformer import Transformer

        torch.manual_seed(0)
        self.torch, self.length = torch, min(tokens, LONGEST)
        self.model = Transformer(
            **asdict(sizes),
            longest=self.length,
            waits=variant == "waits",
            marks=marks,
            device="cuda",
            dtype=torch.bfloat16,
        )
        shape = (tokens // self.length, self.length)
        self.ids, self.targets = (torch.randint(0, sizes.vocabulary, shape, device="cuda") for _ in range(2))
        self.parameters = list(self.model.parameters())
        whole = variant == "graph of all"
        self.adam = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True, capturable=whole)
        self.loss: Any = None
        self.phases: tuple[tuple[str, Callable[[], object]], ...] = (
            ("forward", self._forward),
            ("backward", self._backward),
            ("optimizer", self._update),
        )
        if variant == "graph":
            self.phases = (("graph", self._captured(2)), ("optimizer", self.adam.step))
        elif whole:
            self.phases = (("graph", self._captured(3)),)

    def _forward(self) -> None:
        self.loss = self.model(self.ids, self.targets)

    def _backward(self) -> None:
        self.loss.backward()
        self.loss = None

    def _update(self) -> None:
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def _captured(self, phases: int) -> Callable[[], object]:
        """Replay of the first phases; their gradients stay where the graph puts them."""
        torch = self.torch
        begun = torch.cuda.current_stream()
        stream = torch.cuda.Stream()
        stream.wait_stream(begun)
        with torch.cuda.stream(stream):
            for _ in range(STEP_WARM_UPS):
                for _name, phase in self.phases:
                    phase()
        begun.wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._forward()
            self._backward()
            if phases == len(PHASES):
                self.adam.step()
        replay: Callable[[], object] = graph.replay
        return replay

    def __call__(self) -> list[float]:
        """Take a step: the milliseconds of the host in each phase."""
        stamps = [time.perf_counter()]
        for _name, phase in self.phases:
            phase()
            stamps.append(time.perf_counter())
        return [1e3 * (end - begin) for begin, end in pairwise(stamps)]


def steps(gpu: Gpu) -> Iterator[Row]:
    """Steps by tokens and variant, then of other numbers of layers.

    Every time is taken before the first profile: its library stays in the process and slows what the
    host does from then on (pytorch/pytorch issue 144455).
    """
    print_system(gpu)
    plain = Sizes()
    settings: list[tuple[str, int, Sizes]] = []
    for variants in (("eager", "waits"), ("graph", "graph of all")):  # what may fail comes last
        settings += [(variant, tokens, plain) for tokens in TOKENS for variant in variants]
        settings += [(variants[0], TOKENS[0], replace(plain, layers=layers)) for layers in (1, 8)]
    timed = [
        (setting, row)
        for setting in settings
        for row in attempt(f"times of {setting}", partial(_times, gpu.torch, *setting))
    ]
    _warm_profiler(gpu.torch)
    for setting, row in timed:
        try:
            summary = _summary(_profile(gpu.torch, _warm_step(gpu.torch, *setting), operators=False))
        except Exception as error:  # the times are worth their row without the profile
            print("failed: profile of", setting, repr(error)[:300], flush=True)
            summary = tuple("" for _ in SUMMARY)
        yield (*row, *summary)


def _warm_step(torch: Any, variant: str, tokens: int, sizes: Sizes) -> Step:
    gc.collect()  # a step and its phases hold one another
    torch.cuda.empty_cache()
    step = Step(torch, variant, tokens, sizes, marks=False)
    for _ in range(STEP_WARM_UPS):
        step()
    return step


def _times(torch: Any, variant: str, tokens: int, sizes: Sizes) -> Row:
    """Columns of a step up to the profiler's."""
    step = _warm_step(torch, variant, tokens, sizes)
    times, host = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        host.append(step())
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    begin = time.perf_counter()
    for _ in range(STEPS_IN_A_ROW):
        step()
    torch.cuda.synchronize()
    in_a_row = 1e3 * (time.perf_counter() - begin) / STEPS_IN_A_ROW
    phases = dict.fromkeys(("graph", *PHASES), 0.0)
    for (name, _), spent in zip(step.phases, zip(*host, strict=True), strict=True):
        phases[name] = statistics.median(spent)
    total = statistics.median(sum(turn) for turn in host)
    return (
        variant,
        tokens,
        step.length,
        *astuple(sizes),
        sum(parameter.numel() for parameter in step.parameters),
        round(step.model.busiest(), 3),
        *spread(times),
        round(in_a_row, 4),
        round(total, 4),
        *(round(spent, 4) for spent in phases.values()),
    )


def _warm_profiler(torch: Any) -> None:
    """Start the profiler once: its first use takes a second, and its first kernels are late."""
    tiny = torch.zeros(1, device="cuda")
    try:
        _profile(torch, lambda: tiny.add_(1), operators=True)
    except Exception as error:
        print("failed: profiler", repr(error)[:300], flush=True)


def _profile(torch: Any, call: Callable[[], object], operators: bool) -> list[dict[str, Any]]:
    """Events of a call's trace, in the order of their beginning."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    activities = [ProfilerActivity.CUDA, *([ProfilerActivity.CPU] if operators else [])]
    with profile(activities=activities) as profiled:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return sorted(
        (event for event in events if event.get("ph") == "X" and "dur" in event),
        key=lambda event: float(event["ts"]),
    )


SUMMARY = (
    "launches",
    "stream_waits",
    "last_launch_ms",
    "kernels",
    "copies",
    "fills",
    "kernel_ms",
    "active_ms",
    "span_ms",
    "idle_ms",
)


def _summary(events: list[dict[str, Any]]) -> Row:
    """What `SUMMARY` names: `active_ms` is the time in which any kernel, copy or fill runs.

    `span_ms` is from the first one's beginning to the last one's end, `idle_ms` its rest, and
    `last_launch_ms` is from the first call of the runtime to the end of the last launch.
    """
    calls = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    launches = [event for event in calls if any(n in event["name"] for n in ("Launch", "Memcpy", "Memset"))]
    waits = [e for e in calls if "StreamSync" in e["name"] or "EventSync" in e["name"]]
    last = max((float(e["ts"]) + float(e["dur"]) for e in launches), default=0.0)
    first = min((float(e["ts"]) for e in calls), default=last)
    work = [event for event in events if event.get("cat") in KINDS]
    active, until = 0.0, float("-inf")
    for event in work:
        begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        active += max(0.0, end - max(begin, until))
        until = max(until, end)
    span = until - float(work[0]["ts"])
    kinds = [sum(event["cat"] == kind for event in work) for kind in KINDS]
    spent = sum(float(event["dur"]) for event in work if event["cat"] == "kernel")
    times = (round(time / 1e3, 4) for time in (spent, active, span, span - active))
    return (len(launches), len(waits), round((last - first) / 1e3, 4), *kinds, *times)


def kernels(gpu: Gpu) -> Iterator[Row]:
    """Kernels, copies and fills of one step of one layer, in order."""
    _warm_profiler(gpu.torch)
    for tokens in (512, 8192):
        try:
            yield from _kernels(gpu.torch, tokens, replace(Sizes(), layers=1))
        except Exception as error:
            print("failed: kernels of", tokens, repr(error)[:300], flush=True)


def _kernels(torch: Any, tokens: int, sizes: Sizes) -> Iterator[Row]:
    step = Step(torch, "eager", tokens, sizes, marks=True)
    for _ in range(STEP_WARM_UPS):
        step()

    def marked() -> None:
        for index, (_name, phase) in enumerate(step.phases):
            if index:
                torch.cuda._sleep(1)
            phase()

    forward = [(PHASES[0], part) for part in PARTS]
    backward = [(PHASES[1], part) for part in reversed(PARTS)]
    labels = [*forward, *backward, (PHASES[2], "")]
    events = _profile(torch, marked, operators=True)
    operators = {
        event["args"]["External id"]: event["name"]
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    label, index, begun = 0, 0, None
    for event in events:
        if event.get("cat") not in KINDS:
            continue
        if "spin_kernel" in event["name"]:
            label += 1
            continue
        given, begin = event.get("args", {}), float(event["ts"])
        begun = begin if begun is None else begun
        yield (
            tokens,
            *astuple(sizes),
            index,
            *labels[min(label, len(labels) - 1)],
            KINDS[event["cat"]],
            event["name"][:120],
            operators.get(given.get("External id"), ""),
            "x".join(map(str, given.get("grid", ()))),
            "x".join(map(str, given.get("block", ()))),
            given.get("bytes", ""),
            round(begin - begun, 3),
            float(event["dur"]),
        )
        index += 1
    if label != len(labels) - 1:
        print("kernels:", label, "marks, not", len(labels) - 1, flush=True)


if __name__ == "__main__":
    write_tables(
        str(__doc__).splitlines()[0],
        {
            "steps": (
                (
                    "variant",
                    "tokens",
                    "sequence",
                    *NAMES,
                    "parameters",
                    "busiest_over_mean",
                    "step_ms",
                    "low_ms",
                    "high_ms",
                    "row_ms",
                    "host_ms",
                    *(f"{name}_host_ms" for name in ("graph", *PHASES)),
                    *SUMMARY,
                ),
                steps,
            ),
            "kernels": (
                (
                    "tokens",
                    *NAMES,
                    "index",
                    "phase",
                    "part",
                    "kind",
                    "name",
                    "operator",
                    "grid",
                    "block",
                    "bytes",
                    "begin_us",
                    "time_us",
                ),
                kernels,
            ),
        },
    )
