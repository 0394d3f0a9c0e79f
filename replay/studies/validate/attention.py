"""Attention kernels alone, forward and backward, by width of a head, heads and sequence: one H200.

PyTorch launches one kernel forward. Backward it launches one, two more around it, and one each for
keys' and values' gradients where heads share them, as in the lists of training stacks. Of
FlashAttention-2 forward kernels are predicted: their blocks go to free places in their order.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from hwmodel.attention import Scores
from hwmodel.units import PS_PER_US, ps_from_ns
from replay.model.compute import flash
from replay.model.work.transformer_layer import Sizes
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from hwmodel import System
    from replay.studies.validate.bench import Bench

BF16, FP32 = 2, 4
SHORT = 1024  # tokens of a sequence up to which other kernels and the start weigh much


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a call in microseconds, from the first kernel's launch."""
    system = bench.system(row["system"])
    key, value, heads = int(row["width"]), int(row["value_width"]), int(row["heads"])
    tokens, shared = int(row["batch"] * row["sequence"]), int(row["kv_heads"])
    attention, overheads = system.attention, system.overheads
    nbytes = tokens * (heads + shared) * (key + value) * BF16
    if row["library"] == "flash":
        return (_flash_ps(row, system) + overheads.launch_ps) / PS_PER_US
    if row["pass"] == "forward":
        time: int = attention.forward_ps(_scores(row, system), key, value, nbytes)
        return (time + overheads.launch_ps) / PS_PER_US
    time = attention.backward_ps(_scores(row, system), key, value, 2 * nbytes)
    moved = [heads * (2 * BF16 * value + FP32 * key), heads * (FP32 + BF16) * key]
    if shared < heads:
        moved += [(heads + shared) * BF16 * width for width in (key, value)]
    for each in moved:
        time += int(system.hbm.stream_ps(tokens * each)) + overheads.small_kernel_ps
    gaps = len(moved) * overheads.kernel_gap_ps()
    return (time + overheads.launch_ps + gaps) / PS_PER_US


def _flash_ps(row: MeasurementRow, system: System) -> int:
    sequence, sms = int(row["sequence"]), system.compute.num_sms
    rows, keys = flash.tile("forward", int(row["width"]))
    alone, beside = flash.turns_ps(system, rows, keys, int(row["width"]))
    last = range(rows, sequence + rows, rows) if row["causal"] else [sequence] * -(-sequence // rows)
    tiles = [-(-min(seen, sequence) // keys) for seen in last] * int(row["batch"] * row["heads"])
    places, turn = (sms, alone) if len(tiles) <= sms else (flash.RESIDENT * sms, beside)
    ends = [0] * places
    for count in tiles:
        heapq.heapreplace(ends, ends[0] + count * turn + ps_from_ns(flash.BLOCK_NS))
    return max(ends)


def _scores(row: MeasurementRow, system: System) -> Scores[int]:
    tiles = (system.attention.tile_rows, system.attention.tile_keys)
    tokens, sequence, heads = row["batch"] * row["sequence"], row["sequence"], row["heads"]
    counted = Sizes(tokens, sequence, False, *tiles)
    if row["causal"]:
        return Scores(heads * counted.pairs, heads * counted.blocks, counted.longest)
    blocks = heads * counted.blocks
    return Scores(blocks * counted.longest, blocks, counted.longest)


def _is_short(row: MeasurementRow) -> bool:
    return bool(row["sequence"] <= SHORT)


TABLE = MeasurementTable(
    name="attention",
    title="Attention kernels of cuDNN and FlashAttention-2, H200",
    kind=WorkKind.PRODUCTS,
    size="sequence",
    bounds=(
        Bound("forward", 6, has(library="cudnn", **{"pass": "forward"})),
        Bound("FlashAttention-2, forward", 10, has(library="flash")),
        Bound("backward", 10, lambda row: row["pass"] == "backward" and not _is_short(row)),
        Bound("backward, up to 1024", 25, lambda row: row["pass"] == "backward" and _is_short(row)),
    ),
    predict=predict,
    systems=("hgx-h200",),
    others=("low_us", "high_us"),
    belongs=lambda row: row["library"] == "cudnn" or row["pass"] == "forward",
)
