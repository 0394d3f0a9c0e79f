"""Shapes of transformer layers: every value sourced, sizes as published, every mistake named."""

from __future__ import annotations

import json
import os
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from loops import every

from replay.errors import UserError
from replay.model.work import transformer_shape as shape
from replay.model.work.transformer_shape import LayerShape
from tracegen import models

BILLIONS = {
    "llama-2-7b": 6.74,
    "llama-2-13b": 13.0,
    "llama-2-70b": 69.0,
    "llama-3-8b": 8.03,
    "llama-3-70b": 70.6,
    "llama-3.1-405b": 405,
    "gpt-3-6.7b": 6.7,
    "gpt-3-13b": 13.0,
    "gpt-3-175b": 175,
    "megatron-gpt2-8.3b": 8.3,
    "t-nlg-17b": 17,
    "mt-nlg-530b": 530,
    "palm-540b": 540,
    "cais-mega-gpt-8b": 8.3,
    "cais-llama-7b": 6.74,
    "cais-llama-full": 65.2,
    "mixtral-8x7b": 46.7,
    "qwen3-235b-a22b": 235,
    "qwen3-30b-a3b": 30.5,
}
"""Parameters as published, in billions (papers and model cards)."""

TIED = {"gpt-3-6.7b", "gpt-3-13b", "gpt-3-175b", "megatron-gpt2-8.3b", "t-nlg-17b", "mt-nlg-530b"}
"""Models whose first and last matrix are one, as GPT-2's are."""
TIED |= {"cais-mega-gpt-4b", "cais-mega-gpt-8b"}
TIED |= {"palm-540b"}  # PaLM paper, model architecture: shared input-output embeddings

VOCAB = {"mixtral-8x7b": 32000, "qwen3-235b-a22b": 151936, "qwen3-30b-a3b": 151936}
"""Of models that tracegen's catalogue has, which says nothing about embeddings (config.json)."""


def parameters(one: LayerShape) -> int:
    """Weights of matrices: of attention, of experts or a network, and of the vocabulary."""
    query_and_output = 2 * one.hidden * one.num_heads * one.head_dim
    key_and_value = 2 * one.hidden * one.num_kv_heads * one.head_dim
    matrices = 3 if one.gated else 2
    network = matrices * one.hidden * one.intermediate * max(one.num_experts, 1)
    vocab = VOCAB.get(one.name, one.vocab)
    ends = (1 if one.name in TIED else 2) * vocab * one.hidden
    return one.num_layers * (query_and_output + key_and_value + network) + ends


@every("name", sorted(BILLIONS))
def test_sizes_give_the_published_number_of_parameters(name: str) -> None:
    one = shape.load(name)
    assert parameters(one) / 1e9 == pytest.approx(BILLIONS[name], rel=0.02)


def test_every_shipped_model_is_counted() -> None:
    # CAIS's 4B has four fifths of its name's parameters: Megatron-LM's is 2304 wide, it 2048.
    assert set(shape.names()) - {"cais-mega-gpt-4b"} <= set(BILLIONS)
    assert parameters(shape.load("mega-gpt-4b")) / 1e9 == pytest.approx(4.2 * (2048 / 2304) ** 2, rel=0.02)


@every("name", shape.names())
def test_every_value_has_a_source_and_a_file_of_its_name(name: str) -> None:
    text = (resources.files("replay.model.work.transformers") / f"{name}.toml").read_text("utf-8")
    one = shape.load(name)
    given = set(tomllib.loads(text)["shape"])
    assert one.name == name and one.title
    assert set(one.sources) == given >= {"hidden", "vocab", "sequence_length"}
    assert all(len(source) > 10 for source in one.sources.values())


def test_aliases_are_names_of_shipped_models() -> None:
    assert shape.aliases()["llama-70b"] == "llama-3-70b"
    assert set(shape.aliases().values()) <= set(shape.names())
    assert not set(shape.aliases()) & {*shape.names(), *models.names(), *models.aliases()}
    assert not set(shape.names()) & set(models.names())
    assert shape.load("gpt-3") is shape.load("gpt-3-175b")


def test_a_layer_with_experts_is_that_of_tracegens_model() -> None:
    one, model = shape.load("qwen2-moe"), models.load("qwen2-moe")
    assert one.name == model.name and one.intermediate == model.moe_intermediate
    for field in (
        "hidden",
        "gated",
        "num_experts",
        "topk",
        "num_shared_experts",
        "shared_intermediate",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "num_layers",
        "sequence_length",
    ):
        assert getattr(one, field) == getattr(model, field)
    assert one.sources["intermediate"] == model.sources["moe_intermediate"]
    assert one.sources["hidden"] == model.sources["hidden"]


def test_a_configuration_whose_heads_do_not_suit_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "olmoe",
                "hidden_size": 64,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 3,
                "num_experts": 8,
                "vocab_size": 128,
                "num_experts_per_tok": 2,
                "norm_topk_prob": False,
                "hidden_act": "silu",
            }
        ),
        "utf-8",
    )
    with pytest.raises(UserError, match="num_heads 4 is no multiple of num_kv_heads 3") as refusal:
        shape.load(str(path))
    assert len(str(refusal.value).splitlines()) == 1


@every(
    ("name", "message"),
    [
        (
            "deepseek-v3",
            r"^deepseek-v3 has latent attention, .* a model of plain attention$",
        ),
        ("dysharp-m", r"^the attention of dysharp-m is not known: .* num_kv_heads or head_dim$"),
        ("llama-90b", r"^unknown model 'llama-90b' \(did you mean 'llama-"),
        ("absent.toml", r"^cannot read the model file absent\.toml: "),
    ],
)
def test_models_that_cannot_be_sliced_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        shape.load(name)
    assert "\n" not in str(refusal.value)


GOOD = """
name = "mine"
[shape]
hidden = { value = 64, source = "invented for a test" }
intermediate = { value = 256, source = "invented for a test" }
gated = { value = true, source = "invented for a test" }
num_heads = { value = 4, source = "invented for a test" }
num_kv_heads = { value = 2, source = "invented for a test" }
head_dim = { value = 16, source = "invented for a test" }
num_layers = { value = 3, source = "invented for a test" }
num_experts = { value = 8, source = "invented for a test" }
topk = { value = 2, source = "invented for a test" }
"""


def test_a_users_own_file_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    one = shape.load(path)
    assert one == shape.load(str(path)) == shape.parse(GOOD, "text")
    assert (one.num_kv_heads, one.vocab, one.sequence_length) == (2, 0, None)


@every(
    ("old", "new", "message"),
    [
        ("topk", "top_k", r"\[shape\] unknown key 'top_k' .*did you mean 'topk'"),
        ("[shape]", "colour = 1\n[shape]", "unknown key 'colour'"),
        ("[shape]", "[form]", r"table \[shape\] is missing"),
        ("num_kv_heads = { value = 2", "num_kv_heads = { value = 3", "4 is no multiple of .* 3"),
        ("topk = { value = 2", "topk = { value = 0", "must be both zero or both positive"),
        ("topk = { value = 2", "topk = { value = 9", "topk 9 is more than num_experts 8"),
        (
            "topk =",
            'num_shared_experts = { value = 1, source = "invented" }\ntopk =',
            "num_shared_experts and shared_intermediate must be both",
        ),
        ("value = 64", 'value = "64"', "hidden: Input should be a valid integer .given '64'"),
        ("value = 64", "value = 0", "hidden: Input should be greater than 0"),
        ("hidden = {", "hidden = ", "not valid TOML"),
        ('name = "mine"', "", "name is missing"),
    ],
)
def test_mistakes_in_a_file_are_named(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError, match=message) as refusal:
        shape.parse(GOOD.replace(old, new, 1), where="mine.toml")
    assert str(refusal.value).startswith("mine.toml: ")
    assert "\n" not in str(refusal.value)


def test_hostile_files_are_refused_in_one_line(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"pipe\.toml: .*device, pipe or socket"):
        shape.load(pipe)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"cannot read the model file .*binary\.toml"):
        shape.load(binary)
    with pytest.raises(UserError, match="more than 32 levels"):
        shape.parse("a = " + "[" * 5000 + "]" * 5000, "deep.toml")
