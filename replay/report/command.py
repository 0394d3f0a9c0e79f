"""The command line that makes a result again, from what was asked for: only what differs.

>>> from replay.experiments.layer.spec import RunSpec
>>> command(["moereplay", "run"], RunSpec(trace="v3.h5", scheme="deepep", layer=12))
'moereplay run v3.h5 --scheme deepep --layer 12'
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replay.experiments.base.spec import PLACES, Flag, toml_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from replay.experiments.base.schemed import AnySchemeExperiment
    from replay.experiments.layer.result import Comparison, Result

FOUND_BY_READING = frozenset({"content_id"})
"""Settings that reading the trace fills in."""


def command(
    words: Sequence[str],
    spec: BaseModel,
    *,
    leave_out: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> str:
    """Write the command line that asks for a spec.

    Parameters
    ----------
    words
        The command, such as ``["moereplay", "run"]``.
    spec
        `RunSpec`, or another whose fields are the options of a command.
    leave_out
        Fields that are no options of the command, or that `more` gives.
    defaults
        Values that the command takes in place of a field's default.
    more
        Words at the end.

    Returns
    -------
    One line that a shell reads as these words, whatever is in them.
    """
    named: list[str] = []
    places: list[str] = []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        usual = (defaults or {}).get(name, field.default)
        if name in leave_out or name in FOUND_BY_READING or value == usual or value is None:
            continue
        (places if _is_place(name, field) else named).extend(_words(name, field, value))
    # What begins with a dash is no option only behind two of them.
    behind = any(one.startswith("-") for one in places)
    found = [*named, *more, "--", *places] if behind else [*places, *named, *more]
    return shlex.join([*words, *found])


def command_words(words: Sequence[str]) -> str:
    """Put words together as a shell reads them."""
    return shlex.join(words)


def _flags(field: FieldInfo) -> list[Flag]:
    return [one for one in field.metadata if isinstance(one, Flag)]


def _is_place(name: str, field: FieldInfo) -> bool:
    """Whether it is an argument, which has no option before it."""
    return name in PLACES and not _flags(field)


def _words(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    """A value as `replay.cli.options.takes_settings` reads it."""
    flags, word = _flags(field), (field.alias or name).replace("_", "-")
    option = flags[0].name if flags else f"--{word}"
    if _is_place(name, field):
        yield str(value)
    elif isinstance(value, bool):
        yield option if value else f"--no-{word}"
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield option
            yield f"{key}={value_text(one)}"
    elif isinstance(value, list):  # an option that may stand several times
        for one in value:
            yield from (option, str(one))
    else:
        yield option
        several = isinstance(value, Sequence) and not isinstance(value, str)
        yield ",".join(map(str, value)) if several else str(value)


def value_text(value: Any) -> str:
    """A value of a table as the command line takes it, such as ``true``, ``8``, ``[5, 4]``."""
    return value if isinstance(value, str) else _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_of(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return toml_of(value)


def scheme_words(
    results: Sequence[Any],
    experiment: AnySchemeExperiment,
    *,
    baseline: str,
    usual: Sequence[str] = (),
) -> list[str]:
    """Words of a command line that ask for the schemes of some results.

    Parameters
    ----------
    experiment
        Whose results they are.
    baseline
        What speed-ups are over.
    usual
        References to schemes that run where none is named.
    """
    asked = list(dict.fromkeys(experiment.reference(one.spec) for one in results))
    words = [] if asked == list(usual) else repeated("--scheme", asked)
    words += [] if baseline == experiment.baseline(results) else ["--baseline", baseline]
    options: dict[str, None] = {}
    for one in results:
        for name, own in one.asked_options.items():
            options |= dict.fromkeys(f"{name}.{key}={value_text(own[key])}" for key in own)
    return words + repeated("--option", options)


def repeated(option: str, values: Iterable[str]) -> list[str]:
    """Words of an option that is given once for each value."""
    return [word for value in values for word in (option, value)]


def run_command(result: Result) -> str:
    """Command that makes one result again; empty where the trace was not given by a reference."""
    if result.spec.trace is None:
        return ""
    return command(["moereplay", "run"], result.spec, defaults={"compare_barrier": True})


def compare_command(compared: Comparison) -> str:
    """Command that makes a comparison again; empty where no single one does."""
    results = compared.results
    specs = [one.spec for one in results]
    tune = _tune_of_all(results)
    shared: dict[str, Any] = {"scheme": None, "options": {}, "placement": "contiguous"}
    common = [one.changed(**shared, tune=tune if one.tune is None else one.tune) for one in specs]
    schemes = list(dict.fromkeys(str(one.scheme) for one in specs))
    placements = list(dict.fromkeys(one.placement for one in specs))
    own = {one.spec.scheme: (one.scheme.name, one.spec.options) for one in results}
    pairs = [(one.scheme, one.placement) for one in specs]
    is_whole = pairs == [(scheme, place) for scheme in schemes for place in placements]
    if common[0].trace is None or any(one != common[0] for one in common) or not is_whole:
        return ""
    more: list[str] = []
    if schemes != _usual_schemes(compared):
        more += repeated("--scheme", schemes)
    if compared.baseline != _usual_baseline(compared):
        more += ["--baseline", compared.baseline]
    for scheme in schemes:
        name, options = own[scheme]
        for key, value in options.items():
            more += ["--option", f"{name}.{key}={value_text(value)}"]
    if placements != ["contiguous"]:
        more += repeated("--placement", placements)
    more += _uncertainty(compared)
    left_out = ("scheme", "options", "placement")
    return command(["moereplay", "compare"], common[0], leave_out=left_out, more=more)


def _uncertainty(compared: Comparison) -> list[str]:
    """Words that ask for the draws of a comparison; none where there are none."""
    from replay.studies.uncertainty.assess import EVERYTHING

    found, more = compared.uncertainty, []
    if found is not None:
        more += ["--uncertainty", str(found.draws)]
        if list(found.drawn) != list(EVERYTHING):
            more += ["--uncertainty-of", ",".join(found.drawn)]
        if found.seed:
            more += ["--uncertainty-seed", str(found.seed)]
    return more


def _tune_of_all(results: Sequence[Result]) -> bool | None:
    """What was said on tuning; a spec says nothing where that makes no difference to its scheme."""
    from replay.schemes.registry import COMPARED

    said = {one.spec.tune for one in results} - {None}
    if len(said) != 1:
        return None
    (tune,) = said
    silent = {one.scheme.name for one in results if one.spec.tune is None} & set(COMPARED)
    is_same = all(COMPARED[name].is_tuned(tune) == COMPARED[name].is_tuned(None) for name in silent)
    return tune if is_same else None


def _usual_schemes(compared: Comparison) -> list[str]:
    """Schemes that are compared where none is named; none where the machine is a file."""
    from replay.report.machines import preset
    from replay.schemes import supported

    spec = compared.results[0].spec
    system = preset(spec.system, spec.overrides)
    names = [] if system is None else supported(system)
    return [name for name in names if name not in compared.left_out]


def _usual_baseline(compared: Comparison) -> str:
    from replay.experiments.layer.experiment import EXPERIMENT

    return EXPERIMENT.baseline(compared.results)
