"""Numbers too large, files nested too deeply, names too long: one line and code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import end_of

import replay

LONG = "n" * 300
HUGE = "9" * 26
RUN = "run toy-zipf --scheme ideal"


@pytest.mark.parametrize(
    "words",
    [
        f"run {LONG} --scheme ideal",
        f"run {LONG}.h5 --scheme ideal",
        f"run toy-zipf --scheme {LONG}",
        f"{RUN} --system {LONG}",
        f"{RUN} --system {LONG}.toml",
        f"{RUN} --placement file:{LONG}",
        f"run --spec {LONG}.toml",
        f"run --spec {LONG}.json",
        f"diff {LONG} {LONG}",
        f"validate {LONG}",
        f"hardware show {LONG}.toml",
        f"sweep {LONG}.toml --dry-run",
        f"trace info {LONG}",
        f"trace list --catalogue {LONG}",
        f"trace recover {LONG}",
        f"place toy-zipf --algorithm {LONG}",
        f"trace generate uniform --model {LONG} --out a.h5",
        f"trace validate {LONG}.h5",
        f"trace import {LONG} --format vllm --out a.h5",
        f"trace add cat toy-zipf --name {LONG}",
        "hardware show deep.toml",
        "sweep deep.toml --dry-run",
        "run --spec deep.toml",
        "trace generate uniform --model deep.toml --out a.h5",
        "trace list --catalogue deep",
        "hardware show tables.toml",
        "sweep tables.toml --dry-run",
        "run --spec tables.toml",
        "hardware show digits.toml",
        "sweep digits.toml --dry-run",
        "run --spec digits.toml",
        "trace generate uniform --model digits.toml --out a.h5",
        f"{RUN} --set link.links_per_gpu={'[' * 3000}",
        f"compare toy-zipf --uncertainty {HUGE}",
        f"{RUN} --ranks {HUGE}",
        f"{RUN} --steps {HUGE}",
        f"{RUN} --layer {HUGE}",
        f"{RUN} --set link.links_per_gpu={HUGE}",
        f"place toy-zipf --slots {HUGE}",
        f"trace generate uniform --model olmoe-1b-7b --ranks {HUGE} --out a.h5",
        "trace convert toy-zipf a.h5 --tokens 5:1",
        "trace convert toy-zipf a.h5 --tokens 5:5",
        "trace convert toy-zipf a.h5 --layers 1:1",
        f"{RUN} --precision=",
        f"{RUN} --placement=",
    ],
    ids=lambda words: words.replace(LONG, "LONG").replace(HUGE, "HUGE")[:60],
)
def test_what_is_too_much_is_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    nested = "a = " + "[" * 5000 + "]" * 5000
    for name in ("deep.toml", "deep/index.toml"):
        (tmp_path / name).write_text(nested)
    (tmp_path / "tables.toml").write_text("a" + ".a" * 3000 + " = 1")
    (tmp_path / "digits.toml").write_text("a = " + "9" * 5000)
    before = {*tmp_path.rglob("*")}
    end = end_of(*words.split())
    said = capsys.readouterr()
    assert end == 2, said.err
    assert said.out == "" and said.err.startswith("error: ") and len(said.err.splitlines()) <= 2
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "wraps"), [("--step 1021", False), ("--step 1022", True), ("--step 1021 --steps 2", True)]
)
def test_a_step_beyond_the_trace_says_that_it_wraps(
    words: str, wraps: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = "--ranks 2 --tokens-per-rank 256 --layer 0 --barrier"
    path = tmp_path / "r.json"
    line = f"run gpt-oss-20b-decode --scheme ideal {size} {words} --json {path}"
    end = end_of(*line.split())
    said = capsys.readouterr().out
    assert end == 0
    assert ("is beyond the trace: it wraps after 1,022 steps" in said) == wraps
    batch = json.loads(path.read_text())["batch"]
    assert batch.get("num_steps", "left out") == (1022 if wraps else "left out")
    assert (replay.load_result(path).batch.num_steps is not None) == wraps
