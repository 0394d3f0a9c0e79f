"""Requests, positions, phases and batches of real generations; what is refused, and why."""

import signal
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401  # before all that imports torch
import numpy as np
import pytest
import tiny_families
import torch
import transformers
from replay_proof import (
    DECODE,
    ENCODER,
    EXPECTED,
    NEW_TOKENS,
    PREFILL,
    PROMPT_TOKENS,
    REAL,
    TRAINING,
    captured,
    generate,
    given_back,
    prompts,
)
from typer.testing import CliRunner

import tracegen
from tracegen.capture.prepare import release
from tracegen.capture.sites import find_sites, find_stacks


def rows_of(trace: tracegen.RoutingTrace) -> list[tuple[int, int, int]]:
    table = trace.tokens
    return sorted(zip(table.request.tolist(), table.position.tolist(), table.phase.tolist(), strict=True))


def test_a_generation_becomes_requests_positions_and_phases(model: Any, out: Path) -> None:
    trace = captured(model, out, token_ids=True, dataset="made up", license="CC0-1.0")
    assert rows_of(trace) == EXPECTED
    assert np.diff(trace.steps_indptr.astype(int)).tolist() == [REAL] + [3] * (NEW_TOKENS - 1)
    assert trace.requests.prompt_len is not None
    assert trace.requests.prompt_len.tolist() == list(PROMPT_TOKENS)
    assert trace.requests.output_len is not None
    assert trace.requests.output_len.tolist() == [NEW_TOKENS - 1] * 3
    assert trace.model.num_experts == 8
    assert trace.model.hidden_size == 32
    assert trace.model_shape.num_moe_layers == 3
    assert trace.info.kind == "captured"
    assert trace.info.weight_row_sum == "1"
    assert trace.info.slot_order == "weight_desc"
    record = trace.info.provenance
    assert record["dropped"] == [{"rows": 4, "why": "padding, masked by the attention mask"}]
    assert record["environment"]["torch"] == torch.__version__
    ids, mask = prompts()
    first = trace.tokens.phase == PREFILL
    assert trace.tokens.token_id is not None
    assert trace.tokens.token_id[first].tolist() == ids[mask.bool()].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"prefill_chunk_size": 3},
        {"cache_implementation": "static"},
        {"use_cache": False},
        {"num_return_sequences": 1, "do_sample": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_rows_do_not_depend_on_how_the_generation_is_run(model: Any, out: Path, options: dict[str, Any]) -> None:
    if "prefill_chunk_size" in options and release(transformers.__version__) < (5, 1):
        pytest.skip("transformers 5.0 takes no prompts in chunks")
    ids, mask = prompts()
    with tracegen.capture(model, out):
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            **{"do_sample": False, **options},
        )
    assert rows_of(tracegen.load(out)) == EXPECTED


def test_sequences_that_ended_are_not_recorded_while_others_go_on(model: Any, out: Path) -> None:
    ids, mask = prompts()
    free = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    width = ids.shape[1]
    # The token that one sequence generates second, and the others not before their fourth.
    stop = next(
        (int(row[width + 1]), at)
        for at, row in enumerate(free)
        if all(int(row[width + 1]) not in other[width : width + 4].tolist() for k, other in enumerate(free) if k != at)
        and int(row[width]) != int(row[width + 1])
    )
    with tracegen.capture(model, out):
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=5,
            do_sample=False,
            eos_token_id=stop[0],
            pad_token_id=tiny_families.PAD,
        )
    trace = tracegen.load(out)
    assert trace.requests.output_len is not None
    # The stop token itself is fed only because others go on: no engine routes it.
    assert trace.requests.output_len[stop[1]] == 1
    reasons = {d["why"]: d["rows"] for d in trace.info.provenance["dropped"]}
    assert reasons["fed to sequences that had ended, while others of the batch went on"] > 0


def test_batches_are_new_requests(model: Any, out: Path) -> None:
    with tracegen.capture(model, out):
        generate(model)
        generate(model)
    trace = tracegen.load(out)
    again = [(request + 3, position, phase) for request, position, phase in EXPECTED]
    assert rows_of(trace) == sorted(EXPECTED + again)
    first, second = (trace.expert_ids[:, trace.tokens.request // 3 == half] for half in (0, 1))
    np.testing.assert_array_equal(first, second)


def test_several_samples_of_a_prompt_are_several_requests(model: Any, out: Path) -> None:
    ids, mask = prompts()
    with tracegen.capture(model, out):
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=2,
            min_new_tokens=2,
            do_sample=True,
            num_return_sequences=2,
            cache_implementation="static",
        )
    trace = tracegen.load(out)
    assert trace.requests.prompt_len is not None
    assert trace.requests.prompt_len.tolist() == list(np.repeat(PROMPT_TOKENS, 2))


def test_a_loop_of_forward_passes_is_followed_by_its_cache(model: Any, out: Path) -> None:
    ids, mask = prompts()
    with tracegen.capture(model, out), torch.no_grad():
        done = model(input_ids=ids, attention_mask=mask, use_cache=True)
        for _ in range(NEW_TOKENS - 1):
            token = done.logits[:, -1:].argmax(-1)
            mask = torch.cat([mask, torch.ones_like(token)], dim=1)
            cache = given_back(model, done.past_key_values)
            done = model(input_ids=token, attention_mask=mask, **cache)
    assert rows_of(tracegen.load(out)) == EXPECTED


def test_a_conversation_goes_on_from_its_cache(model: Any, out: Path) -> None:
    ids = prompts()[0][1:2]  # without padding
    with tracegen.capture(model, out):
        first = model.generate(input_ids=ids, max_new_tokens=3, min_new_tokens=3, return_dict_in_generate=True)
        longer = torch.cat([first.sequences, ids[:, :2]], dim=1)
        model.generate(
            input_ids=longer,
            **given_back(model, first.past_key_values),
            max_new_tokens=2,
            min_new_tokens=2,
        )
    table = tracegen.load(out).tokens
    width = ids.shape[1]
    second = table.request == 1
    assert table.position[~second].tolist() == list(range(width + 2))
    assert table.position[second].tolist() == [width + 2, width + 3, width + 4, width + 5]
    assert table.phase[second].tolist() == [PREFILL] * 3 + [DECODE]


def test_training_passes_are_training_and_each_its_own_batch(out: Path) -> None:
    trained = tiny_families.tiny_model("mixtral").train()
    # Runs experts again in the backward pass; renamed in transformers 5.23.
    name = "activation_checkpointing_enable"
    getattr(trained, name if hasattr(trained, name) else "gradient_checkpointing_enable")()
    ids, mask = prompts()
    with tracegen.capture(trained, out):
        for _ in range(2):
            labels = ids.masked_fill(mask == 0, -100)
            loss = trained(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
            loss.backward()
    trace = tracegen.load(out)
    assert set(trace.tokens.phase.tolist()) == {TRAINING}
    assert trace.num_tokens == 2 * REAL
    assert trace.num_steps == 2
    assert len(set(trace.tokens.request.tolist())) == 6


def test_an_encoder_has_its_own_phase_and_capacity_leaves_slots_empty(out: Path) -> None:
    switch = tiny_families.tiny_model("switch_transformers")
    trace = captured(switch, out)
    encoder = trace.tokens.phase == ENCODER
    assert int(encoder.sum()) == REAL
    assert set(trace.tokens.request[encoder]) == set(trace.tokens.request[~encoder]) == {0, 1, 2}
    assert trace.moe_layer_index.tolist() == [1, 3, 5, 7]
    empty = trace.expert_ids[..., 0] == trace.empty_slot
    assert empty[:2, ~encoder].all()
    assert empty[2:, encoder].all()
    # expert_capacity is 2 per sequence and expert: the rest of the longest prompt overflows.
    if release(transformers.__version__) < (5, 20):
        assert not empty[:2, encoder].any(), "early versions have a capacity and do not apply it"
        return
    assert trace.flags is not None
    dropped = (trace.flags == 1)[:2, encoder]
    np.testing.assert_array_equal(dropped, empty[:2, encoder])
    load = trace.load_per_expert()[:2]
    assert dropped.any()
    assert load.max() <= 2 * len(PROMPT_TOKENS)


def test_zero_and_shared_experts_are_in_the_header(tmp_path: Path) -> None:
    longcat = captured(tiny_families.tiny_model("longcat_flash"), tmp_path / "a.h5")
    assert longcat.model.num_experts == 8
    assert longcat.model.num_zero_experts == 2
    assert (longcat.expert_ids >= 6).any(), "zero experts keep their ids"
    deepseek = captured(tiny_families.tiny_model("deepseek_v3"), tmp_path / "b.h5")
    assert deepseek.model.num_shared_experts == 1
    assert deepseek.model.n_group == 4
    assert deepseek.model.topk_group == 2
    assert deepseek.model.expert_bias
    assert deepseek.moe_layer_index.tolist() == [1, 2]
    assert deepseek.info.weight_row_sum == "2.5"


def test_of_a_multimodal_model_only_the_text_decoder_is_watched() -> None:
    """Vision towers route patches, not tokens; their rows would not be those of the text."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if "dots3_note" not in CONFIG_MAPPING:
        pytest.skip("the installed transformers has no dots3_note")
    with torch.device("meta"):
        config = tiny_families.AutoConfig.for_model("dots3_note")
        config.text_config.num_hidden_layers = 3
        both = transformers.AutoModelForImageTextToText.from_config(config)
    stacks, outside = find_stacks(both, find_sites(both))
    (text,) = stacks
    assert [site.layer for site in text.sites] == [1, 2]
    assert all("language_model" in site.name for site in text.sites)
    assert outside
    assert all("vision_tower" in name for name in outside)


def test_the_result_does_not_depend_on_the_buffer_or_on_weights(model: Any, tmp_path: Path) -> None:
    whole = captured(model, tmp_path / "a.h5")
    small = captured(model, tmp_path / "b.h5", buffer_bytes=1)
    assert whole.content_id == small.content_id
    bare = captured(model, tmp_path / "c.h5", weights=False)
    assert bare.gate_weights is None
    np.testing.assert_array_equal(bare.expert_ids, whole.expert_ids)


def test_generation_is_the_same_while_captured(model: Any, out: Path) -> None:
    before = generate(model)
    with tracegen.capture(model, out):
        during = generate(model)
    assert torch.equal(before, during)
    assert "generate" not in vars(model)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_a_transformers_that_nobody_tried_is_said_once_and_noted(
    model: Any, out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("transformers.__version__", "5.199.0")
    record = captured(model, out).info.provenance
    (said,) = [entry.getMessage() for entry in caplog.records if "tracegen" in entry.name]
    assert said.startswith("transformers 5.199.0 is newer than what capture was tried with (5.0 to")
    assert said in record["notes"]
    assert record["environment"]["transformers"] == "5.199.0"


def test_gates_are_an_explicit_warned_fallback(tmp_path: Path) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top_k = 2
            self.num_experts = 4
            self.gate = torch.nn.Linear(8, 4, bias=False)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            flat = hidden.reshape(-1, 8)
            weights, ids = self.gate(flat).softmax(-1).topk(self.top_k)
            mixed = torch.zeros_like(flat)
            for slot in range(self.top_k):
                for expert, layer in enumerate(self.experts):
                    rows = ids[:, slot] == expert
                    mixed[rows] += weights[rows, slot, None] * layer(flat[rows])
            return hidden + mixed.reshape(hidden.shape)

    class Old(torch.nn.Module):
        def __init__(self, model_type: str) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(16, 8)
            self.layers = torch.nn.ModuleList(Block() for _ in range(2))
            self.config = tiny_families.AutoConfig.for_model(model_type, hidden_size=8)
            self.name_or_path = ""

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            hidden = self.embed(input_ids)
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden

    torch.manual_seed(0)
    model, ids = Old("mixtral"), torch.arange(6).reshape(2, 3)
    with pytest.raises(tracegen.UserError, match="no module whose routing"):
        tracegen.capture(model, tmp_path / "a.h5")
    with pytest.warns(UserWarning, match="gate-logits"):
        session = tracegen.capture(model, tmp_path / "a.h5", fallback="gate-logits")
    with session:
        model(ids)
    trace = tracegen.load(tmp_path / "a.h5")
    assert trace.gate_weights is None
    assert "derived from gate modules" in trace.info.provenance["notes"]
    biased = Old("deepseek_v3")
    wanted = model.layers[0].gate(model.embed(ids).reshape(-1, 8)).topk(2).indices
    assert trace.layer_ids(0).tolist() == wanted.tolist()
    with pytest.warns(UserWarning, match="gate-logits"):
        session = tracegen.capture(biased, tmp_path / "b.h5", fallback="gate-logits")
    with pytest.raises(tracegen.UserError, match="not known that"), session:
        biased(ids)


def test_the_command_line_captures_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from replay.cli.app import app

    words = {f"w{i}": i for i in range(tiny_families.VOCAB)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "model"
    tiny_families.tiny_model("olmoe", folder)
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w1", eos_token="w2").save_pretrained(folder)
    asked = tmp_path / "prompts.jsonl"
    asked.write_text('{"prompt": "w5 w6 w7"}\n\n{"text": "w9"}\n{"prompt": "w8 w8"}\n', "utf-8")
    out = tmp_path / "out.h5"
    call = ["trace", "capture", str(folder), "--prompts", str(asked), "--out", str(out)]
    done = CliRunner().invoke(app, [*call, "--batch-size", "2", "--max-new-tokens", "3"])
    assert done.exit_code == 0, done.output
    assert "3 layers x" in done.output
    trace = tracegen.load(out)
    assert trace.requests.prompt_len is not None
    assert trace.requests.prompt_len.tolist() == [3, 1, 2]
    assert trace.model.model_id == "model", "a folder of this machine must not be in a trace"
    assert str(tmp_path) not in str(trace.info.provenance)
    again = CliRunner().invoke(app, call)
    assert again.exit_code == 2
    assert "--force overwrites" in again.output
    asked.write_text('{"other": 1}\n', "utf-8")
    wrong = CliRunner().invoke(app, [*call, "--force"])
    assert wrong.exit_code == 2
    assert "line 1" in wrong.output
    asked.write_text('{"prompt": "w5 w6 w7"}\n', "utf-8")
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = [signal.getsignal(number) for number in signals]
    for number in signals:

        def stopped(model: Any, *_: Any, number: int = number) -> None:
            model(torch.tensor([[5, 6, 7]]))
            signal.raise_signal(number)

        monkeypatch.setattr("tracegen.cli.capture._generate", stopped)
        done = CliRunner().invoke(app, [*call, "--force"])
        assert done.exit_code == 130
        assert f"stopped: 3 tokens were captured before this; they are in {out}.p" in done.output
        assert tracegen.load(out).num_tokens == trace.num_tokens, "the trace before is replaced"
    assert [signal.getsignal(number) for number in signals] == before
    out.unlink()
    refused = CliRunner().invoke(app, call)
    assert refused.exit_code == 2
    assert f"recover {out}.partial` makes a trace of it, --force throws" in refused.output
    assert CliRunner().invoke(app, ["trace", "recover", f"{out}.partial"]).exit_code == 0
    assert tracegen.load(out).num_tokens == 3
