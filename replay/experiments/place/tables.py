"""A placement as tables: how even it is, rows between nodes, and the map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.experiments.place.result import PlacementResult, WindowImbalance
    from tracegen.shared.display.content import Cell


def mean(values: Sequence[float]) -> float:
    """Mean of the layers."""
    return sum(values) / len(values)


def fitted_on(result: PlacementResult) -> str:
    """Steps that a placement was fitted on, in words; empty for a file."""
    if result.algorithm == "file":
        return ""
    if result.fitted_on is None:
        return "all tokens"
    return f"steps {result.fitted_on[0]} to {result.fitted_on[1] - 1}"


def steps_of(window: WindowImbalance) -> str:
    """Steps of a window in words."""
    first, behind = window.steps
    return f"{first}" if behind == first + 1 else f"{first} to {behind - 1}"


def steps_words(window: WindowImbalance) -> str:
    """Steps of a window with their noun, in the singular where it is one."""
    steps = steps_of(window)
    return f"step{'s' if ' ' in steps else ''} {steps}"


def imbalance_table(result: PlacementResult) -> Table:
    """Imbalance of each window with contiguous experts, as placed, and as fitted anew."""
    columns = [Column("steps")]
    for rank, word in enumerate(("contiguous", result.algorithm, "fitted on these")):
        columns.append(Column(word, form=".2f", rank=rank // 2))
        columns.append(Column(f"{word}, worst", form=".2f", rank=1 + rank // 2))
    columns.append(Column("stale by", form="+.1%"))
    rows: list[tuple[Cell, ...]] = []
    for window in result.windows:
        each = (window.before, window.fitted, window.fresh)
        both = (value for of in each for value in (mean(of), max(of)))
        rows.append((steps_of(window), *both, mean(window.fitted) / mean(window.fresh) - 1))
    title = "Rows of the busiest GPU over the mean: mean of the layers, and the worst layer"
    return Table("imbalance", title, columns, rows)


def rows_table(result: PlacementResult) -> Table:
    """Rows per token that go to other nodes."""
    nodes = result.spec.nodes
    of = f"others of {nodes}" if nodes > 1 else "other"  # a file of the first schema does not say
    return Table(
        "rows",
        f"Rows per token to {of} nodes, one per (token, node): mean of the layers",
        [
            Column("steps"),
            *(Column(word, form=".3f") for word in ("contiguous", result.algorithm)),
        ],
        [(steps_of(one), mean(one.rows_before), mean(one.rows_fitted)) for one in result.windows],
    )


def map_table(result: PlacementResult) -> Table:
    """Experts of each GPU in each layer."""
    each = result.num_slots // result.num_ranks
    columns = [Column("MoE layer", "", "d"), Column("GPU", "", "d"), Column("experts")]
    rows = [
        (layer, gpu, " ".join(map(str, slots[gpu * each : (gpu + 1) * each])))
        for layer, slots in enumerate(result.slot_expert)
        for gpu in range(result.num_ranks)
    ]
    return Table("map", "Experts of each GPU", columns, rows)
