"""Every option of an import, with every format: it changes the trace, or is refused by its name."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import (
    EXPERTS,
    SIZES,
    TOPK,
    megatron_files,
    npy,
    routing,
    safetensors,
    sglang_record,
    text64,
    write_npy,
)
from typer.testing import CliRunner

import tracegen
from tracegen.importers import FORMATS, read, read_as_typed
from tracegen.importers.options import NAMES, as_arguments, option_text

TOKENS = 8
CONTRADICTED = {"topk": TOPK + 1, "num_layers": 1}
"""Values that no dump of two layers with three experts a token can have."""

MADE_IMPOSSIBLE = {"topk": ["rows for"], "num_layers": ["rows for"], "start_len": ["from position"]}
"""What responses without a header are said to be, where an option makes other sizes of them."""


def repeating() -> Any:
    """Rows of which one is there twice in a row."""
    ids = np.sort(routing(TOKENS), axis=2)
    ids[4] = ids[3]
    return ids


Dump = tuple[list[Path], dict[str, Any]]
"""Files, and what options must say of them."""


def others(folder: Path) -> dict[str, Dump]:
    """Dumps of the other kinds that formats have, by format and kind."""
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    ids = repeating()
    usage = {"prompt_tokens": 5, "completion_tokens": 4}
    choice = {"routed_experts": text64(npy(ids))}
    answer = json.dumps({"choices": [choice], "usage": usage})
    (folder / "vllm.json").write_text(answer, "utf-8")
    ranks = np.repeat([0, 1], TOKENS)
    columns = {"rank": ranks, "request": ranks, "step": [0] * 2 * TOKENS, "layers": [0, 1]}
    both = np.concatenate([ids, np.sort(routing(TOKENS, seed=1), axis=2)])
    np.savez(folder / "ranks.npz", expert_ids=both, other=both[::-1], **columns)
    sample = {"tokens": [1] * (TOKENS + 1), "response_length": 4, "routed_experts": ids}
    torch.save([sample], folder / "samples.pt")
    recorded = {"records": [sglang_record(ids, [*range(TOKENS)], 1, 1, [TOKENS])]}
    places = torch.arange(EXPERTS).repeat(2, 1)
    torch.save({**recorded, "last_physical_to_logical_map": places}, folder / "recorder.pt")
    return {
        "vllm responses": ([folder / "vllm.json"], SIZES),
        "arrays of ranks": ([folder / "ranks.npz"], SIZES),
        "rollout samples": ([folder / "samples.pt"], SIZES),
        "sglang recorder": ([folder / "recorder.pt"], SIZES),
        "tensorrt-llm outputs": ([folder / "vllm.json"], SIZES),
    }


def samples(folder: Path) -> dict[str, Dump]:
    """A dump of each format."""
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
    from pyarrow import parquet

    ids = repeating()
    rows = [(token, layer) for token in range(TOKENS) for layer in range(2)]
    csv = [f"{token},{token},{layer},{','.join(map(str, ids[token, layer]))}" for token, layer in rows]
    (folder / "llama.csv").write_text("\n".join(["pass,token,layer,e0,e1,e2", *csv]), "utf-8")
    meta = {"prompt_tokens": 5, "completion_tokens": 4}
    meta["routed_experts"] = text64(ids.astype("<i4").tobytes())
    (folder / "sglang.json").write_text(json.dumps({"meta_info": meta}), "utf-8")
    layer = {"selected_probs": [0.5, 0.3, 0.2]}
    tokens = [
        {
            f"token_{token}": {
                f"layer_{number}": {"selected_experts": ids[token, number].tolist(), **layer} for number in (0, 1)
            }
        }
        for token in range(TOKENS)
    ]
    entry = {"dataset": "gpqa", "category": "law", "router_data": tokens}
    (folder / "gpt.json").write_text(json.dumps(entry), "utf-8")
    flame = []
    for number in (0, 1):
        flame.append(folder / f"layer_{number}.parquet")
        parquet.write_table(pyarrow.table({"indices": ids[:, number].tolist()}), flame[-1])
    trt = folder / "trt"
    trt.mkdir()
    counted = {"num_experts": EXPERTS, "num_experts_per_token": TOPK}
    (trt / "meta_info.json").write_text(json.dumps(counted), "utf-8")
    load = {f"0_{n}": np.bincount(ids[:, n].ravel(), minlength=EXPERTS) for n in (0, 1)}
    (trt / "rank0.safetensors").write_bytes(safetensors(load))
    by_layer = {n: dict(enumerate(counts.tolist())) for n, counts in enumerate(load.values())}
    (folder / "counts.json").write_text(json.dumps(by_layer), "utf-8")
    np.savez(folder / "own.npz", expert_ids=ids, other=ids[::-1])
    ranks = {(0, rank): np.sort(routing(TOKENS, seed=rank), axis=2) for rank in (0, 1)}
    ranks[0, 0] = ids
    hidden = {"hidden_size": 8}
    return {
        "vllm": ([write_npy(folder / "vllm.npy", ids)], SIZES),
        "rollout": ([write_npy(folder / "rollout.npy", ids[None])], SIZES),
        "arrays": ([folder / "own.npz"], SIZES),
        "sglang": ([folder / "sglang.json"], {**SIZES, "num_layers": 2}),
        "megatron": (
            megatron_files(folder / "megatron", ranks, first_layer=0),
            {"pp": 1, **SIZES},
        ),
        "llama.cpp": ([folder / "llama.csv"], SIZES),
        "gpt-oss": ([folder / "gpt.json"], SIZES),
        "flame": (flame, SIZES),
        "tensorrt-llm": ([trt], hidden),
        "counts": ([folder / "counts.json"], {"topk": TOPK, **hidden}),
    }


def values(folder: Path) -> dict[str, Any]:
    """A value of each option that changes or contradicts what is imported without it."""
    mask = np.ones(TOKENS, np.int64)
    mask[0] = 0
    return {
        **CONTRADICTED,
        "model": "olmoe-1b-7b",
        "num_experts": EXPERTS + 1,
        "zero_experts": 2,
        "hidden_size": 16,
        "moe_layers": (5, 7),
        "prompt_len": 2,
        "prompts": write_npy(folder / "prompts.npy", np.array([3])),
        "start_len": 3,
        "ranks": 4,
        "tp": 2,
        "pp": 2,
        "mask": write_npy(folder / "mask.npy", mask),
        "columns": {"ids": "other"},
        "drop_repeats": True,
        "max_tokens": 3,
        "seed": 3,
        "title": "a title",
        "license": "CC0-1.0",
        "dataset": "a data set",
        "source": "https://example.org",
    }


def meaning(trace: tracegen.RoutingTrace) -> tuple[Any, ...]:
    info = trace.info
    return trace.content_id, info.title, info.license, json.dumps(info.provenance, sort_keys=True)


@pytest.mark.extended
def test_every_option_is_used_or_refused_with_every_format(tmp_path: Path) -> None:
    given, wrong = values(tmp_path), []
    assert given.keys() == set(NAMES)
    dumps = samples(tmp_path)
    assert dumps.keys() == FORMATS.keys()
    for kind, (paths, needed) in (dumps | others(tmp_path)).items():
        format = kind.split()[0]
        plain = meaning(read_as_typed(paths, format, needed).trace)
        for name, value in given.items():
            try:
                made = read_as_typed(paths, format, {**needed, name: value})
            except tracegen.UserError as error:
                # Or another option that it contradicts, or the file that it named.
                named = (
                    option_text(name),
                    "--[a-z-]+ ",
                    re.escape(str(value)),
                    *MADE_IMPOSSIBLE.get(name, ()),
                )
                if not re.search("|".join(named), str(error)) or "\n" in str(error):
                    wrong.append(f"{kind} {option_text(name)}: {error}")
                continue
            if meaning(made.trace) == plain or (name in CONTRADICTED and name not in needed):
                wrong.append(f"{kind} {option_text(name)}: accepted, and nothing changed")
    assert not wrong, "\n".join(wrong)


def test_options_that_agree_with_the_dump_are_accepted(tmp_path: Path) -> None:
    for format, (paths, needed) in samples(tmp_path).items():
        plain = read_as_typed(paths, format, needed).trace
        stated = {"num_experts": EXPERTS, "topk": TOPK, "moe_layers": (0, 1), "num_layers": 2}
        agreed = read_as_typed(paths, format, {**needed, **stated}).trace
        assert agreed.content_id == plain.content_id, format


def test_the_command_line_and_python_call_an_option_differently(tmp_path: Path) -> None:
    from replay.cli.app import app

    path = write_npy(tmp_path / "r.npy", routing(4))
    with pytest.raises(tracegen.UserError, match=r"^seed 0 is of no use .* nothing was drawn$"):
        read([path], "vllm", seed=0, **SIZES)
    with pytest.raises(tracegen.UserError, match=r"unknown option 'top_k' .*did you mean 'topk'"):
        read([path], "vllm", top_k=3)
    call = ["trace", "import", str(path), "--format", "vllm", "--out", str(tmp_path / "o.h5")]
    done = CliRunner().invoke(app, [*call, "--num-experts", "16", "--hidden-size", "8", "--seed=0"])
    assert done.exit_code == 2
    assert "error: --seed 0 is of no use to this vllm dump: nothing was drawn" in done.stderr
    assert not (tmp_path / "o.h5").exists()
    wrong = [*call, "--num-experts", "16", "--hidden-size", "8", "--columns", "ids"]
    assert "--columns 'ids': write" in CliRunner().invoke(app, wrong).stderr
    made = read([path], "vllm", num_experts=16, hidden_size=8)
    assert any("(prompts or prompt_len says otherwise)" in notice for notice in made.notices)
    assert any("a replay needs its whole shape: give model there" in one for one in made.notices)
    assert "--prompt-len says otherwise" in made.trace.info.provenance["notes"]
    assert as_arguments("--tp 2, not --topk; --force stays") == "tp 2, not topk; --force stays"


def test_sizes_that_contradict_a_model_are_refused(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).random((3, 2, 64)).argsort(axis=2)[:, :, :8]
    path = write_npy(tmp_path / "r.npy", ids)
    for name, value, said in (
        ("num_experts", 32, "num_experts 32 contradicts olmoe-1b-7b, which has 64"),
        ("topk", 4, "topk 4 contradicts olmoe-1b-7b, which has 8"),
        ("hidden_size", 64, "hidden_size 64 contradicts olmoe-1b-7b, which has 2048"),
        ("zero_experts", 8, "zero_experts 8 contradicts olmoe-1b-7b, which has 0"),
        ("num_layers", 99, "num_layers 99 contradicts the model, which has 16"),
        ("moe_layers", (15, 16), "routes in layers 16, where olmoe-1b-7b has no experts"),
    ):
        with pytest.raises(tracegen.UserError, match=said):
            read([path], "vllm", model="olmoe-1b-7b", **{name: value})
    whole = read([path], "vllm", model="olmoe-1b-7b", hidden_size=2048, moe_layers=(3, 4))
    assert whole.trace.moe_layer_index.tolist() == [3, 4]
    many = write_npy(tmp_path / "many.npy", np.repeat(ids, 20, axis=1))
    with pytest.raises(tracegen.UserError, match=r"40 layers, olmoe-1b-7b has 16.*token, layer, k"):
        read([many], "vllm", model="olmoe-1b-7b")
