"""Shapes from configurations of checkpoints: the catalogue's, other families', hostile ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loops import every
from typer.testing import CliRunner

from tracegen import UserError, models
from tracegen.cli import app
from tracegen.models import config, config_names

V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "intermediate_size": 18432,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-v3": V3,
    "qwen3-30b-a3b": QWEN3,
    "glm-4.5": {
        "use_qk_norm": True,
        "model_type": "glm4_moe",
        "hidden_size": 5120,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "num_hidden_layers": 92,
        "first_k_dense_replace": 3,
        "intermediate_size": 12288,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
        "vocab_size": 151552,
        "dtype": "bfloat16",
        "attention_bias": True,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "experts_per_token": 4,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "grok-2": {
        "model_type": "git",
        "hidden_size": 8192,
        "intermediate_size": 32768,
        "moe_intermediate_size": 16384,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "residual_moe": True,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "torch_dtype": "bfloat16",
        "moe_renormalize": False,
    },
    "hunyuan-a13b": {
        "model_type": "hunyuan_v1_moe",
        "hidden_size": 4096,
        "intermediate_size": 3072,
        "moe_intermediate_size": [3072] * 32,
        "num_experts": 64,
        "moe_topk": [8] * 32,
        "num_shared_expert": [1] * 32,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "attention_head_dim": 128,
        "vocab_size": 128167,
        "torch_dtype": "bfloat16",
        "use_cla": False,
    },
    "hunyuan-large": {
        "model_type": "hunyuan",
        "hidden_size": 6400,
        "intermediate_size": 18304,
        "num_experts": 16,
        "moe_topk": 1,
        "num_shared_expert": 1,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "use_cla": True,
        "vocab_size": 129024,
        "torch_dtype": "bfloat16",
    },
    "hy3": {
        "model_type": "hy_v3",
        "hidden_size": 4096,
        "intermediate_size": 13312,
        "moe_intermediate_size": 1536,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 120832,
        "dtype": "bfloat16",
        "mlp_layer_types": ["dense"] + ["sparse"] * 79,
        "router_scaling_factor": 2.826,
    },
}
"""What the checkpoints' own files say, as far as it is read."""


@every("name", sorted(CONFIGS))
def test_a_configuration_gives_the_shape_of_the_catalogue(name: str) -> None:
    known = models.load(name)
    found = config.parse(json.dumps(CONFIGS[name]), "config.json")
    own = {"name", "model_id", "num_kv_heads" if known.kv_lora_rank else ""}
    assert {k: v for k, v in found.sizes().items() if k not in own} == {
        k: v for k, v in known.sizes().items() if k not in own
    }
    assert (found.vocab, found.mtp_layers) == (known.vocab, known.mtp_layers)
    assert (found.qk_norm, found.shared_gate) == (known.qk_norm, known.shared_gate)
    assert set(found.sources) >= set(found.sizes()) - {"name"}, "every value has a source"


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**base, **changes}.items() if value is not ...}


def dense(**values: Any) -> list[int]:
    base = changed(QWEN3, decoder_sparse_step=..., mlp_only_layers=..., num_hidden_layers=6)
    return list(config.parse(json.dumps({**base, **values}), "config.json").dense_layers)


def test_layers_without_experts_are_found_however_they_are_said() -> None:
    for values, layers in (
        ({}, []),
        ({"mlp_layer_types": ["dense", *["sparse"] * 5]}, [0]),
        ({"moe_layers": [1, 3, 5]}, [0, 2, 4]),
        ({"moe_layers_enum": "4,5"}, [0, 1, 2, 3]),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 0]}, [0, 5]),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, [0, 1, 3, 5]),
        ({"num_dense_layers": 2}, [0, 1]),
        ({"interleave_moe_layer_step": 2}, [0, 2, 4]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [5]}, [0, 2, 4, 5]),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 4}, [0, 1, 5]),
        ({"expert_layer_period": 3, "expert_layer_offset": 1}, [0, 2, 3, 5]),
        ({"hybrid_override_pattern": "MEM*ME"}, [0, 2, 3, 4]),
    ):
        assert dense(**values) == layers, values


def test_a_text_decoder_within_another_model_is_found(tmp_path: Path) -> None:
    inner = changed(
        QWEN3,
        torch_dtype=...,
        intermediate_size=8192,
        intermediate_size_mlp=16384,
        model_type="llama4_text",
        moe_intermediate_size=...,
        norm_topk_prob=...,
        num_local_experts=16,
        num_experts=...,
        interleave_moe_layer_step=2,
        decoder_sparse_step=...,
        mlp_only_layers=...,
    )
    whole = {"model_type": "llama4", "text_config": inner, "vision_config": {"hidden_size": 1408}}
    whole |= {"torch_dtype": "bfloat16", "architectures": ["Llama4ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    for where in (str(tmp_path), str(tmp_path / "config.json"), tmp_path):
        shape = models.load(where)
        assert (shape.hidden, shape.moe_intermediate, shape.num_experts) == (2048, 8192, 16)
        assert (shape.num_shared_experts, shape.shared_intermediate) == (1, 8192)
        assert (shape.dense_intermediate, len(shape.dense_layers)) == (16384, 24)
        assert (shape.score_function, shape.default_precision) == ("sigmoid", "bf16")


def test_zero_experts_are_beside_the_routed_ones() -> None:
    values = changed(
        V3,
        model_type="longcat_flash",
        zero_expert_num=128,
        topk_method=...,
        scoring_func=...,
        norm_topk_prob=...,
        n_group=...,
        topk_group=...,
    )
    shape = config.parse(json.dumps(values), "config.json")
    assert (shape.num_experts, shape.num_ffn_experts) == (384, 256)
    assert (shape.score_function, shape.norm_topk, shape.expert_bias) == ("softmax", False, True)


def test_shared_experts_have_the_width_that_is_stated_together() -> None:
    for values, found in (
        ({}, (0, 0)),
        ({"n_shared_experts": 2}, (2, 768)),
        ({"shared_expert_intermediate_size": 512}, (1, 512)),
        ({"n_shared_experts": 2, "moe_shared_expert_intermediate_size": 512}, (2, 256)),
        ({"n_shared_experts": 3, "moe_shared_expert_intermediate_size": 512}, (1, 512)),
        ({"shared_expert_intermediate_size": 0}, (0, 0)),
    ):
        shape = config.parse(json.dumps({**QWEN3, **values}), "c.json")
        assert (shape.num_shared_experts, shape.shared_intermediate) == found, values


def test_what_is_assumed_is_noted() -> None:
    shape = config.parse(json.dumps(changed(QWEN3, model_type="novel", torch_dtype=...)), "c.json")
    for said in ("softmax is assumed", "bf16 is assumed", "'novel' is not known here"):
        assert said in shape.notes
    for name, value in (
        ("layer_types", ["linear_attention", "full_attention"] * 24),
        ("num_attention_heads_per_layer", [48, 64] * 24),
        ("per_layer_config", {"02": {"head_dim": 512}}),
        ("swa_num_key_value_heads", 8),
        ("use_cla", True),
    ):
        shape = config.parse(json.dumps(changed(QWEN3, **{name: value})), "c.json")
        assert shape.num_heads is None and f"Attention is left out: by {name} " in shape.notes
    for name, value in (("swa_num_key_value_heads", 4), ("use_cla", False)):
        assert config.parse(json.dumps(changed(QWEN3, **{name: value})), "c.json").num_heads == 32


def test_families_say_what_a_shape_can_be() -> None:
    base = models.load("mixtral-8x7b").sizes()
    for values in config_names.FAMILIES.values():
        shared = {"shared_intermediate": 1} if "num_shared_experts" in values else {}
        models.ModelShape(**{**base, **values, **shared})


def test_norms_of_queries_and_keys_are_the_family_s_or_as_stated() -> None:
    def norm(**changes: Any) -> str:
        return config.parse(json.dumps(changed(QWEN3, **changes)), "config.json").qk_norm

    assert [norm(), norm(use_qk_norm=False), norm(model_type="mixtral")] == ["head", "none", "none"]
    assert [norm(model_type="glm4_moe"), norm(model_type="glm4_moe", use_qk_norm=True)] == ["none", "head"]
    assert norm(model_type="minimax_m2") == "all"


def test_what_is_no_configuration_of_experts_is_refused_in_a_line(tmp_path: Path) -> None:
    deep = "[" * 100_000
    for text, said in (
        ("{", "not valid JSON"),
        (deep, "not valid JSON"),
        ("[]", "expected the JSON object"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not valid JSON"),
        ("{}", "without experts"),
        ('{"model_type": "llama", "hidden_size": 8}', "of model_type 'llama' without experts"),
    ):
        with pytest.raises(UserError, match=f"^c.json: .*{said}") as refusal:
            config.parse(text, "c.json")
        assert "\n" not in str(refusal.value)
    for name, value, said in (
        ("hidden_size", ..., "the hidden size .model_type 'qwen3_moe'. is missing"),
        ("hidden_size", "big", "hidden_size is 'big'; expected a whole number from 1"),
        ("num_experts", True, "num_experts is 'True'"),
        ("num_experts", -1, "num_experts is '-1'"),
        ("num_experts_per_tok", 300, "topk: Input should be less than or equal to 255"),
        ("num_experts_per_tok", 129, "topk: |topk 129 is more than num_experts 128"),
        ("num_hidden_layers", 2**30, "at most 65536 are read"),
        ("moe_intermediate_size", [1, 2], "is not the same in all layers"),
        ("n_shared_experts", {"a": 1}, "n_shared_experts is"),
        ("shared_expert_intermediate_size", "x", "shared_expert_intermediate_size is"),
        ("moe_latent_size", 1024, "moe_latent_size is 1024: experts take rows of another length"),
        ("moe_hidden_size", "x", "moe_hidden_size is 'x'"),
        ("mlp_only_layers", [{}], "does not say which layers have experts"),
        ("mlp_only_layers", 5, "does not say which layers have experts"),
        ("decoder_sparse_step", 0, "does not say which layers have experts"),
        ("decoder_sparse_step", 2**30, "gives no layers with experts"),
        ("moe_layer_freq", [1], "does not say which layers have experts"),
        ("moe_layers", [99], "does not say which layers have experts"),
        ("moe_layers_enum", "a,b", "does not say which layers have experts"),
        ("moe_layer_end_index", 2**31, ""),
        ("num_attention_heads", 1.5, "num_attention_heads is '1.5'"),
        ("layer_types", 7, ""),
        ("architectures", {"a": 1}, ""),
        ("quantization_config", [], ""),
        ("norm_topk_prob", "yes", ""),
    ):
        text = json.dumps(changed(QWEN3, **{name: value}))
        if not said:
            assert config.parse(text, "c.json").hidden == 2048, name
            continue
        with pytest.raises(UserError, match=f"^c.json: .*({said})") as refusal:
            config.parse(text, "c.json")
        assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 300
    with pytest.raises(UserError, match=r"cannot read the model file .*absent\.json"):
        models.load(str(tmp_path / "absent.json"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="it is not text"):
        models.load(tmp_path / "binary.json")


def test_an_empty_name_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    monkeypatch.chdir(tmp_path)
    for name in ("", "n" * 5000, "a\0b"):
        with pytest.raises(UserError, match="unknown model"):
            models.load(name)
    assert models.load(".").hidden == 2048


def test_commands_say_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(changed(QWEN3, torch_dtype=...)))
    words = ["generate", "uniform", "--model", str(path), "--ranks", "2", "--layers", "1"]
    words += ["--tokens-per-rank", "2", "--out", str(tmp_path / "a.h5")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    said = done.stderr.replace("\n", " ")
    assert "config.json: The number type is not stated: bf16 is assumed." in said
    path.write_text(json.dumps(QWEN3))
    assert "note:" not in CliRunner().invoke(app, [*words, "--force"]).stderr
