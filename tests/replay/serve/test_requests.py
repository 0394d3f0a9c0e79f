"""Requests: drawn, of a trace's lengths, and from files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

import tracegen
from replay.errors import UserError
from replay.experiments.serve import request_files
from replay.experiments.serve.requests import (
    MOST_REQUESTS,
    Requests,
    _gaps,
    draw_requests,
    lengths,
    lengths_of,
)

ONE = lengths("1"), lengths("1")


def test_gaps_have_the_rate_and_the_spread_that_was_asked_for() -> None:
    for burstiness in (0.5, 1.0, 4.0):
        requests = draw_requests(20_000, ONE, burstiness=burstiness, seed=2).at_rate(50.0)
        gaps = np.diff(requests.arrival_ps) / 1e12
        assert requests.rate == pytest.approx(50, rel=1e-9)
        assert gaps.mean() == pytest.approx(1 / 50, rel=1e-9)
        # The variance of a gamma distribution of shape b and mean m is m^2 / b.
        assert gaps.var() == pytest.approx(1 / 50**2 / burstiness, rel=0.05)
    even = draw_requests(5, ONE, burstiness=float("inf")).at_rate(2.0)
    assert even.arrival_ps.tolist() == [0, 5 * 10**11, 10**12, 15 * 10**11, 2 * 10**12]


@given(rate=st.floats(1e-3, 1e6), seed=st.integers(0, 99))
def test_another_rate_stretches_the_same_requests(rate: float, seed: int) -> None:
    slow = draw_requests(12, (lengths("uniform:1:9"), lengths("lognormal:100:1")), seed=seed)
    fast = slow.at_rate(rate)
    assert slow.rate == pytest.approx(1)
    assert np.array_equal(slow.prompt, fast.prompt) and np.array_equal(slow.output, fast.output)
    assert np.allclose(fast.arrival_ps * rate, slow.arrival_ps, rtol=1e-6, atol=2 * rate)
    assert not slow.at_rate(float("inf")).arrival_ps.any()


def test_lengths() -> None:
    rng = np.random.default_rng(0)
    assert set(lengths("7").draw(5, rng).tolist()) == {7}
    uniform = lengths("uniform:3:5").draw(3000, rng)
    assert np.bincount(uniform)[3:] == pytest.approx([1000] * 3, rel=0.1)
    lognormal = lengths("lognormal:1000:0.5").draw(20_000, rng)
    assert np.median(lognormal) == pytest.approx(1000, rel=0.02)
    assert np.log(lognormal).std() == pytest.approx(0.5, rel=0.02)


@every("text", ["", "0", "1.5", "-3", "nan", "1e99", "uniform:5:3", "uniform:1", "lognormal:8", "a:b"])
def test_lengths_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected a number of tokens such as 1024, uniform"):
        lengths(text)


def test_numbers_are_refused() -> None:
    for rate, what in (
        (0.0, "rate 0.0: expected a number above 0"),
        (float("nan"), "rate nan"),
        (1e-9, "more than 100 days"),
    ):
        with pytest.raises(UserError, match=what):
            draw_requests(3, ONE).at_rate(rate)
    with pytest.raises(UserError, match="no gaps"):
        draw_requests(3, ONE).at_rate(float("inf")).at_rate(1.0)


def test_lengths_of_a_trace_are_its_positions() -> None:
    trace = tracegen.load("gpt-oss-20b-decode")
    prompt, output = lengths_of(trace)
    numbers = np.unique(trace.tokens.request)
    for place in (0, len(numbers) // 2, len(numbers) - 1):
        rows = trace.tokens.request == numbers[place]
        positions = trace.tokens.position[rows]
        decoded = trace.tokens.phase[rows] == 1
        assert prompt[place] == (positions[decoded].min() if decoded.any() else positions.max() + 1)
        assert output[place] == decoded.sum() + 1
    requests = draw_requests(50, trace, seed=1)
    pairs = set(zip(prompt.tolist(), output.tolist(), strict=True))
    assert set(zip(requests.prompt.tolist(), requests.output.tolist(), strict=True)) <= pairs
    assert len(set(requests.prompt.tolist())) > 5


def write(folder: Path, text: str) -> Path:
    path = folder / "requests"
    path.write_text(text)
    return path


WANTED = [[0, 7, 2], [250 * 10**9, 4808, 10], [27 * 10**12, 9, 1]]


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt,output\n1.25,4808,10\n1,7,2\n28,9,1\n",
        "output,extra,prompt,arrival_s\n10,x,4808,0.25\n2,,7,0\n1,,9,27\n",
        (
            '{"arrival_s": 0, "prompt": 7, "output": 2}\n'
            '{"arrival_s": 27, "prompt": 9, "output": 1}\n'
            '\n{"arrival_s": 0.25, "prompt": 4808, "output": 10}\n'
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.7299600,7,2\r\n"
            "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:30.7299600,9,1\r\n"
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,7,2\n"
            "2024-05-10 00:00:00.250000+00:00,4808,10\n2024-05-10 02:00:27+02:00,9,1\n"
        ),
        (
            '{"timestamp": 0, "input_length": 7, "output_length": 2, "hash_ids": [0, 1]}\n'
            '{"timestamp": 250, "input_length": 4808, "output_length": 10, "hash_ids": []}\n'
            '{"timestamp": 27000, "input_length": 9, "output_length": 1, "hash_ids": [0]}\n'
        ),
    ],
)
def test_files(tmp_path: Path, text: str) -> None:
    found = request_files.read(write(tmp_path, text))
    assert np.array([found.arrival_ps, found.prompt, found.output]).T.tolist() == WANTED
    assert len(request_files.read(write(tmp_path, text), most=2)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no requests: expected CSV or JSONL with arrival_s, prompt, output; or"),
        ("a,b\n1,2\n", "has columns 'a, b': expected arrival_s"),
        ("arrival_s,prompt,output\n0,1,1\n1,3\n", "line 3: output = None: expected tokens, 1 to"),
        ("arrival_s,prompt,output\nnan,1,1\n", "line 2: arrival_s = 'nan': expected seconds"),
        ("arrival_s,prompt,output\n-1e12,1,1\n", "line 2: arrival_s = '-1e12': expected seconds"),
        ("arrival_s,prompt,output\n0,0,1\n", "line 2: prompt = '0': expected tokens, 1 to"),
        ("arrival_s,prompt,output\n0,1,2.5\n", "line 2: output = '2.5'"),
        ('arrival_s,prompt,output\n0,"1,2\n', "line 2: unexpected end of data"),
        ('{"timestamp": 0, "input_length": 1}\n', "has columns 'timestamp, input_length'"),
        ('{"timestamp": 0\n', "line 1: .* expected one JSON object a line"),
        (f'{{"timestamp": {"9" * 5000}}}\n', "line 1: .* expected one JSON object a line"),
        (
            '{"timestamp": 0, "input_length": true, "output_length": 1}\n',
            "line 1: input_length = True",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
            "line 2: TIMESTAMP = 'yesterday': expected a time such as 2023-11-16",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01,1,1\n2023-11-16,1,1\n",
            "arrivals span more than 100 days",
        ),
    ],
)
def test_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        request_files.read(write(tmp_path, text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300 + len(str(tmp_path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        request_files.read(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not text"):
        request_files.read(tmp_path / "bytes")


@pytest.mark.extended
@given(st.text(max_size=80) | st.from_regex(r'\{"(timestamp|prompt)": [^\n]{0,20}\}\n?'))
def test_anything_is_read_or_refused(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(UserError):
            assert isinstance(request_files.read(path), Requests)


def test_arrivals_of_the_most_requests_fit_into_whole_picoseconds() -> None:
    last = _gaps(MOST_REQUESTS, float("inf"), 0)[-1]
    assert last == (MOST_REQUESTS - 1) * 10**12
