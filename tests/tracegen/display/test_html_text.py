"""What strangers' texts may do to a report: be read. What a report asks of a network: nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import sample_pages

from tracegen.shared.display.content import Page, Section
from tracegen.shared.display.html import document, fragment
from tracegen.shared.display.html.markup import prose

DOCUMENT = "html head meta title style body script"
TEXT = "div header main nav details summary h1 h2 h3 p a span code small ul li dl dt dd"
TABLE = "table thead tbody tr th td button label input output"
CHART = "figure figcaption svg pattern g path rect circle text desc"
ELEMENTS = frozenset(f"{DOCUMENT} {TEXT} {TABLE} {CHART}".split())
VOID = frozenset({"meta", "input"})


class Reader(HTMLParser):
    """Reads a document as a browser does, and notes elements, attributes and texts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))


def read(written: str) -> Reader:
    reader = Reader()
    reader.feed(written)
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def hostile() -> str:
    return document(sample_pages.hostile_page())


def test_a_hostile_text_becomes_no_element_and_no_attribute(hostile: str) -> None:
    found = read(hostile).found
    assert {tag for tag, _ in found} <= ELEMENTS
    assert [tag for tag, _ in found].count("script") == 1
    names = {name for _, attributes in found for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "style")}
    targets = {attributes["href"] for _, attributes in found if "href" in attributes}
    assert targets
    assert all(re.fullmatch(r"#section-\d+", target or "") for target in targets)


def test_a_hostile_text_is_shown_as_it_is(hostile: str) -> None:
    shown = {data for element, data in read(hostile).texts if element not in ("style", "script")}
    assert {one for one in sample_pages.HOSTILE if one.isprintable()} <= shown
    # What turns the direction of writing or is no letter at all is spelt out.
    assert r"\x00\x1b[2J\u202eright\ud800 & <b>" in shown


def test_the_script_and_the_style_are_ours_alone(hostile: str) -> None:
    ordinary, attacked = (
        [data for element, data in read(one).texts if element in ("style", "script")]
        for one in (document(sample_pages.page()), hostile)
    )
    assert attacked == ordinary
    assert "alert" not in "".join(attacked)


@pytest.mark.parametrize("write", [document, fragment])
def test_a_report_refers_to_nothing_outside(write) -> None:
    written = write(sample_pages.page())
    assert "http:" not in written
    assert "https:" not in written
    assert " src=" not in written
    assert "@import" not in written
    assert set(re.findall(r"url\((.)", written)) == {"#"}


def test_the_policy_names_the_very_style_and_script() -> None:
    import base64
    import hashlib

    reader = read(document(sample_pages.page()))
    policy = next(a["content"] for tag, a in reader.found if "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none'; ")
    for element in ("style", "script"):
        text = "".join(data for inside, data in reader.texts if inside == element)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "https:" not in policy


def test_identities_are_unique() -> None:
    found = read(document(sample_pages.page())).found
    names = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(names) == len(set(names))
    known = set(names)
    for _, attributes in found:
        for kind in ("aria-labelledby", "aria-describedby", "aria-controls", "for"):
            assert attributes.get(kind, names[0]) in known


def test_the_same_page_is_the_same_bytes() -> None:
    assert document(sample_pages.page()) == document(sample_pages.page())
    assert fragment(sample_pages.page()) == fragment(sample_pages.page())


def test_an_empty_page_is_a_page() -> None:
    reader = read(document(Page("", "", [Section("", [])])))
    assert ("h2", {}) in reader.found


def test_a_fragment_stands_beside_another_one() -> None:
    one = fragment(sample_pages.page())
    other = fragment(Page("other", "", sample_pages.page().sections))
    mine, yours = ({a["id"] for _, a in read(text).found if "id" in a} for text in (one, other))
    assert mine
    assert not mine & yours
    assert "<script" not in one


def test_code_in_sentences_is_whole_words_and_no_markup() -> None:
    said = prose("See `a <b>` or --stack practice, not well--known")
    assert said == "See <code>a</code> <code>&lt;b&gt;</code> or <code>--stack</code> practice, not well--known"
