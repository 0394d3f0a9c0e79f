"""Measure the host time of collectives of torch.distributed over NCCL, from ranks on one GPU.

Usage: python scripts/nccl_calls.py --out FILE.csv [--ranks 8] [--limit SECONDS]

NCCL refuses two ranks on one GPU of one host, so each rank calls itself another host: they meet
over sockets of the loopback interface. Only the host time of calls is right then, of some in a row
behind a synchronisation, as the first rank sees it; what the GPU does meanwhile is not. A world of
one rank comes first, then groups of 2, 4, ... of the ranks. All is over after the limit; what was
measured until then is kept. Needs torch and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_times import SPREAD, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ALONE = (50, 9)  # calls in a row and turns of a world of one rank
TOGETHER = (4, 3)  # ranks of one GPU run by turns of milliseconds: a ring's steps take long
ROWS, WIDTH = 16, 64  # of each pair of ranks: what takes no time
SOCKETS = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "OMP_NUM_THREADS": "1",
}


def calls(torch: Any, group: Any, members: list[int]) -> Iterator[tuple[str, str, Any]]:
    """Calls by name and setting."""
    import torch.distributed as dist

    kind = {"device": "cuda", "dtype": torch.bfloat16}
    count = len(members)
    whole, other = (torch.zeros(count * ROWS, WIDTH, **kind) for _ in range(2))
    part, splits = torch.zeros(ROWS, WIDTH, **kind), [ROWS] * count
    me = dist.get_rank()
    peers = [rank for rank in members if rank != me] or [me]

    def exchanged(waits: bool) -> None:
        ops = [dist.P2POp(dist.isend, part, rank, group) for rank in peers]
        ops += [dist.P2POp(dist.irecv, other[:ROWS], rank, group) for rank in peers]
        for work in dist.batch_isend_irecv(ops):
            if waits:
                work.wait()

    def coalesced(async_op: bool) -> Any:
        with dist._coalescing_manager(group, part.device, async_ops=async_op) as manager:
            for _ in range(4):
                dist.reduce_scatter_tensor(part, whole, group=group)
        return manager if async_op else None

    operations: dict[str, Callable[..., Any]] = {
        "all_to_all_single with splits": partial(dist.all_to_all_single, other, whole, splits, splits, group=group),
        "all_gather_into_tensor": partial(dist.all_gather_into_tensor, whole, part, group=group),
        "reduce_scatter_tensor": partial(dist.reduce_scatter_tensor, part, whole, group=group),
        "all_reduce": partial(dist.all_reduce, part, group=group),
        "4 reduce_scatter_tensor coalesced": coalesced,
        "all_to_all_single": partial(dist.all_to_all_single, other, whole, group=group),
    }
    for name, operation in operations.items():
        yield name, "async_op=False", partial(operation, async_op=False)
        if name.startswith("all_to_all_single with"):  # the dispatchers' two first
            yield f"batch_isend_irecv of {len(peers)} peers", "wait", partial(exchanged, True)
        yield name, "async_op=True and wait", partial(_waited, operation)
    yield f"batch_isend_irecv of {len(peers)} peers", "no wait", partial(exchanged, False)


def _waited(operation: Callable[..., Any]) -> None:
    operation(async_op=True).wait()


def work(rank: int, ranks: int, meeting: str) -> None:
    """Be one rank; the first prints its rows."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    sizes = [2**power for power in range(1, ranks.bit_length()) if 2**power < ranks]
    groups = [(list(range(size)), dist.new_group(list(range(size)))) for size in sizes]
    for members, group in [*groups, (list(range(ranks)), dist.group.WORLD)]:
        if rank not in members:
            continue
        turns = ALONE if len(members) == 1 else TOGETHER
        for name, setting, call in calls(torch, group, members):
            row: tuple[object, ...]
            try:
                row = (name, f"{len(members)} ranks, {setting}", *_host_us(torch, call, *turns))
            except Exception as error:
                row = ("failed", name, setting, repr(error)[:300])
            if rank == 0:
                print("\t".join(map(str, row)), flush=True)
    os._exit(0)  # what is behind the last row may wait for ranks that have gone


def _host_us(torch: Any, call: Callable[[], object], count: int, turns: int) -> tuple[float, float, float]:
    times = []
    for turn in range(turns + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        if turn:
            times.append(1e6 * (time.perf_counter() - begin) / count)
    torch.cuda.synchronize()
    return spread(times)


def rows(ranks: int, limit: float) -> Iterator[list[str]]:
    """Rows of the first of some ranks, each a process; all are ended behind them or the limit."""
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "rows"
        environment = {**os.environ, **SOCKETS}
        started = []
        for rank in range(ranks):
            command = [sys.executable, __file__, "--work", str(rank), "--ranks", str(ranks)]
            command += ["--out", str(Path(folder) / "meeting")]
            with (printed if rank == 0 else Path(os.devnull)).open("w") as out:
                started.append(
                    subprocess.Popen(
                        command,
                        stdout=out,
                        stderr=None if rank == 0 else subprocess.DEVNULL,
                        env={**environment, "NCCL_HOSTID": f"host{rank}"},
                    )
                )
        try:
            begun = time.monotonic()
            read = 0
            while True:
                ended = started[0].poll() is not None
                lines = printed.read_text(encoding="utf-8").split("\n")[:-1]  # whole ones
                yield from (line.split("\t") for line in lines[read:])
                read = len(lines)
                if ended:
                    break
                if time.monotonic() - begun > limit:
                    print("out of time with", ranks, "ranks", flush=True)
                    break
                time.sleep(0.2)
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.wait()


def main() -> None:
    """Measure worlds of one rank and of more."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds of each world")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work, given.ranks, str(given.out))
        return
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(1))  # ends the ranks too
    with given.out.open("w", encoding="utf-8", newline="") as file:
        write = csv.writer(file).writerow
        write(("what", "setting", *SPREAD))
        for ranks in dict.fromkeys((1, given.ranks)):
            for row in rows(ranks, given.limit):
                if row[0] == "failed" or len(row) != 2 + len(SPREAD):
                    print(*row, flush=True)
                    continue
                write(row)
                file.flush()


if __name__ == "__main__":
    main()
