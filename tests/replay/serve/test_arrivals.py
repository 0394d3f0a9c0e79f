"""A small model that serves requests as they arrive, and the command that does so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import end_of

from replay.errors import UserError
from replay.experiments.serve.arrivals.experiment import EXPERIMENT
from replay.experiments.serve.arrivals.replay import requests_of
from replay.experiments.serve.arrivals.result import ArrivalResult
from replay.experiments.serve.arrivals.spec import ArrivalSpec

SMALL = ArrivalSpec(
    model="deepseek-v2-lite",
    system="dgx-h100",
    decode_gpus=2,
    requests=8,
    chunk=128,
    prompt=100,
    output=7,
    tolerance=1.0,
    sample_layers=1,
)


@pytest.fixture(scope="module")
def together() -> ArrivalResult:
    return EXPERIMENT.run(SMALL, arrivals="50", count=24, tpot_ms=1000.0)


@pytest.fixture(scope="module")
def apart() -> ArrivalResult:
    return EXPERIMENT.run(SMALL, prefill_gpus=2, arrivals="50", count=24)


def test_requests_arrive_as_asked(together: ArrivalResult) -> None:
    served = together.served
    assert served is not None and served.goodput is not None
    assert served.requests == 24 and served.offered_per_s == pytest.approx(50)
    assert (served.prompt_tokens, served.output_tokens) == (2400, 24 * 8)
    assert served.goodput.share == 1 and served.goodput.is_met
    assert served.num_gpus == 2 and served.groups[0].workers == 2
    (cache,) = together.caches
    # 27 layers of 512 + 64 values of two bytes; weights and buffers take the rest of 77 GB.
    assert cache.position_bytes == 27 * 576 * 2
    assert 50e9 < cache.positions * cache.position_bytes < 64e9
    assert ArrivalResult.model_validate_json(together.model_dump_json()) == together


def test_prefill_apart_leaves_decoding_alone(together: ArrivalResult, apart: ArrivalResult) -> None:
    alone, mixed = apart.served, together.served
    assert alone and mixed and alone.tpot and mixed.tpot and alone.handover
    assert [group.name for group in alone.groups] == ["prefill", "decode"]
    assert alone.groups[0].decoding == 0 and alone.groups[1].prefilled == 0
    assert alone.tpot.p99_us < mixed.tpot.p99_us, "no prompt holds up a token"
    assert alone.num_gpus == 4 and mixed.handover is None


@pytest.mark.extended
def test_identity_is_of_requests_and_rules(tmp_path: Path) -> None:
    found = EXPERIMENT.run(SMALL, arrivals="9", count=2)
    asked = found.spec
    assert EXPERIMENT.run(asked).run_id == found.run_id
    others = (asked.changed(**one) for one in ({"count": 3}, {"policy": "prefill-first"}))
    assert len({found.run_id, *(EXPERIMENT.run(one).run_id for one in others)}) == 3
    ids = []
    for name, output in (("a.csv", 5), ("b.csv", 5), ("c.csv", 6)):
        (tmp_path / name).write_text(f"arrival_s,prompt,output\n0,9,4\n1.5,20,{output}\n")
        ids.append(EXPERIMENT.run(SMALL, arrivals=str(tmp_path / name)).run_id)
    assert ids[0] == ids[1] != ids[2], "a file is what it holds, whatever its name"


def test_caches_take_the_time_of_the_network() -> None:
    """One request; its 100 positions go at 50 MB/s to the GPU that decodes it."""
    slow = SMALL.changed(prefill_gpus=2, overrides={"nic.bandwidth_GB_per_s": 0.05, "nic.efficiency": 1.0})
    result = EXPERIMENT.run(slow, arrivals="1", count=1)
    served, nbytes = result.served, 100 * result.caches[0].position_bytes
    assert served and served.handover
    assert served.handover.max_us == pytest.approx(nbytes / 0.05e3, rel=1e-3)


def test_lengths_and_rates(tmp_path: Path) -> None:
    def made(spec: ArrivalSpec = SMALL, **asked: object) -> tuple[list[int], list[int]]:
        found = requests_of(spec.changed(count=5, **asked))
        return found.prompt.tolist(), found.output.tolist()

    assert made() == ([100] * 5, [8] * 5)
    prompts, outputs = made(prompts="uniform:3:9", outputs="2")
    assert outputs == [2] * 5 and 3 <= min(prompts) <= max(prompts) <= 9
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt,output\n0,3,4\n2,5,6\n")
    assert made(arrivals=str(path)) == ([3, 5], [4, 6])
    assert not requests_of(SMALL.changed(arrivals="once", count=9)).arrival_ps.any()
    decoding = SMALL.changed(trace="gpt-oss-20b-decode", lengths="trace", model=None)
    assert len(set(made(decoding)[0])) > 1
    half = requests_of(SMALL.changed(arrivals="0.5", count=9))
    whole = requests_of(SMALL.changed(arrivals="1", count=9))
    assert np.allclose(half.arrival_ps, 2 * whole.arrival_ps, atol=2)
    for asked, message in (
        ({"arrivals": str(path), "prompts": "3"}, "have lengths of their own"),
        (
            {"arrivals": "none.csv"},
            "cannot read requests from none.csv: .*; possible: requests per",
        ),
        ({"lengths": "trace", "prompts": "3"}, "leave these two out, or lengths"),
        ({"prompts": ""}, "lengths '': expected a number of tokens"),
        ({"outputs": ""}, "lengths '': expected a number of tokens"),
        ({"arrivals": "nan"}, "rate nan"),
    ):
        with pytest.raises(UserError, match=message):
            made(**asked)
    with pytest.raises(UserError, match="no trace is given"):
        made(SMALL.changed(lengths="trace"))


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(UserError, match="needs a limit: ttft_ms or tpot_ms"):
        EXPERIMENT.run(SMALL, search=True)
    with pytest.raises(UserError, match=r"GB of weights, .* do not fit a GPU of 0.9 GB"):
        EXPERIMENT.run(SMALL, memory=0.01, count=2)
    with pytest.raises(UserError, match="unknown policy 'x'; known: mixed, prefill-first, whole-"):
        ArrivalSpec(policy="x")
    for limit in ("ttft_ms", "tpot_ms"):
        for number in (float("inf"), float("nan"), 1e307):
            with pytest.raises(UserError, match=rf"^{limit} must be "):
                ArrivalSpec(**{limit: number})
    for number in (float("nan"), float("-inf"), 0.0):
        with pytest.raises(UserError, match=r"^burstiness must be above 0"):
            ArrivalSpec(burstiness=number)
    for number in (1e40, 1e300, 1e-40, 5e-324):  # not drawn, or not a number of a result
        with pytest.raises(UserError, match=r"^burstiness must be from 1e-12 to 1e\+12, or inf"):
            ArrivalSpec(burstiness=number)


def test_gaps_are_drawn_up_to_the_largest_burstiness() -> None:
    asked = SMALL.changed(arrivals="50", count=1001, burstiness=1e12)
    gaps = np.diff(requests_of(asked).arrival_ps) / 1e12
    assert gaps.sum() == pytest.approx(1000 / 50)
    # The squared coefficient of variation of a gamma distribution is the inverse of its shape.
    assert gaps.std() / gaps.mean() == pytest.approx(1e-6, rel=0.1)
    assert ArrivalSpec.from_toml(asked.to_toml()) == asked


def test_equal_gaps_are_asked_for_and_come_back(tmp_path: Path) -> None:
    """Infinity is no number of JSON."""
    asked = SMALL.changed(arrivals="50", count=4, burstiness=float("inf"))
    assert ArrivalSpec.from_toml(asked.to_toml()) == asked
    assert ArrivalSpec(burstiness="inf").burstiness == float("inf")
    result, path = EXPERIMENT.run(asked), tmp_path / "result.json"
    assert result.run_id != EXPERIMENT.run(asked.changed(burstiness=1.0)).run_id
    result.save(path)
    assert EXPERIMENT.load_result(path) == result
    assert json.loads(path.read_text("utf-8"))["spec"]["burstiness"] == "inf"


@pytest.mark.extended
def test_schemes_are_ranked_by_what_a_request_takes() -> None:
    compared = EXPERIMENT.compare(SMALL, ["deepep-ll", "dysharp"], arrivals="50", count=4)
    assert compared.baseline == "deepep-ll"
    for one in compared.results:
        assert one.served is not None and one.headline_us == one.served.e2e.mean_us
    first, second = compared.ranking
    assert first.headline_us <= second.headline_us
    other = EXPERIMENT.compare(SMALL, ["deepep-ll", "dysharp"], arrivals="50", count=4, baseline="dysharp")
    assert other.speed_up("dysharp") == 1 and other.results == compared.results


def test_a_search_ranks_by_the_largest_rate() -> None:
    limits = {"ttft_ms": 40.0, "tpot_ms": 20.0, "rate_tolerance": 0.5}
    found = EXPERIMENT.run(SMALL, arrivals="9", count=8, search=True, **limits)
    assert found.capacity is not None and found.capacity.rate_per_s
    assert found.headline_us == 1e6 / found.capacity.rate_per_s


@pytest.mark.extended
def test_a_search_that_finds_no_rate_ranks_last() -> None:
    none = EXPERIMENT.run(SMALL, arrivals="9", count=2, search=True, ttft_ms=1e-3)
    assert none.served is None and none.headline_us == float("inf")


def moereplay(*arguments: str) -> int:
    """Run ``moereplay infer``; its exit code."""
    return end_of("infer", *arguments)


@pytest.mark.extended
def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = [
        "--model",
        "deepseek-v2-lite",
        "--system",
        "dgx-h100",
        "--decode-gpus",
        "2",
        "--requests",
        "8",
        "--chunk",
        "128",
        "--prompt",
        "100",
        "--output",
        "7",
        "--tolerance",
        "1.0",
        "--sample-layers",
        "1",
    ]
    out = tmp_path / "served.json"
    search = ["--arrivals", "9", "--count", "24", "--search", "--tpot-ms", "20", "--ttft-ms", "40"]
    assert moereplay(*settings, *search, "--rate-tolerance", "0.5", "--json", str(out)) == 0
    text = capsys.readouterr().out
    assert "Latencies, median and 99th percentile" in text
    assert max(map(len, text.splitlines())) <= 100
    (result,) = json.loads(out.read_text())["results"]
    rate = result["capacity"]["rate_per_s"]
    assert rate and f"is kept up to {rate:,.4g}" in " ".join(text.split())
    assert result["served"]["offered_per_s"] == pytest.approx(rate)
    for wrong, message in (
        (["--policy", "mixed"], "--policy can only be given with --arrivals"),
        (["--arrivals", "1", "--baseline", "deepep"], "unknown baseline 'deepep'"),
    ):
        assert moereplay(*settings, *wrong) == 2
        assert message in capsys.readouterr().err
