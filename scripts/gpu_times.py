"""Times on a GPU and on the host in front of it, for the scripts that measure them."""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WARM_UPS, REPEATS = 3, 11
HOST_CALLS, HOST_TURNS = 100, 15
L2_FLUSH_BYTES = 1 << 29  # also gives the host time to launch what is timed
Row = tuple[str | float | int, ...]
SPREAD = ("time_us", "low_us", "high_us")


class Gpu:
    """PyTorch, and times on its GPU.

    Parameters
    ----------
    sources
        Folder of another project's Python files that a script measures.
    device
        "cpu" if a script that can is to check itself without a GPU.
    """

    def __init__(self, sources: Path | None = None, device: str = "cuda") -> None:
        import torch

        self.torch, self.sources, self.device = torch, sources, device
        self.lead_cycles = 0  # for which the GPU waits before a call that takes the host long
        if device == "cuda":
            self._flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
            self._flush.zero_()

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def us(self, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> tuple[float, float, float]:
        """Median, least and largest microseconds of a call whose data is not in the L2 cache.

        Parameters
        ----------
        call
            What is timed.
        before
            What is run before each call, before the caches are emptied.
        """
        torch = self.torch
        for _ in range(WARM_UPS):
            before()
            call()
        events = []
        for _ in range(REPEATS):
            before()
            if self.lead_cycles:
                torch.cuda._sleep(self.lead_cycles)
            self._flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return spread([1e3 * begin.elapsed_time(end) for begin, end in events])

    def host_us(self, call: Callable[[], object], calls: int = HOST_CALLS) -> Row:
        """Host microseconds of one of some calls in a row, with an idle GPU before them."""
        times = []
        for turn in range(HOST_TURNS + 2):
            self.wait()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            if turn > 1:
                times.append(1e6 * (time.perf_counter() - begin) / calls)
        self.wait()
        return spread(times)


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, least and largest, to a nanosecond."""
    found = statistics.median(values), min(values), max(values)
    return tuple(round(value, 3) for value in found)  # type: ignore[return-value]


def attempt(what: str, found: Callable[[], Row]) -> Iterator[Row]:
    """One row, or none and a line that says what failed."""
    try:
        yield found()
    except Exception as error:  # what comes behind it is measured all the same
        print("failed:", what, repr(error)[:300], flush=True)


def print_system(gpu: Gpu) -> None:
    """Print what the times belong to: processor, GPU and its clocks, versions."""
    torch = gpu.torch
    processor = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith(("model name", "model\t", "cpu MHz"))
    ]
    print("processor:", os.cpu_count(), "cores,", *processor[:3], flush=True)
    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        print("GPU:", subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    except OSError as error:
        name = torch.cuda.get_device_name() if gpu.device == "cuda" else "none"
        print("GPU:", name, repr(error))
    print("torch", torch.__version__, "CUDA", torch.version.cuda, "Python", sys.version.split()[0])


def write_tables(
    about: str,
    tables: Mapping[str, tuple[tuple[str, ...], Callable[[Gpu], Iterator[Row]]]],
) -> None:
    """Measure the table that the command line names; each row is written as soon as it is there.

    Parameters
    ----------
    about
        What the script does.
    tables
        Name to columns and what makes the rows.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("what", choices=tables)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--sources", type=Path, help="folder of another project's files")
    parser.add_argument("--cpu", action="store_true", help="check the program without a GPU")
    given = parser.parse_args()
    columns, measured = tables[given.what]
    begun, count = time.monotonic(), 0
    gpu = Gpu(given.sources, "cpu" if given.cpu else "cuda")
    with given.out.open("w", encoding="utf-8", newline="") as file:
        write = csv.writer(file).writerow
        write(columns)
        for row in measured(gpu):
            write(row)
            file.flush()
            count += 1
            if time.monotonic() - begun > given.budget:
                print("out of time behind", row, flush=True)
                break
    print(given.what, count, "rows in", f"{time.monotonic() - begun:.0f} s", flush=True)
