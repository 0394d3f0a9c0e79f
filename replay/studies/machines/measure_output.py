"""Output of ``moereplay hardware measure``, read as any other log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.studies.machines.log import Log

TOOL = "moereplay hardware measure"
SCHEMA = "moereplay-measured/1"
VALUES = {"launch": "overheads.launch_us", "host-sync": "overheads.host_sync_us"}
LONG_COPY = 1 << 26  # bytes from which a copy's start no longer counts


def is_json(document: Any) -> bool:
    """Tell whether the command wrote a document."""
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def read_json(log: Log, document: dict[str, Any]) -> None:
    """Take the samples of a document."""
    rows: dict[str, dict[int, float]] = {}
    for number, one in enumerate(document["samples"], start=1):
        what, time_us = one["what"], float(one["seconds"]) * 1e6
        if what in VALUES:
            log.take("values", number, time_us, key=VALUES[what])
        elif what == "gemm-bf16":
            sizes = {key: int(one[key]) for key in ("m", "n", "k")}
            log.take(
                "matrices",
                number,
                time_us,
                library="cublas stream",
                dtype="bf16",
                groups=1,
                **sizes,
            )
        elif what == "memory":
            log.take("streams", number, time_us, read=int(one["read"]), written=int(one["written"]))
        elif what in ("all-to-all", "all-reduce"):
            log.take(
                "nccl_collectives",
                number,
                time_us,
                num_gpus=int(one["gpus"]),
                collective=what.replace("all-to-all", "alltoall").replace("-", "_"),
                bytes=int(one["bytes"]),
            )
        elif what == "pair-copy" and int(one["bytes"]) >= LONG_COPY:
            rate = int(one["bytes"]) / time_us / 1e3
            log.take("links", number, rate, engine="copy_engine", access="write", pattern="pair")
        elif what in ("kernels-stream", "kernels-graph"):
            rows.setdefault(what.removeprefix("kernels-"), {})[int(one["kernels"])] = time_us
        else:
            log.leave("samples that are too short, or without a table")
    for how, times in rows.items():
        few, many = min(times), max(times)
        if few < many:  # one more of them takes its gap and the little time that it runs
            each = (times[many] - times[few]) / (many - few)
            log.take("values", 0, each, key=f"overheads.kernel_gap_{how}_us")
