"""DeepEP's calls with and without a cached layout, and how validation continues large sizes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer

from hwmodel.units import PS_PER_US
from replay.schemes import SCHEMES
from replay.schemes.ep.deepep.normal import DeepEp, DeepEpOptions
from replay.studies.validate import deepep
from replay.studies.validate.bench import Bench, even_work, uniform_work
from replay.studies.validate.catalog import TABLES
from replay.studies.validate.table import MeasurementRow, has


@pytest.mark.extended
@every("num_ranks", [1, 2, 8])
@every("fence_us", [0.0, 1.0, 12.2])
def test_a_cached_layout_is_never_slower(num_ranks: int, fence_us: float) -> None:
    bench = Bench({"overheads.fence_us": fence_us})
    for tokens in (0, 1, 8, 64, 512):
        work = uniform_work(num_ranks, tokens, 32, 4, 1024)
        cached, uncached = (
            replay_layer(
                work,
                bench.system("dgx-h100"),
                SCHEMES["deepep"].with_options({"cached_layout": is_cached}),
            ).measures.makespan_us
            for is_cached in (True, False)
        )
        assert cached < uncached, tokens


@pytest.mark.extended
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_large_sizes_go_on_as_smaller_ones_do(phase: str) -> None:
    setting = dict(TABLES["deepep_normal"].rows()[0].setting)
    row = MeasurementRow("", 0, {**setting, "phase": phase, "num_sms": 24, "tokens_per_rank": 8192}, 0.0)
    continued = deepep.predict(Bench(), row)
    scheme = DeepEp(DeepEpOptions(num_sms=24, cached_layout=True, dispatch_chunk=6, combine_chunk=6, ring_tokens=256))
    build = partial(getattr(scheme, phase), even_work(8, 8192, 128, 8, 2048))
    replayed = Bench().time_us(Bench().system("dgx-h100"), 8, build)
    assert replayed == pytest.approx(continued, rel=0.01)


def test_a_notify_kernel_waits_for_the_gpu_that_left_the_kernel_before_last(monkeypatch: pytest.MonkeyPatch) -> None:
    first, bench = deepep.INTERNODE_NOTIFY.rows()[0], Bench()

    def took(late_us: int) -> float:
        left = np.array([0] * 15 + [late_us * PS_PER_US])
        monkeypatch.setattr(deepep, "_transmit", lambda *_: left)
        return deepep.predict_internode_notify(bench, first)

    # 15 of 16 wait for 160 us; the last finds the flags of their first barrier there already.
    assert 145 < took(160) - took(0) < 150


def test_a_transmit_kernel_ends_on_each_gpu_when_its_own_rows_are_through() -> None:
    row = MeasurementRow("", 0, {**deepep.INTERNODE.rows()[0].setting, "tokens_per_rank": 64}, 0.0)
    bench = Bench()
    left = deepep._transmit(bench, row, 64, uniform_work)
    assert 0 < left.min() < left.max()
    assert deepep.predict_internode(bench, row) == pytest.approx(sum(left.tolist()) / 16 / PS_PER_US)


def test_rows_of_the_normal_kernels_on_64_gpus_count_in_no_statistic() -> None:
    first = TABLES["deepep_internode"].rows()[0]
    rows = [MeasurementRow("", 0, {**first.setting, "ep_size": gpus}, 1.0) for gpus in (16, 32, 64, 128)]
    for table in (deepep.INTERNODE, deepep.INTERNODE_NOTIFY):
        assert table.is_outlier is not None
        assert table.is_outlier(rows) == [False, False, True, True]


def test_a_run_whose_dispatch_takes_more_sm_time_than_on_more_sms_counts_in_no_statistic() -> None:
    for table in (deepep.INTERNODE, deepep.INTERNODE_NOTIFY):
        assert table.is_outlier is not None
        rows = table.rows()
        out = {
            (row["num_sms"], row["tokens_per_rank"], row["phase"])
            for row, is_out in zip(rows, table.is_outlier(rows), strict=True)
            if is_out
        }
        sizes = [256 << doubled for doubled in range(10)]
        assert out == {(12, tokens, phase) for tokens in sizes for phase in ("dispatch", "combine")}


@pytest.mark.extended
@pytest.mark.parametrize(("tokens", "phase"), [(8192, "dispatch"), (1024, "combine"), (2048, "combine")])
def test_one_slow_card_explains_that_run(tokens: int, phase: str) -> None:
    # The card's share is fitted to the dispatch. What a call takes with its notify kernel, which
    # waits for the last GPU, is then right for the combine, too.
    setting = {"num_sms": 12, "tokens_per_rank": tokens, "phase": phase}
    (transmit,), (notify,) = (
        filter(has(**setting), table.rows()) for table in (deepep.INTERNODE, deepep.INTERNODE_NOTIFY)
    )
    measured = transmit.measured + notify.measured

    def error(bench: Bench) -> float:
        called = deepep.predict_internode(bench, transmit) + deepep.predict_internode_notify(bench, notify)
        return called / measured - 1

    assert error(Bench()) < -0.09
    assert abs(error(Bench({"fabric.slow": ["nic 3 = 0.355"]}))) < 0.06
