"""A placement of experts as a page: how even it is, and how long that lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.provenance import NO_COMMAND, provenance
from tracegen.shared.display.content import Axis, Column, Line, Page, Plot, Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.place.placing import Imbalance, Placing

WHAT = {"before": "contiguous", "fitted": "", "fresh": "fitted on this window"}
"""Name of each line by its field; the placement's own is its algorithm's."""

UNSAID = f"{NO_COMMAND}the file of a placement does not say what was asked for."


def page(placing: Placing, command: str = "") -> Page:
    """Make the page of a placement.

    Parameters
    ----------
    command
        The command line that made it, where that is known.
    """
    last = placing.windows[-1]
    before, after = _mean(last.before), _mean(last.fitted)
    per_layer = [_layers_plot(window, placing, place) for place, window in
                 enumerate(placing.windows, 1)]  # fmt: skip
    nodes = any(any(window.rows_before) for window in placing.windows)
    return Page(
        title=f"{placing.num_experts} experts in {placing.num_slots} slots on "
        f"{placing.num_ranks} GPUs: {placing.algorithm}",
        summary=f"In steps {steps_of(last)} the busiest GPU has {after:.2f} times the mean of the "
        f"rows with {placing.algorithm}, and {before:.2f} times with contiguous experts (mean of "
        f"the layers).",
        sections=[
            Section("How even it is", [_over_time(placing), imbalance_table(placing)]),
            *([Section("Rows between nodes", [rows_table(placing)])] if nodes else []),
            Section("Layer by layer", per_layer),
            Section("The map", [_map(placing)], is_open=False),
            provenance(
                {
                    "trace": placing.trace,
                    "content id": placing.content_id,
                    "algorithm": placing.algorithm,
                    "fitted on": _fitted_on(placing),
                },
                command=command,
                why_none=UNSAID,
            ),
        ],
        command=command,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _fitted_on(placing: Placing) -> str:
    if placing.algorithm == "file":
        return "nothing: a file"
    if placing.fitted_on is None:
        return "all tokens"
    return f"steps {placing.fitted_on[0]} to {placing.fitted_on[1] - 1}"


def steps_of(window: Imbalance) -> str:
    """Steps of a window in words."""
    first, behind = window.steps
    return f"{first}" if behind == first + 1 else f"{first} to {behind - 1}"


def _named(placing: Placing) -> dict[str, str]:
    return {**WHAT, "fitted": placing.algorithm}


def _over_time(placing: Placing) -> Plot:
    """Imbalance of each window: mean of the layers, with the least and the largest as a band."""
    x = [float(window.steps[0]) for window in placing.windows]
    lines = []
    for field, name in _named(placing).items():
        values = [getattr(window, field) for window in placing.windows]
        low, high = [min(of) for of in values], [max(of) for of in values]
        lines.append(Line(name, x, [_mean(of) for of in values], low, high))
    return Plot(
        "imbalance",
        "Rows of the busiest GPU over the mean",
        Axis("first step of the window", from_zero=False),
        Axis("busiest over mean", from_zero=False),
        lines,
        "Mean of the layers; the band goes from the least to the largest of them.",
    )


def _layers_plot(window: Imbalance, placing: Placing, place: int) -> Plot:
    layers = [float(layer) for layer in range(len(window.before))]
    return Plot(
        f"layers-{place}",
        f"Steps {steps_of(window)}",
        Axis("MoE layer", from_zero=False),
        Axis("busiest over mean", from_zero=False),
        [
            Line(name, layers, getattr(window, field), form="points")
            for field, name in _named(placing).items()
        ],
    )


def imbalance_table(placing: Placing) -> Table:
    """Imbalance of each window with contiguous experts, as placed, and as fitted anew."""
    columns = [
        Column("steps"),
        Column("contiguous", "x", ".2f", says="busiest GPU's rows over the mean, mean of layers"),
        Column("worst layer", "x", ".2f", rank=2),
        Column(placing.algorithm, "x", ".2f"),
        Column("its worst layer", "x", ".2f", rank=2),
        Column("fitted on these", "x", ".2f", rank=1),
        Column("stale by", "", "+.1%", rank=1, says="against one fitted on the window itself"),
    ]
    rows = [
        (
            steps_of(one), _mean(one.before), max(one.before), _mean(one.fitted), max(one.fitted),
            _mean(one.fresh), _mean(one.fitted) / _mean(one.fresh) - 1,
        )
        for one in placing.windows
    ]  # fmt: skip
    return Table("imbalance", "Rows of the busiest GPU over the mean", columns, rows)


def rows_table(placing: Placing) -> Table:
    """Rows per token that go to other nodes."""
    columns = [
        Column("steps"),
        Column("contiguous", "", ".3f"),
        Column(placing.algorithm, "", ".3f"),
    ]
    rows = [
        (steps_of(one), _mean(one.rows_before), _mean(one.rows_fitted)) for one in placing.windows
    ]
    title = "Rows per token to other nodes, one per (token, node): mean of the layers"
    return Table("rows", title, columns, rows)


def _map(placing: Placing) -> Table:
    """Experts of each GPU in each layer."""
    each = placing.num_slots // placing.num_ranks
    columns = [Column("MoE layer", "", "d"), Column("GPU", "", "d"), Column("experts")]
    rows = [
        (layer, gpu, " ".join(map(str, slots[gpu * each : (gpu + 1) * each])))
        for layer, slots in enumerate(placing.slot_expert)
        for gpu in range(placing.num_ranks)
    ]
    return Table("map", "Experts of each GPU", columns, rows)
