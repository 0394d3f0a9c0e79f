"""``moereplay collective``: what nccl-tests prints, in text and JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import end_of, invoke
from loops import every

from replay.experiments.collective.result import CollectiveResult
from replay.experiments.collective.spec import MOST_SIZES, collective_of, sizes_of
from replay.model.collectives.library import ALGORITHMS
from replay.studies.validate.bench import Bench
from replay.studies.validate.nccl import time_collective

MIB = 1 << 20


def result_of(tmp_path: Path, *arguments: object) -> CollectiveResult:
    file = tmp_path / "result.json"
    assert invoke("collective", *arguments, "--json", file).exit_code == 0
    return CollectiveResult.model_validate_json(file.read_text(encoding="utf-8"))


def test_bandwidths_are_those_of_nccl_tests(tmp_path: Path) -> None:
    for op, factor in (("allreduce", 1.5), ("allgather", 0.75), ("reducescatter", 0.75)):
        result = result_of(tmp_path, "--op", op, "--bytes", "1M..4M", "--ranks", 4)
        assert [row.bytes for row in result.rows] == [MIB, 2 * MIB, 4 * MIB]
        for row in result.rows:
            assert row.algorithm_GB_per_s == pytest.approx(row.bytes / row.time_us / 1e3)
            assert row.bus_GB_per_s == pytest.approx(factor * row.algorithm_GB_per_s)


def test_a_time_is_what_validation_predicts(tmp_path: Path) -> None:
    [row] = result_of(tmp_path, "--bytes", "4M").rows
    assert row.time_us == time_collective(Bench(), "dgx-h100", "all_reduce", 8, 4 * MIB).value


def test_each_direction_has_its_bytes_and_its_use(tmp_path: Path) -> None:
    result = result_of(
        tmp_path,
        "--op",
        "all-gather",
        "--bytes",
        "64M",
        "--algorithm",
        "nvls",
        "--algorithm",
        "ring",
    )
    switch, ring = result.rows
    part = 64 * MIB // 8
    assert switch.up.payload_bytes == [part] * 8
    assert switch.down.payload_bytes == [8 * part] * 8
    assert ring.up.payload_bytes == ring.down.payload_bytes == [7 * part] * 8
    assert min(ring.up.wire_bytes) > 7 * part
    assert switch.up.utilisation < 0.2 < 0.8 < switch.down.utilisation
    assert ring.up.utilisation == pytest.approx(ring.down.utilisation)


def test_the_same_words_give_the_same_bytes_and_other_words_another_identity(
    tmp_path: Path,
) -> None:
    words = ("--bytes", "1M", "--ranks", 4)
    first, again = (result_of(tmp_path, *words).to_json() for _ in range(2))
    assert first == again
    other = result_of(tmp_path, *words, "--set", "nccl.nvls_channels=8")
    assert other.run_id != json.loads(first)["run_id"]


def test_text_names_the_kernel_that_was_picked() -> None:
    lines = invoke("collective", "--bytes", "16K,64M").stdout.splitlines()
    assert "all-reduce of 8 GPUs, dgx-h100" in lines[1]
    small, large = (line for line in lines if "nccl" in line)
    assert "16384" in small and "ring LL" in small
    assert "67108864" in large and " nvls " in large
    lines = invoke("collective", "--bytes", "1G", "--algorithm", "nccl", "--algorithm", "two-shot").stdout
    assert max(len(line.rstrip()) for line in lines.splitlines()) <= 100


def test_blocks_are_what_was_asked_for(tmp_path: Path) -> None:
    words = ("--op", "allgather", "--bytes", "64M", "--algorithm", "ring")
    [few] = result_of(tmp_path, *words, "--blocks", 4).rows
    [usual] = result_of(tmp_path, *words).rows
    assert (few.blocks, usual.blocks) == (4, 24)
    assert few.bus_GB_per_s < usual.bus_GB_per_s / 2


def test_several_nodes_have_no_payload_of_ports(tmp_path: Path) -> None:
    [row] = result_of(tmp_path, "--bytes", "1M", "--system", "dgx-h100-x2").rows
    assert row.kernel.startswith("tree")
    assert row.up.payload_bytes is None


def test_the_algorithms_are_listed() -> None:
    listed = invoke("collective", "--list").stdout.splitlines()
    assert [line.partition(":")[0] for line in listed] == list(ALGORITHMS)


@every(
    ("text", "sizes"),
    [
        ("512", [512]),
        ("1k,3m", [1024, 3 * MIB]),
        ("1M..5M", [MIB, 2 * MIB, 4 * MIB]),
        ("8,1K..2K", [8, 1024, 2048]),
    ],
)
def test_sizes_are_lists_and_ranges(text: str, sizes: list[int]) -> None:
    assert sizes_of(text) == sizes


@every("word", ["allreduce", "all_reduce", "all-reduce", "AllReduce"])
def test_a_collective_has_several_spellings(word: str) -> None:
    assert collective_of(word) == "all_reduce"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--op", "alltoall"), "unknown collective 'alltoall'; known: allgather, allreduce"),
        (("--bytes", "1X"), "bytes 1X: '1X' is no size; possible: a number from 1 on"),
        (("--bytes", "0"), "bytes 0: '0' is no size"),
        (("--bytes", "-5"), "bytes -5: '-5' is no size"),
        (("--bytes", "1M.."), "bytes 1M..: '' is no size"),
        (("--bytes", "4M..1M"), "a range rises; '4M..1M' does not"),
        (("--bytes", ",".join(["1"] * (MOST_SIZES + 1))), f"more than {MOST_SIZES} sizes"),
        (("--bytes", "64G"), "what fits: up to 32GB (--bytes 32G)"),
        (("--algorithm", "rings"), "unknown algorithm 'rings' (did you mean 'ring'?)"),
        (("--ranks", 1), "1 ranks; possible on dgx-h100: 2 to 8"),
        (("--ranks", 9), "9 ranks; possible on dgx-h100: 2 to 8"),
        (("--blocks", 133), "133 thread blocks; possible: 1 to 132"),
        (("--set", "x"), "--set x: expected KEY=VALUE"),
        (
            ("--algorithm", "nvls", "--system", "dgx-a100"),
            "algorithm nvls needs multicast and reduction, which dgx-a100 does not have",
        ),
        (
            ("--op", "allgather", "--algorithm", "tree"),
            "unknown collective of algorithm tree 'all_gather'",
        ),
        (
            ("--algorithm", "ring", "--system", "dgx-h100-x2"),
            "algorithm ring has no all_reduce over several NVLink domains; 2 are in use",
        ),
        (("--system", "mi300x", "--algorithm", "nccl"), "algorithm nccl needs cuda, which mi300x"),
        # An engine's kernel is for 8 GPUs at most, and takes nobody's place on more.
        (("--system", "cloudmatrix384"), "algorithm nccl needs cuda, which cloudmatrix384"),
    ],
)
def test_what_is_refused_is_said_in_a_line(
    words: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = end_of("collective", *words)
    said = capsys.readouterr().err.strip()
    assert stopped == 2
    assert said.startswith("error: ") and "\n" not in said
    assert message in said


def test_the_algorithm_is_left_to_the_machine_where_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of("collective", "--system", "mi300x", "--bytes", "1M") == 0
    assert "two-shot" in capsys.readouterr().out
