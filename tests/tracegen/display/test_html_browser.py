"""A report in a browser: it works, is read by everybody, prints, and asks nothing of a network."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sample_pages

from tracegen.shared.display.content import Column, Page, Section, Table
from tracegen.shared.display.html import document, fragment

TAB, ENTER = "\ue004", "\ue007"
"""As WebDriver writes these keys."""
ROWS = "[...document.querySelectorAll('table.sortable')[0].tBodies[0].rows]"
NAMES = f"{ROWS}.filter((row) => row.offsetHeight).map((row) => row.cells[0].textContent)"
BARS = (
    "[...document.querySelectorAll('svg.wide[data-pitch]')[0].querySelectorAll('.row')]"
    ".filter((row) => row.getBoundingClientRect().height)"
    ".sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)"
    ".map((row) => row.dataset.name)"
)


@pytest.fixture(scope="module")
def address(browser: Any) -> str:
    return browser.put(document(sample_pages.page()))


@pytest.fixture
def shown(browser: Any, address: str) -> Any:
    browser.open(address)
    return browser


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    actions = ActionChains(browser.driver)
    for key in keys:
        actions.send_keys(key)
    actions.perform()


@pytest.mark.parametrize(("make", "theme"), [(sample_pages.page, "light"), (sample_pages.hostile_page, "dark")])
def test_nothing_is_complained_of_and_nothing_asked_for(browser: Any, make, theme: str) -> None:
    address = browser.put(document(make()))
    browser.requests()
    browser.open(address, theme=theme)
    browser.printed()
    assert browser.messages() == []
    assert {one for one in browser.requests() if one != "about:blank"} == {address}


def test_the_policy_stops_a_script_that_is_not_ours(browser: Any) -> None:
    written = document(sample_pages.page())
    foreign = "<script>document.title = 'taken over'</script><img src='https://example.invalid/'>"
    browser.open(browser.put(written.replace("</main>", f"</main>{foreign}")))
    assert browser.driver.title == sample_pages.page().title
    refused = browser.messages()
    assert len(refused) == 2
    assert all("Content Security Policy" in one for one in refused)


def test_a_click_on_a_heading_sorts_up_then_down_then_not_at_all(shown: Any) -> None:
    before = shown.ask(NAMES)
    times = {row[0]: row[1] for row in sample_pages.table().rows}
    head = shown.find("table.sortable th:nth-child(2)")
    button = head.find_element("css selector", "button")
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert shown.ask(NAMES) == sorted(before, key=times.__getitem__)
    assert shown.ask(BARS) == shown.ask(NAMES)
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert shown.ask(NAMES) == sorted(before, key=times.__getitem__, reverse=True)
    button.click()
    assert head.get_attribute("aria-sort") is None
    assert shown.ask(NAMES) == before == shown.ask(BARS)


def test_what_has_no_value_comes_last_whichever_way_it_is_sorted(shown: Any) -> None:
    button = shown.find("table.sortable th:nth-child(4) button")
    for _ in range(2):
        button.click()
        assert shown.ask(NAMES)[-1] == sample_pages.SCHEMES[3]


def test_a_heading_is_reached_and_sorts_by_keyboard(shown: Any) -> None:
    for _ in range(40):
        press(shown, TAB)
        if shown.ask("document.activeElement.closest('th') !== null"):
            break
    press(shown, TAB, ENTER)
    head = shown.ask("document.activeElement.closest('th')")
    assert head.get_attribute("aria-sort") == "ascending"
    assert "time from the first row" in shown.find(".tip").text


def test_a_filter_leaves_rows_and_bars_of_these_names(shown: Any) -> None:
    height = "document.querySelector('svg.wide[data-pitch]').viewBox.baseVal.height"
    before = shown.ask(height)
    shown.find(".filter input").send_keys("DYSHARP")
    assert shown.ask(NAMES) == ["dysharp*"] == shown.ask(BARS)
    assert shown.find(".filter output").text == f"1 of {len(sample_pages.SCHEMES)}"
    assert shown.ask(height) < before / 3
    # The steps of a waterfall are no rows of this name.
    assert shown.ask("document.querySelectorAll('svg.wide:not([data-pitch]) .row.gone').length") == 0
    shown.find(".filter input").clear()
    shown.find(".filter input").send_keys(" ")
    assert shown.ask(NAMES) == list(sample_pages.SCHEMES) == shown.ask(BARS)
    assert shown.ask(height) == before


def test_sections_fold_and_a_link_opens_its_section(shown: Any) -> None:
    are_open = "[...document.querySelectorAll('details.section')].map((one) => one.open)"
    first = shown.ask(are_open)
    assert first == [True, False, False, False, False, False]
    shown.find("nav a[href='#section-4']").click()
    # A browser tells a page of its new address some time after the click.
    shown.wait(f"{are_open}[4]")
    heading = "document.querySelectorAll('details.section > summary')[4].getBoundingClientRect()"
    shown.wait(f"{heading}.top >= 0 && {heading}.bottom <= innerHeight")
    shown.find("#fold").click()
    assert all(shown.ask(are_open))
    shown.find("#fold").click()
    assert not any(shown.ask(are_open))
    press(shown, TAB)
    shown.driver.execute_script("document.querySelector('details.section summary').focus()")
    press(shown, ENTER)
    assert shown.ask(are_open)[0]


GROUND = "getComputedStyle(document.body).backgroundColor"
BAR = "getComputedStyle(document.querySelector('.f0')).fill"


def test_a_page_is_light_or_dark_as_its_reader_prefers_or_says(browser: Any, address: str) -> None:
    found = {}
    for theme in ("light", "dark"):
        browser.open(address, theme=theme)
        found[theme] = browser.ask(GROUND), browser.ask(BAR)
    assert found["light"][0] == "rgb(255, 255, 255)"
    assert all(one != other for one, other in zip(*found.values(), strict=True))
    browser.find("#theme").click()
    assert (browser.ask(GROUND), browser.ask(BAR)) == found["light"]
    browser.open(address, theme="dark")  # it is remembered
    assert browser.ask(GROUND) == found["light"][0]
    browser.find("#theme").click()
    assert browser.ask(GROUND) == found["dark"][0]
    browser.driver.execute_script("localStorage.clear()")


def test_the_printed_page_is_light_open_and_not_cut(browser: Any, address: str) -> None:
    browser.open(address, wide=720, theme="dark")
    assert browser.printed() >= 3
    browser.media("print", theme="dark")
    assert browser.ask(GROUND) == "rgb(255, 255, 255)"
    folded = "document.querySelector('details.section:not([open]) .inside').offsetHeight"
    assert browser.ask(folded) > 0
    assert browser.ask("document.querySelector('nav').offsetHeight") == 0
    # Chromium repeats heads of tables on each sheet, but paints no boxes within them.
    heads = "getComputedStyle(document.querySelector('.sortable th button')).display"
    assert browser.ask(heads) == "contents"
    cut = "[...document.querySelectorAll('.sheet .scroll')].filter((one) => one.scrollWidth > one.clientWidth)"
    assert browser.ask(cut) == []


def test_on_paper_folded_tables_are_left_out_and_named_but_for_the_first(browser: Any) -> None:
    tables = [Table(name, f"Title {name}", [Column("scheme")], [("deepep",)]) for name in ("main", "more")]
    sections = [Section("Who?", ["Nobody."]), Section("What?", [tables[0]]), Section("Why?", [tables[1]])]
    browser.open(browser.put(document(Page("folded", "", sections))), wide=703)
    browser.media("print")
    high = "[...document.querySelectorAll('{}')].map((one) => one.offsetHeight > 0)"
    assert browser.ask(high.format(".sheet")) == [True, False]
    assert browser.ask(high.format(".folded")) == [True]
    assert "Title more." in browser.ask("document.querySelector('.folded').textContent")
    browser.ask("dispatchEvent(new Event('beforeprint'))")  # which unfolds for browsers that need it
    assert browser.ask(high.format(".sheet")) == [True, False]
    browser.ask("dispatchEvent(new Event('afterprint'))")
    browser.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.ask(high.format(".sheet")) == [True, True]
    assert browser.ask(high.format(".folded")) == [False]


def test_a_broad_table_is_whole_on_paper_and_says_that_it_is_small(browser: Any) -> None:
    columns = [Column("scheme"), *(Column(f"exposed, {k}", "us", ",.1f") for k in range(16))]
    broad = Table("broad", "Each of both", columns, [("dysharp-fusion-only", *[1475.1] * 16)] * 3)
    address = browser.put(document(Page("broad", "", [Section("What is it?", [broad])])))
    browser.open(address, wide=703)
    note = "document.querySelector('.paper').offsetHeight"
    cut = "((one) => one.scrollWidth - one.clientWidth)(document.querySelector('.scroll'))"
    assert browser.ask(note) == 0 and browser.ask(cut) > 0
    browser.media("print")
    assert browser.ask(note) > 0 and browser.ask(cut) == 0
    assert browser.ask("getComputedStyle(document.querySelector('tbody td')).whiteSpace") == "nowrap"


OVERFLOW = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"


@pytest.mark.parametrize("make", [sample_pages.page, sample_pages.hostile_page])
def test_a_phone_shows_all_of_it(browser: Any, make) -> None:
    browser.open(browser.put(document(make())), wide=360)
    browser.unfold()
    assert browser.ask(OVERFLOW) == 0
    drawings = "[...document.querySelectorAll('.chart > svg')].filter((one) => one.getClientRects().length)"
    assert browser.ask(f"{drawings}.every((one) => one.classList.contains('narrow'))")
    letters = "one.getBoundingClientRect().width / one.viewBox.baseVal.width"
    assert min(browser.ask(f"{drawings}.map((one) => 12 * {letters})")) >= 10
    name = browser.ask(f"{ROWS}[0].cells[0].offsetHeight")
    assert name < 70  # of one line, or two


def test_the_edge_of_a_table_that_goes_on_is_shaded(browser: Any, address: str) -> None:
    edge = (
        "((one) => { const style = getComputedStyle(one); return [style.backgroundImage.split('gradient').length - 1,"
        " style.backgroundAttachment, one.scrollWidth > one.clientWidth]; })"
        "(document.querySelector('.sheet .scroll'))"
    )
    browser.open(address, wide=360)
    # Two covers that move with the table lie upon two shades that stay.
    assert browser.ask(edge) == [4, "local, local, scroll, scroll", True]
    browser.media("print")
    assert browser.ask(edge)[0] == 0


@pytest.mark.parametrize("wide", [1200, 640])
def test_no_text_of_a_chart_lies_on_another_one(browser: Any, address: str, wide: int) -> None:
    browser.open(address, wide=wide)
    browser.unfold()
    boxes = browser.ask(
        "[...document.querySelectorAll('.chart > svg')]"
        ".map((svg) => [...svg.querySelectorAll('text')]"
        ".filter((one) => one.getClientRects().length).map((one) => {"
        " const box = one.getBoundingClientRect();"
        " return [one.textContent, box.left, box.top, box.right, box.bottom]; }))"
    )
    assert sum(map(len, boxes)) > 100
    for texts in boxes:
        for one, other in itertools.combinations(texts, 2):
            across = min(one[3], other[3]) - max(one[1], other[1])
            down = min(one[4], other[4]) - max(one[2], other[2])
            assert across < 2 or down < 4, (one, other)


def test_a_screen_reader_hears_names_of_charts_tables_and_headings(shown: Any) -> None:
    shown.unfold()
    nodes = shown.tell("Accessibility.getFullAXTree")["nodes"]
    heard: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            role, name = (node.get(key, {}).get("value", "") for key in ("role", "name"))
            heard.setdefault(role, []).append(name)
    page = sample_pages.page()
    assert set(heard["image"]) == {chart.title for chart in page.charts()}
    assert {table.title for table in page.tables()} <= set(heard["table"])
    assert {section.title for section in page.sections} <= set(heard["heading"])
    assert "layer us" in heard["columnheader"] and "layer us" in heard["button"]
    assert all(heard["button"]) and all(heard["link"]) and all(heard["searchbox"])
    described = [
        node["description"]["value"]
        for node in nodes
        if node.get("role", {}).get("value") == "image" and "description" in node
    ]
    assert len(described) == len(heard["image"])
    assert any("Longest: deepep-ll, 187.0" in one for one in described)


def test_what_is_pointed_at_says_what_it_is(shown: Any) -> None:
    from selenium.webdriver import ActionChains

    part = shown.find("svg.wide[data-pitch] .row rect:nth-of-type(3)")
    shown.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", part)
    shown.driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
    ActionChains(shown.driver).move_to_element(part).perform()
    said = shown.find(".tip").text.splitlines()
    assert said[0] == sample_pages.SCHEMES[0]
    assert said[1].startswith("first GEMM: ")


def test_without_the_script_it_is_all_there(browser: Any, address: str) -> None:
    browser.tell("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(address)
        assert browser.driver.find_elements("css selector", "th button") == []
        assert not any(one.is_displayed() for one in browser.driver.find_elements("css selector", ".tool"))
        assert not browser.find(".filter").is_displayed()
        # A link into what is folded unfolds it, as does a click on its heading.
        browser.find("nav a[href='#section-4']").click()
        browser.wait("document.querySelectorAll('details.section')[4].open")
        assert browser.find("#section-4 .text").is_displayed()
        while browser.all("details.section:not([open]) summary"):
            browser.find("details.section:not([open]) summary").click()
        assert all(one.is_displayed() for one in browser.driver.find_elements("css selector", "svg.wide"))
    finally:
        browser.tell("Emulation.setScriptExecutionDisabled", value=False)


def test_a_fragment_leaves_what_is_around_it_alone(browser: Any) -> None:
    # With room for a scroll bar from the beginning, or all would be narrower for it.
    around = (
        "<!doctype html><body style='overflow-y: scroll'><h3>one</h3><table><tr><td>two</td></tr></table><p>three</p>"
    )
    looks = (
        "[...document.querySelectorAll('body > h3, body > table, body > table td, body > p')]"
        ".map((one) => [one, getComputedStyle(one)])"
        ".map(([one, style]) => [...style].map((name) => style[name]).join())"
    )
    browser.open(browser.put(around))
    before = browser.ask(looks)
    browser.open(browser.put(around + fragment(sample_pages.page())))
    assert browser.ask("document.querySelectorAll('.notebook svg.wide').length") > 5
    assert browser.ask(OVERFLOW) == 0
    assert browser.ask(looks) == before
