"""Options of DySHARP and its variants; see `replay.schemes.ep.dysharp.scheme`.

What the paper leaves open is an option with the reading we find likeliest as default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replay.model.compute.tile_order import TILE_ORDERS, UNIT_ASSUMED
from replay.schemes.options import Options, option

PAPER = "arXiv 2605.05607"


def _row_sms(what: str) -> Any:
    return option(
        0,
        f"SMs that {what} rows. In the fused variants the GEMMs have the SMs that are left. 0: as "
        "many as keep up with the busiest port.",
        "assumed; the paper gives no numbers",
    )


@dataclass(frozen=True)
class RowOptions(Options):
    """Options of moving and placing rows, with or without the switch's help."""

    dispatch_sms: int = _row_sms("push")
    combine_sms: int = _row_sms("pull")
    segment_packets: int = option(
        0,
        "Packets of a row that travel as one message; 0: all of them. Rows that travel at the same "
        "time mix by messages, which decides what the AL-TLB and the reduction buffer see.",
        "chosen for the model",
    )
    gate_weights: str = option(
        "packets",
        "How gate weights reach the experts, whose GEMM-2 applies them. packets: behind each row, "
        "4 bytes for each of its experts, and 2 of the expert's id where no list of the switch "
        "names it. free: at no cost.",
        f"assumed; {PAPER} applies weights in GEMM-2's epilogue and does not say how they get there",
        choices=("packets", "free"),
    )
    answers: str = option(
        "gpu",
        "Whether a GPU that hosts several experts of a token answers with their sum (gpu), which "
        "its hub makes at no cost, or for each (expert).",
        "assumed; the paper does not state it",
        choices=("gpu", "expert"),
    )
    results: str = option(
        "memory",
        "Where a GPU finds the results that it answers with. memory: each row is read from device "
        "memory, as COMET's is. cache: in the L2 cache, where tiles have left them.",
        f"{PAPER} does not state it; a token is complete when its last expert is, by when its "
        "first row has left a cache of 50 MB",
        choices=("memory", "cache"),
    )
    tlb_entries: int = option(
        512,
        "Entries of the AL-TLB, which caches the slots of rows, one for each (token, expert); 0: it never misses.",
        f"{PAPER} section IV-C",
        least=0,
    )


@dataclass(frozen=True)
class SwitchOptions(RowOptions):
    """Options of copies and sums in the switch."""

    addressing: str = option(
        "dynamic",
        "How packets name their targets. dynamic: packets list experts, eight to a flit, and the "
        "switch finds the ports. explicit: packets carry an address for each GPU, one flit for "
        "each beyond the first, both on the way to the switch and in what answers. free: names "
        "cost nothing, the paper's ideal.",
        f"{PAPER} sections III-A and III-B",
        choices=("dynamic", "explicit", "free"),
    )
    target_lists: str = option(
        "trimmed",
        "What the switch passes on to a target of a list of experts: those of that GPU (trimmed), "
        "all (kept), or none (stripped).",
        f"{PAPER} section III-B",
        choices=("trimmed", "kept", "stripped"),
    )
    loopback: bool = option(
        False,
        "Whether a GPU's copy and rows for itself pass through the switch too.",
        "assumed; the paper does not state it",
    )
    port_rate: str = option(
        "multimem",
        "Rate of a port under packets that the switch copies or adds up. multimem: what is left of "
        "it for NVLS on today's hardware (`switch.multimem_efficiency`). line: all of it, as the "
        "paper's simulated switch has.",
        "assumed: as NVLS; no such switch has been measured",
        choices=("multimem", "line"),
    )
    reduction: str = option(
        "evict",
        "What a full reduction buffer does. evict sends a partial sum early; wait lets requests "
        "wait until there is room.",
        f"{PAPER} section III-C",
        choices=("evict", "wait"),
    )
    reduction_timeout_ns: int = option(
        0,
        "Time after its last part came in which a sum is not evicted from a full buffer.",
        "assumed; the paper does not state it",
    )
    multimem_queue: int = option(
        32,
        "Entries of an SM's queue of packets for the switch (MultimemQ). A packet holds one from its "
        "issue until it has left; 0: no limit. At least one message fits beside the one that is "
        "being issued.",
        f"{PAPER} section III-B",
        least=0,
        unit="packets",
    )


@dataclass(frozen=True)
class TileOptions(RowOptions):
    """Options of tiles that start as their rows arrive."""

    slots: str = option(
        "arrival",
        "How rows get their slots in the tiles. arrival takes the first free slot, as proposed; "
        "source fixes slots beforehand in order of source and token, as software would.",
        f"{PAPER}, the proposal",
        choices=("arrival", "source"),
    )
    tile_order: str = option(
        "unit:8",
        "Which ready tile goes first. arrival takes tiles as they became ready; expert takes the "
        "lowest expert, so that its tiles find weights in the L2 cache; unit:N goes through units "
        "of N row tiles of an expert column by column; unit:8+2 starts GEMM-2 of a unit of 8 "
        "behind GEMM-1 of the unit 2 later; waves:N takes N experts at a time, GEMM-1 of all of them and "
        "then GEMM-2.",
        f"{PAPER} section IV: tiles are paced by tokens, a row of tiles is issued when its 128 "
        f"tokens have arrived; {UNIT_ASSUMED}",
        choices=TILE_ORDERS,
    )
    tile_rows: int = option(128, "Rows of a tile.", f"{PAPER} section IV-B")
    tile_entries: int = option(
        1024,
        "Entries of the Tile-Status table. What does not fit lies in DRAM; 0 is as many as are needed.",
        f"{PAPER} section IV-C",
        least=0,
    )
    readiness_entries: int = option(
        1024,
        "Entries of the Output-Readiness table. What does not fit lies in DRAM; 0 is as many as are needed.",
        f"{PAPER} section IV-C",
        least=0,
    )


@dataclass(frozen=True)
class FusedOptions(TileOptions):
    """Options of the fused kernel."""

    gemm2_sms: int = option(
        0,
        "SMs of the second GEMM. 0 lets both GEMMs share all SMs that do not move rows.",
        "assumed; the paper gives no numbers",
    )


@dataclass(frozen=True)
class DySharpOptions(FusedOptions, SwitchOptions):
    """Options of the fused kernel with in-switch computing."""


@dataclass(frozen=True)
class TwoKernelOptions(TileOptions, SwitchOptions):
    """Options of two kernels with in-switch computing."""
