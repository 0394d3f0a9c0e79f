"""Options of T3."""

from __future__ import annotations

from dataclasses import dataclass

from replay.schemes.options import Options, option
from replay.schemes.tp.residency import resident_blocks


@dataclass(frozen=True)
class T3Options(Options):
    """Options that T3 has with rings and in the switch."""

    trigger_ns: int = option(
        150,
        "Time from the last store into a piece, as the memory controller sees it, until the engine "
        "has its command or waiting tiles are started.",
        "assumed: a look-up in a table of 19 KB and a way over the chip, about half of a hit in "
        "the L2 cache; T3 says that it is in no access's way, and gives no time",
        least=0,
    )
    engine_start: bool = option(
        True,
        "Whether every command of an engine pays what starting a copy costs today (overheads.copy_engine_start_us).",
        "T3's simulator does not model the engines; commands are fetched beforehand, so that the "
        "start of one does not hold up the next",
    )
    overlap_gather: bool = option(
        True,
        "Whether tiles of the product behind a gather begin as their rows come. Without it the "
        "product is a kernel behind the gather.",
        "CAIS (arXiv 2605.05628), IV-C: T3 extended to all-gathers; T3 itself overlaps products "
        "with reduce-scatters and leaves gathers in sequence",
    )
    piece_bytes: int = option(
        65536,
        "Most bytes of whole rows that one command copies, at least one row. Sums are copied tile by tile.",
        "assumed: as a tile of 128 x 256 sums",
    )
    resident_blocks: int = resident_blocks()


@dataclass(frozen=True)
class RingOptions(T3Options):
    """Options of T3 with rings."""

    near_memory: bool = option(
        True,
        "Whether memory adds what is stored to what is there (op-and-store), at the cost of a "
        "store. Without it, the second of two stores to a sum reads the first.",
        "arXiv 2401.16677, 4.3; without compute in memory: atomics of the system, 7",
    )
