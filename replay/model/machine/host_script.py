"""Script of a host: its launches and waits in order, noted as a layer is described to it."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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


class AddedRow(NamedTuple):
    """Kernels of a stack in a stage of a scheme's layer, besides the scheme's own.

    Attributes
    ----------
    what
        The kernels; no launches where the scheme's own kernel lacks bytes or time, or the host waits.
    nbytes
        Bytes of device memory that they read and write, all together.
    late_ps
        What they take beside their bytes by laws of their own, all together.
    waits
        Times that the host waits for the GPU behind them.
    behind
        Runs of the scheme's kernels that come first; see `KernelRun`.
    """

    what: Operation
    nbytes: int = 0
    late_ps: int = 0
    waits: int = 0
    behind: int = 0


class StageCalls(NamedTuple):
    """Calls of a stack's host in a stage of a scheme's layer.

    Attributes
    ----------
    launch_ps
        What each launch takes the thread, with all that it runs around it.
    added
        What the stack does there besides the scheme's own kernels, in order.
    """

    launch_ps: int
    added: tuple[AddedRow, ...] = ()

    def share(self, part: int, whole: int) -> StageCalls:
        """Give them for a part of the tokens, with its share of bytes and of laws' times."""
        rows = (
            row._replace(nbytes=row.nbytes * part // whole, late_ps=row.late_ps * part // whole) for row in self.added
        )
        return self._replace(added=tuple(rows))


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
    """

    launched: Counter[StageKey] = field(default_factory=Counter)
    waited: Counter[StageKey] = field(default_factory=Counter)


@dataclass
class KernelRun:
    """Kernels of one name that are launched one behind the other.

    Attributes
    ----------
    stage, name
        Where, and which.
    behind
        Runs of the stage before it.
    is_product
        Whether they multiply rows of experts.
    kernels
        Number of them.
    nbytes, late_ps
        Bytes that they read and write on the GPU with most of them, and what laws of theirs take
        beside these.
    """

    stage: StageKey
    name: str
    behind: int
    is_product: bool
    kernels: int = 0
    nbytes: int = 0
    late_ps: int = 0


class AddedRows:
    """Rows that a stack is still to launch in a stage."""

    def __init__(self, rows: tuple[AddedRow, ...] = ()) -> None:
        self._rows, self._runs, self._name = deque(rows), 0, ""

    def before(self, name: str) -> list[AddedRow]:
        """Take what comes before the scheme's next kernel, of this name."""
        if not self._rows:
            return []
        if not self._runs or name != self._name:
            self._runs, self._name = self._runs + 1, name
        return self._take(self._runs - 1)

    def rest(self) -> list[AddedRow]:
        """Take what is left."""
        return self._take(None)

    def _take(self, runs: int | None) -> list[AddedRow]:
        taken = []
        while self._rows and (runs is None or self._rows[0].behind <= runs):
            taken.append(self._rows.popleft())
        return taken


class HostScript(list[ScriptLine]):
    """All that hosts have done, in order."""

    @property
    def program(self) -> list[Operation]:
        """Launches and waits."""
        return [one.operation for one in self if one.operation is not None]

    @property
    def counts(self) -> StageCounts:
        """Add it up by stage."""
        counts = StageCounts()
        for one in self:
            if one.operation is None:
                continue
            if one.act == "wait":
                counts.waited[one.stage] += 1
            else:
                counts.launched[one.stage] += one.operation.launches
        return counts

    def runs(self, stages: Collection[StageKey]) -> list[KernelRun]:
        """Kernels of some stages, in order."""
        found: list[KernelRun] = []
        behind, is_product = Counter[StageKey](), False
        for act, stage, operation, nbytes, late_ps in self:
            if stage not in stages:
                continue
            if act == "multiply":
                is_product = True
            elif act == "launch":
                assert operation is not None
                if not found or (found[-1].stage, found[-1].name) != (stage, operation.name):
                    found.append(KernelRun(stage, operation.name, behind[stage], is_product))
                    behind[stage] += 1
                found[-1].kernels += operation.launches
                is_product = False
            elif act == "move" and found and found[-1].stage == stage:
                found[-1].nbytes += nbytes
                found[-1].late_ps += late_ps
        return found


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
