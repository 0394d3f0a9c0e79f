"""Tiny random models of every family that the installed transformers can build."""

import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

transformers.logging.set_verbosity(logging.ERROR)
transformers.logging.disable_progress_bar()

VOCAB = 64
PAD, EOS = 1, 2

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "expert_ffn_hidden_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 3,
    "num_experts_per_token": 3,
    "moe_k": 3,
    "moe_topk": 3,
    "top_k_experts": 3,
    "max_position_embeddings": 128,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "use_cache": True,
    "attention_dropout": 0.0,
}
"""Set on every configuration that knows the name."""

LATENT = {"num_key_value_heads": 4}
GROUPED = {**LATENT, "n_group": 4, "topk_group": 2}
LINEAR = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16}

FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "aria_text": {"moe_num_shared_experts": 1},
    "axk1": LATENT,
    "axk2": LATENT,
    "bailing_hybrid": {**GROUPED, **LINEAR, "layer_group_size": 2, "num_expert_group": 4},
    "cohere2_moe": {},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {
            "ffn_hidden_size": 16,
            "moe_num_experts": 8,
            "moe_top_k": 3,
            "hidden_size": 32,
        },
    },
    "deepseek_v2": {**GROUPED, "topk_method": "group_limited_greedy", "routed_scaling_factor": 2.0},
    "deepseek_v3": GROUPED,
    "deepseek_v32": {**GROUPED, "index_topk": 4, "index_head_dim": 16, "index_n_heads": 2},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "head_dim": 64,
        "o_groups": 2,
        "o_lora_rank": 8,
        "index_topk": 4,
        "index_head_dim": 64,
        "index_n_heads": 2,
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
    },
    "dots1": {"num_key_value_heads": 4, "n_shared_experts": 1},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "flex_olmo": {},
    "flint": {"num_hidden_layers": 4},
    "gemma4_text": {
        "enable_moe_block": True,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "per_layer_config": {},
        "num_experts": 8,
        "top_k_experts": 3,
        "moe_intermediate_size": 16,
    },
    "glm4_moe": {},
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": {**LATENT, "index_topk": 4, "index_head_dim": 16, "index_n_heads": 2},
    "gpt_oss": {},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "granitemoeshared": {},
    "hunyuan_v1_moe": {},
    "hy_v3": {},
    "hy_v4": {},
    "inkling2_text": {},
    "inkling_text": {},
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "jetmoe": {"kv_channels": 8, "num_key_value_heads": 2},
    "kimi_linear": {
        **LATENT,
        **LINEAR,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "kolibri1": {},
    "laguna": {},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "llama4_text": {"num_experts_per_tok": 2},
    "longcat_flash": {
        **LATENT,
        "num_layers": 2,
        "num_hidden_layers": 4,
        "ffn_hidden_size": 32,
        "n_routed_experts": 6,
        "zero_expert_num": 2,
    },
    "mellum": {},
    "mimo_v2_flash": {},
    "minimax": {},
    "minimax_m2": {},
    "minimax_m3_vl_text": {},
    "mixtral": {},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
        "moe_shared_expert_intermediate_size": 16,
        "use_mamba_kernels": False,
    },
    "olmoe": {},
    "phimoe": {"num_experts_per_tok": 2},
    "qwen2_moe": {},
    "qwen3_5_moe_text": LINEAR,
    "qwen3_moe": {},
    "qwen3_next": LINEAR,
    "qwen4_exp_text": {
        **LINEAR,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "solar_open": {},
    "switch_transformers": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 32,
        "num_heads": 4,
        "num_layers": 4,
        "num_decoder_layers": 4,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 2,
        "expert_capacity": 2,
        "decoder_start_token_id": PAD,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 8},
}
"""Model type to what it needs beyond COMMON."""


def tiny_config(model_type: str) -> Any:
    """Configuration of a model of some ten thousand parameters."""
    known = AutoConfig.for_model(model_type).to_dict()
    values = {name: value for name, value in COMMON.items() if name in known}
    return AutoConfig.for_model(model_type, **{**values, **FAMILIES.get(model_type, {})})


def tiny_model(model_type: str, folder: Path | None = None) -> Any:
    """A random model in evaluation mode, through a saved checkpoint if a folder is given."""
    torch.manual_seed(0)
    config = tiny_config(model_type)
    if model_type == "dbrx":  # transformers 5.23 reads it where the class does not define it
        config.attn_config.rope_theta = 1e4
    maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = maker.from_config(config)
    spread(model)
    if folder is not None:
        model.save_pretrained(folder)
        model = maker.from_pretrained(folder)
    return model.eval()


def spread(model: Any) -> None:
    """Make routing uneven, as in trained models: wide router weights, selection biases."""
    generator = torch.Generator().manual_seed(1)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if "correction_bias" in name or "expert_bias" in name:
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator))
        elif name.endswith("tid2eid"):  # DeepSeek-V4 looks experts up by token
            rows = torch.rand(tensor.shape[0], COMMON["n_routed_experts"], generator=generator)
            tensor.data.copy_(rows.argsort(dim=1)[:, : tensor.shape[1]])
        elif tensor.ndim >= 2 and tensor.is_floating_point():
            tensor.data.mul_(4)
