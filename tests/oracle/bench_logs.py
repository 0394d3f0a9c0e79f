"""Output of benchmarks as their sources print it, made from times; the formats are in readers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Times = Sequence[tuple[int, float]]
"""Bytes and microseconds."""


def _width(value: float, width: int) -> str:
    """As nccl-tests' getFloatStr: as many decimals as there is room for."""
    for digits in (2, 1, 0):
        if len(text := f"{value:{width}.{digits}f}") <= width:
            return text
    return f"{value:{width}.0e}"


def nccl(program: str, num_gpus: int, times: Times, *, named: bool = True, graph: int = 0) -> str:
    """Text of nccl-tests."""
    lines = [f"# Collective test starting: {program}"] if named else []
    lines += [
        (
            "# nThread 1 nGpus 8 minBytes 512 maxBytes 8589934592 step: 2(factor) warmup iters: 5 "
            f"iters: 20 agg iters: 1 validation: 1 graph: {graph}"
        ),
        "#",
        "# Using devices",
        *(
            f"#  Rank {one:2d} Group  0 Pid {77000 + one:6d} on {'node-1':>10s} device {one:2d} "
            "[0000:1b:00] NVIDIA H100 80GB HBM3"
            for one in range(num_gpus)
        ),
        "#",
        (
            f"# {'':>10s}  {'':>12s}  {'':>8s}  {'':>6s}  {'':>6s}           out-of-place"
            "                       in-place          "
        ),
    ]
    for size, time in times:
        rate = size / time / 1e3
        body = f"  {_width(time, 7):>7s}  {_width(rate, 6):>6s}  {_width(rate, 6):>6s}  {0.0:6g}"
        lines.append(f"{size:12d}  {size // 4:12d}  {'float':>8s}  {'sum':>6s}  {'-1':>6s}{body * 2}")
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0 ", "#", ""]
    return "\n".join(lines)


def nccl_json(program: str, num_gpus: int, times: Times) -> str:
    """Document of nccl-tests."""
    config = {"nthreads": 1, "ngpus": 1, "aggregated_iterations": 1, "graph": 0}
    config |= {"blocking_collectives": False, "devices": [{"rank": r} for r in range(num_gpus)]}
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": time, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0},
        }
        for size, time in times
    ]
    return json.dumps(
        {
            "version": 1,
            "args": [f"./build/{program}", "-b", "8"],
            "env": ["HOME=/root"],
            "nccl_version": 22902,
            "config": config,
            "results": results,
        }
    )


def _matrix(values: Sequence[Sequence[float | None]]) -> list[str]:
    head = "  " + "".join(f"{at:10d}" for at in range(len(values[0])))
    cells = [["N/A" if one is None else f"{one:.2f}" for one in row] for row in values]
    return [head, *(f"{at:2d}" + "".join(f"{one:>10s}" for one in row) for at, row in enumerate(cells))]


def pairs(rate: float, num_gpus: int = 8) -> list[list[float | None]]:
    """A rate between every two GPUs."""
    every = range(num_gpus)
    return [[None if a == b else rate for b in every] for a in every]


def nvbandwidth(tests: Mapping[str, Sequence[Sequence[Sequence[float | None]]]]) -> str:
    """Text of nvbandwidth: the matrices of each test."""
    lines = ["nvbandwidth Version: v0.8", "Built from Git version: ", ""]
    for name, matrices in tests.items():
        lines.append(f"Running {name}.")
        for matrix in matrices:
            lines += ["memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)", *_matrix(matrix), ""]
        lines += [f"SUM {name} 1.00", ""]
    return "\n".join([*lines, "NOTE: The reported results may not reflect the full capabilities"])


def nvbandwidth_json(tests: Mapping[str, Sequence[Sequence[Sequence[float | None]]]]) -> str:
    """Document of nvbandwidth, which puts a test's matrices under one another."""
    cases = [
        {
            "name": name,
            "status": "Passed",
            "bandwidth_matrix": [
                ["N/A" if one is None else f"{one:.6g}" for one in row] for matrix in matrices for row in matrix
            ],
        }
        for name, matrices in tests.items()
    ]
    return json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": cases}})


def intranode(
    tokens: int,
    hidden: int,
    topk: int,
    sms: int,
    copies: float,
    dispatch: float,
    combine: float,
    *,
    has_times: bool = True,
) -> str:
    """Text of DeepEP V1's test of one node; `copies`: GPUs that a token reaches."""
    nbytes = copies * tokens * hidden * 2
    lines = [
        f"[config] num_tokens={tokens}, hidden={hidden}, num_topk={topk}",
        "[layout] Kernel performance: 0.052 ms",
        "",
        "[testing] Running with BF16, without top-k (async=False, previous=False) ... passed",
        "",
    ]
    for name, share, time, between in (
        ("dispatch (FP8)", (1 + 4 / 128) / 2, dispatch, ","),
        ("dispatch (BF16)", 1, 1.7 * dispatch, ","),
        ("combine", 1, combine, ":"),
    ):
        rate = f"{nbytes * share / time / 1e3:.2f} GB/s (NVL)"
        end = f", {1.1 * time:.2f} us" if has_times else " "
        lines.append(f"[tuning] SMs {sms}, NVL chunk 4: {rate}{end}")
        end = f", t: {time:.2f} us" if has_times else ""
        lines += [f"[tuning] Best {name}: SMs {sms}, NVL chunk 6{between} {rate}{end}", ""]
    return "\n".join(lines)


def internode(
    tokens: int,
    hidden: int,
    topk: int,
    sms: int,
    copies: float,
    times: Mapping[str, tuple[float, float]],
) -> str:
    """Text of DeepEP V1's test between nodes: (notify, transmit) of each kernel."""
    lines = [f"[config] num_tokens={tokens}, hidden={hidden}, num_topk_groups=2, num_topk={topk}"]
    for name, share, between in (("dispatch (FP8)", (1 + 4 / 128) / 2, ":"), ("combine", 1, ",")):
        notify, time = times[name.partition(" ")[0]]
        rate = copies * tokens * hidden * 2 * share / time / 1e3
        digits = 0 if between == ":" else 2
        lines.append(
            f"[tuning] Best {name}: SMs {sms}, NVL chunk 16, RDMA chunk 16{between} "
            f"{notify:.{digits}f} + {time:.{digits}f} us, {rate / 3:.2f} GB/s (RDMA), "
            f"{rate:.2f} GB/s (NVL)"
        )
    return "\n".join([*lines, ""])


def low_latency(tokens: int, hidden: int, topk: int, ranks: int, dispatch: float, combine: float) -> str:
    """Text of DeepEP V1's low-latency test; ranks differ a little, and their mean is the time."""
    sent, back = tokens * topk * (hidden + hidden / 128 * 4 + 16), tokens * topk * hidden * 2
    lines = ["Allocating buffer size: 2116.290944 MB ..."]
    for rank in range(ranks):
        off = 1 + 0.01 * (rank - (ranks - 1) / 2)
        one, other = dispatch * off, combine * off
        lines.append(
            f"[rank {rank}] Dispatch bandwidth: {sent / one / 1e3:.2f} GB/s, avg_t={one:.2f} us | "
            f"Combine bandwidth: {back / other / 1e3:.2f} GB/s, avg_t={other:.2f} us"
        )
        lines.append(f"[rank {rank}] Dispatch send/recv time: 9.10 + 6.20 us | Combine send/recv time: 10.10 + 9.20 us")
    return "\n".join([*lines, ""])


def elastic(
    tokens: int,
    hidden: int,
    topk: int,
    experts: int,
    ranks: int,
    sms: int,
    dispatch: tuple[float, int],
    combine: tuple[float, int],
) -> str:
    """Text of DeepEP V2's test: microseconds and bytes of a rank."""
    lines = [
        "Config:",
        f" > Ranks: 1 x {ranks}",
        f" > Experts: {topk}/{experts}",
        f" > Tokens: {tokens} (max: {tokens}), hidden: {hidden}",
        f" > #SM: {sms}, #QPs: 17/17",
        "",
        "Running all test cases:",
        (
            " > Testing with do_handle_copy=1, expert_alignment=128, use_fp8_dispatch=1, num_bias=0, "
            "with_previous_event=0, async_with_compute_stream=0, allocate_on_comm_stream=0 ..."
        ),
    ]
    for sign, name, (time, nbytes), more in (
        ("*", "dispatch", dispatch, "copy"),
        ("-", "expanded dispatch", dispatch, "copy"),
        ("#", "cached dispatch", dispatch, "copy"),
        ("@", "combine", combine, "reduce"),
        ("+", "reduced combine", combine, "reduce"),
    ):
        lines += [
            f"   {sign} EP: {rank:3}/{ranks} | {name}: 0 GB/s (SO), {nbytes / time / 1e3:.0f} GB/s "
            f"(SU), {time:.3f} us, {nbytes} bytes | {more}: 1234 GB/s, 9.876 us"
            for rank in range(ranks)
        ]
    return "\n".join([*lines, ""])


def deepgemm(products: Iterable[tuple[str, int, int, int, int, float]]) -> str:
    """Text of DeepGEMM's tests: type, groups, sizes and microseconds; cuBLAS's for BF16."""
    lines = ["Library path:", " > ['/deep_gemm']", "", "Testing GEMM:"]
    for dtype, groups, m, n, k, time in products:
        rate = f"{2 * m * n * k / time / 1e6:4.0f} TFLOPS | {1000:4.0f} GB/s"
        if groups > 1:
            lines.append(
                f" > Perf (num_groups={groups}, m={m:5}, n={n:6}, k={k:5}, 1D2D, layout=NT, "
                f"psum=False, zero_pad=False): {time:4.0f} us | {rate}"
            )
        else:
            kind = "1D2D, " if dtype == "fp8" else ""
            ours, ratio = (time, 1.09) if dtype == "fp8" else (time / 1.25, 1.25)
            lines.append(
                f" > Perf (m={m:6}, n={n:6}, k={k:6}, {kind}layout=NT, BF16, acc=0): "
                f"{ours:7.1f} us | {rate} | {ratio:.2f}x cuBLAS"
            )
    return "\n".join([*lines, "Average speedup over cuBLASLt: 1.100x", ""])


def cublas(products: Iterable[tuple[int, int, int, float]], types: str = "-P=tst") -> str:
    """Text of cublasMatmulBench under ``sh -x``; a row's sizes are the bench's n, m and k."""
    lines: list[str] = []
    for m, n, k, time in products:
        gflops = 2 * m * n * k / time / 1e3
        lines += [
            f"+ ./cublasMatmulBench {types} -m={n} -n={m} -k={k} -T=1000 -ta=1 -B=0",
            f"#### args: ta=T tb=N m={n} n={m} k={k}  alpha = 1 beta= 0",
            f"#### args: lda={k} ldb={k} ldc={n} ldd={n} loop=1000",
            f"^^^^ CUDA : elapsed = {time / 1e3:g} sec,  Gflops = {gflops:.3f} ",
            "testing cublasLt pass",
        ]
    return "\n".join([*lines, ""])


def collectivex(case: Mapping[str, Any], times: Iterable[tuple[int, float, float]]) -> str:
    """Document of CollectiveX: tokens of a rank, floors of dispatch and combine."""

    def block(time: float) -> dict[str, Any]:
        return {"availability": "measured", "percentiles_us": {"p50": time, "p99": 2 * time}}

    rows = [
        {
            "tokens_per_rank": tokens,
            "components": {"dispatch": block(3 * one), "combine": block(3 * other)},
            "chain_floor_us": {"dispatch": block(one), "combine": block(other)},
        }
        for tokens, one, other in times
    ]
    given = {
        "backend": "deepep-v2",
        "mode": "low-latency",
        "routing": "uniform",
        "nodes": 1,
        "precision": "fp8",
        "scale_out_transport": None,
        **case,
    }
    return json.dumps(
        {
            "version": 1,
            "record_type": "case-attempt",
            "measurement": {"rows": rows},
            "identity": {"case_factors": {"case": given}},
            "outcome": {"status": "success"},
        }
    )
