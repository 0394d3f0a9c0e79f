"""What lines of logs are predicted by, by hand."""

from __future__ import annotations

import pytest
from loops import every

from hwmodel.catalog import load_spec
from replay.studies.machines.tables import CONSTANTS, OWN, TABLES, TOOLS
from replay.studies.validate.bench import Bench
from replay.studies.validate.catalog import TABLES as PUBLISHED
from replay.studies.validate.nccl import time_collective
from replay.studies.validate.table import MeasurementRow, predictions

BASE = "dgx-h100"


def predicted(table, **setting):
    row = MeasurementRow(table, 0, {"system": BASE, **setting}, 1.0)
    return predictions(TABLES[table], Bench(), [row])[0].value


def test_every_table_has_a_tool_and_its_constants_exist():
    assert CONSTANTS.keys() == TABLES.keys() == TOOLS.keys()
    keys = {key for keys in CONSTANTS.values() for key in keys}
    assert keys <= set(load_spec(BASE).present())
    assert not {table.name for table in OWN} & PUBLISHED.keys()


def test_a_value_is_the_machines():
    assert predicted("values", key="overheads.launch_us") == 4.5


@every("read, written", [(1 << 29, 0), (0, 1 << 29), (1 << 28, 1 << 28)])
def test_a_kernel_that_moves_memory(read, written):
    hbm, overheads = load_spec(BASE).hbm, load_spec(BASE).overheads
    shares = read / hbm.read_efficiency.value + written / hbm.write_efficiency.value
    wanted = shares / hbm.peak_GB_per_s.value / 1e3
    wanted += overheads.small_kernel_us.value + overheads.kernel_gap_stream_us.value
    assert predicted("streams", read=read, written=written) == pytest.approx(wanted, rel=1e-3)


def test_a_product_in_a_stream_has_the_gap_before_it():
    sizes = {"dtype": "bf16", "groups": 1, "m": 1024, "n": 4096, "k": 4096}
    alone, among = (predicted("matrices", library=one, **sizes) for one in ("cublas", "cublas stream"))
    assert among - alone == pytest.approx(load_spec(BASE).overheads.kernel_gap_stream_us.value)
    assert alone > 2 * 1024 * 4096**2 / 989.4e6  # at the peak


def test_groups_share_the_rows():
    sizes = {"library": "deepgemm", "dtype": "fp8", "n": 4096, "k": 7168}
    whole = predicted("matrices", groups=4, m=32768, **sizes)
    assert whole == pytest.approx(predicted("matrices", groups=8, m=32768, **sizes), rel=0.02)
    assert whole == pytest.approx(2 * predicted("matrices", groups=4, m=16384, **sizes), rel=0.1)


@every("nbytes", [1024, 1 << 20, 1 << 28])
def test_a_ring_of_sends_is_the_exchange_of_a_pair(nbytes):
    """Each rank sends one message and gets one, whoever its neighbours are."""
    pair, ring = (time_collective(Bench(), BASE, "sendrecv", gpus, nbytes) for gpus in (2, 8))
    assert pair.kernel == ring.kernel == "sends and receives"
    # An all-to-all of two is that, and a copy of its own half.
    exchange = time_collective(Bench(), BASE, "alltoall", 2, 2 * nbytes)
    assert pair.value <= exchange.value <= 1.3 * pair.value
    if nbytes != 1 << 20:  # for which a peer of eight has fewer channels
        assert ring.value == pytest.approx(pair.value)
