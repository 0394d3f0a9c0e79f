"""Activities of GPUs in the time of a result, in whole picoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.studies.differences.path import ps

if TYPE_CHECKING:
    from replay.experiments.base.result import TimedResult
    from replay.measure.result import Measures

COMPUTING = "computing or between kernels"
ON_THE_WAY = "waiting for rows on their way"
COPYING, MESSAGES = "waiting for SMs that copy rows", "waiting for messages alone"
OTHERS, NOBODY = "waiting for other GPUs", "no GPU busy"
EXPOSED = "exposed"
LAST = "waiting for the last GPU"
PARTS = (COMPUTING, COPYING, MESSAGES, ON_THE_WAY, OTHERS, NOBODY, EXPOSED, LAST)
"""All that a GPU does or waits for; `ON_THE_WAY` and `EXPOSED` where an older version does not say for what."""


def of_gpus(result: TimedResult) -> dict[tuple[str, str], int]:
    """Activities of a GPU in the mean.

    Returns
    -------
    Picoseconds, summed over the schedules of a result; they add up to the time of all of them.
    """
    found: dict[tuple[str, str], int] = {}
    for measures in result.measured:
        for what, time in _of_gpu(measures).items():
            found[what, ""] = found.get((what, ""), 0) + time
    return found


def _of_gpu(measures: Measures) -> dict[str, int]:
    """The mean GPU of one schedule: it works or waits until its own end, and then for the last."""
    ends = measures.rank_end_us
    waits = {EXPOSED: measures.exposed_communication_us_per_gpu}
    if measures.exposure is not None:
        by_time, copying = measures.exposure.by_time, measures.exposure.copying_us
        moved = {ON_THE_WAY: by_time.wires_us}
        if copying is not None:
            alone = [both - of for both, of in zip(by_time.wires_us, copying, strict=True)]
            moved = {COPYING: copying, MESSAGES: alone}
        waits = {
            **moved,
            OTHERS: by_time.imbalance_us,
            NOBODY: by_time.latency_us,
        }
    mean = {what: ps(sum(times) / len(times)) for what, times in waits.items()}
    end = ps(sum(ends) / len(ends))
    computing = {COMPUTING: end - sum(mean.values())}
    return computing | mean | {LAST: ps(measures.makespan_us) - end}
