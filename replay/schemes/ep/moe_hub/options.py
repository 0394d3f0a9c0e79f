"""Options of MoE-Hub; see `replay.schemes.ep.moe_hub.scheme`."""

from __future__ import annotations

from dataclasses import dataclass

from replay.model.compute.tile_order import TILE_ORDERS
from replay.schemes.options import Options, option

MOST_ADDRESS_BYTES = 4096  # far more than any address; it travels in pieces, as a row does


@dataclass(frozen=True)
class MoeHubOptions(Options):
    """Options of the three units in the hub, and of the model."""

    rpm: bool = option(
        True,
        help="Whether the packet manager is there, which merges stores at the sender.",
        source="arXiv 2605.05888, the proposal",
    )
    dam: bool = option(
        True,
        help="Whether the data availability manager is there, which launches tiles by their data.",
        source="arXiv 2605.05888, the proposal",
    )
    queue_packets: int = option(
        256,
        least=1,
        unit="packets",
        help="Packets that the packet manager queues for each destination; 256 are 32 KiB.",
        source="assumed",
    )
    rpm_timer_ns: int = option(
        100,
        least=0,
        unit="ns",
        help="For how long a packet that is not full waits for more.",
        source="assumed",
    )
    aau_entries: int = option(
        4096,
        least=1,
        help="Rows whose address the table of the address allocation holds.",
        source="assumed",
    )
    aau_ns: int = option(
        10,
        least=0,
        unit="ns",
        help="Time of a look-up in the table of the address allocation.",
        source="assumed",
    )
    address_bytes: int = option(
        8,
        least=0,
        most=MOST_ADDRESS_BYTES,
        unit="bytes",
        help="Bytes of the return address that travel behind every dispatched row.",
        source="assumed",
    )
    launch_ns: int = option(
        100,
        least=0,
        unit="ns",
        help="Time from a counter's last count to the start of the blocks that it launches.",
        source="assumed",
    )
    store_sms: int = option(
        12,
        least=1,
        help="Most SMs of a GPU that the blocks of the routing kernel hold while they store.",
        source="assumed: twelve, as many as DeepEP's kernels have senders, keep an H100's port "
        "busy",
    )
    tile_order: str = option(
        "arrival",
        choices=TILE_ORDERS,
        help="Which ready tile goes first. arrival takes tiles as their counters launch them; "
        "expert takes the lowest expert, so that its tiles find weights in the L2 cache; unit:N "
        "goes through units of N row tiles of an expert column by column, with +N the second GEMM "
        "so many units later; waves:N takes so many experts at a time. Without dam, tiles go in "
        "the order of the grid.",
        source="arXiv 2605.05888: counters of arrived data launch blocks",
    )
    piece_bytes: int = option(
        8192,
        least=1,
        unit="bytes",
        help="About how many bytes of a row are one message on the links; the model's grain.",
        source="chosen for the model",
    )
