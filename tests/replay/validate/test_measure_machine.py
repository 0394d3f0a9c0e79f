"""What the measuring script does without a GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest

import hwmodel

SCRIPT = Path(__file__).parents[3] / "scripts" / "measure_machine.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("measure_machine", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_machine"] = module
    spec.loader.exec_module(module)
    return module


def test_a_slope_by_hand(script):
    assert script.slope_and_start([(10, 25e-6), (110, 125e-6)]) == pytest.approx((1e-6, 15e-6))
    with pytest.raises(ValueError, match="two different sizes"):
        script.slope_and_start([(3, 1.0), (3, 2.0)])


def test_samples_of_a_known_machine_give_its_constants(script):
    peaks = script.base_peaks("dgx-h100")
    sample = script.Sample
    samples = [
        sample("gemm-bf16", {"operations": 8e12}, 8e12 / (0.8 * 989.4e12)),
        sample("gemm-bf16", {"operations": 1e9}, 1.0),
        sample("stream", {"bytes": 2 << 30}, (2 << 30) / (0.9 * 3350e9)),
        sample("empty-kernels-graph", {"kernels": 10}, 17e-6),
        sample("empty-kernels-graph", {"kernels": 100}, 125e-6),
        sample("launch", {}, 4e-6),
        sample("launch", {}, 5e-6),
        sample("launch", {}, 90e-6),
        sample("pair-copy", {"bytes": 1 << 28}, (1 << 28) / (450e9 * 0.9435 * 16 / 17)),
    ]
    found = script.constants(samples, peaks)
    assert found == pytest.approx(
        {
            "compute.bf16_efficiency": 0.8,
            "hbm.stream_efficiency": 0.9,
            "overheads.kernel_gap_graph_us": 1.2,
            "overheads.launch_us": 5.0,
            "link.efficiency": 0.9435,
        }
    )


def test_the_preset_it_writes_is_one(script, tmp_path):
    values = {"hbm.stream_efficiency": 0.87654321, "compute.bf16_efficiency": 0.8}
    text = script.preset_text("mine", "hgx-h200", 'a "machine"', values, "measured on a day")
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    system = hwmodel.load(path)
    assert system.name == "mine" and system.summary == 'a "machine"'
    assert system.spec.hbm.stream_efficiency.value == 0.8765
    assert system.spec.hbm.stream_efficiency.source == "measured on a day"
    assert system.spec.hbm.peak_GB_per_s.value == 4800
