"""Pictures are drawn, of the statistics, as PNG."""

import sys

import pytest

import tracegen
from tracegen import UserError
from tracegen.stats.statistics import statistics


@pytest.fixture(scope="module")
def measured():
    return statistics(tracegen.load("toy-zipf"))


def test_every_picture_is_a_png_of_its_own(measured, tmp_path):
    pytest.importorskip("matplotlib")
    from tracegen.stats.plots import draw_all

    files = draw_all(measured, tmp_path / "new" / "folder", "a title")
    names = {path.name for path in files}
    assert names == {
        "expert-load.png",
        "co-activation.png",
        "group-traffic.png",
        "fan-out.png",
        "locality.png",
    }
    contents = {path.read_bytes() for path in files}
    assert len(contents) == 5
    for content in contents:
        assert content.startswith(b"\x89PNG")
        width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
        assert (width, height) == (960, 540)


def test_without_matplotlib_the_extra_is_named(measured, tmp_path, monkeypatch):
    from tracegen.stats.plots import draw_all

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"moereplay\[plots\]"):
        draw_all(measured, tmp_path, "")


def test_a_folder_that_cannot_be_written_is_the_users_mistake(measured, tmp_path):
    pytest.importorskip("matplotlib")
    from tracegen.stats.plots import draw_all

    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        draw_all(measured, tmp_path / "file", "")
