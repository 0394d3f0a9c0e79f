"""Activities of GPUs in the time of a result, in whole picoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.studies.differences.path import ps

if TYPE_CHECKING:
    from replay.experiments.base.result import TimedResult
    from replay.measure.result import Measures

COMPUTING, GAPS, LAUNCHES = "busy computing", "between kernels", "waiting for a launch"
BUSY = "computing or between kernels"
ON_THE_WAY = "waiting for rows on their way"
COPYING, MESSAGES = "waiting for SMs that copy rows", "waiting for messages alone"
OTHERS, NOBODY = "waiting for other GPUs", "no GPU busy"
EXPOSED = "exposed"
LAST = "waiting for the last GPU"
PARTS = (COMPUTING, GAPS, LAUNCHES, BUSY, COPYING, MESSAGES, ON_THE_WAY, OTHERS, NOBODY, EXPOSED, LAST)
"""All that a GPU does or waits for; `BUSY`, `ON_THE_WAY` and `EXPOSED` where an older version does not say for what."""

UNEXPOSED = frozenset({COMPUTING, GAPS, LAUNCHES, BUSY})
"""Those of them in which nothing is waited for but the GPU's own kernels."""


def of_gpus(result: TimedResult) -> dict[tuple[str, str], int]:
    """Activities of the mean GPU.

    Returns
    -------
    Picoseconds, summed over the schedules of a result; they add up to the time of all of them.
    """
    found: dict[tuple[str, str], int] = {}
    for measures in result.schedules:
        each = _each(measures)
        mean = {what: round(sum(gpu.get(what, 0) for gpu in each) / len(each)) for what in PARTS if what in each[0]}
        rest = ps(measures.makespan_us) - sum(mean.values())
        if abs(rest) > len(mean):
            message = f"defect of moereplay: what a GPU does is {rest} ps from the time"
            raise AssertionError(message)
        mean[next(iter(mean))] += rest  # of rounding
        for what, time in mean.items():
            found[what, ""] = found.get((what, ""), 0) + time
    return found


def of_each(result: TimedResult) -> list[dict[str, int]]:
    """Activities of each GPU: (gpu,) picoseconds, summed likewise; each adds up to the time of all schedules.

    Empty where schedules have different numbers of GPUs.
    """
    found: list[dict[str, int]] = []
    for measures in result.schedules:
        each = _each(measures)
        found = found or [{} for _ in each]
        if len(each) != len(found):
            return []
        for total, gpu in zip(found, each, strict=True):
            for what, time in gpu.items():
                total[what] = total.get(what, 0) + time
    return found


def _each(measures: Measures) -> list[dict[str, int]]:
    """Time of each GPU of one schedule: it works or waits until its own end, and then for the last."""
    waits = {EXPOSED: measures.exposed_communication_us_per_gpu}
    paused: dict[str, list[float]] = {}
    if (exposure := measures.exposure) is not None:
        by_time, copying = exposure.by_time, exposure.copying_us
        moved = {ON_THE_WAY: by_time.wires_us}
        if copying is not None:
            alone = [both - of for both, of in zip(by_time.wires_us, copying, strict=True)]
            moved = {COPYING: copying, MESSAGES: alone}
        waits = {**moved, OTHERS: by_time.imbalance_us, NOBODY: by_time.latency_us}
        if exposure.gaps_us is not None and exposure.launches_us is not None:
            paused = {GAPS: exposure.gaps_us, LAUNCHES: exposure.launches_us}
    found = []
    for gpu, end_us in enumerate(measures.rank_end_us):
        rest = {what: ps(times[gpu]) for what, times in {**paused, **waits}.items()}
        end = ps(end_us)
        works = {COMPUTING if paused else BUSY: end - sum(rest.values())}
        found.append({**works, **rest, LAST: ps(measures.makespan_us) - end})
    return found
