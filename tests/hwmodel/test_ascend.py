"""Ascend's presets: what follows from the sizes of its cube units, and what they do not have."""

import re
from importlib import resources

import numpy as np
import pytest
from loops import every

import hwmodel
from hwmodel import Capability, OperandPath, UserError
from hwmodel.catalog import load_spec
from hwmodel.specs import SystemSpec

NPUS = [name for name in hwmodel.names() if "cann" in {c.value for c in hwmodel.load(name).capabilities}]
MULTIPLY_ADDS = 16**3  # of a cube unit in a clock, BF16; INT8 has twice as many


def test_which_presets_are_ascend():
    assert NPUS == ["atlas-800t-a2", "cloudmatrix384"]


@pytest.mark.parametrize("name", NPUS)
def test_the_peak_is_that_of_the_cube_units(name):
    system = hwmodel.load(name)
    clock = system.spec.gpu.clock_GHz.value
    tera = 2 * MULTIPLY_ADDS * system.sm.num_sms * clock / 1000
    compute = system.spec.compute
    assert compute.bf16_peak_TFLOP_per_s.value == pytest.approx(tera, rel=1e-3)
    assert compute.fp8_peak_TFLOP_per_s.value == pytest.approx(2 * tera, rel=1e-3)
    # 376 a die is published, which 24 units reach at 1.91 GHz and 25 at 1.84.
    assert 0.93 < tera / 376 < 1


def test_a_large_multiplication_reaches_what_is_published():
    """INT8 on one die: 0.77 to 0.83 of 752 TOP/s (arXiv 2506.12708, recalled)."""
    compute = hwmodel.load("cloudmatrix384").compute
    m, n, k = 7168, 4096, 7168
    tera = 2 * m * n * k / compute.gemm_time_ps(m, n, k, "fp8")
    assert 0.77 * 752 < tera < 0.83 * 752


ROW_LOADS = OperandPath(step_bytes=256, reads_rows=True)  # steps of 128 BF16 values
ROUND_READS = {
    "gpu.clock_GHz": 2.0,
    "gpu.l2_latency_ns": 120.0,
    "hbm.latency_ns": 240.0,
    "ai_core.num_reads": 48,
    "compute.operand_bytes_per_clock": 128.0,
    "compute.tile_overhead_ns": 0.0,
}


@pytest.mark.parametrize(
    ("rows", "columns", "step_ns"),
    [
        (16, 128, 128 * 2.5 + 120),  # of 48 reads under way one ends every 2.5 ns, and there are 128 of 256 bytes
        (16, 288, 2 * 128 * 2.5 + 120),  # two for each row of the weights
        (16, 256, 128 * 2.5 + 120),  # 65536 bytes at 256 a nanosecond are 256 ns
        (64, 128, 128 * 2.5 + 64 * 2.5),  # the rows' reads are longer than the latency that they hide in
    ],
)
def test_a_step_waits_for_its_last_read(rows, columns, step_ns):
    steps, compute = 10, hwmodel.load("cloudmatrix384", ROUND_READS).compute
    tile = compute.tile_ps(rows, columns, 128 * steps, "bf16", path=ROW_LOADS)
    assert tile == steps * round(1000 * step_ns)
    together = compute.tile_ps(np.array([0, rows]), columns, 128 * steps, "bf16", path=ROW_LOADS)
    assert together.tolist() == [0, tile]


def test_a_step_s_bytes_have_a_way():
    compute = hwmodel.load("cloudmatrix384", ROUND_READS | {"compute.operand_bytes_per_clock": 64.0}).compute
    assert compute.tile_ps(16, 256, 1280, "bf16", path=ROW_LOADS) == 10 * (128 * 512 * 1000 // 128 + 120_000)


def test_reads_that_memory_answers_have_its_latency():
    compute = hwmodel.load("cloudmatrix384", ROUND_READS).compute
    loads = compute.weights_from_memory_ps(np.array([128, 288]), 1280, "bf16", ROW_LOADS)
    assert loads.tolist() == [10 * (128 * 5_000 + 240_000), 10 * (256 * 5_000 + 240_000)]


def test_a_step_of_whole_tiles_takes_what_cann_s_model_of_commands_has():
    """Rows of 512 bytes, 128 and 256 of them: 895 ns if one core reads, 1118 if all do.

    CATCCOS at e89e2a5, ``tests/dynamic_tiling/tiling/mte_cost_model.cpp`` and ``include/cost_model.h``:
    1.9 ns for each of 64 reads under way, 110 ns until one is answered, 0.8 of it on all cores.
    """
    loads = hwmodel.load("cloudmatrix384").compute.row_reads
    assert loads is not None
    step = loads.tile_ps(128, 512, 256, 512, 512)
    one_core = (128 + 256) / 64 * (4 * 64 * 1.9 + 110) / 4 * 1000
    assert one_core < step < one_core / 0.8


@pytest.mark.parametrize("name", NPUS)
def test_nothing_is_taken_from_a_gpu(name):
    """Neither a base, nor a source that names a GPU's value, nor a table of CUDA."""
    text = (resources.files("hwmodel.presets") / f"{name}.toml").read_text("utf-8")
    base = re.search(r'^base = "(.*)"', text, re.MULTILINE)
    assert base is None or base[1] in NPUS
    spec = load_spec(name)
    assert spec.warp is None and spec.nccl is None
    for key, _, _, source, _ in spec.rows():
        assert not re.search(r"H100|H800|B200|A100|Hopper|NVIDIA|NCCL", source), key


@pytest.mark.parametrize("name", NPUS)
def test_what_is_assumed_says_so_and_is_trusted_little(name):
    for key, _, _, source, confidence in load_spec(name).rows():
        if source.startswith("assumed"):
            assert confidence == "low", key


@pytest.mark.parametrize("name", NPUS)
def test_there_is_no_cuda(name):
    system = hwmodel.load(name)
    assert Capability.CUDA not in system.capabilities
    with pytest.raises(UserError, match=f"'{name}' does not run CUDA, and so has no NCCL"):
        _ = system.nccl
    with pytest.raises(UserError, match="its cores have no warps"):
        _ = system.warps


def test_gpus_have_no_vector_cores():
    system = hwmodel.load("dgx-h100")
    assert system.ai_core is None and Capability.CANN not in system.capabilities


def test_a_tile_must_fit_where_its_sums_are_added_up():
    assert hwmodel.load("cloudmatrix384", {"compute.bf16_blocks": [[128, 256]]})
    said = r"compute.bf16_blocks: FP32 sums of 256 x 256 exceed ai_core.l0c_bytes = 131072"
    with pytest.raises(UserError, match=said):
        hwmodel.load("cloudmatrix384", {"compute.bf16_blocks": [[256, 256]]})
    assert hwmodel.load("dgx-h100", {"compute.bf16_blocks": [[256, 256]]})


@every(
    ("without", "given"),
    [({"warp"}, {}), ({"nccl"}, {}), (set(), {"ai_core"})],
)
def test_a_machine_has_the_tables_of_one_platform(without, given):
    gpu, npu = load_spec("dgx-h100").model_dump(), load_spec("cloudmatrix384").model_dump()
    mixed = {key: value for key, value in gpu.items() if key not in without}
    mixed |= {key: npu[key] for key in given}
    with pytest.raises(ValueError, match=r"tables \[warp\] and \[nccl\], or \[ai_core\]"):
        SystemSpec.model_validate(mixed)
    swapped = {key: value for key, value in gpu.items() if key not in ("warp", "nccl")}
    assert SystemSpec.model_validate(swapped).ai_core is None  # neither of them
    swapped |= {"ai_core": npu["ai_core"], "compute": npu["compute"]}
    assert SystemSpec.model_validate(swapped).ai_core is not None
