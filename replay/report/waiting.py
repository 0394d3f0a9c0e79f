"""What GPUs wait for while they do not compute, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.parts import Waiting
    from replay.measure.result import Measures

CAUSES = {"wires": "wires", "imbalance": "imbalance", "latency": "latency of waiting"}
"""Columns of causes, and the words that explain them."""


def waiting_tables(results: Sequence[Result], count: int, unit: str) -> list[Table]:
    """Exposed communication by what is waited for, mean over the GPUs: by time, and by SMs.

    Parameters
    ----------
    results
        One row each; those of older versions, which do not say, have none.
    count
        Number of layers or steps that a result's times are divided by.
    unit
        Name of what they are divided by: "layer" or "step".

    Returns
    -------
    Two tables, or none if no result says.
    """
    by_time, by_sms = [], []
    for name, result in zip(row_names(results), results, strict=True):
        times = [_times(one, result.system.values.get("gpu.num_sms")) for one in result.measured]
        known = [one for one in times if one is not None]
        if known and len(known) == len(times):
            sums = [sum(column) / count for column in zip(*known, strict=True)]
            by_time.append((name, *sums[: 1 + len(CAUSES)]))
            by_sms.append((name, *sums[1 + len(CAUSES) :]))
    if not by_time:
        return []
    causes = [Column(cause, "us", ",.1f", says=says(word)) for cause, word in CAUSES.items()]
    return [
        Table(
            "waiting",
            f"Time of a GPU per {unit} in which it does not compute",
            [Column("scheme"), Column("exposed", "us", ",.1f", says=says("exposed")), *causes],
            by_time,
        ),
        Table(
            "waiting-sms",
            f"The same by SMs, and what SMs wait for while they compute, per {unit}",
            [
                Column("scheme"),
                Column("waiting", "us", ",.1f", says=says("waiting")),
                *causes,
                Column("unfilled", "us", ",.1f", rank=1, says=says("unfilled")),
                Column("for L2", "us", ",.1f", rank=1, says=says("for L2")),
                Column("for HBM", "us", ",.1f", rank=1, says=says("for HBM")),
            ],
            by_sms,
        ),
    ]


def _times(measured: Measures, num_sms: object) -> list[float] | None:
    """Cells of both rows of one schedule, or None where they are not known."""
    exposure, sms = measured.exposure, measured.sm_time_us
    if exposure is None or sms is None or not isinstance(num_sms, int):
        return None
    columns = [*_parts(exposure.by_time), *_parts(exposure.by_sms), exposure.unfilled_us]
    columns += [
        [time / num_sms for time in of] for of in (sms.waiting_for_l2_us, sms.waiting_for_hbm_us)
    ]
    return [sum(column) / max(len(column), 1) for column in columns]


def _parts(waiting: Waiting) -> list[list[float]]:
    """All of it, and each cause, by GPU."""
    return [waiting.total_us, *(getattr(waiting, f"{cause}_us") for cause in CAUSES)]
