"""``moereplay trace stats``: measure a trace."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from tracegen.cli.common import AsJson, TraceName, user_errors
from tracegen.cli.delivery import Delivery, delivers
from tracegen.shared.screen import show

if TYPE_CHECKING:
    from tracegen.stats.statistics import TraceStatistics


@delivers
def stats(
    trace: TraceName,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples and batches drawn.")] = 0,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Add a column with the range over layers.")] = False,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", min=1, help="Count the distinct nodes of each token instead, with experts on this number of GPUs."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=1, help="With --gpus: GPUs of a node, which NVLink joins.")
    ] = 8,
    placement: Annotated[
        str,
        typer.Option(
            help="With --gpus: placement of experts, contiguous or round-robin (`moereplay place` knows others)."
        ),
    ] = "contiguous",
    as_json: AsJson = False,
    *,
    deliver: Delivery,
) -> None:
    """Measure skew, locality, co-activation and imbalance of a trace.

    Intervals are of 95 % confidence, over requests.
    """
    with user_errors():
        from tracegen.library import load
        from tracegen.stats import page
        from tracegen.stats.statistics import TraceStatistics, statistics

        loaded = load(trace)
        title = loaded.info.title or trace
        words = ["moereplay", "trace", "stats", trace]
        words += [f"--seed={seed}"] if seed else []
        if gpus is not None:
            from tracegen.stats.nodes import node_statistics

            nodes = node_statistics(loaded, gpus, gpus_per_node, placement, seed=seed)
            words += [f"--gpus={gpus}", f"--gpus-per-node={gpus_per_node}"]
            words += [f"--placement={placement}"]
            _print(TraceStatistics(nodes), per_layer, as_json)
            deliver(lambda: page.nodes_page(nodes, title, shlex.join(words)))
            return
        found = statistics(loaded, seed=seed)
        _print(found, per_layer, as_json)
        deliver(lambda: page.statistics_page(found, title, shlex.join(words)))


def _print(found: TraceStatistics, per_layer: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
        return
    from tracegen.stats.page import statistics_table, values_table

    show(statistics_table(found.by_name))
    if per_layer:
        show(values_table(found.by_name))
