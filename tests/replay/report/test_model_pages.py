"""Pages of tensor parallelism, collectives, training, serving, searches: what results hold."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from made_search import made_cost, made_row, made_search
from typer.testing import CliRunner

from replay.cli.app import app
from replay.experiments import dense as tensor
from replay.experiments import train as training
from replay.experiments.ask import collective
from replay.experiments.collective.result import CollectiveResult
from replay.experiments.collective.spec import size_text, sizes_of
from replay.experiments.dense.result import TensorComparison
from replay.experiments.serve.arrivals.experiment import EXPERIMENT as ARRIVALS
from replay.experiments.serve.arrivals.result import ArrivalComparison
from replay.experiments.serve.arrivals.spec import ArrivalSpec
from replay.experiments.serve.experiment import EXPERIMENT as SERVE
from replay.experiments.serve.result import InferComparison
from replay.experiments.serve.spec import InferSpec
from replay.experiments.train import TrainComparison, setup
from replay.report.pages import page
from tests.replay.train.made import MadeReplays
from tracegen.shared.display.content import Bars, Page, Plot

SERVED = InferSpec(model="olmoe-1b-7b", decode_gpus=2, requests=4, prompt=32, output=2, chunk=64, sample_layers=1)


def chart(of: Page, name: str) -> Any:
    (found,) = [one for one in of.charts() if one.name == name]
    return found


def lengths(bars: Bars) -> dict[str, float]:
    sums = [sum(values) for values in zip(*(part.values for part in bars.parts), strict=True)]
    return dict(zip(bars.labels, sums, strict=True))


def made_again(of: Page, tmp_path: Path) -> Path:
    """Run the command of a page; gives the file of its result."""
    path = tmp_path / "again.json"
    words = shlex.split(of.command)
    assert words[0] == "moereplay"
    done = CliRunner().invoke(app, [*words[1:], "--json", str(path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return path


# ---- tensor parallelism --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dense() -> TensorComparison:
    return tensor.compare(schemes=["tp-ring", "sp-ring", "t3"], model="llama-2-7b", tp=4, tokens=512)


def test_the_bars_of_a_layer_add_up_to_its_time(dense: TensorComparison) -> None:
    shown = page(dense)
    for label, taken in lengths(chart(shown, "time")).items():
        assert taken == pytest.approx(dense[label.rstrip("*")].time_us)
    for label, megabytes in lengths(chart(shown, "wires")).items():
        name, _, words = label.partition(", ")
        way = getattr(dense[name.rstrip("*")], "up" if words == "out" else "down")
        assert megabytes == pytest.approx(sum(way.wire_bytes) / 4 / 1e6)


def test_shades_over_time_have_the_mean_use(dense: TensorComparison) -> None:
    heat = chart(page(dense), "use-uplink")
    longest = max(one.time_us for one in dense.results)
    for label, row in zip(heat.rows, heat.values, strict=True):
        one = dense[label.rstrip("*")]
        width = longest / len(heat.columns)
        busy = sum(
            share * min(width, one.time_us - place * width) for place, share in enumerate(row) if share is not None
        )
        assert busy / one.time_us / 100 == pytest.approx(one.up.utilisation, abs=0.02)


def test_the_summary_of_layers_names_what_can_be_built(dense: TensorComparison) -> None:
    shown = page(dense).summary
    assert shown.startswith("t3* is the fastest of 3 schemes")
    order = sorted(dense.results, key=lambda one: one.time_us)
    built = next(one for one in order if not one.scheme.proposes)
    assert f"without, {built.scheme.name} is the fastest" in shown


def test_commands_make_layers_again(dense: TensorComparison, tmp_path: Path) -> None:
    again = tensor.load_result(made_again(page(dense), tmp_path))
    assert again == dense
    alone = tensor.run(model="llama-2-7b", tp=4, tokens=256, scheme="sp-ring", overrides={"gpu.num_sms": 100})
    found = tensor.load_result(made_again(page(alone), tmp_path))
    assert isinstance(found, tensor.TensorResult)
    assert (found.run_id, found.measures) == (alone.run_id, alone.measures)


# ---- collectives ---------------------------------------------------------------------------------


def test_a_collective_is_drawn_by_size_and_made_again(tmp_path: Path) -> None:
    result = collective(
        op="allgather", bytes=[1000, 65536], algorithm=["nccl", "ring"], ranks=4, overrides={"nccl.nvls_channels": 8}
    )
    shown = page(result)
    drawn = chart(shown, "bandwidth")
    assert isinstance(drawn, Plot) and drawn.x.log and drawn.y.log
    assert [line.name for line in drawn.lines] == ["nccl", "ring"]
    for line in drawn.lines:
        rows = [row for row in result.rows if row.algorithm == line.name]
        assert list(line.x) == [1000 / 2**20, 2**-4]  # MiB
        assert list(line.y) == [row.bus_GB_per_s for row in rows]
    again = CollectiveResult.model_validate_json(made_again(shown, tmp_path).read_text())
    assert again.rows == result.rows and again.run_id == result.run_id


def test_sizes_are_written_as_they_are_read() -> None:
    for size in (1, 1000, 1024, 3 << 20, 1 << 30, (1 << 30) + 1):
        assert sizes_of(size_text(size)) == [size]


# ---- training ------------------------------------------------------------------------------------


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> TrainComparison:
    monkeypatch.setattr(setup, "StepReplays", MadeReplays)
    return training.compare(
        schemes=["deepep", "ideal"],
        baseline="ideal",
        model="olmoe-1b-7b",
        plan="pp=2,dp=4,ep=4",
        sequence=512,
        options={"deepep": {"num_sms": "16"}},
    )


def test_the_bars_of_a_step_add_up_to_it(trained: TrainComparison) -> None:
    shown = page(trained)
    bars = chart(shown, "step")
    unit_us = {"s": 1e6, "ms": 1e3}[bars.unit]
    for label, taken in lengths(bars).items():
        assert taken * unit_us == pytest.approx(trained[label].step_us)
    first = min(trained.results, key=lambda one: one.step_us)
    for taken in lengths(chart(shown, "stages")).values():
        assert taken * unit_us == pytest.approx(first.step_us)
    needs = [sum(one.values()) / 1e9 for one in first.memory]
    assert list(lengths(chart(shown, "memory")).values()) == pytest.approx(needs)
    speed_ups = lengths(chart(shown, "speed-up"))
    assert speed_ups == {name: trained.speed_up(name) for name in speed_ups}


def test_commands_make_a_step_again(trained: TrainComparison, tmp_path: Path) -> None:
    again = training.load_result(made_again(page(trained), tmp_path))
    assert again == trained
    one = trained["deepep"]
    again = training.load_result(made_again(page(one), tmp_path))
    assert isinstance(again, TrainComparison) and again.results == [one]


# ---- serving -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> InferComparison:
    return SERVE.compare(SERVED, ["deepep-ll", "nccl-alltoall"], baseline="nccl-alltoall")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_bars_of_an_iteration_add_up_to_it(served: InferComparison, phase: str) -> None:
    for label, taken in lengths(chart(page(served), f"iteration-{phase}")).items():
        found = getattr(served[label], phase)
        assert taken * 1e3 == pytest.approx(found.time_us / found.iterations)


def test_memory_of_serving_is_held_against_what_there_is(served: InferComparison) -> None:
    bars = chart(page(served), "memory")
    for place, label in enumerate(bars.labels):
        found = served[label].decode.memory
        held = found.weight_bytes + found.iteration_bytes + found.cache_positions * found.position_bytes
        assert lengths(bars)[label] == pytest.approx(held / 1e9)
        assert bars.marks[place] == found.capacity_bytes / 1e9


def test_commands_serve_a_batch_again(served: InferComparison, tmp_path: Path) -> None:
    assert SERVE.load_result(made_again(page(served), tmp_path)) == served


@pytest.mark.extended
def test_requests_that_arrive_are_drawn_and_served_again(tmp_path: Path) -> None:
    small = {**SERVED.model_dump(), "prompt": 8, "chunk": 16}
    found = ARRIVALS.compare(ArrivalSpec(**small, arrivals="400", count=4, ttft_ms=50.0), ["deepep-ll"])
    shown = page(found)
    (one,) = found.results
    assert one.served is not None
    (line,) = chart(shown, "ttft").lines
    assert line.y[-1] == one.served.ttft.max_us / 1e3 and line.x[-1] == 100
    assert list(line.y) == sorted(line.y)
    assert "keep the limits" in shown.summary
    again = ArrivalComparison.model_validate_json(made_again(shown, tmp_path).read_text())
    assert again == found


# ---- searches ------------------------------------------------------------------------------------


def test_a_search_has_its_best_named_and_every_candidate_drawn() -> None:
    rows = [
        made_row(
            made_cost(
                2000.0 + layers,
                {"experts": 1500.0, "exchange": 500.0 + layers},
                tokens_per_s=1e6 / layers,
                mfu=0.4 / layers,
            ),
            {"num_layers": layers, "hidden": 512},
            total_parameters=layers * 10**9,
        )
        for layers in (2, 3, 4)
    ]
    shown = page(made_search(rows, "tokens", looked_at=9, left_out={"no": 2}, pruned=4))
    best, others = chart(shown, "mfu-1").lines
    assert best.labels == ["2 layers"] and list(best.y) == [100 * rows[0].cost.mfu]
    assert len(others.x) == 2
    assert list(lengths(chart(shown, "step-1")).values()) == pytest.approx([2.002, 2.003, 2.004])
    assert "2 layers: 500,000 tokens/s, MFU 20.0%. It leads the second by 50.0%." in shown.summary
    (counts,) = [table for table in shown.tables() if table.name == "candidates-1"]
    assert sum(row[2] for row in counts.rows) == 9
