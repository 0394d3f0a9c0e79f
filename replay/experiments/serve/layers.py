"""MoE layers of an iteration by replay: exactly at some numbers of tokens, and in between.

Some of the model's MoE layers are replayed as a chain, with attention and the rest of each layer
before them, by the same machinery as `moereplay run`. What the chain takes beyond attention and the
rest is the MoE layers' own: rows that travel, experts, and waiting for each other. Attention grows
with the cache, and it is added up exactly for each iteration (`replay.experiments.serve.parts`);
the MoE layers' part depends on the tokens alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hwmodel.units import PS_PER_US
from replay.chains.host_program import num_kernels, typical_program
from replay.chains.memory import largest
from replay.errors import UserError
from replay.experiments.layer.setup import check_domain, check_needs
from replay.experiments.serve.iteration import Load, PromptPiece
from replay.experiments.serve.parts import EngineParts, LoadRows
from replay.experiments.serve.stream import KernelTotals
from replay.model.machine.host import OUTSIDE
from replay.model.work.context import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.chains.chain import ChainLink
    from replay.chains.replay import Replay
    from replay.experiments.layer.setup import LayerSetup
    from replay.experiments.serve.routing import RoutingSource
    from replay.measure.parts import Memory
    from replay.model.machine.host import Launch
    from replay.model.work.batch import Phase
    from replay.model.work.stacks import Stack

MOST_CUTS = 3  # of a stretch between two numbers of tokens, one a power of 2 of the other


class Moe(NamedTuple):
    """Time of an MoE layer beyond attention and the rest, in picoseconds.

    Attributes
    ----------
    experts
        Time in which something computes.
    exchange
        Time in which nothing does: rows travel or are waited for. Mean over the GPUs.
    once
        Time of an iteration beyond that of its layers, where micro-batches take turns: until all
        have begun, and after the first is through.
    """

    experts: float
    exchange: float
    once: float = 0.0

    @property
    def total(self) -> float:
        """Time of a layer."""
        return self.experts + self.exchange


@dataclass
class ServedLayers:
    """MoE layers of one scheme in one phase.

    Attributes
    ----------
    setup
        Scheme, system and settings of the replays.
    routing
        Where their routing comes from.
    phase
        Whether kernels are those of prompts or of decoding.
    parts
        What lies before a layer, of a model whose attention is not sliced.
    positions
        Positions that each decoded token attends to in the replays, or that lie before a prompt.
    tolerance
        By how much of an MoE layer's time a straight line between two numbers of tokens may be
        off in their middle, before the stretch is cut there.
    most
        Tokens per GPU that no iteration, and so no replay, has more of.
    largest_error
        Largest error of a line that was used, in its middle, as a share. The middle has been exact
        since.
    replays
        Chains that were replayed.
    memory
        Device memory of the layer that took most, of all that were replayed.
    stack, call_ps
        What launches them, and the time of its call between them where no graph holds it; None
        for bare launches, and before the first replay.
    """

    setup: LayerSetup
    routing: RoutingSource
    phase: Phase
    parts: EngineParts
    positions: int
    tolerance: float
    most: int
    largest_error: float = 0.0
    replays: int = 0
    memory: Memory | None = None
    stack: Stack | None = None
    call_ps: int | None = None
    _launch: Launch | None = None
    _exact: dict[tuple[int, int], Moe] = dataclasses.field(default_factory=dict)

    @property
    def launch(self) -> Launch:
        """Launches of kernels by hosts, as the scheme can be launched in this phase."""
        if self._launch is None:
            self._launch = self._prepare(1).launch
        assert self._launch is not None
        return self._launch

    @cached_property
    def kernels(self) -> int:
        """Kernels of an MoE layer, as the scheme launches them."""
        return num_kernels(typical_program(self.setup.scheme, system=self.setup.system) or ())

    @property
    def is_interleaved(self) -> bool:
        """Tell whether micro-batches take turns, so that attention hides what travels."""
        return self.setup.spec.interleave != "off"

    def at(self, tokens: int, positions: int) -> Moe:
        """Time of a layer with so many tokens per GPU, by replay.

        Parameters
        ----------
        positions
            Heeded where micro-batches take turns: attention then hides more, the longer it takes.
            Times are straight lines between powers of 2.
        """
        if not self.is_interleaved:
            return self._replay_layers(tokens, self.positions)
        low = 1 << max(positions, 1).bit_length() - 1
        share = (max(positions, 1) - low) / low
        ends = self._replay_layers(tokens, low), self._replay_layers(tokens, 2 * low)
        return between(*ends, share)

    def near(self, tokens: float, positions: int) -> Moe:
        """Time of a layer with some tokens per GPU: exact, or on a line between exact times.

        Parameters
        ----------
        tokens
            Per GPU; at least one is replayed.
        """
        tokens = min(max(tokens, 1.0), float(self.most))
        low = 1 << int(tokens).bit_length() - 1
        high = min(2 * low, self.most)
        return self._line(tokens, low, high, positions, MOST_CUTS)

    def _line(self, tokens: float, low: int, high: int, positions: int, cuts: int) -> Moe:
        for end in (low, high):
            if tokens == end:
                return self.at(end, positions)
        ends = self.at(low, positions), self.at(high, positions)
        if high - low < 2:
            return between(*ends, (tokens - low) / (high - low))
        middle = (low + high) // 2
        exact = self.at(middle, positions)
        line = between(*ends, (middle - low) / (high - low))
        error = abs(line.total - exact.total) / max(exact.total, 1.0)
        below = tokens <= middle
        half = (low, middle) if below else (middle, high)
        if error > self.tolerance and cuts:
            return self._line(tokens, *half, positions, cuts - 1)
        self.largest_error = max(self.largest_error, error)
        first, last = (ends[0], exact) if below else (exact, ends[1])
        return between(first, last, (tokens - half[0]) / (half[1] - half[0]))

    # ---- one replay ------------------------------------------------------------------------------

    def _prepare(self, tokens: int, place: int = 0) -> Replay:
        """One of the steps that stand for an iteration, by its place among them."""
        trace, settings = self.routing.of_size(tokens, self.phase)
        spec = self.setup.spec.changed(**settings)
        setup = dataclasses.replace(self.setup, spec=spec)
        batch = setup.chain_settings.batch(trace, setup.system, 0)
        check_needs(setup.scheme, setup.system)
        check_domain(setup.scheme, setup.system, batch.num_ranks)
        step = self.routing.step(batch, place)
        if step:
            batch = setup.chain_settings.batch(trace, setup.system, step)
        return setup.prepare(trace, [batch])

    def _replay_layers(self, tokens: int, positions: int) -> Moe:
        key = (tokens, positions)
        if key not in self._exact:
            number = self.routing.sample_steps or 1
            steps = [self._replay(tokens, positions, place) for place in range(number)]
            self._exact[key] = mean_of(steps)
            self.replays += number
        return self._exact[key]

    def _replay(self, tokens: int, positions: int, place: int) -> Moe:
        ready = self._prepare(tokens, place)
        if self.is_interleaved and len(ready.links) < 2:
            message = (
                f"interleave {self.setup.spec.interleave}: turns are timed from the end of a "
                "first layer, and the routing has one alone; take a trace with two or more"
            )
            raise UserError(message)
        self._launch = ready.launch
        links = [self._behind(link, positions) for link in ready.links]
        ready, _ = dataclasses.replace(ready, links=links).tune(self.setup.spec.tune)
        measured = ready.measure()
        known = [] if self.memory is None else [self.memory]
        self.memory = largest([*known, measured.memory])
        before = KernelTotals(ready.system, self.launch, 1)
        self.parts.moe(before, self._rows(tokens, positions))
        self.stack, self.call_ps = ready.stack, _call_ps(ready)
        first = first_launch_ps(self.setup, self.launch) if self.call_ps is None else self.call_ps
        total = round(measured.measures.makespan_us * PS_PER_US) - first
        each, exposed = total / len(links), measured.measures.exposed_communication_us * PS_PER_US
        once = 0.0
        if self.is_interleaved:
            ends = [int(ranks.max()) for ranks in measured.finishes_ps]
            each = (ends[-1] - ends[0]) / (len(ends) - 1)
            once = total - each * len(links)
        exposed = max(0.0, exposed - once) / len(links)
        return Moe(each - int(before.total_ps[0]) - exposed, exposed, once)

    # ---- what tokens attend to in a replay, the same on every GPU --------------------------------

    def _rows(self, tokens: int, positions: int) -> LoadRows:
        """Rows of one GPU."""
        if self.phase == "decode":
            load = Load(decoding=tokens, positions=tokens * positions)
        else:
            load = Load(prefill=(PromptPiece(tokens, positions),) if tokens else ())
        attention = self.setup.system.attention
        return LoadRows.of_loads([load], (attention.tile_rows, attention.tile_keys), 1)

    def _behind(self, link: ChainLink, positions: int) -> ChainLink:
        """A layer of the chain, behind attention of these, and behind no layer without experts."""
        parts = tuple(
            dataclasses.replace(part, context=self._context(part.context, positions)) for part in link.micro_batches
        )
        context = self._context(link.context, positions)
        return dataclasses.replace(link, decoder_layer=0, context=context, micro_batches=parts)

    def _context(self, own: Context | None, positions: int) -> Context:
        assert own is not None
        counts = own.tokens.tolist()
        known = {count: self._rows(count, positions) for count in set(counts)}
        found = [known[count] for count in counts]
        counts = [(one.positions, one.pairs, one.blocks, one.longest) for one in found]
        of_rank = np.array([[int(count[0]) for count in each] for each in counts], np.int64)
        return Context(own.tokens.astype(np.int64), *of_rank.reshape(-1, 4).T)


def _call_ps(ready: Replay) -> int | None:
    """Time of a launch between MoE layers that a stack's host makes by itself; None where none does."""
    return None if ready.calls is None or ready.launch == "graph" else ready.calls.stages[OUTSIDE, False].launch_ps


def first_launch_ps(setup: LayerSetup, launch: Launch) -> int:
    """Time until the first kernel of an iteration is launched, or the graph of all."""
    overheads = setup.system.overheads
    return overheads.graph_launch_ps if launch == "graph" else overheads.launch_ps


def mean_of(several: Sequence[Moe]) -> Moe:
    """Mean of several times."""
    return Moe(*(sum(parts) / len(several) for parts in zip(*several, strict=True)))


def between(first: Moe, last: Moe, share: float) -> Moe:
    """A point on the line from one time to another."""
    return Moe(*(one + share * (other - one) for one, other in zip(first, last, strict=True)))
