"""Measure attention kernels alone, and what the power limit does to loads that run for seconds.

Usage: python scripts/measure_sustained.py WHAT --out FILE.csv [--budget SECONDS]
    attention  PyTorch's attention by cuDNN and by FlashAttention, forward and backward; times are
               medians with operands that are not in the L2 cache
    sustained  products, copies, attention and mixtures of them: alone behind a rest, in the first
               tenth of a second, and in the second half of some seconds, with nvidia-smi's clock of
               the SMs and power of that half, taken every tenth of a second

What fails is printed, and the rest is measured all the same. Needs torch and an NVIDIA GPU of
Hopper's kind; with `--cpu` small operators stand for them, which checks this program.
"""

from __future__ import annotations

import subprocess
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_times import SPREAD, Gpu, Row, attempt, spread, write_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], object]

CASES = (  # batch, sequence, heads, of keys, width, of values, causal
    (1, 4096, 64, 8, 64, 64, 1),
    (4, 4096, 64, 8, 64, 64, 1),
    (1, 4096, 64, 8, 64, 64, 0),
    (1, 4096, 32, 4, 128, 128, 1),
    (4, 4096, 32, 4, 128, 128, 1),
    (1, 4096, 32, 4, 128, 128, 0),
    (1, 4096, 64, 4, 128, 128, 1),
    (1, 4096, 32, 8, 128, 128, 1),
    (1, 4096, 128, 128, 192, 128, 1),
    (1, 4096, 16, 2, 128, 128, 1),
    (1, 4096, 32, 2, 64, 64, 1),
    (1, 4096, 16, 1, 64, 64, 1),
    (1, 16384, 32, 4, 128, 128, 1),
    (1, 16384, 64, 8, 64, 64, 1),
    (8, 1024, 32, 4, 128, 128, 1),
    (8, 1024, 64, 8, 64, 64, 1),
    (1, 1024, 32, 4, 128, 128, 1),
    (1, 512, 32, 4, 128, 128, 1),
    (2, 2048, 32, 32, 128, 128, 1),
    (2, 2048, 64, 64, 64, 64, 1),
    (2, 2048, 24, 24, 96, 96, 1),
    (1, 4096, 16, 16, 256, 256, 1),
)
REST_S = 0.6
WINDOW_US = 1e5
IDLE_CYCLES = 1_400_000  # 0.7 ms at 1980 MHz
SAMPLED = "clocks.sm,power.draw.instant"


def _us(gpu: Gpu, call: Call) -> tuple[float, float, float]:
    if gpu.device == "cuda":
        return gpu.us(call)
    begin = time.perf_counter()
    call()
    return spread([1e6 * (time.perf_counter() - begin)])


def _matrix(gpu: Gpu, *shape: int) -> Any:
    torch = gpu.torch
    return torch.randn(*shape, device=gpu.device).mul_(0.5).to(torch.bfloat16)


def _attention(gpu: Gpu, case: tuple[int, ...], backend: Any) -> tuple[Call, Callable[[], Call]]:
    """A forward pass, and what makes one and gives its backward pass."""
    from torch.nn import functional
    from torch.nn.attention import sdpa_kernel

    batch, sequence, heads, kv_heads, width, value_width, causal = case
    queries, keys, values = (
        _matrix(gpu, batch, sequence, count, wide).transpose(1, 2).requires_grad_()
        for count, wide in ((heads, width), (kv_heads, width), (kv_heads, value_width))
    )
    gradient = _matrix(gpu, batch, sequence, heads, value_width).transpose(1, 2)

    def forward() -> Any:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=bool(causal), enable_gqa=heads != kv_heads
            )

    def backward() -> Call:
        return partial(
            gpu.torch.autograd.grad,
            forward(),
            (queries, keys, values),
            gradient,
            retain_graph=True,
        )

    return forward, backward


def attention(gpu: Gpu) -> Iterator[Row]:
    """Both passes of each case by each library."""
    from torch.nn.attention import SDPBackend

    libraries = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    cases: tuple[tuple[int, ...], ...] = CASES
    if gpu.device == "cpu":
        libraries, cases = {"math": SDPBackend.MATH}, ((1, 32, 4, 2, 16, 16, 1),)
    for case in cases:
        for library, backend in libraries.items():
            forward, backward = _attention(gpu, case, backend)
            yield from attempt(library, partial(_row, gpu, (library, "forward", *case), partial(_itself, forward)))
            yield from attempt(library, partial(_row, gpu, (library, "backward", *case), backward))


def _itself(call: Call) -> Call:
    return call


def _row(gpu: Gpu, setting: Row, made: Callable[[], Call]) -> Row:
    return (*setting, *_us(gpu, made()))


class Watch:
    """Samples of nvidia-smi, as they come."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, list[float]]] = []
        command = ["nvidia-smi", f"--query-gpu={SAMPLED}", "--format=csv,noheader,nounits"]
        self._process = subprocess.Popen([*command, "-lms", "100"], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.samples.append((time.monotonic(), [float(part) for part in line.split(",")]))

    def close(self) -> None:
        """End the sampling."""
        self._process.kill()


def _loads(gpu: Gpu) -> Iterator[tuple[str, Call, float]]:
    """Name, call, and seconds that it is repeated for."""
    torch, small = gpu.torch, 256 if gpu.device == "cpu" else 1

    def product(m: int, n: int, k: int, scale: float = 1.0) -> Call:
        a, b = _matrix(gpu, m // small, k // small), _matrix(gpu, k // small, n // small)
        out = torch.empty(m // small, n // small, device=gpu.device, dtype=torch.bfloat16)
        return partial(torch.mm, a.mul_(scale), b.mul_(scale), out=out)

    def fp8(m: int, n: int, k: int) -> Call:
        a = _matrix(gpu, m, k).to(torch.float8_e4m3fn)
        b = _matrix(gpu, n, k).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=gpu.device)
        return partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    def several(*calls: tuple[Call, int]) -> Call:
        return lambda: [call() for call, times in calls for _ in range(times)]

    cube = "BF16 8192 x 8192 x 8192"
    big = product(8192, 8192, 8192)
    source = torch.empty((1 << 30) // small, dtype=torch.int8, device=gpu.device)
    copy = partial(torch.empty_like(source).copy_, source)
    yield cube, big, 4.0
    yield "BF16 16384 x 4096 x 2048", product(16384, 4096, 2048), 3.0
    yield "BF16 16384 x 1536 x 2048", product(16384, 1536, 2048), 2.5
    yield "copy of 1 GiB", copy, 2.0
    if gpu.device == "cuda":
        from torch.nn.attention import SDPBackend

        forward, _ = _attention(gpu, (2, 4096, 32, 4, 128, 128, 1), SDPBackend.CUDNN_ATTENTION)
        yield "attention forward, heads of 128", torch.no_grad()(forward), 2.5
    yield f"{cube}, then copies as long", several((big, 1), (copy, 2)), 3.0
    yield f"{cube}, then copies 3 times as long", several((big, 1), (copy, 5)), 2.5
    yield f"3 {cube}, then copies a third as long", several((big, 3), (copy, 2)), 3.0
    if gpu.device == "cuda":
        idle = partial(torch.cuda._sleep, IDLE_CYCLES)
        yield f"{cube}, then idle", several((big, 1), (idle, 1)), 3.0
        yield "FP8 8192 x 8192 x 8192", fp8(8192, 8192, 8192), 3.0
        yield "FP8 16384 x 4096 x 2048", fp8(16384, 4096, 2048), 2.0
    yield f"{cube} of zeros", product(8192, 8192, 8192, scale=0.0), 2.5


def _windows(gpu: Gpu, call: Call, alone_us: float, seconds: float) -> list[float]:
    """Microseconds of a call, in windows of a tenth of a second."""
    found, count, begun = [], max(1, int(WINDOW_US / max(alone_us, 1.0))), time.monotonic()
    while time.monotonic() - begun < seconds:
        if gpu.device == "cpu":
            found.append(_us(gpu, call)[0])
            continue
        begin, end = (gpu.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end) / count)
    return found


def sustained(gpu: Gpu) -> Iterator[Row]:
    """Times, clock and power of each load."""
    watch = Watch() if gpu.device == "cuda" else None
    try:
        for name, call, seconds in _loads(gpu):
            gpu.wait()
            time.sleep(REST_S if watch else 0.0)
            alone = _us(gpu, call)
            yield (name, "alone_us", *alone)
            begun = time.monotonic()
            windows = _windows(gpu, call, alone[0], seconds if watch else 0.01)
            half = begun + (time.monotonic() - begun) / 2
            yield (name, "first_us", *spread(windows[:1]))
            yield (name, "late_us", *spread(windows[len(windows) // 2 :]))
            late = [one for at, one in watch.samples if at > half] if watch else []
            for column, quantity in enumerate(("clock_MHz", "power_W") if late else ()):
                yield (name, quantity, *spread([one[column] for one in late]))
    finally:
        if watch:
            watch.close()


if __name__ == "__main__":
    setting = ("library", "pass", "batch", "sequence", "heads", "kv_heads", "width", "value_width")
    write_tables(
        __doc__ or "",
        {
            "attention": ((*setting, "causal", *SPREAD), attention),
            "sustained": (("load", "quantity", "value", "low", "high"), sustained),
        },
    )
