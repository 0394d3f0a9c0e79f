"""Options of MoE-Hub; see `replay.schemes.ep.moe_hub.scheme`."""

from __future__ import annotations

from dataclasses import dataclass

from replay.model.compute.tile_order import TILE_ORDERS, UNIT_ASSUMED
from replay.schemes.options import Options, option

MOST_ADDRESS_BYTES = 4096  # far more than any address; it travels in pieces, as a row does


@dataclass(frozen=True)
class MoeHubOptions(Options):
    """Options of the three units in the hub, and of the model."""

    rpm: bool = option(
        True,
        "Whether GPUs have the packet manager (RPM), which merges stores at the sender.",
        "arXiv 2605.05888, the proposal",
    )
    dam: bool = option(
        True,
        "Whether GPUs have the data availability manager (DAM), which launches tiles when their data are there.",
        "arXiv 2605.05888, the proposal",
    )
    queue_packets: int = option(
        256,
        "Packets (of 128 bytes) that the packet manager queues for each destination.",
        "assumed",
    )
    rpm_timer_ns: int = option(
        100, "Time that a packet which is not full waits for further stores.", "assumed", least=0
    )
    aau_entries: int = option(4096, "Rows whose address the table of the address allocation (AAU) holds.", "assumed")
    aau_ns: int = option(10, "Time of a look-up in the table of the address allocation.", "assumed", least=0)
    address_bytes: int = option(
        8,
        "Bytes of the return address that travel behind every dispatched row.",
        "assumed",
        least=0,
        most=MOST_ADDRESS_BYTES,
    )
    launch_ns: int = option(
        100,
        "Time from a counter's last count to the start of the blocks that it launches.",
        "assumed",
        least=0,
    )
    store_sms: int = option(
        0,
        "Most SMs of a GPU that the blocks of the routing kernel hold while they store. 0: as many "
        "as keep up with the busiest port.",
        "assumed; the paper gives no number",
    )
    tile_order: str = option(
        "unit:8",
        "Which ready tile goes first. arrival takes tiles as their counters launch them; expert "
        "takes the lowest expert, so that its tiles find weights in the L2 cache; unit:N goes "
        "through units of N row tiles of an expert column by column; unit:8+2 starts GEMM-2 of a "
        "unit of 8 behind GEMM-1 of the unit 2 later; waves:N takes N experts at a time, GEMM-1 of all of "
        "them and then GEMM-2. Without dam, tiles go in the order of the grid.",
        f"arXiv 2605.05888: counters of arrived data launch blocks; {UNIT_ASSUMED}",
        choices=TILE_ORDERS,
    )
    piece_bytes: int = option(
        8192,
        "Bytes of a row that travel as one message in the simulation, about.",
        "chosen for the model",
    )
