"""Times and bandwidths of a collective: schema ``moereplay-collective/2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from replay.experiments.base.result import ResultBase, SystemDescription
from replay.experiments.collective.spec import CollectiveSpec, size_text
from replay.model.collectives.algorithm import Collective
from tracegen.shared.display.frames import flat
from tracegen.shared.strict import Strict


class PortUse(Strict):
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
    up: PortUse
    down: PortUse


class CollectiveResult(ResultBase):
    """One collective on one machine, at several sizes and by several algorithms.

    Attributes
    ----------
    collective, num_ranks, num_domains
        What was timed, GPUs that take part, and NVLink domains that they are in.
    rows
        Size by size, each under every algorithm.
    """

    ENTERED = frozenset({"num_ranks", "num_domains"})

    format: Literal["moereplay-collective/2"] = "moereplay-collective/2"
    spec: CollectiveSpec
    system: SystemDescription
    collective: Collective
    num_ranks: int
    num_domains: int
    rows: list[CollectiveRow]

    @property
    def name(self) -> str:
        """The collective, such as ``all-reduce``."""
        return self.collective.replace("_", "-")

    def _rows(self) -> list[dict[str, Any]]:
        """One for each size and algorithm."""
        same = {
            "collective": self.collective,
            "system": self.system.name,
            "num_ranks": self.num_ranks,
        }
        return [same | flat(row.model_dump(mode="json")) for row in self.rows]


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-collective/1`` one of the present schema.

    It did not say which hardware values were changed, nor whether thread blocks were asked for; the
    machine by value and the rows say what they were.
    """
    rows = document["rows"]
    spec = {
        "op": document["collective"],
        "bytes": ",".join(dict.fromkeys(size_text(row["bytes"]) for row in rows)),
        "algorithm": list(dict.fromkeys(row["algorithm"] for row in rows)),
        "system": document["system"]["name"],
        "ranks": document["num_ranks"],
    }
    return {**document, "format": "moereplay-collective/2", "spec": spec}
