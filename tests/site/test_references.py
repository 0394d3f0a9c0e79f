"""Files of users, commands and public names: all of them have a page, and each says everything."""

from __future__ import annotations

import contextlib
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from loops import every
from made import HERE, ROOT, Made, api, commands, docstrings, documents, files
from made.fields import keys_of, kind_of
from made.text import anchor_of, escaped
from pydantic import BaseModel, Field

import hwmodel.specs
from replay.experiments.layer.experiment import EXPERIMENT
from replay.studies.sweeps.points import plain_settings

WRITTEN = {path.name: path.read_text(encoding="utf-8") for path in (HERE / "files").glob("*.md")}


@cache
def made() -> dict[str, str]:
    """Pages of commands and of public names."""
    return {page.path: page.text for maker in (commands, api) for page in maker.pages()}


@pytest.mark.extended
def test_every_key_is_described_and_on_a_page() -> None:
    assert len(files.models()) > 30
    for name, shown in files.models().items():
        marker = f"<!-- keys of {name} -->"
        assert sum(text.count(marker) for text in WRITTEN.values()) == (name != "kind.uniform")
        keys = list(keys_of(shown.model, leave_out=shown.leave_out))  # refuses what is silent
        filled = files.filled(marker)
        assert [key.name for key in keys] == re.findall(r"^\[`([^`]+)`\]", filled, re.MULTILINE)
        assert filled.count("{.possible}") == len(keys)


def test_a_field_that_says_nothing_is_refused() -> None:
    class Silent(BaseModel):
        said: int
        """What it is."""
        unsaid: int

    with pytest.raises(ValueError, match=r"Silent\.unsaid is not described"):
        list(keys_of(Silent))


def test_every_table_of_a_machine_has_a_heading() -> None:
    tables = [f"## `[{name}]`" for name in hwmodel.specs.sections()]
    assert not [table for table in tables if table not in WRITTEN["machine.md"]]


def test_settings_of_a_study_are_among_those_of_a_replay() -> None:
    keys = {key.name for key in keys_of(files.models()["run"].model)}
    assert set(plain_settings(EXPERIMENT)) <= keys


def test_every_example_can_be_read_and_is_on_a_page() -> None:
    for name, read in files.examples().items():
        assert read(HERE / "examples" / name)
        assert sum(text.count(f"<!-- example {name} -->") for text in WRITTEN.values()) == 1


def test_every_file_is_an_example_that_is_read() -> None:
    assert {path.name for path in (HERE / "examples").iterdir()} == set(files.examples())


def test_every_marker_is_filled() -> None:
    for name, text in WRITTEN.items():
        assert "<!--" not in files.filled(text), name


class Sample(BaseModel):
    """A model with a key of every form.

    Attributes
    ----------
    one, other
        Two keys at once.
    """

    one: Annotated[int, Field(ge=1, le=1 << 16)]
    other: float | None = Field(None, gt=0)
    word: Literal["a", "b"] = "a"
    many: list[Annotated[int, Field(ge=0)]] = [1]
    pair: Annotated[list[str], Field(min_length=2, max_length=2)]
    by_name: dict[str, bool] = {}
    either: bool | str = Field(False, alias="or", description="From the field.")


@every(
    ("name", "kind"),
    [
        ("one", "a whole number, at least 1 and at most 2^16"),
        ("other", "a number, more than 0"),
        ("word", '`"a"` or `"b"`'),
        ("many", "a list of whole numbers, at least 0"),
        ("pair", "a list of 2 texts"),
        ("by_name", "a table of true or false by name"),
        ("either", "true or false; or text"),
    ],
)
def test_what_is_possible_is_put_in_words(name: str, kind: str) -> None:
    assert kind_of(Sample.model_fields[name]) == kind


def test_sentences_and_defaults_of_every_form() -> None:
    keys = {key.name: key for key in keys_of(Sample, leave_out=("word", "many", "pair", "by_name"))}
    assert list(keys) == ["one", "other", "or"]
    assert keys["one"].says == keys["other"].says == "Two keys at once."
    assert keys["or"].says == "From the field."
    assert [keys[name].default for name in keys] == [None, "not given", "false"]


def test_every_command_has_a_page_with_every_option() -> None:
    found = list(commands.commands())
    assert len(found) > 20
    for words, command in found:
        page = made()[f"commands/{commands.page_of(words)}.md"]
        assert page.startswith(f"# moereplay {' '.join(words)}\n")
        options = [
            param.opts[-1]
            for param in command.params
            if param.opts[0].startswith("-") and not getattr(param, "hidden", False)
        ]
        for option in options:
            assert re.search(rf"^\[``?\s?[^\n]*{re.escape(option)}\b", page, re.MULTILINE), option


def test_links_lead_from_a_document_to_pages_and_to_shown_sources() -> None:
    """In the repository a page of the site is in `scripts/site`; on the site that is the root."""
    own = "../scripts/site"
    text = f"[a]({own}/pages/share.md) [b](engine/engine.py) [c]({own}/conf.py) [d](#x)"
    page, *shown = documents.linked([Made("replay/SOME.md", text)])
    assert page.text == ("[a](../pages/share.md) [b](engine/engine.py.md) [c](../scripts/site/conf.py.md) [d](#x)")
    assert [one.path for one in shown] == ["replay/engine/engine.py.md", "scripts/site/conf.py.md"]
    assert (ROOT / "replay/engine/engine.py").read_text(encoding="utf-8") in shown[0].text


def test_every_public_name_is_on_the_page_of_its_package() -> None:
    import replay
    import replay.engine

    for package in (replay, replay.engine):
        page = made()[f"api/{package.__name__}.md"]
        for name in package.__all__:
            assert re.search(rf"\b{re.escape(name)}\b", page), name
    assert {
        "replay",
        "tracegen",
        "hwmodel",
        "replay.experiments.dense",
        "replay.experiments.train",
    } <= {*api.modules()}


def texts() -> dict[str, str]:
    """What the site says by hand, and what commands say; the changelog tells of what is gone."""
    found = {page.path: page.text for page in documents.pages()} | made()
    return {path: text for path, text in found.items() if path != "CHANGELOG.md"}


def test_every_command_that_is_named_exists_and_has_the_options_it_is_given() -> None:
    known = dict(commands.commands())
    groups = {words[0] for words in known if len(words) > 1}
    named = {
        (path, words)
        for path, text in texts().items()
        for words in [
            *re.findall(r"`moereplay ([a-z][^`]*)`", text),
            *(
                line.removeprefix("$ ").removeprefix("moereplay ")
                for fence in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
                for line in fence.replace("\\\n", " ").splitlines()
                if re.match(r"(\$ )?moereplay [a-z]", line)
            ),
        ]
    }
    assert len(named) > 100
    for path, text in named:
        words = tuple(text.split())
        if words[0] in groups and len(words) == 1:
            continue
        command = known.get(words[: 1 + (words[0] in groups)])
        assert command is not None, (path, text)
        options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert given <= options | {"--help"}, (path, text)


def test_every_python_name_that_is_written_out_exists() -> None:
    named = {
        (path, name)
        for path, text in texts().items()
        for name in re.findall(r"`((?:replay|tracegen|hwmodel)(?:\.\w+)+)(?:\([^`]*\))?`", text)
    }
    assert len(named) > 20
    assert not [(path, name) for path, name in sorted(named) if not exists(name.split("."))]


def exists(parts: list[str]) -> bool:
    """Whether something of a dotted name is there: a module, what is in one, or a field."""
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError):
            found: Any = importlib.import_module(".".join(parts[:count]))
            for part in parts[count:]:
                fields = {
                    **getattr(found, "model_fields", {}),
                    **vars(found).get("__annotations__", {}),
                }
                if not hasattr(found, part) and part not in fields:
                    break
                found = getattr(found, part, None) or object
            else:
                return True
    return False


def test_sections_without_types_become_fields() -> None:
    lines = [
        "Do it.",
        "",
        "Returns",
        "-------",
        "The sum,",
        "rounded.",
        "",
        "Raises",
        "------",
        "E",
    ]
    docstrings.rewritten(None, "function", "do", None, None, lines)
    assert lines == [
        "Do it.",
        "",
        "",
        ":returns: The sum,",
        "   rounded.",
        "",
        "Raises",
        "------",
        "E",
    ]


def test_text_is_shown_as_it_is() -> None:
    assert escaped("a*b [c] `d*e` <f>") == r"a\*b \[c\] `d*e` \<f\>"
    assert anchor_of("--set", "KEY=VALUE") == "set-key-value"


def test_pages_are_the_same_each_time() -> None:
    again = {page.path: page.text for maker in (commands, api) for page in maker.pages()}
    assert again == made()
    assert not [path for path, text in made().items() if str(Path.cwd()) in text]
