"""A cache or a catalogue's folder of somebody else: what lies there is not followed."""

import shutil

import pytest

import tracegen
from tracegen import UserError, library
from tracegen.library import publish, resolve


def files_of(cache):
    return sorted(path.relative_to(cache) for path in cache.rglob("*"))


@pytest.mark.extended
def test_nothing_in_the_cache_is_followed(remote, tmp_path, in_place_of):
    """Each file and folder of it; the folders are in the way of all files in them."""
    cache = tmp_path / "cache"

    def use():
        resolve._read_remote.cache_clear()
        library.fetch("one")
        tracegen.load(f"{remote.url}/t/two.h5")

    use()
    there = files_of(cache)
    parts = [path.with_name(f"{path.name}.part") for path in there if path.suffix == ".h5"]
    assert len(there) > 10 and parts
    passed = []
    for path in (*there, *parts):
        if path in parts:
            (cache / path).with_suffix("").unlink()  # it has to be fetched again
        for name in in_place_of(cache / path, tmp_path / "elsewhere" / "victim"):
            try:
                use()
            except UserError as error:
                assert " is a " in str(error) and "; remove it" in str(error)
            else:
                passed.append((str(path), name))
        use()
    assert set(files_of(cache)) == set(there)
    # A catalogue that cannot be read is a problem that is told, but what was fetched has its name;
    # such names are passed over; a lock is not looked at where all is there; and what there is of
    # an unlisted file is removed before it is fetched again.
    harmless = (".lock", ".part")
    rest = [one for one in passed if not one[0].startswith(("fetched", "catalogues"))]
    assert [one for one in rest if not one[0].endswith(harmless)] == []


def test_nothing_in_a_catalogue_or_a_folder_for_copies_is_followed(remote, folder, tmp_path, in_place_of):
    mine, copies = tmp_path / "mine", tmp_path / "copies"
    mine.mkdir()
    shutil.copy(folder / "index.toml", mine)
    for path, do in (
        (mine / "index.toml", lambda: publish.add(mine, str(folder / "two.h5"), name="three")),
        (mine / "three.h5", lambda: publish.add(mine, str(folder / "two.h5"), name="three")),
        (copies / "one.h5", lambda: library.fetch("one", out=copies)),
    ):
        path.parent.mkdir(exist_ok=True)
        for _ in in_place_of(path, tmp_path / "elsewhere" / "victim"):
            with pytest.raises(UserError, match=r"index.toml|is a .*; remove it"):
                do()
