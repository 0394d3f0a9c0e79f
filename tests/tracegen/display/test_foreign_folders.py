"""Folders that tables and figures are written into: what lies there is not followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tracegen.shared.display import files
from tracegen.shared.display.content import Column, Page, Section, Table
from tracegen.shared.errors import UserError


def test_no_file_of_a_folder_of_tables_is_followed(
    tmp_path: Path, in_place_of: Callable[[Path, Path], Iterator[str]]
) -> None:
    table = Table("t", "A table", [Column("a", form="d")], [[1]])
    page = Page("title", "", [Section("s", [table])])
    for path in files.write(page, tmp_path / "tables").files:
        for _ in in_place_of(path, tmp_path / "elsewhere" / "victim"):
            with pytest.raises(UserError, match=rf"{path.name} is a .*, not a file; remove it"):
                files.write(page, tmp_path / "tables")
