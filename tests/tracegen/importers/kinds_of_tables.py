"""Inputs that are tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import TOPK, Array
from kinds import IDS, TOKENS, Kind, kind


def parquet(folder: Path, name: str = "r.parquet", **columns: Any) -> list[Path]:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
    from pyarrow import parquet as module

    module.write_table(pyarrow.table(columns), folder / name)
    return [folder / name]


def long_rows() -> dict[str, Array]:
    """A row for each token and layer."""
    token, layer = (axis.ravel() for axis in np.indices((TOKENS, 2)))
    return {"token": token, "layer": layer, "experts": IDS.reshape(-1, TOPK)}


@kind("a column for each slot", "refused: it has expert_0, expert_1, expert_2")
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, **{f"expert_{k}": IDS[:, 0, k] for k in range(TOPK)}))


@kind("a row for each slot", "read")
def _(folder: Path) -> Kind:
    token, layer, slot = (axis.ravel() for axis in np.indices(IDS.shape))
    order = np.random.default_rng(1).permutation(token.size)
    columns = {"token": token, "layer": layer, "slot": slot, "expert_ids": IDS.ravel()}
    return Kind(parquet(folder, **{name: column[order] for name, column in columns.items()}))


@kind("a row for each token and layer, in any order", "read")
def _(folder: Path) -> Kind:
    order = np.random.default_rng(1).permutation(2 * TOKENS)
    columns = {name: column[order].tolist() for name, column in long_rows().items()}
    return Kind(parquet(folder, **columns), options={"columns": {"ids": "experts"}})


@kind("a row for each token and layer, some missing", "refused: layers have rows {0: 11, 1: 12}")
def _(folder: Path) -> Kind:
    columns = {name: column[1:].tolist() for name, column in long_rows().items()}
    return Kind(parquet(folder, **columns), options={"columns": {"ids": "experts"}})


@kind(
    "a table with columns of other names", "refused: it has experts_x, layer_x, token_x (--columns ids=NAME says which)"
)
def _(folder: Path) -> Kind:
    columns = {f"{name}_x": column.tolist() for name, column in long_rows().items()}
    return Kind(parquet(folder, **columns))


@kind("a table with columns of other names, named", "read")
def _(folder: Path) -> Kind:
    columns = {f"{name}_x": column.tolist() for name, column in long_rows().items()}
    names = {"ids": "experts_x", "layer": "layer_x", "token": "token_x"}
    return Kind(parquet(folder, **columns), options={"columns": names})


@kind(
    "a table with columns of other names, named wrongly",
    "refused: --columns ids=expert: no array 'expert'; it has experts",
)
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, experts=IDS.tolist()), options={"columns": {"ids": "expert"}})


@kind("a table with lists of unequal length", "refused: expert_ids has lists of unequal length")
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, expert_ids=[[1, 2], [3]]))


@kind("a table that pandas wrote, with its index", "read")
def _(folder: Path) -> Kind:
    index = np.arange(TOKENS) * 10
    columns = {"expert_ids": IDS.tolist(), "request": [0.0] * TOKENS, "__index_level_0__": index}
    return Kind(parquet(folder, **columns))


@kind(
    "a table with gaps in a column of numbers",
    "refused: request: float64 with gaps or fractions; integers are expected",
)
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, expert_ids=IDS.tolist(), request=[None, *[0] * (TOKENS - 1)]))
