"""How long each scheme takes, what stands in its way, and what GPUs wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.tables import named_table, table, told
from tracegen.shared.display.content import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.experiments.layer.result import Comparison, Result
    from replay.measure.parts import BusiestResource, Waiting
    from replay.measure.result import Measures
    from tracegen.shared.display.content import Table

CAUSES = {"wires": "wires", "imbalance": "imbalance", "latency": "latency of waiting"}
"""What a GPU waits for, and the words that explain it."""


def count(result: Result) -> int:
    """Number that totals are divided by: isolated layers, or steps of a chain."""
    return len(result.layers) if result.chain is None else result.chain.num_steps


def unit_of(result: Result) -> str:
    """What times are given for: a layer, or a step of a chain."""
    return "layer" if result.chain is None else "step"


def per(result: Result, of: Callable[[Measures], float]) -> float:
    """Sum something over the parts of a result, for each layer or step."""
    return sum(of(one) for one in result.measured) / count(result)


def time_us(result: Result) -> float:
    """Time of a layer, or of a step of a chain."""
    return result.totals.makespan_us / count(result)


def bound_us(result: Result) -> float:
    """Largest bound of a layer, or of a step of a chain."""
    return per(result, lambda one: one.bounds_us.largest_us)


def fastest(results: Sequence[Result]) -> list[Result]:
    """Results in the order of their times."""
    return sorted(results, key=time_us)


def busiest(result: Result) -> BusiestResource:
    """The resource that is busy for the largest share of the time of a part."""
    found = (one.busiest_resource for one in result.measured)
    return max(found, key=lambda one: one.utilisation)


def times_table(compared: Comparison, results: Sequence[Result]) -> Table:
    """Times, bounds and the busiest resource, in the order of the results."""
    base, chained = time_us(compared.base), []
    if results[0].chain is not None:
        chained = [(Column("MoE layer", "us", ",.1f", rank=4), _mean_chained_us)]

    def over_time(result: Result, us: float) -> float | None:
        return us / time_us(result) if time_us(result) else None

    return table(
        "times",
        f"Time {measured(results[0])}; speed-up over {compared.base_name}",
        results,
        (Column(unit_of(results[0]), "us", ",.1f"), time_us),
        (told("speed-up", "", ".2f"), lambda one: over_time(one, base)),
        *chained,
        (
            told("exposed", "us", ",.1f", 1),
            lambda one: per(one, lambda each: each.exposed_communication_us),
        ),
        (told("bound", "us", ",.1f", 3), bound_us),
        (told("bound/time", "", ".1%", 5), lambda one: over_time(one, bound_us(one))),
        (told("binds", rank=2), lambda one: busiest(one).name),
        (Column("in use", "", ".1%", rank=3), lambda one: busiest(one).utilisation),
        labels=row_names(results),
    )


def measured(result: Result) -> str:
    """Span of a comparison's times for its heading: one layer, per layer, or per step."""
    if result.chain is not None:
        steps = f", mean of {result.chain.num_steps} steps" if result.chain.num_steps > 1 else ""
        return f"per step ({result.chain.num_layers} layers{steps})"
    number = len(result.layers)
    return (
        f"per layer (mean of {number})"
        if number > 1
        else f"of layer {result.layers[0].decoder_layer}"
    )


def _mean_chained_us(result: Result) -> float:
    assert result.chain is not None
    times = [layer.mean_us for layer in result.chain.layers]
    return sum(times) / len(times)


# ---- what is waited for --------------------------------------------------------------------------


def waiting_tables(results: Sequence[Result]) -> list[Table]:
    """Exposed communication by what is waited for, mean over the GPUs: by time, and by SMs.

    Parameters
    ----------
    results
        One row each; those of older versions, which do not say, have none.

    Returns
    -------
    Two tables, or none if no result says.
    """
    by_time, by_sms = [], []
    for name, result in zip(row_names(results), results, strict=True):
        times = [_times(one, result.system.values.get("gpu.num_sms")) for one in result.measured]
        known = [one for one in times if one is not None]
        if known and len(known) == len(times):
            sums = [sum(column) / count(result) for column in zip(*known, strict=True)]
            by_time.append((name, sums[: 1 + len(CAUSES)]))
            by_sms.append((name, sums[1 + len(CAUSES) :]))
    if not by_time:
        return []
    unit = unit_of(results[0])
    causes = [told(cause, "us", ",.1f", word=word) for cause, word in CAUSES.items()]
    exposed, waiting = told("exposed", "us", ",.1f"), told("waiting", "us", ",.1f")
    sms = [told(what, "us", ",.1f", 1) for what in ("unfilled", "for L2", "for HBM")]
    title = f"Time of a GPU per {unit} in which it does not compute"
    same = f"The same by SMs, and what SMs wait for while they compute, per {unit}"
    return [
        named_table("waiting", title, [exposed, *causes], by_time),
        named_table("waiting-sms", same, [waiting, *causes, *sms], by_sms),
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
