"""A chain of layers composed of the times of its layers, beside the chain replayed.

What composition loses shows in the difference: a GPU that is early waits for the last one before
each MoE part, where the chain lets its rows leave at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.replay import Replay
from replay.model.compute.dense import Between
from replay.steps.layer_passes import LayerPasses
from replay.steps.times import Timed

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.model.machine.host import Launch
    from replay.schemes import Scheme
    from replay.steps.times import Ints


class Compared(NamedTuple):
    """Times of a chain in microseconds.

    Attributes
    ----------
    composed_us, chain_us, barrier_us
        Composed; replayed; and replayed with a barrier after each layer, where nothing of a layer
        overlaps with another.
    """

    composed_us: float
    chain_us: float
    barrier_us: float


def compare(
    links: Sequence[ChainLink], system: System, scheme: Scheme, launch: Launch | None
) -> Compared:
    """Compose a chain, and replay it.

    Parameters
    ----------
    links
        Layers as `replay.chains.preparation.prepare` gives them.
    launch
        How hosts launch kernels.
    """
    end = composed(timed_links(links, system, scheme, launch))
    chain = Replay(links, system, scheme, launch).chain(compare_barrier=True)
    assert chain.barrier_us is not None
    return Compared(int(end.max()) / 1e6, chain.measures.makespan_us, chain.barrier_us)


def timed_links(
    links: Sequence[ChainLink], system: System, scheme: Scheme, launch: Launch | None
) -> list[Timed]:
    """Replay the passes of a chain one by one."""
    found = []
    for link in links:
        between, context = link.between, link.context
        assert between is not None
        assert context is not None
        values = {one.name: getattr(between, one.name) for one in dataclasses.fields(between)}
        parts = Between(**{**values, "is_backward": False})
        passes = LayerPasses(system, scheme, launch, parts, context)
        shape, before = parts.shape, link.decoder_layer - 1
        while before in shape.dense_layers:
            dense = passes.dense()
            found.append(dense.backward if link.is_backward else dense.forward)
            before -= 1
        found.append(passes.one_pass(link, is_first=not found))
    return found


def composed(passes: Iterable[Timed]) -> Ints:
    """When each GPU is through with passes that all begin at once: (rank,) picoseconds."""
    ended: Ints = np.zeros(1, np.int64)  # of all GPUs alike
    for one in passes:
        come = ended + one.own
        ended = come.max() + one.met if one.meets else come
    return ended
