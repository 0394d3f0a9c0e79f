"""Options of CAIS; see `replay.schemes.tp.cais.scheme`."""

from __future__ import annotations

from dataclasses import dataclass

from replay.errors import UserError
from replay.schemes.options import Options, option
from replay.schemes.tp.residency import resident_blocks

PAPER = "arXiv 2605.05628"


@dataclass(frozen=True)
class CaisOptions(Options):
    """The three parts, and what the paper leaves open."""

    merge: bool = option(
        True,
        "The merge unit: the switch makes one load of those of several GPUs for the same data, and "
        "one sum of the parts that they push. Without it kernels load from each other and push sums "
        "one by one.",
        f"{PAPER} section III-A",
    )
    coordination: bool = option(
        True,
        "Thread blocks of all GPUs that access the same addresses wait for one another before they "
        "are launched and before they access them, by two empty packets a GPU each time. Without "
        "the merge unit there is nothing to wait for.",
        f"{PAPER} section III-B",
    )
    overlap: bool = option(
        True,
        "The last product of a half, the norm and the first product of the next are one kernel, "
        "whose blocks wait for rows and not for one another's kernels.",
        f"{PAPER} section III-C",
    )
    traffic_control: bool = option(
        True,
        "Requests of loads do not wait behind sums in the queues of ports.",
        f"{PAPER} section III-C: loads and reductions have virtual channels that take turns; here "
        "requests, an eighth of the bytes of the rows they ask for, pass the sums",
    )
    group_blocks: int = option(
        1,
        "Consecutive thread blocks that register for their launch together.",
        f"{PAPER} section III-B: two packets for each thread block",
    )
    piece_bytes: int = option(
        16384,
        "Most bytes that are asked for, merged and answered as a whole: the grain of the model, "
        "where the switch merges packets of 128 bytes.",
        "chosen for the model: `moereplay sweep cais` has other sizes",
        least=128,
        multiple_of=128,
    )
    table_bytes: int = option(
        40960,
        "Size of a merge unit's table. A GPU has one at its port of each switch.",
        f"{PAPER} section IV-A: 40 KB, 320 entries",
        least=128,
        multiple_of=128,
    )
    timeout_us: float = option(
        40.0,
        "Time that a sum waits for further parts after its last one, once a part of it had to leave the table.",
        "assumed; the paper does not state it. Above the 35 us between the first and the last "
        "request for an address that it finds without coordination (section V-B), so that timers "
        "do not end what could still be merged",
        least=0.0,
    )
    slices: int = option(
        4,
        "Parts of a row that a block asks for one after the other, and multiplies as they come: "
        "its kernel goes along the inner dimension.",
        "chosen for the model; kernels go by 64 values. `moereplay sweep cais` has other numbers",
    )
    window_bytes: int = option(
        65536,
        "Most bytes of rows that a thread block has asked for and not received yet.",
        "assumed: four stages of 128 rows and 64 columns, as many as CUTLASS's tiles of 128 x 256 "
        "leave room for in 227 KB of shared memory",
        least=128,
        multiple_of=128,
    )
    order: str = option(
        "auto",
        "Order in which GPUs go through the rows. same: as they are numbered, the rows of one "
        "owner after those of another. spread: a row tile of each owner in turn, so that all ports "
        "are in use. rotated: as they are numbered, each GPU from behind its own rows on, so that "
        "no two ask for the same. auto: spread where requests are merged, else rotated.",
        f"{PAPER} section III-B: blocks of one number access the same data on all GPUs; that they "
        "spread over owners is assumed, since its bound of 40 KB a port is what one GPU has asked "
        "for, spread over all ports (section V-C)",
        choices=("auto", "spread", "same", "rotated"),
    )
    port_rate: str = option(
        "multimem",
        "Rate of a port under packets that the switch merges. multimem: what is left of it for "
        "NVLS on today's hardware (`switch.multimem_efficiency`). line: all of it.",
        "assumed: as NVLS; no such switch has been measured",
        choices=("multimem", "line"),
    )
    ahead_blocks: int = option(
        0,
        "With overlap: blocks of the first product that a GPU launches between the last one that "
        "makes a group of rows and the first one of the second product that needs it. 0 is as many "
        "as are on all SMs at a time.",
        "chosen: as many as run at a time, so that the rows are nearly there",
    )
    resident_blocks: int = resident_blocks()
    launch_skew_us: float = option(
        0.0,
        "How much later the last GPU begins a pass than the first; those between are spread evenly.",
        "none: no published value was found for how far hosts of a node are apart",
        least=0.0,
    )

    def check(self) -> None:
        """Refuse GPUs that wait for one another and go through the rows in different orders."""
        if self.merge and self.coordination and self.order == "rotated":
            message = (
                "options coordination=true and order=rotated of scheme 'cais' exclude each other: "
                "blocks that wait for one another need one order on all GPUs"
            )
            raise UserError(message)
