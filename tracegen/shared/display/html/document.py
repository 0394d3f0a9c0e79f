"""From a page to the text of an HTML file."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator
from importlib import resources

from tracegen.shared.display.content import Item, Page, Section, Table
from tracegen.shared.display.html.charts import figure
from tracegen.shared.display.html.drawing import Colours
from tracegen.shared.display.html.markup import prose, shape, tag, text
from tracegen.shared.display.html.tables import table
from tracegen.shared.display.palette import DARK, LIGHT, places

MOST_LINKED = 12
"""Sections up to which each has a link above; of more, those that are no detail."""
WORDS = "What do the words mean?"
FOLDED = "Not on paper, unless unfolded before printing:"


def document(page: Page) -> str:
    """Write a page as one HTML file.

    Parameters
    ----------
    page
        What there is to see. Its texts may come from strangers; none of them becomes markup.

    Returns
    -------
    The file's text, which is the same for the same page. It refers to no other file, and a policy
    in it has the browser refuse all that would be fetched, and all scripts and styles but its own.
    """
    identity = "p"
    style = _file("style.css") + _file("page.css") + _colours(identity)
    script = _file("script.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = [
        '<meta charset="utf-8">',
        # Before the style and the script, of which it speaks.
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        tag("title", text(page.title)),
        f"<style>{style}</style>\n",
    ]
    body = [
        _patterns(identity),
        tag("header", *_head(page), "\n"),
        tag("main", *_sections(page, identity)),
    ]
    joined = "\n".join(head)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{joined}</head>\n'
        f'<body class="moereplay {identity}">\n<div class="page">\n{"".join(body)}</div>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def fragment(page: Page) -> str:
    """Write a page's tables and charts to stand within another document, such as a notebook.

    Parameters
    ----------
    page
        What there is to see; see `document`.

    Returns
    -------
    An element with its style, which touches nothing around it; it has no script, is light, and is
    dark where a notebook is.
    """
    identity = f"m{hashlib.sha256(repr(page).encode('utf-8', 'replace')).hexdigest()[:10]}"
    style = _file("style.css") + _file("notebook.css") + _colours(identity)
    return tag(
        "div",
        f"<style>{style}</style>",
        _patterns(identity),
        *(
            part
            for k, section in enumerate(page.sections)
            if not section.is_detail
            for part in _items(section, page, f"{identity}-{k}")
        ),
        class_=f"moereplay notebook {identity}",
    )


@functools.cache
def _file(name: str) -> str:
    """A file beside this one, which goes into every page."""
    return resources.files("tracegen.shared.display.html").joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


# ---- colours -------------------------------------------------------------------------


def _colours(identity: str) -> str:
    """Rules for the colour of each place of the palette: surfaces, hatched surfaces, lines."""
    rules = []
    for place, (light, dark) in enumerate(zip(LIGHT, DARK, strict=True)):
        colour = f"--c{place}"
        rules.append(
            f".{identity} {{ {colour}: light-dark({light}, {dark}) }}\n"
            f".{identity} .f{place} {{ fill: var({colour}) }}\n"
            f".{identity} .s{place} {{ stroke: var({colour}) }}\n"
            f".{identity} .h{place} {{ fill: url(#{identity}-hatch-{place}) }}\n"
        )
    return "".join(rules)


def _patterns(identity: str) -> str:
    """Hatching in each colour: what the rules refer to."""
    patterns = "".join(
        tag(
            "pattern",
            shape("rect", width=6, height=6, class_=f"f{place}", fill_opacity=0.2),
            shape("path", d="M0,0V6", class_=f"s{place}", stroke_width=4.4),
            id=f"{identity}-hatch-{place}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        )
        for place in range(len(LIGHT))
    )
    return tag("svg", patterns, width=0, height=0, aria_hidden="true", class_="heard")


# ---- parts of a page -----------------------------------------------------------------


def _head(page: Page) -> Iterator[str]:
    yield tag("h1", text(page.title))
    if page.summary:
        yield tag("p", prose(page.summary), class_="summary")
    if page.command:
        yield tag(
            "div",
            tag("code", text(page.command)),
            tag("button", "Copy", type="button", class_="tool copy", hidden=True),
            class_="command",
        )
    titles = [(k, section.title, section.is_detail) for k, section in enumerate(page.sections)]
    if _words(page):
        titles.append((len(titles), WORDS, False))
    if len(titles) > MOST_LINKED:
        titles = [one for one in titles if not one[2]]
    links = [tag("a", text(title), href=f"#section-{k}") for k, title, _ in titles]
    tools = [
        tag("button", label, type="button", class_="tool", id=name, hidden=True)
        for name, label in (("fold", "Open all"), ("theme", "Dark"))
    ]
    yield tag("nav", *links, tag("span", *tools, class_="tools"), aria_label="Sections")


def _sections(page: Page, identity: str) -> Iterator[str]:
    main = next(page.tables(), None)
    for k, section in enumerate(page.sections):
        inside = _items(section, page, f"{identity}-{k}")
        tables = [one.title for one in section.items if isinstance(one, Table) and one is not main]
        yield _section(k, section.title, inside, tables)
    words = _words(page)
    if words:
        entries = (tag("dt", text(name)) + tag("dd", prose(says)) for name, says in words.items())
        listed = tag("dl", *entries, class_="words")
        yield _section(len(page.sections), WORDS, [listed], ["the words"])


def _section(k: int, title: str, inside: Iterator[str] | list[str], looked_up: list[str]) -> str:
    """Write a section; what is looked up in it is left out on paper while it is folded, and named there."""
    left_out = tag("p", text(f"{FOLDED} {'; '.join(looked_up)}."), class_="note paper folded") if looked_up else ""
    # The address is that of what is folded: a browser unfolds what it is led into, without a script.
    return tag(
        "details",
        tag("summary", tag("h2", text(title))),
        tag("div", *inside, left_out, class_="inside", id=f"section-{k}"),
        class_="section",
        open=k == 0,
    )


def _items(section: Section, page: Page, prefix: str) -> Iterator[str]:
    colours, main = Colours(places(page)), next(page.tables(), None)
    for k, item in enumerate(section.items):
        yield _item(item, colours, f"{prefix}-{k}", is_main=item is main) + "\n"


def _item(item: Item, colours: Colours, identity: str, *, is_main: bool) -> str:
    if isinstance(item, str):
        return tag("p", prose(item), class_="text")
    if isinstance(item, Table):
        return table(item, identity, is_main=is_main)
    return figure(item, colours, identity)


def _words(page: Page) -> dict[str, str]:
    """Meanings of the headings' words, each once."""
    return {column.name: column.says for shown in page.tables() for column in shown.columns if column.says}
