"""Inputs of two replays that differ, by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hwmodel.units import unit_of
from replay.experiments.base.identity import BY_VALUE
from replay.experiments.layer.result import Result
from replay.studies.differences import any_experiment as of_any
from replay.studies.differences.parts import Change

if TYPE_CHECKING:
    from replay.experiments.base.result import ResultBase
    from replay.studies.differences.pairs import Pair

BY_RESULT = BY_VALUE | {
    "precision",
    "gemm_type",
    "weight_type",
    "dispatch_type",
    "combine_type",
    "launch",
    "stack",
}
"""Settings of a spec that a result states by what they came to, and not by what was asked."""

RESTS_ON = ("source", "assumes", "traffic")
"""What a scheme says of itself in sentences: a revision of the scheme, if it is not the same."""


def inputs_of(result: ResultBase) -> dict[str, Any]:
    """Everything that entered a result, by dotted name."""
    if not isinstance(result, Result):
        return of_any.inputs_of(result)
    found: dict[str, Any] = {"version of moereplay": result.version}
    found |= _flatten("trace", result.trace.model_dump(mode="json"))
    found |= {"system.name": result.system.name, "system.num_gpus": result.system.num_gpus}
    found |= _flatten("system", result.system.values)
    scheme = result.scheme.model_dump(mode="json")
    found |= {"scheme.name": scheme["name"], "scheme.code": scheme["code"]}
    found |= {f"scheme.{name}": scheme[name] for name in RESTS_ON}
    found |= {f"scheme.{name}": ", ".join(scheme[name]) for name in ("proposes", "lacking")}
    found |= _flatten("option", scheme["options"])
    found |= _flatten("batch", result.batch.model_dump(mode="json"))
    found |= _flatten("type", result.types.model_dump(mode="json"))
    found |= {"placement": result.placement, "launch": result.launch, "stack": result.hosts}
    settings = result.spec.model_dump(mode="json", by_alias=True, exclude=set(BY_RESULT))
    # Ranks, tokens and phase may be left to the trace: the batch says what they came to.
    given = {"ranks", "tokens_per_rank", "phase", "step"}
    found |= {name: value for name, value in settings.items() if name not in given}
    found["layers replayed"] = _layers(result)
    return found


def changes(pairs: Sequence[Pair]) -> list[Change]:
    """Inputs that changed: each once if in all pairs, else with the names of its pairs."""
    return changes_of([(one.name, inputs_of(one.before), inputs_of(one.after)) for one in pairs])


def changes_of(pairs: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> list[Change]:
    """Inputs that changed, from (name of the pair, inputs before, inputs after)."""
    found: dict[tuple[str, str], tuple[Any, Any, list[str]]] = {}
    for name, before, after in pairs:
        for what in {**before, **after}:
            values = before.get(what), after.get(what)
            if values[0] != values[1]:
                key = (what, repr(values))
                found.setdefault(key, (*values, []))[2].append(name)
    return [
        Change(
            what=what,
            unit=_unit(what),
            before=before,
            after=after,
            schemes=[] if len(names) == len(pairs) else names,
        )
        for (what, _), (before, after, names) in found.items()
    ]


def _unit(what: str) -> str:
    """Unit of a hardware value, of the system or of that of a phase."""
    _, is_hardware, key = f".{what}".partition(".system.")
    return unit_of(f"system.{key}") if is_hardware else ""


def _layers(result: Result) -> list[int]:
    """Positions of the layers, in order, each once."""
    return list(dict.fromkeys(layer.layer_index for layer in result.replayed_layers))


def _flatten(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in values.items()}
