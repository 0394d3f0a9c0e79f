"""Which catalogues are searched, in which order, and what strangers may not write into them."""

import json
import shutil
from pathlib import Path

import h5py
import pytest
from loops import every

import tracegen
from tracegen import UserError, library
from tracegen.library import catalogue, entry_files, settings

GOOD = {
    "name": "a",
    "title": "A",
    "file": "a.h5",
    "file_bytes": 10,
    "sha256": "0" * 64,
    "content_id": "1" * 64,
    "model": "m",
    "kind": "synthetic",
    "phase": "decode",
    "num_layers": 1,
    "num_tokens": 1,
    "num_experts": 2,
    "topk": 1,
    "license": "MIT",
    "source": "s",
}


def text(**changed):
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**GOOD, **changed}.items()]
    return "\n".join(["version = 1", "", "[[trace]]", *lines, ""])


def test_a_catalogue_is_read_as_it_was_written():
    changed = {"title": 'quotes " \\ é 日本', "load_gini": 0.5, "has_gate_weights": True}
    wanted = catalogue.Entry(**{**GOOD, **changed})
    assert catalogue.parse(text(**changed), "x") == {"a": wanted}
    assert catalogue.parse(catalogue.text_of([wanted], "comment"), "x") == {"a": wanted}
    # A later version may say more of a trace.
    more = text() + 'colour = "red"\n[[other]]\nx = 1\n'
    assert catalogue.parse(more, "x")["a"] == catalogue.Entry(**GOOD)
    assert catalogue.parse("", "x") == {}


@every(
    "file",
    [
        "../a.h5",
        "/etc/a.h5",
        "x/../../a.h5",
        "..\\a.h5",
        "C:\\a.h5",
        "C:a.h5",
        "a.h5\n",
        "a\0.h5",
        ".hidden.h5",
        "x/./a.h5",
        "~/a.h5",
        "a.txt",
        "file:///etc/a.h5",
        "%2e%2e/a.h5",
        "a.h5?b",
        "nul.h5",
        "x/CON/a.h5",
        "/".join(["x"] * 9) + "/a.h5",
        "",
    ],
)
def test_files_outside_the_catalogue(file):
    with pytest.raises(UserError, match=r"index: trace 1: file: .*must be a relative path"):
        catalogue.parse(text(file=file), "index")


@every(
    ("changed", "message"),
    [
        ({"name": "../../x"}, "name: .*letters, digits"),
        ({"name": "a/b"}, "name: .*letters, digits"),
        ({"name": "x" * 101}, "name: .*at most 100"),
        ({"name": "nul"}, "name: .*letters"),
        ({"url": "file:///etc/passwd"}, "url: .*not a URL that is followed"),
        ({"url": "simplecache::file:///x"}, "url: .*not a URL that is followed"),
        ({"url": "s3://bucket/a::file:///x"}, "url: .*not a URL that is followed"),
        ({"url": "http://x y/"}, "url: .*not a URL that is followed"),
        ({"url": "/etc/passwd"}, "url: .*not a URL that is followed"),
        ({"file_bytes": 2**60}, "file_bytes: .*less than or equal"),
        ({"file_bytes": -1}, "file_bytes: .*greater than"),
        ({"num_tokens": 2**40}, "num_tokens: .*less than"),
        ({"num_layers": 1.5}, "num_layers: .*valid integer"),
        ({"sha256": "0" * 63}, "sha256: .*pattern"),
        ({"content_id": "Z" * 64}, "content_id: .*pattern"),
        ({"title": "x" * 5000}, "title: .*at most 4096"),
        ({"title": "\x1b[2J"}, "title: .*control characters"),
        ({"title": "a\nb"}, "title: .*control characters"),
        ({"license": 3}, "license: .*valid string"),
        ({"load_max_over_mean": float("inf")}, "load_max_over_mean: "),
        ({"load_gini": 2.0}, "load_gini: "),
    ],
)
def test_entries_that_do_not_fit(changed, message):
    written = text(**changed).replace("Infinity", "inf")
    with pytest.raises(UserError, match=f"^index: trace 1: {message}") as refusal:
        catalogue.parse(written, "index")
    assert len(str(refusal.value)) < 400
    assert str(refusal.value).isprintable()


@every(
    ("written", "message"),
    [
        ("a = [", "not a catalogue"),
        ("a = " + "[" * 100_000, "not a catalogue"),
        ("version = 2", "catalogue version 2; this moereplay reads 1"),
        ('version = "x"', "catalogue version 'x'"),
        ("trace = 3", "'trace' must be an array of tables"),
        ("trace = [3]", "trace 1: : Input should be a valid dictionary"),
        ("[[trace]]", "trace 1: name: Field required"),
        (text() + text().partition("\n\n")[2], "trace 2: a is listed twice"),
    ],
)
def test_texts_that_are_no_catalogue(written, message):
    with pytest.raises(UserError, match=f"^index: {message}"):
        catalogue.parse(written, "index")


@every(
    ("where", "index"),
    [
        ("https://x.org/t", "https://x.org/t/index.toml"),
        ("https://x.org/t/", "https://x.org/t/index.toml"),
        ("https://x.org/t/list.toml", "https://x.org/t/list.toml"),
        ("https://x.org/t?key=1", "https://x.org/t/index.toml?key=1"),
        ("hf://datasets/o/n@main", "hf://datasets/o/n@main/index.toml"),
        ("/data/t", "/data/t/index.toml"),
        ("/data/t/list.toml", "/data/t/list.toml"),
    ],
)
def test_where_the_index_of_a_catalogue_is(where, index):
    base, found = catalogue.index_of(where)
    assert found == index
    entry = catalogue.Entry(**GOOD)
    place = catalogue.Catalogue(where, base, {}).locate(entry)
    wanted = index.replace("index.toml", "a.h5").replace("list.toml", "a.h5")
    assert str(place) == wanted


def test_names_of_the_package_come_first_then_catalogues_in_order(folder, own_folder, monkeypatch, tmp_path):
    (own_folder / "index.toml").write_text(
        (folder / "index.toml").read_text().replace("one", "three").replace("three.h5", "one.h5")
    )
    monkeypatch.setenv("MOEREPLAY_CATALOGUES", f"{folder} , {own_folder},")
    names = [item.entry.name for item in library.search()[0]]
    assert names == [*library.entries(), "one", "two", "three"]
    assert library.find("two") == folder / "two.h5"
    assert library.search()[0][-2].location == folder / "two.h5"
    assert library.find("three") == own_folder / "one.h5"
    assert library.find("two", str(own_folder)) == own_folder / "two.h5"
    # A stranger's catalogue cannot take a name of the package.
    text = (own_folder / "index.toml").read_text().replace('"two"', '"toy-zipf"')
    (own_folder / "index.toml").write_text(text)
    assert library.find("toy-zipf").parent.name == "traces"
    assert library.find("toy-zipf", str(own_folder)).parent == own_folder
    assert library.find("toy-zipf", "built-in").parent.name == "traces"
    with pytest.raises(UserError, match=r"unknown trace 'one'.*known: three, toy-zipf"):
        tracegen.load("one", catalogue=str(own_folder))


def test_a_catalogue_that_cannot_be_read_does_not_hide_the_others(folder, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("MOEREPLAY_CATALOGUES", f"{tmp_path / 'no'},{folder}")
    assert library.find("one") == folder / "one.h5"
    assert "catalogue not read" in caplog.text
    found, problems = library.search()
    assert "one" in [item.entry.name for item in found]
    assert len(problems) == 1
    with pytest.raises(UserError, match=r"unknown trace 'onne'.*catalogue not read: .*no/index"):
        tracegen.load("onne")
    with pytest.raises(UserError, match=r"no/index.toml: no such catalogue"):
        library.search(str(tmp_path / "no"))
    big = tmp_path / "big" / "index.toml"
    big.parent.mkdir()
    with big.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="at most 17 MB are read"):
        library.search(str(big))
    big.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a catalogue"):
        library.search(str(big))


def test_a_listed_file_that_is_absent_or_another(own_folder):
    assert library.verify("one", str(own_folder)) == library.lookup("one", str(own_folder)).entry.content_id
    (own_folder / "one.h5").write_bytes((own_folder / "two.h5").read_bytes())
    with pytest.raises(UserError, match=r"one.h5: 55331 bytes; the catalogue says"):
        library.verify("one", str(own_folder))
    other = pytest.raises(UserError, match=r"one.h5: content id [0-9a-f]+ is not the index's")
    with other, tracegen.open("one", str(own_folder)):
        pass
    (own_folder / "one.h5").unlink()
    with pytest.raises(UserError, match=r"is listed by .*own, but is not there"):
        tracegen.load("one", catalogue=str(own_folder))


def spoil_file(folder):
    data = bytearray((folder / "one.h5").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "one.h5").write_bytes(data)


def spoil_hash(folder):
    text = (folder / "index.toml").read_text()
    (folder / "index.toml").write_text(text.replace('sha256 = "', f'sha256 = "{"0" * 64}"\n#'))


def lead_elsewhere(folder):
    (folder / "one.h5").rename(folder.parent / "elsewhere.h5")
    (folder / "one.h5").symlink_to(folder.parent / "elsewhere.h5")


def lead_through_a_folder(folder):
    text = (folder / "index.toml").read_text()
    (folder / "index.toml").write_text(text.replace('file = "one', 'file = "in/one'))
    (folder.parent / "away").mkdir()
    (folder / "one.h5").rename(folder.parent / "away/one.h5")
    (folder / "in").symlink_to(folder.parent / "away")


HAND_OUT = {
    "fetch": lambda where, out: library.fetch("one", where, out=out),
    "find": lambda where, _: library.find("one", where),
    "load": lambda where, _: tracegen.load("one", catalogue=where),
    "load a layer": lambda where, _: tracegen.load("one", layers=[2], catalogue=where),
    "verify": lambda where, _: library.verify("one", where),
}


@pytest.mark.parametrize("hand_out", HAND_OUT)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_file, "one.h5: SHA-256 is .*, the catalogue says"),
        (spoil_hash, "one.h5: SHA-256 is .*, the catalogue says 0000"),
    ],
)
def test_a_folder_is_trusted_no_more_than_a_url(own_folder, tmp_path, spoil, said, hand_out):
    HAND_OUT[hand_out](str(own_folder), tmp_path / "before")
    spoil(own_folder)
    with pytest.raises(UserError, match=said):
        HAND_OUT[hand_out](str(own_folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hand_out", ["fetch", "load", "verify"])
def test_an_index_that_agrees_with_an_altered_file_does_not_help(own_folder, tmp_path, hand_out):
    path = own_folder / "one.h5"
    before = library.lookup("one", str(own_folder)).entry
    with h5py.File(path, "r+") as file:
        file["tokens/position"][0] = 9
    text = (own_folder / "index.toml").read_text()
    text = text.replace(before.sha256, catalogue.sha256_of(path))
    text = text.replace(f"file_bytes = {before.file_bytes}", f"file_bytes = {path.stat().st_size}")
    (own_folder / "index.toml").write_text(text)
    with pytest.raises(UserError, match="content does not match content_sha256"):
        HAND_OUT[hand_out](str(own_folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_listed_file_that_cannot_be_read_is_named(own_folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(entry_files, "sha256_of", refuse)
    with pytest.raises(UserError, match=r"^cannot read .*one.h5: Permission denied$"):
        tracegen.load("one", catalogue=str(own_folder))


HAND_OUT_OR_OPEN = {**HAND_OUT, "open": lambda where, _: tracegen.open("one", where).__enter__()}


@pytest.mark.parametrize("lead", [lead_elsewhere, lead_through_a_folder])
def test_a_link_is_followed_for_its_bytes_alone(own_folder, tmp_path, lead):
    """As a download of the Hub has them; what the catalogue does not list is never handed out."""
    lead(own_folder)
    for name, hand_out in HAND_OUT.items():
        hand_out(str(own_folder), tmp_path / name)
    target = (own_folder / library.lookup("one", str(own_folder)).entry.file).resolve()
    with h5py.File(target, "r+") as file:  # as long as before, with the same header
        file["tokens/position"][0] = 9
    for name, hand_out in HAND_OUT_OR_OPEN.items():
        with pytest.raises(UserError, match=r"one.h5: SHA-256 is .*, the catalogue says"):
            hand_out(str(own_folder), tmp_path / f"again {name}")


def test_what_is_said_to_be_here_is_here(own_folder, tmp_path):
    """Of a download of the Hub, a file that is whole, one that is cut and one that is gone."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for path in own_folder.iterdir():
        path.rename(blobs / f"{path.name}-blob")
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}-blob")

    def here():
        return [item.is_local for item in library.search(str(snapshot))[0]]

    assert here() == [True, True]
    assert library.fetch("one", str(snapshot)).samefile(blobs / "one.h5-blob")
    (blobs / "one.h5-blob").write_bytes((blobs / "one.h5-blob").read_bytes()[:-1])
    assert here() == [False, True]
    (blobs / "two.h5-blob").unlink()
    assert here() == [False, False]


def test_a_name_with_its_catalogue_is_known_everywhere(own_folder, tmp_path, monkeypatch):
    """``CATALOGUE#NAME`` is a trace, in whatever folder, and a file of that name is a file."""
    monkeypatch.chdir(tmp_path)
    assert library.find("own#one") == Path("own/one.h5")
    assert library.lookup(f"{own_folder}#two").entry.name == "two"
    assert tracegen.load("own/index.toml#one", layers=[0]).num_layers == 1
    Path("own#one").write_bytes(b"")
    with pytest.raises(UserError, match="own#one: damaged"), tracegen.open("own#one"):
        pass
    with pytest.raises(UserError, match="names its catalogue, and so does built-in; give one"):
        library.find(f"{own_folder}#two", "built-in")
    with pytest.raises(UserError, match=r"own#no.h5: no such file"):
        library.find("own#no.h5")
    with pytest.raises(UserError, match=r"nowhere/index.toml: no such catalogue"):
        library.find("nowhere#one")


def test_a_fetched_name_is_one_trace_or_refused(own_folder, tmp_path, monkeypatch):
    """Names of the package stay its own; others that were fetched twice name their catalogues."""
    other = Path(shutil.copytree(own_folder, tmp_path / "other"))
    text = (own_folder / "index.toml").read_text()
    with pytest.raises(UserError, match="unknown trace 'one'"):
        library.find("one")
    library.fetch("one", str(own_folder))
    assert library.find("one") == own_folder / "one.h5"
    assert [item.entry.name for item in library.search()[0]] == [*library.entries(), "one"]
    library.fetch("one", str(other))  # the same bytes: one trace
    assert library.find("one") == own_folder / "one.h5" or library.find("one").parent == other
    # Two of one name: neither is taken for the other.
    swapped = text.replace('"one', '"x').replace('"two', '"one').replace('"x', '"two')
    (other / "index.toml").write_text(swapped)
    (other / "one.h5").rename(other / "x")
    (other / "two.h5").rename(other / "one.h5")
    (other / "x").rename(other / "two.h5")
    said = library.fetch("one", str(other)) and library.name_notice("one", str(other))
    for ask in (library.find, tracegen.load, library.lookup):
        with pytest.raises(UserError) as refusal:
            ask("one")
        assert str(refusal.value) == said
    assert f"{own_folder}#one" in said and f"{other}#one" in said
    problems = library.search()[1]
    assert problems == [said]
    assert library.find(f"{other}#one") == other / "one.h5"
    # A configured catalogue does not decide it either, unless it is one of them alone.
    monkeypatch.setenv("MOEREPLAY_CATALOGUES", str(own_folder))
    with pytest.raises(UserError, match="names different traces"):
        library.find("one")
    # Names of the package.
    (own_folder / "index.toml").write_text(text.replace('"two"', '"toy-zipf"'))
    library.fetch("toy-zipf", str(own_folder))
    assert library.find("toy-zipf").parent.name == "traces"
    (own_folder / "index.toml").write_text(text.replace('name = "one"', 'name = "toy-zipf"'))
    library.fetch("toy-zipf", str(own_folder))
    assert "toy-zipf alone is" in library.name_notice("toy-zipf", str(own_folder))
    # What lies in the cache may be anybody's.
    for note in (tmp_path / "cache/fetched").glob("*/*.json"):
        note.write_text("[1")
    (own_folder / "index.toml").write_text(text)
    assert library.find("toy-zipf").parent.name == "traces"
    assert library.find("one") == own_folder / "one.h5"


def test_a_configuration_that_is_missing_stops_only_what_needs_it(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MOEREPLAY_CONFIG", str(tmp_path / "no.toml"))
    assert tracegen.load(folder / "two.h5").num_layers
    assert tracegen.load("toy-zipf").num_layers
    assert tracegen.load("two", catalogue=str(folder)).num_layers
    with pytest.raises(UserError, match=r"no.toml: no such file \(MOEREPLAY_CONFIG\)"):
        tracegen.load("two")


def test_settings_come_from_the_environment_then_from_a_file(tmp_path, monkeypatch):
    present = settings.Settings()
    assert (present.catalogues, present.offline) == ((), False)
    file = tmp_path / "config/moereplay/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('catalogues = ["/a", "https://b/"]\ncache = "/c"\noffline = true\n')
    monkeypatch.delenv("MOEREPLAY_CACHE")
    present = settings.Settings()
    assert present.catalogues == ("/a", "https://b/")
    assert (str(present.cache), present.offline) == ("/c", True)
    assert settings.Settings(offline=False).offline is False
    monkeypatch.setenv("MOEREPLAY_CATALOGUES", "")
    monkeypatch.setenv("MOEREPLAY_OFFLINE", "0")
    present = settings.Settings()
    assert (present.catalogues, present.offline) == ((), False)
    file.write_text('cahce = "/c"\n')
    with pytest.raises(UserError, match=r"config.toml: cahce: .*possible keys: catalogues, cache"):
        _ = settings.Settings().cache
    file.write_text("offline = maybe\n")
    with pytest.raises(UserError, match=r"config.toml: "):
        _ = settings.Settings().cache
    monkeypatch.setenv("MOEREPLAY_CONFIG", str(tmp_path / "no.toml"))
    with pytest.raises(UserError, match=r"no.toml: no such file \(MOEREPLAY_CONFIG\)"):
        _ = settings.Settings().cache


@pytest.mark.parametrize(
    ("platform", "environment", "wanted"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/moereplay"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/moereplay"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/moereplay"),
        ("darwin", {}, "/home/me/Library/Caches/moereplay"),
        ("win32", {"LOCALAPPDATA": "/L"}, "/L/moereplay/Cache"),
    ],
)
def test_the_cache_is_where_the_platform_has_caches(platform, environment, wanted, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(settings.sys, "platform", platform)
    assert settings.user_folder("cache").as_posix() == wanted
