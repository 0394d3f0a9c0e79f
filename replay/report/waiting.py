"""What GPUs wait for while they do not compute, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.tables import row_names, text_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from replay.measure.result import Measures
    from replay.run.result import Result

CAUSES = ("wires_us", "imbalance_us", "latency_us")


def waiting_table(results: Sequence[Result], count: int, unit: str) -> Table | None:
    """Exposed communication by what is waited for, mean over the GPUs; None if no result says.

    Parameters
    ----------
    results
        One row each; those of older versions, which do not say, have none.
    count
        Number of layers or steps that a result's times are divided by.
    unit
        Name of what they are divided by: "layer" or "step".
    """
    table = text_table(
        f"Time per GPU and {unit} without computing, by time and by SMs, and SMs waiting (us)",
        ("scheme", "exposed", "wires", "imbalance", "latency", "by SMs", "wires", "imbalance",
         "latency", "unfilled", "for L2", "for HBM"),
    )  # fmt: skip
    for name, result in zip(row_names(results), results, strict=True):
        times = [_times(one, result.system.values["gpu.num_sms"]) for one in result.measured]
        known = [one for one in times if one is not None]
        if known and len(known) == len(times):
            sums = (sum(column) / count for column in zip(*known, strict=True))
            table.add_row(name, *(f"{time:,.1f}" for time in sums))
    return table if table.row_count else None


def _times(measured: Measures, num_sms: object) -> list[float] | None:
    """Columns of one schedule, or None where they are not known."""
    exposure, sms = measured.exposure, measured.sm_time_us
    if exposure is None or sms is None or not isinstance(num_sms, int):
        return None
    columns = []
    for waiting in (exposure.by_time, exposure.by_sms):
        columns += [waiting.total_us, *(getattr(waiting, cause) for cause in CAUSES)]
    columns.append(exposure.unfilled_us)
    columns += [
        [time / num_sms for time in of] for of in (sms.waiting_for_l2_us, sms.waiting_for_hbm_us)
    ]
    return [sum(column) / max(len(column), 1) for column in columns]
