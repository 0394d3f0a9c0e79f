"""Whether a replay fits: what it takes, found out before it starts, against what there is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replay.chains.chain import check_code_for, faults_of
from replay.experiments.base.estimate import Asked, Estimate, Size, estimate, thinned
from replay.experiments.base.host_memory import limit_of

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.experiments.layer.setup import Setup
    from replay.model.work.batch import Batch
    from replay.schemes import Scheme
    from tracegen import RoutingTrace


def asked_of(
    setup: Setup, trace: RoutingTrace, first: Batch, *, is_observed: bool = False
) -> Asked:
    """Count what is asked for.

    Parameters
    ----------
    first
        Batch of the first step.
    is_observed
        Whether somebody looks at the whole schedule of a chain.

    Raises
    ------
    UserError
        If the trace lacks a layer that is asked for.
    """
    spec, scheme = setup.spec, setup.scheme
    num_layers = setup.chain_settings.num_layers(trace)
    is_chain = setup.chain_settings.makes_chain(num_layers)
    if spec.sample_layers is not None:
        num_layers = min(num_layers, spec.sample_layers)
    return Asked(
        num_ranks=first.num_ranks,
        tokens=first.num_tokens,
        topk=trace.topk * spec.expert_tp,
        num_experts=trace.model.num_ffn_experts * spec.expert_tp,
        num_steps=spec.steps,
        num_layers=num_layers,
        is_chain=is_chain,
        is_whole=is_observed,
        extra_layers=_trials(scheme) if scheme.is_tuned(spec.tune) else 0,
    )


def estimate_of(
    setup: Setup, trace: RoutingTrace, first: Batch, *, is_observed: bool = False
) -> Estimate:
    """Find out what a replay takes, by replaying a layer of some of its tokens.

    Raises
    ------
    UserError
        If what is asked for does not fit together.
    """
    asked = asked_of(setup, trace, first, is_observed=is_observed)
    position = setup.chain_settings.positions(trace)[0]
    passes = len(setup.chain_settings.passes)
    # What is a chain is one in the sample, too: with what lies between its layers.
    one = dataclasses.replace(
        setup,
        spec=setup.spec.changed(
            layer=position, steps=1, barrier=not asked.is_chain, sample_layers=None
        ),
    )

    with faults_of(setup.scheme):  # of the whole layer, which the sample is not
        check_code_for(setup.scheme, one.prepared(trace, [first]).links[0].work(), setup.system)

    def replayed(ranks: int) -> tuple[Size, int]:
        batch = thinned(first, ranks, of_each=setup.spec.sample_nodes is not None)
        sizes: list[Size] = []

        def seen(timeline: Timeline) -> None:
            of_layers = passes if asked.is_chain else 1
            pairs = batch.num_tokens * asked.topk * of_layers
            size = Size.of(timeline.graph, pairs)
            sizes.append(Size(*(value / of_layers for value in size)))

        ready = one.prepared(trace, [batch])
        if asked.is_chain:
            ready.chain(observe=seen)
        else:
            list(ready.apart(observe=seen))
        return max(sizes, key=lambda size: size.num_bytes), batch.num_tokens

    return estimate(setup.scheme.name, asked, replayed)


def check_fit(
    setup: Setup,
    trace: RoutingTrace,
    first: Batch,
    max_memory: float | None = None,
    *,
    tells: bool = False,
    is_observed: bool = False,
) -> Estimate | None:
    """Refuse a replay that needs more memory than there is, before anything is made for it.

    Parameters
    ----------
    first
        Batch of the first step.
    max_memory
        Bytes that it may take; None takes what the machine has left.
    tells
        Whether somebody wants to know what a long replay takes.
    is_observed
        Whether somebody looks at the whole schedule of a chain.

    Returns
    -------
    What it takes; None where it surely fits and nobody wants to know, because then nothing is found
    out, and short replays take no longer.

    Raises
    ------
    UnfitError
        Saying what it needs, what is there and what would fit.
    """
    most = limit_of(max_memory)
    asked = asked_of(setup, trace, first, is_observed=is_observed)
    if asked.sure_bytes <= most and not (asked.is_long and tells):
        return None
    asked.check_kept(most)
    found = estimate_of(setup, trace, first, is_observed=is_observed)
    found.check(most)
    return found


def _trials(scheme: Scheme) -> int:
    """Layers that are replayed to choose options, each value once."""
    return 1 + sum(len(values) for values in scheme.candidates.values())
