"""Measure host time of PyTorch in front of one GPU, and the kernels of a MoE layer.

Usage: python scripts/measure_host.py WHAT --out FILE.csv [--budget SECONDS]
    host     host time of operators, modules, waits and graphs
    more     host time of operators under autograd, forward and backward; queues filled again
    mixed    host time of operators under autograd among others of other kinds
    layer    kernels of a MoE block of transformers, as PyTorch's profiler sees them

Host times are of one of a hundred calls in a row, with an idle GPU before them. What fails is
printed, and the rest is measured all the same. What the runtime of CUDA alone takes is measured by
`host_costs.cu`, what collectives take by `nccl_calls.py`. Needs torch and triton and an NVIDIA GPU
of Hopper's kind; `layer` needs transformers.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpu_times import HOST_TURNS, SPREAD, Gpu, Row, attempt, print_system, spread, write_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Operator = Callable[[Any, int], Any]  # of rows and the number of the call
    Program = list[tuple[str, Operator, int]]

LAYER_TOKENS = 512
CHAIN = 32  # operators in a row
OF_A_KIND = 4  # in a mixture
MIXED_TURNS = 30
FEW_ROWS = (8, 16)  # without a GPU: kernels are the host's
SEED = 33
REFILLS = 15
CLOCKS_PER_US = 1_980  # of an H100 under a light load


def host(gpu: Gpu) -> Iterator[Row]:
    """Host time of operators, modules, waits and graphs."""
    torch = gpu.torch
    from tile_kernels import quantised
    from torch.nn import functional

    tiny = torch.zeros(1, device="cuda")
    rows = torch.randn(1024, 128, device="cuda", dtype=torch.bfloat16)
    other, ids = torch.empty_like(rows), torch.randint(0, 1024, (1024,), device="cuda")
    logits = torch.randn(1024, 128, device="cuda")
    flags = torch.zeros(1024, dtype=torch.bool, device="cuda")
    flags[::7] = True
    weights = torch.randn(4, 128, 128, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(256, 1025, 256, device="cuda", dtype=torch.int32)
    pinned, pageable = torch.zeros(64).pin_memory(), torch.zeros(64)
    small = torch.zeros(64, device="cuda")
    norm = torch.ones(128, device="cuda", dtype=torch.bfloat16)
    grouped = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    square = rows[:128].contiguous()
    fp8, scales = rows.to(torch.float8_e4m3fn), torch.empty(1024, 1, device="cuda")
    calls: dict[str, Callable[[], object]] = {
        "python call of nothing": lambda: None,
        "empty": lambda: torch.empty(1024, 128, device="cuda", dtype=torch.bfloat16),
        "zeros": lambda: torch.zeros(1024, 128, device="cuda", dtype=torch.bfloat16),
        "view": lambda: rows.view(128, 1024),
        "transpose": rows.t,
        "slice": lambda: rows[:512],
        "add_ in place": lambda: tiny.add_(1),
        "add": lambda: rows + other,
        "mul out": lambda: torch.mul(rows, rows, out=other),
        "copy_ on the GPU": lambda: other.copy_(rows),
        "to float32": rows.float,
        "contiguous transpose": lambda: rows.t().contiguous(),
        "cat of 2": lambda: torch.cat((rows, other)),
        "cat of 8": lambda: torch.cat((rows,) * 8),
        "split in 4": lambda: rows.split(256),
        "index_select": lambda: rows.index_select(0, ids),
        "index by tensor": lambda: rows[ids],
        "index_add_": lambda: other.index_add_(0, ids, rows),
        "gather": lambda: logits.gather(1, ids[:, None] % 128),
        "scatter_": lambda: logits.scatter_(1, ids[:, None] % 128, 0.0),
        "softmax": lambda: logits.softmax(-1),
        "topk of 128": lambda: logits.topk(8),
        "sort": lambda: ids.sort(stable=True),
        "argsort": lambda: ids.argsort(stable=True),
        "bincount with minlength (waits)": lambda: torch.bincount(ids, minlength=1024),
        "histc": lambda: torch.histc(ids.float(), bins=128, min=0, max=1023),
        "cumsum": lambda: ids.cumsum(0),
        "sum": rows.sum,
        "silu": lambda: functional.silu(rows),
        "rms_norm": lambda: functional.rms_norm(rows, (128,), norm),
        "mm": lambda: torch.mm(square, square),
        "bmm of 4": lambda: torch.bmm(weights, weights),
        "linear": lambda: functional.linear(rows, square),
        "grouped_mm of 4": lambda: grouped(rows, weights, offs=ends),
        "item of a ready value (waits)": tiny.item,
        "nonzero (waits)": flags.nonzero,
        "copy to pageable host (waits)": lambda: pageable.copy_(small),
        "copy to pinned host without wait": lambda: pinned.copy_(small, non_blocking=True),
        "copy from pinned host without wait": lambda: small.copy_(pinned, non_blocking=True),
        "tolist of 64 (waits)": small.tolist,
        "tensor of a list to the GPU": lambda: torch.tensor([1, 2, 3, 4], device="cuda"),
        "synchronize on an idle GPU": torch.cuda.synchronize,
        "Triton kernel of 4 arguments": lambda: quantised[(1, 1)](rows, fp8, scales, 128, block=128, num_warps=4),
        "current_stream": torch.cuda.current_stream,
    }
    for name, call in calls.items():
        yield from attempt(name, partial(_host_row, gpu, name, call))
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    event.record()
    for name, call in {
        "event record": event.record,
        "event create and record": lambda: torch.cuda.Event().record(),
        "stream wait_event": lambda: stream.wait_event(event),
        "stream wait_stream": lambda: stream.wait_stream(torch.cuda.current_stream()),
        "with stream": partial(_entered, torch, stream),
        "record_stream": lambda: torch.empty(64, device="cuda").record_stream(stream),
    }.items():
        yield from attempt(name, partial(_host_row, gpu, name, call))
    yield from _modules(gpu)
    yield from _waits(gpu)
    yield from _graphs(gpu)


def _host_row(gpu: Gpu, name: str, call: Callable[[], object], setting: str = "") -> Row:
    return (name, setting, *gpu.host_us(call))


def _entered(torch: Any, stream: Any) -> None:
    with torch.cuda.stream(stream):
        pass


def _modules(gpu: Gpu) -> Iterator[Row]:
    """Small modules forward and backward."""
    torch = gpu.torch
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(128, 256, requires_grad=True, **kind)
    layers = {
        "Linear": torch.nn.Linear(256, 256, bias=False, **kind),
        "Linear with bias": torch.nn.Linear(256, 256, **kind),
        "RMSNorm": torch.nn.RMSNorm(256, **kind),
        "two Linear and SiLU": torch.nn.Sequential(
            torch.nn.Linear(256, 512, bias=False, **kind),
            torch.nn.SiLU(),
            torch.nn.Linear(512, 256, bias=False, **kind),
        ),
    }
    for name, layer in layers.items():

        def forward(layer: Any = layer) -> Any:
            return layer(x)

        def both(layer: Any = layer) -> None:
            out = layer(x)
            out.backward(out.detach())

        def without(layer: Any = layer) -> Any:
            with torch.no_grad():
                return layer(x)

        for setting, call in (("no_grad forward", without), ("forward", forward), ("forward and backward", both)):
            yield from attempt(name, partial(_host_row, gpu, name, call, setting))
    parameters = [torch.nn.Parameter(torch.randn(256, 256, **kind)) for _ in range(10)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    for fused in (False, True):
        adam = torch.optim.AdamW(parameters, fused=fused, foreach=not fused)
        setting = "10 parameters, " + ("fused" if fused else "foreach")
        row = partial(_host_row, gpu, "AdamW step", adam.step, setting)
        yield from attempt("AdamW", row)


def _waits(gpu: Gpu) -> Iterator[Row]:
    """A wait for a value that a busy GPU makes, and the queue that is refilled behind it."""
    torch = gpu.torch
    tiny = torch.zeros(1, device="cuda")

    for name, then in {
        "nothing": lambda: None,
        "item": tiny.item,
        "synchronize": torch.cuda.synchronize,
        "tolist of 1": tiny.tolist,
        "to cpu": tiny.cpu,
    }.items():
        yield from _between(gpu, name, then)

    def kernels(count: int) -> list[float]:
        """GPU time of kernels in a row, launched from Python as fast as it can."""
        times = []
        for turn in range(12):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(count):
                tiny.add_(1)
            end.record()
            torch.cuda.synchronize()
            if turn > 1:
                times.append(1e3 * begin.elapsed_time(end) / count)
        return times

    for count in (1, 10, 100, 1000):
        row = partial(
            _spread_row,
            "GPU time of each of kernels in a row",
            f"{count} kernels, queue empty",
            kernels,
            count,
        )
        yield from attempt("kernels", row)


def _between(gpu: Gpu, name: str, then: Callable[[], object]) -> Iterator[Row]:
    """GPU time of two smallest kernels of a busy GPU, with a call between their launches."""
    tiny = gpu.torch.zeros(1, device="cuda")

    def calls() -> None:
        tiny.add_(1)
        then()
        tiny.add_(1)

    what = "GPU time of two kernels"
    yield from attempt(name, lambda: (what, f"{name} between", *spread(_after_busy(gpu, calls))))


def _after_busy(gpu: Gpu, calls: Callable[[], object], turns: int = 50, busy_us: int = 200) -> list[float]:
    """GPU microseconds of what is launched on a busy GPU, from its first kernel's beginning."""
    torch, times = gpu.torch, []
    for turn in range(turns + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000 * busy_us)  # the host is there before
        begin.record()
        calls()
        end.record()
        torch.cuda.synchronize()
        if turn > 2:
            times.append(1e3 * begin.elapsed_time(end))
    return times


def _spread_row(what: str, setting: str, measured: Any, *given: Any) -> Row:
    return (what, setting, *spread(measured(*given)))


def _graphs(gpu: Gpu) -> Iterator[Row]:
    """Graphs that PyTorch has captured, of smallest kernels."""
    torch = gpu.torch
    tiny = torch.zeros(1, device="cuda")
    for nodes in (10, 100, 1000):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                tiny.add_(1)
        setting = f"{nodes} nodes"
        yield ("graph replay call", setting, *gpu.host_us(graph.replay, 1))
        yield ("graph replay on the GPU", setting, *gpu.us(graph.replay))


def more(gpu: Gpu) -> Iterator[Row]:
    """Host time of operators under autograd; waits by events; queues filled again after a wait."""
    from autograd_operators import compiled, operators

    print_system(gpu)
    torch = gpu.torch
    tiny = torch.zeros(1, device="cuda")
    for name, call in {  # two of `host` again: how fast this host is beside that one
        "python call of nothing": lambda: None,
        "add_ in place": lambda: tiny.add_(1),
    }.items():
        yield from attempt(name, partial(_host_row, gpu, name, call, "again"))
    found, parameters = operators(CHAIN)
    for name, operator in found.items():
        yield from _chains(gpu, name, operator, parameters)
    yield from _refills(gpu)
    yield from _events(gpu)
    for name, operator in compiled().items():  # last: compiling takes seconds
        yield from _chains(gpu, name, operator, parameters)


def _chains(gpu: Gpu, name: str, operator: Callable[[Any, int], Any], parameters: list[Any]) -> Iterator[Row]:
    """Host time of one and of `CHAIN` calls in a row, forward, and of backward through them."""
    for length in (CHAIN, 1):
        try:
            forward, backward = _chain(gpu.torch, operator, length, parameters)
        except Exception as error:
            print("failed: chain of", name, repr(error)[:300], flush=True)
            return
        yield (name, f"forward, {length} in a row, each", *spread(forward))
        yield (name, f"backward, {length} in a row, each", *spread(backward))


def _chain(
    torch: Any, operator: Callable[[Any, int], Any], length: int, parameters: list[Any]
) -> tuple[list[float], list[float]]:
    from autograd_operators import ROWS

    rows = torch.randn(*ROWS, device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn_like(rows)
    forward, backward = [], []
    for turn in range(HOST_TURNS + 3):
        for parameter in parameters:
            parameter.grad = None  # as behind zero_grad: gradients are taken, not added
        out = rows.detach().requires_grad_()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for index in range(length):
            out = operator(out, index)
        middle = time.perf_counter()
        torch.cuda.synchronize()
        again = time.perf_counter()
        out.backward(gradient)
        end = time.perf_counter()
        if turn > 2:
            forward.append(1e6 * (middle - begin) / length)
            backward.append(1e6 * (end - again) / length)
    torch.cuda.synchronize()
    return forward, backward


def _refills(gpu: Gpu) -> Iterator[Row]:
    """Kernels of known length behind a wait for a busy GPU, and with no wait."""
    torch = gpu.torch
    tiny = torch.zeros(1, device="cuda")
    sleep = partial(torch.cuda._sleep, 1)
    yield from attempt("_sleep", partial(_host_row, gpu, "torch.cuda._sleep", sleep))

    def row(what: str, setting: str, wait: Callable[[], object], clocks: int, count: int) -> Row:
        def calls() -> None:
            tiny.add_(1)
            wait()
            for _ in range(count):
                torch.cuda._sleep(clocks)

        busy_us = 2_000 if wait is nothing else 200  # without a wait, the host is ahead to the end
        return (what, setting, *spread(_after_busy(gpu, calls, REFILLS, busy_us)))

    def nothing() -> None:
        pass

    for length_us in (5, 10, 20, 40):
        for count in (1, 4, 16, 64):
            setting = f"{count} kernels of about {length_us} us"
            for name, wait in (("no wait", nothing), ("item", tiny.item)):
                what, clocks = f"GPU time of add_, {name}, kernels", length_us * CLOCKS_PER_US
                yield from attempt(what, partial(row, what, setting, wait, clocks, count))


def _events(gpu: Gpu) -> Iterator[Row]:
    """Counts that are copied to the host and waited for by an event; memory that streams share."""
    torch = gpu.torch
    counts = torch.zeros(64, dtype=torch.int32, device="cuda")
    pinned = torch.zeros(64, dtype=torch.int32).pin_memory()
    stream, plain = torch.cuda.Stream(), torch.cuda.Event()
    pool = [torch.cuda.Event() for _ in range(64)]
    for event in (plain, *pool):
        event.record()

    def copied() -> None:
        pinned.copy_(counts, non_blocking=True)
        plain.record()
        plain.synchronize()

    def copied_and_read() -> None:
        copied()
        pinned.tolist()

    def new_memory() -> None:
        torch.empty(1 << 20, dtype=torch.int8, device="cuda")

    def shared_memory() -> None:
        torch.empty(1 << 20, dtype=torch.int8, device="cuda").record_stream(stream)

    def pooled() -> None:
        event = pool.pop()
        event.record()
        pool.insert(0, event)

    def beside() -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            counts.add_(1)
        torch.cuda.current_stream().wait_stream(stream)

    waits: dict[str, Callable[[], object]] = {
        "64 counts to pinned host and event.synchronize": copied,
        "the same and tolist": copied_and_read,
        "64 counts to cpu without wait, a new tensor": lambda: counts.to("cpu", non_blocking=True),
        "64 counts .cpu()": counts.cpu,
    }
    others: dict[str, Callable[[], object]] = {
        "1 MiB empty and free": new_memory,
        "1 MiB empty, record_stream and free": shared_memory,
        "event of a pool, record": pooled,
        "event.synchronize of a past event": plain.synchronize,
        "event.query": plain.query,
        "add_ in another stream, with wait_stream before and behind": beside,
    }
    for name, call in {**waits, **others}.items():
        yield from attempt(name, partial(_host_row, gpu, name, call))
    for name, call in waits.items():
        yield from _between(gpu, name, call)


def mixed(gpu: Gpu) -> Iterator[Row]:
    """Host time of operators in chains of their kind, and among others."""
    from autograd_operators import COSTED, ROWS, compiled, compiled_too, more_operators, operators

    print_system(gpu)
    torch = gpu.torch
    rows = ROWS if gpu.device == "cuda" else FEW_ROWS
    tiny = torch.zeros(1, device=gpu.device)
    linear = torch.nn.Linear(16, 16, device=gpu.device)
    every, parameters = operators(CHAIN, gpu.device, rows)
    turns = Turns(gpu, rows, parameters)
    more = more_operators(gpu.device, rows)
    found = {name: every[name] for name in COSTED if name in every} | more

    def add_again(setting: str) -> Iterator[Row]:
        row = partial(_host_row, gpu, "add_ in place", lambda: tiny.add_(1), setting)
        yield from attempt("add_", row)

    yield from attempt("weight", partial(_host_row, gpu, "parameter of a module", lambda: linear.weight))
    yield from add_again("mixed, begin")
    yield from turns.chains({"nn.Module of nothing": every["nn.Module of nothing"]}, 1)
    yield from turns.chains(found)
    yield from turns.mixtures("", found)
    yield from _adam(turns, found)
    yield from add_again("mixed, middle")
    later: dict[str, Operator] = {}
    for make in (compiled, compiled_too):
        try:
            later |= make()
        except Exception as error:
            print("failed:", make.__name__, repr(error)[:300], flush=True)
    if later:
        yield from turns.chains(later)
        yield from turns.mixtures(" with compiled", found | later)
    yield from turns.chains(found | later, again=True)
    yield from add_again("mixed, end")
    turns.print_ratios()


class Turns:
    """Host time of passes through operators, each turn with an idle GPU before it.

    Parameters
    ----------
    rows
        Sizes of what the operators are given.
    parameters
        Those that they train.
    """

    def __init__(self, gpu: Gpu, rows: tuple[int, int], parameters: list[Any]) -> None:
        self.gpu, self.rows, self.parameters = gpu, rows, parameters
        # Without a GPU all is done by this thread, and others may use the cores.
        self.clock = time.perf_counter if gpu.device == "cuda" else time.thread_time
        self._found: dict[tuple[str, str], tuple[float, float]] = {}  # median and least
        self._programs: dict[str, Program] = {}

    def chains(self, of: dict[str, Operator], length: int = CHAIN, *, again: bool = False) -> Iterator[Row]:
        """Each operator in a row of its kind."""
        setting = f"{length} in a row{' again' if again else ''}, each"
        for name, operator in of.items():
            program = [(name, operator, index) for index in range(length)]
            try:
                yield from self._whole(name, setting, program, length)
            except Exception as error:
                print("failed: chain of", name, repr(error)[:300], flush=True)

    def mixtures(self, of: str, found: dict[str, Operator]) -> Iterator[Row]:
        """The same operators, of which chains were taken, in several orders."""
        from autograd_operators import modules

        def program(count: int, without: tuple[str, ...] = ()) -> Program:
            return [
                (name, operator, index)
                for name, operator in found.items()
                if (name, f"forward, {CHAIN} in a row, each") in self._found and name not in without
                for index in range(count)
            ]

        def shuffled(given: Program) -> Program:
            return random.Random(SEED).sample(given, len(given))

        plain, views = shuffled(program(OF_A_KIND)), ("view", "nn.Module of nothing")
        held = modules([operator for _, operator, _ in plain])
        programs = {
            "flat": plain,
            "in modules": [(name, module, index) for module, (name, _, index) in zip(held, plain, strict=True)],
            "without views": shuffled(program(OF_A_KIND, views)),
            "long": shuffled(program(CHAIN)),
            "sorted": program(CHAIN),
        }
        for name, one in programs.items():
            what = f"{len(one)} operators{of}, {name}"
            try:
                yield from self._whole(what, "all", one)
                self._programs[what] = one
                yield from self._each(what, one)
            except Exception as error:
                print("failed:", what, repr(error)[:300], flush=True)

    def _row(self, what: str, setting: str, seconds: Iterable[float], over: int = 1) -> Row:
        row = (what, setting, *spread([1e6 * one / over for one in seconds]))
        self._found[what, setting] = row[2:4]
        return row

    def _whole(self, what: str, setting: str, program: Program, over: int = 1) -> Iterator[Row]:
        """Host time of whole passes, and of the waits for the GPU behind them, over a number."""
        turns = [self.turn(program) for _ in range(MIXED_TURNS + 3)][3:]
        without = [self.turn(program, graded=False)[0] for _ in range(MIXED_TURNS + 3)][3:]
        forward, wait, backward, wait_too = zip(*turns, strict=True)
        for name, found in (("forward", forward), ("backward", backward), ("no_grad forward", without)):
            yield self._row(what, f"{name}, {setting}", found, over)
        if setting == "all":
            yield self._row(what, "wait behind forward", wait)
            yield self._row(what, "wait behind backward", wait_too)

    def turn(self, program: Program, *, graded: bool = True) -> tuple[float, float, float, float]:
        """Seconds of forward, the wait behind it, backward, and the wait behind that."""
        calls = [(operator, index) for _, operator, index in program]
        out, gradient = self._begun(graded)
        clock, wait = self.clock, self.gpu.wait
        with contextlib.nullcontext() if graded else self.gpu.torch.no_grad():
            begin = clock()
            for operator, index in calls:
                out = operator(out, index)
            middle = clock()
        wait()
        again = clock()
        if graded:
            out.backward(gradient)
        end = clock()
        wait()
        return middle - begin, again - middle, end - again, clock() - end

    def _begun(self, graded: bool) -> tuple[Any, Any]:
        """Rows and the gradient of what comes of them, with an idle GPU and no gradients left."""
        torch = self.gpu.torch
        for parameter in self.parameters:
            parameter.grad = None  # as behind zero_grad: gradients are taken, not added
        rows, gradient = (torch.randn(*self.rows, device=self.gpu.device, dtype=torch.bfloat16) for _ in range(2))
        rows.requires_grad_(graded)
        self.gpu.wait()
        return rows, gradient

    def _each(self, what: str, program: Program) -> Iterator[Row]:
        """Host time of operators by name: a clock around each, backward by hooks between them."""
        found: dict[tuple[str, str], list[float]] = {}
        for turn in range(MIXED_TURNS + 3):
            means = self.means(program)
            if turn > 2:
                for key, mean in means.items():
                    found.setdefault(key, []).append(mean)
        for (name, direction), seconds in found.items():
            yield self._row(name, f"{direction}, among {what}", seconds)

    def means(self, program: Program) -> dict[tuple[str, str], float]:
        """Mean seconds of a turn's operators by name and direction."""
        spent: dict[tuple[str, str], list[float]] = {}
        self._stamp_forward(program, spent, graded=True)
        self._stamp_forward(program, spent, graded=False)
        self._stamp_backward(program, spent)
        return {key: statistics.mean(seconds) for key, seconds in spent.items()}

    def _stamp_forward(self, program: Program, spent: dict[tuple[str, str], list[float]], *, graded: bool) -> None:
        out, _ = self._begun(graded)
        clock, direction = self.clock, "forward" if graded else "no_grad forward"
        with contextlib.nullcontext() if graded else self.gpu.torch.no_grad():
            for name, operator, index in program:
                begin = clock()
                out = operator(out, index)
                end = clock()
                spent.setdefault((name, direction), []).append(end - begin)

    def _stamp_backward(self, program: Program, spent: dict[tuple[str, str], list[float]]) -> None:
        out, gradient = self._begun(graded=True)
        stamps: list[tuple[float, str]] = []

        def stamp(name: str, _gradient: object) -> None:
            stamps.append((self.clock(), name))

        for name, operator, index in program:
            before, out = out, operator(out, index)
            if out is not before:  # else it has no node
                out.register_hook(partial(stamp, name))
        self.gpu.wait()
        out.backward(gradient)
        for (begin, name), (end, _) in pairwise(stamps):
            spent.setdefault((name, "backward"), []).append(end - begin)

    def print_ratios(self) -> None:
        """Print what mixtures take over the chains of their calls, by medians and by leasts."""
        for what, program in self._programs.items():
            names = [name for name, _, _ in program]
            if what.endswith("in modules"):
                names += ["nn.Module of nothing"] * len(program)
            for direction in ("forward", "backward", "no_grad forward"):
                whole = self._found[what, f"{direction}, all"]
                chains = [
                    self._found[name, f"{direction}, {CHAIN} in a row{again}, each"]
                    for name in names
                    for again in ("", " again")
                ]
                ratios = [2 * whole[at] / sum(one[at] for one in chains) for at in (0, 1)]
                print(what, direction, f"over chains: {ratios[0]:.2f}, least {ratios[1]:.2f}")


def _adam(turns: Turns, found: dict[str, Operator]) -> Iterator[Row]:
    """Host time of AdamW's step, again and again and behind passes."""
    program = [
        (name, found[name], index)
        for name in ("functional.linear, trained", "rms_norm", "grouped_mm of 4", "silu")
        for index in range(CHAIN // 3)
    ]
    program = random.Random(SEED).sample(program, len(program))
    try:
        adam = turns.gpu.torch.optim.AdamW(turns.parameters, lr=1e-5, fused=True)
        times = []
        for turn in range(MIXED_TURNS + 3):
            turns.turn(program)
            begin = time.perf_counter()
            adam.step()
            end = time.perf_counter()
            if turn > 2:
                times.append(1e6 * (end - begin))
        trained = sum(parameter.grad is not None for parameter in turns.parameters)
        what = f"AdamW step, {trained} parameters, fused"
        yield (what, "behind passes", *spread(times))
        yield (what, "again and again", *turns.gpu.host_us(adam.step, 10))
    except Exception as error:
        print("failed: AdamW", repr(error)[:300], flush=True)


def layer(gpu: Gpu) -> Iterator[Row]:
    """Kernels of one MoE layer of transformers, forward and backward."""
    torch = gpu.torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    print("transformers", transformers.__version__, flush=True)
    sizes = {
        "vocab_size": 1024,
        "hidden_size": 1024,
        "intermediate_size": 1024,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 16,
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
    }
    for name in ("qwen3_moe", "mixtral", "gpt_oss"):
        for experts in ("eager", "grouped_mm"):
            try:
                torch.manual_seed(0)
                config = AutoConfig.for_model(name, **sizes)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
                model = model.cuda().train()
                model.set_experts_implementation(experts)
                yield from _profiled(gpu, f"{name} {experts}", model, LAYER_TOKENS)
            except Exception as error:
                print("failed: layer", name, experts, repr(error)[:300], flush=True)


def _profiled(gpu: Gpu, name: str, model: Any, tokens: int) -> Iterator[Row]:
    torch = gpu.torch
    from torch.profiler import ProfilerActivity, profile

    layer = model.model.layers[0]
    block = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
    rows = torch.randn(1, tokens, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(rows)

    def forward() -> Any:
        out = block(rows)
        return out[0] if isinstance(out, tuple) else out

    def step() -> tuple[float, float]:
        begin = time.perf_counter()
        out = forward()
        middle = time.perf_counter()
        out.backward(gradient)
        return middle - begin, time.perf_counter() - middle

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    turns = []
    for _ in range(7):
        turns.append(step())
        torch.cuda.synchronize()
    for phase, times in zip(("forward", "backward"), zip(*turns, strict=True), strict=True):
        yield (name, tokens, phase, "(host time of the pass)", 1, 1e6 * statistics.median(times))
    for phase in ("forward", "backward"):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            out = forward()
            if phase == "backward":
                torch.cuda.synchronize()
                time.sleep(0.01)
                torch.cuda._sleep(1)  # its kernel parts the passes
                out.backward(gradient)
            torch.cuda.synchronize()
        count: Counter[str] = Counter()
        spent: Counter[str] = Counter()
        begun = phase == "forward"
        events = [e for e in profiled.events() if str(e.device_type).endswith("CUDA")]
        for event in sorted(events, key=lambda event: event.time_range.start):
            if "spin_kernel" in event.name:
                begun = True
            elif begun:
                count[event.name] += 1
                spent[event.name] += event.time_range.elapsed_us()
        for kernel, launches in count.most_common():
            yield (name, tokens, phase, kernel[:160], launches, round(spent[kernel], 2))
        host_calls = Counter(event.name for event in profiled.events() if event.name.startswith("cuda"))
        for call, count_of_call in host_calls.most_common():
            yield (name, tokens, f"{phase}, calls of the runtime", call, count_of_call, 0)


if __name__ == "__main__":
    write_tables(
        str(__doc__).splitlines()[0],
        {
            "host": (("what", "setting", *SPREAD), host),
            "more": (("what", "setting", *SPREAD), more),
            "mixed": (("what", "setting", *SPREAD), mixed),
            "layer": (("model", "tokens", "phase", "kernel", "launches", "gpu_us"), layer),
        },
    )
