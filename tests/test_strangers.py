"""What a stranger writes stays text: every field that is free, in every output that shows it.

A field is one of a trace's header, of a catalogue, of a saved result, of a model or a system. What
is written is read as its language reads it: nothing in it is a link, a picture, a script, a
formula, a command, or steers a terminal. Where a text is refused, one line of plain characters says
so.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import end_of
from markdown_it import MarkdownIt

import replay
import tracegen
from replay.experiments.base.load import load_result as load
from replay.report.pages import page
from tracegen.library import card, publish
from tracegen.shared.display import escape, files
from tracegen.shared.display.content import Page
from tracegen.shared.display.html import document
from tracegen.shared.errors import UserError
from tracegen.trace import provenance
from tracegen.trace.tables import RequestTable, TraceInfo

PRINTABLE = (
    "=cmd|'/C calc'!A0 [x](http://evil.example) ![](http://evil.example/x.png) </script> <!-- "
    "<script>alert(1)</script> <img src=x onerror=alert(1)> https://evil.example www.evil.example "
    "WWW.evil.example me@evil.example <http://evil.example> [r]: http://evil.example `code` a|b "
    "\\href{http://evil.example}{x} $x$ #1 ~~s~~ _e_ **b** [link=http://evil.example]r[/link] "
    "[bold red]x[/] :warning: javascript:alert(1) \"' onload='alert(1) {{x}} ${x} %s"
)
HOSTILE = f"{PRINTABLE} \x1b]8;;http://evil.example\x1b\\l\x1b]8;;\x1b\\ \x1b[2J \u202ertl\nnext: line"
ADDRESS = re.compile(r"https?://|www\.|[\w.+-]@\w", re.IGNORECASE)
"""What readers of Markdown make a link of."""
STARTS = (
    "=1+1",
    "+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1",
    "\uff1d1",
    "- item",
    "1. item",
    "# head",
    "=== ",
    "> quote",
    "---",
    "[",
    "*",
)


class Reader(HTMLParser):
    """Elements that lead or load from elsewhere, scripts, and texts as a reader has them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def leads(text: str) -> list[str]:
    """What leads or loads from elsewhere in HTML, or runs."""
    found = []
    for tag, attributes in Reader(text).tags:
        if tag in ("img", "image", "iframe", "object", "embed", "base", "meta") and "x" in str(
            attributes.get("src", attributes.get("href", ""))
        ):
            found.append(tag)
        for name, value in attributes.items():
            if name.startswith("on") or (name in ("href", "src", "xlink:href") and "evil" in str(value)):
                found.append(f"{tag} {name}={value}")
    return found


def check_terminal(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in text), ascii(text)


def check_html(text: str) -> None:
    assert not leads(text)
    assert "<script>alert" not in text and "\u202e" not in text and "\x1b" not in text


def check_markdown(text: str) -> None:
    """Also as GitHub and the Hub read it, who link what looks like an address."""
    check_terminal(text)
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    check_html(html)
    reader = Reader(html)
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"img", "script", "s", "h1", "li", "hr", "blockquote"}, html
    for part in reader.texts:
        assert not ADDRESS.search(part), part


def check_latex(text: str) -> None:
    check_terminal(text)
    code = re.sub(r"^%.*\n", "", text, flags=re.MULTILINE)
    commands = set(re.findall(r"\\[A-Za-z]+", code))
    assert not commands & {r"\href", r"\input", r"\url", r"\write"}, commands
    for row in text.splitlines():
        # The sign of a number is a minus.
        own = row.replace("$-$", "")
        assert own.startswith("%") or not re.search(r"(?<![\\])[$#%~^]", own), row


def check_csv(text: str) -> None:
    check_terminal(text.replace("\t", ""))
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert not cell.startswith(escape.FORMULA[:5]) or re.fullmatch(r"-?[\d.e+-]+", cell), cell


def check_page(made: Page, capsys: pytest.CaptureFixture[str]) -> None:
    """A page as every output has it."""
    from replay.cli.screen import show

    check_html(document(made))
    tables = list(made.tables())
    for table in tables:
        check_csv(files.as_csv(table))
        check_latex(files.as_latex(table))
        check_markdown(files.as_markdown(table))
    capsys.readouterr()
    show(*tables)
    check_terminal(capsys.readouterr().out)


def command(capsys: pytest.CaptureFixture[str], *words: object, code: int | None = 0) -> str:
    """What a command prints, and that it ends as it should."""
    capsys.readouterr()
    end = end_of(*words)
    said = capsys.readouterr()
    assert code is None or end == code, said.err
    check_terminal(said.out + said.err)
    return said.out


def trace_of(text: str) -> tracegen.RoutingTrace:
    """A small trace, of which every free text is this one."""
    made = tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=2, tokens_per_rank=8, layers=1, seed=1)
    assert made.model.shape is not None
    record = provenance.Provenance(
        tool=text,
        version=text,
        command=text,
        parameters={text: text, "list": [text]},
        environment={text: text},
        source={"origin": text, "repository": text, "commit": text, text: text},
        dropped=[provenance.DroppedRows(rows=1, why=text)],
        parents=[text],
        notes=text,
    )
    cell = text.replace("\n", " ")
    return dataclasses.replace(
        made,
        model=dataclasses.replace(made.model, model_id=text, revision=text, model_type=text, score_function=text),
        requests=RequestTable(dataset=np.array([cell] * 2), label=np.array([cell] * 2)),
        info=TraceInfo(
            title=text,
            license=text,
            trace_id=text,
            created_utc=text,
            provenance=record.model_dump(mode="json", exclude_defaults=True),
        ),
    )


def test_a_text_is_a_text_in_each_language() -> None:
    for text in (HOSTILE, *STARTS):
        check_terminal(escape.line(text))
        check_markdown(escape.markdown(text))
        check_html(f"<p title='{escape.html(text)}'>{escape.html(text)}</p>")
        check_csv(f'"{escape.spreadsheet(text)}"'.replace('"', '""')[1:-1])
        found = json.loads(escape.json_text({"a": text}))
        assert found == {"a": text} and "<" not in escape.json_text({"a": text})
        check_terminal(escape.json_text({"a": text}))
        # A reader has the text.
        shown = "".join(Reader(MarkdownIt("commonmark").render(escape.markdown(text))).texts)
        assert shown.strip() == escape.line(text)


@pytest.mark.extended
def test_every_text_of_a_header_in_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOEREPLAY_CACHE", str(tmp_path / "cache"))
    tracegen.write(trace_of(HOSTILE), tmp_path / "t.h5")
    made = ("--html", "o.html", "--tables", "o")
    told = command(capsys, "trace", "info", "t.h5")
    assert "\n  next" not in told  # no line of the stranger's own
    json.loads(command(capsys, "trace", "info", "t.h5", "--json"))
    command(capsys, "trace", "graph", "t.h5", "--out", "g.graphml")
    for words in (
        ("trace", "stats", "t.h5", *made),
        ("run", "t.h5", "--scheme", "ideal", "--json", "r.json", *made, "--plots", "p"),
        ("compare", "t.h5", "--scheme", "ideal", "--scheme", "deepep", "--json", "c.json", *made),
        ("report", "r.json", "c.json", *made),
        ("diff", "r.json", "c.json", "--html", "o.html", "--tables", "o"),
        ("explain", "ideal", "deepep", "c.json", *made),
        ("place", "t.h5", "--ranks", "2", *made),
    ):
        command(capsys, *words)
        check_files()
        for path in Path("p").glob("*.svg"):
            assert not leads(path.read_text("utf-8"))
    for shown in (replay.load_result("r.json"), replay.load_result("c.json")):
        check_html(shown._repr_html_())


def test_every_text_of_a_catalogue_in_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published, and what a stranger publishes: in the card, in licences, in a list."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOEREPLAY_CACHE", str(tmp_path / "cache"))
    tracegen.write(trace_of(PRINTABLE), tmp_path / "t.h5")
    about = card.FolderFacts(title=HOSTILE, creator=HOSTILE, description=HOSTILE, citation=PRINTABLE, base_url="")
    for told in (about, dataclasses.replace(about, source=PRINTABLE, dataset=PRINTABLE)):
        publish.publish(tmp_path / "set", ["t.h5"], told, with_tables=False, replace=True)
        readme = (tmp_path / "set/README.md").read_text("utf-8")
        _, head, body = readme.split("---\n", 2)
        meta = yaml.safe_load(head)
        assert meta["pretty_name"] == escape.line(HOSTILE)
        assert meta["license"] == ["other"] and meta["license_name"] == PRINTABLE.lower()
        html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(body)
        check_html(html)
        names = [attributes["href"] for tag, attributes in Reader(html).tags if tag == "a"]
        assert names == ["https://docs.mlcommons.org/croissant/docs/croissant-spec.html", "t.h5"]
        assert not [tag for tag, _ in Reader(html).tags if tag in ("img", "script", "s")]
        for part in Reader(html).texts:
            assert not ADDRESS.search(part), part
        licences = (tmp_path / "set/LICENSE.md").read_text("utf-8")
        check_markdown(re.sub(r"^# .*\n|^- `t.h5`: ", "", licences, flags=re.MULTILINE))
        described = (tmp_path / "set/croissant.json").read_text("utf-8")
        check_terminal(described)
        assert "<" not in described and json.loads(described)["license"] == [PRINTABLE]
        command(capsys, "trace", "list", "--catalogue", "set")
        command(capsys, "trace", "info", "set#t")
        json.loads(command(capsys, "trace", "list", "--catalogue", "set", "--json"))


def free_texts(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all texts, and of all keys of tables (as the last part, a list of the key)."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        if isinstance(value, str):
            yield (*path, key)
        elif isinstance(value, dict | list):
            yield from free_texts(value, (*path, key))


def with_text(document: Any, path: tuple[Any, ...], text: str) -> Any:
    made = copy.deepcopy(document)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = text
    return made


@pytest.mark.extended
def test_every_text_of_a_result_in_every_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = trace_of("plain")
    compared = replay.compare(made, ["ideal", "deepep"], placements=["contiguous", "round-robin"])
    document_of = json.loads(compared.to_json())
    by_kind = {tuple(part for part in path if not isinstance(part, int)): path for path in free_texts(document_of)}
    shown = document_of
    refused = 0
    for path in by_kind.values():
        changed = with_text(shown, path, HOSTILE)
        (tmp_path / "c.json").write_text(json.dumps(changed))
        try:
            page(load(tmp_path / "c.json"))
            shown = changed
        except UserError as error:
            check_terminal(escape.line(str(error)))
            refused += 1
    assert len(by_kind) - refused > 10, (len(by_kind), refused)
    (tmp_path / "c.json").write_text(json.dumps(shown))
    found = load(tmp_path / "c.json")
    check_page(page(found), capsys)
    check_html(found._repr_html_())


def _model() -> str:
    path = Path(tracegen.models.__file__).with_name("olmoe-1b-7b.toml")
    given = json.dumps(HOSTILE)
    text = re.sub(r'(?<=source = )"[^"]*"', lambda _: given, path.read_text("utf-8"))
    return re.sub(r'^(title|model_id) = ".*', lambda found: f"{found[1]} = {given}", text, flags=re.M)


def _system() -> str:
    return "".join(
        f"{key} = {json.dumps(text)}\n" for key, text in (("base", "dgx-h100"), ("name", HOSTILE), ("summary", HOSTILE))
    )


def _study() -> str:
    text = json.dumps(PRINTABLE)
    return f"""
title = {text}
question = {json.dumps(HOSTILE)}
notes = {json.dumps(HOSTILE)}
[fixed]
trace.model = "olmoe-1b-7b"
trace.kind = "uniform"
tokens_per_rank = 4
ranks = 2
scheme = "ideal"
[[grid]]
title = {text}
notes = {json.dumps(HOSTILE)}
[grid.axes]
kind = [{{ label = {text}, step = 0 }}]
[[grid.columns]]
header = {text}
path = "totals.makespan_us"
[[grid.claims]]
says = {text}
published = 1.0
column = {text}
"""


FILES = {
    "model.toml": (
        _model,
        [
            "trace models model.toml",
            "trace generate uniform --model model.toml --layers 1 --tokens-per-rank 4 --out m.h5",
            "trace info m.h5",
            "run m.h5 --scheme ideal --html o.html --tables o",
        ],
    ),
    "system.toml": (
        _system,
        [
            "hardware show system.toml",
            "hardware diff system.toml dgx-h100",
            "run toy-zipf --scheme ideal --system system.toml --html o.html --tables o",
            "collective --system system.toml --html o.html --tables o --bytes 1M",
        ],
    ),
    "study.toml": (
        _study,
        [
            "sweep study.toml --dry-run",
            "sweep study.toml -o s --html o.html --tables o",
            "report s --html o.html --tables o",
        ],
    ),
}
"""What writes a file of each kind, and the commands that read it."""


@pytest.mark.extended
@pytest.mark.parametrize("name", FILES)
def test_every_text_of_a_file_of_settings(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, lines = FILES[name]
    Path(name).write_text(make(), "utf-8")
    for line in lines:
        command(capsys, *line.split())
        check_files()


def check_files() -> None:
    """What lies in the present folder, each as its language has it."""
    for path in Path().rglob("*"):
        check = {
            ".csv": check_csv,
            ".md": check_markdown,
            ".tex": check_latex,
            ".html": check_html,
            ".txt": check_terminal,
        }.get(path.suffix)
        if check:
            text = path.read_text("utf-8")
            # A study has headings, and the command that makes it again, of its own.
            check(re.sub(r"^#+ |^`+ ?moereplay sweep study.*", "", text, flags=re.MULTILINE))


def test_a_text_that_is_too_long_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A header is read by everything that shows a trace; nobody writes such a one either."""
    import h5py

    with pytest.raises(UserError, match="title has 4097 bytes; at most 4096"):
        long = dataclasses.replace(trace_of("x").info, title="x" * 4097)
        tracegen.write(dataclasses.replace(trace_of("x"), info=long), tmp_path / "t.h5")
    assert not list(tmp_path.iterdir())
    for node, name, size in (
        ("/", "license", 4097),
        ("model", "model_id", 4097),
        ("/", "provenance", 60_001),
        ("/", "title", 20_000_000),
    ):
        tracegen.write(trace_of("x"), tmp_path / "a.h5", overwrite=True)
        with (
            h5py.File(tmp_path / "a.h5") as source,
            h5py.File(tmp_path / "t.h5", "w", libver="latest") as file,
        ):
            for key in source:
                source.copy(key, file)
            for key, value in source.attrs.items():
                file.attrs[key] = value
            file[node].attrs[name] = np.bytes_(b"x" * size)
        for words in (("info",), ("validate",), ("add", tmp_path / "shelf")):
            end_of("trace", *words, tmp_path / "t.h5")
            said = capsys.readouterr().err
            assert f"attribute {name!r} has {size} bytes; at most" in said, said
            assert len(said.splitlines()) == 1 and len(said) < 300
    assert not (tmp_path / "shelf").exists()
