"""What is not the same in two results: what entered, and the times by cause."""

from __future__ import annotations

import html
import json
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replay
from replay.cli.app import app
from replay.errors import UserError
from replay.report.text import render
from replay.studies.differences.page import difference_tables, quantity_columns
from replay.studies.differences.parts import Difference, QuantityDifference
from replay.studies.differences.path import HOST_WAITS

OLD = Path(__file__).parents[2] / "data" / "results"
SCHEMES = ["deepep", "nccl-alltoall", "deepep-ll"]
CHANGES = {
    "links": {"overrides": {"link.links_per_gpu": 8}},
    "host": {"overrides": {"overheads.host_sync_us": 40.0}},
    "memory": {"overrides": {"hbm.peak_GB_per_s": 2000.0}},
    "precision": {"precision": "fp8"},
    "placement": {"placement": "round-robin"},
    "layers": {"layer": "all"},
}


@pytest.fixture(scope="module")
def trace(synthetic):
    return synthetic(ranks=4, tokens_per_rank=32)


@pytest.fixture(scope="module")
def compared(trace):
    """Comparisons by what was changed in them."""

    def under(**changes):
        return replay.compare(trace, SCHEMES, **{"layer": 0, **changes})

    return {"nothing": under(), **{name: under(**changes) for name, changes in CHANGES.items()}}


def ps(us):
    return round(us * 1e6)


# ---- what entered --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nothing", *CHANGES])
def test_a_file_and_itself_are_the_same(compared, name):
    found = replay.diff(compared[name], compared[name])
    assert found.is_same
    assert not (found.inputs or found.swapped or found.notes)
    assert all(not one.change_us and not one.quantities for one in found.outcomes)
    assert "Nothing is different" in render(difference_tables(found))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("links", {"system.link.links_per_gpu", "system.fabric.links_per_plane"}),
        ("host", {"system.overheads.host_sync_us"}),
        ("memory", {"system.hbm.peak_GB_per_s"}),
        ("precision", {"type.gemm", "type.dispatch_type"}),
        ("placement", {"placement"}),
        ("layers", {"layer", "layers replayed"}),
    ],
)
def test_what_was_changed_is_what_entered_otherwise(compared, name, expected):
    found = replay.diff(compared["nothing"], compared[name])
    assert {one.what for one in found.inputs} == expected
    assert not found.is_same and not found.notes
    for one in found.inputs:
        assert one.schemes == [] and one.before != one.after


def test_values_of_hardware_have_their_unit_and_both_values(compared):
    (one,) = replay.diff(compared["nothing"], compared["host"]).inputs
    assert (one.before, one.after, one.unit) == (15.0, 40.0, "us")


@pytest.mark.parametrize("more", [{}, {"steps": "0:1"}])
def test_hosts_are_those_that_launched_and_not_those_that_were_asked_for(trace, more):
    """The second asks for none, and vLLM's launch it."""
    bare, practice = (replay.run(trace, scheme="deepep", layer=0, **more, **asked) for asked in ({"stack": "bare"}, {}))
    assert practice.spec.stack is None
    (found,) = replay.diff(bare, practice).inputs
    assert (found.what, found.before, found.after) == ("stack", "bare hosts", practice.stack.name)
    named = replay.run(trace, scheme="deepep", layer=0, **more, stack=practice.stack.name)
    assert replay.diff(practice, named).is_same


def test_an_option_is_of_its_scheme(trace, compared):
    other = replay.compare(trace, SCHEMES, layer=0, options={"deepep": {"num_sms": 8}})
    (one,) = replay.diff(compared["nothing"], other).inputs
    assert (one.what, one.after, one.schemes) == ("option.num_sms", 8, ["deepep"])


def test_a_scheme_that_is_left_out_is_said_with_its_reason(compared):
    one = compared["nothing"]
    other = one.model_copy(update={"left_out": {"nccl-ep": "it has no kernel"}})
    found = replay.diff(one, other)
    assert [(each.what, each.after) for each in found.inputs] == [("left out: nccl-ep", "it has no kernel")]


def test_other_code_is_named_where_nothing_else_entered_otherwise(compared):
    one = compared["nothing"]
    results = [
        result.model_copy(
            update={
                "run_id": "other",
                "version": "9.9",
                "totals": result.totals.model_copy(update={"makespan_us": 1.0}),
            }
        )
        for result in one.results
    ]
    found = replay.diff(one, one.model_copy(update={"results": results}))
    assert [each.what for each in found.inputs] == ["version of moereplay"]
    assert "other code" in found.notes[0]
    same_id = [
        new.model_copy(update={"run_id": old.run_id, "version": old.version})
        for new, old in zip(results, one.results, strict=True)
    ]
    found = replay.diff(one, one.model_copy(update={"results": same_id}))
    assert not found.inputs and "changed by hand" in found.notes[0]


# ---- times by cause ------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), list(combinations(["nothing", *CHANGES], 2)))
def test_parts_add_up_to_the_change_and_turn_round_with_it(compared, one, other):
    """To the picosecond."""
    there = replay.diff(compared[one], compared[other])
    back = replay.diff(compared[other], compared[one])
    turned = {each.name: each for each in back.outcomes}
    for each in there.outcomes:
        assert ps(each.change_us) == ps(each.after_us) - ps(each.before_us)
        assert turned[each.name].change_us == -each.change_us
        for parts in (each.by_cause, each.by_phase):
            assert sum(ps(part.before_us) for part in parts) == ps(each.before_us)
            assert sum(ps(part.after_us) for part in parts) == ps(each.after_us)
            assert sum(ps(part.change_us) for part in parts) == ps(each.change_us)
            sizes = [abs(part.change_us) for part in parts]
            assert sizes == sorted(sizes, reverse=True)
    assert {tuple(pair) for pair in there.swapped} == {pair[::-1] for pair in back.swapped}
    assert there.order_before == back.order_after


def test_waiting_behind_others_is_told_apart_from_service(compared):
    for one in replay.diff(compared["nothing"], compared["links"]).outcomes:
        (measures,) = compared["nothing"][one.name].schedules
        path, parts = measures.critical_path, {part.name: part for part in one.by_cause}
        behind = [part.before_us for name, part in parts.items() if name.startswith("queueing ")]
        assert behind and "queueing" not in parts
        assert sum(behind) == pytest.approx(path.by_cause_us["queueing"])
        assert parts["serialisation"].before_us == path.by_cause_us["serialisation"]


def changed(found, scheme, names):
    """Change of some parts of a scheme's time."""
    one = next(one for one in found.outcomes if one.name == scheme)
    return sum(part.change_us for part in one.by_cause if part.name in names), one.change_us


def test_slower_links_cost_time_on_the_wires(compared):
    found = replay.diff(compared["nothing"], compared["links"])
    wires = {"serialisation", "queueing behind serialisation"}
    on_wires, all_of_it = changed(found, "nccl-alltoall", wires)
    assert all_of_it > 0 and on_wires == pytest.approx(all_of_it, rel=0.2)


def test_a_slower_host_costs_overhead_where_the_host_waits(compared):
    found = replay.diff(compared["nothing"], compared["host"])
    overhead, all_of_it = changed(found, "nccl-alltoall", {HOST_WAITS})
    assert all_of_it == overhead == 40 - 15  # it waits once: how many rows will it receive?
    assert changed(found, "deepep-ll", {HOST_WAITS}) == (0, 0)  # no host of it waits


def test_another_input_is_a_difference_even_where_nothing_comes_of_it(compared):
    found = replay.diff(compared["nothing"]["deepep-ll"], compared["host"]["deepep-ll"])
    assert not found.is_same and len(found.inputs) == 1
    assert not found.outcomes[0].change_us and not found.notes


def test_bytes_that_are_fewer_are_named(compared):
    found = replay.diff(compared["nothing"], compared["precision"])
    (one,) = [one for one in found.outcomes if one.name == "deepep"]
    (payload,) = [each for each in one.quantities if each.name == "dispatch payload"]
    assert payload.unit == "bytes" and payload.after < 0.55 * payload.before


def test_who_passes_whom(compared):
    one, times = compared["nothing"], {"deepep": 3.0, "nccl-alltoall": 2.0, "deepep-ll": 1.0}

    def timed(times):
        results = [
            result.model_copy(
                update={"totals": result.totals.model_copy(update={"makespan_us": times[result.scheme.name]})}
            )
            for result in one.results
        ]
        return one.model_copy(update={"results": results})

    found = replay.diff(timed(times), timed(times | {"deepep": 1.5}))
    assert found.order_before == ["deepep-ll", "nccl-alltoall", "deepep"]
    assert found.order_after == ["deepep-ll", "deepep", "nccl-alltoall"]
    assert found.swapped == [("nccl-alltoall", "deepep")]
    text = render(difference_tables(found))
    assert "Order: deepep passes nccl-alltoall." in text
    assert "3 -> 2" in text and "1 -> 1" not in text


# ---- which result belongs to which ---------------------------------------------------------------


def test_schemes_that_one_file_alone_has_are_named(trace, compared):
    fewer = replay.compare(trace, ["deepep", "nvls"], layer=0)
    found = replay.diff(compared["nothing"], fewer)
    assert found.only_before == ["nccl-alltoall", "deepep-ll"] and found.only_after == ["nvls"]
    assert [one.name for one in found.outcomes] == ["deepep"]
    assert not found.is_same


def test_results_of_several_placements_are_told_apart(trace):
    placements = ["contiguous", "round-robin"]
    both = replay.compare(trace, ["deepep"], layer=0, placements=placements)
    found = replay.diff(both, both.model_copy(update={"results": both.results[::-1]}))
    assert {one.name for one in found.outcomes} == {f"deepep, {name}" for name in placements}
    assert all(one.change_us == 0 for one in found.outcomes)


def test_rows_of_two_options_are_told_apart(trace):
    rows = [replay.run(trace, scheme="deepep", layer=0, options={"num_sms": n}) for n in (20, 8)]
    both = replay.Comparison(baseline="deepep (num_sms=20)", results=rows)
    found = replay.diff(both, both.model_copy(update={"results": rows[::-1]}))
    assert {one.name for one in found.outcomes} == {"deepep (num_sms=20)", "deepep (num_sms=8)"}
    assert all(one.change_us == 0 for one in found.outcomes)
    twice = both.model_copy(update={"results": [*rows, rows[0]]})
    assert replay.diff(twice, twice).is_same
    unsaid = replay.diff(both, rows[1])  # its name alone fits two rows: none is taken for it
    assert len(unsaid.only_before) == 2 and unsaid.only_after == ["deepep"]
    assert replay.diff(*rows).outcomes[0].name == "deepep"


def test_rows_of_a_comparison_are_named_as_it_prints_them(trace, tmp_path):
    placements = ["contiguous", "round-robin"]
    both = replay.compare(trace, ["deepep"], layer=0, placements=placements)
    both.save(tmp_path / "both.json")
    words = ["diff", "deepep, contiguous", "deepep, round-robin", str(tmp_path / "both.json")]
    done = CliRunner().invoke(app, [*words, "--html", str(tmp_path / "diff.html")])
    assert done.exit_code == 0, done.output
    assert "placement" in done.output and "round-robin" in done.output
    shown = html.unescape((tmp_path / "diff.html").read_text("utf-8"))
    assert "moereplay diff 'deepep, contiguous' 'deepep, round-robin' " in shown
    for word, said in (
        ("deepep", "'deepep' is the name of 2 rows: write 'deepep, contiguous' or"),
        ("deepep, eplb:8", "unknown scheme 'deepep, eplb:8'"),
    ):
        done = CliRunner().invoke(app, ["diff", word, *words[2:]])
        assert isinstance(done.exception, UserError) and said in str(done.exception)


def test_two_results_are_compared_whatever_their_schemes(compared):
    one, other = compared["nothing"].results[:2]
    found = replay.diff(one, other)
    assert [each.name for each in found.outcomes] == ["deepep -> nccl-alltoall"]
    assert "scheme.name" in {each.what for each in found.inputs}


def test_a_result_and_a_comparison_have_the_scheme_in_common(compared):
    found = replay.diff(compared["nothing"], compared["nothing"]["deepep"])
    assert [each.name for each in found.outcomes] == ["deepep"] and found.outcomes[0].change_us == 0
    assert set(found.only_before) == {"nccl-alltoall", "deepep-ll"}


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(OLD.glob("*.json")), ids=lambda path: path.stem)
def test_files_of_older_schemas_are_read(path, compared):
    assert replay.diff(path, path).is_same
    found = replay.diff(path, compared["nothing"])
    assert not found.is_same
    for one in found.outcomes:
        assert sum(ps(part.change_us) for part in one.by_cause) == ps(one.change_us)


def test_the_json_is_the_difference(tmp_path, compared):
    found = replay.diff(compared["nothing"], compared["links"])
    found.save(tmp_path / "d.json")
    document = json.loads((tmp_path / "d.json").read_text())
    assert document["format"] == "moereplay-difference/1"
    assert Difference.model_validate_json(json.dumps(document)) == found


def test_the_text_has_what_changed_and_no_more(compared):
    text = render(difference_tables(replay.diff(compared["nothing"], compared["host"])))
    assert "system.overheads.host_sync_us  us    15.0    40.0   all" in text
    assert "nccl-alltoall: critical path" in text
    assert "deepep-ll: critical path" not in text


def test_shares_that_change_are_shown_to_their_digits():
    share = QuantityDifference(name="utilisation", unit="", before=0.25, after=0.267)
    sent = QuantityDifference(name="sent", unit="bytes", before=2.5e6, after=3e6)
    (name, before, after), (size, *_) = [
        [column(one) for _, column in quantity_columns("before", "after")] for one in (share, sent)
    ]
    assert (name, before, after, size) == ("utilisation", 0.25, 0.267, "sent (MB)")
    assert share.share_moved == pytest.approx(0.068)
