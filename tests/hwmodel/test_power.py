"""Power by hand, loads of an H200 that ran for seconds, and machines at another clock."""

from __future__ import annotations

import csv
from importlib import resources

import pytest
from loops import every

import hwmodel
from hwmodel.attention import Scores
from hwmodel.power import GpuWork, Power, at_clock

H200 = hwmodel.load("hgx-h200")
CUBE, WIDE, THIN = 2 * 8192**3, 2 * 16384 * 4096 * 2048, 2 * 16384 * 1536 * 2048
COPY = 2 << 30  # read and written
ATTENTION = 2 * 32 * 4 * 128 * 128**2 * (32 * 33 // 2)
P = "BF16 8192 x 8192 x 8192"
LOADS = {
    P: GpuWork(CUBE, "bf16", 0),
    "BF16 16384 x 4096 x 2048": GpuWork(WIDE, "bf16", 0),
    "BF16 16384 x 1536 x 2048": GpuWork(THIN, "bf16", 0),
    "copy of 1 GiB": GpuWork(0, "bf16", COPY),
    f"{P}, then copies as long": GpuWork(CUBE, "bf16", 2 * COPY),
    f"{P}, then copies 3 times as long": GpuWork(CUBE, "bf16", 5 * COPY),
    f"3 {P}, then copies a third as long": GpuWork(3 * CUBE, "bf16", 2 * COPY),
    f"{P}, then idle": GpuWork(CUBE, "bf16", 0),
    "FP8 8192 x 8192 x 8192": GpuWork(CUBE, "fp8", 0),
    "FP8 16384 x 4096 x 2048": GpuWork(WIDE, "fp8", 0),
}


def power_of(system: hwmodel.System) -> Power:
    found = Power.of(system)
    assert found is not None
    return found


def measured() -> dict[str, dict[str, float]]:
    """Values by load and quantity."""
    file = resources.files("replay.studies.validate.measurements") / "sustained.csv"
    found: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(file.read_text("utf-8").splitlines()):
        found.setdefault(row["load"], {})[row["quantity"]] = float(row["value"])
    return found


def late_us(power: Power, work: GpuWork, alone_us: float, products_us: float) -> float:
    """Time of a load that runs for seconds."""
    clock = power.clock_GHz(work, alone_us / 1e6, 0.0, products_us / 1e6)
    return alone_us + products_us * (max(1.0, power.matrix_GHz / clock) - 1)


def test_power_and_clock_by_hand() -> None:
    power = Power(500.0, 100.0, 50.0, {"bf16": 1.0, "fp8": 0.5}, 1.5, 2.0)
    work = GpuWork(400e12, "bf16", 2e12)
    # 100 W, 400 J and 100 J in a second; above 1.5 GHz products are no faster, nor cost more.
    assert power.watts(work, 1.0, 2.0) == power.watts(work, 1.0, 1.5) == pytest.approx(600)
    assert power.watts(work, 1.0, 0.75) == pytest.approx(100 + 200 + 100)
    assert power.watts(GpuWork(400e12, "fp8", 2e12), 2.0, 1.5) == pytest.approx(100 + 100 + 50)
    # Products alone: 100 + 400 (f / 1.5) / (1.5 / f) + 100 / (1.5 / f) <= 500 W.
    assert power.clock_GHz(work, 1.0, 0.0, 1.0) == 1.32
    assert 100 + 400 * 0.88**2 + 100 * 0.88 < 500 < 100 + 400 * 0.89**2 + 100 * 0.89
    # Time that is no product does not grow: the clock falls further.
    assert power.clock_GHz(work, 1.0, 0.0, 0.0) == 1.125
    assert power.clock_GHz(GpuWork(300e12, "bf16", 0), 1.0, 0.0, 1.0) == 1.995  # the highest of 15 MHz each


def test_loads_for_seconds_follow_from_loads_alone() -> None:
    """Two of them gave the energies; of the others the furthest is 4 % off."""
    power, table, errors = power_of(H200), measured(), {}
    for name, work in LOADS.items():
        alone = table[name]["alone_us"]
        copies = work.nbytes / COPY * table["copy of 1 GiB"]["alone_us"]
        products = table[P]["alone_us"] if "idle" in name else max(alone - copies, 0.0)
        errors[name] = late_us(power, work, alone, products) / table[name]["late_us"] - 1
    assert max(map(abs, errors.values())) < 0.04, errors
    assert sum(map(abs, errors.values())) / len(errors) < 0.012
    # As if there were no limit, products alone would be 13 to 17 % too fast.
    for name in (P, "BF16 16384 x 4096 x 2048", "FP8 8192 x 8192 x 8192"):
        assert table[name]["alone_us"] / table[name]["late_us"] < 0.87


def test_attention_for_seconds_draws_what_its_products_do() -> None:
    """It runs at the highest clock alone, and slows from there."""
    power, found = power_of(H200), measured()["attention forward, heads of 128"]
    work, alone = GpuWork(ATTENTION, "bf16", 0), found["alone_us"]
    held = next(
        clock
        for clock in power.clocks()
        if power.watts(work, alone * power.most_GHz / clock / 1e6, clock) <= power.limit_W
    )
    assert alone * power.most_GHz / held == pytest.approx(found["late_us"], rel=0.045)
    assert held == pytest.approx(found["clock_MHz"] / 1e3, abs=0.06)


@every("clock", [1.98, 1.755, 1.2])
def test_a_machine_at_another_clock(clock: float) -> None:
    slow, sms = at_clock(H200, clock), H200.sm.num_sms
    matrix, attention = max(1.0, 1.755 / clock), 1.98 / clock
    for dtype in ("bf16", "fp8", "fp32"):
        one, other = (each.compute.gemm_time_ps(8192, 8192, 8192, dtype, sms) for each in (H200, slow))
        assert other == pytest.approx(matrix * one, rel=0.03), dtype
    scores = Scores(10**9, 10**4, 10**6)
    for name in ("forward_ps", "backward_ps"):
        one, other = (getattr(each.attention, name)(scores, 64, 64, 0) for each in (H200, slow))
        assert other == pytest.approx(attention * one, rel=1e-4), name
    assert slow.attention.decode_ps(10**12, 0) == pytest.approx(
        attention * H200.attention.decode_ps(10**12, 0), rel=1e-4
    )
    assert slow.hbm.stream_ps(10**9) == H200.hbm.stream_ps(10**9)
    assert slow.overheads == H200.overheads and slow.link == H200.link


def test_machines_whose_power_is_known() -> None:
    nodes = (name for name in hwmodel.names() if "-x" not in name)
    known = {name for name in nodes if Power.of(hwmodel.load(name)) is not None}
    assert known == {"dgx-h100", "hgx-h200", "hgx-h800", "aws-p5"}
    assert all(power_of(hwmodel.load(name)).limit_W == 700 for name in known)
    assert not power_of(H200).knows("fp32")
