"""Measure kernels besides the experts' tiles, on one GPU.

Usage: python scripts/measure_kernels.py WHAT --out FILE.csv [--budget SECONDS]
    small       kernels around the GEMMs, by rows and bytes
    operands    a GEMM with loads by pointers and by descriptors (see `tile_kernels.py`); with
                DISABLE_MMA_V3=1 in the environment Triton multiplies by mma.sync instead of wgmma
    contention  a GEMM beside a kernel that copies memory on some of the SMs
    gemms       products with a short inner dimension, few columns or few tiles

Times are medians of GPU time with operands that are not in the L2 cache. What fails is printed, and
the rest is measured all the same. Rates of single SMs are measured by `operand_paths.cu`. Needs
torch and triton and an NVIDIA GPU of Hopper's kind.
"""

from __future__ import annotations

import itertools
import os
import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_times import SPREAD, Gpu, Row, attempt, write_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def small(gpu: Gpu) -> Iterator[Row]:
    """Kernels around the GEMMs: time by rows and width."""
    torch = gpu.torch
    import triton
    from tile_kernels import quantised
    from torch.nn import functional

    for rows, width in itertools.product((1024, 4096, 16384, 65536), (2048, 7168)):
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        order = torch.randperm(rows, device="cuda")
        row_bytes = 2 * width
        moved = rows * row_bytes
        calls: dict[str, tuple[int, Callable[[], object]]] = {}
        out = torch.empty_like(x)
        calls["copy"] = (2 * moved, partial(out.copy_, x))
        calls["zero"] = (moved, out.zero_)
        calls["permute rows (index_select)"] = (
            2 * moved + 8 * rows,
            partial(torch.index_select, x, 0, order, out=out),
        )
        tokens, topk = rows // 8, 8
        total = torch.zeros(tokens, width, device="cuda", dtype=torch.bfloat16)
        owner = order % tokens
        gate = torch.rand(tokens, topk, 1, device="cuda", dtype=torch.bfloat16)
        calls["unpermute by index_add_ of 8"] = (
            moved + 3 * moved // 8,
            partial(total.index_add_, 0, owner, x),
        )

        def weighted(x: Any = x, order: Any = order, gate: Any = gate, width: int = width) -> Any:
            return (x.index_select(0, order).view(-1, 8, width) * gate).sum(1)

        calls["unpermute by select, weight and sum of 8 (3 kernels)"] = (
            5 * moved + moved // 8,
            weighted,
        )
        blocks = -(-width // (8 * 128))
        values8 = torch.empty(rows, width, device="cuda", dtype=torch.float8_e4m3fn)
        scales = torch.empty(rows, width // 128, device="cuda")

        def cast(
            x: Any = x,
            to: Any = values8,
            scales: Any = scales,
            rows: int = rows,
            width: int = width,
            blocks: int = blocks,
        ) -> None:
            quantised[(rows, blocks)](x, to, scales, width, block=128, num_warps=4)

        calls["cast to FP8 in blocks of 128 (Triton)"] = (
            moved + rows * (width + 4 * (width // 128)),
            cast,
        )
        halves = torch.randn(rows, 2 * width, device="cuda", dtype=torch.bfloat16)

        def swiglu(halves: Any = halves) -> Any:
            gate, up = halves.chunk(2, -1)
            return functional.silu(gate) * up

        calls["SwiGLU (2 kernels)"] = (3 * moved + 2 * moved, swiglu)
        norm = torch.ones(width, device="cuda", dtype=torch.bfloat16)
        calls["RMSNorm"] = (2 * moved, partial(functional.rms_norm, x, (width,), norm))
        calls["add"] = (3 * moved, partial(torch.add, x, x.clone(), out=out))
        for name, (nbytes, call) in calls.items():
            yield from attempt(name, partial(_small_row, gpu, name, rows, width, nbytes, call))
        del calls, x, out, halves, values8, total
    for rows, width in itertools.product((1024, 4096, 16384, 65536), (128, 256)):
        logits = torch.randn(rows, width, device="cuda")
        ids = torch.randint(0, width, (8 * rows,), device="cuda")
        split = torch.nn.functional.one_hot(ids[:rows], width).to(torch.int32)
        place = torch.empty(8 * rows, dtype=torch.int64, device="cuda")
        order = ids.argsort(stable=True)
        names = torch.arange(8 * rows, device="cuda")
        ends = torch.zeros(width, dtype=torch.int64, device="cuda")
        ones = torch.ones(8 * rows, dtype=torch.int64, device="cuda")
        calls = {
            "softmax of logits": (8 * rows * width, partial(torch.softmax, logits, -1)),
            "sigmoid of logits": (8 * rows * width, partial(torch.sigmoid, logits)),
            "topk of 8": (4 * rows * width + 96 * rows, partial(torch.topk, logits, 8)),
            "topk of 8, unsorted": (
                4 * rows * width + 96 * rows,
                partial(torch.topk, logits, 8, sorted=False),
            ),
            "stable argsort of 8 ids a row": (
                128 * rows,
                partial(torch.argsort, ids, stable=True),
            ),
            "stable sort of 8 int32 ids a row": (
                96 * rows,
                partial(torch.sort, ids.int(), stable=True),
            ),
            "bincount of 8 ids a row": (64 * rows, partial(torch.bincount, ids, minlength=width)),
            "histc of 8 ids a row": (
                32 * rows,
                partial(torch.histc, ids.float(), bins=width, min=0, max=width - 1),
            ),
            "counts by scatter_add_": (
                128 * rows,
                partial(ends.scatter_add_, 0, ids, ones),
            ),
            "cumsum over rows of splits": (
                12 * rows * width,
                partial(torch.cumsum, split, 0),
            ),
            "cumsum of 8 ids a row": (128 * rows, partial(torch.cumsum, ids, 0)),
            "row map by scatter": (192 * rows, partial(place.scatter_, 0, order, names)),
        }
        for name, (nbytes, call) in calls.items():
            yield from attempt(name, partial(_small_row, gpu, name, rows, width, nbytes, call))
    for millions in (1, 16, 256):
        count = millions << 20
        parameter = torch.nn.Parameter(torch.randn(count, device="cuda"))
        parameter.grad = torch.randn(count, device="cuda")
        for fused in (True, False):
            adam = torch.optim.AdamW([parameter], fused=fused, foreach=not fused)
            name = "AdamW step of FP32, " + ("fused" if fused else "foreach")
            row = partial(_small_row, gpu, name, count, 1, 28 * count, adam.step)
            yield from attempt(name, row)
            del adam
        del parameter
    print("triton", triton.__version__, flush=True)


def _small_row(gpu: Gpu, name: str, rows: int, width: int, nbytes: int, call: Callable[[], object]) -> Row:
    return (name, rows, width, nbytes, *gpu.us(call))


def operands(gpu: Gpu) -> Iterator[Row]:
    """A GEMM whose operands come by pointers or by descriptors."""
    torch = gpu.torch
    from tile_kernels import tiles_by_descriptors, tiles_by_pointers
    from triton.tools.tensor_descriptor import TensorDescriptor

    instruction = "mma.sync" if os.environ.get("DISABLE_MMA_V3") == "1" else "wgmma"
    kinds = {"bf16": torch.bfloat16, "tf32": torch.float32, "fp8": torch.float8_e4m3fn}
    m, n, k = 8192, 8192, 4096
    for dtype, kind in kinds.items():
        block_k = 128 // kind.itemsize
        left = torch.randn(m, k, device="cuda").to(kind)
        right = torch.randn(n, k, device="cuda").to(kind)
        results = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        reference = left[:256].double() @ right.double().T
        for (bm, bn, warps), stages, path in itertools.product(
            ((128, 256, 8), (128, 128, 8), (128, 128, 4)), (3, 4), ("cp.async", "TMA")
        ):
            described = [
                TensorDescriptor.from_tensor(left, [bm, block_k]),
                TensorDescriptor.from_tensor(right, [bn, block_k]),
            ]
            kernel = tiles_by_descriptors if path == "TMA" else tiles_by_pointers
            launch = partial(
                kernel[(m // bm * (n // bn),)],
                *(described if path == "TMA" else [left, right]),
                results,
                m,
                n,
                k,
                block_m=bm,
                block_n=bn,
                block_k=block_k,
                precision="tf32" if dtype == "tf32" else "ieee",
                num_warps=warps,
                num_stages=stages,
            )
            setting: Row = (instruction, path, dtype, m, n, k, f"{bm}x{bn}x{block_k}", warps, stages)
            row = partial(_checked_row, gpu, setting, launch, results, reference, 2 * m * n * k)
            yield from attempt(str(setting), row)


def _checked_row(gpu: Gpu, setting: Row, launch: Callable[[], object], results: Any, reference: Any, count: int) -> Row:
    """Times, rate of so many operations, and relative error of the first rows of the results."""
    results.fill_(gpu.torch.nan)
    times = gpu.us(launch)
    error = (results[: len(reference)].double() - reference).norm() / reference.norm()
    return (*setting, *times, round(count / times[0] / 1e6, 1), round(float(error), 5))


def contention(gpu: Gpu) -> Iterator[Row]:
    """A GEMM beside a copy that holds some SMs, each in a stream of its own."""
    torch = gpu.torch
    from tile_kernels import held_copy
    from tile_problem import Problem

    from replay.studies.validate.tile_lists import GroupedShape

    words, block = 1 << 29, 16384  # 2 GB each
    source = torch.randn(words, device="cuda")
    target = torch.empty_like(source)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    m, n, k = 8192, 8192, 8192
    left = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
    results = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    shape = GroupedShape("square", 1, m, k, n)
    problem = Problem(shape, "bf16")
    listed = problem.listed("unit:8")
    lean = Problem(GroupedShape("streaming", 16, 128, 8192, 8192), "bf16")  # reads 2 GB of weights
    lean_listed = lean.listed("unit:8")
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def beside(calls: list[Any], repeats: list[int]) -> list[float]:
        """Microseconds of a call of each, while all run from about the same time on."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
        torch.cuda.synchronize()
        gate = torch.cuda.Event()
        torch.cuda._sleep(2_000_000)
        gate.record()
        for call, times, stream, (begin, end) in zip(calls, repeats, streams, events, strict=False):
            with torch.cuda.stream(stream):
                stream.wait_event(gate)
                begin.record()
                for _ in range(times):
                    call()
                end.record()
        torch.cuda.synchronize()
        return [1e3 * begin.elapsed_time(end) / times for (begin, end), times in zip(events, repeats, strict=True)]

    for held in (8, 16, 24, 48):
        steps = words // (held * block)
        rounds = max(2, held // 4)  # some ten milliseconds, longer than some GEMMs
        nbytes = 8 * steps * held * block * rounds

        def copy(held: int = held, steps: int = steps, rounds: int = rounds) -> None:
            held_copy[(held,)](source, target, steps, rounds, block=block, num_warps=32)

        gemms: dict[str, Any] = {
            "torch.mm 8192^3": lambda: torch.mm(left, right, out=results),
            f"{sms - held} programs, 8192^3": lambda held=held: problem.launch(listed, sms - held, flatten=False),
            f"{sms - held} programs, 16 experts of 128 rows, 8192^2": lambda held=held: lean.launch(
                lean_listed, sms - held, flatten=False
            ),
        }
        for name, gemm in gemms.items():

            def row(
                name: str = name,
                gemm: Any = gemm,
                held: int = held,
                copy: Any = copy,
                nbytes: int = nbytes,
            ) -> Row:
                for call in (gemm, copy, gemm, copy):
                    call()
                alone: list[list[float]] = [[], []]
                found, copied = [], []
                for _ in range(5):  # in turn, since the clock falls while the GPU is warm
                    for times, call in zip(alone, (gemm, copy), strict=True):
                        times.append(beside([call], [3 if call is gemm else 1])[0])
                    # The copy lasts longer than the GEMMs, then the GEMMs longer than the copy.
                    repeats = max(1, int(0.7 * alone[1][0] / alone[0][0]))
                    found.append(beside([copy, gemm], [1, repeats])[1])
                    more = 3 * (int(alone[1][0] / alone[0][0]) + 1)
                    copied.append(beside([copy, gemm], [1, more])[0])
                gemm_us, copy_us, both_us, copied_us = map(statistics.median, (*alone, found, copied))
                return (
                    name,
                    held,
                    round(gemm_us, 1),
                    round(both_us, 1),
                    round(nbytes / copy_us / 1e3, 1),
                    round(nbytes / copied_us / 1e3, 1),
                )

            yield from attempt(f"contention {name} {held}", row)


def gemms(gpu: Gpu) -> Iterator[Row]:
    """Products of PyTorch with a short inner dimension, few columns or few tiles."""
    torch = gpu.torch
    short = [(m, n, k) for k in (64, 128, 256) for m, n in ((4096, 4096), (16384, 4096), (8192, 14336), (65536, 2048))]
    narrow = [(m, n, k) for n in (8, 16, 32, 64, 128) for m in (4096, 16384, 65536) for k in (2048, 7168)]
    # Tiles of 128 x 256: their number goes through one and two for each SM.
    few = [
        (128 * rows, 256 * columns, k)
        for rows, columns in (
            (1, 17),
            (4, 17),
            (6, 11),
            (8, 12),
            (11, 12),
            (12, 12),
            (8, 20),
            (12, 16),
            (11, 24),
            (12, 23),
            (16, 25),
        )
        for k in (1024, 4096, 7168)
    ]
    for m, n, k in (*short, *narrow, *few, (8192, 8192, 8192)):
        left = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        right = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        call = partial(torch.mm, left, right, out=out)

        def row(m: int = m, n: int = n, k: int = k, call: Any = call) -> Row:
            return ("torch.mm", "bf16", m, n, k, *gpu.us(call))

        yield from attempt(f"mm {m} {n} {k}", row)
        if k % 16 == 0 and n % 16 == 0:
            one = torch.ones((), device="cuda")
            left8 = left.to(torch.float8_e4m3fn)
            right8 = right.t().to(torch.float8_e4m3fn).t()
            scaled = partial(
                torch._scaled_mm,
                left8,
                right8,
                one,
                one,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )

            def scaled_row(m: int = m, n: int = n, k: int = k, call: Any = scaled) -> Row:
                return ("torch._scaled_mm", "fp8", m, n, k, *gpu.us(call))

            yield from attempt(f"scaled mm {m} {n} {k}", scaled_row)


if __name__ == "__main__":
    product = ("m", "n", "k")
    write_tables(
        str(__doc__).splitlines()[0],
        {
            "small": (("kernel", "rows", "width", "bytes", *SPREAD), small),
            "operands": (
                ("instruction", "path", "dtype", *product, "tile", "warps", "stages", *SPREAD, "TFLOP_per_s", "error"),
                operands,
            ),
            "contention": (
                ("gemm", "copy_sms", "gemm_alone_us", "gemm_beside_us", "copy_alone_GB_per_s", "copy_beside_GB_per_s"),
                contention,
            ),
            "gemms": (("library", "gemm_dtype", *product, *SPREAD), gemms),
        },
    )
