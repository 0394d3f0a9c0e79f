"""Options of Pangu's hierarchical exchange; see `replay.schemes.ep.pangu.scheme`."""

from __future__ import annotations

from dataclasses import dataclass

from replay.schemes.ep.nccl import NcclOptions
from replay.schemes.options import option


@dataclass(frozen=True)
class PanguOptions(NcclOptions):
    """Chunks of tokens and the count of experts, beside NCCL's settings where it moves rows."""

    chunks: int = option(
        1,
        "Parts in which the tokens of a GPU travel. The all-gather of one part runs beside the "
        "all-to-all inside the nodes of the part before it; on the way back likewise.",
        "arXiv 2505.04519 overlaps the two across micro-batches and gives no number of parts "
        "within one; mindformers has one",
        most=64,
    )
    counts: str = option(
        "one-hot",
        "How rows of each expert are counted. one-hot: a value for each (token, expert) slot and "
        "each expert, written and summed up. histogram: in one pass over the ids.",
        "mindformers token_dispatcher.py: OneHot, then a sum",
        choices=("one-hot", "histogram"),
    )
