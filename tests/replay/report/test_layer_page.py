"""What a page shows is what the result holds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from loops import every

import replay
from replay.experiments.layer.bands import Band, Uncertainty
from replay.experiments.layer.page.sections import MECHANISMS
from replay.experiments.layer.page.several import page_of_several
from replay.experiments.layer.page.time_bars import MOST_LONGER, SMALL, gpu_bars, waterfall
from replay.experiments.layer.page.validity import reach_of, turning_line
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.layer.tables.notes import machine_notes
from replay.experiments.layer.tables.times import BOUNDS
from replay.report.pages import page
from tracegen.shared.display.content import Bars, Heat, Line, Page, Plot, Table, Waterfall
from tracegen.shared.display.html import document

OLD = Path("tests/data/results")
LAYERS = 2
US = 1e-5
"""Sums of picoseconds over GPUs are rounded once for each."""


def chart(of: Page, name: str) -> Any:
    (found,) = [one for one in of.charts() if one.name == name]
    return found


def table(of: Page, name: str) -> Table:
    (found,) = [one for one in of.tables() if one.name == name]
    return found


def column(of: Table, name: str) -> list[Any]:
    place = [one.name for one in of.columns].index(name)
    return [row[place] for row in of.rows]


def lengths(bars: Bars) -> dict[str, float]:
    sums = [sum(values) for values in zip(*(part.values for part in bars.parts), strict=True)]
    return dict(zip(bars.labels, sums, strict=True))


@pytest.fixture(scope="module")
def shown(compared: Comparison) -> Page:
    return page(compared)


@pytest.mark.parametrize("name", ["time", "path-phases", "path-causes"])
def test_parts_of_bars_add_up_to_the_time(compared: Comparison, shown: Page, name: str) -> None:
    found = lengths(chart(shown, name))
    assert len(found) == len(compared.results)
    for one in compared.results:
        label = one.scheme.name + ("*" if one.scheme.lacking else "")
        assert found[label] == pytest.approx(one.totals.makespan_us / LAYERS, abs=US)


def test_exposed_parts_are_hatched(compared: Comparison, shown: Page) -> None:
    bars = chart(shown, "time")
    for place, label in enumerate(bars.labels):
        one = compared[label.rstrip("*")]
        hatched = {part.name: part.values[place] for part in bars.parts if part.is_hatched}
        last = hatched.pop("waiting for the last GPU")
        exposed = one.totals.exposed_communication_us / LAYERS
        assert sum(hatched.values()) == pytest.approx(exposed, abs=US)
        ends = [end for layer in one.layers for end in layer.measures.rank_end_us]
        late = one.totals.makespan_us - sum(ends) / one.batch.num_ranks
        assert last == pytest.approx(late / LAYERS, abs=US)
        assert bars.marks[place] == pytest.approx(one.totals.bound_us / LAYERS)


def test_sections_are_in_the_order_in_which_a_reader_asks(shown: Page) -> None:
    asked = [one.title for one in shown.sections]
    first = ["Which scheme is fastest?", "What are the times and bounds?", "How sure is it?", "What is the limit?"]
    assert [title for title in asked if title in first] == [title for title in first if title in asked]
    assert asked[0] == first[0]
    assert asked.index("What crosses the links?") < asked.index("Where does the time go?") < asked.index(MECHANISMS)


def test_times_bounds_and_what_binds_are_those_of_the_results(compared: Comparison, shown: Page) -> None:
    times = table(shown, "times")
    for place, name in enumerate(column(times, "scheme")):
        one = compared[name.rstrip("*")]
        us, bound = one.totals.makespan_us / LAYERS, one.totals.bound_us / LAYERS
        exposed = one.totals.exposed_communication_us / LAYERS
        base = compared.base.totals.makespan_us / LAYERS
        row = {each.name: times.rows[place][at] for at, each in enumerate(times.columns)}
        wanted = {"layer": us, "speed-up": base / us, "exposed": exposed, "bound": bound, "bound/time": bound / us}
        assert {key: row[key] for key in wanted} == pytest.approx(wanted, abs=US)
        sums = {
            BOUNDS[field]: sum(getattr(layer.measures.bounds_us, field) or 0 for layer in one.layers)
            for field in BOUNDS
        }
        assert sums[row["binds"]] == max(sums.values())


def test_rows_are_the_results_the_fastest_first(compared: Comparison, shown: Page) -> None:
    times = table(shown, "times")
    taken = column(times, "layer")
    assert taken == sorted(taken)
    for name, us in zip(column(times, "scheme"), taken, strict=True):
        assert us == compared[name.rstrip("*")].totals.makespan_us / LAYERS


def test_the_summary_names_the_fastest_that_can_be_built(compared: Comparison, shown: Page) -> None:
    assert shown.summary.startswith("dysharp* is the fastest of 2 schemes")
    ratio = compared["deepep"].totals.makespan_us / compared["dysharp"].totals.makespan_us
    assert f"{ratio:.2f} times as fast as deepep" in shown.summary
    assert "without, deepep is the fastest" in shown.summary


def test_bytes_by_purpose_add_up_to_what_a_port_carries(compared: Comparison, shown: Page) -> None:
    wire = table(shown, "wire")
    ways = {"up": "uplink", "down": "downlink"}
    purposes = [place for place, one in enumerate(wire.columns) if one.unit == "MB"]
    assert {way for _, way, *_ in wire.rows} == set(ways)
    for row in wire.rows:
        measured = compared[row[0].rstrip("*")].schedules
        ports = [getattr(of, ways[row[1]]) for one in measured for of in one.wire_bytes.values()]
        carried = sum(map(sum, ports)) / len(ports[0]) / LAYERS / 1e6
        assert sum(row[place] or 0 for place in purposes) == pytest.approx(carried)


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
@pytest.mark.parametrize("way", ["uplink", "downlink"])
def test_wires_are_those_of_each_gpu(compared: Comparison, shown: Page, phase: str, way: str) -> None:
    heat = chart(shown, f"{phase}-{way}")
    for label, row in zip(heat.rows, heat.values, strict=True):
        layers = [getattr(one.wire_bytes[phase], way) for one in compared[label.rstrip("*")].schedules]
        assert row == pytest.approx([sum(gpu) / LAYERS / 1e6 for gpu in zip(*layers, strict=True)])


def test_more_gpus_than_columns_are_put_together(across: Comparison, monkeypatch: Any) -> None:
    whole = chart(page(across), "dispatch-uplink")
    monkeypatch.setattr("replay.experiments.layer.page.charts.MOST_COLUMNS", 5)
    heat = chart(page(across), "dispatch-uplink")
    assert heat.columns == ["GPU 0-3", "GPU 4-7", "GPU 8-11", "GPU 12-15"] or heat.columns == [
        "0-3",
        "4-7",
        "8-11",
        "12-15",
    ]
    for row, of in zip(heat.values, whole.values, strict=True):
        assert row == pytest.approx([sum(of[first : first + 4]) / 4 for first in (0, 4, 8, 12)])


def test_bytes_by_purpose_are_all_bytes(compared: Comparison, shown: Page) -> None:
    found = lengths(chart(shown, "purpose"))
    for label, megabytes in found.items():
        one = compared[label.rstrip("*")]
        carried = sum(
            sum(ports.uplink) + sum(ports.downlink)
            for each in one.schedules
            for ports in each.mechanisms.wire_bytes.values()
        )
        assert megabytes == pytest.approx(carried / one.batch.num_ranks / LAYERS / 1e6)


def test_bounds_are_shares_of_the_time(compared: Comparison, shown: Page) -> None:
    heat = chart(shown, "bounds")
    assert isinstance(heat, Heat)
    for label, row in zip(heat.rows, heat.values, strict=True):
        one = compared[label.rstrip("*")]
        ports = sum(each.bounds_us.port_us for each in one.schedules)
        assert row[list(heat.columns).index("busiest port")] == pytest.approx(100 * ports / one.totals.makespan_us)
        assert max(value for value in row if value is not None) <= 100 + 1e-9


def test_no_bar_is_shorter_than_its_bound(compared: Comparison, shown: Page) -> None:
    bars = chart(shown, "time")
    assert isinstance(bars, Bars) and bars.marks is not None
    assert len(bars.labels) == len(compared.results)
    for label, bound, total in zip(bars.labels, bars.marks, bars.totals(), strict=True):
        assert bound is not None and bound <= total * (1 + 1e-9)
        if label == "ideal":
            assert bound == pytest.approx(total)


def test_the_nearest_rival_is_named_with_what_would_turn_the_order(compared: Comparison) -> None:
    deepep, dysharp = compared["deepep"], compared["dysharp"]
    line = turning_line(("dysharp*", dysharp), ("deepep", deepep))
    away = deepep.totals.makespan_us / dysharp.totals.makespan_us - 1
    reach = math.hypot(reach_of(deepep).share, reach_of(dysharp).share)
    assert line.startswith(f"deepep is next, {away:.1%} slower")
    assert ("may turn" in line) == (away < reach)
    # Next to itself none leads by more than an error, and nothing hangs on assumptions.
    assert turning_line(("deepep", deepep), ("again", deepep)).endswith("so the order may turn")


def test_a_verdict_across_hosts_says_so_first(synthetic: Any) -> None:
    """Files of bare hosts beside files of hosts in practice, which differ from scheme to scheme."""
    trace = synthetic(ranks=2)
    kinds = [("deepep", "bare"), ("nvls", None), ("comet", None)]
    given = {name: replay.run(trace, scheme=name, layer=0, stack=stack) for name, stack in kinds}
    text = page_of_several(given).summary
    assert text.startswith(
        "Not the scheme alone: bare hosts launched deepep, those of a stack all others. comet is the fastest"
    )
    given["deepep"] = replay.run(trace, scheme="deepep", layer=0)
    assert page_of_several(given).summary.startswith("comet is the fastest of 3 schemes, launched by ")


def test_use_over_time_is_the_results(compared: Comparison, shown: Page) -> None:
    plot = chart(shown, "use-sm")
    line = next(one for one in plot.lines if one.name == "deepep")
    slowest = max(compared["deepep"].schedules, key=lambda one: one.makespan_us)
    shares = slowest.utilisation_over_time.groups["sm"]
    assert list(line.y[:-1]) == pytest.approx([100 * share for share in shares])
    assert line.x[-1] == slowest.makespan_us


def test_a_waterfall_adds_up_and_leaves_nothing_between(compared: Comparison) -> None:
    one = compared["deepep"]
    found = waterfall(one, "path", "")
    assert found.spans[0].start == 0
    assert found.spans[-1].end == pytest.approx(one.totals.makespan_us / LAYERS, abs=US)
    for before, after in zip(found.spans, found.spans[1:], strict=False):
        assert after.start == before.end
    small = [span for span in found.spans if span.kind != "all else"]
    assert all(span.end - span.start >= SMALL * found.spans[-1].end for span in small)


def test_what_would_dwarf_the_others_is_broken_off(compared: Comparison) -> None:
    one = compared["ideal"]
    longest = MOST_LONGER * compared["deepep"].totals.makespan_us
    totals = one.totals.model_copy(update={"makespan_us": 1 + 1.01 * longest})
    others = [compared["deepep"], compared["dysharp"]]
    bars = gpu_bars([*others, one.model_copy(update={"totals": totals})])
    assert bars.labels == ["deepep", "dysharp*", "ideal"]
    # Three bars, of which deepep's is the one in the middle.
    assert bars.longest == pytest.approx(longest / LAYERS)
    assert gpu_bars(others).longest is None


def test_validation_is_beside_each_scheme(shown: Page) -> None:
    rows = {row[0]: row for row in table(shown, "validity").rows}
    assert rows["deepep"][1] == "measured"
    assert rows["deepep"][2:5] == pytest.approx([100 * (one - 1) for one in ERRORS_OF_DISPATCH])
    assert rows["deepep"][-1] == 690
    assert rows["dysharp*"][1] == "proposal"
    assert rows["dysharp*"][2:5] == rows["dysharp*"][5:8]  # one pool for what nobody measured
    assert rows["ideal"][1:] == ("a bound", *[None] * 7)
    said = next(
        section for section in shown.sections if section.title == "How far are predictions from measurements?"
    ).items[1]
    assert "experts, BF16" in said and "557 measurements" in said


def _errors_of_dispatch() -> list[float]:
    """Median, 5th and 95th percentile: the columns q50, q5, q95 of every fifth percentile."""
    lines = Path("replay/studies/uncertainty/residuals.csv").read_text("utf-8").splitlines()
    (record,) = [line for line in lines if line.startswith('"DeepEP dispatch",690,')]
    values = record.split(",")[2:]
    return [float(values[percentile // 5]) for percentile in (50, 5, 95)]


ERRORS_OF_DISPATCH = _errors_of_dispatch()


def test_proposed_hardware_has_a_star(shown: Page) -> None:
    rows = {row[0]: row for row in table(shown, "schemes").rows}
    assert rows["dysharp*"][1] == "dynamic-multicast *"
    assert rows["deepep"][1] is None


def test_every_value_of_the_machine_has_a_source(compared: Comparison, shown: Page) -> None:
    rows = {row[0]: row for row in table(shown, "machine").rows}
    assert rows.keys() == compared.results[0].system.values.keys()
    assert rows["gpu.clock_GHz"][1:4] == ("1.755", "GHz", "high") or rows["gpu.clock_GHz"][2] == ("GHz")
    assert all(row[-1] for row in rows.values())


def test_values_that_were_changed_have_a_star(synthetic: Any) -> None:
    one = replay.run(synthetic(), scheme="deepep", layer=0, overrides={"link.links_per_gpu": 9})
    shown = page(one)
    changes = table(shown, "changes").rows
    assert ("link.links_per_gpu *", "9", "18", "") in changes
    machine = {row[0]: row for row in table(shown, "machine").rows}
    assert machine["link.links_per_gpu *"][3:] == ("user", "changed for this result")


def test_a_chain_has_its_layers_and_no_tokens(chained: Result) -> None:
    shown = page(chained)
    line: Line = chart(shown, "layers").lines[0]
    assert chained.chain is not None
    assert list(line.y) == [layer.mean_us for layer in chained.chain.layers]
    assert lengths(chart(shown, "time"))["deepep"] == pytest.approx(chained.totals.makespan_us, abs=US)
    assert "latency" not in {one.name for one in (*shown.charts(), *shown.tables())}


def test_bands_are_the_draws(compared: Comparison) -> None:
    ordered = sorted(compared.results, key=lambda one: one.totals.makespan_us)
    bands = [
        Band(
            scheme=one.scheme.name,
            placement=one.placement,
            nominal_us=one.totals.makespan_us,
            low_us=100.0 + place,
            median_us=110.0,
            high_us=120.0,
            times_us=[110.0],
            first=None if one.scheme.name == "ideal" else 0.75,
            before_next=None,
        )
        for place, one in enumerate(ordered)
    ]
    drawn = Uncertainty(draws=40, seed=0, drawn=["hardware"], notes=[], bands=bands, order_holds=0.5, decides=[])
    shown = page(compared.model_copy(update={"uncertainty": drawn}))
    line = chart(shown, "bands").lines[1]
    assert list(line.low) == [100.0 / LAYERS, 101.0 / LAYERS, 102.0 / LAYERS]
    assert "fastest in 75% of 40 draws" in shown.summary


@every("name", sorted(path.name for path in OLD.glob("*.json")))
def test_results_of_older_versions_have_a_page(name: str) -> None:
    found = replay.load_result(OLD / name)
    shown = page(found)
    first = found.results[0] if isinstance(found, Comparison) else found
    per = len(first.layers) if first.chain is None else first.chain.num_steps
    assert lengths(chart(shown, "time"))[first.scheme.name + "*" * bool(first.scheme.lacking)] == (
        pytest.approx(first.totals.makespan_us / per, abs=US)
    )
    assert shown.command == ""


def test_the_same_result_gives_the_same_page(compared: Comparison, shown: Page) -> None:
    assert page(Comparison.model_validate_json(compared.to_json())) == shown


def test_twenty_schemes_fit_a_megabyte(across: Comparison) -> None:
    """With 16 GPUs each, and nothing alike in their names."""
    results = [
        one.model_copy(update={"scheme": one.scheme.model_copy(update={"name": f"scheme-{place}"})})
        for place in range(20)
        for one in [across.results[place % 2]]
    ]
    text = document(page(Comparison(baseline="scheme-0", results=results)))
    assert 200_000 < len(text.encode()) < 1_000_000


def test_charts_say_their_units(shown: Page) -> None:
    for one in shown.charts():
        if isinstance(one, Plot):
            assert one.x.label and one.y.label
        else:
            assert one.unit or isinstance(one, Waterfall)


def test_gpus_without_work_and_kernels_for_other_links_are_noted(synthetic: Any, compared: Comparison) -> None:
    (line,) = machine_notes([compared["deepep"]])
    assert line.startswith("note: 4 of the 8 GPUs of dgx-h100 take part")
    assert line in page(compared).sections[0].items[0]
    whole = replay.compare(synthetic(ranks=8), ["deepep", "nccl-alltoall"], layer=0, system="pcie-l20")
    (line,) = machine_notes(whole.results)
    assert line.startswith("note: deepep: DeepEP's kernels in a node are written for NVLink; pcie-l20 has PCIe")
    assert machine_notes([whole["nccl-alltoall"]]) == []
    assert machine_notes([replay.run(synthetic(ranks=8), scheme="deepep", layer=0)]) == []


def test_a_trace_of_training_is_announced(synthetic: Any) -> None:
    trace = synthetic(phase="training")
    assert "(as recorded, rows of training)" in str(page(replay.run(trace, scheme="ideal")).sections[0].items[0])
    assert "training" not in str(page(replay.run(synthetic(), scheme="ideal")).sections[0].items[0])
