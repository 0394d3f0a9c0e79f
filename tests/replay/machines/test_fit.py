"""Fits to logs: known constants are found again, half of the lines predicts the other half."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import bench_logs
import numpy as np
import pytest
from loops import every

import hwmodel
from hwmodel.catalog import load_spec, spec_of_text
from replay.errors import UserError
from replay.studies.machines import deepep_tests, fit, logs
from replay.studies.machines.tables import CONSTANTS, TABLES
from replay.studies.validate.bench import Bench
from replay.studies.validate.catalog import TABLES as PUBLISHED
from replay.studies.validate.table import MeasurementRow, Outcome, predictions

BASE = "dgx-h100"


@pytest.fixture
def log(tmp_path):
    """Write a log, and read it as of a machine."""

    def of(text: str, name: str = "some.log", system: str = BASE) -> logs.Log:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return logs.read(path, system)

    return of


def times_on(constants: Mapping[str, float], table: str, settings: list[dict[str, Any]]) -> Any:
    """What a machine with other constants would measure."""
    rows = [MeasurementRow(table, 0, {"system": BASE, **one}, 1.0) for one in settings]
    return [one.value for one in predictions(TABLES[table], Bench(constants), rows)]


# ---- known constants are found again ---------------------------------------------------------

Made = Callable[[Mapping[str, float]], str]
SIZES = [1 << at for at in (10, 13, 16, 19, 22, 25, 27)]


def all_to_all(constants: Mapping[str, float]) -> str:
    settings = [{"collective": "alltoall", "num_gpus": 4, "bytes": size} for size in SIZES]
    times = times_on(constants, "nccl_collectives", settings)
    return bench_logs.nccl("alltoall_perf", 4, list(zip(SIZES, times, strict=True)))


def copies(constants: Mapping[str, float]) -> str:
    kinds = ("copy_engine", "write", "pair"), ("sm", "write", "fan-out")
    settings = [dict(zip(("engine", "access", "pattern"), one, strict=True)) for one in kinds]
    pair, fan = times_on(constants, "links", settings)
    tests = {
        "device_to_device_memcpy_write_ce": [bench_logs.pairs(pair)],
        "one_to_all_write_sm": [[[fan] * 8]],
    }
    return bench_logs.nvbandwidth(tests)


def rows_pushed(constants: Mapping[str, float]) -> str:
    texts = []
    for tokens in (1, 16, 64, 128):
        sizes = {"ep_size": 8, "hidden": 7168, "topk": 8, "num_experts": 288}
        settings = [{"phase": phase, **sizes, "tokens_per_rank": tokens} for phase in ("dispatch", "combine")]
        times = times_on(constants, "deepep_low_latency", settings)
        texts.append(f"+ python test_low_latency.py --num-tokens {tokens}\n")
        texts.append(bench_logs.low_latency(tokens, 7168, 8, 8, *times))
    return "".join(texts)


def rows_between_nodes(constants: Mapping[str, float]) -> str:
    texts = []
    for sms, tokens in ((8, 128), (24, 128), (8, 1024)):
        settings = [
            {
                "phase": phase,
                "ep_size": 16,
                "hidden": 7168,
                "topk": 8,
                "num_experts": 256,
                "tokens_per_rank": tokens,
                "num_sms": sms,
            }
            for phase in ("dispatch", "combine")
        ]
        times = [times_on(constants, table, settings) for table in ("deepep_internode_notify", "deepep_internode")]
        both = dict(zip(("dispatch", "combine"), zip(*times, strict=True), strict=True))
        reached = deepep_tests._copies(16, 256, 8)
        texts.append(bench_logs.internode(tokens, 7168, 8, sms, reached, both))
    return "".join(texts)


def rows_of_the_second_version(constants: Mapping[str, float]) -> str:
    texts = []
    for sms in (8, 24, 64):
        settings = [
            {
                "phase": phase,
                "row_type": row_type,
                "num_gpus": 8,
                "num_sms": sms,
                "tokens_per_rank": 512,
                "hidden": 7168,
                "topk": 8,
                "num_experts": 256,
            }
            for phase, row_type in (("dispatch", "fp8"), ("combine", "bf16"))
        ]
        rates = times_on(constants, "deepep_v2", settings)
        both = [(1e8 / rate / 1e3, 100_000_000) for rate in rates]
        texts.append(bench_logs.elastic(512, 7168, 8, 256, 8, sms, *both))
    return "".join(texts)


def products(constants: Mapping[str, float]) -> str:
    shapes = [(m, n, k) for m in (512, 4096) for n, k in ((4096, 7168), (7168, 2048))]
    settings = [
        {"library": library, "dtype": dtype, "groups": groups, "m": m, "n": n, "k": k}
        for library, dtype, groups in (("deepgemm", "fp8", 1), ("deepgemm", "fp8", 4), ("cublas", "bf16", 1))
        for m, n, k in shapes
    ]
    times = times_on(constants, "matrices", settings)
    return bench_logs.deepgemm(
        (*(one[key] for key in ("dtype", "groups", "m", "n", "k")), time)
        for one, time in zip(settings, times, strict=True)
    )


def own(constants: Mapping[str, float]) -> str:
    moved = [(a << 20, b << 20) for a, b in ((1, 0), (0, 1), (256, 256), (512, 0), (0, 512))]
    settings = [{"read": read, "written": written} for read, written in moved]
    samples = [
        {"what": "memory", **one, "seconds": time / 1e6}
        for one, time in zip(settings, times_on(constants, "streams", settings), strict=True)
    ]
    samples.append({"what": "launch", "seconds": constants["overheads.launch_us"] / 1e6})
    return json.dumps({"schema": "moereplay-measured/1", "samples": samples})


KNOWN: dict[str, tuple[Made, dict[str, float]]] = {
    "nccl-tests": (
        all_to_all,
        {"nccl.pair_ll_start_us": 4.6, "nccl.pair_simple_start_us": 7.5},
    ),
    "nvbandwidth": (copies, {"link.efficiency": 0.85, "link.fan_out_efficiency": 0.8}),
    "DeepEP": (rows_pushed, {"link.scatter_efficiency": 0.6, "link.bulk_scatter_efficiency": 0.55}),
    "DeepEP between nodes": (rows_between_nodes, {"warp.bulk_ns": 27.0, "nic.post_ns": 4500.0}),
    "DeepEP V2": (rows_of_the_second_version, {"link.fan_out_efficiency": 0.8}),
    "DeepGEMM": (products, {"compute.fp8_efficiency": 0.62, "compute.bf16_efficiency": 0.7}),
    "measure": (
        own,
        {
            "hbm.read_efficiency": 0.86,
            "hbm.write_efficiency": 0.7,
            "overheads.small_kernel_us": 2.4,
            "overheads.launch_us": 6.5,
        },
    ),
}


@every("tool", KNOWN)
def test_known_constants_are_found_again(log, tool):
    made, constants = KNOWN[tool]
    found = fit.fit(BASE, [log(made(constants))])
    values = {one.key: one.value for one in found.constants}
    spec = load_spec(BASE)
    assert constants.keys() <= values.keys()
    assert {key: values[key] for key in constants} == pytest.approx(constants, rel=0.04)
    for one in found.constants:  # whatever else the lines determine is the base's, which made them
        true = constants.get(one.key, one.before)
        assert one.low <= true <= one.high or one.value == pytest.approx(true, rel=0.04), one
    for part in found.parts:
        assert part.mean_percent < 1.0
    for one in found.constants:
        assert one.low <= one.value <= one.high and one.before == spec.entry(one.key).value
    stayed = set(found.undetermined)
    assert not stayed & values.keys()
    every_key = {key for keys in CONSTANTS.values() for key in keys if key in spec.present()}
    assert stayed | values.keys() == every_key


def test_lines_that_take_turns_are_held_out_alike():
    rows = [MeasurementRow("t", at, {"phase": ("dispatch", "combine")[at % 2]}, 1.0) for at in range(8)]
    used, held = fit.split(rows, 0.5)
    for part in (used, held):
        assert [row["phase"] for row in part] == 2 * ["combine"] + 2 * ["dispatch"]


def test_what_lines_do_not_tell_apart_is_left_to_the_base(log):
    # One size: a start, and no rate.
    text = bench_logs.nccl("alltoall_perf", 8, [(1024, 12.0)])
    found = fit.fit(BASE, [log(text)])
    assert [one.key for one in found.constants] == ["nccl.pair_ll_start_us"]
    assert found.undetermined["nccl.copy_GB_per_s"] == "too little in the lines of nccl_collectives"
    assert found.undetermined["warp.scan_ns"] == "needs DeepEP's test_intranode.py"
    (one,) = found.constants
    # A single line is taken as 5 % off; the start is about half of its time.
    assert 1.05 < one.high / one.value < 1.3


# ---- half of the lines predicts the other half -----------------------------------------------


def published(table: str, **settings: Any) -> list[MeasurementRow]:
    rows = PUBLISHED[table].rows()
    return [row for row in rows if all(row[key] == one for key, one in settings.items())]


def measured_all_to_all() -> tuple[str, str]:
    rows = published("nccl_collectives_b200", num_gpus=8, collective="alltoall")
    times = [(row["bytes"], row.measured) for row in rows]
    return "hgx-b200", bench_logs.nccl("alltoall_perf", 8, times)


def measured_low_latency() -> tuple[str, str]:
    texts = []
    for hidden, topk, experts in ((7168, 8, 256), (4096, 8, 128)):
        rows = published("deepep_low_latency", hidden=hidden, topk=topk, num_experts=experts)
        for tokens in sorted({row["tokens_per_rank"] for row in rows}):
            both = {row["phase"]: row.measured for row in rows if row["tokens_per_rank"] == tokens}
            texts.append(
                f"+ python test_low_latency.py --num-tokens {tokens} --hidden {hidden} "
                f"--num-topk {topk} --num-experts {experts}\n"
            )
            times = both["dispatch"], both["combine"]
            texts.append(bench_logs.low_latency(tokens, hidden, topk, 8, *times))
    return "dgx-h100", "".join(texts)


def measured_normal() -> tuple[str, str]:
    texts = []
    rows = published("deepep_normal", hidden=7168, topk=8)
    reached = deepep_tests._copies(8, 256, 8)
    for tokens in (32, 128, 512, 2048):
        for sms in (4, 12, 24):
            both = {
                row["phase"]: row.measured for row in rows if (row["tokens_per_rank"], row["num_sms"]) == (tokens, sms)
            }
            if len(both) == 2:
                times = both["dispatch"], both["combine"]
                texts.append(bench_logs.intranode(tokens, 7168, 8, sms, reached, *times))
    return "dgx-h100", "".join(texts)


def measured_products() -> tuple[str, str]:
    rows = [
        row
        for row in published("gemm", gemm_dtype="bfloat16", library="cublas-trtllm")
        if row["m"] % 256 == 0 and row["k"] >= 2048
    ]
    # The table's times have the gap of a graph before the kernel, which such a log has not.
    gap_us = load_spec(BASE).overheads.kernel_gap_graph_us.value
    shown = [("bf16", 1, row["m"], row["n"], row["k"], row.measured - gap_us) for row in rows[::4]]
    return "dgx-h100", bench_logs.deepgemm(shown)


MEASURED = (measured_all_to_all, measured_low_latency, measured_normal, measured_products)


@pytest.mark.release
def test_half_of_the_lines_predicts_the_other_half(log, tmp_path):
    inside, lines = 0, 0
    for number, made in enumerate(MEASURED):
        base, text = made()
        found = fit.fit(base, [log(text, system=base)], 0.5)
        (part,) = found.parts
        assert abs(len(part.used.rows) - len(part.held_out.rows)) <= 1, made
        assert not {row.line for row in part.used.rows if row in part.held_out.rows}, made
        mean = np.abs(part.held_out.errors_percent).mean()
        assert part.spread_percent < 25 and mean < part.spread_percent / 1.5, made
        inside, lines = inside + part.inside(), lines + len(part.held_out.rows)
        # The file that it writes predicts the same lines as well.
        path = tmp_path / f"mine{number}.toml"
        path.write_text(found.toml("mine"), "utf-8")
        (again,) = fit.outcomes([log(text, system=str(path))], 0.5)
        assert [row.line for row in again.rows] == [row.line for row in part.held_out.rows]
        assert again.predicted == pytest.approx(part.held_out.predicted)
    # Nine of ten, said of each log by a dozen lines: of one log's dozen others it may be eight.
    assert inside >= 0.85 * lines


def test_spreads_by_hand():
    def outcome(errors):
        rows = tuple(MeasurementRow("links", at, {}, 100.0) for at in range(len(errors)))
        predicted = 100.0 + np.array(errors, dtype=float)
        return Outcome(TABLES["links"], rows, predicted, np.zeros(len(rows), bool))

    nine = [1.0, -2, 3, -4, 5, -6, 7, -8, 9]  # of ten further ones nine are below the largest
    assert fit._spread(outcome(nine), 0) == pytest.approx(1.645 * 5 / 0.6745, rel=1e-3)
    assert fit._spread(outcome([*nine, 90.0]), 0) == pytest.approx(90)
    assert fit._spread(outcome([*nine, *nine, 90.0]), 0) == pytest.approx(max(9, 1.645 * 5 / 0.6745), rel=1e-3)
    # Few lines do not say how far they are off, and logs have few digits.
    assert fit._spread(outcome([0.1, -0.1]), 1) == pytest.approx(1.645 * 5, rel=1e-3)
    assert fit._spread(outcome([0.0] * 9), 1) == pytest.approx(1.645 * 0.2, rel=1e-3)


@every("share, held", [(0.5, [1, 3, 5, 7, 9]), (0.25, [3, 7]), (0.0, []), (0.4, [2, 4, 7, 9])])
def test_lines_held_out_are_spread_evenly(share, held):
    rows = [MeasurementRow("t", at, {}, 1.0) for at in range(10)]
    used, out = fit.split(rows, share)
    assert [row.line for row in out] == held
    assert sorted(row.line for row in [*used, *out]) == list(range(10))


# ---- the file --------------------------------------------------------------------------------


def test_the_file_says_where_its_values_are_from(log, tmp_path):
    found = fit.fit(BASE, [log(copies({"link.efficiency": 0.85}), "nvb.txt")], 0.0)
    text = found.toml("mine")
    document = tomllib.loads(text)
    assert document["base"] == BASE and document["name"] == "mine"
    entry = document["link"]["efficiency"]
    assert entry["value"] == 0.85
    assert entry["source"].startswith("fitted to 2 lines of nvb.txt, by moereplay hardware fit")
    assert entry["spread"]["low"] < 0.85 < entry["spread"]["high"] <= 1
    assert "# links: 2 lines of nvb.txt, mean error 0.0 %, nine of ten within" in text
    (path := tmp_path / "mine.toml").write_text(text, "utf-8")
    system = hwmodel.load(path)
    assert system.spec.link.efficiency.value == 0.85
    # All else is the base's.
    other = {row[0] for row in system.spec.rows()} - {"link.efficiency", "link.fan_out_efficiency"}
    base = {row[0]: row for row in load_spec(BASE).rows()}
    assert all(row == base[row[0]] for row in system.spec.rows() if row[0] in other)


NAME = "a \"b' \\c.log"


def test_a_name_with_signs_is_text(log, tmp_path):
    found = fit.fit(BASE, [log(copies({}), NAME)])
    document = tomllib.loads(found.toml('x"\\y'))
    assert document["name"] == 'x"\\y' and NAME in document["link"]["efficiency"]["source"]


HOSTILE = "\U0001f600 é\x7f\x00\r\n[link]\nefficiency = 1\u2028\x85\u200d\t#\\"


def test_a_name_that_no_file_should_have_is_text(log):
    some = log(copies({}))
    some.name = f"{HOSTILE}.log"
    text = fit.fit(BASE, [some]).toml(HOSTILE)
    document = tomllib.loads(text)
    assert document["name"] == HOSTILE
    assert all(some.name in one["source"] for one in document["link"].values())
    (remark,) = (line for line in text.split("\n") if line.startswith("# links: "))
    assert r"\u000a[link]\u000aefficiency" in remark and "nine of ten" in remark
    assert spec_of_text(text, "it").name == HOSTILE
    # Bytes of a name that are no text
    some.name = "a\udcff.log"
    text = fit.fit(BASE, [some]).toml("b\udcff")
    assert tomllib.loads(text)["name"] == "b\ufffd" and text.count("a\ufffd.log") == 3
    text.encode("utf-8")


def test_why_names_every_tool_and_table(log):
    start = bench_logs.nccl("alltoall_perf", 8, [(1024, 12.0)])
    key, tools = "link.fan_out_efficiency", "nvbandwidth, moereplay hardware measure"
    found = fit.fit(BASE, [log(start)])
    assert found.undetermined[key] == f"needs {tools}, DeepEP's test_ep.py"
    assert found.undetermined["link.efficiency"] == f"needs {tools}"
    pairs = bench_logs.nvbandwidth({"device_to_device_memcpy_write_ce": [bench_logs.pairs(380.0)]})
    found = fit.fit(BASE, [log(pairs)])
    why = "too little in the lines of links; more by DeepEP's test_ep.py"
    assert found.undetermined[key] == why


def test_lines_that_the_base_cannot_predict_are_left_out(log):
    text = bench_logs.nccl("alltoall_perf", 16, [(1024, 12.0)])
    with pytest.raises(UserError, match="determine no constant of dgx-h100") as error:
        fit.fit(BASE, [log(text)])
    assert "some.log: 16 GPUs: dgx-h100 has 8" in str(error.value) and "\n" not in str(error.value)


# ---- commands --------------------------------------------------------------------------------


def test_fit_writes_a_machine_that_validate_takes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    constants = {"nccl.pair_ll_start_us": 4.6}
    (tmp_path / "a.log").write_text(all_to_all(constants), "utf-8")
    said = command("hardware fit a.log -o mine.toml --hold-out 0.5")
    assert said.code == 0, said.err
    assert "nccl.pair_ll_start_us" in said.out and "(needs nvbandwidth" in said.out
    assert "next: moereplay validate --system mine.toml --log a.log --hold-out 0.5" in said.out
    said = command("validate --system mine.toml --log a.log --hold-out 0.5 --markdown")
    assert said.code == 0 and said.out.count("nccl_collectives") == 2
    said = command("validate --system mine.toml --log a.log --json all.json")
    assert said.code == 0
    table = json.loads((tmp_path / "all.json").read_text("utf-8"))["tables"][0]
    assert len(table["rows"]) == len(SIZES) and table["rows"][0]["system"] == "mine.toml"


@every("base", ["dgx-h100-x2", "mine.toml"])
def test_only_machines_of_the_catalogue_are_a_base(command, tmp_path, monkeypatch, base):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('base = "dgx-h100"\nname = "mine"\n', "utf-8")
    (tmp_path / "a.log").write_text(copies({}), "utf-8")
    written = tmp_path / f"of-{base.removesuffix('.toml')}.toml"
    said = command(f"hardware fit a.log --base {base} -o {written.name}")
    if base == "mine.toml":
        assert said.code == 2 and not written.exists()
        assert "unknown base 'mine.toml'; known: " in said.err and said.err.count("\n") == 1
    else:
        assert said.code == 0 and load_spec(written).fabric.num_domains.value == 2


def test_a_file_that_could_not_be_read_is_not_written(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit.MachineFit, "toml", lambda self, name: f'name = "{name}\n')
    (tmp_path / "a.log").write_text(copies({}), "utf-8")
    said = command("hardware fit a.log -o x.toml")
    assert said.code == 2 and "what x.toml would hold is not a TOML file" in said.err
    assert not (tmp_path / "x.toml").exists()


@every(
    "words, said",
    [
        ("hardware fit none.log -o x.toml", "cannot read the log none.log"),
        ("hardware fit foreign.log -o x.toml", "of no tool that is known"),
        ("hardware fit a.log foreign.log -o x.toml", "of no tool that is known"),
        ("hardware fit a.log -o a.log", "a.log"),
        ("hardware fit a.log --base dgx-h101 -o x.toml", "unknown base"),
        ("hardware fit a.log --base none.toml -o x.toml", "a file is no base of another"),
        ("hardware fit a.log --base a.log -o x.toml", "dgx-h100"),
        ("hardware fit a.log --hold-out 1.5 -o x.toml", "hold-out"),
        ("hardware fit a.log --base atlas-800t-a2 -o x.toml", "no constant"),
        ("validate --log a.log", "--log needs --system: the machine of the logs"),
        ("validate links --log a.log --system dgx-h100", "--log takes --system"),
        ("validate --hold-out 0.5", "give --log as well"),
        ("validate --system mine.toml", "give the logs of its benchmarks: --log LOG"),
        ("validate --log a.log --system none.toml", "cannot read the system file"),
    ],
)
def test_mistakes_are_a_line_and_write_nothing(command, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    text = bench_logs.nccl("alltoall_perf", 8, [(1024, 12.0)])
    (tmp_path / "a.log").write_text(text, "utf-8")
    (tmp_path / "foreign.log").write_text("hello\n", "utf-8")
    found = command(words)
    assert found.code == 2 and said in found.err
    assert found.err.count("\n") <= 2 and "Traceback" not in found.err
    assert {path.name for path in tmp_path.iterdir()} == {"a.log", "foreign.log"}
    assert (tmp_path / "a.log").read_text("utf-8") == text
