"""What the routing asks for: copies of tokens, and how unevenly experts are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import short_placement
from replay.measure.result import LayerResult
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result


def routing_table(results: Sequence[Result]) -> Table:
    """Routing of each layer, of each placement once."""
    rows, seen = [], set()
    for one in results:
        if one.placement in seen:
            continue
        seen.add(one.placement)
        for part in one.parts:
            is_layer = isinstance(part, LayerResult)
            found = part.routing
            rows.append(
                (
                    short_placement(one.spec.placement),
                    _name(part) if is_layer else "mean of the layers",
                    found.num_tokens,
                    found.num_pairs,
                    found.num_copies,
                    found.mean_distinct_ranks,
                    found.mean_distinct_remote_ranks,
                    found.mean_remote_pairs,
                    found.rank_imbalance,
                )
            )
    columns = [
        Column("placement"),
        Column("layer"),
        Column("tokens", "", ",.0f", rank=1),
        Column("pairs", "", ",.0f", rank=2, says="of a token and an expert that it chose"),
        Column("copies", "", ",.0f", says="of a token and a GPU that hosts an expert of it"),
        Column("GPUs per token", "", ".2f", rank=2),
        Column("other GPUs per token", "", ".2f"),
        Column("experts elsewhere", "", ".2f", rank=3, says="of a token, on other GPUs"),
        Column("imbalance", "x", ".2f", says="pairs of the busiest GPU over the mean"),
    ]
    return Table("routing", "What the routing asks for", columns, rows)


def _name(layer: object) -> str:
    assert isinstance(layer, LayerResult)
    way = ", backward" if layer.is_backward else ""
    return f"{layer.decoder_layer}{way}, step {layer.step}"
