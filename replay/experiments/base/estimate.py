"""Estimate of a replay before it starts: tasks, memory and time.

A scheme says in tasks what it does, and how many there are is known only once it has said so. So
one layer is replayed in which only some ranks have tokens, and with half of these, and what either
took is carried on linearly. Ranks that have their tokens have them whole, because chunks, blocks
and tiles are counted for each pair of a rank and another, or of a rank and an expert: with a share
of the tokens of every rank they would all be begun and none filled. A layer with no more tokens is
replayed as it is.

Memory follows from the tasks by the constants below, time from what the sample took on this
machine. Neither enters a result. `ESTIMATES.md` says how good this is and how it is tested.

The module is long because the estimate of layers and what all estimates share stand together.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from replay.errors import UserError

if TYPE_CHECKING:
    from replay.engine import TaskGraph
    from replay.model.work.batch import Batch

# Bytes at the peak of building, scheduling and measuring a layer, with the smallest error over all
# schemes (ESTIMATES.md): for each task with its edges, take of credits, touch of a table and pair.
TASK_BYTES, TAKE_BYTES, TOUCH_BYTES, PAIR_BYTES = 120, 20, 100, 50
# Of the result of one layer, its JSON included, and of a layer of a chain: in all and per rank.
APART_BYTES, CHAINED_BYTES = (100_000, 12_000), (16_000, 1_000)
# Of what is prepared for a layer before any is replayed, and for a token of a step.
LINK_BYTES, TOKEN_BYTES = 1_500, 32

ROWS_PER_EXPERT = 256
"""Mean rows of an expert, at least, that the ranks of a sample send: two tiles."""
TOKENS_PER_RANK = 4096
"""Tokens of a rank in a sample, at most."""

LAYERS_OF_CHAIN = 2.5
"""Layers that a chain takes the memory of (`replay.chains.replay`): a window, and the times of the
parts around it. 58 layers of 8 x 4096 tokens take 2.7, three of 8 x 500 under `tutel` 1.5."""

SURE_PAIR_BYTES, SURE_RANK_BYTES = 8_000, 1_000_000
"""More than any layer takes: for each pair, and for each pair of ranks. Below, nobody asks."""

LEAST_RANK_BYTES = 1_000
"""Less than a layer takes for each pair of ranks: where that is too much, no sample is made."""

LONG_PAIRS = 4_000_000
"""Pairs of all layers of all replays from which they take long enough to say so."""
FIXED_PAIRS = 10_000
"""Pairs that take as long as a layer without any: 15 to 30 ms (tests/bench/test_bench_growth.py)."""
LONG_SECONDS = 30


class UnfitError(UserError):
    """A replay needs more memory than there is."""


class Size(NamedTuple):
    """Size of a layer's graph.

    Attributes
    ----------
    tasks, takes, touches
        Tasks, takes of credits and touches of tables.
    pairs
        Pairs of a token and an expert.
    """

    tasks: float
    takes: float
    touches: float
    pairs: float

    @property
    def num_bytes(self) -> float:
        """Memory at the peak of its replay."""
        return TASK_BYTES * self.tasks + TAKE_BYTES * self.takes + TOUCH_BYTES * self.touches + PAIR_BYTES * self.pairs

    @classmethod
    def of(cls, graph: TaskGraph, pairs: int) -> Size:
        """Count what is in a graph."""
        return cls(graph.num_tasks, len(graph.takes), len(graph.touches), pairs)


@dataclass(frozen=True)
class ReplayCounts:
    """Counts of layers, passes and results that are asked for.

    Attributes
    ----------
    num_ranks, tokens, topk
        GPUs, tokens of all of them in one step, experts of a token.
    num_experts
        Of a layer.
    num_steps, num_layers
        Steps; layers over all steps and passes.
    is_chain
        Whether the layers are one chain.
    is_whole
        Whether the schedule of a chain is kept whole, because somebody looks at it.
    extra_layers
        Layers that are replayed beside, to choose options.
    """

    num_ranks: int
    tokens: int
    topk: int
    num_experts: int
    num_steps: int
    num_layers: int
    is_chain: bool
    is_whole: bool = False
    extra_layers: int = 0

    @property
    def layers_in_memory(self) -> float:
        """Layers whose tasks are in memory at a time."""
        of_chain = self.num_layers if self.is_whole else LAYERS_OF_CHAIN
        return min(self.num_layers, of_chain) if self.is_chain else 1

    @property
    def pairs(self) -> int:
        """Pairs of a layer, at most."""
        return self.tokens * self.topk

    @property
    def sample_ranks(self) -> int:
        """Ranks that have tokens in the layer that is replayed to find out, two or more."""
        rows = self.topk * min(TOKENS_PER_RANK, self.tokens / self.num_ranks)
        enough = math.ceil(ROWS_PER_EXPERT * self.num_experts / max(rows, 1e-9))
        return min(max(enough, 2), self.num_ranks)

    @property
    def kept_bytes(self) -> int:
        """Memory of results and of what is prepared, which grows with the number of layers."""
        fixed, per_rank = CHAINED_BYTES if self.is_chain else APART_BYTES
        of_layer = fixed + per_rank * self.num_ranks + LINK_BYTES
        return self.num_layers * of_layer + self.num_steps * self.tokens * TOKEN_BYTES

    @property
    def sure_bytes(self) -> int:
        """More memory than this takes under any scheme, without a sample."""
        of_layer = SURE_PAIR_BYTES * self.pairs + SURE_RANK_BYTES * self.num_ranks**2
        return int(self.layers_in_memory * of_layer) + self.kept_bytes

    def check_kept(self, most_bytes: float) -> None:
        """Refuse what is too much before a single task is counted.

        A sample has all ranks, and would be too much itself where these are.

        Raises
        ------
        UnfitError
            Saying what it needs, what is there and what would fit.
        """
        of_ranks = LEAST_RANK_BYTES * self.num_ranks**2
        if of_ranks > most_bytes:
            fit = math.isqrt(int(most_bytes / LEAST_RANK_BYTES))
            message = (
                f"{self.num_ranks:,} ranks take at least {size_text(of_ranks)} of memory; there "
                f"are {size_text(most_bytes)}. What fits: {fit:,} ranks at most (--ranks)"
            )
            raise UnfitError(message)
        if self.kept_bytes <= most_bytes:
            return
        fit = int(self.num_layers * most_bytes / self.kept_bytes)
        message = (
            f"{self.num_layers:,} layers in {self.num_steps:,} steps take about "
            f"{size_text(self.kept_bytes)} of memory for their results alone; there are "
            f"{size_text(most_bytes)}. What fits: about {fit:,} layers at a time (--layer, --steps)"
        )
        raise UnfitError(message)

    def is_long(self, times: float) -> bool:
        """Tell whether it is worth saying how long so many such replays take."""
        return times * (self.pairs + FIXED_PAIRS) * (self.num_layers + self.extra_layers) >= LONG_PAIRS


class Need(ABC):
    """Cost of a replay in tasks, memory and time.

    Attributes
    ----------
    scheme
        Its name.
    unit
        What its size is counted in.
    """

    scheme: str
    unit: ClassVar[str]

    @property
    @abstractmethod
    def number(self) -> int:
        """Its size."""

    @property
    @abstractmethod
    def tasks(self) -> float:
        """Tasks in all."""

    @property
    @abstractmethod
    def memory_bytes(self) -> float:
        """Memory beside that of the program and of the trace."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Time, on one core of this machine."""

    @abstractmethod
    def what_fits(self, most_bytes: float) -> str:
        """Say what would fit, and how that is asked for."""

    def text(self) -> str:
        """Give size, tasks, memory and time in a line."""
        tasks, memory, duration = self.cells()
        unit = self.unit.removesuffix("s") if self.number == 1 else self.unit
        size = f"{self.number:,} {unit}, {tasks} tasks"
        return f"{size}: about {memory} of memory and {duration}"

    def cells(self) -> tuple[str, str, str]:
        """Give tasks, memory and time as texts."""
        return _count(self.tasks), size_text(self.memory_bytes), duration_text(self.seconds)

    def check(self, most_bytes: float) -> None:
        """Refuse what needs more memory than there is.

        Raises
        ------
        UnfitError
            Saying what it needs, what is there and what would fit.
        """
        if self.memory_bytes <= most_bytes:
            return
        message = (
            f"scheme {self.scheme!r}: {self.text()}; there are {size_text(most_bytes)}. What fits: "
            f"{self.what_fits(most_bytes)}; --max-memory sets another limit"
        )
        raise UnfitError(message)


@dataclass(frozen=True)
class Estimate(Need):
    """Estimated cost of a replay of layers of a trace.

    Attributes
    ----------
    asked
        What is asked for.
    layer
        What the graph of one layer holds, as a mean over the passes.
    layer_seconds
        Time of one layer's replay.
    """

    unit = "layers"

    scheme: str
    asked: ReplayCounts
    layer: Size
    layer_seconds: float

    @property
    def number(self) -> int:
        """Layers."""
        return self.asked.num_layers

    @property
    def tasks(self) -> float:
        """Tasks of all layers."""
        return self.layer.tasks * self.asked.num_layers

    @property
    def memory_bytes(self) -> float:
        """Memory of the layers that are there at a time, and of all results."""
        return self.asked.layers_in_memory * self.layer.num_bytes + self.asked.kept_bytes

    @property
    def seconds(self) -> float:
        """Time of all layers, and of those that are replayed beside."""
        return self.layer_seconds * (self.asked.num_layers + self.asked.extra_layers)

    def what_fits(self, most_bytes: float) -> str:
        """Layers at a time, or tokens of a GPU where not even one layer fits."""
        asked, one = self.asked, self.layer.num_bytes
        kept = asked.kept_bytes / asked.num_layers
        held = asked.layers_in_memory * one
        if held + kept <= most_bytes:
            return f"about {int((most_bytes - held) / kept):,} layers at a time (--layer, --steps)"
        if one + kept > most_bytes:
            tokens = asked.tokens / asked.num_ranks * most_bytes / (one + kept)
            return f"about {int(tokens):,} tokens per GPU"
        fit = int(most_bytes / (one + kept))
        layers = "1 layer" if fit == 1 else f"{fit:,} layers"
        return f"--barrier, or about {layers} at a time (--layer, --steps)"


@dataclass(frozen=True)
class RepeatedReplays(Need):
    """Cost of replays that are there one at a time, each as large as the first.

    Attributes
    ----------
    first, times
        What the first takes, and how many there are.
    """

    first: Need
    times: int
    unit: str  # type: ignore[misc]  # of each of them another

    @property
    def scheme(self) -> str:  # type: ignore[override]  # that of all
        """Its name."""
        return self.first.scheme

    @property
    def number(self) -> int:
        """Number of replays."""
        return self.times

    @property
    def tasks(self) -> float:
        """Tasks of all replays."""
        return self.times * self.first.tasks

    @property
    def memory_bytes(self) -> float:
        """Memory of one replay."""
        return self.first.memory_bytes

    @property
    def seconds(self) -> float:
        """Time of all replays."""
        return self.times * self.first.seconds

    def what_fits(self, most_bytes: float) -> str:
        """Say what of one would fit."""
        return self.first.what_fits(most_bytes)


def sum_text(found: Sequence[Need], replays: float = 1, jobs: int = 1) -> str:
    """Give what several replays take, in a line.

    Parameters
    ----------
    found
        What a replay takes under each scheme.
    replays
        Replays of each scheme.
    jobs
        Processes that share them.
    """
    if len(found) == 1 and replays == 1:
        return found[0].text()
    most = sorted((one.memory_bytes for one in found), reverse=True)[:jobs]
    seconds = replays * sum(one.seconds for one in found) / jobs
    tasks = replays * sum(one.tasks for one in found)
    schemes = "1 scheme" if len(found) == 1 else f"{len(found)} schemes"
    return f"{schemes}, {_count(tasks)} tasks: about {size_text(sum(most))} of memory and {duration_text(seconds)}"


def estimate(scheme: str, asked: ReplayCounts, replayed: Callable[[int], tuple[Size, int]]) -> Estimate:
    """Find out what a replay takes.

    Parameters
    ----------
    scheme
        Its name.
    asked
        What is asked for.
    replayed
        Replays one layer with the tokens of so many ranks, in all passes: what its graphs hold, the
        largest of several, and how many tokens they had.
    """
    few = asked.sample_ranks
    half, tokens_of_half = replayed(max(few // 2, 1))  # first, so that everything is loaded then
    began = time.process_time()
    whole, tokens = replayed(few)
    seconds = time.process_time() - began
    beyond = max(asked.tokens - tokens, 0)
    if not beyond or tokens == tokens_of_half:
        return Estimate(scheme, asked, whole, seconds)
    grown = np.subtract(whole, half) / (tokens - tokens_of_half) * beyond
    layer = Size(*np.add(whole, np.maximum(grown, 0)).tolist())
    factor = layer.num_bytes / max(whole.num_bytes, 1)
    return Estimate(scheme, asked, layer, seconds * factor)


def thin_batch(batch: Batch, num_ranks: int, *, of_each: bool = False) -> Batch:
    """Tokens of some ranks of a batch, at most `TOKENS_PER_RANK` of each.

    Parameters
    ----------
    num_ranks
        How many keep their tokens.
    of_each
        Whether every rank keeps the same share of its tokens instead, as many in all: where few of
        the ranks are replayed in full, the sample has to have them.
    """
    tokens = np.bincount(batch.source_rank, minlength=batch.num_ranks)
    owners = np.flatnonzero(tokens)
    chosen = owners[np.arange(num_ranks) * len(owners) // num_ranks] if len(owners) else owners
    keeps = np.zeros(batch.num_ranks, np.int64)
    keeps[chosen] = np.minimum(tokens[chosen], TOKENS_PER_RANK)
    if of_each:
        keeps = tokens * num_ranks // batch.num_ranks
    # Of a rank with n tokens those are kept at which the multiples of k/n pass a whole number.
    owner = batch.source_rank
    place = np.arange(batch.num_tokens) - (np.cumsum(tokens) - tokens)[owner]
    kept, of = keeps[owner], np.maximum(tokens, 1)[owner]
    return batch.of_tokens(np.flatnonzero((place + 1) * kept // of > place * kept // of))


def _count(number: float) -> str:
    for least, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= least:
            return f"{number / least:,.3g} {word}"
    return f"{number:.0f}"


def size_text(number: float) -> str:
    """Give a number of bytes for people."""
    for least, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if number >= least:
            in_unit = number / least
            return f"{in_unit:,.0f} {unit}" if in_unit >= 10 else f"{in_unit:.1f} {unit}"
    return f"{number / 1e3:,.0f} kB"


def duration_text(seconds: float) -> str:
    """Give a duration for people."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
