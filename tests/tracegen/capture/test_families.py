"""Family by family: what was captured, fed back to the model, gives bit-identical logits."""

import functools
import math
import os
import re
from pathlib import Path

import needs_torch  # noqa: F401  # before all that imports torch
import pytest
import tiny_families
import transformers
from replay_proof import OLDER, PROMPT_TOKENS, Proof, forward_inputs, prove
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import tracegen
from tracegen.capture import header
from tracegen.capture.sites import BROKEN

TABLE = Path(tracegen.__file__).parent / "capture" / "FAMILIES.md"
REWRITE = "MOEREPLAY_WRITE_FAMILIES"

REFUSED = {
    "diffusion_gemma": (
        "rows cannot be assigned to tokens",
        "it decodes a canvas, whose rows are not the input's; its text encoder alone is captured",
    ),
    "doge": (
        "no module whose routing can be seen",
        "its experts are looked up in a table within one module, by product keys",
    ),
    "ernie4_5_vl_moe": (
        "both claim to be layer",
        "text and pictures have experts of their own in one layer, and a trace has one routing",
    ),
    "inkling2_loop_text": (
        "ran twice in one forward pass",
        "a token passes some of its layers several times, and a trace has one routing of a layer",
    ),
}
"""Model type to the message of its refusal, and why."""
ELSEWHERE = {
    "bamba": "the number of experts is fixed to one",
    "granite_docling": "its router chooses picture densities, not experts",
    "vitpose_backbone": "the caller names the expert, by data set",
}
"""Folders of transformers whose source has the words, but no experts that are chosen by token."""
ROUNDED_OTHERWISE = {"minimax": 0.9}
"""Families whose cached generation differs from a whole pass by itself, without padding: sums of
linear attention are taken in another order. Share of rows that agree all the same."""
PADDING_MATTERS = {"minimax": 0.9, "deepseek_v4": 0.9}
"""Families that padding on the left changes: it shifts their blocks of compressed attention, or
goes into sums. Share of rows that agree all the same."""
EVERY_TIME = {
    *("jetmoe", "llama4_text", "switch_transformers"),  # read by an adapter; one has two stacks
    *("mixtral", "gpt_oss", "deepseek_v3", "minimax", "deepseek_v4"),
    *("jamba", "qwen3_next", "gemma4_text"),  # other layers between, or layers that differ
    *("openai_privacy_filter", "qwen3_omni_moe_thinker"),  # no text is made; a part of a model
}
"""Families of the default tier, one of each kind; all others are tried before a release."""
SET = {
    "dbrx": {"attn_config.clip_qkv"},
    "deepseek_ocr2": {"text_config.mlp_layer_types", "text_config.num_experts_per_tok"},
    "deepseek_v2": {"num_experts_per_tok"},
    "diffusion_gemma": {f"text_config.{name}" for name in ("num_experts", "top_k_experts", "moe_intermediate_size")},
    "doge": {"is_moe"},
    "dots1": {"n_routed_experts", "n_shared_experts", "num_experts_per_tok"},
    "gemma4_text": {"enable_moe_block", "moe_intermediate_size", "num_experts", "top_k_experts"},
    "granitemoehybrid": {"layer_types"},
    "hunyuan_v1_moe": {"head_dim", "moe_topk", "num_experts"},
    "lfm2_moe": {"layer_types"},
    "qwen4_exp_text": {f"indexer_{name}" for name in ("budget", "compress_ratio", "head_dim", "kv_heads", "n_heads")},
    "step3p7": {"text_config.sliding_window"},
}
"""What a default leaves out without which the class makes no model, or none with experts."""
INTRODUCTION = f"""# Model families that capture is proven for

For those who ask whether a family of models can be captured.
Written by the test run (`{REWRITE}=1 pytest tests/tracegen/capture/test_families.py`) with
transformers 5.24.0, and compared before a release; in every run one family of each kind is, which
also fails if the installed transformers has experts in a folder that no row is of. With the lowest
version, 5.0.0, the same few are tried. Each row is a tiny random model: configured, saved, loaded, generated
with. Its configuration is the one that the class makes by default, with small numbers and the
fewest layers that have all kinds; what had to be set besides is in the row.

- **proven**: the routing is read from what the experts module receives. The trace holds one row
  for each real token; fed back, its ids and weights give bit-identical logits, and ids moved by
  one give others; cached generation is routed as one pass over the whole sequence, without
  padding and with padding on the left.
- **adapter**: the same, with the routing read from the family's own router or mask format.
- **refused**: capture raises an error that says why.

Where the last column says *padding*, the model itself routes some tokens otherwise when it pads on
the left (the trace holds what was executed); *caching*: also when it generates with a cache. In
the families whose attention picks tokens by the score of an indexer (`index_topk`: axk2,
deepseek_v32, dots3_note_text, glm_moe_dsa, glm5_next, hy_v4, hy_v4_vl, mistral_large4) scores below
zero are cut to zero, and which of several tokens with equal scores is picked depends on the shape
of the pass. With 16 heads, the fewest that a class has by default, no such tie happened in eight
random batches of axk2, glm_moe_dsa and hy_v4; with one or two heads, padding and caching change up
to a quarter of the rows.

A model type that is not listed is captured all the same if a module of it receives ids and
weights: sites are found by signature, not by this list.

| model type | read from | verdict | set besides sizes | differs with |
|---|---|---|---|---|
"""


def row(model_type: str, proof: Proof) -> str:
    verdict = {"experts": "proven", "adapter": "adapter"}[proof.how]
    if math.isnan(proof.cached_equals_whole) and not tiny_families.is_encoder_decoder(model_type):
        verdict += " (does not generate)"
    differs = [word for word, of in (("padding", PADDING_MATTERS), ("caching", ROUNDED_OTHERWISE)) if model_type in of]
    inner = AutoConfig.for_model(model_type).get_text_config().model_type
    name = model_type if inner in ("", model_type) else f"{model_type} ({inner})"
    values = ", ".join(f"`{one}`" for one in sorted(SET.get(model_type, ())))
    return f"| {name} | `{proof.read_from}` | {verdict} | {values} | {', '.join(differs)} |"


def refused_rows() -> list[str]:
    rows = [f"| nllb-moe | | refused: {reason} | | |" for reason in BROKEN.values()]
    return rows + [f"| {name} | | refused: {why} | | |" for name, (_, why) in REFUSED.items()]


@functools.cache
def folders_with_experts() -> set[str]:
    """Folders of the installed transformers whose source speaks of experts."""
    words = re.compile(r"^class \w*(Experts|Router|MoE|Moe)\(|num_(local_|routed_)?experts\b", re.M)
    root = Path(transformers.__file__).parent / "models"
    return {path.parent.name for path in root.glob("*/modeling_*.py") if words.search(path.read_text("utf-8"))}


def folder_of(model_type: str) -> str:
    """Folder of transformers that a model type comes from."""
    return CONFIG_MAPPING[model_type].__module__.split(".")[-2]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=() if name in EVERY_TIME else pytest.mark.release)
        for name in sorted({*tiny_families.FAMILIES} - {*REFUSED})
    ],
)
def test_the_captured_routing_is_what_the_model_executed(model_type: str, folder: Path) -> None:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    proof = prove(model_type, folder)
    assert proof.rows_as_expected
    assert proof.replay_exact
    assert proof.shift_differs
    if not math.isnan(proof.cached_equals_whole):
        assert proof.cached_equals_whole >= ROUNDED_OTHERWISE.get(model_type, 1.0)
        assert proof.padded_equals_whole >= PADDING_MATTERS.get(model_type, 1.0)
    if REWRITE not in os.environ and not OLDER:  # where classes have other names
        assert row(model_type, proof) in TABLE.read_text("utf-8").splitlines()


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_a_family_that_cannot_be_captured_says_so(model_type: str, tmp_path: Path) -> None:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    model = tiny_families.tiny_model(model_type)
    with (
        pytest.raises(tracegen.UserError, match=REFUSED[model_type][0]),
        tracegen.capture(model, tmp_path / "a.h5"),
    ):
        model(**forward_inputs(model))


@pytest.mark.skipif(OLDER, reason="tiny configurations are made for the newest transformers")
@pytest.mark.parametrize("model_type", sorted(tiny_families.FAMILIES))
def test_a_tiny_configuration_has_all_that_is_special_about_the_default(model_type: str) -> None:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    default = AutoConfig.for_model(model_type).to_dict()
    found = tiny_families.differences(default, tiny_families.tiny_config(model_type).to_dict())
    allowed = SET.get(model_type, set())
    assert {name: pair for name, pair in found.items() if name not in allowed} == {}
    if model_type in SET:
        assert SET[model_type] <= set(found)


@pytest.mark.skipif(OLDER, reason="the table is of the newest transformers")
def test_no_experts_of_the_installed_transformers_are_missing_from_the_table() -> None:
    listed = {*tiny_families.FAMILIES, "nllb-moe"} & {*CONFIG_MAPPING}
    known = {folder_of(model_type) for model_type in listed} | {*ELSEWHERE}
    new = sorted(folders_with_experts() - known)
    assert new == [], f"transformers {transformers.__version__}: try these in tiny_families.py"


def test_layers_that_differ_leave_the_shape_out_and_say_so(folder: Path) -> None:
    """Gemma 4's full attention has larger heads; one number cannot be stated for both."""
    if "gemma4_text" not in CONFIG_MAPPING:
        pytest.skip("the installed transformers has no gemma4_text")
    prove("gemma4_text", folder)
    trace = tracegen.load(folder / "gemma4_text.h5")
    assert trace.model.shape is None
    assert "Layers differ in head_dim" in trace.info.provenance["notes"]
    assert trace.model.num_experts == 8
    stated = header.text_config(tiny_families.tiny_model("gemma4_text"))
    assert not hasattr(stated, "head_dim")
    assert stated.hidden_size == 32


def test_a_part_of_a_refused_model_may_be_captured(tmp_path: Path) -> None:
    """The encoder of DiffusionGemma routes the tokens of its input, with layers that differ."""
    if "diffusion_gemma" not in CONFIG_MAPPING:
        pytest.skip("the installed transformers has no diffusion_gemma")
    text = tiny_families.tiny_model("diffusion_gemma").model.encoder.language_model
    with tracegen.capture(text, tmp_path / "a.h5"):
        text(**forward_inputs(text))
    trace = tracegen.load(tmp_path / "a.h5")
    assert trace.num_tokens == sum(PROMPT_TOKENS)
    assert trace.model.model_type == "diffusion_gemma_text"
    assert trace.model.shape is None


def test_a_family_that_transformers_runs_wrongly_is_refused(tmp_path: Path) -> None:
    import torch

    router = type("NllbMoeTop2Router", (torch.nn.Linear,), {})(4, 4)
    with pytest.raises(tracegen.UserError, match="only the first two experts"):
        tracegen.capture(torch.nn.Sequential(router), tmp_path / "a.h5")


def test_the_committed_table_lists_every_family(folder: Path) -> None:
    proven = {*tiny_families.FAMILIES} - {*REFUSED}
    if REWRITE in os.environ:
        rows = [row(name, prove(name, folder)) for name in proven if name in CONFIG_MAPPING]
        TABLE.write_text(INTRODUCTION + "\n".join(sorted(rows + refused_rows())) + "\n", "utf-8")
    text = TABLE.read_text("utf-8")
    assert text.startswith(INTRODUCTION)
    listed = [line for line in text.splitlines() if line.startswith("| ")][1:]
    names = [line.split("|")[1].split()[0] for line in listed]
    assert sorted(names) == sorted([*tiny_families.FAMILIES, "nllb-moe"])
    assert listed == sorted(listed)
    assert set(refused_rows()) <= set(listed)
