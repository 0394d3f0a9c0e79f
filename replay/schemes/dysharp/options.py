"""Options of DySHARP and its variants; see `replay.schemes.dysharp.scheme`.

What the paper leaves open is an option with the reading we find likeliest as default.
"""

from __future__ import annotations

from dataclasses import dataclass

from replay.errors import unknown
from replay.schemes.base import NoOptions, at_least

SLOTS = ("arrival", "source")
TILE_ORDERS = ("arrival", "expert")
ADDRESSING = ("dynamic", "explicit", "free")
TARGET_LISTS = ("trimmed", "kept", "stripped")
ANSWERS = ("gpu", "expert")
REDUCTION = ("evict", "wait")


@dataclass(frozen=True)
class RowOptions(NoOptions):
    """How rows are moved and placed, with or without the switch's help.

    Attributes
    ----------
    dispatch_sms, combine_sms
        SMs that push and pull; in the fused variants the GEMM groups have the rest. The paper gives
        no numbers. Without the switch each row is stored once for every GPU: twelve SMs, as many as
        DeepEP's kernels have senders, keep the port busy.
    segment_packets
        Packets of a row that are one message, 0 for all of them. Rows that travel at the same time
        mix at this grain, which decides what the AL-TLB and the reduction buffer see.
    tlb_entries
        Entries of the AL-TLB (section IV-C: 512), one a (token, expert); 0 for an ideal one.
    """

    dispatch_sms: int = 12
    combine_sms: int = 8
    segment_packets: int = 0
    tlb_entries: int = 512

    def check(self) -> None:
        """See `NoOptions.check`."""
        at_least("dysharp", 1, dispatch_sms=self.dispatch_sms, combine_sms=self.combine_sms)
        at_least("dysharp", 0, segment_packets=self.segment_packets, tlb_entries=self.tlb_entries)


@dataclass(frozen=True)
class SwitchOptions(RowOptions):
    """Options of copies and sums in the switch.

    Attributes
    ----------
    dispatch_sms
        A row is stored once for all GPUs.
    addressing
        ``"dynamic"``: packets list experts, eight to a flit, and the switch finds the ports.
        ``"explicit"``: packets carry an address for each GPU, one flit for each beyond the first,
        both on the way to the switch and in what answers (section III-A). ``"free"``: names cost
        nothing, the paper's ideal.
    target_lists
        What of a dynamic list goes on to a target: the experts of that GPU (``"trimmed"``, section
        III-B), all (``"kept"``), or nothing (``"stripped"``).
    answers
        Whether a GPU that hosts several experts of a token answers with their sum (``"gpu"``) or
        for each (``"expert"``). Not stated.
    loopback
        Whether the copy and the rows of the own GPU pass through the switch too. Not stated.
    reduction
        What a full reduction buffer does: ``"evict"`` sends a partial sum early (section III-C),
        ``"wait"`` lets requests wait until there is room.
    reduction_timeout_ns
        For how long after its last part a sum is not evicted, if anything is. Not stated.
    multimem_queue
        Entries of an SM's MultimemQ (section III-B: 32), each a packet from its issue until it has
        left; 0 for any number. The queue holds at least one message, our grain, beside the one
        that is being issued.
    """

    dispatch_sms: int = 8
    addressing: str = "dynamic"
    target_lists: str = "trimmed"
    answers: str = "gpu"
    loopback: bool = False
    reduction: str = "evict"
    reduction_timeout_ns: int = 0
    multimem_queue: int = 32

    def check(self) -> None:
        """See `NoOptions.check`."""
        super().check()
        at_least(
            "dysharp", 0, reduction_timeout_ns=self.reduction_timeout_ns,
            multimem_queue=self.multimem_queue,
        )  # fmt: skip
        one_of("addressing", self.addressing, ADDRESSING)
        one_of("target_lists", self.target_lists, TARGET_LISTS)
        one_of("answers", self.answers, ANSWERS)
        one_of("reduction", self.reduction, REDUCTION)


@dataclass(frozen=True)
class TileOptions(RowOptions):
    """Options of tiles that start as their rows arrive.

    Attributes
    ----------
    slots
        How rows get their slots in the tiles: ``"arrival"`` (the proposal: the first free one) or
        ``"source"`` (fixed beforehand, in order of source and token, as software would).
    tile_order
        Which ready tile goes first: ``"expert"`` (lowest expert, so that its tiles share weights in
        the L2 cache) or ``"arrival"`` (see `fused_tiles`). The paper does not say.
    weight_passes
        How often an expert's weights are read from HBM (see `gemm_tasks`).
    tile_rows
        Rows of a tile (section IV-B: 128).
    tile_entries, readiness_entries
        Entries of the Tile-Status and the Output-Readiness table (section IV-C: 1024 each); what
        does not fit lies in DRAM. 0 for as many as are needed.
    """

    slots: str = "arrival"
    tile_order: str = "expert"
    weight_passes: int = 1
    tile_rows: int = 128
    tile_entries: int = 1024
    readiness_entries: int = 1024

    def check(self) -> None:
        """See `NoOptions.check`."""
        super().check()
        at_least("dysharp", 1, weight_passes=self.weight_passes, tile_rows=self.tile_rows)
        at_least(
            "dysharp", 0, tile_entries=self.tile_entries,
            readiness_entries=self.readiness_entries,
        )  # fmt: skip
        one_of("slots", self.slots, SLOTS)
        one_of("tile_order", self.tile_order, TILE_ORDERS)


@dataclass(frozen=True)
class FusedOptions(TileOptions):
    """Options of the fused kernel.

    Attributes
    ----------
    gemm2_sms
        SMs of the second GEMM's group; 0 lets the two GEMM groups share all that do not move rows.
    """

    gemm2_sms: int = 0

    def check(self) -> None:
        """See `NoOptions.check`."""
        super().check()
        at_least("dysharp", 0, gemm2_sms=self.gemm2_sms)


@dataclass(frozen=True)
class DySharpOptions(FusedOptions, SwitchOptions):
    """Options of the fused kernel with in-switch computing; see its two parts."""

    dispatch_sms: int = 8


@dataclass(frozen=True)
class TwoKernelOptions(TileOptions, SwitchOptions):
    """Options of two kernels with in-switch computing; see its two parts."""

    dispatch_sms: int = 8


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that an option does not know.

    Raises
    ------
    UserError
        Naming the option, its value and what is possible.
    """
    if value not in known:
        raise unknown(f"{name} of scheme 'dysharp'", value, known)
