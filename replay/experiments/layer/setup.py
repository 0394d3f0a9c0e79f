"""A spec with what its references lead to: the trace, the system and the scheme.

The module is long because every refusal before a replay stands here, one after the other, each with its
sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from replay.chains.layer_stacks import default_stack, launched_by, stack_of
from replay.chains.preparation import Layers, prepare
from replay.chains.settings import ChainSettings
from replay.errors import RefusedError, UserError, check_kind
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import describe, identity
from replay.experiments.layer.normal_form import (
    changed_options,
    differing,
    plain_types,
    system_reference,
)
from replay.experiments.layer.spec import RunSpec
from replay.schemes import Scheme, find, supporting_schemes
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.registry import COMPARED, names

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.replay import Replay
    from replay.model.work.batch import Batch
    from replay.schemes.outside import AllowCode
    from tracegen import RoutingTrace


SPEC_KINDS = "a RunSpec; write scheme=..., system=... for the rest"
SCHEME_KINDS = "a name of `moereplay schemes`, FILE.py:NAME, or a replay.Scheme"
SYSTEM_KINDS = "a name of `moereplay hardware list`, a TOML file, or a hwmodel.System"
TRACE_KINDS = "a RoutingTrace, a file, a URL, or a name of `moereplay trace list`"


@dataclass(frozen=True)
class LayerSetup:
    """One replay, ready to be carried out on its trace.

    Attributes
    ----------
    spec
        In normal form: options and overrides hold only what differs from the defaults, so that
        equal replays have equal specs.
    trace_identity
        What makes two traces the same: the content id, or all arguments of the generator.
    system, scheme
        What the spec's references lead to.
    """

    spec: RunSpec
    trace_identity: Mapping[str, Any]
    system: System
    scheme: Scheme

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON objects.

        Raises
        ------
        UserError
            If a placement file cannot be read.
        """
        return describe(self.spec, self.trace_identity, self.system, self.scheme)

    @cached_property
    def chain_settings(self) -> ChainSettings:
        """Settings of chains that the spec decides."""
        return ChainSettings.of(self.spec)

    def prepare(self, trace: RoutingTrace, batches: Sequence[Batch] | None = None) -> Replay:
        """Make the replay ready; see `replay.chains.preparation.prepare`."""
        return prepare(Layers(self.chain_settings, trace, self.system, batches), self.scheme)

    @cached_property
    def run_id(self) -> str:
        """Identity of the replay; raises as `description` does."""
        return identity(self.description)


@dataclass(frozen=True)
class TracedSetup:
    """A replay that was set up, and its layers, which others may share."""

    setup: LayerSetup
    layers: Layers

    @property
    def trace(self) -> RoutingTrace:
        """Its trace."""
        return self.layers.trace

    @property
    def first(self) -> Batch:
        """Batch of its first step."""
        return self.layers.first

    @classmethod
    def of(cls, spec: RunSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Follow the references of a spec, and read the trace once.

        Parameters
        ----------
        given
            May have a trace, a system and a scheme as objects.

        Raises
        ------
        UserError
            If a reference leads nowhere, or system, scheme and trace do not fit together.
        """
        objects, like = given.objects, given.like
        system, scheme = objects.get("system"), objects.get("scheme")
        if like is not None and system is None and _same_system(spec, like.setup.spec):
            system = like.setup.system
        ready = set_up(spec, {}, system, scheme, allow_code=given.allow_code)
        check_needs(ready.scheme, ready.system)
        if like is None:
            trace, made = load_trace(objects.get("trace"), ready.spec)
        else:  # the trace is read once, and every spec refers to it
            known = like.setup.spec
            trace = like.trace
            made = ready.spec.changed(trace=known.trace, content_id=known.content_id)
        identity = {"content_id": trace.content_id}
        setup = LayerSetup(made, identity, ready.system, ready.scheme)
        return cls.on(setup, trace, None if like is None else like.layers)

    @classmethod
    def on(cls, setup: LayerSetup, trace: RoutingTrace, like: Layers | None = None) -> Self:
        """Set a replay up on a trace, sharing the layers `like` if they are equal; raises as `of` does."""
        settings, system = setup.chain_settings, setup.system
        if like is not None and (like.system is not system or like.settings != settings):
            like = None
        first = check_all(setup, trace, None if like is None else like.first)
        return cls(setup, like or Layers(settings, trace, system, first=first))

    def prepare(self) -> Replay:
        """Make the replay ready; see `LayerSetup.prepare`."""
        return prepare(self.layers, self.setup.scheme)

    @property
    def run_id(self) -> str:
        """Identity of the result."""
        return self.setup.run_id


def _same_system(one: RunSpec, other: RunSpec) -> bool:
    """Tell whether two specs refer to one system as it is described."""
    return one.system == other.system and not one.overrides and not other.overrides


def spec_of(spec: RunSpec | None, settings: Mapping[str, Any]) -> tuple[RunSpec, System | None, Scheme | None]:
    """Put a spec and further settings together.

    Parameters
    ----------
    spec
        What the settings change; None takes the defaults.
    settings
        Fields of `RunSpec` by name, where ``system`` may be a `hwmodel.System` and ``scheme`` a
        `Scheme`.

    Returns
    -------
    The spec, and the system and the scheme that were given as objects.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """
    if spec is not None:
        check_kind("spec", spec, RunSpec, SPEC_KINDS)
    given = dict(settings)
    system, scheme = given.get("system"), given.get("scheme")
    if scheme is not None:
        check_kind("scheme", scheme, (str, Scheme), SCHEME_KINDS)
    if isinstance(system, Path):
        given["system"] = str(system)
    elif system is not None and not isinstance(system, str):
        import hwmodel

        check_kind("system", system, hwmodel.System, SYSTEM_KINDS)
        if given.get("overrides"):
            message = "overrides go with the name of a system; a System has its own values"
            raise UserError(message)
        given |= system_reference(system)
    if isinstance(scheme, Scheme):
        if given.get("options"):
            message = "options go with the name of a scheme; a Scheme has its own"
            raise UserError(message)
        given |= {"scheme": scheme.origin or scheme.name, "options": changed_options(scheme)}
    made = RunSpec(**given) if spec is None else spec.changed(**given)
    return (
        made,
        None if system is None or isinstance(system, str | Path) else system,
        scheme if isinstance(scheme, Scheme) else None,
    )


def set_up(
    spec: RunSpec,
    trace_identity: Mapping[str, Any],
    system: System | None = None,
    scheme: Scheme | None = None,
    *,
    allow_code: AllowCode = False,
) -> LayerSetup:
    """Follow the references of a spec.

    Parameters
    ----------
    spec
        The settings.
    trace_identity
        See `LayerSetup`.
    system, scheme
        Objects to take in place of what the spec refers to.
    allow_code
        Whether a scheme's file that the spec names may be executed, see `replay.schemes.find`.

    Raises
    ------
    UserError
        If a reference leads nowhere, or an option or a hardware value is not possible.
    """
    changes: dict[str, Any] = {}
    if system is None:
        import hwmodel

        system = hwmodel.load(spec.system, spec.overrides)
        if spec.overrides:
            default = hwmodel.load(spec.system).describe()
            changes["overrides"] = differing(system.describe(), default)
    options: Mapping[str, Any] = spec.options
    if scheme is None:
        scheme = find_scheme(spec.scheme, allow_code=allow_code).with_options(options)
        changes["options"] = changed_options(scheme)
    else:
        options = changed_options(scheme)
    changes |= plain_types(spec)
    scheme = launched_by(
        scheme,
        spec.stack or default_stack(system, communication_only=spec.communication_only),
        options,
        in_pairs=spec.interleave == "dualpipe",
        is_training=spec.direction != "forward",
    )
    if spec.combine_type is not None:
        check_combine_type(scheme, spec.combine_type)
    if scheme.is_tuned(spec.tune) == scheme.is_tuned(None):
        changes["tune"] = None
    return LayerSetup(spec.changed(**changes), trace_identity, system, scheme)


def find_scheme(reference: str | None, *, allow_code: AllowCode) -> Scheme:
    """Look up a scheme with its default options.

    Parameters
    ----------
    reference, allow_code
        As of `replay.schemes.find`; None is refused.

    Raises
    ------
    UserError
        If there is no such scheme, naming those there are.
    """
    if reference is None:
        message = (
            "no scheme is given: give one, such as --scheme deepep, in Python scheme='deepep'; "
            f"`moereplay schemes` lists all {len(list(names('ep')))}"
        )
        raise UserError(message)
    return find(reference, allow_code=allow_code)


def load_trace(trace: RoutingTrace | str | Path | None, spec: RunSpec) -> tuple[RoutingTrace, RunSpec]:
    """Load a trace if it is not loaded yet, and check that it is the one of the spec.

    Parameters
    ----------
    trace
        A trace or a reference to one; None takes the spec's reference.
    spec
        The settings.

    Returns
    -------
    The trace, and the spec with its content id and a reference that leads to it, if there is one.

    Raises
    ------
    UserError
        If there is no trace, it is another than the spec says, or not of the spec's model.
    """
    import tracegen

    reference = spec.trace if trace is None else str(trace) if isinstance(trace, str | Path) else ""
    if reference is None:
        message = (
            "no trace is given: give a file, a URL, or a name of `moereplay trace list`; "
            "`moereplay trace generate zipf --model NAME --out FILE` makes one of a model"
        )
        raise UserError(message)
    loaded = tracegen.load(reference) if isinstance(trace, str | Path | None) else trace
    check_kind("trace", loaded, tracegen.RoutingTrace, TRACE_KINDS)
    as_stored = None if spec.content_id is None else loaded.content_id
    if spec.model is not None:
        loaded = loaded.with_shape(tracegen.models.load(spec.model))
    if spec.content_id not in (None, as_stored, loaded.content_id):
        message = (
            f"this is not the trace of the spec: its content is {loaded.content_id[:12]}, not "
            f"{str(spec.content_id)[:12]}"
        )
        raise UserError(message)
    if not reference:
        # A trace in memory is where the reference leads only if its content was just checked.
        reference = spec.trace if spec.content_id is not None else None
    return loaded, spec.changed(trace=reference, content_id=loaded.content_id)


def check_needs(scheme: Scheme, system: System) -> None:
    """Refuse a system that lacks what a scheme needs.

    Raises
    ------
    RefusedError
        Naming what is missing, and the schemes that the system supports.
    """
    missing = scheme.lacks(system)
    if missing:
        why = f"needs {', '.join(sorted(missing))}, which system {system.name!r} lacks"
        message = f"scheme {scheme.name!r} {why}; it supports: {', '.join(supporting_schemes(system))}"
        raise RefusedError(message, f"scheme {scheme.name!r}: it {why}")


def check_combine_type(scheme: Scheme, combine_type: str) -> None:
    """Refuse rows back of a type that a scheme cannot carry or add up.

    Raises
    ------
    LayerRefusedError
        Naming the types that it can, and the schemes that can carry this one.
    """
    if combine_type in scheme.combine_types:
        return
    can = [name for name, one in COMPARED.items() if combine_type in one.combine_types]
    message = (
        f"scheme {scheme.name!r} has no {combine_type} rows on the way back, only "
        f"{', '.join(sorted(scheme.combine_types))}; {combine_type} rows have: {', '.join(can)}"
    )
    raise LayerRefusedError(message)


def check_domain(scheme: Scheme, system: System, num_ranks: int) -> None:
    """Refuse more ranks than a domain has for a scheme that knows one NVLink domain only.

    Raises
    ------
    LayerRefusedError
        Saying how many GPUs a domain has.
    """
    per_domain = system.fabric.gpus_per_domain
    if not scheme.network and num_ranks > per_domain:
        message = (
            f"scheme {scheme.name!r}: written for one NVLink domain; {num_ranks} ranks were asked "
            f"for, a domain of {system.name!r} has {per_domain} GPUs"
        )
        raise LayerRefusedError(message)


def check_sampled(setup: LayerSetup, *, is_chain: bool) -> None:
    """Refuse a sample of the layers of a chain.

    Raises
    ------
    UserError
        Saying why, and what there is.
    """
    number = setup.spec.sample_layers
    if number is not None and is_chain:
        message = (
            f"--sample-layers {number}: a layer of a chain begins on each GPU when the "
            "one before has ended there, so that none has a time without the others; --barrier "
            "replays layers by themselves"
        )
        raise UserError(message)


def check_all(setup: LayerSetup, trace: RoutingTrace, first: Batch | None = None) -> Batch:
    """Refuse what a few counts show to be impossible, and give the batch of the first step.

    Parameters
    ----------
    first
        That batch, if it is known.

    Raises
    ------
    UserError
        If system, scheme and trace do not fit together.
    """
    settings, system, scheme = setup.chain_settings, setup.system, setup.scheme
    settings.check_interleaved()
    types, is_chain = settings.number_types(trace), settings.makes_chain(settings.num_layers(trace))
    if first is None:
        first = settings.batch(trace, system, settings.step)
    check_needs(scheme, system)
    check_combine_type(scheme, types.combine)
    check_sampled(setup, is_chain=is_chain)
    check_domain(scheme, system, first.num_ranks)
    stack_of(settings, trace, system, scheme)
    settings.check_nodes(system, first.num_ranks, is_chain=is_chain)
    return first
