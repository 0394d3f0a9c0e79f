"""The normal form of settings: equal replays have equal specs, with what differs from defaults."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hwmodel
from replay.errors import UserError
from replay.model.work.precision import Precision

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.layer.spec import RunSpec
    from replay.schemes import Scheme


def plain_types(spec: RunSpec) -> dict[str, Any]:
    """Number types in one form: that of the GEMMs as precision, and what differs from it.

    Nothing where the model has a say.
    """
    given = (spec.gemm_type, spec.dispatch_type, spec.combine_type)
    name = spec.precision or spec.gemm_type
    if name is None or (spec.precision is None and None in given):
        return {}
    meant = Precision(name, gemm=given[0], dispatch=given[1], combine=given[2], weights=spec.weight_type)
    plain = Precision(meant.between)
    return {
        "precision": meant.between,
        "gemm_type": None if meant.gemm == plain.gemm else meant.gemm,
        "weight_type": None if meant.weights == meant.gemm else meant.weights,
        "dispatch_type": None if meant.dispatch == plain.dispatch else meant.dispatch,
        "combine_type": None if meant.combine == plain.combine else meant.combine,
    }


def changed_options(scheme: Scheme) -> dict[str, Any]:
    """Options of a scheme that are not the defaults of what its reference stands for.

    All options of a scheme that was made in memory, which no reference leads to.
    """
    # Loaded here: results are read, and commands listed, without the code of all schemes.
    from replay.schemes import find

    values = dataclasses.asdict(scheme.options)
    reference = scheme.origin or scheme.name
    try:
        found = find(reference, allow_code=False)  # it was executed to make the scheme
    except UserError:
        return values
    defaults = dataclasses.asdict(found.options)
    return {key: value for key, value in values.items() if value != defaults.get(key)}


def system_reference(system: System) -> dict[str, Any]:
    """Name and overrides that lead to a system, if it is a preset with some values changed."""
    return {"system": system.name, "overrides": changed_values(system.describe())}


def changed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a described system that its preset does not have.

    Parameters
    ----------
    values
        As `hwmodel.System.describe` gives them.

    Returns
    -------
    Nothing where no preset has the system's name.
    """
    return differing(values, _preset(values["name"]))


def differing(values: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Hardware values, by dotted key, that are not the default; one may follow from another."""
    return {key: value for key, value in values.items() if "." in key and key in default and value != default[key]}


@functools.lru_cache(maxsize=64)
def _preset(name: str) -> Mapping[str, Any]:
    """Values of a preset; nothing if there is no such preset."""
    return hwmodel.load(name).describe() if name in hwmodel.names() else {}
