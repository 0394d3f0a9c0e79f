"""The traces that ship: what the index says of them is true."""

import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from loops import every

import tracegen
from tracegen import UserError, library
from tracegen.library import catalogue, describe

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.extended
@every("name", sorted(library.entries()))
def test_every_trace_is_what_the_index_says(name):
    entry = library.entries()[name]
    assert library.verify(name) == entry.content_id
    assert hashlib.sha256(library.find(name).read_bytes()).hexdigest() == entry.sha256
    with tracegen.open(name) as file:
        assert file.file_bytes == entry.file_bytes
        assert (file.num_layers, file.num_tokens) == (entry.num_layers, entry.num_tokens)
        assert (file.num_experts, file.topk) == (entry.num_experts, entry.topk)
        assert file.has_gate_weights == entry.has_gate_weights
        assert (file.info.title, file.info.license) == (entry.title, entry.license)
        assert file.info.provenance["tool"] == "moereplay tracegen"
        trace = file.read([0])
    assert trace.model_shape.name == entry.model
    assert (trace.num_ranks or 0) == entry.num_ranks
    assert bool(entry.dataset) == bool(entry.citation) == (entry.kind == "imported")


@pytest.mark.parametrize("name", ["toy-uniform", "toy-zipf"])
def test_an_entry_follows_from_its_file(name):
    made = describe.entry(library.find(name), name, source=library.entries()[name].source)
    assert made == library.entries()[name]
    load = np.sort(tracegen.load(name).load_per_expert(), axis=1)
    assert made.load_max_over_mean == pytest.approx(np.median(load[:, -1] / load.mean(1)), abs=1e-4)
    # Gini by its definition: mean absolute difference over twice the mean.
    differences = np.abs(load[:, :, None].astype(float) - load[:, None, :]).mean(axis=(1, 2))
    assert made.load_gini == pytest.approx(np.median(differences / 2 / load.mean(1)), abs=1e-4)


def make_traces():
    spec = importlib.util.spec_from_file_location("make_traces", ROOT / "scripts/make_traces.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["toy-uniform", "toy-zipf"])
def test_synthetic_traces_are_made_again_to_the_last_bit(name):
    trace = make_traces().make_synthetic(name)
    assert trace.content_id == library.entries()[name].content_id
    np.testing.assert_array_equal(trace.expert_ids, tracegen.load(name).expert_ids)


def test_the_recorded_trace_is_one_token_a_step_and_weights_fall():
    trace = tracegen.load("gpt-oss-20b-decode-weights", layers=[0, 23])
    assert trace.num_steps == trace.num_tokens
    weights = trace.gate_weights.astype(np.float32)
    assert (np.diff(weights, axis=2) <= 0).all()
    assert np.abs(weights.sum(axis=2) - 1).max() < 0.004
    first = np.flatnonzero(np.diff(trace.tokens.request, prepend=-1))
    np.testing.assert_array_equal(trace.requests.prompt_len, trace.tokens.position[first])
    assert trace.requests.output_len.sum() == trace.num_tokens


def test_the_recorded_prefill_is_whole_sequences_with_weights_of_all_experts():
    trace = tracegen.load("deepseek-v2-lite-law", layers=[0, 25])
    assert trace.moe_layer_index.tolist() == [1, 26]
    assert (trace.tokens.phase == 0).all() and trace.num_steps == 33
    np.testing.assert_array_equal(trace.requests.prompt_len, np.diff(trace.steps_indptr))
    first = np.diff(trace.tokens.request, prepend=-1) != 0
    assert (trace.tokens.position[first] == 0).all()
    weights = trace.gate_weights.astype(np.float32)
    assert (weights > 0).all() and weights.sum(axis=2).max() < 1.001 > 2 * weights.sum(axis=2).mean()
    assert not trace.model_shape.norm_topk


def test_a_name_works_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracegen.load("toy-uniform", layers=[0]).num_tokens == 4096
    (tmp_path / "traces").mkdir()
    assert library.find("toy-uniform").is_file()


@every(
    ("name", "message"),
    [
        (
            "toy-unifrom",
            r"unknown trace 'toy-unifrom' \(did you mean 'toy-uniform'\?\); known: deep",
        ),
        (
            "qwen3-30b",
            r"unknown trace 'qwen3-30b'.* qwen3-30b-a3b is a model: `.* --model qwen3-30b-a3b --out trace.h5` makes",
        ),
        ("mixtral8x7b", "mixtral-8x7b is a model"),
        ("toy-unifrom", "path of a file$"),
        ("absent.h5", "absent.h5: no such file"),
        ("some/where", "some/where: no such file"),
        (Path("toy-uniform"), "toy-uniform: no such file"),
        (Path("/"), "/: it is a folder, not a file"),
        ("/dev/null", "/dev/null: it is a device, pipe or socket, not a file"),
        ("file:///etc/passwd", "not a URL that is followed; possible: https, http, s3"),
        ("simplecache::https://example.org/a.h5", "not a URL that is followed"),
    ],
)
def test_names_that_are_not_traces(name, message):
    with pytest.raises(UserError, match=message):
        tracegen.load(name)


def test_the_index_is_trusted_less_than_the_content(monkeypatch):
    entry = library.entries()["toy-zipf"]
    wrong = {"toy-zipf": entry.model_copy(update={"content_id": "0" * 64})}
    stale = catalogue.Catalogue("built-in", catalogue.built_in().base, wrong)
    monkeypatch.setattr(catalogue, "built_in", lambda: stale)
    with pytest.raises(UserError, match="is not the index's 0000"):
        library.verify("toy-zipf")


def test_a_model_s_configuration_in_place_of_a_trace_is_told_from_one(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "qwen3_moe"}')
    for given in (path, tmp_path):
        with pytest.raises(UserError, match=r"a model's configuration, and no trace; .* generate zipf --model"):
            tracegen.load(given)
