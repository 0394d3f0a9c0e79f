"""Pictures of a trace's statistics. The one module that draws; needs the extra ``plots``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from tracegen import output
from tracegen.errors import UserError
from tracegen.stats.statistics import LAGS, TraceStatistics

_INCHES = (8.0, 4.5)
_DPI = 120


def draw_all(statistics: TraceStatistics, folder: str | Path, title: str) -> list[Path]:
    """Draw every picture as a PNG file.

    Parameters
    ----------
    statistics
        From :func:`tracegen.stats.statistics.statistics`.
    folder
        Made if it does not exist; files of the same names are replaced.
    title
        Of the trace, set above each picture.

    Returns
    -------
    The files.

    Raises
    ------
    UserError
        If matplotlib is not installed, or a file cannot be written.
    """
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        msg = "pictures need matplotlib: pip install 'moereplay[plots]'"
        raise UserError(msg) from error
    target = Path(folder)
    drawings = {
        "expert-load": _load,
        "co-activation": _co_activation,
        "group-traffic": _travel,
        "fan-out": _fanout,
        "locality": _locality,
    }
    written = []
    output.make_folder(target)
    for name, drawing in drawings.items():
        figure = figure_module.Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        drawing(figure, statistics)
        figure.suptitle(title, fontsize=9)
        path = target / f"{name}.png"
        with output.opened(path) as file:
            figure.savefig(file, format="png")
        written.append(path)
    return written


def _load(figure: Any, statistics: TraceStatistics) -> None:
    """Load of every expert of every layer, most popular first within a layer's row."""
    axes = figure.subplots(2, 1, sharex=False)
    load = statistics.load / np.maximum(statistics.load.mean(axis=1, keepdims=True), 1e-300)
    for ax, values, what in (
        (axes[0], load, "expert"),
        (axes[1], -np.sort(-load, axis=1), "expert by rank"),
    ):
        image = ax.imshow(values, aspect="auto", cmap="magma", vmin=0, interpolation="nearest")
        ax.set(xlabel=what, ylabel="MoE layer")
        figure.colorbar(image, ax=ax, label="load / mean")


def _co_activation(figure: Any, statistics: TraceStatistics) -> None:
    """Correlation of visits in the first, middle and last layer."""
    layers = statistics.correlation.shape[0]
    chosen = sorted({0, layers // 2, layers - 1})
    axes = figure.subplots(1, len(chosen), squeeze=False)[0]
    for ax, layer in zip(axes, chosen, strict=True):
        matrix = statistics.correlation[layer].copy()
        np.fill_diagonal(matrix, np.nan)
        image = ax.imshow(matrix, cmap="RdBu_r", vmin=-0.6, vmax=0.6, interpolation="nearest")
        ax.set(title=f"MoE layer {layer}", xlabel="expert", ylabel="expert")
    figure.colorbar(image, ax=list(axes), label="correlation of visits", shrink=0.7)


def _travel(figure: Any, statistics: TraceStatistics) -> None:
    """Visits from group to group between one layer and the next."""
    ax = figure.subplots()
    share = statistics.travel * statistics.travel.size
    image = ax.imshow(share, cmap="viridis", interpolation="nearest", aspect="auto")
    ax.set(
        xlabel="group of experts in the next layer",
        ylabel="group of experts",
        title="token visits from group to group, over an even spread; all layers",
    )
    figure.colorbar(image, ax=ax, label="visits / even spread")


def _fanout(figure: Any, statistics: TraceStatistics) -> None:
    """Distribution of the number of groups per token."""
    ax = figure.subplots()
    width = 0.8 / max(len(statistics.fanout), 1)
    for place, (number, shares) in enumerate(statistics.fanout.items()):
        mean = shares.mean(axis=0)
        ax.bar(np.arange(mean.size) + place * width, mean, width, label=f"{number} groups")
    ax.set(xlabel="distinct groups of experts per token", ylabel="share of tokens")
    ax.legend()


def _locality(figure: Any, statistics: TraceStatistics) -> None:
    """Reuse against distance, each layer and the mean."""
    ax = figure.subplots()
    lags = [lag for lag in LAGS if f"reuse_lag_{lag}" in statistics.by_name]
    found = [statistics.by_name[f"reuse_lag_{lag}"] for lag in lags]
    if found:
        ax.plot(lags, [s.value for s in found], color="0.8", linewidth=0.8)
        ax.errorbar(
            lags,
            [s.summary for s in found],
            [1.96 * s.summary_error for s in found],
            color="C0",
            marker="o",
            label="mean over layers, 95 %",
        )
    for name, style in (("reuse_same_request", "--"), ("reuse_other_request", ":")):
        if name in statistics.by_name:
            one = statistics.by_name[name]
            ax.axhline(one.summary, color="k", linestyle=style, label=one.label)
    ax.set_xscale("log", base=2)
    ax.set_xticks(lags, [str(lag) for lag in lags])
    ax.set(xlabel="distance in tokens of the same request", ylabel="share of experts used again")
    ax.set_ylim(bottom=0)
    ax.legend()
