"""A placement of experts as a page: how even it is, and how long that lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.place import tables
from replay.report.command import command
from replay.report.provenance import NO_COMMAND, provenance
from tracegen.shared.display.content import Axis, Line, Page, Plot, Section

if TYPE_CHECKING:
    from replay.experiments.place.result import PlacementResult, WindowImbalance

WHAT = {"before": "contiguous", "fitted": "", "fresh": "fitted on this window"}
"""Name of each line by its field; the placement's own is its algorithm's."""

UNSAID = f"{NO_COMMAND}the trace was in memory, or the file does not say what was asked for."


def page(result: PlacementResult) -> Page:
    """Make the page of a placement."""
    spec = result.spec
    is_known = spec.trace is not None or bool(spec.loads)
    line = command(["moereplay", "place"], spec) if is_known else ""
    last = result.windows[-1]
    before, after = tables.mean(last.before), tables.mean(last.fitted)
    per_layer = [_layers_plot(window, result, place) for place, window in enumerate(result.windows, 1)]
    nodes = any(any(window.rows_before) for window in result.windows)
    return Page(
        title=f"{result.num_experts} experts in {result.num_slots} slots on "
        f"{result.num_ranks} GPUs: {result.algorithm}",
        summary=f"In {tables.steps_words(last)} the busiest GPU has {after:.2f} times the mean "
        f"of the rows with {result.algorithm}, and {before:.2f} times with contiguous experts "
        "(mean of the layers).",
        sections=[
            Section("How even is it?", [_over_time(result), tables.imbalance_table(result)]),
            *([Section("How many rows cross nodes?", [tables.rows_table(result)])] if nodes else []),
            Section("How even is each layer?", per_layer),
            Section("Which expert is where?", [tables.map_table(result)], is_detail=True),
            provenance(
                {
                    "trace": result.trace,
                    "content id": result.content_id,
                    "algorithm": result.algorithm,
                    "fitted on": tables.fitted_on(result) or "nothing: a file",
                },
                command=line,
                why_none=UNSAID,
            ),
        ],
        command=line,
    )


def _names_of(result: PlacementResult) -> dict[str, str]:
    return {**WHAT, "fitted": result.algorithm}


def _over_time(result: PlacementResult) -> Plot:
    """Imbalance of each window: mean of the layers, with the least and the largest as a band."""
    x = [float(window.steps[0]) for window in result.windows]
    lines = []
    for field, name in _names_of(result).items():
        values = [getattr(window, field) for window in result.windows]
        low, high = [min(of) for of in values], [max(of) for of in values]
        lines.append(Line(name, x, [tables.mean(of) for of in values], low, high))
    return Plot(
        "imbalance",
        "Rows of the busiest GPU over the mean",
        Axis("first step of the window", from_zero=False),
        Axis("busiest over mean", from_zero=False),
        lines,
        "Mean of the layers; the band goes from the least to the largest of them.",
    )


def _layers_plot(window: WindowImbalance, result: PlacementResult, place: int) -> Plot:
    layers = [float(layer) for layer in range(len(window.before))]
    return Plot(
        f"layers-{place}",
        f"Rows of the busiest GPU over the mean, {tables.steps_words(window)}",
        Axis("MoE layer", from_zero=False),
        Axis("busiest over mean", from_zero=False),
        [Line(name, layers, getattr(window, field), form="points") for field, name in _names_of(result).items()],
    )
