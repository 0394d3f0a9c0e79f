"""Measure kernels of training stacks on one GPU: permutations, FP8, counts, and two streams.

Usage: python scripts/measure_training.py WHAT --out FILE.csv [--budget SECONDS] [--sources FOLDER]
    permutation  Transformer Engine's kernels that permute rows. FOLDER holds copies of its files
                 common/triton/permutation.py as kernels.py and pytorch/triton/permutation.py as
                 calls.py (Apache-2.0; not part of this project)
    fp8          products with one scale, a scale a row and a scale a block, and casts
    launches     which kernels a call of PyTorch launches, by its profiler
    streams      a copy at a set pace beside other kernels, and streams of high priority

Times are medians of GPU time with operands that are not in the L2 cache, but for `launches`, whose
times are the profiler's. What fails is printed, and the rest is measured all the same. Needs torch
and triton and an NVIDIA GPU of Hopper's kind.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import sys
import types
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_times import SPREAD, Gpu, Row, attempt, write_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_BYTES = 8e9  # of a tensor
LEAD_CYCLES = 500_000  # 0.3 ms: Triton's tuned kernels take the host a tenth of that and more
MAP_BLOCK = 1024  # tokens of a block of Transformer Engine's first two passes


def _guarded(rows: Iterator[Row], *what: object) -> Iterator[Row]:
    """Rows until one fails, and a line that says so."""
    try:
        yield from rows
    except Exception as failure:  # what comes behind it is measured all the same
        print("failed:", *what, repr(failure)[:300], flush=True)


def permutation(gpu: Gpu) -> Iterator[Row]:
    """Transformer Engine's kernels that make maps of rows and move rows by them."""
    if gpu.sources is None:
        sys.exit("measure_training: --sources must name the folder of kernels.py and calls.py")
    kernels, calls = _copied(gpu.sources)
    gpu.lead_cycles = LEAD_CYCLES
    # The first shape of a width is the one that Transformer Engine tunes its blocks for.
    first = [(8192, 512, 22, 2048), (4096, 128, 8, 7168), (8192, 128, 8, 2048)]
    for shape in first:
        yield from _guarded(_rows_moved(gpu, calls, kernels, *shape), "rows_moved", *shape)
    for tokens, experts in (
        (8192, 512),
        (4096, 512),
        (8192, 128),
        (65536, 128),
        (512, 128),
        (8192, 32),
        (8192, 8),
        (65536, 8),
        (32768, 512),
        (512, 512),
        (65536, 32),
        (512, 8),
    ):
        yield from _guarded(
            _maps(gpu, kernels, tokens, experts, 22 if experts > 256 else min(8, experts)),
            "maps",
            tokens,
            experts,
            22 if experts > 256 else min(8, experts),
        )
    for rows, splits in itertools.product((180224, 65536, 8192, 1024), (1024, 32, 256, 8)):
        yield from _guarded(_chunk_map(gpu, calls, rows, splits), "chunk_map", rows, splits)
    for rows, width in itertools.product((180224, 65536, 8192, 1024), (2048, 7168)):
        yield from _guarded(_chunks_sorted(gpu, calls, kernels, rows, width), "chunks_sorted", rows, width)
    for tokens, (experts, topk), width in itertools.product(
        (512, 4096, 16384, 65536),
        ((8, 1), (8, 2), (8, 8), (128, 1), (128, 8), (512, 22)),
        (2048, 7168),
    ):
        if (tokens, experts, topk, width) not in first:
            yield from _guarded(
                _rows_moved(gpu, calls, kernels, tokens, experts, topk, width),
                "rows_moved",
                tokens,
                experts,
                topk,
                width,
            )


def _copied(folder: Path) -> tuple[Any, Any]:
    """Load the two files, the second of which imports the first by its place in the package."""
    name = "transformer_engine"
    for part in ("common", "triton"):
        sys.modules.setdefault(name, types.ModuleType(name))
        name += f".{part}"
    sys.modules.setdefault(name, types.ModuleType(name))
    found = []
    for module, file in ((f"{name}.permutation", "kernels.py"), ("te_calls", "calls.py")):
        spec = importlib.util.spec_from_file_location(module, folder / file)
        if spec is None or spec.loader is None:
            sys.exit(f"measure_training: no {file} in {folder}")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[module] = loaded
        spec.loader.exec_module(loaded)
        found.append(loaded)
    from triton.testing import do_bench

    for kernel in vars(found[0]).values():
        if hasattr(kernel, "_do_bench"):  # as Triton does, in a quarter of the time
            kernel._do_bench = partial(do_bench, warmup=5, rep=25)
    return found[0], found[1]


def _routing(gpu: Gpu, tokens: int, experts: int, topk: int) -> Any:
    torch = gpu.torch
    torch.manual_seed(0)
    routing = torch.zeros(tokens, experts, dtype=torch.bool, device=gpu.device)
    chosen = torch.rand(tokens, experts, device=gpu.device).topk(topk).indices
    return routing.scatter_(1, chosen, True)


def _maps(gpu: Gpu, kernels: Any, tokens: int, experts: int, topk: int) -> Iterator[Row]:
    """The three passes that turn a routing mask into a map of rows, one by one."""
    torch = gpu.torch
    routing = _routing(gpu, tokens, experts, topk)
    found = torch.empty(tokens, 2 * experts + 1, dtype=torch.int32, device=gpu.device)
    blocks = -(-tokens // MAP_BLOCK)
    space = torch.empty(experts, blocks, dtype=torch.int32, device=gpu.device)
    grid = (experts, blocks)
    wide = 1 << (experts * blocks - 1).bit_length()
    strides = found.stride()

    def one() -> None:
        kernels._row_id_map_pass_1_kernel[grid](routing, tokens, *routing.stride(), *strides, found, space, MAP_BLOCK)

    def two() -> None:
        kernels._row_id_map_pass_2_kernel[grid](found, space, tokens, *strides, wide, MAP_BLOCK)

    def three() -> None:
        kernels._row_id_map_pass_3_kernel[(tokens,)](found, *strides, experts, 1 << (experts - 1).bit_length())

    def both() -> None:
        one()
        two()

    mask, ids = tokens * experts, 4 * tokens * experts
    routed = tokens * topk
    for name, nbytes, call, before in (
        ("row_id_map pass 1", mask + ids, one, lambda: None),
        ("row_id_map pass 2", 2 * ids, two, one),
        ("row_id_map pass 3", ids + 8 * routed + 4 * tokens, three, both),
    ):

        def row(name: str = name, nbytes: int = nbytes, call: Any = call, before: Any = before) -> Row:
            times = gpu.us(call, before)
            return (name, tokens, experts, topk, 0, nbytes, MAP_BLOCK, *times)

        yield from attempt(f"{name} {tokens} {experts}", row)


def _rows_moved(gpu: Gpu, calls: Any, kernels: Any, tokens: int, experts: int, topk: int, width: int) -> Iterator[Row]:
    """Permute with probabilities, unpermute with them and without, and both backward passes."""
    torch = gpu.torch
    routed = tokens * topk
    if 2 * routed * width > MOST_BYTES:
        return
    try:
        routing = _routing(gpu, tokens, experts, topk)
        rows = torch.randn(tokens, width, device=gpu.device, dtype=torch.bfloat16)
        probs = routing.float() / topk
        row_map = calls.make_row_id_map(routing, tokens, experts)
        sizes = (tokens, experts, routed, width)
        permute = partial(calls.permute_with_mask_map, rows, row_map, probs, None, None, *sizes, 0)
        permuted, _, permuted_probs = permute()
        merge = partial(
            calls.unpermute_with_mask_map,
            permuted,
            row_map,
            probs,
            None,
            None,
            tokens,
            experts,
            width,
        )
        error = float((merge()[0].float() - rows.float()).norm() / rows.float().norm())
    except Exception as failure:
        print("failed:", tokens, experts, topk, width, repr(failure)[:300], flush=True)
        return
    if error > 0.02:
        print("wrong: unpermuted rows differ by", error, tokens, experts, topk, flush=True)
    moved, ids = 2 * (tokens + routed) * width, 8 * routed
    table = 4 * tokens * experts
    back = partial(
        calls.unpermute_with_mask_map_bwd_with_merging_probs,
        rows,
        row_map,
        permuted,
        probs,
        None,
        *sizes,
    )
    for name, kernel, nbytes, call in (
        ("permute with probabilities", "_permute_kernel", moved + ids + 8 * routed, permute),
        ("unpermute, merged by probabilities", "_unpermute_kernel", moved + ids + 4 * routed, merge),
        (
            "unpermute with probabilities' gradient (permute's backward)",
            "_unpermute_kernel",
            moved + ids + 8 * routed + table,
            partial(
                calls.unpermute_with_mask_map, permuted, row_map, None, permuted_probs, None, tokens, experts, width
            ),
        ),
        (
            "unpermute's backward with merging probabilities",
            "_unpermute_bwd_with_merging_probs_kernel",
            moved + 2 * routed * width + ids + 8 * routed + table,
            back,
        ),
        (
            "permute without probabilities (unpermute's backward)",
            "_permute_kernel",
            moved + 4 * routed,
            partial(calls.permute_with_mask_map, rows, row_map, None, None, None, *sizes, 0),
        ),
    ):

        def row(name: str = name, kernel: str = kernel, nbytes: int = nbytes, call: Any = call) -> Row:
            times = gpu.us(call)
            block = _block(getattr(kernels, kernel))
            return (name, tokens, experts, topk, width, nbytes, block, *times)

        yield from attempt(f"{name} {tokens} {experts} {topk} {width}", row)


def _block(kernel: Any) -> int:
    """Columns of a block that tuning chose, 0 if nothing was tuned."""
    best = getattr(kernel, "best_config", None)
    return int(best.kwargs["BLOCK_SIZE"]) if best is not None else 0


def _chunk_map(gpu: Gpu, calls: Any, rows: int, splits: int) -> Iterator[Row]:
    torch = gpu.torch
    sizes = torch.full((splits,), rows // splits, dtype=torch.int32, device=gpu.device)
    torch.manual_seed(0)
    order = torch.randperm(splits, device=gpu.device).to(torch.int32)
    call = partial(calls.make_chunk_sort_map, sizes, order, rows, splits)

    def row() -> Row:
        return ("make_chunk_sort_map", rows, splits, 0, 0, 4 * rows, 1, *gpu.us(call))

    yield from attempt(f"chunk map {rows} {splits}", row)


def _chunks_sorted(gpu: Gpu, calls: Any, kernels: Any, rows: int, width: int) -> Iterator[Row]:
    torch = gpu.torch
    if 2 * rows * width > MOST_BYTES:
        return
    splits = 128
    sizes = torch.full((splits,), rows // splits, dtype=torch.int32, device=gpu.device)
    order = torch.randperm(splits, device=gpu.device).to(torch.int32)
    values = torch.randn(rows, width, device=gpu.device, dtype=torch.bfloat16)
    probs = torch.rand(rows, device=gpu.device)
    where = calls.make_chunk_sort_map(sizes, order, rows, splits)
    for forward in (True, False):
        call = partial(calls.sort_chunks_by_map, values, where, probs, rows, width, forward)

        def row(call: Any = call, forward: bool = forward) -> Row:
            times = gpu.us(call)
            name = "sort_chunks_by_map, " + ("forward" if forward else "backward")
            block = _block(kernels._sort_chunks_by_map_kernel)
            return (name, rows, splits, 0, width, 4 * rows * width + 12 * rows, block, *times)

        yield from attempt(f"chunks sorted {rows} {width}", row)


# (n, k) of a product of so many rows.
FORWARD_SHAPES = {
    "DeepSeek-V3 expert, gate and up": (4096, 7168),
    "DeepSeek-V3 expert, down": (7168, 2048),
    "Mixtral expert, gate and up": (28672, 4096),
    "Mixtral expert, down": (4096, 14336),
    "DeepSeek-V3 attention, queries": (24576, 1536),
    "DeepSeek-V3 attention, out": (7168, 16384),
}
# (m, n) of a product whose inner dimension is so many rows.
WEIGHT_GRADIENTS = {
    "DeepSeek-V3 expert, gate and up": (4096, 7168),
    "DeepSeek-V3 expert, down": (7168, 2048),
    "Mixtral expert, gate and up": (28672, 4096),
}


def fp8(gpu: Gpu) -> Iterator[Row]:
    """Products in FP8 by kind of scale, and casts."""
    gpu.lead_cycles = LEAD_CYCLES
    for name, (n, k) in FORWARD_SHAPES.items():
        if "DeepSeek-V3 expert" in name:
            for m in (8192, 2048, 512, 128):
                yield from _guarded(_products(gpu, name, m, n, k), name, m, n, k)
    for name, (m, n) in WEIGHT_GRADIENTS.items():
        for inner in (4096, 8192, 2048, 512, 1024, 256, 128):
            yield from _guarded(
                _products(gpu, name + ", weight gradient", m, n, inner),
                name + ", weight gradient",
                m,
                n,
                inner,
            )
    for rows, width in itertools.product((8192, 32768, 2048, 512), (7168, 2048)):
        yield from _guarded(_casts(gpu, rows, width), rows, width)
    for name, (n, k) in FORWARD_SHAPES.items():
        if "DeepSeek-V3 expert" not in name:
            for m in (8192, 2048, 512, 128):
                yield from _guarded(_products(gpu, name, m, n, k), name, m, n, k)


def _products(gpu: Gpu, name: str, m: int, n: int, k: int) -> Iterator[Row]:
    torch = gpu.torch
    device = gpu.device
    left = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    right = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    left8, right8 = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn)
    reference = left8[:128].float() @ right8.float().t()
    one = torch.ones((), device=device)
    blocks = k // 128
    by_row = torch.ones(blocks, m, device=device).t()  # consecutive rows lie side by side
    by_column = torch.ones(blocks, n, device=device).t()
    # Scales of square blocks: the inner dimension is consecutive, padded to four.
    square = torch.ones(n // 128, -(-blocks // 4) * 4, device=device)

    def single(kind: Any, fast: bool) -> Any:
        return torch._scaled_mm(left8, right8.t(), one, one, out_dtype=kind, use_fast_accum=fast)

    def a_row(kind: Any, fast: bool) -> Any:
        return torch._scaled_mm(
            left8,
            right8.t(),
            torch.ones(m, 1, device=device),
            torch.ones(1, n, device=device),
            out_dtype=kind,
            use_fast_accum=fast,
        )

    def by_blocks(kind: Any, squares: bool) -> Any:
        from torch.nn.functional import ScalingType, scaled_mm

        return scaled_mm(
            left8,
            right8.t(),
            by_row,
            ScalingType.BlockWise1x128,
            square.t() if squares else by_column,
            ScalingType.BlockWise128x128 if squares else ScalingType.BlockWise1x128,
            output_dtype=kind,
        )

    def by_blocks_guessed(kind: Any, squares: bool) -> Any:
        """By the older call, which sees the kind of scale by its shape."""
        scales = square[:, :blocks] if squares else by_column
        return torch._scaled_mm(left8, right8.t(), by_row, scales.t(), out_dtype=kind)

    bf16, fp32 = torch.bfloat16, torch.float32
    variants: list[tuple[str, str, Callable[[], Any]]] = [
        ("1x128 by 128x128", "bf16", partial(by_blocks, bf16, True)),
        ("1x128 by 1x128", "bf16", partial(by_blocks, bf16, False)),
        ("1x128 by 1x128", "fp32", partial(by_blocks, fp32, False)),
        ("one scale, fast sums", "bf16", partial(single, bf16, True)),
        ("one scale, exact sums", "bf16", partial(single, bf16, False)),
        ("one scale, exact sums", "fp32", partial(single, fp32, False)),
        ("bf16", "bf16", lambda: torch.mm(left, right.t())),
        ("bf16", "fp32", lambda: torch.mm(left, right.t(), out_dtype=fp32)),
        ("a scale a row, fast sums", "bf16", partial(a_row, bf16, True)),
    ]
    for recipe, kind, call in variants:

        def row(recipe: str = recipe, kind: str = kind, call: Any = call) -> Row:
            try:
                result = call()
            except Exception as failure:
                if "128" not in recipe:
                    raise
                print("scaled_mm refuses:", repr(failure)[:200], flush=True)
                call = partial(by_blocks_guessed, *call.args)
                result = call()
            error = (result[:128].float() - reference).norm() / reference.norm()
            size = (2 if recipe == "bf16" else 1) * (m * k + n * k)
            size += (2 if kind == "bf16" else 4) * m * n
            return (name, recipe, kind, m, n, k, size, *gpu.us(call), round(float(error), 5))

        yield from attempt(f"product {recipe} {kind} {m} {n} {k}", row)


def _casts(gpu: Gpu, rows: int, width: int) -> Iterator[Row]:
    torch = gpu.torch
    import training_kernels as kernels

    device, side, block = gpu.device, 128, 4096
    values = torch.randn(rows, width, device=device, dtype=torch.bfloat16)
    by_rows = torch.empty(rows, width, device=device, dtype=torch.float8_e4m3fn)
    by_columns = torch.empty(width, rows, device=device, dtype=torch.float8_e4m3fn)
    row_scales = torch.empty(width // side, rows, device=device)
    column_scales = torch.empty(rows // side, width, device=device)
    most, scale = torch.zeros(1, device=device), torch.ones(1, device=device)
    count = rows * width
    tiles = (rows // side, width // side)
    flat = (-(-count // block),)

    def cast(square: bool, transposed: bool, warps: int) -> None:
        kernels.cast_both[tiles](
            values,
            by_rows,
            row_scales,
            by_columns,
            column_scales,
            rows,
            width,
            square=square,
            transposed=transposed,
            side=side,
            num_warps=warps,
        )

    def find_largest() -> None:
        kernels.largest[flat](values, most, count, block=block, num_warps=8)

    def cast_by_one() -> None:
        kernels.cast_by_one[flat](values, by_rows, scale, count, block=block, num_warps=8)

    def transpose() -> None:
        kernels.transposed_bytes[tiles](
            by_rows.view(torch.int8),
            by_columns.view(torch.int8),
            rows,
            width,
            side=side,
            num_warps=8,
        )

    def recipe() -> None:
        most.zero_()
        find_largest()
        kernels.scale_of[(1,)](most, scale)
        cast_by_one()

    scales = 4 * count // side
    named: dict[str, tuple[int, Callable[[], object]]] = {}
    for warps in (8, 16):
        tail = f", {warps} warps"
        named["cast by rows, 1x128" + tail] = (
            3 * count + scales,
            partial(cast, False, False, warps),
        )
        named["cast by rows and transposed by columns, 1x128" + tail] = (
            4 * count + 2 * scales,
            partial(cast, False, True, warps),
        )
        named["cast in blocks of 128x128" + tail] = (3 * count, partial(cast, True, False, warps))
        named["cast in blocks of 128x128 and transposed" + tail] = (4 * count, partial(cast, True, True, warps))
    named["transpose of FP8"] = (2 * count, transpose)
    named["transpose of FP8 by PyTorch"] = (
        2 * count,
        lambda: by_columns.view(torch.int8).copy_(by_rows.view(torch.int8).t()),
    )
    named["transpose of BF16 by PyTorch"] = (4 * count, lambda: values.t().contiguous())
    named["largest of all"] = (2 * count, find_largest)
    named["cast by one scale"] = (3 * count, cast_by_one)
    named["one scale: zero, largest, scale, cast (4 kernels)"] = (5 * count, recipe)
    for name, (nbytes, call) in named.items():

        def row(name: str = name, nbytes: int = nbytes, call: Any = call) -> Row:
            return (name, "cast", "fp8", rows, 0, width, nbytes, *gpu.us(call), "")

        yield from attempt(f"{name} {rows} {width}", row)
    try:
        cast(False, True, 8)
        gpu.wait()
        again = by_columns.t().float() * column_scales.repeat_interleave(side, 0)
        error = float((again - values.float()).norm() / values.float().norm())
        if error > 0.1:
            print("wrong: transposed cast differs by", error, rows, width, flush=True)
    except Exception as failure:
        print("failed: check of casts", repr(failure)[:200], flush=True)


QWEN3_30B = {  # (outputs, inputs) of a weight
    "expert, down": (2048, 768),
    "expert, gate and up": (1536, 2048),
    "expert, gate": (768, 2048),
    "router": (128, 2048),
    "queries, keys, values": (5120, 2048),
    "attention, out": (2048, 4096),
}


def launches(gpu: Gpu) -> Iterator[Row]:
    """Kernels that calls launch, in order."""
    torch = gpu.torch
    device = gpu.device
    for rows in (4096, 512, 1024, 2048, 8192):
        calls: dict[tuple[str, str], Callable[[], object]] = {}
        for name, (outputs, inputs) in QWEN3_30B.items():
            x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
            gradient = torch.randn(rows, outputs, device=device, dtype=torch.bfloat16)
            weight = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
            main = torch.zeros(outputs, inputs, device=device)
            setting = f"{name}, {rows} rows"
            calls[("forward", setting)] = partial(torch.mm, x, weight.t())
            calls[("input gradient", setting)] = partial(torch.mm, gradient, weight)
            calls[("weight gradient", setting)] = partial(torch.mm, gradient.t(), x)
            calls[("weight gradient, FP32 out", setting)] = partial(torch.mm, gradient.t(), x, out_dtype=torch.float32)
            calls[("weight gradient, added to FP32", setting)] = partial(
                torch.addmm, main, gradient.t(), x, out_dtype=torch.float32
            )
            if name == "router":
                wide = (x.float(), gradient.float(), weight.float())
                calls[("forward in FP32", setting)] = partial(torch.mm, wide[0], wide[2].t())
                calls[("input gradient in FP32", setting)] = partial(torch.mm, wide[1], wide[2])
                calls[("weight gradient in FP32", setting)] = partial(torch.mm, wide[1].t(), wide[0])
        yield from _listed(gpu, calls)
        if rows == 4096:
            yield from _attention_launches(gpu, rows)
    yield from _attention_launches(gpu, 8192)
    yield from _swiglu_launches(gpu)


def _attention_launches(gpu: Gpu, length: int) -> Iterator[Row]:
    torch = gpu.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    heads, kv_heads, width = 32, 4, 128
    for backend, (kind, kv) in itertools.product(
        ("CUDNN_ATTENTION", "FLASH_ATTENTION"), (("grouped", kv_heads), ("repeated", heads))
    ):
        setting = f"{backend}, {length} tokens, {heads} heads, {kv} of keys"
        try:
            # Rows of heads lie side by side, as a projection leaves them.
            q, k, v = (
                torch.randn(1, length, count, width, device=gpu.device, dtype=torch.bfloat16)
                .transpose(1, 2)
                .requires_grad_()
                for count in (heads, kv, kv)
            )
            gradient = torch.randn_like(q)

            def forward(q: Any = q, k: Any = k, v: Any = v, kind: str = kind, b: str = backend) -> Any:
                with sdpa_kernel(getattr(SDPBackend, b)):
                    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kind == "grouped")

            out = forward()
            backward = partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True)
            yield from _listed(
                gpu,
                {
                    ("attention forward", setting): forward,
                    ("attention backward", setting): backward,
                },
            )
        except Exception as failure:
            print("failed:", setting, repr(failure)[:300], flush=True)


def _swiglu_launches(gpu: Gpu) -> Iterator[Row]:
    torch = gpu.torch
    from torch.nn.functional import silu

    def weighted(values: Any, weights: Any) -> Any:
        gate, up = values.chunk(2, -1)
        return (silu(gate.float()) * up.float() * weights).to(values.dtype)

    try:
        compiled = torch.compile(weighted)
        values = torch.randn(8192, 1536, device=gpu.device, dtype=torch.bfloat16)
        weights = torch.rand(8192, 1, device=gpu.device)
        values.requires_grad_()
        weights.requires_grad_()
        out = compiled(values, weights)
        gradient = torch.randn_like(out)
        setting = "8192 rows of 768"
        yield from _listed(
            gpu,
            {
                ("weighted SwiGLU compiled, forward", setting): partial(compiled, values, weights),
                ("weighted SwiGLU compiled, backward", setting): partial(
                    torch.autograd.grad, out, (values, weights), gradient, retain_graph=True
                ),
            },
        )
    except Exception as failure:
        print("failed: compiled SwiGLU", repr(failure)[:300], flush=True)


def _listed(gpu: Gpu, calls: dict[tuple[str, str], Callable[[], object]]) -> Iterator[Row]:
    """Rows of the kernels of calls, each alone on the GPU."""
    try:
        yield from list(_profiled(gpu, calls))
    except Exception as failure:
        print("failed: profile of", *list(calls)[:1], repr(failure)[:300], flush=True)


def _profiled(gpu: Gpu, calls: dict[tuple[str, str], Callable[[], object]]) -> Iterator[Row]:
    torch = gpu.torch
    kinds = torch.profiler.ProfilerActivity
    runnable = {}
    for key, call in calls.items():
        try:
            call()
            call()
            gpu.wait()
            runnable[key] = call
        except Exception as failure:
            print("failed:", *key, repr(failure)[:200], flush=True)
    activities = [kinds.CPU] if gpu.device == "cpu" else [kinds.CPU, kinds.CUDA]
    with torch.profiler.profile(activities=activities) as profiled:
        for index, call in enumerate(runnable.values()):
            with torch.profiler.record_function(f"call:{index}"):
                call()
                gpu.wait()
    events = list(profiled.events())
    spans: dict[str, tuple[float, float]] = {}
    kernels = []
    for event in events:
        here = event.time_range
        on_host = str(event.device_type).endswith("CPU")
        if event.name.startswith("call:"):
            if on_host:
                spans[event.name] = (here.start, here.end)
        elif not on_host:
            kernels.append((here.start, event.name, here.elapsed_us()))
    kernels.sort()
    for index, key in enumerate(runnable):
        begin, end = spans[f"call:{index}"]
        own = [kernel for kernel in kernels if begin <= kernel[0] <= end]
        for order, (_, name, spent) in enumerate(own):
            yield (*key, len(own), order, name[:160], round(spent, 2))
        if not own:
            yield (*key, 0, 0, "", 0.0)


PACED_BLOCK = 16384  # words of a step: 64 KiB read, 64 KiB written
LONGEST_NS = 50_000_000


class Paced:
    """A copy by few programs at a set pace, which runs until other work has ended."""

    def __init__(self, gpu: Gpu, programs: int, warps: int) -> None:
        import training_kernels

        torch = gpu.torch
        self.gpu, self.programs, self.warps = gpu, programs, warps
        self._kernel = training_kernels.paced_copy
        words = 1 << 28
        self._steps = words // (programs * PACED_BLOCK)
        self._source = torch.zeros(words, device=gpu.device)
        self._target = torch.empty_like(self._source)
        self._flag = torch.zeros(1, dtype=torch.int32, device=gpu.device)
        self._done, self._begun, self._ended = (
            torch.zeros(programs, dtype=torch.int64, device=gpu.device) for _ in range(3)
        )
        self._low, self._high = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)

    def beside(self, call: Callable[[], object] | None, repeats: int, giga: float | None) -> tuple[float, float]:
        """Microseconds of one of some calls, and GB/s that all programs copy meanwhile.

        Parameters
        ----------
        call
            The other work, in a stream of its own; nothing for 3 ms if there is none.
        repeats
            How often it is called in a row.
        giga
            GB/s at which one program is to copy; as fast as it can if 0; no copy if none.
        """
        torch = self.gpu.torch
        begin, end, gate = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        self._flag.zero_()
        torch.cuda._sleep(2_000_000)
        gate.record()
        self._high.wait_event(gate)
        self._low.wait_event(gate)
        pace = int(4 * PACED_BLOCK / giga) if giga else 0
        if giga is not None:
            with torch.cuda.stream(self._high):
                self._kernel[(self.programs,)](
                    self._source,
                    self._target,
                    self._flag,
                    self._done,
                    self._begun,
                    self._ended,
                    self._steps,
                    pace,
                    LONGEST_NS,
                    block=PACED_BLOCK,
                    num_warps=self.warps,
                )
        with torch.cuda.stream(self._low):
            torch.cuda._sleep(100_000)  # until the copy is at work
            begin.record()
            if call is None:
                torch.cuda._sleep(5_000_000)
            else:
                for _ in range(repeats):
                    call()
            end.record()
            self._flag.fill_(1)
        torch.cuda.synchronize()
        spent = 1e3 * begin.elapsed_time(end) / max(1, repeats)
        if giga is None:
            return spent, 0.0
        # Each program's own time: one that starts late on a busy GPU is not slow.
        rates = self._done.double() * 4 * PACED_BLOCK / (self._ended - self._begun)
        return spent, float(rates.sum())


def streams(gpu: Gpu) -> Iterator[Row]:
    """Copies at a set pace beside kernels bound by memory and products; and priorities."""
    for rows, quantities in (
        (_priorities(gpu), ("first_start_us", "middle_start_us", "last_start_us")),
        (
            _beside(gpu),
            ("alone_us", "beside_us", "copy_alone_GB_per_s", "copy_beside_GB_per_s"),
        ),
    ):
        for *setting, values in rows:
            for quantity, value in zip(quantities, values, strict=True):
                yield (*setting, quantity, value)


def _beside(gpu: Gpu) -> Iterator[Any]:
    """Rows whose last part is the values of all quantities."""
    torch = gpu.torch
    from tile_problem import Problem

    from replay.studies.validate.tile_lists import GroupedShape

    rows = torch.randn(1 << 28, device=gpu.device, dtype=torch.bfloat16)  # 0.5 GB
    out, other = torch.empty_like(rows), torch.randn_like(rows)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    held = 20  # SMs of DeepEP's exchange in its published setting
    square = Problem(GroupedShape("square", 1, 8192, 8192, 8192), "bf16")
    lean = Problem(GroupedShape("streaming", 16, 128, 8192, 8192), "bf16")  # reads 2 GB of weights
    listed = {problem: problem.listed("unit:8") for problem in (square, lean)}
    works: dict[str, tuple[int, Callable[[], object]]] = {
        "copy of 0.5 GB": (8, partial(out.copy_, rows)),
        "add of 0.5 GB": (8, partial(torch.add, rows, other, out=out)),
        f"{sms - held} programs, 8192^3": (3, partial(square.launch, listed[square], sms - held, flatten=False)),
        f"{sms - held} programs, 16 experts of 128 rows, 8192^2": (
            5,
            partial(lean.launch, listed[lean], sms - held, flatten=False),
        ),
    }
    for programs, warps in ((held, 16), (held, 32), (sms, 8)):
        paced = Paced(gpu, programs, warps)
        paces = (0.0, 5.0, 10.0, 20.0, 24.0, 37.0, 50.0) if programs == held else (2.0, 4.0, 8.0)
        for (name, (repeats, call)), giga in itertools.product(works.items(), paces):
            if programs == sms and "programs" in name:
                continue

            def row(
                name: str = name,
                repeats: int = repeats,
                call: Any = call,
                giga: float = giga,
                paced: Any = paced,
            ) -> Any:
                call()
                found: list[tuple[float, ...]] = []
                for turn in range(6):  # in turn, since the clock falls while the GPU is warm
                    alone, _ = paced.beside(call, repeats, None)
                    _, free = paced.beside(None, 1, giga)
                    both, shared = paced.beside(call, repeats, giga)
                    if turn:
                        found.append((alone, both, free, shared))
                medians = (round(statistics.median(part), 1) for part in zip(*found, strict=True))
                setting = f"{paced.programs} programs of {paced.warps} warps"
                return ("paced copy", name, setting, giga * paced.programs, tuple(medians))

            yield from attempt(f"paced {name} {giga}", row)
        del paced


def _priorities(gpu: Gpu) -> Iterator[Any]:
    """When blocks of a second stream start, while blocks of a first one wait for every SM.

    A kernel of one block ends in the second stream while the first stream's is at work; the next
    one's blocks are due then. Microseconds from there to the first, the middle and the last start.
    """
    torch = gpu.torch
    import training_kernels

    spin = training_kernels.spin
    sms = torch.cuda.get_device_properties(0).multi_processor_count

    def stamps(count: int) -> list[Any]:
        return [torch.zeros(count, dtype=torch.int64, device=gpu.device) for _ in range(2)]

    low = torch.cuda.Stream()
    high = {"high": torch.cuda.Stream(priority=-1), "equal": torch.cuda.Stream()}
    for which, blocks, warps, length, low_warps in itertools.product(
        ("high", "equal"), (20, sms), (16, 32), (0, 2, 10, 50, 200), (8,)
    ):
        low_blocks = sms * 8 * max(1, 2000 // max(1, length))

        def row(
            which: str = which,
            blocks: int = blocks,
            warps: int = warps,
            length: int = length,
            low_warps: int = low_warps,
            low_blocks: int = low_blocks,
        ) -> Any:
            ahead, many, due = stamps(1), stamps(low_blocks), stamps(blocks)
            found = []
            for turn in range(6):
                torch.cuda.synchronize()
                gate = torch.cuda.Event()
                torch.cuda._sleep(1_000_000)
                gate.record()
                high[which].wait_event(gate)
                low.wait_event(gate)
                with torch.cuda.stream(high[which]):
                    spin[(1,)](*ahead, 500_000, num_warps=1)
                    spin[(blocks,)](*due, 1_000, num_warps=warps)
                if length:
                    with torch.cuda.stream(low):
                        torch.cuda._sleep(100_000)
                        spin[(low_blocks,)](*many, 1_000 * length, num_warps=low_warps)
                torch.cuda.synchronize()
                starts = (due[0] - ahead[1]).double().sort().values / 1e3
                if turn:
                    found.append((float(starts[0]), float(starts[blocks // 2]), float(starts[-1])))
            first, middle, last = (round(statistics.median(part), 2) for part in zip(*found, strict=True))
            setting = f"{blocks} blocks of {warps} warps, {which} priority"
            name = f"blocks of {low_warps} warps and {length} us" if length else "nothing"
            return ("priority", name, setting, length, (first, middle, last))

        yield from attempt(f"priority {which} {blocks} {warps} {length}", row)


if __name__ == "__main__":
    write_tables(
        str(__doc__).splitlines()[0],
        {
            "permutation": (
                ("kernel", "rows", "experts", "topk", "width", "bytes", "block", *SPREAD),
                permutation,
            ),
            "fp8": (
                ("what", "recipe", "out", "m", "n", "k", "bytes", *SPREAD, "error"),
                fp8,
            ),
            "launches": (("call", "setting", "kernels", "order", "kernel", "time_us"), launches),
            "streams": (
                ("what", "other", "setting", "pace_GB_per_s_or_us", "quantity", "value"),
                streams,
            ),
        },
    )
