import numpy as np
import pytest

from replay.engine.cells import KeyCells


@pytest.mark.parametrize("most", [10, 2**20, 2**63 - 1])
def test_each_key_of_each_table_has_a_cell_of_its_own(most: int) -> None:
    rng = np.random.default_rng(3)
    table = rng.choice([0, 2, 3], 500)
    key = rng.integers(0, most, 40, endpoint=True)[rng.integers(0, 40, 500)]
    key[:2] = 0, most
    cells = KeyCells.of(5, table, key)
    cell = cells.first[table] + cells.key
    of_cell: dict[int, tuple[int, int]] = {}
    for place, name in zip(cell.tolist(), zip(table.tolist(), key.tolist(), strict=True), strict=True):
        assert of_cell.setdefault(place, name) == name
    assert len(of_cell) == len(set(of_cell.values()))
    assert min(of_cell) >= 0
    assert max(of_cell) < cells.size


def test_without_rows_there_are_no_cells() -> None:
    nothing = np.zeros(0, np.int64)
    assert KeyCells.of(0, nothing, nothing).size == 0
    assert KeyCells.of(3, nothing, nothing).size == 0
