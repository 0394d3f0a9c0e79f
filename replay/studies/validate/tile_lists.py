"""Orders of the tiles of a grouped GEMM as lists, and the shapes that they are measured for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replay.model.arrays import Ints

BLOCK_M = 128  # rows of a tile
ORDERS = (
    "unit:1",
    "unit:2",
    "unit:4",
    "unit:8",
    "unit:16",
    "unit:all",
    "arrival:1",
    "arrival:2",
    "arrival:4",
    "arrival:8",
)
ELEMENT_BYTES = {"bf16": 2, "fp8": 1}
OUT_BYTES = 2  # results are BF16
SEED = 0


@dataclass(frozen=True)
class GroupedShape:
    """A grouped GEMM of one rank: (rows, k) x (k, n) for each of its experts, rows alike."""

    model: str
    experts: int
    rows: int
    k: int
    n: int
    block_n: int = 256  # columns of a tile

    @property
    def row_tiles(self) -> int:
        """Row tiles of an expert."""
        return -(-self.rows // BLOCK_M)

    @property
    def columns(self) -> int:
        """Column tiles of a row tile."""
        return -(-self.n // self.block_n)

    def least_bytes(self, dtype: str) -> int:
        """Bytes of all operands, each read once."""
        return ELEMENT_BYTES[dtype] * self.experts * self.k * (self.n + self.rows)


SHAPES = (
    GroupedShape("mixtral-8x7b", 1, 4096, 4096, 28672),
    GroupedShape("mixtral-8x7b", 1, 4096, 14336, 4096),
    GroupedShape("mixtral-8x7b", 1, 16384, 4096, 28672),
    GroupedShape("mixtral-8x7b", 1, 16384, 14336, 4096),
    GroupedShape("qwen3-235b-a22b", 16, 2048, 4096, 3072),
    GroupedShape("qwen3-235b-a22b", 16, 2048, 1536, 4096),
    GroupedShape("glm-4.5", 20, 1664, 5120, 3072),
    GroupedShape("glm-4.5", 20, 1664, 1536, 5120),
    GroupedShape("deepseek-v3", 32, 256, 7168, 4096),
    GroupedShape("deepseek-v3", 32, 256, 2048, 7168),
)
"""One rank's experts with whole tiles of rows: of GLM-4.5, 1638 come from 4096 tokens on 8 GPUs."""


class Tiles(NamedTuple):
    """A list of tiles, in the order in which programs take them.

    Attributes
    ----------
    expert, row, column
        (tile,): expert, row tile among all of the rank, and column tile.
    """

    expert: Ints
    row: Ints
    column: Ints


def tile_list(shape: GroupedShape, order: str) -> Tiles:
    """Every tile of a GEMM once, in an order.

    Raises
    ------
    ValueError
        If there is no such order.
    """
    name, _, size = order.partition(":")
    if name not in ("unit", "arrival") or not (size == "all" or (size.isdecimal() and int(size))):
        message = f"order {order!r}; there are unit:G, unit:all and arrival:G with G from 1"
        raise ValueError(message)
    height = shape.row_tiles if size == "all" else int(size)
    firsts = [(expert, first) for expert in range(shape.experts) for first in range(0, shape.row_tiles, height)]
    if name == "arrival":
        firsts = [firsts[place] for place in np.random.default_rng(SEED).permutation(len(firsts))]
    found = [
        (expert, expert * shape.row_tiles + row, column)
        for expert, first in firsts
        for column in range(shape.columns)
        for row in range(first, min(first + height, shape.row_tiles))
    ]
    return Tiles(*np.array(found, np.int64).T)


def distinct_orders(shape: GroupedShape) -> list[str]:
    """Orders whose lists differ from those before them."""
    seen: set[bytes] = set()
    kept = []
    for order in ORDERS:
        key = np.stack(tile_list(shape, order)).tobytes()
        if key not in seen:
            kept.append(order)
        seen.add(key)
    return kept
