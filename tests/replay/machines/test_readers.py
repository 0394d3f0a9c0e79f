"""Logs as tools print them become rows; what is none, or damaged, is refused in a line."""

from __future__ import annotations

import json

import bench_logs
import numpy as np
import pytest
from loops import every

from replay.errors import UserError
from replay.studies.machines import deepep_tests
from replay.studies.machines.log import LONGEST_LINE, Log
from replay.studies.machines.logs import read

SYSTEM = "dgx-h100"
GPUS = deepep_tests._copies(8, 256, 8)  # that a token reaches


@pytest.fixture
def rows(tmp_path):
    """Read a text, and return its rows as (table, setting without the system, measured)."""

    def of(text, name="some.log"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        log = read(path, SYSTEM)
        assert all(row["system"] == SYSTEM for row in log.rows)
        return [(row.table, {k: v for k, v in row.setting.items() if k != "system"}, row.measured) for row in log.rows]

    return of


def test_a_mark_at_the_begin_is_no_text(rows):
    samples = [{"what": "launch", "seconds": 6e-6}]
    document = json.dumps({"schema": "moereplay-measured/1", "samples": samples})
    for text in (document, bench_logs.nccl("alltoall_perf", 8, [(1024, 12.0)])):
        assert rows("\ufeff" + text) == rows(text) != []


def test_nccl_tests(rows):
    times = [(1024, 5.13), (1 << 20, 33.4), (1 << 31, 12345.6)]
    wanted = [("nccl_collectives", {"collective": "all_reduce", "num_gpus": 4, "bytes": b}, t) for b, t in times]
    text = bench_logs.nccl("all_reduce_perf", 4, times)
    assert rows(text) == wanted
    assert rows(bench_logs.nccl_json("all_reduce_perf", 4, times)) == wanted
    # Runs behind one another, as a batch system's log has them; a size run twice is one line.
    both = text + bench_logs.nccl("alltoall_perf", 8, [(4096, 9.0), (4096, 11.0), (4096, 10.0)])
    assert rows(both) == [
        *wanted,
        ("nccl_collectives", {"collective": "alltoall", "num_gpus": 8, "bytes": 4096}, 10.0),
    ]


def test_nccl_tests_that_name_no_program(rows):
    text = bench_logs.nccl("", 8, [(4096, 9.0)], named=False)
    assert rows(text, "sendrecv_perf_8.log")[0][1]["collective"] == "sendrecv"
    assert rows(f"$ ./build/all_gather_perf -g 8\n{text}")[0][1]["collective"] == "all_gather"
    with pytest.raises(UserError, match="Name the file after the program"):
        rows(text)


def test_runs_of_another_kind_are_left_out(rows):
    graph = bench_logs.nccl("all_reduce_perf", 8, [(4096, 9.0)], graph=1)
    with pytest.raises(UserError, match="no line to use: calls in a CUDA graph"):
        rows(graph)
    text = bench_logs.nccl("all_reduce_perf", 8, [(4096, 9.0)])
    assert len(rows(graph + text)) == 1
    with pytest.raises(UserError, match="wait for each other"):
        rows(text.replace("#\n# Using", "# Blocking Enabled: wait and barrier\n#\n# Using"))
    with pytest.raises(UserError, match="results were wrong"):
        rows(text.replace("       0", "       3"))


def test_sends_of_later_versions_are_left_out(rows):
    text = bench_logs.nccl("sendrecv_perf", 8, [(4096, 9.0)])
    head = "# nccl-tests version 2.19.6 nccl-headers={0} nccl-library={0}\n"
    assert len(rows(head.format(22903) + text)) == 1
    with pytest.raises(UserError, match=r"sendrecv of NCCL 2\.30"):
        rows(head.format(23004) + text)
    document = bench_logs.nccl_json("sendrecv_perf", 8, [(4096, 9.0)])
    assert len(rows(document)) == 1
    with pytest.raises(UserError, match=r"sendrecv of NCCL 2\.30"):
        rows(document.replace("22902", "23004"))


@every("write", [bench_logs.nvbandwidth, bench_logs.nvbandwidth_json])
def test_nvbandwidth(rows, write):
    fan = [[[355.2] * 8]]
    tests = {
        "host_to_device_memcpy_ce": [[[55.0, 54.0]]],
        "device_to_device_memcpy_read_ce": [bench_logs.pairs(395.1)],
        "device_to_device_bidirectional_memcpy_write_sm": [bench_logs.pairs(one) for one in (360.0, 362.0, 722.0)],
        "all_to_one_write_ce": fan,
        "all_to_one_read_sm": fan,
        "one_to_all_write_sm": fan,
        "one_to_all_read_ce": fan,
        "device_local_copy": fan,
    }

    def link(engine, access, pattern, rate):
        return "links", {"engine": engine, "access": access, "pattern": pattern}, rate

    assert rows(write(tests)) == [
        ("values", {"key": "pcie.bandwidth_GB_per_s"}, 54.5),
        link("copy_engine", "read", "pair", pytest.approx(395.1)),
        link("sm", "write", "both-ways", 361.0),  # a direction's half of the sum
        link("copy_engine", "write", "fan-in", pytest.approx(355.2)),
        link("sm", "read", "fan-out", pytest.approx(355.2)),  # peers read from one
        link("sm", "write", "fan-out", pytest.approx(355.2)),
        link("copy_engine", "read", "fan-in", pytest.approx(355.2)),
    ]


def normal(phase, time, gpus=8, **changed):
    setting = {
        "phase": phase,
        "ep_size": gpus,
        "hidden": 7168,
        "topk": 8,
        "num_experts": 256,
        "tokens_per_rank": 4096,
        "num_sms": 24,
    } | changed
    return "deepep_internode" if gpus > 8 else "deepep_normal", setting, time


def test_deepep_in_a_node(rows):
    text = bench_logs.intranode(4096, 7168, 8, 24, GPUS, 351.25, 702.5)
    assert rows(text) == [normal("dispatch", 351.25), normal("combine", 702.5)]
    # The first versions print a rate alone, of two decimals.
    text = bench_logs.intranode(4096, 7168, 8, 24, GPUS, 351.25, 702.5, has_times=False)
    assert rows(text) == [
        normal("dispatch", pytest.approx(351.25, rel=1e-3)),
        normal("combine", pytest.approx(702.5, rel=1e-3)),
    ]
    # How many GPUs took part is in the bytes; experts are in the command, if they are not 256.
    text = bench_logs.intranode(4096, 7168, 8, 24, deepep_tests._copies(4, 256, 8), 351.25, 702.5)
    assert rows(text)[0] == normal("dispatch", 351.25, 4)
    text = bench_logs.intranode(4096, 7168, 8, 24, deepep_tests._copies(8, 8, 8), 351.25, 702.5)
    with pytest.raises(UserError, match="copy the command"):
        rows(text)
    command = "$ python tests/test_intranode.py --num-experts 8\n"
    assert rows(command + text)[0] == normal("dispatch", 351.25, num_experts=8)


def test_deepep_between_nodes(rows):
    copies = deepep_tests._copies(16, 256, 8)
    times = {"dispatch": (32.0, 890.0), "combine": (41.25, 1790.5)}
    found = rows(bench_logs.internode(4096, 7168, 8, 24, copies, times))
    assert found[::2] == [normal("dispatch", 890.0, 16), normal("combine", 1790.5, 16)]
    assert [(table, time) for table, _, time in found[1::2]] == [
        ("deepep_internode_notify", 32.0),
        ("deepep_internode_notify", 41.25),
    ]


def test_deepep_low_latency(rows):
    wanted = [
        (
            "deepep_low_latency",
            {"phase": phase, "ep_size": 8, "hidden": 7168, "topk": 8, "num_experts": 288, "tokens_per_rank": 128},
            pytest.approx(time, rel=1e-3),
        )
        for phase, time in (("dispatch", 77.5), ("combine", 114.0))
    ]
    assert rows(bench_logs.low_latency(128, 7168, 8, 8, 77.5, 114.0)) == wanted
    text = bench_logs.low_latency(64, 4096, 6, 4, 30.0, 41.0)
    with pytest.raises(UserError, match="copy the command"):
        rows(text)
    command = "+ python test_low_latency.py --num-tokens=64 --hidden 4096 --num-topk 6\n"
    setting = rows(command + text)[0][1]
    assert [setting[key] for key in ("ep_size", "tokens_per_rank", "topk")] == [4, 64, 6]


def test_deepep_v2(rows):
    text = bench_logs.elastic(8192, 7168, 8, 256, 8, 24, (500.0, 320_000_000), (900.0, 594_000_000))
    setting = {
        "num_gpus": 8,
        "num_sms": 24,
        "tokens_per_rank": 8192,
        "hidden": 7168,
        "topk": 8,
        "num_experts": 256,
    }
    assert rows(text) == [
        ("deepep_v2", {"phase": "dispatch", "row_type": "fp8", **setting}, pytest.approx(640)),
        ("deepep_v2", {"phase": "combine", "row_type": "bf16", **setting}, pytest.approx(660)),
    ]
    with pytest.raises(UserError, match="between nodes"):
        rows(text.replace("Ranks: 1 x 8", "Ranks: 2 x 4"))


def matrix(library, dtype, m, n, k, time, groups=1):
    setting = {"library": library, "dtype": dtype, "groups": groups, "m": m, "n": n, "k": k}
    return "matrices", setting, pytest.approx(time, rel=5e-3)


def test_products(rows):
    text = bench_logs.deepgemm(
        [
            ("fp8", 1, 4096, 2112, 7168, 118.4),
            ("fp8", 4, 33152, 6144, 7168, 2301.0),
            ("bf16", 1, 128, 24576, 1536, 40.0),
        ]
    )
    assert rows(text) == [
        matrix("deepgemm", "fp8", 4096, 2112, 7168, 118.4),
        matrix("deepgemm", "fp8", 33152, 6144, 7168, 2301.0, groups=4),
        matrix("cublas", "bf16", 128, 24576, 1536, 40.0),  # its time, not DeepGEMM's
    ]
    with pytest.raises(UserError, match="another layout"):
        rows(text.replace("NT", "TN"))
    products = [(8192, 4096, 7168, 712.5)]
    assert rows(bench_logs.cublas(products)) == [matrix("cublas stream", "bf16", 8192, 4096, 7168, 712.5)]
    with pytest.raises(UserError, match="other types"):
        rows(bench_logs.cublas(products, types="-P=qqssq"))


def test_collectivex(rows):
    case = {"ep": 8, "hidden": 7168, "topk": 8, "experts": 256}
    text = bench_logs.collectivex(case, [(1, 20.5, 22.5)])
    setting = {"ep_size": 8, "hidden": 7168, "topk": 8, "num_experts": 256, "tokens_per_rank": 1}
    assert rows(text) == [
        ("deepep_low_latency", {"phase": "dispatch", **setting}, 20.5),
        ("deepep_low_latency", {"phase": "combine", **setting}, 22.5),
    ]
    bf16 = bench_logs.collectivex({**case, "precision": "bf16"}, [(1, 20.5, 22.5)])
    assert [setting["phase"] for _, setting, _ in rows(bf16)] == ["combine"]
    with pytest.raises(UserError, match="without a table"):
        rows(bench_logs.collectivex({**case, "mode": "normal"}, [(1, 20.5, 22.5)]))


def test_the_own_measurement(rows):
    samples = [
        {"what": "gemm-bf16", "m": 64, "n": 4096, "k": 7168, "seconds": 3e-5},
        {"what": "memory", "read": 1 << 26, "written": 0, "seconds": 3e-5},
        {"what": "all-to-all", "bytes": 1 << 20, "gpus": 8, "seconds": 2e-5},
        {"what": "pair-copy", "bytes": 1 << 28, "seconds": (1 << 28) / 390e9},
        {"what": "pair-copy", "bytes": 1 << 12, "seconds": 1e-5},
        {"what": "kernels-graph", "kernels": 10, "seconds": 17e-6},
        {"what": "kernels-graph", "kernels": 110, "seconds": 137e-6},
        {"what": "launch", "seconds": 4e-6},
        {"what": "launch", "seconds": 5e-6},
        {"what": "launch", "seconds": 90e-6},
    ]
    found = rows(json.dumps({"schema": "moereplay-measured/1", "samples": samples}))
    assert [(table, pytest.approx(measured)) for table, _, measured in found] == [
        ("matrices", 30),
        ("streams", 30),
        ("nccl_collectives", 20),
        ("links", 390),
        ("values", 5),
        ("values", 1.2),
    ]
    assert found[4][1] == {"key": "overheads.launch_us"}  # the median
    assert found[5][1] == {"key": "overheads.kernel_gap_graph_us"}


# ---- what is refused -----------------------------------------------------------------------

NCCL = bench_logs.nccl("all_reduce_perf", 8, [(1 << at, 9.0) for at in range(10, 20)])
REFUSED = {
    "empty": ("", "of no tool that is known; known: nccl-tests, nvbandwidth"),
    "blank": ("\n \n", "of no tool"),
    "foreign": ("Dear all,\nthis is no log.\n" * 40, "of no tool"),
    "JSON of another": ('{"a": [1, 2]}', "of no tool"),
    "half JSON": (bench_logs.nccl_json("all_reduce_perf", 8, [(8, 1.0)])[:-20], "is not JSON"),
    "deep JSON": ('{"a":' * 100_000, "is not JSON"),
    "damaged": ('{"nccl_version": 1, "config": {}, "results": []}', "is damaged: KeyError"),
    "of another kind": ('{"nccl_version": 1, "config": 3, "results": 4}', "is damaged"),
    "no numbers": (
        '{"schema": "moereplay-measured/1", "samples": [{"what": "launch", "seconds": "x"}]}',
        "is damaged: ValueError",
    ),
    "sizes that are none": (
        bench_logs.collectivex({"ep": 8, "hidden": "x", "topk": 8, "experts": 8}, [(1, 2.0, 3.0)]),
        "is damaged: TypeError hidden is no whole number",
    ),
    "long nonsense": (
        json.dumps(
            {
                "schema": "moereplay-measured/1",
                "samples": [{"what": "launch", "seconds": "9" * 30_000 + "x"}],
            }
        ),
        "is damaged: ValueError",
    ),
    "routing beyond memory": (
        bench_logs.collectivex({"ep": 512, "hidden": 7168, "topk": 8, "experts": 1024}, [(65536, 2.0, 3.0)]),
        "choices of tokens",
    ),
    "cut before its results": (NCCL[: NCCL.index("out-of-place") + 20], "ends before the first"),
    "impossible": (NCCL.replace("   9.00 ", "   0.00 "), "no time or rate"),
    "too large": (bench_logs.nccl("all_reduce_perf", 8, [(1 << 40, 9.0)]), "bytes is not within 1 to"),
    "too many GPUs": (bench_logs.nccl("all_reduce_perf", 1000, [(8, 9.0)]), "num_gpus is not"),
    "many settings": (
        bench_logs.nccl("all_reduce_perf", 8, [(8 * at, 9.0) for at in range(1, 2500)]),
        "has 2499 different settings; at most 2000",
    ),
}


@every("what", REFUSED)
def test_what_is_refused(rows, what):
    text, said = REFUSED[what]
    with pytest.raises(UserError, match=said) as error:
        rows(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the log .*: No such file"):
        read(tmp_path / "none.log", SYSTEM)
    with pytest.raises(UserError, match=r"cannot read the log .*: Is a directory"):
        read(tmp_path, SYSTEM)
    (tmp_path / "bytes.log").write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match="is not text"):
        read(tmp_path / "bytes.log", SYSTEM)
    with (tmp_path / "huge.log").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="at most 64 MB are read"):
        read(tmp_path / "huge.log", SYSTEM)


def test_a_truncated_log_gives_the_lines_that_it_has(rows):
    whole = rows(NCCL)
    for end in range(NCCL.index("out-of-place") + 20, len(NCCL), 97):
        try:
            found = rows(NCCL[:end])
        except UserError:
            continue
        assert found == whole[: len(found)]


def test_lines_of_no_tool_are_passed_over(rows):
    noise = "9" * (LONGEST_LINE + 1) + "\n" + "[rank0]: warning\n" * 100
    assert rows(noise + NCCL.replace("\n", "\n" + "# " + "9 " * 3000 + "\n")) == rows(NCCL)


def test_many_commands_and_many_lines_take_no_longer_together():
    text = bench_logs.low_latency(128, 7168, 8, 8, 77.5, 114.0)
    command = "+ python test_low_latency.py --num-tokens 128\n"
    log = Log("x.log", (command + text) * 3000, SYSTEM)
    deepep_tests.read_text(log)
    assert len(log.rows) == 2 and len(log.lines) == 3000 * 18 + 1


SAMPLES = (
    NCCL,
    bench_logs.nccl_json("alltoall_perf", 8, [(8192, 9.0)]),
    bench_logs.nvbandwidth({"device_to_device_memcpy_read_ce": [bench_logs.pairs(395.1)]}),
    bench_logs.nvbandwidth_json({"one_to_all_write_sm": [[[355.2] * 8]]}),
    bench_logs.intranode(4096, 7168, 8, 24, GPUS, 351.25, 702.5),
    bench_logs.low_latency(128, 7168, 8, 8, 77.5, 114.0),
    bench_logs.elastic(512, 7168, 8, 256, 8, 24, (50.0, 30_000_000), (90.0, 60_000_000)),
    bench_logs.deepgemm([("fp8", 4, 33152, 6144, 7168, 2301.0), ("bf16", 1, 128, 4096, 512, 9.0)]),
    bench_logs.cublas([(8192, 4096, 7168, 712.5)]),
    bench_logs.collectivex({"ep": 8, "hidden": 7168, "topk": 8, "experts": 256}, [(1, 20.5, 22.5)]),
    json.dumps(
        {
            "schema": "moereplay-measured/1",
            "samples": [{"what": "pair-copy", "bytes": 1 << 28, "seconds": 1e-3}],
        }
    ),
)


@every("sample", SAMPLES)
def test_whatever_is_changed_in_a_log_is_read_or_refused_in_a_line(rows, sample):
    draw = np.random.default_rng(7)
    signs = [
        "9",
        "0",
        ".",
        "-",
        "e",
        " ",
        "",
        "\n",
        "x",
        '"',
        "}",
        "[",
        "null",
        "1e999",
        "99999999",
    ]
    for _ in range(150):
        text = list(sample)
        for at in draw.integers(len(text), size=draw.integers(1, 6)):
            text[at] = signs[draw.integers(len(signs))]
        try:
            rows("".join(text))
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 400
