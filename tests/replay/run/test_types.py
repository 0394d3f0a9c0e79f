"""Number types of GEMMs and rows: settings, results, identity, refusals."""

from __future__ import annotations

import json

import pytest
from loops import every

import replay
from replay.errors import UserError
from replay.experiments.layer.result import NumberTypes, Result
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.schemes import SCHEMES


def types_of(result: Result) -> tuple[str, str, str]:
    types = result.types
    return types.gemm, types.dispatch_rows, types.combine_rows


def test_a_result_states_the_three_types(synthetic) -> None:
    """The model's own, the short form, and each that differs from it."""
    said = {}
    for settings in (
        {},
        {"precision": "fp8"},
        {"precision": "fp8", "gemm_type": "bf16"},
        {"dispatch_rows": "fp8"},
        {"gemm_type": "fp8", "combine_rows": "fp32"},
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
        {"precision": "fp8", "dispatch_rows": "fp8"},
        {"precision": "bf16", "gemm_type": "fp8", "dispatch_rows": "fp8"},
        {"gemm_type": "fp8", "dispatch_rows": "fp8", "combine_rows": "bf16"},
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
        replay.run(synthetic(), scheme=scheme, combine_rows="fp8")
    said = str(caught.value)
    has = "bf16" if scheme in ("deepep", "comet") else "bf16, fp32"
    assert said.startswith(f"scheme '{scheme}' has no fp8 rows on the way back, only {has}; ")
    assert "nccl-alltoall" in said and "\n" not in said


@pytest.mark.extended
def test_a_comparison_leaves_out_schemes_whose_code_lacks_the_types(synthetic) -> None:
    compared = replay.compare(synthetic(), layer=0, combine_rows="fp32", baseline="nccl-alltoall")
    lacking = {name for name, one in SCHEMES.items() if "fp32" not in one.combine_types}
    one_type = {"fastermoe"}  # rows travel in the type of its GEMMs
    assert {"deepep", "deepep-ll", "comet", "flux"} <= lacking
    assert set(compared.left_out) == lacking | one_type
    assert "no fp32 rows on the way back, only bf16" in compared.left_out["deepep"]
    with pytest.raises(UserError, match="GEMMs are bf16 or fp8, not fp32"):
        replay.run(synthetic(), scheme="comet", layer=0, gemm_type="fp32")


def test_fp8_rows_back_where_a_kernel_adds_them(synthetic) -> None:
    narrow, wide = (
        replay.run(synthetic(), scheme="nccl-alltoall", layer=0, combine_rows=rows)
        for rows in ("fp8", "bf16")
    )
    assert narrow.types == NumberTypes(gemm="bf16", dispatch_rows="bf16", combine_rows="fp8")
    less, more = (
        sum(one.layers[0].measures.payload_bytes["combine"].uplink) for one in (narrow, wide)
    )
    hidden = narrow.trace.hidden
    assert less * 2 * hidden == more * (hidden + 4 * -(-hidden // 128))
