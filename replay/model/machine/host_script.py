"""Script of a host: all that its thread has done, in order, and the time of that under other software.

A host notes what it does as a layer is described to it. What another software's calls would take it
follows from that alone, as no time of a kernel decides what a host does next.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hwmodel.overheads import Overheads

Launch = Literal["eager", "graph"]
StageKey = tuple[str, bool]
"""Name of a stage, and whether the pass is backward."""
Act = Literal["enter", "launch", "wait", "spend", "move", "multiply", "begin graph", "end graph"]


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
        Where it does that, or where it comes to.
    operation
        What is launched, waited for or spent time on.
    launches
        Launches of a thread with most, which are fewer than kernels where no GPU's program has one.
    nbytes, late_ps
        What is moved, in bytes, and what that takes beside them; of the GPU with most.
    """

    act: Act
    stage: StageKey
    operation: Operation | None = None
    launches: int = 0
    nbytes: int = 0
    late_ps: int = 0


@dataclass(frozen=True)
class StageCounts:
    """Counts of a script by stage.

    Attributes
    ----------
    launched, products, waited
        Kernels, those of them that multiply rows of experts, and waits of the program.
    moved, late_ps
        Bytes that elementwise kernels read and write on the GPU with most of them, and what laws of
        theirs take beside these.
    """

    launched: Counter[StageKey] = field(default_factory=Counter)
    products: Counter[StageKey] = field(default_factory=Counter)
    waited: Counter[StageKey] = field(default_factory=Counter)
    moved: Counter[StageKey] = field(default_factory=Counter)
    late_ps: Counter[StageKey] = field(default_factory=Counter)


class HostTime(NamedTuple):
    """Time of a thread's launches, each that of the GPU with most of them, and number of its waits."""

    launched_ps: int
    waits: int


class HostScript(list[ScriptLine]):
    """All that hosts have done, in order."""

    @property
    def program(self) -> list[Operation]:
        """Launches and waits."""
        return [one.operation for one in self if one.operation is not None and one.act != "spend"]

    @property
    def counts(self) -> StageCounts:
        """Add it up by stage."""
        counts = StageCounts()
        for act, stage, operation, _, nbytes, late_ps in self:
            if act == "launch":
                assert operation is not None
                counts.launched[stage] += operation.launches
            elif act == "wait":
                counts.waited[stage] += 1
            elif act == "multiply":
                counts.products[stage] += 1
            elif act == "move":
                counts.moved[stage] += nbytes
                counts.late_ps[stage] += late_ps
        return counts

    def under(self, calls: Calls, launch: Launch, overheads: Overheads) -> HostTime:
        """Add up what the same layer takes hosts with a stack's calls around bare kernels.

        Parameters
        ----------
        calls
            Of hosts that are all as fast.
        launch, overheads
            How hosts launch kernels, and what a bare launch and that of a graph take.
        """
        capture, each_ps, found, waits = GraphCapture(launch), overheads.launch_ps, 0, 0

        def launch_kernel(time_ps: int) -> int:
            if not capture.is_on:
                return time_ps
            if capture.is_launched:
                return 0
            capture.is_launched = True
            return overheads.graph_launch_ps

        for act, stage, operation, launches, *_ in self:
            if act == "enter":
                own = calls.stages.get(stage)
                each_ps = overheads.launch_ps if own is None else own.launch_ps
                for place, kernels in enumerate(() if own is None else own.kernels_between_waits):
                    if place:
                        waits += 1
                        capture.cut()
                    if kernels:
                        found += launch_kernel(each_ps * kernels)
            elif act == "launch":
                assert operation is not None
                found += launch_kernel((each_ps if operation.host_ps is None else operation.host_ps) * launches)
            elif act == "spend":
                assert operation is not None
                if operation.host_ps and not capture.is_on:
                    found += launch_kernel(operation.host_ps * launches)
            elif act == "wait":
                waits += 1
                capture.cut()
            elif act == "begin graph":
                capture.begin()
            elif act == "end graph":
                capture.end()
        return HostTime(found, waits)


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
