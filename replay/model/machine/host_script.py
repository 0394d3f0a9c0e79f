"""Script of a host: its launches and waits in order, noted as a layer is described to it."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Launch = Literal["eager", "graph"]
StageKey = tuple[str, bool]
"""Name of a stage, and whether the pass is backward."""
Act = Literal["launch", "wait", "move", "multiply"]


class Operation(NamedTuple):
    """Something that a host thread does for its GPU.

    Attributes
    ----------
    name
        The kernel, or what is waited for.
    launches
        Kernels of this name in a row; 0 for a wait of the host.
    moves
        What of device memory they read and write, in words, where it is not in the name.
    source
        Where it is from, if it is not the source of the scheme that launches it.
    host_ps
        What each launch, or the call that waits, takes the thread; None for what the stage costs
        that it belongs to, or a bare launch.
    """

    name: str
    launches: int = 1
    moves: str = ""
    source: str = ""
    host_ps: int | None = None


class StageCalls(NamedTuple):
    """Calls of a stack's host in a stage of a scheme's layer.

    Attributes
    ----------
    launch_ps
        What each launch takes the thread, with all that it runs around it.
    others
        Small kernels that the stack launches there besides the scheme's own.
    nbytes
        Bytes of device memory that these read and write, all together; without any, those that the
        scheme's own kernels lack.
    waits
        Times that its host waits for the GPU there besides the scheme's own waits; kernels of
        `others` are spread between them.
    late_ps
        What these kernels take beside their bytes by laws of their own, all together; without any,
        what the scheme's own kernels lack of it.
    """

    launch_ps: int
    others: int = 0
    nbytes: int = 0
    waits: int = 0
    late_ps: int = 0

    @property
    def kernels_between_waits(self) -> list[int]:
        """Kernels of `others` before the first wait, behind each, and behind the last."""
        bounds = [place * self.others // (self.waits + 1) for place in range(self.waits + 2)]
        return [past - first for first, past in pairwise(bounds)]


@dataclass(frozen=True)
class Calls:
    """Calls of a stack's hosts around a scheme's kernels.

    Attributes
    ----------
    stages
        By the name of a stage of the layer and whether the pass is backward; also by `OUTSIDE` and
        `UNSTAGED`.
    spread, seed
        Standard deviation of the natural logarithm of what a host takes for a stage, over GPUs and
        stages, at the same mean; seed of the draws.
    """

    stages: Mapping[tuple[str, bool], StageCalls]
    spread: float = 0.0
    seed: int = 0

    def paces(self, stage: str, num_ranks: int, *, is_backward: bool) -> npt.NDArray[np.float64]:
        """(rank,): how many times the mean each host takes for a stage."""
        key = (*stage.encode(), 256 + is_backward)
        sequence = np.random.SeedSequence(self.seed, spawn_key=key)
        drawn = np.random.default_rng(sequence).standard_normal(num_ranks)
        paces: npt.NDArray[np.float64] = np.exp(self.spread * drawn - self.spread**2 / 2)
        return paces

    def only(self, stage: StageKey) -> Calls:
        """Give those of one stage."""
        return dataclasses.replace(self, stages={stage: self.stages[stage]} if stage in self.stages else {})

    def slower(self, times: float) -> Calls:
        """Give them on hosts that take so many times as long for each launch."""
        stages = {
            stage: calls._replace(launch_ps=round(calls.launch_ps * times)) for stage, calls in self.stages.items()
        }
        return dataclasses.replace(self, stages=stages)


class ScriptLine(NamedTuple):
    """Something that every host does; its verbs are those of `replay.model.machine.host.Host`.

    Attributes
    ----------
    act
        The verb.
    stage
        Where it does that.
    operation
        What is launched or waited for.
    nbytes, late_ps
        What is moved, in bytes, and what that takes beside them; of the GPU with most.
    """

    act: Act
    stage: StageKey
    operation: Operation | None = None
    nbytes: int = 0
    late_ps: int = 0


@dataclass(frozen=True)
class StageCounts:
    """Counts of a script by stage.

    Attributes
    ----------
    launched, waited
        Kernels and waits of the program.
    named
        Kernels by name, but for those that multiply rows of experts.
    moved, late_ps
        Bytes that elementwise kernels read and write on the GPU with most of them, and what laws of
        theirs take beside these.
    """

    launched: Counter[StageKey] = field(default_factory=Counter)
    waited: Counter[StageKey] = field(default_factory=Counter)
    named: defaultdict[StageKey, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    moved: Counter[StageKey] = field(default_factory=Counter)
    late_ps: Counter[StageKey] = field(default_factory=Counter)


class HostScript(list[ScriptLine]):
    """All that hosts have done, in order."""

    @property
    def program(self) -> list[Operation]:
        """Launches and waits."""
        return [one.operation for one in self if one.operation is not None]

    @property
    def counts(self) -> StageCounts:
        """Add it up by stage."""
        counts, is_product = StageCounts(), False
        for act, stage, operation, nbytes, late_ps in self:
            if act == "launch":
                assert operation is not None
                counts.launched[stage] += operation.launches
                if not is_product:
                    counts.named[stage][operation.name] += operation.launches
                is_product = False
            elif act == "wait":
                counts.waited[stage] += 1
            elif act == "multiply":
                is_product = True
            elif act == "move":
                counts.moved[stage] += nbytes
                counts.late_ps[stage] += late_ps
        return counts


class GraphCapture:
    """Stretches of a program that CUDA graphs hold.

    Attributes
    ----------
    is_on
        Whether a graph holds the next kernel.
    is_launched
        Whether that graph has been launched.
    """

    def __init__(self, launch: Launch | None) -> None:
        self._launch = launch
        self.is_on, self.is_launched = launch == "graph", False
        self._is_within = False  # whether the graph that has begun is part of a larger one

    def next_layer(self, *, same_graph: bool) -> None:
        """Come to a layer; see `Host.next_layer`."""
        if self._launch == "graph":
            self.is_on = True
            if not same_graph:
                self.is_launched = False

    def begin(self) -> None:
        """Begin a graph, which is a part of one that holds the layer."""
        self._is_within = self.is_on
        if not self._is_within:
            self.is_on, self.is_launched = self._launch is not None, False

    def end(self) -> None:
        """End it, unless a larger one goes on."""
        if not self._is_within:
            self.cut()

    def cut(self) -> None:
        """End all of them, as waits of the host do."""
        self.is_on = self.is_launched = False
