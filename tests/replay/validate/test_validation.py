"""Every table must stay within its bounds, and VALIDATION.md must show the present errors."""

import dataclasses
import itertools
import json
import math
import re
from collections import defaultdict
from functools import cache
from importlib import resources

import networkx as nx
import numpy as np
import pytest
from command_line import end_of
from long_tables import by_length, is_long, kind_of, spread_rows

from replay.errors import UserError
from replay.studies.validate import custom_allreduce, report, validate
from replay.studies.validate.bench import Bench, even_work, uniform_work
from replay.studies.validate.catalog import TABLES, of_system
from replay.studies.validate.compute import gemm_outliers
from replay.studies.validate.page import page
from replay.studies.validate.table import EVERY, Bound, MeasurementRow, MeasurementTable, Outcome, WorkKind, predict
from replay.studies.validate.validation_file import SavedValidation

MOST_TOKENS = 512
SOME_ROWS = 25  # of the cheap rows of a table, or a few more: its parts still have theirs
FEW_ROWS = 8
LONGEST_ROWS = ("moe_deepgemm", "moe_skewed", "moe_ungated", "one_gpu_steps")
SLOW = ("cann_ep_normal", "fused_layers", "hybrid_ep", "hybrid_ep_internode", "nccl_bus_bandwidth")
"""Tables with few rows, most of them of large layers: all are predicted before a release (costly.txt)."""


def cheap(row):
    if row.table in ("hybrid_ep", "deepep_v2"):  # none has few tokens
        return row["num_gpus"] == 8
    if row.table == "hybrid_ep_internode":
        return row["num_gpus"] == 16 and row["num_sms"] == 16 and row["phase"] == "combine"
    if row.table == "cann_ep_normal":
        return row["ep_size"] == 8
    if row.table == "nccl_bus_bandwidth":  # nearly all are 8 GiB on many GPUs
        is_short = row["collective"] == "all_gather" or row["bytes"] <= 1 << 30
        return row["num_gpus"] == 4 or is_short
    return row.setting.get("tokens_per_rank", 0) <= MOST_TOKENS


@cache
def on_cheap_rows(name):
    """Predictions of some cheap rows of a table: one run for all wrong constants that it must notice."""
    rows = [row for row in TABLES[name].rows() if cheap(row)]
    some = FEW_ROWS if name in LONGEST_ROWS else SOME_ROWS
    return predict(TABLES[name], Bench(), rows[:: max(1, len(rows) // some)])


def lines_between(text, name="errors"):
    """Lines between the marks of a table."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0].splitlines()


def documented_lines(name="errors"):
    """Lines of a table in VALIDATION.md."""
    return lines_between((resources.files("replay.studies.validate") / "VALIDATION.md").read_text("utf-8"), name)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", by_length({name: [name] for name in TABLES}))
def test_all_rows_stay_within_the_bound_and_are_documented(name, predicted):
    """Where this fails: `moereplay validate --markdown` prints the table for VALIDATION.md."""
    outcome = predicted(name)
    assert documented(outcome) == report.error_rows([outcome])


def documented(outcome):
    """Cells of a table in VALIDATION.md, once its bounds are seen to hold."""
    for bound, numbers, held in outcome.checks():
        if not numbers["count"]:
            continue
        assert held, bound.name
        assert abs(numbers["bias"]) <= bound.mape_percent, bound.name
    return documented_of(outcome.table.name)


def documented_of(name):
    """Cells of a table in VALIDATION.md."""
    # Markdown has a backslash before what would mean something to it.
    lines = [cells(line.replace("\\", "")) for line in documented_lines()]
    return [line for line in lines if line[0] == name]


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if is_long(table) or name in SLOW])
def test_rows_of_every_part_machine_and_kind_are_off_as_documented(name):
    """Some rows of a long or slow table; their mean may be above that of all, not above 95 % of all."""
    table = TABLES[name]
    rows = [row for row in table.rows() if cheap(row)] if name in SLOW else spread_rows(table)
    outcome = predict(table, Bench(), rows)
    p95 = {line[1]: float(line[5]) for line in documented_of(name) if line[5] != "-"}
    for bound, numbers, _ in outcome.checks():
        if numbers["count"]:
            assert numbers["mean"] <= max(bound.mape_percent, p95[bound.name]), bound.name


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if is_long(table)])
def test_rows_that_are_looked_at_are_of_every_part_machine_and_kind(name):
    table = TABLES[name]
    chosen = spread_rows(table)
    assert {kind_of(table, row) for row in chosen} == {kind_of(table, row) for row in table.rows()}
    assert len(chosen) < len(table.rows()) and len(set(chosen)) == len(chosen)


@pytest.mark.release
def test_each_row_of_a_fused_layer_is_within_15_percent(predicted):
    errors = predicted("fused_layers").errors_percent
    assert len(errors) == 14
    assert np.abs(errors).max() < 15


def unpredicted():
    """Outcomes of all tables, without predicting anything."""
    return [
        Outcome(table, table.rows(), np.ones(len(table.rows())), out)
        for table in TABLES.values()
        for out in [np.array((table.is_outlier or (lambda rows: [False] * len(rows)))(table.rows()))]
    ]


def test_the_documented_table_has_every_part_in_the_command_s_form():
    """Numbers of rows and bounds, of all tables."""
    exact = {0, 1, 2, 7}  # table, part, rows, bound; the other columns need predictions
    wanted = lines_between(report.markdown_tables(unpredicted()))
    assert cells(documented_lines()[0]) == cells(wanted[0])
    assert len(documented_lines()) == len(wanted)
    for line, other in zip(documented_lines()[2:], wanted[2:], strict=True):
        found, expected = cells(line), cells(other)
        assert [found[i] for i in exact] == [expected[i] for i in exact]


def machine_errors(lines):
    """(machine, kind of work) to mean, 95th percentile and number of rows, as a table has them."""
    headings = cells(lines[0])
    return {
        (machine, kind): tuple(map(float, re.fullmatch(r"(\S+) / (\S+) \\?\((\d+)\\?\)", text).groups()))
        for machine, *texts in map(cells, lines[2:])
        for kind, text in zip(headings[1:], texts, strict=True)
        if text != "-"
    }


def test_documented_errors_of_machines_follow_from_those_of_the_documented_parts():
    """As many rows in every cell, and as large a sum of errors in all cells that share parts."""
    found = machine_errors(documented_lines("machines"))
    wanted = machine_errors(lines_between(report.markdown_tables(unpredicted()), "machines"))
    assert {cell: one[2] for cell, one in found.items()} == {cell: one[2] for cell, one in wanted.items()}
    shared, sums = nx.Graph(), defaultdict(float)
    for table, name, count, mean, *_ in map(cells, (line.replace("\\", "") for line in documented_lines()[2:])):
        (holds,) = (bound.holds for bound in TABLES[table].bounds if bound.name == name)
        of = {TABLES[table].cell(row) for row in TABLES[table].rows() if holds(row)} - {None}
        nx.add_path(shared, sorted(of))
        if of:
            sums[min(of)] += int(count) * float(mean)
    assert set(shared) == set(found)
    for group in nx.connected_components(shared):
        rows = sum(found[cell][2] for cell in group)
        mean = sum(found[cell][0] * found[cell][2] for cell in group) / rows
        assert mean == pytest.approx(sum(sums[cell] for cell in group) / rows, abs=0.1), group  # both are rounded


def test_errors_of_a_machine_and_kind_by_hand():
    def row(system, size, measured):
        return MeasurementRow("t", 2, {"system": system, "size": size}, measured)

    rows = (row("a", 1, 100.0), row("a-ib", 9, 100.0), row("b", 1, 200.0), row("a", 1, 100.0), row("a", 1, 100.0))

    def kind(row):
        return WorkKind.ROWS_BETWEEN if row["size"] > 8 else WorkKind.ROWS

    table = MeasurementTable(
        "t", "t", "size", (Bound("all", 50, EVERY),), lambda *_: 0.0, systems=("a", "b"), kind=kind
    )
    first = Outcome(table, rows, np.array([110.0, 70.0, 150.0, 80.0, 900.0]), np.array([False] * 4 + [True]))
    rates = dataclasses.replace(table, name="rates", measured="bus_GB_per_s", kind=WorkKind.ROWS)
    second = Outcome(rates, rows[:1], np.array([130.0]), np.zeros(1, bool))
    nothing = Outcome(
        dataclasses.replace(table, name="counts", kind=None), rows[:1], np.array([900.0]), np.zeros(1, bool)
    )
    found = report.machine_cells([first, second, nothing])
    assert [(one["machine"], one["kind"], one["count"]) for one in found] == [
        ("a", "rows of experts, one domain", 3),
        ("a", "rows of experts, several nodes", 1),
        ("b", "rows of experts, one domain", 1),
    ]
    assert [one["mean"] for one in found] == pytest.approx([(10 + 20 + 30) / 3, 30, 25])
    assert [one["bias"] for one in found] == pytest.approx([(10 - 20 - 30) / 3, -30, -25])
    assert found[0]["p95"] == pytest.approx(29)
    (shown,) = report.machine_tables(found)
    assert shown.texts() == [["a", "20.0 / 29.0 (3)", "30.0 / 30.0 (1)"], ["b", "25.0 / 25.0 (1)", "-"]]
    assert not report.machine_tables(report.machine_cells([nothing]))
    saved = SavedValidation.model_validate(json.loads(json.dumps(report.as_json([first, second, nothing]))))
    assert [one.model_dump() for one in saved.machines] == found
    assert next(iter(page(saved).sections[0].items)) == shown


def test_every_time_is_of_one_machine_and_kind_and_no_count_of_bytes():
    seen = set()
    for table in TABLES.values():
        found = {table.cell(row) for row in table.rows()}
        assert (None in found) == (table.unit == "bytes"), table.name
        assert {cell[0] for cell in found - {None}} <= set(table.systems), table.name
        seen |= {cell[1] for cell in found - {None}}
    assert seen == set(WorkKind)


def test_the_tables_are_the_published_ones():
    counts = {name: len(table.rows()) for name, table in TABLES.items()}
    assert counts == {
        "links": 18,
        "nccl_collectives": 252,
        "nccl_bus_bandwidth": 25,
        "nccl_collectives_b200": 168,
        "custom_allreduce": 207,
        "deepep_normal": 1380,
        "symmetric_memory": 93,
        "in_switch": 92,
        "deepep_normal_b200": 1656,
        "deepep_low_latency_b200": 132,
        "deepep_v2": 4,
        "hybrid_ep": 33,
        "hybrid_ep_internode": 27,
        "nccl_ep": 8,
        "trtllm_alltoall": 240,
        "deepep_low_latency": 66,
        "deepep_internode": 276,
        "deepep_internode_notify": 276,
        "deepep_low_latency_internode": 52,
        "gemm": 1554,
        "gemm_few_tiles": 488,
        "moe_compute": 891,
        "gemm_short_k": 222,
        "gemm_machines": 518,
        "moe_machines": 108,
        "moe_ungated": 162,
        "moe_skewed": 405,
        "moe_deepgemm": 188,
        "ccfuser": 32,
        "fused_layers": 14,
        "fused_kernel": 22,
        "decode_ledger": 18,
        "tile_order": 470,
        "tile_order_bytes": 470,
        "tileops": 2,
        "tileops_bytes": 1,
        "cann_ep": 11,
        "cann_ep_normal": 11,
        "ascend_gemm": 6,
        "operand_gemms": 120,
        "one_gpu_steps": 48,
        "attention": 65,
        "mori_ep": 147,
    }
    row = TABLES["deepep_normal"].rows()[0]
    assert row.line == 2 and row["hidden"] == 2048 and row.measured == 25.29


def test_parts_of_a_table_do_not_overlap_and_cover_it():
    for table in TABLES.values():
        for row in table.rows():
            assert sum(bound.holds(row) for bound in table.bounds) == 1, (table.name, row)


CONSTANTS = [
    ("links", {"link.efficiency": 0.85}),
    ("nccl_collectives", {"link.links_per_gpu": 9}),
    ("custom_allreduce", {"overheads.barrier_base_ns": 0.0}),
    ("symmetric_memory", {"switch.multimem_efficiency": 0.5}),
    ("in_switch", {"switch.multicast_release_ns": 0.0}),
    ("deepep_normal", {"overheads.fence_us": 0.0}),
    ("deepep_low_latency_b200", {"warp.release_ns": 0.0}),
    ("deepep_low_latency_b200", {"warp.choice_ns": 1000.0}),
    ("deepep_low_latency_b200", {"gpu.sm_push_GB_per_s": 10.0}),
    ("deepep_low_latency", {"link.scatter_efficiency": 0.3}),
    ("nccl_ep", {"nic.efficiency": 0.5}),
    ("deepep_internode", {"warp.bulk_ns": 40.0}),
    ("deepep_internode_notify", {"nic.post_ns": 0.0}),
    ("deepep_v2", {"gpu.sm_push_GB_per_s": 8.0}),
    ("trtllm_alltoall", {"link.bulk_scatter_efficiency": 0.3}),
    ("moe_compute", {"hbm.stream_efficiency": 0.5}),
    ("gemm", {"compute.fp8_absent_row_ns": 12.0}),
    ("gemm_few_tiles", {"overheads.small_kernel_us": 4.0}),
    ("moe_skewed", {"compute.bf16_grouped_efficiency": 0.3}),
    ("gemm_short_k", {"hbm.write_efficiency": 0.2}),
    ("gemm_machines", {"compute.fp8_efficiency": 0.3}),
    ("moe_machines", {"hbm.stream_efficiency": 0.4}),
    ("moe_ungated", {"compute.bf16_grouped_efficiency": 0.3}),
    ("ccfuser", {"compute.shared_bytes_per_clock": 40.0}),
    ("fused_layers", {"hbm.stream_efficiency": 0.5}),
    ("fused_kernel", {"hbm.stream_efficiency": 0.5}),
    ("links", {"link.fan_out_efficiency": 0.3}),
    ("mori_ep", {"link.efficiency": 0.5}),
    ("mori_ep", {"overheads.barrier_base_ns": 0.0}),
    ("nccl_collectives_b200", {"overheads.poll_ns": 0.0}),
    ("decode_ledger", {"switch.multimem_efficiency": 0.2}),
    ("in_switch", {"gpu.remote_read_access_ns": 3000.0}),
    ("in_switch", {"switch.merge_ns": 2000.0}),
    ("deepep_normal", {"warp.round_ns": 1200.0}),
    ("deepep_normal_b200", {"warp.round_ns": 1200.0}),
    ("deepep_normal_b200", {"overheads.fence_us": 0.0}),
    ("deepep_internode", {"hbm.latency_ns": 900.0}),
    ("deepep_internode_notify", {"overheads.fence_us": 0.0}),
    ("deepep_low_latency_internode", {"nic.efficiency": 0.5}),
    ("moe_skewed", {"hbm.stream_efficiency": 0.5}),
    ("moe_deepgemm", {"hbm.stream_efficiency": 0.5}),
    ("moe_deepgemm", {"compute.fp8_efficiency": 0.5}),
    ("one_gpu_steps", {"host.speed": 1000.0}),
    ("one_gpu_steps", {"overheads.kernel_gap_graph_us": 0.0}),
]


@pytest.mark.extended
@pytest.mark.parametrize(("table", "change"), CONSTANTS)
def test_a_wrong_constant_is_noticed(table, change):
    right = on_cheap_rows(table)
    wrong = predict(TABLES[table], Bench(change), right.rows)
    assert sum(numbers.get("mean", 0) for _, numbers, _ in wrong.checks()) > 1.15 * sum(
        numbers.get("mean", 0) for _, numbers, _ in right.checks()
    )


@pytest.mark.parametrize("kernel", ["attention", "all-gather"])
def test_a_kernel_of_the_ledger_has_the_gap_before_it_but_what_is_nobody_s(kernel):
    row = next(row for row in TABLES["decode_ledger"].rows() if row["kernel"] == kernel and row["engine"] == "megatron")

    def predicted(gap_us):
        return predict(TABLES["decode_ledger"], Bench({"overheads.kernel_gap_graph_us": gap_us}), [row]).predicted[0]

    # Of a node the profile counts 0.5 us as gap.
    assert predicted(1.2) - predicted(0.5) == pytest.approx(0.7)
    assert predicted(0.5) == predicted(0.2)


def test_queries_keys_and_values_of_the_ledger_have_a_norm_before_them():
    rows = [row for row in TABLES["decode_ledger"].rows() if row["kernel"] in ("queries keys values", "output")]
    found = [
        predict(TABLES["decode_ledger"], Bench({"overheads.small_kernel_us": small_us}), rows).predicted
        for small_us in (1.4, 2.4)
    ]
    # The other product is cut into slices, whose sums are a kernel, too.
    assert np.subtract(*found[::-1]) == pytest.approx([1, 1])
    gapped = predict(TABLES["decode_ledger"], Bench({"overheads.kernel_gap_graph_us": 2.2}), rows).predicted
    assert np.subtract(gapped, found[0]) == pytest.approx([2, 2])  # before each of two kernels


def test_events_add_to_a_kernel_of_the_ledger():
    rows = [
        row for row in TABLES["decode_ledger"].rows() if row["kernel"] == "all-gather" and row["engine"] == "megatron"
    ]
    assert [row["trace"] for row in rows] == ["events", "clean"]
    by_events, clean = predict(TABLES["decode_ledger"], Bench(), rows).predicted
    assert by_events - clean == pytest.approx(2.89)


def test_an_empty_kernel_of_the_ledger_is_the_gap():
    row = next(row for row in TABLES["decode_ledger"].rows() if row["kernel"] == "empty kernel")
    found = [
        predict(TABLES["decode_ledger"], Bench({"overheads.kernel_gap_graph_us": gap_us}), [row]).predicted[0]
        for gap_us in (1.2, 0.0001)
    ]
    assert found == pytest.approx([1.2, 0.0001])


def made_up(measured, predicted, left_out=None):
    rows = tuple(MeasurementRow("made-up", i + 2, {"bytes": i + 1}, m) for i, m in enumerate(measured))
    table = MeasurementTable("made-up", "made up", "bytes", (), lambda bench, row: 0.0)
    out = np.zeros(len(rows), bool) if left_out is None else np.array(left_out)
    return Outcome(table, rows, np.array(predicted, float), out)


def test_statistics_by_hand():
    outcome = made_up([100, 100, 200, 50], [110, 80, 200, 500], [False, False, False, True])
    numbers = outcome.statistics(outcome.part(lambda row: True))
    assert numbers["count"] == 3
    assert numbers["mean"] == pytest.approx(10)
    assert numbers["median"] == pytest.approx(10)
    assert numbers["bias"] == pytest.approx(-10 / 3)
    assert outcome.worst(2) == [1, 0]
    assert outcome.statistics(outcome.part(lambda row: False)) == {"count": 0}


def test_a_negative_error_is_too_fast_in_tables_of_rates_as_well():
    bounds = (Bound("all", 50, EVERY),)
    table = MeasurementTable("rates", "rates", "bytes", bounds, lambda bench, row: 0.0, measured="bus_GB_per_s")
    outcome = Outcome(table, (MeasurementRow("rates", 2, {"bytes": 1}, 100.0),), np.array([110.0]), np.zeros(1, bool))
    assert outcome.errors_percent == pytest.approx([-10])
    document = json.loads(json.dumps(report.as_json([outcome])))
    older = json.loads(json.dumps(document))
    older["tables"][0]["rows"][0]["error_percent"] = 10.0
    older["tables"][0]["parts"][0]["bias"] = 10.0
    present = SavedValidation.model_validate(document)
    assert present.tables[0].rows[0].error_percent == -10.0
    assert SavedValidation.model_validate(older).tables[0].parts[0].bias == -10.0
    assert SavedValidation.model_validate(older).tables[0].rows == present.tables[0].rows


def test_outliers_are_named_by_the_measurements_alone():
    def row(m, time):
        return MeasurementRow("gemm", m, {"library": "x", "gemm_dtype": "y", "n": 1, "k": 1, "m": m}, time)

    rows = [row(1, 10.0), row(2, 30.0), row(4, 12.0), row(8, 40.0)]
    assert gemm_outliers(rows) == [False, True, False, False]


def test_even_routing_is_even_and_has_the_distribution_of_the_random_one():
    even, drawn = even_work(8, 256, 256, 8, 7168), uniform_work(8, 4096, 256, 8, 7168)
    counts = np.bincount(even.copy_rank, minlength=8)
    assert counts.max() == counts.min()
    per_token = [len(work.copy_token) / work.num_tokens for work in (even, drawn)]
    expected = 8 * (1 - math.comb(224, 8) / math.comb(256, 8))
    assert per_token == pytest.approx([expected, expected], rel=0.01)


def test_charts_show_every_row_as_it_is_saved():
    (outcome,) = validate(["links"])
    saved = SavedValidation.model_validate(json.loads(json.dumps(report.as_json([outcome]))))
    shown = page([outcome])
    assert shown == page(saved)
    for chart in shown.charts():
        guide, points = chart.lines
        assert guide.form == "guide"
        assert len(points.x) == len(points.y) == len(outcome.rows)
    predicted = next(one for one in shown.charts() if one.name == "links-predicted")
    assert list(predicted.lines[1].x) == [row.measured for row in outcome.rows]
    assert list(predicted.lines[1].y) == pytest.approx(list(outcome.predicted), abs=1e-4)


def test_of_many_rows_those_that_are_furthest_off_are_drawn(monkeypatch):
    monkeypatch.setattr("replay.studies.validate.page.MOST_POINTS", 9)
    (outcome,) = validate(["links"])
    chart = next(iter(page([outcome]).charts()))
    assert chart.says == "8 of 18 rows are drawn."
    for index in outcome.worst(3):
        assert outcome.rows[index].measured in chart.lines[1].x


def test_json_holds_every_row():
    document = json.loads(json.dumps(report.as_json(validate(["links"]))))
    assert document["schema"] == "moereplay-validation/1" and document["holds"]
    (table,) = document["tables"]
    assert len(table["rows"]) == table["parts"][0]["count"] == 18
    row = table["rows"][0]
    error = 100 * (1 - row["predicted"] / row["measured"])  # of a rate
    assert row["error_percent"] == pytest.approx(error, abs=0.02)


def test_rows_say_which_kernel_an_engine_takes(capsys):
    """One-shot for the shortest buffers, NCCL for the longest, and two-shot in between, by rules of the engines."""
    assert [custom_allreduce.choose_kernel("vllm", 8, nbytes << 10) for nbytes in (128, 256, 65536, 131072)] == [
        "one-shot",
        "multimem",
        "multimem",
        "NCCL",
    ]
    assert [custom_allreduce.choose_kernel("vllm", 4, nbytes << 10) for nbytes in (256, 512, 8192)] == [
        "one-shot",
        "two-shot",
        "multimem",
    ]
    assert [custom_allreduce.choose_kernel("trtllm", 4, nbytes << 20) for nbytes in (1, 2, 8)] == [
        "one-shot",
        "two-shot",
        "NCCL",
    ]
    table = TABLES["custom_allreduce"]
    rows = [row for row in table.rows() if row["framework"] == "sglang" and row["num_gpus"] == 8]
    outcome = predict(table, Bench(), rows[::3])
    taken = [kernel for kernel, _ in itertools.groupby(outcome.kernels)]
    assert taken == ["one-shot", "two-shot by stores", "NCCL nvls"]
    assert outcome.label(0).endswith("8 256 (one-shot)")
    rows = report.as_json([outcome])["tables"][0]["rows"]
    assert rows[-1]["kernel_taken"] == "NCCL nvls"
    _, said = command(
        capsys,
        "symmetric_memory",
        "--at",
        "kernel=nccl",
        "--at",
        "system=dgx-h100",
        "--at",
        "num_gpus=8",
        "--at",
        "bytes=1048576,67108864",
    )
    assert said.out.count("NCCL ring LL128") == 1 and said.out.count("NCCL nvls") == 1


def test_an_unknown_table_is_refused_by_name():
    with pytest.raises(UserError, match="link"):
        validate(["link"])


def command(capsys, *arguments):
    """Exit code of the command in this process, and what it wrote."""
    return end_of("validate", *arguments), capsys.readouterr()


def test_the_command_ends_with_0_where_bounds_hold_and_1_where_not(tmp_path, capsys):
    target = tmp_path / "out.json"
    code, said = command(capsys, "links", "--json", str(target), "--plots", str(tmp_path / "p"))
    assert code == 0, said.err
    assert json.loads(target.read_text())["holds"]
    drawn = {path.name for path in (tmp_path / "p").iterdir()}
    assert {"links-predicted.svg", "links-error.svg"} <= drawn
    _, said = command(capsys, "links", "--markdown")
    assert cells(lines_between(said.out)[2])[:3] == ["links", "all", "18"]
    code, said = command(capsys, "linkz")
    assert code == 2 and "Traceback" not in said.err
    code, said = command(capsys, "links", "--set", "link.efficiency=0.5")
    assert code == 1 and "MISSED" in said.out


def test_all_tables_say_that_they_take_long_and_what_takes_less(monkeypatch, capsys):
    def stop(*_, **__):
        raise UserError("enough")

    monkeypatch.setattr("replay.studies.validate.validate", stop)
    _, said = command(capsys)
    assert said.err.splitlines() == [
        f"{len(TABLES)} tables: several minutes; less with names (--list) or --system",
        "error: enough",
    ]
    _, said = command(capsys, "links")
    assert said.err == "error: enough\n"


def test_tables_of_one_system():
    assert of_system(list(TABLES), None) == list(TABLES)
    assert of_system(list(TABLES), "hgx-h800") == ["links", "nccl_bus_bandwidth"]
    assert "gemm" in of_system(list(TABLES), "dgx-h100")
    assert "nccl_collectives_b200" in of_system(list(TABLES), "hgx-b200")
    known = "known: cloudmatrix384, dgx-a100, dgx-h100, .*hgx-h800"
    with pytest.raises(UserError, match=f"gh200-nvl32.*{known}"):
        validate(system="gh200-nvl32")
    with pytest.raises(UserError, match=r"known: dgx-h100$"):
        validate(["gemm"], system="hgx-h800")


def test_a_table_names_the_systems_of_its_rows():
    for table in TABLES.values():
        named = {row.setting.get("system", "dgx-h100").removesuffix("-ib") for row in table.rows()}
        assert named == set(table.systems), table.name


def test_the_command_lists_tables_of_one_system(capsys):
    _, said = command(capsys, "--list", "--system", "hgx-h800")
    named = [line.partition(":")[0] for line in said.out.splitlines()]
    assert named == ["links", "nccl_bus_bandwidth"]
    assert all(line.endswith("rows; collectives, links)") for line in said.out.splitlines())
