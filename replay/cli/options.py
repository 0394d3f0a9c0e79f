"""Options that ``run`` and ``compare`` share, and what their words mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmodel import System
    from tracegen import RoutingTrace

DEFAULT_SYSTEM = "dgx-h100"

TraceArgument = Annotated[str, typer.Argument(help="A file, or a name of `moereplay trace list`.")]
SystemOption = Annotated[
    str, typer.Option("--system", help="A name of `moereplay hardware list`, or a TOML file.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Change a hardware value: KEY=VALUE, repeatable.")
]
RanksOption = Annotated[int | None, typer.Option("--ranks", help="GPUs [all of the system].")]
TokensOption = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-rank", help="Tokens a GPU: 4096 prefill, or 64 running requests decode."
    ),
]
LayerOption = Annotated[str, typer.Option("--layer", help="Position of an MoE layer, or 'all'.")]
PhaseOption = Annotated[
    str | None, typer.Option("--phase", help="prefill or decode [what the trace holds].")
]
StepOption = Annotated[int, typer.Option("--step", help="Later steps take later tokens.")]
StepsOption = Annotated[int, typer.Option("--steps", help="Steps in sequence.")]
PassOption = Annotated[str, typer.Option("--pass", help="forward, backward or training.")]
BarrierOption = Annotated[
    bool, typer.Option("--barrier", help="Each layer by itself, instead of chained per GPU.")
]
PlacementOption = Annotated[
    str, typer.Option("--placement", help="contiguous, round-robin, random:SEED or file:PATH.")
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="bf16, fp8 or fp32 [the model's own].")
]
TuneOption = Annotated[
    bool, typer.Option("--tune", help="Let a scheme choose among its splits of the SMs, by replay.")
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", help="Processes that share the schemes [2 if there is much to do]."),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write the whole result to this file.")
]
TraceEventsOption = Annotated[
    str | None,
    typer.Option("--trace-events", help="Write the schedule for Perfetto to this file (.gz too)."),
]
ExportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--export", help="FORMAT:FILE, repeatable; formats are chrome, chakra, goal, networkx."
    ),
]
WindowOption = Annotated[
    str | None, typer.Option("--window", help="START:END in us that chrome and networkx show.")
]
MaxEventsOption = Annotated[
    int | None,
    typer.Option("--max-events", help="Above so many, chrome gets utilisation [1000000]."),
]


def settings_of(
    ranks: int | None,
    tokens_per_rank: int | None,
    layer: str,
    phase: str | None,
    step: int,
    steps: int,
    direction: str,
    barrier: bool,
    placement: str,
    precision: str | None,
    tune: bool,
) -> dict[str, Any]:
    """Keyword arguments of `replay.run`."""
    return {
        "ranks": ranks,
        "tokens_per_rank": tokens_per_rank,
        "layer": int(layer) if layer.isdecimal() else layer,
        "phase": phase,
        "step": step,
        "steps": steps,
        "direction": direction,
        "barrier": barrier,
        "placement": placement,
        "precision": precision,
        "tune": tune,
    }


def load_both(trace: str, system: str, changes: list[str] | None) -> tuple[RoutingTrace, System]:
    """Load trace and system, the latter with changes of the form ``KEY=VALUE``.

    Raises
    ------
    UserError
        If a change has another form, or there is no such trace, system or value.
    """
    import hwmodel
    import tracegen

    overrides = {}
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not equals:
            message = f"--set {change}: expected KEY=VALUE, such as link.links_per_gpu=8"
            raise UserError(message)
        overrides[key] = value
    machine = hwmodel.load(system, overrides)
    return tracegen.load(trace), machine


def options_of(given: list[str] | None, schemes: Sequence[str]) -> list[tuple[str, str, str]]:
    """(scheme, option, value) of ``SCHEME.K=V``, or of ``K=V`` where there is only one scheme.

    Raises
    ------
    UserError
        If an option has neither form.
    """
    found = []
    for text in given or []:
        name, equals, value = text.partition("=")
        scheme, dot, key = name.rpartition(".")
        if not equals or (not dot and len(schemes) != 1):
            form = "K=V" if len(schemes) == 1 else "SCHEME.K=V, such as deepep.num_sms=20"
            message = f"--option {text}: expected {form}"
            raise UserError(message)
        found.append((scheme if dot else schemes[0], key, value))
    return found
