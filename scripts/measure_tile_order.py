"""Measure what the order of a grouped GEMM's tiles reads from memory, on one GPU.

A persistent kernel (Triton) takes its tiles from a list, so that the order is data: one program on
each SM, of which program p of P takes the tiles p, p + P, p + 2 P, ... of the list.

Usage: python scripts/measure_tile_order.py time --out FILE.csv [--budget SECONDS]
       ncu --csv --profile-from-start off --clock-control none --metrics METRICS \
           python scripts/measure_tile_order.py once --out LAUNCHES.csv
       python scripts/measure_tile_order.py join TIMES.csv LAUNCHES.csv NCU.csv --out TABLE.csv
       python scripts/measure_tile_order.py compare TABLE.csv --system dgx-h100 \
           [--short] [--set KEY=VALUE]...
    time     time every order of every shape
    once     launch each once between cudaProfilerStart and cudaProfilerStop, and say which
    join     put the bytes that the profiler counted beside the times
    compare  print what the replay's model predicts for the same lists beside a system's rows, or
             (--short) predicted by measured for each order; --set changes a value of the system

Orders
    unit:G      expert after expert; a unit is up to G consecutive row tiles of one expert, and goes
                through all columns, in each from its first row tile to its last. Launched kernels
                do so with 8 or 16.
    unit:all    a unit is an expert.
    arrival:G   the same units, in a random order of experts and units: that in which they are ready

METRICS are the keys of `METRICS`, with commas between them. Measuring needs torch and triton and an
NVIDIA GPU of Hopper's kind; `join` and `compare` need none of these. What `compare` prints of a row
`moereplay validate tile_order tile_order_bytes` sums up.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from replay.studies.validate.tile_lists import (
    BLOCK_M,
    ELEMENT_BYTES,
    ORDERS,
    SHAPES,
    GroupedShape,
    distinct_orders,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hwmodel import System
    from replay.studies.validate.tile_order import ListReplay

WARM_UPS, REPEATS = 2, 11
L2_FLUSH_BYTES = 1 << 29  # also gives the host time to launch
LARGEST_ERROR = 0.02  # of results in BF16
MARKER = "spin_kernel"
SECTOR_BYTES = 32
METRICS = {
    "dram__bytes_read.sum": "read_bytes",
    "dram__bytes_write.sum": "written_bytes",
    "lts__t_sectors_op_read.sum": "l2_read_sectors",
}
SETTING = ("model", "gemm_dtype", "experts", "rows", "k", "n", "tile", "order")
TIMES = ("time_us", "low_us", "high_us")
COUNTED = ("read_bytes", "written_bytes", "l2_read_bytes")


# ---- logs and predictions (no GPU needed; tested) -----------------------------------------------


def profiled_kernels(lines: Iterable[str]) -> list[dict[str, float | str]]:
    """What Nsight Compute printed for each launch (``ncu --csv``), in the order of launches.

    Each has ``kernel`` and, under the names of `METRICS`, values in bytes, sectors and percent.
    """
    text = [line for line in lines if line.startswith('"')]
    found: dict[str, dict[str, float | str]] = {}
    for row in csv.DictReader(text):
        name = METRICS.get(row["Metric Name"])
        if name is not None:
            of_launch = found.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
            value = row["Metric Value"].replace(",", "")
            of_launch[name] = float(value) * unit_factor(row["Metric Unit"])
    return [found[key] for key in sorted(found, key=int)]


def unit_factor(unit: str) -> float:
    """Factor from a unit of Nsight Compute's to bytes, or to what is counted.

    Raises
    ------
    ValueError
        If the unit is unknown.
    """
    prefixes = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    if unit in ("", "%", "sector"):
        return 1.0
    if unit.lower().endswith("byte") and unit[:-4].upper() in prefixes:
        return prefixes[unit[:-4].upper()]
    message = f"unit {unit!r} of Nsight Compute is unknown"
    raise ValueError(message)


# ---- measuring ----------------------------------------------------------------------------------


def timed(torch: Any, calls: dict[str, Any], flush: Any) -> dict[str, list[float]]:
    """Seconds of calls on the GPU whose data is not in the L2 cache, by name.

    All calls take turns, so that a clock that falls while the GPU gets warm falls for all.
    """
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    events = []
    for _ in range(REPEATS):
        for name, call in calls.items():
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            events.append((name, begin, end))
    torch.cuda.synchronize()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for name, begin, end in events:
        found[name].append(begin.elapsed_time(end) / 1e3)
    return found


def faster_loops(problem: Any, programs: int, flush: Any) -> bool:
    """Whether the kernel is faster with both of its loops pipelined as one, and right."""
    import torch
    from tile_problem import errors

    listed, times = problem.listed("unit:8"), {}
    for flatten in (True, False):
        problem.results.fill_(torch.nan)

        def call(flatten: bool = flatten) -> None:
            problem.launch(listed, programs, flatten=flatten)

        try:
            seconds = statistics.median(timed(torch, {"": call}, flush)[""])
            wrong = errors(problem)
            print("flatten", flatten, f"{1e6 * seconds:.1f} us, error {wrong:.5f}", flush=True)
            if wrong < LARGEST_ERROR:
                times[flatten] = seconds
        except Exception as error:
            print("failed: flatten", flatten, repr(error)[:300], flush=True)
    return min(times, key=lambda way: times[way])


def setting(shape: GroupedShape, dtype: str, order: str) -> list[str | int]:
    """Values of the columns `SETTING`."""
    tile = f"{BLOCK_M}x{shape.block_n}"
    return [shape.model, dtype, shape.experts, shape.rows, shape.k, shape.n, tile, order]


def measure(out: Path, *, once: bool, budget: float, block_n: int) -> None:
    """Time every case, or launch each once under a profiler; rows are written one by one."""
    import torch
    from tile_problem import Problem, errors

    begun = time.monotonic()
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    columns = SETTING if once else (*SETTING, *TIMES, "error")
    with out.open("w", encoding="utf-8", newline="") as file:
        write = csv.writer(file).writerow
        write(columns)
        print(torch.cuda.get_device_name(), torch.__version__, flush=True)
        flatten = None
        for of_model, dtype in itertools.product(SHAPES, ELEMENT_BYTES):
            shape = replace(of_model, block_n=block_n)
            try:
                problem = Problem(shape, dtype)
            except Exception as error:  # what other shapes show is kept
                print("failed:", shape, dtype, repr(error)[:300], flush=True)
                continue
            if flatten is None:
                flatten = faster_loops(problem, programs, flush)
                print("loops flattened:", flatten, flush=True)
            orders = distinct_orders(shape)
            calls = {
                order: partial(problem.launch, problem.listed(order), programs, flatten=flatten) for order in orders
            } | problem.by_library()
            wrong: dict[str, Any] = {}
            for name, call in list(calls.items()):
                if time.monotonic() - begun > budget:
                    print("out of time at", shape, dtype, name, flush=True)
                    return
                try:
                    problem.results.fill_(torch.nan)
                    call()  # compiled, and chosen by the library
                    wrong[name] = f"{errors(problem):.5f}" if name in orders else ""
                    if once:
                        torch.cuda.synchronize()
                        torch.cuda.profiler.start()
                        torch.cuda._sleep(1)  # its kernel, `MARKER`, parts the launches in the log
                        call()
                        torch.cuda.synchronize()
                        torch.cuda.profiler.stop()
                        write(setting(shape, dtype, name))
                        file.flush()
                except Exception as error:  # what other calls show is kept
                    print("failed:", shape, dtype, name, repr(error)[:300], flush=True)
                    del calls[name]
            if not once:
                for name, seconds in timed(torch, calls, flush).items():
                    times = [1e6 * value for value in seconds]
                    row = [statistics.median(times), min(times), max(times)]
                    us = [f"{value:.1f}" for value in row]
                    write([*setting(shape, dtype, name), *us, wrong[name]])
                file.flush()
            del problem, calls
    print(f"done in {time.monotonic() - begun:.0f} s", flush=True)


# ---- tables -------------------------------------------------------------------------------------


def joined(
    times: Sequence[Mapping[str, str]],
    launches: Sequence[Mapping[str, str]],
    kernels: Sequence[Mapping[str, float | str]],
) -> list[dict[str, str | int]]:
    """Rows of times with the bytes of their launches: columns `SETTING`, `TIMES` and `COUNTED`.

    A launch's kernels stand behind a `MARKER` of their own, and what they moved is added up. Rows
    whose launch was not profiled are left out.

    Raises
    ------
    ValueError
        If the log has another number of markers than there were launches.
    """
    groups: list[list[Mapping[str, float | str]]] = []
    for kernel in kernels:
        if MARKER in str(kernel["kernel"]):
            groups.append([])
        elif groups:
            groups[-1].append(kernel)
    if len(groups) != len(launches):
        message = f"{len(launches)} launches, but {len(groups)} markers in the profiler's log"
        raise ValueError(message)

    def key(row: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(row[column] for column in SETTING)

    moved = {key(launch): group for launch, group in zip(launches, groups, strict=True)}
    found: list[dict[str, str | int]] = []
    for row in times:
        group = moved.get(key(row), [])
        if group:
            sums = {name: sum(float(one[name]) for one in group) for name in METRICS.values()}
            found.append(
                {column: row[column] for column in (*SETTING, *TIMES)}
                | {
                    "read_bytes": round(sums["read_bytes"]),
                    "written_bytes": round(sums["written_bytes"]),
                    "l2_read_bytes": round(sums["l2_read_sectors"]) * SECTOR_BYTES,
                }
            )
    return found


class Compared(NamedTuple):
    """A row of the table and what the model predicts of its list of tiles."""

    row: Mapping[str, str]
    shape: GroupedShape
    model: ListReplay


def compared(rows: Iterable[Mapping[str, str]], system: System) -> Iterator[Compared]:
    """What was measured on a system and what its model predicts.

    Orders of libraries are not known, and are left out.
    """
    from replay.studies.validate.tile_order import replay_order

    for row in rows:
        if row["system"] == system.name and ":" in row["order"]:
            shape = GroupedShape(
                row["model"],
                int(row["experts"]),
                int(row["rows"]),
                int(row["k"]),
                int(row["n"]),
                int(row["tile"].split("x")[1]),
            )
            yield Compared(row, shape, replay_order(shape, row["gemm_dtype"], row["order"], system))


def lines(found: Iterable[Compared]) -> Iterator[str]:
    """Lines of a table in Markdown, one for each row."""
    yield "| model | type | rows | k, n, tile | order | least MB | read MB | model | us | model |"
    yield "|---|---|---:|---|---|---:|---:|---:|---:|---:|"
    for one in found:
        row, shape, dtype = one.row, one.shape, one.row["gemm_dtype"]
        yield (
            f"| {shape.model} | {dtype} | {shape.experts} x {shape.rows} "
            f"| {shape.k}, {shape.n}, {row['tile']} | {row['order']} "
            f"| {shape.least_bytes(dtype) / 1e6:.0f} | {int(row['read_bytes']) / 1e6:.0f} "
            f"| {one.model.read_bytes / 1e6:.0f} | {float(row['time_us']):.0f} "
            f"| {1e6 * one.model.seconds:.0f} |"
        )


def short_lines(found: Iterable[Compared]) -> Iterator[str]:
    """Lines of a table in Markdown: predicted by measured, median and ends, for each order."""
    ratios: dict[str, list[tuple[float, float]]] = {order: [] for order in ORDERS}
    for one in found:
        ratios[one.row["order"]].append(
            (
                one.model.read_bytes / int(one.row["read_bytes"]),
                1e6 * one.model.seconds / float(one.row["time_us"]),
            )
        )
    yield "| order | lists | bytes | time |"
    yield "|---|---:|---|---|"
    for order, pairs in ratios.items():
        texts = [
            f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in zip(*pairs, strict=True)
        ]
        if texts:
            yield f"| {order} | {len(pairs)} | {texts[0]} | {texts[1]} |"


def table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("time", "once"):
        command = commands.add_parser(name)
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--budget", type=float, default=300.0, help="seconds")
        command.add_argument("--block-n", type=int, default=256, help="columns of a tile")
    command = commands.add_parser("join")
    for name in ("times", "launches", "log"):
        command.add_argument(name, type=Path)
    command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("compare")
    command.add_argument("table", type=Path)
    command.add_argument("--system", default="dgx-h100", help="preset, and column of the table")
    command.add_argument("--short", action="store_true", help="one line for each order")
    command.add_argument("--set", action="append", default=[], help="KEY=VALUE of the system")
    given = parser.parse_args()
    if given.what == "join":
        with given.log.open(encoding="utf-8") as log:
            rows = joined(table(given.times), table(given.launches), profiled_kernels(log))
        with given.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, (*SETTING, *TIMES, *COUNTED), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    elif given.what == "compare":
        import hwmodel

        changes = dict(change.split("=", 1) for change in given.set)
        found = compared(table(given.table), hwmodel.load(given.system, changes))
        for line in (short_lines if given.short else lines)(found):
            print(line, flush=True)
    else:
        measure(given.out, once=given.what == "once", budget=given.budget, block_n=given.block_n)
    return 0


if __name__ == "__main__":
    sys.exit(main())
