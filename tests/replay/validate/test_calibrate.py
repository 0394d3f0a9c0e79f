"""The script that fits constants: how it writes a preset, and what it takes for a shape."""

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from loops import every

from replay.studies.validate.catalog import TABLES

SCRIPT = Path(__file__).parents[3] / "scripts" / "calibrate.py"
TEXT = """name = "x"

[gpu]
num_sms = { value = 8, source = "here", confidence = "high" }
clock_GHz = { value = 1.0, source = "here", confidence = "high" }

[hbm]
peak_GB_per_s = { value = 1.0, source = "here", confidence = "high" }
"""


@pytest.fixture(scope="module")
def calibrate():
    spec = importlib.util.spec_from_file_location("calibrate", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@every("key", ["gpu.clock_GHz", "gpu.num_sms", "hbm.peak_GB_per_s", "gpu.new_ns", "hbm.new_ns", "a.b"])
def test_a_constant_is_replaced_or_added_to_its_section(calibrate, key):
    section, leaf = key.split(".")
    text = calibrate.file_text(TEXT, key, 2.5, "fitted")
    before, after = tomllib.loads(TEXT), tomllib.loads(text)
    wanted = {"value": 2.5, "source": "fitted", "confidence": "medium", "spread": "fitted"}
    assert after.pop(section) == {**before.pop(section, {}), leaf: wanted}
    assert after == before
    assert calibrate.file_text(text, key, 2.5, "fitted") == text


def test_every_fit_has_rows_to_fit_and_others_to_check(calibrate):
    for fit in calibrate.FITS:
        used, checked = ({row.line for row in calibrate.rows_of(fit.table, holds)} for holds in (fit.used, fit.checked))
        assert used and checked and not used & checked, fit.start
        # Other machines of the table take the constants from the preset that is fitted.
        measured = {
            row.setting["system"] if len(TABLES[fit.table].systems) > 1 else fit.preset
            for row in calibrate.rows_of(fit.table, fit.about)
        }
        presets = {name: calibrate.PRESETS / f"{name}.toml" for name in measured}
        bases = {
            name if name == fit.preset else tomllib.loads(path.read_text("utf-8"))["base"]
            for name, path in presets.items()
        }
        assert bases == {fit.preset}
        assert len(fit.shapes()) > 1, fit.start
        assert any(fit.sampled(row) for row in calibrate.rows_of(fit.table, fit.about))


def test_every_shape_is_predicted_from_the_others(calibrate, monkeypatch, capsys):
    # Shape 1 wants a constant of 1, shape 2 one of 2.
    rows = [{"shape": number} for number in (1, 1, 2, 2)]
    fit = SimpleNamespace(
        table="t",
        preset="p",
        start={"section.constant": 1.5},
        about=None,
        used=None,
        sampled=lambda row: True,
        shapes=lambda: [(1,), (2,)],
    )
    monkeypatch.setattr(calibrate, "shape", lambda row: (row["shape"],))
    monkeypatch.setattr(calibrate, "rows_of", lambda table, holds: rows)
    monkeypatch.setattr(
        calibrate,
        "errors",
        lambda table, rows, values: np.array([values["section.constant"] / row["shape"] - 1 for row in rows]),
    )
    calibrate.leave_one_out([fit])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[:4] for line in lines] == [
        ["| t", "constant", "1", "2"],
        ["| t", "constant", "2", "2"],
    ]
    assert [float(line[5].strip(" |")) for line in lines] == [100.0, 50.0]
