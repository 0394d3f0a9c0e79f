"""Cost of a replay, found before it starts, by a layer of some of its tokens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replay.chains.chain import check_code_for, faults_of
from replay.experiments.base.estimate import Estimate, ReplayCounts, Size, estimate, thin_batch

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.experiments.layer.setup import TracedSetup
    from replay.schemes import Scheme


def asked_of(setup: TracedSetup, *, is_observed: bool = False) -> ReplayCounts:
    """Count what is asked for.

    Parameters
    ----------
    is_observed
        Whether somebody looks at the whole schedule of a chain.

    Raises
    ------
    UserError
        If the trace lacks a layer that is asked for.
    """
    spec, scheme, trace = setup.setup.spec, setup.setup.scheme, setup.trace
    num_layers = setup.setup.chain_settings.num_layers(trace)
    is_chain = setup.setup.chain_settings.makes_chain(num_layers)
    if spec.sample_layers is not None:
        num_layers = min(num_layers, spec.sample_layers)
    return ReplayCounts(
        num_ranks=setup.first.num_ranks,
        tokens=setup.first.num_tokens,
        topk=trace.topk * spec.expert_tp,
        num_experts=trace.model.num_ffn_experts * spec.expert_tp,
        num_steps=spec.steps,
        num_layers=num_layers,
        is_chain=is_chain,
        is_whole=is_observed,
        extra_layers=_trials(scheme) if scheme.is_tuned(spec.tune) else 0,
    )


def estimate_of(setup: TracedSetup, *, is_observed: bool = False) -> Estimate:
    """Find out what a replay takes, by replaying a layer of some of its tokens.

    Raises
    ------
    UserError
        If what is asked for does not fit together.
    """
    asked = asked_of(setup, is_observed=is_observed)
    whole, trace = setup.setup, setup.trace
    position = whole.chain_settings.positions(trace)[0]
    passes = len(whole.chain_settings.passes)
    # What is a chain is one in the sample, too: with what lies between its layers.
    one = dataclasses.replace(
        whole,
        spec=whole.spec.changed(layer=position, steps=1, barrier=not asked.is_chain, sample_layers=None),
    )

    with faults_of(whole.scheme):  # of the whole layer, which the sample is not
        first = one.prepare(trace, [setup.first]).links[0]
        check_code_for(whole.scheme, first.work(), whole.system)

    def replay_ranks(ranks: int) -> tuple[Size, int]:
        batch = thin_batch(setup.first, ranks, of_each=whole.spec.sample_nodes is not None)
        sizes: list[Size] = []

        def see(timeline: Timeline) -> None:
            of_layers = passes if asked.is_chain else 1
            pairs = batch.num_tokens * asked.topk * of_layers
            size = Size.of(timeline.graph, pairs)
            sizes.append(Size(*(value / of_layers for value in size)))

        ready = one.prepare(trace, [batch])
        if asked.is_chain:
            ready.chain(observe=see)
        else:
            list(ready.apart(observe=see))
        return max(sizes, key=lambda size: size.num_bytes), batch.num_tokens

    return estimate(whole.scheme.name, asked, replay_ranks)


def _trials(scheme: Scheme) -> int:
    """Layers that are replayed to choose options, each value once."""
    return 1 + sum(len(values) for values in scheme.candidates.values())
