"""Two results of any experiment: what entered, and every number that came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, check_kind
from replay.experiments.base.documents import written_format
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.base.load import load_result
from replay.experiments.base.result import ComparisonBase, ResultBase
from replay.experiments.layer.result import TracedResult

if TYPE_CHECKING:
    from replay.experiments.base.experiment import AnyExperiment

Numbers = dict[tuple[str, str], float]
"""By name and unit."""

BY_VALUE = ("system", "scheme", "overrides", "options", "prefill_scheme", "prefill_options")
"""Settings of a spec that a result describes by value."""


def load(given: object) -> Any:
    """Read a file, or take what is a result or a comparison already.

    Raises
    ------
    UserError
        If it is neither, or its file cannot be read.
    """
    found = load_result(given) if isinstance(given, str | Path) else given
    kinds = (ResultBase, ComparisonBase)
    written = written_format(found)
    if written is not None and not isinstance(found, kinds):
        where = f"{given}: " if isinstance(given, str | Path) else ""
        message = f"{where}{written} is no result or comparison of an experiment"
        raise UserError(message)
    check_kind("before or after", found, kinds, "a result, a comparison or a file of one")
    return found


def experiment_of(before: object, after: object, feature: str) -> AnyExperiment:
    """Give the experiment that both are results or comparisons of.

    Parameters
    ----------
    feature
        What is asked for: ``diff`` or ``explain``.

    Raises
    ------
    UserError
        If they are of two, or it does not offer this.
    """
    both = [EXPERIMENTS.of(one) for one in (before, after)]
    if both[0] is not both[1]:
        titles = f"one is of: {both[0].title}; the other of: {both[1].title}"
        message = f"{titles}; {feature} takes two of one kind"
        raise UserError(message)
    both[0].check_offers(feature)
    return both[0]


def inputs_of(result: ResultBase) -> dict[str, Any]:
    """Everything that entered a result, by dotted name."""
    document = result.model_dump(mode="json", by_alias=True)
    found: dict[str, Any] = {"version of moereplay": document["version"]}
    found |= {name: one for name, one in document["spec"].items() if name not in BY_VALUE}
    if isinstance(result, TracedResult):
        found |= {"launch": result.launch, "stack": result.hosts}
    parts = {name: document[name] for name in sorted(result.ENTERED & document.keys())}
    found |= {path: one for name in parts for path, one in _leaves(parts[name], name)}
    for path, described in _descriptions(document):
        if path.endswith("system"):
            values = {f"{path}.{key}": value for key, value in described["values"].items()}
            found |= {f"{path}.name": described["name"], **values}
            found[f"{path}.num_gpus"] = described["num_gpus"]
        else:
            options = {f"{path}.option.{key}": one for key, one in described["options"].items()}
            said = {key: one for key, one in described.items() if isinstance(one, str)}
            found |= {f"{path}.{key}": one for key, one in said.items()} | options
    return found


def came_out(result: ResultBase) -> Numbers:
    """Every number that came out of a result, by its path and its unit."""
    document = result.model_dump(mode="json", by_alias=True)
    apart = {"format", "run_id", "version", "spec", *result.ENTERED}
    return {
        (path, _unit(path)): number
        for name, value in document.items()
        if name not in apart
        for path, number in _numbers(value, name)
    }


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Numbers of a part of a result, but for systems, schemes and their code; a list of them as its mean."""
    if isinstance(value, Mapping):
        if path.rpartition(".")[2] in ("system", "scheme", "places", "by_place_us"):
            return
        for name, one in value.items():
            yield from _numbers(one, f"{path}.{name}")
    elif isinstance(value, list):
        flat = _flat(value)
        if flat is None:
            for place, one in enumerate(value):
                yield from _numbers(one, f"{path}.{place}")
        elif flat:
            yield f"{path}, mean" if len(flat) > 1 else path, sum(flat) / len(flat)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def _flat(value: Sequence[Any]) -> list[float] | None:
    """Numbers of a list or of lists of them; None where it holds something else."""
    found: list[float] = []
    for one in value:
        more = _flat(one) if isinstance(one, list) else [one]
        if more is None or not all(type(each) in (int, float) for each in more):
            return None
        found += more
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, f"{path}.{name}")
    else:
        yield path, value


def _descriptions(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Systems and schemes of a result or of its phases."""
    for name, value in document.items():
        if name in ("system", "scheme") and isinstance(value, Mapping):
            yield f"{path}{name}", value
        elif isinstance(value, Mapping) and name != "spec":
            yield from _descriptions(value, f"{path}{name}.")


def _unit(path: str) -> str:
    names = path.removesuffix(", mean").split(".")
    if any(name.endswith("_us") for name in names):
        return "us"
    return "bytes" if any(name.endswith("bytes") for name in names) else ""
