"""Adding traces to a folder, publishing a folder, converting a trace, and the commands."""

import dataclasses
import json
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
from command_line import end_of
from loops import every
from typer.testing import CliRunner

import tracegen
from tracegen import UserError, library
from tracegen.cli import app
from tracegen.library import card, convert, publish, view
from tracegen.library.catalogue import sha256_of
from tracegen.trace import provenance

ABOUT = card.FolderFacts(title="Traces: a set", creator="Us", citation="Us, 2026")
runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def test_added_traces_are_found_and_keep_every_byte(tmp_path, tiny_file):
    entry = publish.add(tmp_path / "cat", str(tiny_file), name="small", source="by hand")
    assert (tmp_path / "cat/small.h5").read_bytes() == tiny_file.read_bytes()
    assert (entry.dataset, entry.num_ranks, entry.phase) == ("exams", 2, "prefill, decode")
    publish.add(tmp_path / "cat", "toy-zipf")
    found, _ = library.search(str(tmp_path / "cat"))
    assert [item.entry.name for item in found] == ["small", "toy-zipf"]
    assert library.verify("small", str(tmp_path / "cat")) == entry.content_id
    assert sorted(p.name for p in (tmp_path / "cat").iterdir()) == [
        "index.toml",
        "small.h5",
        "toy-zipf.h5",
    ]


def test_errors_name_what_was_given_and_not_its_copy(tmp_path, tiny_file):
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(tiny_file.read_bytes())
    with h5py.File(damaged, "r+") as file:
        file["tokens/position"][0] = 9
    for content in (damaged.read_bytes(), damaged.read_bytes()[:2000]):
        damaged.write_bytes(content)
        with pytest.raises(UserError, match=r"damaged\.h5") as told:
            publish.add(tmp_path / "shelf", str(damaged))
        assert ".tmp" not in str(told.value)


def test_what_is_not_added(tmp_path, tiny_file, changed):
    folder = tmp_path / "cat"
    publish.add(folder, str(tiny_file))
    with pytest.raises(UserError, match="tiny is listed already"):
        publish.add(folder, str(tiny_file))
    publish.add(folder, str(tiny_file), replace=True)
    with pytest.raises(UserError, match="toy-zipf comes with the package"):
        publish.add(folder, str(tiny_file), name="toy-zipf")
    for name in ("a/b", "../b", "nul", ".b"):
        with pytest.raises(UserError, match=r"the name '.*' must consist of letters"):
            publish.add(folder, str(tiny_file), name=name)
    with pytest.raises(UserError, match="control characters"):
        publish.add(folder, str(tiny_file), name="x", citation="\x1b[1m")
    trace = changed()
    bare = tmp_path / "bare.h5"
    tracegen.write(dataclasses.replace(trace, info=dataclasses.replace(trace.info, license="")), bare)
    with pytest.raises(UserError, match="says nothing of its licence"):
        publish.add(folder, str(bare))
    with h5py.File(bare, "r+") as file:
        file["tokens/position"][0] = 9
    with pytest.raises(UserError, match="does not match content_sha256"):
        publish.add(folder, str(bare))
    assert sorted(path.name for path in folder.iterdir()) == ["index.toml", "tiny.h5"]


def test_a_published_folder_is_a_catalogue_a_card_and_croissant(tmp_path, folder):
    names = [str(folder / "one.h5"), "toy-zipf"]
    entries = publish.publish(tmp_path / "set", names, ABOUT)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [
        "README.md",
        "croissant.json",
        "index.toml",
        "one.h5",
        "tables",
        "toy-zipf.h5",
    ]
    found, _ = library.search(str(tmp_path / "set"))
    assert [item.entry for item in found] == entries
    metadata = json.loads((tmp_path / "set/croissant.json").read_text())
    tables = [f"tables/{entry.name}.parquet" for entry in entries]
    assert {part["@id"]: part["sha256"] for part in metadata["distribution"]} == {
        file: sha256_of(tmp_path / "set" / file) for file in [*(entry.file for entry in entries), *tables]
    }
    text = (tmp_path / "set/README.md").read_text()
    assert "$" not in text
    assert all(entry.name in text for entry in entries)


def test_the_card_is_what_the_hub_reads(tmp_path, tiny_file):
    hub = pytest.importorskip("huggingface_hub", reason="pip install 'moereplay[remote]'")
    odd = card.FolderFacts(title='A: "set" # of', creator="Us", base_url="https://x.org/t")
    publish.publish(tmp_path / "set", [str(tiny_file)], odd, with_token_ids=True)
    data = hub.DatasetCard.load(tmp_path / "set/README.md").data.to_dict()
    assert data["pretty_name"] == odd.title
    assert data["license"] == ["cc0-1.0"]
    assert data["size_categories"] == ["n<1K"]
    (shown,) = data["configs"]
    assert shown["config_name"] == "tiny"
    assert shown["data_files"] == [{"split": "train", "path": "tables/tiny.parquet"}]
    assert (tmp_path / "set/tables/tiny.parquet").is_file() and "viewer" not in data
    assert "moe" in data["tags"]
    publish.publish(
        tmp_path / "set",
        [str(tiny_file)],
        odd,
        with_token_ids=True,
        with_tables=False,
        replace=True,
    )
    data = hub.DatasetCard.load(tmp_path / "set/README.md").data.to_dict()
    assert data["viewer"] is False and "configs" not in data


def test_a_table_has_a_row_for_each_token_of_each_layer(tmp_path, tiny, tiny_file, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'moereplay[parquet]'")
    monkeypatch.setattr(view, "ROWS", 2)  # five tokens are made in three pieces
    made = view.write(tiny_file, tmp_path, "tiny.parquet")
    rows = parquet.read_table(tmp_path / "tiny.parquet").to_pylist()
    assert [column.name for column in made.columns] == list(rows[0])
    assert "token_id" not in rows[0]
    for row, (layer, token) in zip(rows, np.ndindex(2, 5), strict=True):
        ids = tiny.expert_ids[layer, token]
        used = ids != tiny.empty_slot
        assert row == {
            "layer": tiny.moe_layer_index[layer],
            "token": token,
            "step": tiny.tokens.step[token],
            "request": tiny.tokens.request[token],
            "position": tiny.tokens.position[token],
            "phase": ["prefill", "decode"][tiny.tokens.phase[token]],
            "rank": tiny.tokens.rank[token],
            "experts": ids[used].tolist(),
            "weights": tiny.gate_weights[layer, token][used].tolist(),
        }
    assert any(len(row["experts"]) < tiny.topk for row in rows), "an empty slot is no expert"
    bare = dataclasses.replace(
        tiny,
        gate_weights=None,
        tokens=dataclasses.replace(tiny.tokens, rank=None),
        info=dataclasses.replace(tiny.info, weight_semantics="", weight_row_sum=""),
    )
    tracegen.write(bare, tmp_path / "bare.h5")
    made = view.write(tmp_path / "bare.h5", tmp_path, "bare.parquet")
    assert {"rank", "weights"}.isdisjoint(column.name for column in made.columns)
    assert parquet.read_schema(tmp_path / "bare.parquet").names == [c.name for c in made.columns]


def test_without_the_library_tables_can_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "set"
    given = ("publish", out, "toy-zipf", "--title", "T", "--creator", "C")
    failed = run(*given)
    assert failed.exit_code == 2 and "need pyarrow: pip install" in failed.stderr
    assert not out.exists()
    assert run(*given, "--no-parquet").exit_code == 0
    assert not (out / "tables").exists()
    assert json.loads((out / "croissant.json").read_text())["recordSet"] == []


def test_the_origin_is_what_it_was_told(tmp_path, tiny):
    """By `import --source`, which stands in the file, or by `publish --source`."""
    tokens = dataclasses.replace(tiny.tokens, token_id=None)
    record = provenance.record("trace import", source={"origin": "https://x.org/dump at 1a2b"})
    info = dataclasses.replace(tiny.info, provenance=record)
    tracegen.write(dataclasses.replace(tiny, info=info, tokens=tokens), tmp_path / "a.h5")
    given = ("publish", tmp_path / "set", tmp_path / "a.h5", "--title", "T", "--creator", "C")
    assert run(*given).exit_code == 0
    assert "- `a`: https:<!-- -->//x.org/dump at 1a2b (" in (tmp_path / "set/README.md").read_text()
    assert run(*given, "--force", "--source", "by hand").exit_code == 0
    assert "- `a`: by hand (" in (tmp_path / "set/README.md").read_text()
    assert library.lookup("a", str(tmp_path / "set")).entry.source == "by hand"


def test_licences_that_the_hub_does_not_know(tmp_path, tiny):
    info = dataclasses.replace(tiny.info, license="OGL-UK-3.0")
    tokens = dataclasses.replace(tiny.tokens, token_id=None)
    trace = dataclasses.replace(tiny, info=info, tokens=tokens)
    tracegen.write(trace, tmp_path / "a.h5")
    publish.publish(tmp_path / "set", [str(tmp_path / "a.h5")], ABOUT)
    text = (tmp_path / "set/README.md").read_text()
    assert '- other\nlicense_name: "ogl-uk-3.0"\nlicense_link: LICENSE.md\n' in text
    assert "a.h5`: OGL-UK-3.0" in (tmp_path / "set/LICENSE.md").read_text()


@pytest.mark.extended  # the library that reads it takes longer to import than most tests
@pytest.mark.parametrize("base_url", ["", "https://x.org/t"])
def test_croissant_metadata_is_valid(tmp_path, tiny, tiny_file, base_url):
    pytest.importorskip("mlcroissant", reason="pip install mlcroissant")
    about = dataclasses.replace(ABOUT, base_url=base_url)
    publish.publish(tmp_path / "set", ["toy-zipf", str(tiny_file)], about, with_token_ids=True)
    script = """
        import json, sys, mlcroissant
        made = mlcroissant.Dataset(sys.argv[1])
        issues = made.metadata.ctx.issues
        records = [] if len(sys.argv) > 2 else list(made.records("tiny"))
        print(json.dumps([sorted(issues.errors), sorted(issues.warnings),
                          [part.content_url for part in made.metadata.distribution],
                          [str(part.uuid) for part in made.metadata.record_sets],
                          len(records), [one["tiny/experts"] for one in records[-3:]]]))
    """
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            re.sub("^ {8}", "", script, flags=re.M).strip(),
            tmp_path / "set/croissant.json",
            *([base_url] if base_url else []),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors, warnings, urls, sets, count, last = json.loads(done.stdout.splitlines()[-1])
    assert (errors, warnings) == ([], [])
    prefix = f"{base_url}/" if base_url else ""
    names = ("tables/tiny.parquet", "tables/toy-zipf.parquet", "tiny.h5")
    assert sorted(urls) == [f"{prefix}{name}" for name in (*names, "toy-zipf.h5")]
    assert sets == ["toy-zipf", "tiny"]
    if not base_url:  # what Croissant's own reader makes of them
        assert count == tiny.num_layers * tiny.num_tokens
        rows = tiny.expert_ids[-1, -3:].tolist()
        assert last == [[one for one in row if one != tiny.empty_slot] for row in rows]
    assert "not standard" not in done.stderr


def test_what_is_not_published(tmp_path, tiny_file):
    with pytest.raises(UserError, match="holds token ids, that is the texts"):
        publish.publish(tmp_path / "set", [str(tiny_file)], ABOUT)
    with pytest.raises(UserError, match="no such file"):
        publish.publish(tmp_path / "set", ["toy-zipf", "no.h5"], ABOUT)
    with pytest.raises(UserError, match="--title is empty"):
        publish.publish(tmp_path / "set", ["toy-zipf"], dataclasses.replace(ABOUT, title=" "))
    with pytest.raises(UserError, match="not a URL that is followed"):
        odd = dataclasses.replace(ABOUT, base_url="file:///x")
        publish.publish(tmp_path / "set", ["toy-zipf"], odd)
    assert [path.name for path in tmp_path.iterdir() if "set" in path.name] == []
    publish.publish(tmp_path / "set", ["toy-zipf"], ABOUT)
    with pytest.raises(UserError, match="exists; --force"):
        publish.publish(tmp_path / "set", ["toy-zipf"], ABOUT)
    publish.publish(tmp_path / "set", ["toy-uniform"], ABOUT, replace=True)
    assert not (tmp_path / "set/toy-zipf.h5").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").touch()
    with pytest.raises(UserError, match="was not made by `publish`; it is not replaced"):
        publish.publish(tmp_path / "home", ["toy-zipf"], ABOUT, replace=True)
    assert (tmp_path / "home/thesis.tex").exists()


@every(
    ("rows", "name"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**12 - 1, "100B<n<1T"), (10**12, "n>1T")],
)
def test_size_categories(rows, name):
    assert card.size_category(rows) == name


def test_conversion_keeps_the_content(tmp_path, tiny_file, tiny, same):
    made = convert.convert(str(tiny_file), tmp_path / "again.h5", to="1.0")
    assert made.is_same
    assert made.version == "1.0.0"
    same(tracegen.load(tmp_path / "again.h5"), tiny)
    assert tracegen.load(tmp_path / "again.h5").info.provenance == tiny.info.provenance


def test_a_part_is_a_new_trace_that_names_its_parent(tmp_path, tiny_file, tiny):
    out = tmp_path / "part.h5"
    without = ("token_id", "requests")
    made = convert.convert(str(tiny_file), out, layers="1", tokens="3:", without=without)
    part = tracegen.load(out)
    np.testing.assert_array_equal(part.expert_ids, tiny.expert_ids[1:, 3:])
    assert part.tokens.token_id is None
    assert part.requests.id is None
    assert part.gate_weights is not None
    assert library.verify(out) == made.content_id != made.parent == tiny.content_id
    record = provenance.Provenance.model_validate(part.info.provenance)
    assert record.parents == [tiny.content_id]
    assert record.parameters == {"layers": "1", "tokens": "3:", "without": list(without)}
    convert.convert(str(tiny_file), out, without=("gate_weights", "flags", "rank"), overwrite=True)
    bare = tracegen.load(out)
    assert (bare.gate_weights, bare.flags, bare.tokens.rank) == (None, None, None)
    assert bare.info.weight_semantics == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "0.1"}, "format version '0.1' cannot be written; possible: 1.0"),
        ({"to": "2.0"}, "cannot be written"),
        ({"without": ("expert_ids",)}, "'expert_ids' cannot be left out; possible: token_id"),
        ({"layers": "a"}, "--layers a: write A:B or A,B"),
        ({"layers": "7"}, r"layers \[7\] must ascend within 0 to 1"),
        ({"tokens": "1"}, "--tokens 1: write A:B"),
        ({"tokens": "1:2:3"}, "--tokens 1:2:3: write A:B"),
        ({"max_bytes": 10}, "needs 0.0 GB of memory"),
    ],
)
def test_conversions_that_are_refused(tmp_path, tiny_file, options, message):
    with pytest.raises(UserError, match=message):
        convert.convert(str(tiny_file), tmp_path / "x.h5", **options)
    assert not (tmp_path / "x.h5").exists()


def test_a_changed_trace_does_not_get_a_new_identity(tmp_path, tiny_file):
    with h5py.File(tiny_file, "r+") as file:
        file["tokens/position"][0] = 9
    with pytest.raises(UserError, match="it was changed or damaged"):
        convert.convert(str(tiny_file), tmp_path / "x.h5")
    assert not (tmp_path / "x.h5").exists()


def test_the_commands(tmp_path, remote, tiny_file):
    assert "one" in run("list").stdout
    listed = {item["name"]: item for item in json.loads(run("list", "--json").stdout)}
    assert (listed["one"]["cached"], listed["toy-zipf"]["cached"]) == (False, True)
    assert listed["one"]["catalogue"].startswith("http")
    done = run("fetch", "one", "--out", tmp_path / "here")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "here/one.h5").stat().st_size == listed["one"]["file_bytes"]
    remote.log.clear()
    assert run("fetch", "one", "--offline").exit_code == 0
    assert not remote.log
    (tmp_path / "cut.h5").write_bytes(tiny_file.read_bytes()[:2000])
    cut = run("fetch", tmp_path / "cut.h5", "--out", tmp_path / "here")
    assert (cut.exit_code, cut.stdout) == (2, "") and "cut.h5: damaged, truncated" in cut.stderr
    assert run("fetch", tiny_file).exit_code == 0
    assert run("info", "one").exit_code == 0
    assert run("validate", "two").exit_code == 0
    assert run("add", tmp_path / "cat", tiny_file, "--citation", "Us").exit_code == 0
    described = ("--title", "T", "--creator", "Us")
    assert run("publish", tmp_path / "set", "toy-zipf", *described).exit_code == 0
    converted = run("convert", "one", tmp_path / "c.h5", "--layers", "0:2")
    assert converted.exit_code == 0
    assert "derived from" in converted.stdout
    assert json.loads(run("info", tmp_path / "c.h5", "--json").stdout)["num_layers"] == 2


@pytest.mark.extended
def test_what_was_fetched_has_its_name_from_then_on(tmp_path, remote, monkeypatch, capsys):
    """List, fetch, use: the lines of the page on sharing, with the address of a server."""

    monkeypatch.delenv("MOEREPLAY_CATALOGUES")
    where = f"{remote.url}/t"
    listed = json.loads(run("list", "--catalogue", where, "--json").stdout)
    assert [(item["name"], item["cached"]) for item in listed] == [("one", False), ("two", False)]
    assert "unknown trace 'one'" in run("info", "one").stderr
    assert run("fetch", "one", "--catalogue", where).exit_code == 0
    remote.log.clear()
    for line in (
        ("trace", "info", "one"),
        ("trace", "stats", "one"),
        ("trace", "validate", "one"),
        ("trace", "convert", "one", str(tmp_path / "c.h5")),
        ("trace", "add", str(tmp_path / "shelf"), "one"),
        ("compare", "one", "--layer", "3", "--scheme", "ideal"),
        ("run", "one", "--layer", "3", "--scheme", "ideal"),
        ("place", "one", "--ranks", "2"),
    ):
        assert end_of(*line) == 0, (line, capsys.readouterr().err)
    assert not remote.log  # it was fetched
    named = {item["name"]: item for item in json.loads(run("list", "--json").stdout)}
    assert (named["one"]["cached"], named["one"]["catalogue"]) == (True, where)
    assert "two" not in named
    assert run("info", f"{where}#two").exit_code == 0
    again = run("fetch", f"{where}#two", "--out", tmp_path / "here")
    assert again.exit_code == 0, again.stderr
    assert (tmp_path / "here/two.h5").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fetch", "onne"), "unknown trace 'onne' (did you mean 'one'?)"),
        (("fetch", "two", "--offline"), "connections are switched off"),
        (("list", "--catalogue", "nowhere"), "nowhere/index.toml: no such catalogue"),
        (("list", "--catalogue", "gopher://x"), "not a URL that is followed"),
        (("publish", "no/where", "toy-zipf", "--title", "T", "--creator", "U"), "does not exist"),
        (("add", "cat", "no.h5"), "no.h5: no such file"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(arguments, message, remote, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library.search()
    done = run(*arguments)
    assert done.exit_code == 2, done.stdout
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_catalogue_that_cannot_be_read_is_a_note(monkeypatch, tmp_path):
    monkeypatch.setenv("MOEREPLAY_CATALOGUES", str(tmp_path / "no"))
    done = run("list")
    assert done.exit_code == 0
    assert done.stderr.startswith("note: catalogue not read")
    assert "toy-zipf" in done.stdout


def test_what_a_trace_says_of_itself_is_set_and_nothing_else(tmp_path, tiny_file, tiny):
    before = tracegen.load(tiny_file)
    texts = ("--title", "Bücher", "--license", "MIT", "--source", "https://x.org", "--notes", "n")
    done = run("describe", tiny_file, *texts)
    assert done.exit_code == 0, done.stderr
    after = tracegen.load(tiny_file)
    info = after.info
    assert (info.title, info.license) == ("Bücher", "MIT")
    assert info.provenance["source"] == {**before.info.provenance.get("source", {}), "origin": "https://x.org"}
    assert info.provenance["notes"] == "n"
    kept = {"title": "", "license": "", "provenance": {}}
    assert dataclasses.replace(info, **kept) == dataclasses.replace(before.info, **kept)
    assert after.stored_content_id == before.stored_content_id == library.verify(tiny_file)
    with h5py.File(tiny_file) as file:
        assert file.attrs["trace_id"].decode() == before.info.trace_id
    # What is not given stays, and what was told counts in a catalogue.
    assert run("describe", tiny_file, "--license", "CC0-1.0").exit_code == 0
    assert tracegen.load(tiny_file).info.title == "Bücher"
    entry = publish.add(tmp_path / "shelf", str(tiny_file), name="a")
    assert (entry.title, entry.license, entry.source) == ("Bücher", "CC0-1.0", "https://x.org")
    assert list(tmp_path.glob(".*")) == []


def test_what_is_not_described(tmp_path, tiny_file, monkeypatch):
    publish.add(tmp_path / "shelf", str(tiny_file), name="a")
    (tmp_path / "link.h5").symlink_to(tmp_path / "shelf/a.h5")
    monkeypatch.chdir(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for words, said in (
        ((tiny_file,), "nothing to set: give --title, --license, --source or --notes"),
        (("toy-zipf", "--title", "x"), "moereplay trace convert toy-zipf FILE"),
        (("no.h5", "--title", "x"), "no.h5: no such file"),
        (("shelf/a.h5", "--title", "x"), "shelf/a.h5 is listed by "),
        (("link.h5", "--title", "x"), "link.h5 is listed by "),
        ((tiny_file, "--title", "x" * 5000), "title has 5000 bytes; at most 4096"),
        ((tiny_file, "--notes", "x" * 70_000), "provenance is 7"),
    ):
        done = run("describe", *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
