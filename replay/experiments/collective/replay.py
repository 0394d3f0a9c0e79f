"""Collectives alone, one kernel each, as nccl-tests times them.

Kernel follows kernel in a stream, so that a time has the gap before the kernel. Sizes, algorithm
bandwidth and bus bandwidth are those of nccl-tests (``doc/PERFORMANCE.md`` of NVIDIA/nccl-tests): a
size is the larger of a rank's two buffers; algorithm bandwidth is the size over the time; bus
bandwidth is what every port would carry if no switch added or copied: times (n - 1) / n, for an
all-reduce times 2 (n - 1) / n.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.errors import UserError, unknown
from replay.experiments.base.identity import code_identity, identity
from replay.experiments.base.result import SystemDescription, package_version
from replay.files import write_text
from replay.model.collectives import library
from replay.model.collectives.algorithm import COLLECTIVES, Algorithm, Collective
from replay.model.machine.kinds import DISPATCH, KIND_NAMES
from replay.model.machine.machine import Machine
from tracegen.shared.display.frames import flat
from tracegen.shared.display.shown import Shown
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.machine import Ints

PS_PER_US = 1_000_000
MOST_SIZES = 64
_SIZE = re.compile(r"(\d{1,18})([KMG]?)", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3}
_SHORT: dict[str, Collective] = {each.replace("_", ""): each for each in COLLECTIVES}


class Way(Strict):
    """One direction of the NVLink ports.

    Attributes
    ----------
    payload_bytes
        Per GPU, of the buffers alone; None over several NVLink domains.
    wire_bytes
        Per GPU, headers, flags, requests and acknowledgements included.
    utilisation
        Time in service over that of the collective; mean over the GPUs.
    """

    payload_bytes: list[int] | None
    wire_bytes: list[int]
    utilisation: float


class CollectiveRow(Strict):
    """One algorithm at one size.

    Attributes
    ----------
    kernel
        What runs: algorithm and protocol, where the software chooses.
    blocks
        Thread blocks of each rank, each of which has an SM.
    bytes
        The larger of a rank's two buffers.
    time_us
        From kernel to kernel.
    """

    algorithm: str
    kernel: str
    blocks: int
    bytes: int
    time_us: float
    algorithm_GB_per_s: float
    bus_GB_per_s: float
    up: Way
    down: Way


class CollectiveResult(Strict, Shown):
    """Rows of one collective on one machine; schema ``moereplay-collective/1``.

    Attributes
    ----------
    run_id
        SHA-256 of everything that decides the result.
    """

    format: Literal["moereplay-collective/1"] = "moereplay-collective/1"
    run_id: str
    version: str
    collective: Collective
    num_ranks: int
    num_domains: int
    system: SystemDescription
    rows: list[CollectiveRow]

    def _rows(self) -> list[dict[str, Any]]:
        """One for each size and algorithm."""
        same = {
            "collective": self.collective,
            "system": self.system.name,
            "num_ranks": self.num_ranks,
        }
        return [same | flat(row.model_dump(mode="json")) for row in self.rows]

    def to_json(self) -> str:
        """The whole result."""
        document = self.model_dump(mode="json")
        return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all."""
        write_text(path, self.to_json())


# ---- words -------------------------------------------------------------------------------------


def collective_of(word: str) -> Collective:
    """Read the name of a collective: ``allreduce``, ``all-reduce`` or ``all_reduce``.

    Raises
    ------
    UserError
        If there is none of the name.
    """
    plain = word.replace("-", "").replace("_", "").lower()
    if plain not in _SHORT:
        raise unknown("collective", word, _SHORT)
    return _SHORT[plain]


def sizes_of(text: str) -> list[int]:
    """Read sizes as nccl-tests writes them: ``8M``, a list ``1M,3M`` or a range ``1M..1G``.

    K, M and G are powers of 1024. A range doubles from its first size up to its last.

    Raises
    ------
    UserError
        If a size is none, a range does not rise, or there are too many.

    Examples
    --------
    >>> sizes_of("512,1k..4K")
    [512, 1024, 2048, 4096]
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low = _size(first, text)
        high = _size(last, text) if dots else low
        if high < low:
            message = f"--bytes {text}: a range rises; {part.strip()!r} does not"
            raise UserError(message)
        while low <= high and len(sizes) <= MOST_SIZES:
            sizes.append(low)
            low *= 2
    if len(sizes) > MOST_SIZES:
        message = f"--bytes {text}: more than {MOST_SIZES} sizes"
        raise UserError(message)
    return sizes


def _size(word: str, text: str) -> int:
    found = _SIZE.fullmatch(word.strip())
    size = 0 if found is None else int(found[1]) * 1024 ** _UNITS[found[2].upper()]
    if not size:
        message = (
            f"--bytes {text}: {word.strip()!r} is no size; possible: a number from 1 on, with K, M "
            "or G for powers of 1024, lists such as 1M,3M and ranges such as 1M..1G"
        )
        raise UserError(message)
    return size


# ---- replays -----------------------------------------------------------------------------------


def collective(
    op: str,
    sizes: Sequence[int],
    algorithms: Sequence[str] = ("nccl",),
    *,
    system: str = "dgx-h100",
    overrides: Mapping[str, JsonValue] | None = None,
    ranks: int | None = None,
    blocks: int | None = None,
    progress: Callable[[], object] | None = None,
) -> CollectiveResult:
    """Time a collective at several sizes, under several algorithms.

    Parameters
    ----------
    op
        See `collective_of`.
    sizes
        Bytes of the larger of a rank's two buffers.
    algorithms
        Names of `replay.model.collectives.library.ALGORITHMS`.
    system, overrides
        The machine, and hardware values by dotted key.
    ranks
        GPUs that take part; None is all of the system.
    blocks
        Thread blocks of each rank; None is what the software takes.
    progress
        Called after each row.

    Raises
    ------
    UserError
        If a name is unknown, a buffer does not fit a GPU's memory, or an algorithm has no kernel
        for this on such a machine.
    """
    what = collective_of(op)
    chosen = [library.find(name) for name in algorithms]
    machine_system = hwmodel.load(system, dict(overrides or {}))
    num_ranks = machine_system.num_gpus if ranks is None else ranks
    if not 2 <= num_ranks <= machine_system.num_gpus:
        message = (
            f"{num_ranks} ranks; possible on {machine_system.name}: 2 to {machine_system.num_gpus}"
        )
        raise UserError(message)
    for size in sizes:
        if 2 * size > machine_system.hbm.num_bytes:
            message = (
                f"two buffers of {size} bytes; a GPU of {machine_system.name} has memory for "
                f"{machine_system.hbm.num_bytes}"
            )
            raise UserError(message)
    empty = _machine(machine_system, num_ranks)
    for algorithm in chosen:
        algorithm.check(empty, what, blocks=blocks)
    rows = []
    for size in sizes:
        for algorithm in chosen:
            rows.append(_row(machine_system, num_ranks, algorithm, what, size, blocks))
            if progress is not None:
                progress()
    values = machine_system.describe()
    document = {
        "collective": what, "sizes": list(sizes), "algorithms": [one.name for one in chosen],
        "num_ranks": num_ranks, "blocks": blocks, "system": values, "code": code_identity(),
    }  # fmt: skip
    run_id = identity(document)
    return CollectiveResult(
        run_id=run_id,
        version=package_version(),
        collective=what,
        num_ranks=num_ranks,
        num_domains=empty.num_domains,
        system=SystemDescription.of(machine_system),
        rows=rows,
    )


def bus_factor(what: Collective, num_ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth."""
    return (2 if what == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


def _machine(system: System, num_ranks: int) -> Machine:
    return Machine(system, GraphBuilder(KIND_NAMES), num_ranks)


def _row(
    system: System,
    num_ranks: int,
    algorithm: Algorithm,
    what: Collective,
    nbytes: int,
    blocks: int | None,
) -> CollectiveRow:
    machine = _machine(system, num_ranks)
    count = algorithm.default_blocks(machine, what, nbytes) if blocks is None else blocks
    kernel = algorithm.picked(machine, what, nbytes, blocks)
    begun = machine.kernel(machine.mark(machine.ranks))
    payload = machine.num_domains == 1
    algorithm.build(machine, DISPATCH, what, nbytes, begun, blocks=blocks, payload=payload)
    timeline = schedule(machine.graph.build())
    graph, span = timeline.graph, timeline.makespan_ps

    def way(ports: Ints) -> Way:
        owner = np.full(len(graph.resources), -1, np.int64)
        owner[ports] = machine.ranks
        on_port = np.flatnonzero((graph.resource >= 0) & (owner[graph.resource] >= 0))
        rank = owner[graph.resource[on_port]]

        def total(values: npt.NDArray[np.integer[Any]]) -> list[int]:
            sums = np.zeros(num_ranks, np.int64)
            np.add.at(sums, rank, values[on_port])
            return [int(value) for value in sums]

        busy = total(timeline.end_ps - timeline.start_ps)
        return Way(
            payload_bytes=total(graph.payload_bytes) if payload else None,
            wire_bytes=total(graph.wire_bytes),
            utilisation=sum(busy) / (num_ranks * span),
        )

    bandwidth = nbytes / span * 1e3
    return CollectiveRow(
        algorithm=algorithm.name,
        kernel=kernel,
        blocks=count,
        bytes=nbytes,
        time_us=span / PS_PER_US,
        algorithm_GB_per_s=bandwidth,
        bus_GB_per_s=bandwidth * bus_factor(what, num_ranks),
        up=way(machine.resources.uplink),
        down=way(machine.resources.downlink),
    )
