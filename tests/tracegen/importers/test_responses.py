"""Responses of servers, batches of them, rollout samples, and prompts told apart."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import SIZES, Array, ids_of, npy, phases, routing, text64, write_npy

import tracegen
from tracegen.importers import read

SGLANG: dict[str, Any] = {**SIZES, "num_layers": 2}


def raw(ids: Array) -> str:
    return text64(ids.astype("<i4").tobytes())


def write_json(path: Path, *entries: object) -> Path:
    path.write_text("\n".join(map(json.dumps, entries)), "utf-8")
    return path


# SGLang


def test_sglext_of_openai_responses(tmp_path: Path) -> None:
    ids = routing(7)
    entry = {
        "choices": [{"message": {}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3},
        "sglext": {"routed_experts": raw(ids)},
    }
    path = write_json(tmp_path / "r.jsonl", entry)
    trace = read([path], "sglang", **SGLANG).trace
    np.testing.assert_array_equal(ids_of(trace), ids)
    assert phases(trace) == [0] * 5 + [1] * 2
    entry["choices"] = [{}, {}]  # the usage is of both, the ids of the first
    entry["usage"] = {"prompt_tokens": 5, "completion_tokens": 9}
    made = read([write_json(path, entry)], "sglang", **SGLANG)
    assert phases(made.trace) == [0] * 5 + [1] * 2
    assert any("have several choices" in notice for notice in made.notices)


def test_sglang_rows_may_start_within_the_prompt(tmp_path: Path) -> None:
    ids = routing(9)
    meta = {"prompt_tokens": 7, "completion_tokens": 3, "routed_experts": raw(ids[4:])}
    path = write_json(tmp_path / "r.jsonl", {"meta_info": meta})
    with pytest.raises(tracegen.UserError, match=r"5 rows for 10 tokens; 9 are due.*start_len 4"):
        read([path], "sglang", **SGLANG)
    by_option = read([path], "sglang", start_len=4, **SGLANG).trace
    stated = {"meta_info": {**meta, "routed_experts_start_len": 4}}
    for trace in (by_option, read([write_json(path, stated)], "sglang", **SGLANG).trace):
        np.testing.assert_array_equal(ids_of(trace), ids[4:])
        assert trace.tokens.position.tolist() == [4, 5, 6, 7, 8]
        assert phases(trace) == [0] * 3 + [1] * 2
        assert trace.requests.prompt_len is not None
        assert trace.requests.prompt_len.tolist() == [7]
    stated["meta_info"]["routed_experts_start_len"] = 3
    with pytest.raises(tracegen.UserError, match="5 rows for 10 tokens from position 3; 6 are due"):
        read([write_json(path, stated)], "sglang", **SGLANG)


# vLLM


def batch_line(number: int, ids: Array | None, prompt: int, completion: int) -> dict[str, Any]:
    choice = {} if ids is None else {"routed_experts": text64(npy(ids.astype(np.uint8)))}
    body = {
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion},
    }
    return {"id": str(number), "custom_id": f"request-{number}", "response": {"body": body}}


def test_vllm_batch_files_hold_responses_in_their_lines(tmp_path: Path) -> None:
    first, second = routing(6), routing(4, seed=1)
    failed = {"id": "2", "custom_id": "request-2", "response": None, "error": {"message": "late"}}
    lines = [batch_line(0, first, 4, 3), failed, batch_line(1, second, 3, 1)]
    path = write_json(tmp_path / "batch.jsonl", *lines, batch_line(3, None, 3, 1))
    made = read([path], "vllm", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([first, second]))
    assert phases(made.trace) == [0] * 4 + [1] * 2 + [0] * 3 + [1]
    assert any("2 responses, failed ones included" in notice for notice in made.notices)


def test_vllm_outputs_of_its_python_interface(tmp_path: Path) -> None:
    ids = routing(6)
    output = {"prompt_token_ids": [1, 2, 3, 4], "outputs": [{"routed_experts": ids.tolist()}]}
    path = write_json(tmp_path / "r.jsonl", output, {"request": {}, "response": output})
    trace = read([path], "vllm", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate([ids, ids]))
    assert phases(trace) == ([0] * 4 + [1] * 2) * 2


def test_vllm_rows_of_generated_tokens_alone_follow_the_prompt(tmp_path: Path) -> None:
    ids = routing(3)
    path = write_json(tmp_path / "r.jsonl", batch_line(0, ids, 8, 3))
    trace = read([path], "vllm", **SIZES).trace
    assert trace.tokens.position.tolist() == [8, 9, 10]
    assert phases(trace) == [1] * 3
    with pytest.raises(tracegen.UserError, match="5 rows from position 0 for a prompt of 8 and 3"):
        read([write_json(path, batch_line(0, routing(5), 8, 3))], "vllm", **SIZES)
    trace = read([path], "vllm", start_len=5, **SIZES).trace
    assert trace.tokens.position.tolist() == [5, 6, 7, 8, 9]
    assert phases(trace) == [0] * 3 + [1] * 2


def test_npy_arrays_with_prompts(tmp_path: Path) -> None:
    paths = [write_npy(tmp_path / f"{n}.npy", routing(5, seed=n)) for n in (0, 1)]
    made = read(paths, "vllm", **SIZES)
    assert any("2 of 2 requests do not say where their prompt ends" in n for n in made.notices)
    assert any("one request at a time" in notice for notice in made.notices)
    ragged = np.full((2, 4), -1)
    ragged[0, :2], ragged[1] = 7, 9
    prompts = [
        write_npy(tmp_path / "lengths.npy", np.array([2, 4], ">i2")),
        write_npy(tmp_path / "ids.npy", ragged),
        write_json(tmp_path / "prompts.json", [[7, 7], {"prompt_token_ids": [1, 2, 3, 4]}]),
        write_json(tmp_path / "prompts.jsonl", 2, {"prompt_len": 4}),
    ]
    for path in prompts:
        told = read(paths, "vllm", prompts=path, **SIZES)
        assert phases(told.trace) == [0] * 2 + [1] * 3 + [0] * 4 + [1]
        assert not any("do not say" in notice for notice in told.notices)
    with pytest.raises(tracegen.UserError, match="2 prompts for 1 requests"):
        read(paths[:1], "vllm", prompts=prompts[3], **SIZES)
    token_ids = write_npy(tmp_path / "one.npy", np.array([11, 12, 13]))
    assert phases(read(paths[:1], "vllm", prompts=token_ids, **SIZES).trace) == [0] * 3 + [1] * 2
    with pytest.raises(tracegen.UserError, match="no length and no token ids"):
        read(paths, "vllm", prompts=write_json(tmp_path / "bad.json", ["a", "b"]), **SIZES)
    own = tmp_path / "own.npz"
    np.savez(own, routed_experts=routing(3), prompt_routed_experts=routing(2, seed=4))
    trace = read([own], "vllm", **SIZES).trace
    assert phases(trace) == [0] * 2 + [1] * 3
    np.savez(own, routed_experts=routing(3), prompt_token_ids=[1, 2])
    with pytest.raises(tracegen.UserError, match="prompt 0 has 3 tokens, its request says 2"):
        read([own], "vllm", prompts=token_ids, **SIZES)


# slime


def test_slime_samples_have_a_row_less_than_tokens(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    first, second = routing(7).astype(np.int32), routing(4, seed=1).astype(np.int32)
    samples = [
        {"tokens": [*range(8)], "response_length": 3, "rollout_routed_experts": first},
        {"tokens": [*range(5)], "response_length": 1, "rollout_routed_experts": second},
    ]
    columns = {
        "tokens": [sample["tokens"] for sample in samples],
        "response_lengths": [3, 1],
        "rollout_routed_experts": [torch.from_numpy(first), torch.from_numpy(second)],
    }
    path = tmp_path / "rollout.pt"
    for content in ({"rollout_id": 0, "samples": samples}, samples, columns):
        torch.save(content, path)
        trace = read([path], "rollout", **SIZES).trace
        np.testing.assert_array_equal(ids_of(trace), np.concatenate([first, second]))
        assert phases(trace) == [0] * 5 + [1] * 2 + [0] * 4
    samples[0]["tokens"] = [*range(7)]
    torch.save({"samples": samples}, path)
    with pytest.raises(tracegen.UserError, match="sample 0: 7 rows for 7 tokens; 6 are due"):
        read([path], "rollout", **SIZES)
    np.savez(tmp_path / "one.npz", rollout_routed_experts=first, tokens=range(8), response_length=3)
    assert phases(read([tmp_path / "one.npz"], "rollout", **SIZES).trace) == [0] * 5 + [1] * 2


def test_arrays_in_pt_files_may_be_of_numbers_only(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    objects = np.empty((2, 2, 3), object)
    objects[:] = Evil()
    torch.save({"samples": [{"rollout_routed_experts": objects}]}, tmp_path / "evil.pt")
    with pytest.raises(tracegen.UserError, match="plain tensors"):
        read([tmp_path / "evil.pt"], "rollout", **SIZES)
    assert not (tmp_path / "executed").exists()


# Values of the wrong kind


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_tokens", -1),
        ("completion_tokens", 2**70),
        ("prompt_tokens", "7"),
        ("prompt_tokens", 1.5),
    ],
)
def test_numbers_of_tokens_that_are_none_are_refused(tmp_path: Path, name: str, value: object) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, name: value}
    meta = {**usage, "routed_experts": raw(routing(7))}
    path = write_json(tmp_path / "r.jsonl", {"meta_info": meta})
    with pytest.raises(tracegen.UserError, match=f"line 1: {name} is"):
        read([path], "sglang", **SGLANG)
    line = batch_line(0, routing(7), 5, 3)
    line["response"]["body"]["usage"] = usage
    with pytest.raises(tracegen.UserError, match=f"line 1: {name} is"):
        read([write_json(path, line)], "vllm", **SIZES)


def test_options_that_nothing_can_have_are_refused() -> None:
    for name, value in (("tp", 0), ("num_layers", 0), ("prompt_len", -1), ("topk", -3)):
        with pytest.raises(tracegen.UserError, match=rf"^{name} is {value}; it must be"):
            read([Path(__file__)], "sglang", **{name: value})
