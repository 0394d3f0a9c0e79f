"""The catalogue of model shapes: every value sourced, every mistake named."""

import tomllib
from importlib import resources

import pytest
from loops import every

import tracegen
from tracegen import ModelShape, UserError, models
from tracegen.models.schema import PARAMETERS_ONLY

REQUIRED = [
    *("deepseek-v3", "qwen3-235b-a22b", "gpt-oss-20b", "gpt-oss-120b", "mixtral-8x7b"),
    *("qwen2-moe", "qwen2-moe-2.7b", "qwen2-57b-a14b", "phi-3.5-moe", "olmoe-1b-7b"),
    *("pangu-ultra-moe", "dysharp-s", "dysharp-m", "dysharp-l", "flashdmoe"),
    *("deepseek-v2-lite", "qwen3-30b-a3b", "glm-4.5", "kimi-k2"),
    *("deepseek-v4-flash", "deepseek-v4-pro", "nemotron-3-nano"),
    *("llama-4-scout", "llama-4-maverick", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "glm-5"),
    *("minimax-m2", "ernie-4.5-21b-a3b", "longcat-flash", "kimi-linear-48b-a3b", "grok-1"),
    *("hunyuan-a13b", "hunyuan-large", "hy3", "minimax-m1", "ernie-4.5-300b-a47b", "grok-2"),
    *("qwen3.5-122b-a10b", "qwen3.5-397b-a17b"),
]

BILLIONS = {
    "deepseek-v3": 671,
    "qwen3-235b-a22b": 235,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "mixtral-8x7b": 46.7,
    "qwen2-moe-2.7b": 14.3,
    "qwen2-57b-a14b": 57.4,
    "phi-3.5-moe": 41.9,
    "olmoe-1b-7b": 6.9,
    "pangu-ultra-moe": 718,
    "deepseek-v2-lite": 15.7,
    "qwen3-30b-a3b": 30.5,
    "glm-4.5": 355,
    "kimi-k2": 1040,
    "deepseek-v4-flash": 284,
    "deepseek-v4-pro": 1600,
    "nemotron-3-nano": 31.6,
    "llama-4-scout": 109,
    "llama-4-maverick": 400,
    "qwen3-next-80b-a3b": 80,
    "qwen3.5-35b-a3b": 35,
    "glm-5": 744,
    "minimax-m2": 230,
    "longcat-flash": 560,
    "kimi-linear-48b-a3b": 48,
    "grok-1": 314,
    "grok-2": 270,
    "hunyuan-a13b": 80,
    "hunyuan-large": 389,
    "hy3": 295,
    "minimax-m1": 456,
    "ernie-4.5-300b-a47b": 300,
    "qwen3.5-122b-a10b": 122,
    "qwen3.5-397b-a17b": 397,
}
"""Parameters as published, in billions (model cards and papers)."""


@every("name", REQUIRED)
def test_every_named_model_is_there(name):
    assert models.load(name).num_moe_layers >= 1


@every("name", sorted(BILLIONS))
def test_expert_weights_account_for_most_of_the_published_parameters(name):
    """Three matrices an expert; what is left is attention and embeddings."""
    shape = models.load(name)
    matrices = 3 if shape.gated else 2
    routed = shape.num_ffn_experts * shape.moe_intermediate
    shared = shape.num_shared_experts * shape.shared_intermediate
    moe = shape.num_moe_layers * matrices * shape.hidden * (routed + shared)
    dense = len(shape.dense_layers) * matrices * shape.hidden * shape.dense_intermediate
    fraction = (moe + dense) / 1e9 / BILLIONS[name]
    assert 0.88 < fraction < 1


@every("name", models.names())
def test_every_value_has_a_source_and_a_file_of_its_name(name):
    text = (resources.files("tracegen.models") / f"{name}.toml").read_text("utf-8")
    shape = models.load(name)
    assert shape.name == name
    assert set(shape.sources) == set(tomllib.loads(text)["shape"])
    assert all(len(source) > 10 for source in shape.sources.values())


def test_dense_layers_are_not_moe_layers():
    shape = models.load("deepseek-v3")
    assert (shape.num_layers, shape.num_moe_layers) == (61, 58)
    assert shape.moe_layer_index[0] == 3
    assert shape.moe_layer_index[-1] == 60


def test_layers_that_are_neither_experts_nor_dense_are_counted():
    shape = models.load("nemotron-3-nano")
    assert (shape.num_layers, shape.num_moe_layers, shape.moe_layer_index[:4]) == (
        52,
        23,
        (1, 3, 6, 8),
    )


def test_aliases_stand_for_the_shape_that_papers_use():
    assert models.load("qwen2-moe").num_experts == 64
    assert models.load("qwen2-moe-2.7b").num_experts == 60
    assert models.aliases()["qwen2-moe"] in models.names()


@every("name", models.names())
def test_sizes_carry_everything_but_prose(name):
    shape = models.load(name)
    back = ModelShape.model_validate_json(ModelShape(**shape.model_dump()).model_dump_json())
    assert back == shape
    import json

    carried = ModelShape.model_validate_json(json.dumps(shape.sizes()))
    assert carried.sizes() == shape.sizes()
    assert carried.moe_layer_index == shape.moe_layer_index
    assert not PARAMETERS_ONLY & shape.sizes().keys()
    assert models.complete(carried) == shape
    assert models.complete(carried.model_copy(update={"hidden": 1})).vocab is None


GOOD = """
name = "mine"
[shape]
hidden = { value = 64, source = "invented for a test" }
moe_intermediate = { value = 32, source = "invented for a test" }
num_experts = { value = 8, source = "invented for a test" }
topk = { value = 2, source = "invented for a test" }
num_layers = { value = 4, source = "invented for a test" }
gated = { value = true, source = "invented for a test" }
"""


def test_a_users_own_file_is_read_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert models.load(path).hidden == models.load(str(path)).hidden == 64
    trace = tracegen.generate.generate("uniform", str(path), ranks=2, tokens_per_rank=4)
    tracegen.write(trace, tmp_path / "mine.h5")
    path.unlink()  # the trace carries the shape
    assert tracegen.load(tmp_path / "mine.h5").model_shape.moe_intermediate == 32


@every(
    ("old", "new", "message"),
    [
        ("topk", "top_k", r"\[shape\] unknown key 'top_k' .*did you mean 'topk'"),
        ("[shape]", "colour = 1\n[shape]", "unknown key 'colour'"),
        ("[shape]", "[form]", r"table \[shape\] is missing"),
        ("value = 2,", "value = 9,", "topk 9 is more than num_experts 8"),
        ("value = 2,", 'value = "2",', "topk: Input should be a valid integer .given '2'"),
        ("value = true,", "value = 1,", "gated: Input should be a valid boolean"),
        (
            "[shape]",
            '[shape]\nnum_zero_experts = { value = 8, source = "invented for a test" }',
            "num_zero_experts 8 are among num_experts 8, and not all",
        ),
        ("value = 4,", "value = 0,", "num_layers: Input should be greater than 0"),
        (', source = "invented for a test" }\ntopk', " }\ntopk", "num_experts must be"),
        ('source = "invented for a test" }\ntopk', 'source = "" }\ntopk', "needs a source"),
        ("hidden = {", "hidden = ", "not valid TOML"),
        ('name = "mine"', "", "name is missing"),
    ],
)
def test_mistakes_in_a_file_are_named(old, new, message):
    assert old in GOOD
    with pytest.raises(UserError, match=message) as refusal:
        models.parse(GOOD.replace(old, new, 1), where="mine.toml")
    assert str(refusal.value).startswith("mine.toml: ")


def test_unknown_names_and_files():
    with pytest.raises(UserError, match=r"unknown model 'deepseek' .did you mean 'deepseek-v3'"):
        models.load("deepseek")
    with pytest.raises(UserError, match=r"cannot read the model file absent\.toml"):
        models.load("absent.toml")
