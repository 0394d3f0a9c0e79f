"""Replaying a trace: batch and placement, the scheme's graph, the engine, the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay.errors import UserError
from replay.experiments.base.estimate import LONG_SECONDS, Estimate
from replay.experiments.layer.describe import describe_result
from replay.experiments.layer.fit import check_fit, estimate_of
from replay.experiments.layer.result import Result
from replay.experiments.layer.setup import (
    Setup,
    check_domain,
    check_needs,
    check_rows,
    load_trace,
    set_up,
    spec_of,
)
from replay.experiments.layer.spec import RunSpec

if TYPE_CHECKING:
    from replay.measure.replayed import Replayed
    from replay.measure.result import ChainResult, LayerResult
    from replay.model.work.batch import Batch
    from replay.schemes.outside import AllowCode
    from tracegen import RoutingTrace


def run(
    trace: RoutingTrace | str | Path | None = None,
    spec: RunSpec | None = None,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Replayed], object] | None = None,
    max_memory: float | None = None,
    report: Callable[[str], object] | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> Result:
    """Replay a trace under one scheme.

    One layer of one step is replayed by itself. Several are chained: each GPU goes on when its own
    tokens are combined, after the attention, norms, gate and shared experts of the next layer.

    Parameters
    ----------
    trace
        A trace, or a reference to one; None takes the spec's.
    spec
        The settings; None takes the defaults.
    progress
        Called for every layer.
    observe
        Called with the schedule of each graph that the result is made from: one for a chain, one
        per layer otherwise. It knows the machine that made it; see `replay.engine.export` and
        `replay.measure.scene` for what to do with it.
    max_memory
        Bytes that it may take; None takes what the machine has left.
    report
        Called with a line that says what a long replay takes, before it starts.
    allow_code
        Whether a scheme's file that the spec names may be executed: a spec may be somebody else's.
        A set of SHA-256s allows files that have one of them. One that `settings` name is executed.
    settings
        Fields of `RunSpec` by name, in place of the spec's: ``scheme="deepep"``, ``ranks=8``. A
        system may also be a `hwmodel.System`, and a scheme a `replay.Scheme`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    UnfitError
        If it takes more memory than there is.
    """
    setup = _set_up(spec, settings, allow_code)
    check_needs(setup.scheme, setup.system)
    loaded, made = load_trace(trace, setup.spec)
    identity = {"content_id": loaded.content_id}
    ready = Setup(made, identity, setup.system, setup.scheme)
    return carry_out(
        ready, loaded, progress=progress, observe=observe, max_memory=max_memory, report=report
    )


def _set_up(spec: RunSpec | None, settings: Mapping[str, Any], allow_code: AllowCode) -> Setup:
    """Follow references; who calls with the name of a scheme's file wants it executed."""
    made, system, scheme = spec_of(spec, settings)
    return set_up(made, {}, system, scheme, allow_code=allow_code or "scheme" in settings)


def estimate(
    trace: RoutingTrace | str | Path | None = None,
    spec: RunSpec | None = None,
    *,
    allow_code: AllowCode = False,
    **settings: Any,
) -> Estimate:
    """Find out what `run` with these parameters takes, by replaying a layer of some of its tokens.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    """
    setup = _set_up(spec, settings, allow_code)
    loaded, _ = load_trace(trace, setup.spec)
    return estimate_of(setup, loaded, check_all(setup, loaded))


def carry_out(
    setup: Setup,
    trace: RoutingTrace,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[Replayed], object] | None = None,
    max_memory: float | None = None,
    report: Callable[[str], object] | None = None,
) -> Result:
    """Replay what was set up; parameters and errors as those of `run`."""
    spec, settings = setup.spec, setup.chain_settings
    first = check_all(setup, trace)
    found = check_fit(
        setup,
        trace,
        first,
        max_memory,
        tells=report is not None,
        is_observed=observe is not None,
    )
    if report and found and found.seconds >= LONG_SECONDS:
        report(found.text())
    later = settings.all_steps[1:]
    batches = [first, *(settings.batch(trace, setup.system, step) for step in later)]
    ready = setup.prepared(trace, batches)
    ready, trials = ready.tuned(spec.tune)  # on the first layer, whichever are replayed
    ready, sample = ready.sampled(spec.sample_layers)
    assert ready.launch is not None
    layers: list[LayerResult] = []
    chain: ChainResult | None = None
    if settings.makes_chain(len(ready.links)):
        chain = ready.chain(
            compare_barrier=spec.compare_barrier, progress=progress, observe=observe
        )
    else:
        layers = list(ready.apart(progress=progress, observe=observe))
    return describe_result(
        setup,
        trace,
        ready.scheme,
        trials,
        first,
        settings.number_types(trace),
        ready.launch,
        layers=layers,
        chain=chain,
        sample=sample,
    )


def check_sampled(setup: Setup, trace: RoutingTrace) -> None:
    """Refuse a sample of the layers of a chain.

    Raises
    ------
    UserError
        Saying why, and what there is.
    """
    settings, number = setup.chain_settings, setup.spec.sample_layers
    if number is not None and settings.makes_chain(settings.num_layers(trace)):
        message = (
            f"--sample-layers {number}: a layer of a chain begins on each GPU when the "
            "one before has ended there, so that none has a time without the others; --barrier "
            "replays layers by themselves"
        )
        raise UserError(message)


def check_all(setup: Setup, trace: RoutingTrace) -> Batch:
    """Refuse what a few counts show to be impossible; gives the batch of the first step.

    Raises
    ------
    UserError
        If system, scheme and trace do not fit together.
    """
    settings, system, scheme = setup.chain_settings, setup.system, setup.scheme
    check_needs(scheme, system)
    check_rows(scheme, settings.number_types(trace).combine)
    check_sampled(setup, trace)
    first = settings.batch(trace, system, settings.step)
    is_chain = settings.makes_chain(settings.num_layers(trace))
    settings.check_nodes(system, first.num_ranks, is_chain=is_chain)
    check_domain(scheme, system, first.num_ranks)
    return first
