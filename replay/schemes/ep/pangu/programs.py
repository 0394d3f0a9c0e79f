"""The kernels of Pangu's exchange, operator by operator as mindformers' dispatcher calls them.

An operator is one kernel. Casts that change no size count like others; views and constants do not.
A sort of 32-bit keys with 4-byte indices reads and writes both in four passes of 8 bits, which is
assumed. Sizes of an operator that depend on values (NonZero) let the host wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.schemes.ep.software import Listed, experts, kernels

if TYPE_CHECKING:
    from replay.schemes.ep.pangu.options import PanguOptions
    from replay.schemes.ep.software import Outline

ID_BYTES = 4  # int32
WEIGHT_BYTES = 2  # BF16
COUNT_BYTES = 4  # FP32
SORT_BYTES = 4 * 2 * (4 + 4)
"""Device memory traffic of a sort for each key."""

IDS, WEIGHTS = "all-gather of expert ids", "all-gather of gate weights"
ROWS, SUMS = "all-gather of rows", "reduce-scatter of sums"
WEIGHT_GRADIENTS = "reduce-scatter of gradients of gate weights"
INSIDE, INSIDE_IDS = "all-to-all of rows", "all-to-all of expert ids"
TELL = "all-to-all of counts"
HISTOGRAM, ONE_HOT, ONE_HOT_SUM = "histogram of ids", "one-hot of ids", "counts by expert"
ZEROS, WEIGH, SORT = "zeros for the sums", "weigh rows", "sort by expert"
ADD_NODES = "sums of all nodes"
SPLITS_WAIT, ROWS_WAIT = "splits to the host", "number of rows to the host"

DISPATCHER = "mindformers token_dispatcher.py"
SPLITS = Listed(
    "splits", 10,
    source=f"{DISPATCHER}: three sums, a cumulative sum, four casts, two copies",
)  # fmt: skip
ROUTE = Listed(
    "order of slots", 8, "a sort of the ids of all gathered slots",
    f"{DISPATCHER}, get_exdispatch_idx: two casts, sort, weights, tokens, two comparisons, and",
)  # fmt: skip
SELECT = Listed(
    "slots of the node", 4, "ids and weights of all gathered slots",
    f"{DISPATCHER}, get_exdispatch_idx: NonZero, three selections",
)  # fmt: skip
ORDER = Listed(
    "order of rows", 4, "two sorts of the ids of received rows",
    f"{DISPATCHER}: two casts, two sorts",
)  # fmt: skip


def listed(layer: Outline, options: PanguOptions) -> tuple[Listed, ...]:
    """All operations of a layer, in order."""
    between = layer.num_domains > 1
    inside = layer.num_ranks > layer.num_domains
    back = layer.is_backward
    return (
        *_counts(layer, options),
        *layer.tokens,
        *(kernels(ROWS) * options.chunks if between else ()),
        *(() if back else (SELECT, Listed(ROWS_WAIT, 0))),
        *_sent(back=back, inside=inside) * options.chunks,
        *layer.received,
        *(() if back else (ORDER,)),
        Listed(SORT, moves="every received row"),
        *experts(is_backward=back),
        Listed(SORT, moves="every result"),
        *_returned(back=back, inside=inside, between=between) * options.chunks,
        *(kernels(WEIGHT_GRADIENTS) if back and between else ()),
        *((Listed(ADD_NODES, moves="sums of every node, their sum"),) if between else ()),
    )


def _counts(layer: Outline, options: PanguOptions) -> tuple[Listed, ...]:
    """What tells sizes; a backward pass finds all maps and splits as they were."""
    if layer.is_backward:
        return ()
    slots = "a 4-byte value for each (gathered slot, expert)"
    counted = (
        (Listed(HISTOGRAM, moves="ids of all gathered slots"),)
        if options.counts == "histogram"
        else (Listed(ONE_HOT, moves=slots), Listed(ONE_HOT_SUM, moves=slots))
    )
    between = layer.num_domains > 1
    return (
        *(kernels(IDS) if between else ()),
        *counted,
        *(kernels(TELL) if layer.num_ranks > layer.num_domains else ()),
        SPLITS,
        Listed(SPLITS_WAIT, 0),
        *(kernels(WEIGHTS) if between else ()),
        ROUTE,
    )


def _sent(*, back: bool, inside: bool) -> tuple[Listed, ...]:
    """From gathered tokens to the rows of a part at their experts."""
    ids = () if back else (INSIDE_IDS,)
    return (
        Listed(ZEROS, moves="gathered tokens, as many zeros"),
        Listed("permute", moves="a row for each slot of the node"),
        *((Listed(WEIGH, moves="gradients and results, weighed gradients"),) if back else ()),
        *(kernels(INSIDE, *ids) if inside else ()),
    )


def _returned(*, back: bool, inside: bool, between: bool) -> tuple[Listed, ...]:
    """From results of a part to sums on their way between nodes."""
    return (
        *(kernels(INSIDE) if inside else ()),
        *(() if back else (Listed(WEIGH, moves="every returned row twice"),)),
        Listed("unpermute", moves="every returned row; a sum for each, read and written"),
        *(kernels(SUMS) if between else ()),
    )
