"""Tables that this project measured on single GPUs, and the script of the order of tiles."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from repository_scripts import script_of
from round_machine import WHOLE_BLOCKS

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.measure.measures import mechanisms
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.row_tiles import row_tiles
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape
from replay.schemes.contract import layers as small_layers
from replay.studies.validate import tile_lists as LISTS
from replay.studies.validate import tile_order
from replay.studies.validate.bench import Bench
from replay.studies.validate.operands import STAGE_WAIT_PS
from replay.studies.validate.table import predict

ROOT = Path(__file__).parents[3]
TABLES = Path(str(resources.files("replay.studies.validate.measurements")))
SYSTEMS = {name: hwmodel.load(name) for name in ("dgx-h100", "hgx-h200")}


SCRIPT = script_of("measure_tile_order")


def rows_of(name):
    return SCRIPT.table(TABLES / f"{name}.csv")


# ---- lists of tiles, logs, predictions ----------------------------------------------------------


@pytest.mark.parametrize("order", LISTS.ORDERS)
def test_an_order_has_every_tile_once(order):
    shape = LISTS.GroupedShape("any", experts=3, rows=5 * LISTS.BLOCK_M - 7, k=64, n=700)
    tiles = LISTS.tile_list(shape, order)
    assert (shape.row_tiles, shape.columns) == (5, 3)
    assert Counter(zip(tiles.row.tolist(), tiles.column.tolist(), strict=True)) == Counter(
        (row, column) for row in range(15) for column in range(3)
    )
    assert (tiles.expert == tiles.row // 5).all()


def test_a_unit_goes_through_its_columns_from_its_first_row_tile_to_its_last():
    shape = LISTS.GroupedShape("any", experts=2, rows=3 * LISTS.BLOCK_M, k=64, n=512)
    tiles = LISTS.tile_list(shape, "unit:2")
    assert list(zip(tiles.row.tolist(), tiles.column.tolist(), strict=True)) == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (2, 0),
        (2, 1),
        (3, 0),
        (4, 0),
        (3, 1),
        (4, 1),
        (5, 0),
        (5, 1),
    ]


def test_arrival_takes_the_same_units_in_another_order():
    shape = LISTS.SHAPES[4]

    def units(order):
        tiles = np.stack(LISTS.tile_list(shape, order), axis=1)
        return [unit.tobytes() for unit in np.split(tiles, len(tiles) // (4 * shape.columns))]

    by_expert, arrived = units("unit:4"), units("arrival:4")
    assert sorted(by_expert) == sorted(arrived)
    assert by_expert != arrived
    assert len(set(by_expert)) == len(by_expert)


def test_orders_that_are_the_same_list_count_once():
    shape = LISTS.GroupedShape("any", experts=1, rows=2 * LISTS.BLOCK_M, k=64, n=512)
    assert LISTS.distinct_orders(shape)[:2] == ["unit:1", "unit:2"]
    assert "unit:all" not in LISTS.distinct_orders(shape)
    with pytest.raises(ValueError, match=r"'unit:0'.*there are unit:G"):
        LISTS.tile_list(shape, "unit:0")


LOG = """\
==PROF== Connected to process 1
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","spin_kernel(long)","dram__bytes_read.sum","byte","128"
"0","spin_kernel(long)","dram__bytes_write.sum","byte","0"
"0","spin_kernel(long)","lts__t_sectors_op_read.sum","sector","4"
"1","prepare","dram__bytes_read.sum","Kbyte","1.5"
"1","prepare","dram__bytes_write.sum","byte","32"
"1","prepare","lts__t_sectors_op_read.sum","sector","1,000"
"2","multiply","dram__bytes_read.sum","Gbyte","2.25"
"2","multiply","dram__bytes_write.sum","Mbyte","1"
"2","multiply","lts__t_sectors_op_read.sum","sector","2,000,000"
"10","spin_kernel(long)","dram__bytes_read.sum","byte","0"
"""


def test_a_log_gives_each_launch_the_bytes_of_its_kernels():
    kernels = SCRIPT.profiled_kernels(LOG.splitlines())
    assert [kernel["kernel"] for kernel in kernels] == [
        "spin_kernel(long)",
        "prepare",
        "multiply",
        "spin_kernel(long)",
    ]
    setting = dict.fromkeys(SCRIPT.SETTING, "1")
    launches = [{**setting, "order": name} for name in ("grouped_mm", "failed")]
    times = [{**launch, **dict.fromkeys(SCRIPT.TIMES, "9.5")} for launch in reversed(launches)]
    (row,) = SCRIPT.joined(times, launches, kernels)
    assert (row["order"], row["time_us"]) == ("grouped_mm", "9.5")
    assert row["read_bytes"] == 2_250_001_500
    assert row["written_bytes"] == 1_000_032
    assert row["l2_read_bytes"] == 32 * 2_001_000
    with pytest.raises(ValueError, match="1 launches, but 2 markers"):
        SCRIPT.joined(times, launches[:1], kernels)
    with pytest.raises(ValueError, match="'furlong'"):
        SCRIPT.unit_factor("furlong")


@pytest.mark.parametrize("cache", [WHOLE_BLOCKS, {"cache.kept_share": 0.75, "cache.slices": 3}])
@pytest.mark.parametrize(("raster", "order"), [("rows", "unit:1"), ("experts", "unit:16")])
def test_the_model_of_a_list_is_the_model_of_the_raster(raster, order, cache):
    """Groups of 16 row tiles are what 132 SMs take with these tiles."""
    system = hwmodel.load(
        "dgx-h100",
        {
            "compute.bf16_grouped_blocks": [[128, 256]],
            "compute.bf16_grouped_whole_tiles": False,
            "gpu.l2_bytes": 4 << 20,
            **cache,
        },
    )
    shape = LISTS.GroupedShape("any", experts=2, rows=24 * 128, k=512, n=200 * 256)
    work = small_layers.work(
        np.repeat(np.arange(2, dtype=np.int32), shape.rows)[:, None],
        1,
        2,
        shape=ExpertShape(hidden=shape.k, intermediate=shape.n // 2),
    )
    machine = Machine(system, GraphBuilder(KIND_NAMES), 1)
    gemm = Gemm(shape.n, shape.k, Kind.GEMM1, 2 * shape.n)
    tiles = row_tiles(machine, work, gemm, machine.sms.compute)
    assert (tiles.block_m[0], tiles.block_n[0]) == (128, 256)
    gemm_tasks(
        machine,
        work,
        gemm,
        tiles,
        machine.sms.pool("sm", machine.sms.compute),
        machine.mark(tiles.rank),
        raster=raster,
        clusters=False,
    )
    timeline = schedule(machine.graph.build())
    cache = mechanisms(timeline, machine).cache
    found = tile_order.replay_order(shape, "bf16", order, system)
    weights, activations = cache["weights"], cache["activations"]
    assert found.weight_bytes == weights.first_bytes + weights.again_bytes
    assert found.activation_bytes == activations.first_bytes + activations.again_bytes
    assert found.weight_bytes + found.activation_bytes > shape.least_bytes("bf16")
    assert found.seconds == pytest.approx(timeline.makespan_ps / 1e12)


def test_tiles_of_a_list_wait_for_the_stages_of_their_kernel():
    launch = (ROOT / "scripts" / "tile_problem.py").read_text("utf-8")
    assert f"num_stages={tile_order.LOADS.stages}," in launch
    shape = LISTS.GroupedShape("any", experts=1, rows=128, k=8192, n=512, block_n=128)  # four tiles, each on its SM
    compute = SYSTEMS["hgx-h200"].compute
    products = compute.tile_ps(128, 128, shape.k, "bf16", block_m=128, grouped=True) - compute.tile_overhead_ps
    by_hand = (shape.k // 64 * STAGE_WAIT_PS + products) / tile_order.LOADS.stages + compute.tile_overhead_ps
    found = tile_order.replay_order(shape, "bf16", "unit:1", SYSTEMS["hgx-h200"])
    assert found.seconds * 1e12 == pytest.approx(by_hand, abs=1)
    assert by_hand > 1.4 * products


def kept_mib(system):
    """Largest data that stays in the cache, to 99 %, when all SMs read it in several passes."""
    found = 0
    for row in rows_of("l2_sweeps"):
        size, passes = int(row["bytes"]), int(row["passes"])
        again = (int(row["read_bytes"]) - size) / ((passes - 1) * size)
        shared = row["pattern"] == "each all of it together"
        if (row["system"], shared) == (system, True) and again < 0.01:
            found = max(found, size)
    return found / (1 << 20)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_preset_keeps_what_was_seen_to_stay(name):
    l2 = SYSTEMS[name].l2
    assert l2.kept_bytes == pytest.approx(kept_mib(name) * (1 << 20), rel=1e-5)
    assert l2.slices == 2


@pytest.mark.extended
@pytest.mark.parametrize("name", SYSTEMS)
def test_tiles_in_slices_read_from_memory_what_was_measured(name):
    """In every order, on both GPUs, and with no constant that was made to fit."""
    rows = [row for row in tile_order.READ.rows() if row["system"] == name and row["rows"] != 16384]
    found = predict(tile_order.READ, Bench(), rows)
    ratios = found.predicted / found.measured
    for order in LISTS.ORDERS:
        of_order = [row["order"] == order for row in rows]
        assert 0.97 < np.median(ratios[of_order]) < 1.03, order
    assert np.mean(abs(ratios - 1) < 0.15) > 0.85
    whole = predict(tile_order.READ, Bench(WHOLE_BLOCKS), rows)
    assert np.mean(abs(whole.predicted / whole.measured - 1) > 0.15) > 0.35, "whole blocks"


def test_what_tileops_moved_is_the_share_of_its_time_in_which_memory_was_busy():
    plain, grouped = tile_order.TILEOPS.rows()
    assert (plain["order"], grouped["order"]) == ("unit:1", "unit:8")
    (moved,) = tile_order.TILEOPS_BYTES.rows()
    assert dict(moved.setting) == dict(plain.setting)
    assert moved.measured == pytest.approx(0.30 * 4.8e12 * plain.measured / 1e6)
    weights = 2 * moved["experts"] * moved["k"] * moved["n"]
    rows = 2 * moved["experts"] * moved["rows"] * (moved["k"] + moved["n"])
    assert (moved.measured - rows) / weights == pytest.approx(3.7, abs=0.05)


# ---- tables -------------------------------------------------------------------------------------

KEYS = {
    "fused_kernel": ("system", "hidden", "tokens_per_rank"),
    "tile_order": ("system", *SCRIPT.SETTING),
    "l2_sweeps": ("system", "pattern", "bytes"),
    "operand_paths": ("system", "path", "setting", "sms"),
    "operand_gemms": ("system", "instruction", "path", "dtype", "tile", "warps", "stages"),
    "host_costs": ("system", "run", "api", "what", "setting"),
    "operators_mixed": ("system", "what", "setting"),
    "launch_queue": ("system", "what", "setting"),
    "steps": ("system", "run", "variant", "tokens", "layers"),
    "step_kernels": ("system", "tokens", "index"),
    "megatron_host": (
        "system",
        "activation",
        "tokens",
        "kind",
        "pass",
        "range",
        "name",
        "order",
    ),
    "permutation": ("system", "kernel", "rows", "experts", "topk", "width", "block"),
    "launches": ("system", "call", "setting", "order"),
    "fp8": ("system", "what", "recipe", "out", "m", "n", "k"),
    "streams": ("system", "what", "other", "setting", "pace_GB_per_s_or_us", "quantity"),
    "moe_block_kernels": (
        "system",
        "model",
        "experts_implementation",
        "tokens",
        "phase",
        "kind",
        "name",
    ),
    "small_kernels": ("system", "kernel", "rows", "width"),
    "gemm_corners": ("system", "library", "gemm_dtype", "m", "n", "k"),
    "contention": ("system", "gemm", "copy_sms"),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_table_has_each_setting_once_and_its_page_counts_its_rows(name):
    rows = rows_of(name)
    keys = Counter(tuple(row[column] for column in KEYS[name]) for row in rows)
    if name != "moe_block_kernels":  # names of kernels are cut, so that some are the same
        assert max(keys.values()) == 1
    assert {row["system"] for row in rows} <= set(SYSTEMS)
    page = (TABLES / "MEASURED.md").read_text("utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {name}.csv |"))
    assert int(line.split("|")[3]) == len(rows)
    for row in rows:
        if row.get("low_us"):
            low, middle, high = (
                float(row[column]) for column in SCRIPT.TIMES[1:2] + SCRIPT.TIMES[:1] + SCRIPT.TIMES[2:]
            )
            assert 0 < low <= middle <= high


def peak(row, dtype):
    compute = SYSTEMS[row["system"]].spec.compute
    bf16 = compute.bf16_peak_TFLOP_per_s.value * 1e12
    return {"bf16": bf16, "tf32": bf16 / 2, "fp8": compute.fp8_peak_TFLOP_per_s.value * 1e12}[dtype]


BOOST = 1.15  # clocks go above those that peaks are stated for


def test_no_product_is_faster_than_the_tensor_cores():
    for row in rows_of("tile_order"):
        work = 2 * int(row["experts"]) * int(row["rows"]) * int(row["k"]) * int(row["n"])
        rate = work / (float(row["low_us"]) / 1e6)
        assert 0.2 < rate / peak(row, row["gemm_dtype"]) < BOOST
    for name, column in (("operand_gemms", "dtype"), ("gemm_corners", "gemm_dtype")):
        for row in rows_of(name):
            work = 2 * int(row["m"]) * int(row["n"]) * int(row["k"])
            assert work / (float(row["low_us"]) / 1e6) < BOOST * peak(row, row[column])
    assert all(float(row["error"]) < 0.005 for row in rows_of("operand_gemms"))


def test_a_wide_tile_takes_longer_beside_its_steps_whatever_brings_its_operands():
    # A step has as many bytes in each type, so a line through the types' times ends at what a tile takes beside steps.
    steps = {"fp8": 4096 // 128, "bf16": 4096 // 64, "tf32": 4096 // 32}
    times = defaultdict(dict)
    for row in rows_of("operand_gemms"):
        if row["stages"] == "4":  # one block has an SM for itself, with either width
            rows, columns, _ = (int(side) for side in row["tile"].split("x"))
            waves = math.ceil(8192 * 8192 / (rows * columns) / 132)
            key = (columns, row["system"], row["instruction"], row["path"], row["warps"])
            times[key][steps[row["dtype"]]] = float(row["time_us"]) / waves
    beside = {key: np.polyfit(list(of), list(of.values()), 1)[1] for key, of in times.items()}
    assert Counter(key[0] for key in beside) == {256: 8, 128: 16}
    assert all(4.1 < us < 5.2 if key[0] == 256 else -0.7 < us < 2.5 for key, us in beside.items())


def test_memory_serves_operands_at_least_once_and_no_faster_than_it_can():
    for row in rows_of("tile_order"):
        shape = LISTS.GroupedShape(row["model"], int(row["experts"]), int(row["rows"]), int(row["k"]), int(row["n"]))
        least = shape.least_bytes(row["gemm_dtype"])
        assert int(row["read_bytes"]) > 0.99 * least
        assert int(row["l2_read_bytes"]) > int(row["read_bytes"])
        results = shape.experts * shape.rows * shape.n * LISTS.OUT_BYTES
        # What is not written yet at the end stays in the cache.
        assert results - 40e6 < int(row["written_bytes"]) < 1.02 * results
        moved = int(row["read_bytes"]) + int(row["written_bytes"])
        memory = SYSTEMS[row["system"]].spec.hbm.peak_GB_per_s.value * 1e9
        assert moved / (float(row["high_us"]) / 1e6) < memory


def test_row_tiles_in_the_order_of_arrival_read_weights_again_and_take_longer():
    """Not so where an expert's rows are one or two tiles of a rank's, or a rank has one expert."""
    found = defaultdict(dict)
    for row in rows_of("tile_order"):
        found[tuple(row[column] for column in KEYS["tile_order"][:-1])][row["order"]] = row
    several = 0
    for orders in found.values():
        by_expert, arrived = orders["unit:2"], orders["arrival:1"]
        if int(by_expert["experts"]) > 1:
            several += 1
            more = 1.8 if by_expert["model"] == "deepseek-v3" else 3
            assert int(arrived["read_bytes"]) > more * int(by_expert["read_bytes"])
            assert float(arrived["time_us"]) > 1.2 * float(by_expert["time_us"])
        else:
            assert int(arrived["read_bytes"]) == pytest.approx(int(orders["unit:1"]["read_bytes"]), rel=0.15)
    assert several == 30


def test_data_of_all_sms_take_twice_their_room_in_the_cache():
    for name, room in {"dgx-h100": 50 << 20, "hgx-h200": 60 << 20}.items():  # as GPUs report
        again = defaultdict(dict)  # share of what was read that memory served after the first pass
        for row in rows_of("l2_sweeps"):
            if row["system"] == name:
                size, passes = int(row["bytes"]), int(row["passes"])
                rest = int(row["read_bytes"]) - size
                again[row["pattern"]][size] = rest / ((passes - 1) * size)
        own, shared = again["each its own part"], again["each all of it together"]
        for share in (own, shared):
            assert min(share.values()) > -0.01
            assert max(share.values()) < 1.01
        assert max(part for size, part in own.items() if size < 0.68 * room) < 0.01
        assert max(part for size, part in shared.items() if size < 0.43 * room) < 0.01
        assert min(part for size, part in shared.items() if size > 0.65 * room) > 0.99


def test_an_sm_gets_what_its_paths_have():
    most = defaultdict(float)
    for row in rows_of("operand_paths"):
        key = (row["system"], row["path"], int(row["sms"]))
        most[key] = max(most[key], float(row["per_clock_per_sm"]))
        clock = float(row["giga_per_s"]) / float(row["per_clock_per_sm"]) / int(row["sms"])
        assert 0.8 < clock < 2.1, "GHz; lower where the kernel's begin and end count"
    for system in SYSTEMS:
        for path in ("shared loads 16 B", "ldmatrix x4"):
            assert 126 < most[system, path, 132] <= 128
        bf16, tf32 = (most[system, f"mma.sync {of}", 132] for of in ("bf16 m16n8k16", "tf32 m16n8k8"))
        assert bf16 == pytest.approx(2 * tf32, rel=0.01)
        assert bf16 == pytest.approx(4096 * 2 / 3, rel=0.01), "of wgmma's 4096"
        assert most[system, "cp.async 16 B", 1] > 2.5 * most[system, "cp.async 16 B", 132]


def test_small_kernels_and_copies_are_no_faster_than_memory():
    for row in rows_of("small_kernels"):
        memory = SYSTEMS[row["system"]].spec.hbm.peak_GB_per_s.value * 1e9
        assert int(row["bytes"]) / (float(row["low_us"]) / 1e6) < memory
        assert float(row["time_us"]) > 3
    for row in rows_of("contention"):
        memory = SYSTEMS[row["system"]].spec.hbm.peak_GB_per_s.value
        alone, beside = (float(row[f"copy_{how}_GB_per_s"]) for how in ("alone", "beside"))
        assert 0 < beside < 1.05 * alone < memory
        assert float(row["gemm_beside_us"]) > 0.9 * float(row["gemm_alone_us"])


def test_a_byte_takes_its_time_at_the_peak_and_a_wait_that_is_the_same_on_both_gpus():
    rates = defaultdict(dict)
    for row in rows_of("small_kernels"):
        if int(row["bytes"]) >= 1e8 and row["kernel"] != "zero":
            rate = int(row["bytes"]) / float(row["time_us"]) / 1e3
            rates[row["kernel"], row["rows"], row["width"]][row["system"]] = rate
    h100, h200 = np.array([[one["dgx-h100"], one["hgx-h200"]] for one in rates.values() if len(one) == 2]).T
    less, more = (SYSTEMS[name].spec.hbm.peak_GB_per_s.value for name in ("dgx-h100", "hgx-h200"))
    bound = h100 > less / 2  # by memory, more than by atomics
    same_wait = 1 / (1 / h100 - 1 / less + 1 / more)
    same_share = h100 / less * more
    errors = [np.abs(of[bound] / h200[bound] - 1).mean() for of in (same_wait, same_share)]
    assert bound.sum() == 38
    assert errors[0] < 0.05
    assert errors[1] > 0.11


def test_graphs_launch_in_a_few_microseconds_and_their_nodes_take_less_than_kernels_in_a_stream():
    for system in SYSTEMS:
        us = {
            (row["what"], row["setting"]): float(row["time_us"])
            for row in rows_of("host_costs")
            if (row["system"], row["api"]) == (system, "cuda")
        }
        node = us["graph_period", "nodes=1000;branches=1"] / 1000
        assert 0.5 < node < us["kernel_period", "blocks=1"] < us["launch", "calls=500"]
        assert us["graph_launch_call", "nodes=1000;branches=1"] < 5
        assert us["copy_to_host_and_wait", "bytes=4;pinned"] > us["launch", "calls=1"]


def test_a_process_slows_by_one_factor_with_launches_and_without():
    """Ranges of one layer that its compiled activation leaves alone, before and behind two other settings."""
    us, kernels = {}, Counter()
    for row in rows_of("megatron_host"):
        key = row["activation"], row["range"]
        if (row["tokens"], row["pass"]) == ("512", "forward"):
            if row["kind"] == "host":
                us[key] = float(row["time_us"])
            kernels[key] += row["kind"] == "kernel"
    left_out = ("experts", "(wait behind the forward pass)")
    ratios = {name: us["compiled", name] / us["parts", name] for how, name in us if how == "parts"}
    ratios = {name: ratio for name, ratio in ratios.items() if name not in left_out}
    assert len(ratios) == 15
    assert 1.355 < min(ratios.values()) < max(ratios.values()) < 1.81
    idle = [ratio for name, ratio in ratios.items() if not kernels["parts", name]]
    assert [round(one, 2) for one in sorted(idle)] == [1.38, 1.47, 1.63]


def test_a_block_of_grouped_products_launches_few_kernels_and_never_waits():
    launches, waits = Counter(), Counter()
    for row in rows_of("moe_block_kernels"):
        key = (row["experts_implementation"], row["model"], row["phase"])
        if row["kind"] == "kernel":
            launches[key] += int(row["count"])
            assert math.isfinite(float(row["time_us"]))
        elif row["name"] == "cudaStreamSynchronize":
            waits[key] += int(row["count"])
    assert len(launches) == 12
    for (how, model, phase), count in launches.items():
        if how == "grouped_mm":
            assert 30 < count < 100
            assert waits[how, model, phase] == 0
            assert launches["eager", model, phase] > 5 * count
            assert waits["eager", model, phase] > 16, "one for each expert"


def test_a_stream_takes_a_thousand_launches_ahead_and_another_as_many():
    calls = {(row["what"], row["setting"]): int(row["calls"]) for row in rows_of("launch_queue")}
    ahead = calls["launches before one waits", ""]
    assert 1000 < ahead < SYSTEMS["hgx-h200"].host.queue_launches.value + 1
    turns = "launches before one waits, in turns to streams"
    assert (calls[turns, "streams=1"], calls[turns, "streams=2"]) == (ahead, 2 * ahead)


def test_a_graph_s_step_takes_what_its_kernels_take_and_an_eager_one_waits_for_its_host():
    for row in rows_of("steps"):
        step, kernels, host = (float(row[f"{of}_ms"]) for of in ("step", "kernel", "host"))
        if row["variant"].startswith("graph"):
            assert 0.99 * kernels < step < 1.1 * kernels + 0.1
        else:
            assert step > max(0.99 * kernels, host)
            launched = sum(int(row[kind]) for kind in ("kernels", "copies", "fills"))
            assert int(row["launches"]) == launched


def test_kernels_of_a_step_are_those_of_its_count():
    """A layer more is 112 launches with 512 tokens; marks between parts are left out."""
    kinds = {
        tokens: Counter(row["kind"] for row in rows_of("step_kernels") if row["tokens"] == tokens)
        for tokens in ("512", "8192")
    }
    assert {tokens: sum(count.values()) for tokens, count in kinds.items()} == {
        "512": 140,
        "8192": 188,
    }
    (one,) = (row for row in rows_of("steps") if (row["run"], row["variant"], row["layers"]) == ("2", "eager", "1"))
    counts = [int(one[kind]) for kind in ("kernels", "copies", "fills")]
    assert counts == [kinds["512"][kind] for kind in ("kernel", "copy", "fill")]
