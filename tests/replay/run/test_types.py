"""Number types of GEMMs and rows: settings, results, identity, refusals."""

from __future__ import annotations

import json
import re

import pytest
from loops import every

import replay
from replay.errors import UserError
from replay.experiments.layer.result import NumberTypes, Result
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES


def types_of(result: Result) -> tuple[str, str, str]:
    types = result.types
    return types.gemm, types.dispatch_type, types.combine_type


def test_a_result_states_the_three_types(synthetic) -> None:
    """The model's own, the short form, and each that differs from it."""
    said = {}
    for settings in (
        {},
        {"precision": "fp8"},
        {"precision": "fp8", "gemm_type": "bf16"},
        {"dispatch_type": "fp8"},
        {"gemm_type": "fp8", "combine_type": "fp32"},
    ):
        result = replay.run(synthetic(), scheme="nccl-alltoall", layer=0, **settings)
        said[types_of(result)] = (result.precision, result.run_id)
        words = "{} GEMMs, {} rows out, {} rows back".format(*types_of(result))
        assert words in replay.summary(result)
        assert json.loads(result.to_json())["types"]["gemm"] == result.types.gemm
    assert {types: precision for types, (precision, _) in said.items()} == {
        ("bf16", "bf16", "bf16"): "bf16",
        ("fp8", "fp8", "bf16"): "fp8",
        ("bf16", "fp8", "bf16"): "bf16 GEMMs, fp8 rows out, bf16 rows back",
        ("fp8", "bf16", "fp32"): "fp8 GEMMs, bf16 rows out, fp32 rows back",
    }
    assert len({run_id for _, run_id in said.values()}) == 4


def test_types_enter_by_what_they_come_to() -> None:
    one = set_up(RunSpec(scheme="deepep", precision="fp8"), {"content_id": "a"})
    for settings in (
        {"precision": "fp8", "dispatch_type": "fp8"},
        {"precision": "bf16", "gemm_type": "fp8", "dispatch_type": "fp8"},
        {"gemm_type": "fp8", "dispatch_type": "fp8", "combine_type": "bf16"},
    ):
        other = set_up(RunSpec(scheme="deepep", **settings), {"content_id": "a"})
        assert other.spec == one.spec
        assert other.run_id == one.run_id
    # What the model decides is not known yet.
    open_ = RunSpec(scheme="deepep", gemm_type="fp8")
    assert set_up(open_, {}).spec == open_


def test_a_result_without_types_is_read_by_its_precision(synthetic) -> None:
    for precision, types in (("fp8", ("fp8", "fp8", "bf16")), ("fp32", ("fp32",) * 3)):
        result = replay.run(synthetic(), scheme="ideal", layer=0, precision=precision)
        document = json.loads(result.to_json())
        assert document.pop("types")
        assert types_of(Result.model_validate(document)) == types
        assert Result.model_validate(document) == result
    document["precision"] = "of another kind"
    with pytest.raises(ValueError, match="types"):
        Result.model_validate(document)


@every("scheme", ["deepep", "nvls", "comet", "flashdmoe", "dysharp", "moe-hub"])
def test_fp8_rows_back_are_refused_in_a_line(synthetic, scheme: str) -> None:
    with pytest.raises(UserError) as caught:
        replay.run(synthetic(), scheme=scheme, combine_type="fp8")
    said = str(caught.value)
    has = "bf16" if scheme in ("deepep", "comet") else "bf16, fp32"
    assert said.startswith(f"scheme '{scheme}' has no fp8 rows on the way back, only {has}; ")
    assert "nccl-alltoall" in said and "\n" not in said


@pytest.mark.extended
def test_a_comparison_leaves_out_schemes_whose_code_lacks_the_types(synthetic) -> None:
    compared = replay.compare(synthetic(), layer=0, combine_type="fp32", baseline="nccl-alltoall")
    lacking = {name for name, one in SCHEMES.items() if "fp32" not in one.combine_types}
    one_type = {"fastermoe"}  # rows travel in the type of its GEMMs
    assert {"deepep", "deepep-ll", "comet", "flux"} <= lacking
    assert set(compared.left_out) == lacking | one_type
    assert "no fp32 rows on the way back, only bf16" in compared.left_out["deepep"]
    with pytest.raises(UserError, match="GEMMs are bf16 or fp8, not fp32"):
        replay.run(synthetic(), scheme="comet", layer=0, gemm_type="fp32")


def test_fp8_rows_back_where_a_kernel_adds_them(synthetic) -> None:
    narrow, wide = (
        replay.run(synthetic(), scheme="nccl-alltoall", layer=0, combine_type=rows) for rows in ("fp8", "bf16")
    )
    assert narrow.types == NumberTypes(gemm="bf16", dispatch_type="bf16", combine_type="fp8")
    less, more = (sum(one.layers[0].measures.payload_bytes["combine"].uplink) for one in (narrow, wide))
    hidden = narrow.trace.hidden
    assert less * 2 * hidden == more * (hidden + 4 * -(-hidden // 128))


# ---- FP4 -----------------------------------------------------------------------------------------


def test_types_of_fp4() -> None:
    both = Precision("nvfp4")
    assert (both.gemm, both.weights, both.dispatch, both.combine) == (*("nvfp4",) * 3, "bf16")
    assert (both.operands, both.between, both.has_scales) == ("nvfp4", "bf16", True)
    assert both.dispatch_row_bytes(7168) == both.operand_row_bytes(7168) == 3584 + 448
    assert Precision("mxfp4").dispatch_row_bytes(7168) == 3584 + 224
    mixed = Precision("fp8", weights="mxfp4")
    assert (mixed.operands, mixed.between) == ("fp8_mxfp4", "fp8")
    assert mixed.name == "fp8 GEMMs, mxfp4 weights, fp8 rows out, bf16 rows back"
    assert mixed.operand_row_bytes(7168) == Precision("fp8").operand_row_bytes(7168)
    assert Precision("fp8", weights="fp8") == Precision("fp8")
    for gemm, weights, could in (
        ("fp8", "nvfp4", "fp8 or mxfp4"),
        ("fp8", "bf16", "fp8 or mxfp4"),
        ("bf16", "fp8", "bf16 or mxfp4 or nvfp4"),
        ("nvfp4", "mxfp4", "nvfp4"),
        ("fp32", "mxfp4", "fp32"),
    ):
        with pytest.raises(UserError, match=f"weights of {gemm} GEMMs are {could}, not {weights}"):
            Precision(gemm, weights=weights)


def test_fp4_weights_of_a_replay(synthetic) -> None:
    settings = {"scheme": "plain", "layer": 0, "system": "hgx-b200", "stack": "bare"}
    wide = replay.run(synthetic(), precision="fp8", **settings)
    narrow = replay.run(synthetic(), precision="fp8", weight_type="mxfp4", **settings)
    assert narrow.totals.makespan_us < wide.totals.makespan_us
    assert narrow.types.weights == "mxfp4"
    assert wide.types.weights is None
    assert "weights" not in json.loads(wide.to_json())["types"]
    assert "fp8 GEMMs, mxfp4 weights, fp8 rows out" in replay.summary(narrow)
    shape = synthetic().model_shape
    size = 3 * shape.hidden * shape.moe_intermediate * shape.num_experts / narrow.batch.num_ranks
    assert max(narrow.layers[0].memory.weight_bytes) == size * (4 + 8 / 32) / 8


def test_fp4_is_refused_where_it_is_not(synthetic) -> None:
    for settings, says in (
        (
            {"scheme": "plain", "precision": "fp8", "weight_type": "mxfp4"},
            "scheme 'plain': on dgx-h100 tensor cores multiply no mxfp4 weights beside fp8 rows, but",
        ),
        (
            {"scheme": "comet", "precision": "bf16", "weight_type": "nvfp4"},
            "weights of its bf16 GEMMs are bf16 too, not nvfp4",
        ),
        (
            {"scheme": "megamoe", "system": "hgx-b200", "precision": "bf16", "weight_type": "nvfp4"},
            "weights of its bf16 GEMMs are bf16 too or mxfp4, not nvfp4",
        ),
        (
            {"scheme": "plain", "precision": "bf16", "gemm_type": "nvfp4"},
            "its GEMMs are bf16 or fp32 or fp8, not nvfp4",
        ),
        (
            {"scheme": "plain", "precision": "bf16", "weight_type": "mxfp4", "pass": "backward"},
            "mxfp4 weights are for the forward pass alone",
        ),
    ):
        with pytest.raises(UserError, match=re.escape(says)):
            replay.run(synthetic(), layer=0, **settings)


def test_normal_form_of_fp4() -> None:
    one = set_up(RunSpec(scheme="plain", precision="fp8", gemm_type="nvfp4", dispatch_type="nvfp4"), {})
    two = set_up(
        RunSpec(
            scheme="plain",
            precision="bf16",
            gemm_type="nvfp4",
            weight_type="nvfp4",
            dispatch_type="nvfp4",
        ),
        {},
    )
    assert one.spec == two.spec
