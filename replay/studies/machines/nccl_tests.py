"""nccl-tests: ``all_reduce_perf`` and its siblings, as text and as JSON.

Formats: NVIDIA/nccl-tests a0b82b22, ``src/util.cu``: the head at lines 620 to 700 (program, counts
of iterations, devices), columns at 738 to 763, a line at 454 to 512, JSON at 350 to 690 and in
``src/common.cu``. Older versions name no program; then the command above the output does, or the
file's name. Sizes are of a whole buffer, as in the project's tables; times are those of the
out-of-place runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.studies.machines.log import Log

TOOL = "nccl-tests"
TABLE = "nccl_collectives"
PROGRAMS = {f"{one}_perf": one for one in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")}
HEAD = re.compile(r"# nThread +(\d+) nGpus +(\d+) ")
SETTINGS = re.compile(r"agg iters: (\d+).* graph: (\d+)")
VERSION = re.compile(r"nccl-headers=(\d{4,6}) ")
PAIRED = 23000
"""Version from which ``sendrecv_perf`` tells NCCL that a rank has two peers (``src/sendrecv.cu``
lines 68 to 75), which then have all channels; tables are of earlier ones."""
NAMED = re.compile(r"\b([a-z_]{1,20}_perf)(?![a-z])")
LINE = re.compile(r"^ *(\d{1,15}) +\d+ +\w+ +\w+ +-?\d+ +([\d.e+]{1,12}) +[\d.e+]+ +[\d.e+]+ +(\S+)")


def is_text(log: Log) -> bool:
    """Tell whether nccl-tests printed some of it."""
    return "out-of-place" in log.text and HEAD.search(log.text) is not None


def read_text(log: Log) -> None:
    """Take the lines of every run in a log."""
    stem = log.name.rpartition(".")[0] or log.name
    named = NAMED.search(stem)
    program, devices, version, why_not = named[1] if named else "", 0, 0, ""
    for number, line in log.lines:
        if match := NAMED.search(line):
            program = match[1]
        if match := VERSION.search(line):
            version = int(match[1])
        if match := HEAD.search(line):
            devices, why_not = 0, ""
            settings = SETTINGS.search(line)
            why_not = _unlike(int(settings[1]), int(settings[2])) if settings else ""
        devices += line.startswith("#  Rank")
        if line.startswith("# Blocking Enabled"):
            why_not = "calls that wait for each other (-z)"
        if "cputime" in line:
            why_not = "times of the host (-C)"
        if match := LINE.match(line):
            size, time, wrong = int(match[1]), match[2], match[3]
            reason = why_not or _pairing_fault(program, version)
            _take(log, number, program, devices, size, time, wrong, reason)


def is_json(document: Any) -> bool:
    """Tell whether nccl-tests wrote a document."""
    return isinstance(document, dict) and {"nccl_version", "config", "results"} <= document.keys()


def read_json(log: Log, document: dict[str, Any]) -> None:
    """Take the results of a document."""
    config, program = document["config"], NAMED.search(str(document.get("args", [""])[:1]))
    ranks = len(config["devices"]) * int(config["nthreads"]) * int(config["ngpus"])
    why_not = _unlike(int(config["aggregated_iterations"]), int(config["graph"]))
    why_not = why_not or _pairing_fault(program[1] if program else "", int(document["nccl_version"]))
    if config.get("blocking_collectives"):
        why_not = "calls that wait for each other (-z)"
    for number, one in enumerate(document["results"], start=1):
        found = one.get("out_of_place") or {}
        if "time" in found:
            name = program[1] if program else ""
            wrong = found.get("nwrong") or 0
            _take(log, number, name, ranks, int(one["size"]), found["time"], wrong, why_not)
        else:
            log.leave("no time out of place, or one of the host (-C)")


def _unlike(aggregated: int, graphs: int) -> str:
    """Reason why a run is not like those that the tables are of; empty if it is."""
    if graphs:
        return "calls in a CUDA graph (-G)"
    return "several calls in a group (-m)" if aggregated > 1 else ""


def _pairing_fault(program: str, version: int) -> str:
    """Reason why sends and receives of a version are not like those before; empty if they are."""
    if program == "sendrecv_perf" and version >= PAIRED:
        return "sendrecv of NCCL 2.30 and later, where two peers share all channels"
    return ""


def _take(log: Log, number: int, program: str, ranks: int, size: int, time: Any, wrong: Any, why_not: str) -> None:
    if not program:
        log.leave("which collective? Name the file after the program, such as alltoall_perf.log")
    elif program not in PROGRAMS:
        log.leave("a program without a table")
    elif why_not:
        log.leave(why_not)
    elif str(wrong) not in ("0", "0.0", "N/A"):
        log.leave("results were wrong")
    elif size:
        setting = {"collective": PROGRAMS[program], "num_gpus": ranks, "bytes": size}
        log.take(TABLE, number, float(time), **setting)
