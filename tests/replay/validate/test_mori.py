"""MoRI's rows on a mesh by hand, and which schemes AMD's nodes run."""

from __future__ import annotations

import numpy as np
import pytest

import hwmodel
from replay.schemes import SCHEMES
from replay.studies.validate import mori
from replay.studies.validate.bench import Bench


def test_schemes_that_need_what_is_not_there_are_known() -> None:
    system = hwmodel.load("mi300x")
    runs = {name for name, scheme in SCHEMES.items() if not scheme.lacks(system)}
    assert runs == {"ideal", "pangu"}
    assert SCHEMES["nvls"].lacks(system) == {"cuda", "multicast", "reduction"}


@pytest.mark.parametrize(("kernel", "share"), [("combine", 1.0), ("dispatch", 0.862)])
def test_rows_pass_the_link_of_their_pair(kernel: str, share: float) -> None:
    """Rows that fill links for long: what a pair has over its rate, or all over the slower port."""
    bench, rows = (
        Bench(),
        [
            row
            for row in mori.TABLE.rows()
            if row["kernel"] == kernel
            and row["ep_size"] == 8
            and row["precision"] == "bf16"
            and row["tokens_per_rank"] == 4096
            and row["topk"] == 6
        ],
    )
    assert {row["system"] for row in rows} == {"mi300x", "mi355x"}
    for row in rows:
        system = bench.system(row["system"])
        copies = row.work("bf16").matrix("copies") * ~np.eye(8, dtype=np.bool_)
        row_bytes = 2 * 7168 + (0 if kernel == "combine" else 6 * 8 + 4)
        link = system.fabric.pair_rate.units_per_second
        port = max(copies.sum(axis=0).max(), copies.sum(axis=1).max()) / (7 * link * share)
        wire_us = max(copies.max() / link, port) * row_bytes * 1e6
        beside = system.overheads.barrier_ps(8) / 1e6
        assert mori.predict(bench, row) - beside == pytest.approx(wire_us, rel=0.03)
