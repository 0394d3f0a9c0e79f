"""Two results on one page: every number of both, and what of their difference is more than an error."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from command_line import end_of

import replay
from replay.experiments.collective.experiment import EXPERIMENT as COLLECTIVE
from replay.experiments.layer.bands import Band, Uncertainty
from replay.experiments.layer.page.several import page_of_several
from replay.experiments.layer.page.side_by_side import _settings_text, side_by_side
from replay.experiments.layer.page.validity import reach_of
from replay.experiments.layer.result import Comparison, Result
from replay.report.pages import page
from replay.studies.differences.parts import Change
from tracegen.shared.display.content import Bars, Page, Plot, Table
from tracegen.shared.display.html import document

LAYERS = 2


@pytest.fixture(scope="module")
def narrow(synthetic: Any) -> Comparison:
    """The same under half the links, without the bound."""
    return replay.compare(synthetic(), ["deepep", "dysharp"], barrier=True, overrides={"link.links_per_gpu": 9})


@pytest.fixture(scope="module")
def shown(compared: Comparison, narrow: Comparison) -> Page:
    return page_of_several({"wide.json": compared, "narrow.json": narrow}, "moereplay report wide.json narrow.json")


def texts(of: Page) -> list[str]:
    return [item for item in of.sections[0].items if isinstance(item, str)]


def table(of: Page, name: str) -> Table:
    (found,) = [one for one in of.tables() if one.name == name]
    return found


def bars(of: Page) -> Bars:
    (found,) = [item for item in of.sections[0].items if isinstance(item, Bars)]
    return found


def test_what_differs_and_what_one_alone_has_is_said_on_top(shown: Page) -> None:
    said = "\n".join(texts(shown))
    assert "A is wide.json: " in said and "B is narrow.json: " in said
    assert "hardware value link.links_per_gpu: 18 in A, 9 in B" in said
    assert "Only in A: ideal." in said
    assert "The work is not the same" not in said
    assert shown.command == "moereplay report wide.json narrow.json"
    assert shown.summary.startswith(
        "2 settings or values differ. Of 2 schemes that both have, slower in B: 2, faster: 0"
    )


def test_bars_of_both_stand_on_one_scale(compared: Comparison, narrow: Comparison, shown: Page) -> None:
    drawn = bars(shown)
    lengths = dict(zip(drawn.labels, drawn.totals(), strict=True))
    assert list(lengths) == ["ideal, A", "dysharp*, A", "dysharp*, B", "deepep, A", "deepep, B"]
    for side, results in (("A", compared), ("B", narrow)):
        for one in results.results:
            label = one.scheme.name + ("*" if one.scheme.lacking else "")
            assert lengths[f"{label}, {side}"] == pytest.approx(one.totals.makespan_us / LAYERS, abs=1e-5)


def test_a_difference_is_held_against_the_error_of_both(compared: Comparison, narrow: Comparison, shown: Page) -> None:
    rows = {row[0]: row[1:] for row in table(shown, "times-of-both").rows}
    assert rows.keys() == {"deepep", "dysharp*"}
    before, after = compared["deepep"], narrow["deepep"]
    share = after.totals.makespan_us / before.totals.makespan_us - 1
    error = abs(reach_of(before).share - reach_of(after).share)  # of the same kernels, which have one error
    a, b, longer, change, said, beyond = rows["deepep"]
    assert (a, b) == (before.totals.makespan_us / LAYERS, after.totals.makespan_us / LAYERS)
    assert longer == pytest.approx(b - a)
    assert (change, said) == (pytest.approx(share), pytest.approx(error))
    assert beyond == ("yes" if share > error else "no")


def test_draws_state_the_error_where_there_are_some(compared: Comparison, narrow: Comparison) -> None:
    both = [_drawn(compared, 0.03), _drawn(narrow, 0.04)]
    rows = {row[0]: row for row in table(side_by_side(["a", "b"], both), "times-of-both").rows}
    assert rows["deepep"][-2] == pytest.approx(0.05)


def _drawn(of: Comparison, error: float) -> Comparison:
    """The same with draws that spread by an error."""
    found = [
        Band(
            scheme=one.scheme.name,
            placement=one.placement,
            nominal_us=one.totals.makespan_us,
            low_us=one.totals.makespan_us * (1 - error / 2),
            median_us=one.totals.makespan_us,
            high_us=one.totals.makespan_us * (1 + error),
            times_us=[one.totals.makespan_us],
            first=None,
            before_next=None,
        )
        for one in of.results
    ]
    drawn = Uncertainty(draws=40, seed=0, drawn=["hardware"], notes=[], bands=found, order_holds=1.0, decides=[])
    return of.model_copy(update={"uncertainty": drawn})


def test_each_number_of_both_has_its_difference(compared: Comparison, narrow: Comparison, shown: Page) -> None:
    both = table(shown, "times")
    names = [column.name for column in both.columns]
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in both.rows}
    of_a, of_b = ({row[0]: row for row in table(page(one), "times").rows} for one in (compared, narrow))
    place = [column.name for column in table(page(compared), "times").columns].index("exposed")
    assert rows["deepep"]["exposed, A"] == of_a["deepep"][place]
    assert rows["deepep"]["exposed, B"] == of_b["deepep"][place]
    change = both.rows[list(rows).index("deepep")][names.index("exposed, B") + 1]
    assert change == pytest.approx(of_b["deepep"][place] - of_a["deepep"][place])
    assert rows["ideal"]["exposed, B"] is None


def test_what_is_the_same_stands_once_and_says_so(compared: Comparison) -> None:
    same = side_by_side(["a", "b"], [compared, compared])
    assert same.summary.startswith("The same entered both. All 3 times are the same")
    assert {row[3] for row in table(same, "times-of-both").rows} == {"="}
    assert [one.name for one in same.tables()] == ["times-of-both", "entered"]
    said = next(section for section in same.sections if section.title == "What is the same?").items[0]
    assert "speed-up over deepep" in str(said)


def test_results_of_other_schemes_and_other_work_have_the_same_page(compared: Comparison, chained: Result) -> None:
    found = side_by_side(["one", "chain"], [compared["dysharp"], chained])
    assert bars(found).labels == ["dysharp*, A", "deepep, B"]
    assert [row[0] for row in table(found, "times-of-both").rows] == ["dysharp* -> deepep"]
    assert "- scheme: dysharp in A, deepep in B" in "\n".join(texts(found))
    assert "deepep (B) takes" in found.summary
    across = side_by_side(["a", "b"], [compared["deepep"], _of_one_layer(compared["deepep"])])
    assert any(line.startswith("The work is not the same (layers)") for line in texts(across))


def _of_one_layer(one: Result) -> Result:
    return one.model_copy(update={"layers": one.layers[:1]})


def test_what_has_no_single_time_has_plots_of_both() -> None:
    one, other = (COLLECTIVE.run(op="allreduce", bytes=size, algorithm=["ring"]) for size in ("64K,1M", "64K,2M"))
    found = side_by_side(["a", "b"], [one, other])
    plot = next(item for item in found.sections[0].items if isinstance(item, Plot))
    assert [line.name for line in plot.lines] == ["ring, A", "ring, B"]
    assert "bytes: 64K,1M in A, 64K,2M in B" in "\n".join(texts(found))
    assert document(found)


def test_milliseconds_and_microseconds_are_told_in_one_unit(compared: Comparison) -> None:
    from replay.experiments.layer.page.merged_content import bars_of_both, table_of_both

    one = bars(side_by_side(["a", "b"], [compared, compared]))
    slow = dataclasses.replace(one, unit="ms")
    both = bars_of_both(one, slow, {})
    assert both is not None
    assert both.totals()[1] == pytest.approx(1000 * both.totals()[0])
    assert bars_of_both(one, dataclasses.replace(one, unit="MB"), {}) is None
    times = table(page(compared), "times")
    renamed = [dataclasses.replace(column, unit=column.unit and "ms") for column in times.columns]
    pair = table_of_both(times, dataclasses.replace(times, columns=renamed), {})
    assert pair is not None
    row = pair.rows[0]
    assert row[2] == pytest.approx(1000 * row[1])  # type: ignore[operator]  # of numbers


def test_two_of_different_kinds_stand_one_behind_the_other(compared: Comparison, tmp_path: Path) -> None:
    collective = COLLECTIVE.run(op="allreduce", bytes="64K", algorithm=["ring"])
    found = replay.diff(compared, compared)
    for other in (collective, found):
        assert page_of_several({"a": compared, "b": other}).title == "2 results"
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    compared.save(files[0])
    collective.save(files[1])
    assert end_of("report", *files, "--html", tmp_path / "both.html") == 0
    assert (tmp_path / "both.html").exists()


def test_stars_stand_behind_whole_names_of_schemes() -> None:
    results = [replay.run("toy-uniform", scheme=name, layer=0) for name in ("dysharp-comet", "dysharp")]
    for one in (results, results[::-1]):
        names = [f"{result.scheme.name}*" for result in one]
        said = page_of_several({"a": one[0], "b": one[1]}).summary
        assert f"{names[1]} (B) takes" in said and f"than {names[0]} (A)" in said


def test_the_command_on_the_page_makes_it_again(
    compared: Comparison, narrow: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compared.save("a.json")
    narrow.save("b.json")
    assert end_of("report", "a.json", "b.json", "--html", "both.html") == 0
    assert "moereplay report a.json b.json --html both.html" in Path("both.html").read_text("utf-8")


def test_what_an_older_file_lacks_and_is_empty_now_is_no_difference() -> None:
    lacking = Change(what="system.compute.fp4_kinds", before=None, after=[])
    added = Change(what="system.switch.multicast_ns", unit="ns", before=None, after=80.0)
    said = _settings_text([lacking, added])
    assert "fp4_kinds" not in said
    assert "none in A, 80.0 ns in B" in said
