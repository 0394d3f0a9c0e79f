"""Measure the machine at hand, on one GPU or under torchrun: a log that `fit` reads.

On one GPU: products by cuBLAS, kernels that read, write and copy memory, launches, gaps between
kernels, waiting of the host. On several: all-to-all and all-reduce by NCCL, and a copy from one
GPU to another. Multicast, flags between GPUs and stores by SMs need kernels of their own
and are not measured.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from replay.errors import UserError, value_text
from replay.studies.machines.measure_output import SCHEMA

WARM_UPS, REPEATS = 5, 20
SHAPES = [(m, n, k) for n, k in ((4096, 7168), (7168, 2048), (8192, 8192)) for m in (64, 256, 1024, 4096, 8192, 16384)]
MEMORY_BYTES = [1 << power for power in (20, 24, 26, 28, 30)]
MESSAGE_BYTES = [1 << power for power in range(12, 30, 2)]
FLUSH_BYTES = 1 << 28  # more than any L2 cache
NEEDED_BYTES = 4 << 30
SECONDS = 60
MEETING = ("MASTER_ADDR", "MASTER_PORT")  # where processes find each other

Sample = dict[str, Any]


class Process(NamedTuple):
    """A process of a measurement: its rank, its rank on its machine (both from 0), and the number of all."""

    rank: int
    local: int
    ranks: int


def process(environment: Mapping[str, str]) -> Process:
    """Rank of this process by what torchrun sets; one alone where it sets nothing.

    Raises
    ------
    UserError
        If a variable is no whole number, the rank is not below the number of processes, or they run
        on several machines.
    """
    rank, local = (_number(environment, key, 0, 0) for key in ("RANK", "LOCAL_RANK"))
    ranks = _number(environment, "WORLD_SIZE", 1, 1)
    if rank >= ranks:
        raise UserError(f"RANK must be less than WORLD_SIZE, {ranks}, and is {rank}")
    here = _number(environment, "LOCAL_WORLD_SIZE", ranks, 1)
    if here != ranks:
        message = f"hardware measure is of one machine; this one has {here} of {ranks} processes"
        raise UserError(f"{message}: torchrun --nnodes 1")
    return Process(rank, local, ranks)


def _number(environment: Mapping[str, str], key: str, default: int, least: int) -> int:
    text = environment.get(key, str(default))
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        message = f"{key} must be a whole number, at least {least}, not {value_text(text)}"
        raise UserError(f"{message}; torchrun sets it, and without torchrun it is not set")
    return found


def needs(environment: Mapping[str, str]) -> str:
    """Needs and duration of the command, in a line.

    Parameters
    ----------
    environment
        With what torchrun sets, such as ``WORLD_SIZE``.
    """
    ranks = process(environment).ranks
    several = f"{ranks} NVIDIA GPUs" if ranks > 1 else "one NVIDIA GPU"
    alone = "" if ranks > 1 else " (several: torchrun --nproc-per-node N -m replay.cli hardware measure)"
    return (
        f"measuring takes about {SECONDS} s and needs PyTorch with CUDA and {several} that nobody "
        f"else uses, each with {NEEDED_BYTES >> 30} GB free{alone}"
    )


def prepare(environment: Mapping[str, str]) -> Any:
    """Import torch and choose this process's GPU.

    Raises
    ------
    UserError
        If torch, CUDA, the GPU or its memory is missing.
    """
    try:
        import torch
    except ImportError:
        message = "hardware measure needs PyTorch: pip install 'moereplay[capture]'"
        raise UserError(message) from None
    if not torch.cuda.is_available():
        raise UserError("hardware measure needs an NVIDIA GPU; torch sees none")
    if torch.version.cuda is None:
        raise UserError("hardware measure needs an NVIDIA GPU; this torch is built for others")
    if process(environment).ranks > 1:
        _check_processes(torch, environment)
    local, seen = process(environment).local, torch.cuda.device_count()
    if local >= seen:
        raise UserError(f"hardware measure: process {local} has no GPU; torch sees {seen}")
    torch.cuda.set_device(local)
    free = torch.cuda.mem_get_info()[0]
    if free < NEEDED_BYTES:
        message = f"hardware measure needs {NEEDED_BYTES / 1e9:.1f} GB of GPU memory"
        raise UserError(f"{message}; {free / 1e9:.1f} GB of GPU {local} are free")
    return torch


def _check_processes(torch: Any, environment: Mapping[str, str]) -> None:
    """Refuse several processes that cannot find each other."""
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        raise UserError("hardware measure on several GPUs needs PyTorch with NCCL; this has none")
    missing = [key for key in MEETING if not environment.get(key)]
    if missing:
        message = f"WORLD_SIZE is set and {' and '.join(missing)} is not"
        raise UserError(f"{message}: start several processes by torchrun")


def measure(torch: Any, environment: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Measure, and return the document; None on other ranks than the first.

    Parameters
    ----------
    torch
        The module, as `prepare` returns it.
    environment
        As for `needs`.
    """
    environment = os.environ if environment is None else environment
    try:
        return _measure(torch, process(environment))
    except (RuntimeError, ValueError) as error:  # CUDA's and NCCL's are of the former
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"hardware measure: torch says {value_text(lines[0])}") from None


def _measure(torch: Any, of: Process) -> dict[str, Any] | None:
    samples: list[Sample] = []
    if of.rank == 0:
        samples = [*_products(torch), *_memory(torch), *_launches(torch)]
    if of.ranks > 1:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", of.local))
        samples += _between_gpus(torch, of.ranks)
        torch.distributed.destroy_process_group()
    if of.rank:
        return None
    if of.ranks > 1:
        samples += _copies(torch)
    device = torch.cuda.get_device_name()
    about = f"{of.ranks} x {device}, CUDA {torch.version.cuda}, torch {torch.__version__}"
    return {"schema": SCHEMA, "measured": about, "samples": samples}


def _time(torch: Any, call: Callable[[], object]) -> float:
    """Median seconds of a call on the GPU whose data is not in the L2 cache."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(WARM_UPS):
        call()
    times: list[float] = []
    for _ in range(REPEATS):
        flush.zero_()
        times.append(_between_events(torch, call))
    return statistics.median(times)


def _between_events(torch: Any, call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _products(torch: Any) -> list[Sample]:
    found: list[Sample] = []
    for m, n, k in SHAPES:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        seconds = _time(torch, partial(torch.mm, a, b.t()))
        found.append({"what": "gemm-bf16", "m": m, "n": n, "k": k, "seconds": seconds})
    return found


def _memory(torch: Any) -> list[Sample]:
    found: list[Sample] = []
    for size in MEMORY_BYTES:
        source = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
        target = torch.empty_like(source)
        for read, written, call in (
            (size, size, partial(target.copy_, source)),
            (size, 0, source.sum),
            (0, size, target.zero_),
        ):
            seconds = _time(torch, call)
            found.append({"what": "memory", "read": read, "written": written, "seconds": seconds})
    return found


def _launches(torch: Any) -> list[Sample]:
    tiny, found = torch.zeros(1, device="cuda"), list[Sample]()
    for kernels in (10, 100, 1000):

        def row(kernels: int = kernels) -> None:
            for _ in range(kernels):
                tiny.add_(1)

        row()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            row()
        seconds = _time(torch, graph.replay)
        found.append({"what": "kernels-graph", "kernels": kernels, "seconds": seconds})
        # Long kernels first, so that the launches are ahead of the GPU.
        ahead = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
        for _ in range(20 + kernels // 50):
            ahead.zero_()
        seconds = _between_events(torch, row)
        found.append({"what": "kernels-stream", "kernels": kernels, "seconds": seconds})
    for _ in range(REPEATS):
        for what, call in (("launch", partial(tiny.add_, 1)), ("host-sync", tiny.item)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            found.append({"what": what, "seconds": time.perf_counter() - start})
    return found


def _between_gpus(torch: Any, ranks: int) -> list[Sample]:
    """Collectives as nccl-tests times them, call behind call."""
    found: list[Sample] = []
    for size in MESSAGE_BYTES:
        each = size // 2 // ranks * ranks
        sent = torch.zeros(each, dtype=torch.bfloat16, device="cuda")
        got = torch.empty_like(sent)
        for what, call in (
            ("all-to-all", partial(torch.distributed.all_to_all_single, got, sent)),
            ("all-reduce", partial(torch.distributed.all_reduce, sent)),
        ):
            for _ in range(WARM_UPS):
                call()
            torch.distributed.barrier()

            def several(call: Callable[[], object] = call) -> None:
                for _ in range(REPEATS):
                    call()

            seconds = _between_events(torch, several) / REPEATS
            found.append({"what": what, "bytes": 2 * each, "gpus": ranks, "seconds": seconds})
    return found


def _copies(torch: Any) -> list[Sample]:
    """Copies from this GPU to another one, where they pass no host.

    The other processes are through by then: a kernel of theirs that waits for this process, such as
    a barrier's, would share the other GPU with the copy's events and hold it up by time slices.
    """
    here = torch.cuda.current_device()
    peers = [one for one in range(torch.cuda.device_count()) if one != here]
    peers = [one for one in peers if torch.cuda.can_device_access_peer(here, one)]
    found: list[Sample] = []
    for size in MESSAGE_BYTES if peers else ():
        sent = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
        far = torch.empty_like(sent, device=f"cuda:{peers[0]}")
        seconds = _time(torch, partial(far.copy_, sent))
        found.append({"what": "pair-copy", "bytes": size, "seconds": seconds})
    return found
