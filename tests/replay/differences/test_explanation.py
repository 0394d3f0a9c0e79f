"""Two schemes side by side: parts that add up to the difference of their times."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import replay
from replay.errors import UserError
from replay.experiments.base.names import row_names
from replay.experiments.dense.experiment import EXPERIMENT as DENSE
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.layer.tables import tables
from replay.experiments.layer.tables.notes import UNCERTAIN_CALLS
from replay.model.machine.kinds import PHASES
from replay.report.pages import page
from replay.report.text import render
from replay.report.words import WORDS
from replay.schemes import SCHEMES as SHIPPED
from replay.schemes.modules import modules_of
from replay.studies.differences.explanation import Explanation, Share, pick
from replay.studies.differences.explanation_page import (
    code_tables,
    each_gpu_tables,
    explanation_tables,
    fitted_lines,
    overhead_table,
    path_table,
    sentence,
    summary,
    turning,
    uncertain_calls,
    values_table,
)
from replay.studies.differences.gpus import BUSY, COPYING, EXPOSED, LAST, MESSAGES, NOBODY, OTHERS, PARTS
from replay.studies.differences.outcome import numbers_of
from replay.studies.differences.path import (
    BARRIERS,
    BEHIND,
    HOST_WAITS,
    LAUNCHES,
    NO_PHASE,
    NO_SM,
    OF_KERNELS,
    OF_MESSAGES,
    SERVICES,
    STARTS,
    WAITS,
    by_cause,
    by_phase,
    by_phase_and_cause,
)
from replay.studies.differences.sides import ALONE
from tracegen.shared.display.palette import places

OLD = Path(__file__).parents[2] / "data" / "results"
HOST_SYNC = "overheads.host_sync_us"
SCHEMES = ["deepep", "nccl-alltoall", "deepep-ll", "comet"]


@pytest.fixture(scope="module")
def trace(synthetic):
    return synthetic(ranks=4, tokens_per_rank=32)


@pytest.fixture(scope="module", params=["one layer", "two layers", "chain"])
def compared(trace, request):
    layer = 0 if request.param == "one layer" else "all"
    return replay.compare(trace, SCHEMES, layer=layer, barrier=request.param != "chain", stack="bare")


def ps(us):
    return round(us * 1e6)


@pytest.mark.parametrize("one", SCHEMES[:2])
@pytest.mark.parametrize("other", SCHEMES)
def test_parts_add_up_to_both_times_and_to_the_difference(compared, one, other):
    """To the picosecond."""
    found = replay.explain(compared[one], compared[other])
    assert ps(found.one_us) == ps(compared[one].totals.makespan_us)
    assert ps(found.other_us) == ps(compared[other].totals.makespan_us)
    assert ps(found.difference_us) == ps(found.other_us) - ps(found.one_us)
    for parts in (found.path, found.gpus):
        for field in ("one_us", "other_us", "difference_us"):
            total = sum(ps(getattr(part, field)) for part in parts)
            assert total == ps(getattr(found, field)), field


def test_both_sides_turn_round_with_the_question(compared):
    there = replay.explain(compared["deepep"], compared["comet"])
    back = replay.explain(compared["comet"], compared["deepep"])
    turned = {(part.where, part.what): -part.difference_us for part in back.path}
    assert {(part.where, part.what): part.difference_us for part in there.path} == turned
    sizes = [abs(part.difference_us) for part in there.path]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 0


def test_a_scheme_and_itself_have_nothing_to_explain(compared):
    found = replay.explain(compared["deepep"], compared["deepep"])
    assert found.difference_us == 0 and not any(part.difference_us for part in found.path)
    assert not found.quantities and not found.inputs
    assert "the same" in render(explanation_tables(found, details=True))


def test_phases_and_causes_are_two_sums_of_one_thing(compared):
    for result in compared.results:
        both = by_phase_and_cause(result)
        for phase, time in by_phase(result).items():
            assert time == sum(part for (where, _), part in both.items() if where == phase)
        causes, measured = by_cause(result), Counter()
        for path in (one.critical_path for one in result.schedules):
            measured.update({cause: ps(time) for cause, time in path.by_cause_us.items()})
        together = {
            "overhead": SERVICES[3:],
            "queueing": ("queueing", *BEHIND),
            "latency": (OF_MESSAGES, OF_KERNELS),
            "credits": ("credits", NO_SM),
        }
        for cause, time in measured.items():
            assert time == sum(causes.get(name, 0) for name in together.get(cause, (cause,)))


def test_the_mean_gpu_waits_for_what_its_measures_say(compared):
    found = replay.explain(compared["nccl-alltoall"], compared["deepep"])
    parts = {part.where: part for part in found.gpus}
    exposed = sum(parts[what].one_us for what in (COPYING, MESSAGES, OTHERS, NOBODY))
    total = compared["nccl-alltoall"].totals.exposed_communication_us
    assert exposed == pytest.approx(total, abs=1e-4)
    ends = [
        measures.makespan_us - sum(measures.rank_end_us) / len(measures.rank_end_us)
        for measures in compared["deepep"].schedules
    ]
    assert parts["waiting for the last GPU"].other_us == pytest.approx(sum(ends), abs=1e-4)


def test_what_each_gpu_does_adds_up_to_the_time_of_all(compared):
    """Of every GPU, to the picosecond; the mean of the GPUs is the table of one."""
    found = replay.explain(compared["nccl-alltoall"], compared["comet"])
    for name, time_us, mean_of in (("nccl-alltoall", found.one_us, "one_us"), ("comet", found.other_us, "other_us")):
        of = [one for one in found.each_gpu if one.scheme == name]
        assert [one.gpu for one in of] == list(range(4))
        assert all(sum(map(ps, one.parts_us.values())) == ps(time_us) for one in of)
        assert all(time >= 0 for one in of for time in one.parts_us.values())
        for part in found.gpus:
            mean = sum(one.parts_us[part.where] for one in of) / len(of)
            assert getattr(part, mean_of) == pytest.approx(mean, abs=1e-4)
    tables = each_gpu_tables(found)
    assert [len(of.rows) for of in tables] == [4, 4] and all(
        one.unit == "us" for of in tables for one in of.columns[1:]
    )


@pytest.mark.parametrize("one", SCHEMES[:2])
@pytest.mark.parametrize("other", SCHEMES)
def test_the_first_screen_stands_alone_on_forty_lines(compared, one, other):
    found = replay.explain(compared[one], compared[other])
    text = render(explanation_tables(found, details=False), 80)
    assert len(text.splitlines()) <= 40
    assert f"{found.one} takes {found.one_us:,.1f} us" in text and "in all" in text and "--details" in text
    *parts, total = path_table(found, 3).rows
    assert len(parts) <= 4
    for place in (2, 3, 4):
        assert sum(row[place] for row in parts) == pytest.approx(total[place], abs=1e-5)


def test_two_machines_are_told_apart_and_are_one_input(trace):
    one, other = (replay.run(trace, scheme="deepep", layer=0, system=name) for name in ("dgx-h100", "hgx-h20"))
    found = replay.explain(one, other)
    assert (found.one, found.other) == ("deepep (dgx-h100)", "deepep (hgx-h20)")
    text = " ".join(render(explanation_tables(found, details=False)).split())
    assert "Not the scheme alone: the machine (" in text and "system." not in text
    same = replay.explain(one, one)
    assert (same.one, same.other) == ("deepep (1)", "deepep (2)")


def test_the_first_sentence_leaves_out_what_hardly_matters(compared):
    found = replay.explain(compared["nccl-alltoall"], compared["deepep"])
    shares = [
        Share(where="gemm1", what=what, one_us=9, other_us=9, difference_us=by) for what, by in (("a", -99), ("b", 1))
    ]
    said = sentence(found.model_copy(update={"path": shares, "difference_us": -98}))
    assert "a in gemm1 -99.0 us." in said and "Against" not in said


def test_overhead_is_told_by_tasks_and_adds_up(compared):
    found = replay.explain(compared["nccl-alltoall"], compared["deepep"])
    parts = {(part.where, part.what): part for part in found.path}
    for where, what in {(one.where, one.what) for one in found.overhead}:
        of = [one for one in found.overhead if (one.where, one.what) == (where, what)]
        assert sum(ps(one.each_us) * one.one for one in of) == ps(parts[where, what].one_us)
        assert sum(ps(one.each_us) * one.other for one in of) == ps(parts[where, what].other_us)
    gap = next(one for one in found.overhead if one.what == "gaps between kernels")
    assert (gap.where, gap.each_us, gap.key) == (NO_PHASE, 2.0, "overheads.kernel_gap_stream_us")
    assert any(one.key == "overheads.host_sync_us" and one.one for one in found.overhead)


def test_code_of_the_path_and_its_values_add_up(compared):
    """Each scheme's code asked for all of its time; overhead of a value is that of its tasks, not shown ones too."""
    found = replay.explain(compared["nccl-alltoall"], compared["deepep"])
    for name, time_us in (("nccl-alltoall", found.one_us), ("deepep", found.other_us)):
        of = [share for share in found.places if share.scheme == name]
        assert sum(ps(share.time_us) for share in of) == ps(time_us)
        assert all(share.place and share.part_us <= share.time_us for share in of)
    for side in ("one", "other"):
        lengths = [one for one in found.overhead if one.key]
        assert sum(ps(getattr(share, f"{side}_us")) for share in found.values) == sum(
            ps(one.each_us) * getattr(one, side) for one in lengths
        )
    *rows, last = overhead_table(found).rows
    assert last[0] == "all else" and len(rows) < len(found.overhead)
    for place, side in ((3, "one"), (4, "other")):
        assert sum(row[place] for row in (*rows, last)) == sum(getattr(one, side) for one in found.overhead)
    started = {one.key for one in found.overhead if one.what == STARTS}
    assert started and all(key.startswith("nccl.") for key in started)
    assert {one.what for one in found.overhead if one.key == "overheads.small_kernel_us"} == {OF_KERNELS}
    assert found.beside["deepep"]["overheads.poll_pinned_us"] == 2, "its host's wait is hidden"


def test_a_value_turns_the_order_round_as_a_replay_with_it_does(trace):
    """What is said of a value's spread is what replays with its ends say, since both paths stay."""
    names = ("nccl-alltoall", "deepep")
    one, other = (replay.run(trace, scheme=name, layer=0) for name in names)
    found = replay.explain(one, other)
    (share,) = [share for share in found.values if share.key == HOST_SYNC]
    assert (share.value, share.low, share.high, share.says) == (15, 9.2, 30, "low; 9.2 to 30")
    ends = {}
    for value in (share.low, share.high):
        moved = [replay.run(trace, scheme=name, layer=0, overrides={HOST_SYNC: value}) for name in names]
        ends[value] = moved[1].totals.makespan_us - moved[0].totals.makespan_us
        assert share.at(value, found.difference_us) == pytest.approx(ends[value], abs=1e-6)
    said = found.model_copy(update={"difference_us": (ends[9.2] + ends[30]) / -2 + found.difference_us})
    (line,) = turning(said)
    assert "us with 30 for overheads.host_sync_us = 15 (low; 9.2 to 30)" in line
    assert not turning(found.model_copy(update={"difference_us": 1e6}))


def test_a_sum_of_parts_that_nearly_cancel_says_so(compared):
    found = replay.explain(compared["nccl-alltoall"], compared["deepep"])
    gross = sum(abs(part.difference_us) for part in found.path)
    near = found.model_copy(update={"difference_us": gross / 10})
    assert "Parts nearly cancel: +" in sentence(near) and "Most of it" not in sentence(near)
    far = found.model_copy(update={"difference_us": gross / 2})
    assert "Most of it: " in sentence(far) and "nearly cancel" not in sentence(far)


def test_a_service_and_its_queue_are_one_reason(compared):
    """Tiles that wait for SMs are the other half of a GEMM that takes less of them."""
    found = replay.explain(compared["nccl-alltoall"], compared["deepep"])
    for what, queue in (("compute", 7.0), ("copying", -2.0)):
        halves = [
            Share(where="gemm2", what=what, one_us=20, other_us=10, difference_us=-10),
            Share(where="gemm2", what=f"queueing behind {what}", one_us=0, other_us=queue, difference_us=queue),
        ]
        said = sentence(found.model_copy(update={"path": halves, "difference_us": queue - 10}))
        assert f": {what} and its queue in gemm2 {queue - 10:+.1f} us." in said


def test_values_that_were_fitted_are_named_where_they_are_a_large_part(compared):
    found = replay.explain(compared["nccl-alltoall"], compared["deepep"])
    few = found.model_copy(update={"difference_us": 1e4})
    assert not fitted_lines(few), "of the difference, whatever else cancels"
    (line,) = fitted_lines(found)
    assert "overheads.fence_us (+37.2 us)" in line or "overheads.fence_us (+74.4 us)" in line


@pytest.fixture(scope="module")
def apart(synthetic):
    """Schemes whose bytes and launches are not each other's."""
    trace = synthetic(ranks=4, tokens_per_rank=32)
    return replay.compare(trace, ["deepep", "tutel", "nvls"], layer=0, launch="eager", stack="bare")


def test_whose_hosts_launched_each_stands_on_the_first_screen(trace):
    """Calls of extensions, whose costs are uncertain, are the largest cause: a doubt of it, said once."""
    asked = {"layer": 0, "launch": "eager"}
    found = replay.explain(*(replay.run(trace, scheme=name, **asked) for name in ("nvls", "deepep")))
    assert f"Most of it: {LAUNCHES} " in sentence(found)
    (doubt,) = [line for line in summary(found) if UNCERTAIN_CALLS[1:] in line]
    assert doubt.startswith(f"Of {LAUNCHES}: ")
    whose = "nvls was launched by megatron-inference, deepep by vllm."
    for details in (False, True):
        text = " ".join(render(explanation_tables(found, details=details)).split())
        assert whose in text and text.count(UNCERTAIN_CALLS[1:]) == 1
        for name, stack in (("nvls", "megatron-inference"), ("deepep", "vllm")):
            assert f"Launched kernel by kernel by hosts of {stack}: {name}." in text


def test_two_ways_to_launch_one_scheme_are_told_by_their_hosts(trace):
    bare, practice = (replay.run(trace, scheme="deepep", layer=0, stack=stack) for stack in ("bare", "practice"))
    found = replay.explain(bare, practice)
    assert (found.one, found.other) == ("deepep (bare hosts)", "deepep (vllm)")
    assert uncertain_calls(found) and not uncertain_calls(replay.explain(practice, practice))


def test_a_row_of_launches_is_as_many_of_one(apart):
    found = replay.explain(apart["deepep"], apart["tutel"])
    launches = [one for one in found.overhead if one.key == "overheads.launch_us"]
    assert [one.each_us for one in launches if one.each_us % 4.5 == 0] == [4.5]
    assert next(one for one in launches if one.each_us == 4.5).other > 2, "among them a row"


def test_bytes_that_multicast_multiplies_are_told_by_their_way(apart):
    payload = {one.name: one for one in replay.explain(apart["deepep"], apart["nvls"]).quantities}
    leaving, reaching = (payload[f"dispatch payload, {way} GPUs"] for way in ("leaving", "reaching"))
    assert leaving.before == reaching.before and reaching.after == 4 * leaving.after
    names = {one.name for one in replay.explain(apart["deepep"], apart["tutel"]).quantities}
    assert "dispatch payload" in names and not any("GPUs" in name and "payload" in name for name in names)


def test_the_schemes_and_what_nobody_measured_of_them_are_told(apart):
    found = replay.explain(apart["tutel"], apart["nvls"])
    first, second, _ = found.about
    assert first.startswith("tutel: Tutel: equal capacity") and " rows of padding." in first
    assert "; moves every token to every GPU, its own included. It loses with many tokens" in second
    unmeasured, sure = found.sure
    assert "of how nvls communicates" in unmeasured and "`--scheme tutel --scheme nvls --uncertainty 20`" in sure


def test_tables_of_values_and_code_add_up_to_the_times(apart):
    found = replay.explain(apart["deepep"], apart["tutel"])
    for of in (values_table(found), *code_tables(found)):
        *parts, total = of.rows
        numbers = [place for place, cell in enumerate(total) if isinstance(cell, float)]
        for place in numbers:
            assert sum(row[place] for row in parts) == pytest.approx(total[place], abs=1e-5)
        assert (total[0], len(numbers)) == ("in all", 3 if of.name == "values" else 1)
    joined = [row[0] for row in values_table(found.model_copy(update={"values": found.values[::-1]})).rows]
    assert "overheads.barrier_base_ns (medium), barrier_per_peer_ns (low)" in joined


def older_than(result):
    document = json.loads(result.model_dump_json(by_alias=True))
    for part in [*document["layers"], document["chain"]]:
        if part is not None and "measures" in part:
            for name in ("copying_us", "gaps_us", "launches_us"):
                del part["measures"]["exposure"][name]
            for name in ("overhead", "behind_by_kind_us", "latencies", "by_place_us", "beside"):
                del part["measures"]["critical_path"][name]
    return Result.model_validate(document)


def test_an_older_version_of_a_result_is_the_same_result(compared):
    """What one side alone tells apart is no difference."""
    result = compared["nccl-alltoall"]
    older = older_than(result)
    for one, other in ((older, result), (result, older)):
        found, listed = replay.explain(one, other), replay.diff(one, other)
        assert not any(part.difference_us for part in (*found.path, *found.gpus)) and not found.overhead
        assert listed.is_same and not listed.notes
        (outcome,) = listed.outcomes
        assert not any(part.change_us for part in (*outcome.by_cause, *outcome.by_phase))
    assert by_cause(older) == without_host_waits(by_cause(result)), "queueing is told apart by cause"
    assert result.schedules[0].critical_path.overhead, "what was given is as it was"


def without_host_waits(causes):
    apart = (HOST_WAITS, STARTS)
    barriers = causes.get(BARRIERS, 0) + sum(causes.get(cause, 0) for cause in apart)
    return {cause: time for cause, time in {**causes, BARRIERS: barriers}.items() if time and cause not in apart}


def test_a_file_of_an_older_version_has_no_part_for_what_it_does_not_tell(trace):
    old = replay.load_result(OLD / "layer-1.json")
    found = replay.explain(old, replay.run(trace, scheme=old.scheme.name, layer=0))
    assert {EXPOSED} < {part.where for part in found.gpus} < {BUSY, EXPOSED, LAST, ""}
    assert "queueing" in {part.what for part in found.path} and not found.overhead


def test_two_choices_of_one_scheme_are_told_by_their_rows(trace):
    one, other = (replay.run(trace, scheme="comet", layer=0, placement=name) for name in ("contiguous", "round-robin"))
    chosen = [note.partition(": chose")[0] for note in replay.explain(one, other).notes if ": chose" in note]
    assert chosen == ["comet, contiguous", "comet, round-robin"]


def test_a_result_of_an_older_version_is_explained_by_what_it_says(compared):
    """Hosts' waits are among barriers, queueing is one, and rows on their way are not told apart."""
    older = older_than(compared["nccl-alltoall"])
    found = replay.explain(older, older)
    assert {"queueing", "barriers and flags"} <= {part.what for part in found.path}
    assert HOST_WAITS not in {part.what for part in found.path} and not found.overhead
    assert sum(ps(part.one_us) for part in found.path) == ps(found.one_us)
    assert "waiting for rows on their way" in {part.where for part in found.gpus}


def test_what_was_replayed_is_said_as_the_comparison_says_it(compared):
    found = replay.explain(compared["deepep"], compared["comet"])
    text, said = (
        " ".join(render(one).split())
        for one in (explanation_tables(found, details=True), tables(compared, details=False))
    )
    for line in (*found.heading, *found.notes[:1]):
        assert line in text and line in said
    (chosen,) = [note for note in found.notes if "comet: chose" in note]
    assert "dispatch_sms=" in chosen and chosen.endswith("tried.")
    for name in ("deepep", "comet"):
        own = set(found.code[name]) & set(modules_of(SHIPPED[name]))
        assert own and not any("internode" in file for file in own), "one node has no code of several"
        assert {one.place.partition(": ")[0] for one in found.places if one.scheme == name} == set(found.code[name])


def test_rows_cover_most_of_both_times_and_of_the_difference(compared):
    found = replay.explain(compared["deepep"], compared["comet"])
    rows = {tuple(row[:2]) for row in path_table(found).rows}
    for of in ("one_us", "other_us", "difference_us"):
        seen = sum(abs(getattr(part, of)) for part in found.path if (part.where, part.what) in rows)
        assert seen >= 0.9 * sum(abs(getattr(part, of)) for part in found.path)


def test_every_row_has_a_word():
    phases = [*PHASES, *DENSE.phases.values()]
    assert {f"{phase} phase" for phase in phases} | {NO_PHASE, ALONE} <= WORDS.keys()
    assert {*SERVICES, *WAITS, *PARTS} - {EXPOSED} <= WORDS.keys()


def test_every_quantity_has_a_word(compared):
    counters = {name for one in compared.results for each in one.schedules for name in each.mechanisms.counters}
    names = {name for one in compared.results for name, _ in numbers_of(one)} - counters
    assert names | {"all else", "in all"} <= WORDS.keys()


def test_a_slower_host_is_found_where_the_host_waits(trace):
    """DeepEP's host waits once for the counts: nothing else of its path changes."""
    one, slow = (
        replay.run(trace, scheme="nccl-alltoall", layer=0, overrides=overrides)
        for overrides in ({}, {"overheads.host_sync_us": 40.0})
    )
    found = replay.explain(one, slow)
    (part,) = [part for part in found.path if part.difference_us]
    assert part.what == HOST_WAITS and part.difference_us == found.difference_us == 40 - 15
    assert part.where != NO_PHASE
    assert [each.what for each in found.inputs] == ["system.overheads.host_sync_us"]
    assert not found.values or all(share.low is None for share in found.values if share.key == HOST_SYNC)
    assert "Not the scheme alone: system.overheads.host_sync_us" in render(explanation_tables(found, details=True))


def test_one_scheme_with_two_options_is_told_apart(trace):
    one, other = (replay.run(trace, scheme="deepep", layer=0, options={"num_sms": number}) for number in (20, 8))
    found = replay.explain(one, other)
    assert (found.one, found.other) == ("deepep (num_sms=20)", "deepep (num_sms=8)")
    assert not found.inputs


def test_phases_are_said_of_one_layer_by_itself(compared):
    found = replay.explain(compared["deepep"], compared["comet"])
    alone = len(compared["deepep"].layers) == 1 and compared["deepep"].chain is None
    assert bool(found.phases) is alone
    for span in found.phases:
        measured = compared["comet"].layers[0].measures.phases.get(span.phase)
        assert span.other_us == (measured and (measured.start_us, measured.end_us))


def test_the_first_table_adds_up_as_it_stands(compared):
    table = path_table(replay.explain(compared["nccl-alltoall"], compared["deepep-ll"]))
    *parts, total = table.rows
    for place in (2, 3, 4):
        assert sum(row[place] for row in parts) == pytest.approx(total[place], abs=1e-5)


def test_a_file_of_several_results_is_asked_for_two(compared, tmp_path):
    compared.save(tmp_path / "several.json")
    with pytest.raises(UserError, match="name two of its schemes: deepep, nccl-alltoall"):
        replay.explain(tmp_path / "several.json", compared["comet"])
    assert pick(compared, "comet") is compared["comet"]
    with pytest.raises(UserError, match="deepep"):
        pick(compared, "deepep-l")
    gone = compared.model_copy(update={"left_out": {"nvls": "scheme 'nvls' has no kernel"}})
    with pytest.raises(UserError, match="has no kernel"):
        pick(gone, "nvls")


def test_other_layers_are_refused(trace):
    one = replay.run(trace, scheme="deepep", layer=0)
    both = replay.run(trace, scheme="deepep", layer="all", barrier=True)
    with pytest.raises(UserError, match="1 and 2 layers"):
        replay.explain(one, both)


def test_the_json_is_the_explanation(compared, tmp_path):
    found = replay.explain(compared["deepep"], compared["comet"])
    found.save(tmp_path / "e.json")
    assert Explanation.model_validate(json.loads((tmp_path / "e.json").read_text())) == found


def test_the_page_leads_from_one_time_to_the_other(compared):
    found = replay.explain(compared["nccl-alltoall"], compared["comet"])
    (waterfall, bars) = page(found).charts()
    first, *steps, last = waterfall.spans
    assert (first.end, last.end) == (found.one_us, found.other_us)
    at = first.end
    for span in steps:
        assert span.start == pytest.approx(at, abs=1e-9)
        at = span.end
    assert at == pytest.approx(last.end, abs=1e-6)
    for place, total in enumerate((found.one_us, found.other_us)):
        assert sum(part.values[place] for part in bars.parts) == pytest.approx(total, abs=1e-5)


def test_time_that_is_saved_has_one_colour_whichever_step_comes_first(compared):
    there = page(replay.explain(compared["nccl-alltoall"], compared["comet"]))
    back = page(replay.explain(compared["comet"], compared["nccl-alltoall"]))
    colours = [[places(each)[kind] for kind in ("longer", "shorter")] for each in (there, back)]
    assert colours[0] == colours[1] and len(set(colours[0])) == 2


@pytest.mark.extended
def test_rows_are_named_as_the_comparison_prints_them(trace, tmp_path):
    """With placements, options and a map's file; a name that fits two rows is refused."""
    placed = replay.compare(
        trace,
        ["deepep", "comet"],
        layer=0,
        placements=["contiguous", "round-robin"],
        baseline="deepep, round-robin",
    )
    names = row_names(placed.results, marked=False)
    assert names[:2] == ["deepep, contiguous", "deepep, round-robin"]
    for name, printed, result in zip(names, row_names(placed.results), placed.results, strict=True):
        assert pick(placed, name) is pick(placed, printed) is placed[name] is result
    found = replay.explain(*(pick(placed, name) for name in names[:2]))
    assert (found.one, found.other) == tuple(names[:2])
    assert (found.one_us, found.other_us) == tuple(pytest.approx(one.totals.makespan_us) for one in placed.results[:2])
    said = "'deepep' is the name of 2 rows: write 'deepep, contiguous' or 'deepep, round-robin'"
    with pytest.raises(UserError, match=said):
        pick(placed, "deepep")
    with pytest.raises(KeyError, match=said):
        placed["deepep"]
    with pytest.raises(UserError, match=r"unknown scheme 'comet, eplb'.*known: 'comet, contig"):
        pick(placed, "comet, eplb")
    # Speed-ups are over the row that was named, and say so.
    assert placed.base is placed.results[1]
    assert "over deepep, round-robin" in replay.summary(placed)
    assert "over deepep, contiguous" in replay.summary(placed.model_copy(update={"baseline": "deepep"}))
    with pytest.raises(UserError, match="unknown baseline 'deepep, eplb'"):
        replay.compare(trace, ["deepep"], layer=0, placements=["contiguous", "round-robin"], baseline="deepep, eplb")
    placed.save(tmp_path / "placed.json")
    document = json.loads((tmp_path / "placed.json").read_text())
    document["baseline"] = "nvls"
    (tmp_path / "placed.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="baseline 'nvls' is none of") as refusal:
        replay.load_result(tmp_path / "placed.json")
    assert len(str(refusal.value).splitlines()) == 1
    # Two of one scheme and placement.
    several = [replay.run(trace, scheme="deepep", layer=0, options={"num_sms": number}) for number in (20, 8)]
    both = Comparison(baseline="deepep", results=several)
    assert row_names(both.results) == ["deepep (num_sms=20)", "deepep (num_sms=8)"]
    assert pick(both, "deepep (num_sms=8)") is several[1]
    with pytest.raises(UserError, match="is the name of 2 rows"):
        pick(both, "deepep")
