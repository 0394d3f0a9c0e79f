"""Tiny random models of every family: what the class makes by default, with small numbers.

Nothing that is special about a default is removed: switches, names, kinds of layers and what
differs between layers stay. :func:`differences` finds what does not, and :data:`SET` says why.
"""

import copy
import functools
import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
)

transformers.logging.set_verbosity(logging.ERROR)
transformers.logging.disable_progress_bar()

VOCAB = 64
PAD, EOS = 1, 2
MAX_LAYERS = 12

TOKENS = {
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": 3,
    "vocab_size": VOCAB,
    "unpadded_vocab_size": VOCAB,
}
"""Set wherever they are known, whatever the default is."""

SIZES: dict[str, int] = {
    "hidden_size": 32,
    "d_model": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "expert_ffn_hidden_size": 16,
    "ffn_hidden_size": 16,
    "shared_expert_intermediate_size": 16,
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
    "moe_top_k": 3,
    "top_k_experts": 3,
    "max_position_embeddings": 128,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "index_topk": 4,
    "index_n_heads": 32,
    "index_head_dim": 16,
    "depth": 2,
    "num_heads": 4,
    "out_hidden_size": 32,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 8,
    "mamba_head_dim": 8,
    "mamba_d_state": 8,
    "ssm_state_size": 8,
    "mamba_chunk_size": 16,
    "chunk_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "shared_experts_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "dense_intermediate_size": 48,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 16,
    "projector_hidden_size": 32,
    "projection_intermediate_size": 48,
    "downsample_hidden_size": 8,
    "moe_hidden_size": 32,
    "output_channels": 16,
    "mlp_dim": 48,
}
"""Largest value of numbers that only say how much there is of something."""

LATENT = {"num_key_value_heads": 4}
"""Heads of latent attention, which has as many keys as queries."""

SMALL_PICTURES = {"vision_config": {"sam_config": {"downsample_channels": [16, 32]}}}
"""A vision tower whose last width is that of its encoder."""

FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "aria_text": {},
    "axk1": LATENT,
    "axk2": LATENT,
    "bailing_hybrid": {**LATENT, "num_expert_group": 4},
    "beam": {},
    "cohere2_moe": {},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"clip_qkv": 8.0},
    },
    "deepseek_ocr2": {
        **SMALL_PICTURES,
        "text_config": {"num_experts_per_tok": 3, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    },
    "deepseek_v2": {**LATENT, "num_experts_per_tok": 3},
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT,
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "head_dim": 64,
        "index_head_dim": 64,
        "o_groups": 2,
        "o_lora_rank": 8,
    },
    "diffusion_gemma": {"text_config": {"num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 16}},
    "doge": {"is_moe": True, "num_experts": 16},
    "dots1": {
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
    },
    "dots3_note_text": {
        **LATENT,
        "head_dim": 32,
        "per_layer_config": {
            "2": {
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "kv_lora_rank": 32,
                "qk_nope_head_dim": 24,
            }
        },
    },
    "ernie4_5_moe": {},
    "ernie4_5_vl_moe": {
        "text_config": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e5,
                "mrope_section": [1, 1, 2],
            }
        }
    },
    "exaone_moe": {},
    "flex_olmo": {},
    "flint": {},
    "gemma4_text": {
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 3,
        "moe_intermediate_size": 16,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
    },
    "glm4_moe": {},
    "glm4_moe_lite": LATENT,
    "glm4v_moe": {"text_config": {"head_dim": 128}},
    "glm5_next": {"text_config": {**LATENT, "index_kpool": 2}},
    "glm_moe_dsa": LATENT,
    "gpt_oss": {},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "granitemoeshared": {},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 3, "head_dim": 8},
    "hy_v3": {},
    "hy_v4": {},
    "hy_v4_vl": {"text_config": {"rope_parameters": {"mrope_section": [2, 1, 1]}}},
    "inkling2_loop_text": {
        "n_layers_per_attn_res_block": 2,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
    },
    "inkling2_text": {},
    "inkling_text": {},
    "jamba": {"num_hidden_layers": 5, "mamba_dt_rank": 4},
    "jetmoe": {"kv_channels": 8},
    "kimi_linear": LATENT,
    "kolibri1": {},
    "laguna": {},
    "lara_mini": {},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "llama4_text": {},
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
    "mistral4": {**LATENT, "head_dim": 16},
    "mistral_large4": {"text_config": LATENT},
    "mixtral": {},
    "muse_spark": {"audio_config": {"hidden_sizes": [8, 8, 16, 16]}},
    "nemotron_h": {"n_groups": 2},
    "olmoe": {},
    "openai_privacy_filter": {},
    "phimoe": {},
    "qwen2_moe": {},
    "qwen3_5_moe_text": {},
    "qwen3_moe": {},
    "qwen3_next": {},
    "qwen3_omni_moe_thinker": {
        "vision_start_token_id": 5,
        "audio_config": {
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 32,
            "output_dim": 32,
        },
    },
    "qwen3_vl_moe": {},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "solar_open": {},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "switch_transformers": {
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
    "unlimited_ocr": SMALL_PICTURES,
    "zaya": {"router_hidden_size": 8},
}
"""Model type to what it is given beyond :data:`SIZES`."""


OTHER_CLASSES = {
    "diffusion_gemma": "DiffusionGemmaForBlockDiffusion",
    "openai_privacy_filter": "OpenAIPrivacyFilterForTokenClassification",
}
"""Classes of models that no Auto class for generation makes."""


IGNORED = {*TOKENS, "transformers_version", "id2label", "label2id", "vision_config", "audio_config"}
"""Names of no meaning for routing, and parts that tokens of text do not pass."""
LAYERS = {"first_k_dense_replace", "num_dense_layers", "num_kv_shared_layers"}
"""Numbers of layers of a kind, of which one is enough."""


def shrunk(known: dict[str, Any], layers: int) -> dict[str, Any]:
    """Small values for the numbers of a default configuration, those of its parts included."""
    values: dict[str, Any] = {}
    for name, value in known.items():
        if name in TOKENS:
            values[name] = TOKENS[name]
        elif name == "num_hidden_layers":
            values[name] = layers
        elif isinstance(value, dict) and name.endswith("_config") and name != "per_layer_config":
            values[name] = shrunk(value, layers)
        elif isinstance(value, int) and value > SIZES.get(name, value):
            values[name] = SIZES[name]
    return values


def kinds(known: dict[str, Any]) -> dict[str, set[str]]:
    """Kinds of layers that a configuration lists, and what it lets differ between layers."""
    found: dict[str, set[str]] = {}
    for name, value in known.items():
        if name.endswith(("_types", "block_type")) and value:
            found[name] = {str(kind) for kind in value}
        elif name == "per_layer_config" and value:
            found[name] = {key for layer in value.values() for key in layer}
        elif isinstance(value, dict) and name.endswith("_config"):
            found |= {f"{name}.{inner}": of for inner, of in kinds(value).items()}
    return found


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Values with those of another dictionary on top, part by part."""
    both = dict(values)
    for name, value in more.items():
        deep = isinstance(value, dict) and isinstance(both.get(name), dict)
        both[name] = merged(both[name], value) if deep else value
    return both


def differences(default: dict[str, Any], tiny: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What of a default configuration is not in the tiny one: name to both values.

    Numbers may be smaller, but what is on stays on, and what is off or one stays so.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name, one in default.items():
        other = tiny.get(name)
        if name in IGNORED:
            continue
        if isinstance(one, dict) and isinstance(other, dict) and name != "per_layer_config":
            inner = differences(one, other)
            found |= {f"{name}.{key}": pair for key, pair in inner.items()}
        elif isinstance(one, list | dict) and isinstance(other, list | dict):
            if bool(one) != bool(other):
                found[name] = (one, other)
        elif isinstance(one, bool) or not isinstance(one, int) or not isinstance(other, int):
            if one != other:
                found[name] = (one, other)
        elif one != other and (one < 2 or other < (1 if name in LAYERS else 2)):
            found[name] = (one, other)
    for name, of in kinds(default).items():
        if kinds(tiny).get(name, set()) != of:
            found[name] = (of, kinds(tiny).get(name))
    return found


@functools.cache
def tiny_config(model_type: str) -> Any:
    """The default configuration with small numbers: the fewest layers that have all kinds."""
    known = AutoConfig.for_model(model_type).to_dict()
    wanted, problem = kinds(known), None
    for layers in range(3, MAX_LAYERS + 1):
        values = merged(shrunk(known, layers), FAMILIES.get(model_type, {}))
        try:
            config = AutoConfig.for_model(model_type, **values)
        except Exception as error:
            problem = error
            continue
        if all(kinds(config.to_dict()).get(name, set()) >= of for name, of in wanted.items()):
            return config
    msg = f"{model_type}: no {MAX_LAYERS} layers have all of {wanted} ({problem})"
    raise AssertionError(msg)


def class_of(config: Any) -> Any:
    """Class that a model is made with: one that generates, if there is one."""
    for maker in (AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForImageTextToText):
        if type(config) in maker._model_mapping:
            return maker._model_mapping[type(config)]
    return getattr(transformers, OTHER_CLASSES[config.model_type])


def is_encoder_decoder(model_type: str) -> bool:
    """Whether models of this type have an encoder."""
    return bool(tiny_config(model_type).is_encoder_decoder)


def tiny_model(model_type: str, folder: Path | None = None) -> Any:
    """A random model in evaluation mode, through a saved checkpoint if a folder is given."""
    torch.manual_seed(0)
    config = copy.deepcopy(tiny_config(model_type))
    # transformers reads these where the class does not define them: 5.23, 5.0; and 5.0 wants
    # kernels for a GPU unless it is told not to.
    if model_type == "dbrx":
        config.attn_config.rope_theta = 1e4
    if model_type == "jetmoe":
        config.pad_token_id = PAD
    if hasattr(config, "use_mamba_kernels"):
        config.use_mamba_kernels = False
    maker = class_of(config)
    model = maker._from_config(config)
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
            rows = torch.rand(tensor.shape[0], SIZES["n_routed_experts"], generator=generator)
            tensor.data.copy_(rows.argsort(dim=1)[:, : tensor.shape[1]])
        elif tensor.ndim >= 2 and tensor.is_floating_point():
            tensor.data.mul_(4)
