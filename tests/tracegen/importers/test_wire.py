"""Forms that engines and trainers give their ids on the wire, streams, choices and turns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import SIZES, TOPK, Array, ids_of, npy, phases, routing, text64

import tracegen
from tracegen.importers import read

LAYERED: dict[str, Any] = {**SIZES, "num_layers": 2}


def raw(ids: Array, kind: str = "<i4") -> str:
    return text64(ids.astype(kind).tobytes())


def lines(path: Path, *entries: object) -> Path:
    path.write_text("\n".join(map(json.dumps, entries)), "utf-8")
    return path


def events(path: Path, *entries: object) -> Path:
    """A stream as a server sends it."""
    told = [entry if isinstance(entry, str) else f"data: {json.dumps(entry)}" for entry in entries]
    path.write_text("\n\n".join(told) + "\n\n", "utf-8")
    return path


def meta(ids: Array, prompt: int, kind: str = "<i4", **more: object) -> dict[str, Any]:
    """SGLang's ``meta_info`` of a request that returned a row for each token but the last."""
    tokens = {"prompt_tokens": prompt, "completion_tokens": len(ids) + 1 - prompt}
    return {"id": "a", **tokens, "routed_experts": raw(ids, kind), **more}


def test_every_form_of_an_array_is_the_same_routing(tmp_path: Path) -> None:
    ids = routing(6)
    shape = list(ids.shape)
    forms: dict[str, Any] = {
        ".npy": text64(npy(ids.astype(np.uint8))),
        "lists": ids.tolist(),
        "NeMo-RL": f"nrlre1:int16:6x2x{TOPK}:{raw(ids, '<i2')}",
        "prime-rl": {"data": raw(ids, "u1"), "shape": shape, "start": 0},
        "prime-rl, typed": {"data": raw(ids, "<u2"), "shape": shape, "dtype": "uint16"},
        "an encoder": {"__ndarray__": ids.tolist(), "dtype": "int64", "shape": shape},
        "flat": ids.ravel().tolist(),
    }
    failures = []
    for name, value in forms.items():
        choice = {"routed_experts": value}
        sizes = LAYERED if name == "flat" else SIZES
        entry = {"usage": {"prompt_tokens": 4, "completion_tokens": 3}, "choices": [choice]}
        trace = read([lines(tmp_path / "r.jsonl", entry)], "vllm", **sizes).trace
        if phases(trace) != [0] * 4 + [1] * 2 or not np.array_equal(ids_of(trace), ids):
            failures.append(name)
    for kind in ("uint8", "int16", "uint16", "int32", "int64", "<u2"):
        stated = meta(ids, 4, np.dtype(kind).newbyteorder("<").str, routed_experts_dtype=kind)
        trace = read([lines(tmp_path / "r.jsonl", {"meta_info": stated})], "sglang", **LAYERED).trace
        if not np.array_equal(ids_of(trace), ids):
            failures.append(kind)
    assert not failures


def test_forms_that_cannot_be_read_say_what_they_are(tmp_path: Path) -> None:
    ids = routing(6)
    lost = meta(ids, 4, "u1")
    refused: list[tuple[str, Any, str]] = [
        ("sglang", {"meta_info": lost}, 'the 6 rows that are due if their type is uint8.*add "rou'),
        ("sglang", {"meta_info": lost | {"routed_experts_dtype": "bf16"}}, "no type of expert ids"),
        ("sglang", {"meta_info": lost | {"routed_experts_dtype": "uint16"}}, "3 rows for 7 tokens"),
        ("vllm", {"routed_experts": raw(ids)}, "without the header of an .npy.*--?format sglang"),
        ("vllm", {"routed_experts": str(ids)}, "printed text of an array.*tolist"),
        ("vllm", {"routed_experts": {"data": raw(ids), "shape": [9, 2, 3]}}, "not of shape"),
        ("vllm", {"routed_experts": {"data": raw(ids), "shape": "x"}}, "not of shape x"),
        ("vllm", {"routed_experts": {"kind": 1}}, "an object with kind; data and shape"),
        ("vllm", {"routed_experts": f"nrlre1:int16:6x2:{raw(ids)}"}, "not of shape"),
        ("vllm", {"routed_experts": ids.ravel().tolist()[1:]}, "35 ids are no whole number"),
        ("vllm", {"routed_experts": "not base64!"}, "not base64"),
        ("vllm", {"choices": []}, "no response has 'routed_experts'"),
    ]
    for format, entry, said in refused:
        with pytest.raises(tracegen.UserError, match=said):
            read([lines(tmp_path / "r.jsonl", entry)], format, **LAYERED)


def test_streams_are_put_together_from_their_chunks(tmp_path: Path) -> None:
    ids, other = routing(6), routing(5, seed=1)
    chunk = {"id": "c", "object": "chat.completion.chunk"}
    usage = {"prompt_tokens": 4, "completion_tokens": 3}
    path = events(
        tmp_path / "s.txt",
        ": keep-alive",
        {**chunk, "choices": [{"index": 0, "delta": {"content": "x"}}], "usage": None},
        {**chunk, "choices": [], "sglext": {"routed_experts": raw(ids)}},
        {**chunk, "choices": [], "usage": usage},
        "data: [DONE]",
        # /generate: each chunk has all that came before it; two requests share the stream.
        {"text": "a", "index": 0, "meta_info": {"id": "0", "completion_tokens": 1}},
        {"text": "b", "index": 1, "meta_info": meta(other, 4, id="1")},
        {"text": "ac", "index": 0, "meta_info": meta(ids, 4, id="0")},
        "data: [DONE]",
    )
    trace = read([path], "sglang", **LAYERED).trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate([ids, ids, other]))
    assert phases(trace) == [0, 0, 0, 0, 1, 1] * 2 + [0, 0, 0, 0, 1]
    parts = [
        {
            "request_id": "g",
            "choices": [{"index": 0, "token_ids": [7]}],
            "prompt_token_ids": [1] * 4,
        },
        {"request_id": "g", "choices": [{"index": 1, "token_ids": [7]}]},
        {"request_id": "g", "choices": [{"index": 1, "token_ids": [8], "routed_experts": None}]},
    ]
    last = [
        {"index": 0, "token_ids": [8, 9], "routed_experts": text64(npy(ids))},
        {"index": 1, "token_ids": [], "routed_experts": text64(npy(other))},
    ]
    ends = [{"request_id": "g", "choices": [choice]} for choice in last]
    # iter_lines() leaves out the empty lines.
    path.write_text("\n".join(f"data: {json.dumps(one)}" for one in (*parts, *ends)), "utf-8")
    trace = read([path], "vllm", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate([ids, other]))
    assert phases(trace) == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1]
    with pytest.raises(tracegen.UserError, match=r"/inference/v1/generate alone.*was it cut"):
        read([events(path, *parts)], "vllm", **SIZES)
    with pytest.raises(tracegen.UserError, match="line 3: no line of an event stream"):
        read([events(path, parts[0], "{}")], "vllm", **SIZES)
    with pytest.raises(tracegen.UserError, match="line 1: not JSON"):
        read([events(path, 'data: {"id":')], "vllm", **SIZES)
    strange = {"request_id": "g", "choices": 3}
    assert len(ids_of(read([events(path, strange, *parts, *ends)], "vllm", **SIZES).trace)) == 11
    # Chunks as a client logs them, one a line.
    logged = [
        {**chunk, "choices": [], "sglext": {"routed_experts": raw(ids)}},
        {**chunk, "usage": usage},
    ]
    assert phases(read([lines(path, *logged)], "sglang", **LAYERED).trace) == [0] * 4 + [1] * 2


def test_choices_have_ids_of_their_own_or_the_first_has(tmp_path: Path) -> None:
    first, second = routing(6), routing(5, seed=1)
    both = [{"meta_info": meta(first, 4)}, {"meta_info": meta(second, 4)}]
    path = tmp_path / "r.jsonl"
    usage = {"prompt_tokens": 4, "completion_tokens": 5}
    made = read([lines(path, {"choices": both, "usage": usage})], "sglang", **LAYERED)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([first, second]))
    assert phases(made.trace) == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1]
    assert not any("several choices" in notice for notice in made.notices)
    # A batch of /generate is a list; one line has it whole.
    np.testing.assert_array_equal(ids_of(read([lines(path, both)], "sglang", **LAYERED).trace), ids_of(made.trace))
    dynamo = {"choices": [{}], "usage": usage, "nvext": {"routed_experts": raw(routing(8))}}
    assert phases(read([lines(path, dynamo)], "sglang", **LAYERED).trace) == [0] * 4 + [1] * 4
    outputs = [
        {"index": 0, "token_ids": [5, 6, 7], "routed_experts": first.tolist()},
        {"index": 1, "token_ids": [5, 6], "routed_experts": second.tolist()},
    ]
    offline = {"request_id": "0", "prompt_token_ids": [1, 2, 3, 4], "outputs": outputs}
    for format in ("vllm", "tensorrt-llm"):
        made = read([lines(path, offline)], format, **SIZES)
        assert phases(made.trace) == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1]
    (tmp_path / "pretty.json").write_text(json.dumps([offline], indent=1), "utf-8")
    (tmp_path / "lines.json").write_text(path.read_text("utf-8") + "\n\n" + json.dumps(offline))
    for name, requests in (("pretty.json", 2), ("lines.json", 4)):
        trace = read([tmp_path / name], "vllm", **SIZES).trace
        assert trace.tokens.request.max() + 1 == requests


def test_prompts_alone_have_no_decode_rows(tmp_path: Path) -> None:
    ids = routing(5)
    path = tmp_path / "r.jsonl"
    prompt = {"prompt_tokens": 6, "completion_tokens": 0, "routed_experts": raw(ids)}
    assert phases(read([lines(path, {"meta_info": prompt})], "sglang", **LAYERED).trace) == [0] * 5
    apart = {
        "choices": [{"routed_experts": None}],
        "prompt_routed_experts": ids.tolist(),
        "usage": {"prompt_tokens": 5, "completion_tokens": 1},
    }
    trace = read([lines(path, apart)], "vllm", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert phases(trace) == [0] * 5
    apart["usage"] = {"prompt_tokens": 7, "completion_tokens": 1}
    with pytest.raises(tracegen.UserError, match="5 rows of a prompt of 7 tokens, from 0"):
        read([lines(path, apart)], "vllm", **SIZES)


def test_turns_of_a_conversation_begin_where_each_says(tmp_path: Path) -> None:
    ids = routing(9)
    filler = np.broadcast_to(np.arange(TOPK), (1, 2, TOPK))
    turns = [
        {"request": {"routed_experts_start_len": 0}, "response": {"meta_info": meta(ids[:4], 3)}},
        {
            "request": {"routed_experts_start_len": 4},
            "response": {
                "meta_info": meta(ids, 8) | {"routed_experts": raw(ids[4:])},
            },
        },
    ]
    gym = {
        "output": [
            {"type": "function_call_output", "output": "x"},
            {
                "prompt_token_ids": [1] * 3,
                "generation_token_ids": [2] * 2,
                "routed_experts": f"nrlre1:int8:5x2x{TOPK}:" + raw(np.concatenate([ids[:4], filler]), "i1"),
            },
        ]
    }
    payload = {"data": raw(ids[4:], "u1"), "shape": [5, 2, TOPK], "start": 4}
    step = {"prompt_ids": [1] * 8, "completion_ids": [2] * 2, "routed_experts": payload}
    trajectory = {"trajectory": [{"prompt": [], "tokens": step}]}
    path = tmp_path / "r.jsonl"
    for format, sizes, entries, begins, told in (
        ("sglang", LAYERED, turns, [0, 4], [0] * 3 + [1] + [0] * 4 + [1]),
        ("vllm", SIZES, [gym, trajectory], [0, 4], [0] * 3 + [1] + [0] * 4 + [1]),
    ):
        trace = read([lines(path, *entries)], format, **sizes).trace
        np.testing.assert_array_equal(ids_of(trace), ids)
        assert trace.tokens.position.tolist() == [*range(4), *range(4, 9)]
        assert phases(trace) == told, format
        assert np.unique(trace.tokens.request, return_index=True)[1].tolist() == begins


def test_rollouts_padded_with_the_first_experts(tmp_path: Path) -> None:
    ids = routing(5)
    whole = np.broadcast_to(np.arange(TOPK), (2, 7, 2, TOPK)).copy()
    whole[0, :5], whole[1, :3] = ids, ids[:3]
    np.save(tmp_path / "r.npy", whole)
    trace = read([tmp_path / "r.npy"], "rollout", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate([ids, ids[:3]]))


# llama.cpp


def moe_trace(ids: Array, passes: list[int], outputs: bool = False) -> str:
    """What moe-trace writes: pass after pass, layer after layer; the last one of outputs alone."""
    told, begin = ["layer,expert"], 0
    for tokens in passes:
        for layer in range(ids.shape[1]):
            first = tokens - 1 if outputs and layer == ids.shape[1] - 1 else 0
            for row in ids[begin + first : begin + tokens, layer]:
                told += [f"{layer + 3},{expert}" for expert in row]
        begin += tokens
    return "\n".join(told)


def test_moe_trace_of_llama_cpp_is_read_with_topk(tmp_path: Path) -> None:
    ids = routing(7, layers=3)
    path = tmp_path / "moe_trace.csv"
    sizes = {"num_experts": 16, "hidden_size": 8}
    path.write_text(moe_trace(ids, [4, 1, 1, 1]), "utf-8")
    trace = read([path], "llama.cpp", topk=TOPK, **sizes).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert trace.moe_layer_index.tolist() == [3, 4, 5]
    assert phases(trace) == [0] * 4 + [1] * 3
    assert trace.tokens.step.tolist() == [0] * 4 + [1, 2, 3]
    with pytest.raises(tracegen.UserError, match=r"how many experts a token has.*topk"):
        read([path], "llama.cpp", **sizes)
    with pytest.raises(tracegen.UserError, match="12 ids in pass 0, no whole number of tokens of"):
        read([path], "llama.cpp", topk=5, **sizes)
    path.write_text("\n".join(moe_trace(ids, [4, 3]).splitlines()[: 1 + 4 * 9 + 9 + 3]), "utf-8")
    with pytest.raises(tracegen.UserError, match=r"layers of pass 1 have \{3: 3, 4: 1\} tokens"):
        read([path], "llama.cpp", topk=TOPK, **sizes)
    path.write_text(moe_trace(ids, [4, 1, 1, 1], outputs=True), "utf-8")
    made = read([path], "llama.cpp", topk=TOPK, **sizes)
    wanted = ids.copy()
    wanted[:3, 2] = -1
    np.testing.assert_array_equal(ids_of(made.trace), wanted)
    assert any("3 of 7 tokens lack the last layer" in notice for notice in made.notices)


def test_llama_cpp_files_that_name_phase_and_token(tmp_path: Path) -> None:
    ids = routing(4)
    told = ["phase,token,layer,rank,expert"]
    for layer in (0, 1):
        for token in range(4):
            phase = "prefill" if token < 2 else "decode"
            told += [f"{phase},{token},{layer},{slot},{ids[token, layer, slot]}" for slot in reversed(range(TOPK))]
    path = tmp_path / "routing.csv"
    path.write_text("\n".join(told), "utf-8")
    made = read([path], "llama.cpp", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), ids)
    assert phases(made.trace) == [0, 0, 1, 1]
    assert made.trace.tokens.step.tolist() == [0, 0, 1, 2]
    assert not any("Phases are not recorded" in notice for notice in made.notices)
    for line, said in (
        ("warm,0,0,0,1", "line 26: phase 'warm'; possible: prefill"),
        ("decode,3,1,0,1", "line 26: rank 0 of token 3 is there twice"),
        ("decode,3,1", "line 26: 2 fields, 4 are expected"),
        ("decode,3,1,9,99999999999", "line 26: numbers are below 2147483648"),
        ("decode,4,0,0,1", r"rows have \[1, 3\] experts"),
    ):
        path.write_text("\n".join([*told, line]), "utf-8")
        with pytest.raises(tracegen.UserError, match=said):
            read([path], "llama.cpp", **SIZES)
