"""Dumps of one array a request: vLLM, verl, NeMo-RL, from their documented layouts."""

import json
from pathlib import Path

import numpy as np
import pytest
from dumps import (
    SIZES,
    TOPK,
    dropped,
    ids_of,
    npy,
    phases,
    routing,
    text64,
)

import tracegen
from tracegen.importers import read

# vLLM


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32])
def test_vllm_arrays_have_dense_layers_as_zeros(tmp_path: Path, dtype: type) -> None:
    whole = np.zeros((9, 4, TOPK), dtype)
    whole[:, 1::2] = routing(9)
    np.save(tmp_path / "r.npy", whole)
    made = read([tmp_path / "r.npy"], "vllm", prompt_len=6, **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), routing(9))
    assert made.trace.moe_layer_index.tolist() == [1, 3]
    assert phases(made.trace) == [0] * 6 + [1] * 3
    assert made.trace.num_steps == 4
    assert any("2 of 4 layers hold no route" in notice for notice in made.notices)


def test_vllm_responses_carry_npy_in_base64(tmp_path: Path) -> None:
    first, second = routing(5), routing(7, seed=1)
    answer = [
        {
            "usage": {"prompt_tokens": 4},
            "choices": [{"routed_experts": text64(npy(first.astype(np.uint8)))}],
        },
        {
            "prompt_routed_experts": text64(npy(second[:4].astype(np.int16))),
            "choices": [{"routed_experts": text64(npy(second[4:].astype(np.int16)))}],
        },
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, answer)), "utf-8")
    trace = read([path], "vllm", **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate([first, second]))
    assert trace.tokens.request.tolist() == [0] * 5 + [1] * 7
    assert phases(trace) == [0] * 4 + [1] + [0] * 4 + [1] * 3
    assert trace.requests.prompt_len is not None
    assert trace.requests.prompt_len.tolist() == [4, 4]


def test_npz_of_a_request_says_where_the_prompt_ends(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    np.savez(path, routed_experts=routing(6).astype(np.int16), prompt_token_ids=np.arange(4))
    assert phases(read([path], "vllm", **SIZES).trace) == [0] * 4 + [1] * 2


def test_arrays_that_need_pickle_or_lie_about_their_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.npy"
    np.save(path, np.array({"ids": 1}, dtype=object), allow_pickle=True)
    with pytest.raises(tracegen.UserError, match="Python objects"):
        read([path], "vllm", **SIZES)
    honest = npy(np.zeros((1, 2, 3), np.int32))
    path.write_bytes(honest.replace(b"(1, 2, 3)", b"(99,2, 3)"))
    with pytest.raises(tracegen.UserError, match=r"declares \(99, 2, 3\)"):
        read([path], "vllm", **SIZES)
    path.write_bytes(honest[:-4])
    with pytest.raises(tracegen.UserError, match="declares"):
        read([path], "vllm", **SIZES)
    path.write_bytes(b"nonsense")
    with pytest.raises(tracegen.UserError, match=r"not an \.npy"):
        read([path], "vllm", **SIZES)


# verl, slime, NeMo-RL


def test_rollouts_are_padded_on_the_left_with_zeros_or_minus_one(tmp_path: Path) -> None:
    first, second = routing(6), routing(4, seed=1)
    first[0] = [0, 5, 2]  # a real row may begin with expert 0
    for padding in (0, -1):
        whole = np.full((2, 6, 2, TOPK), padding)
        whole[0], whole[1, 2:] = first, second
        np.save(tmp_path / "r.npy", whole)
        made = read([tmp_path / "r.npy"], "rollout", prompt_len=3, **SIZES)
        np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([first, second]))
        assert dropped(made.trace) == {"padding of a rectangular tensor": 2}
        assert made.trace.tokens.position.tolist() == [*range(6), *range(4)]
        assert any("No attention mask" in notice for notice in made.notices)
    mask = np.ones((2, 6), np.int64)
    mask[1, :2] = 0
    np.save(tmp_path / "mask.npy", mask)
    made = read([tmp_path / "r.npy"], "rollout", mask=tmp_path / "mask.npy", **SIZES)
    np.testing.assert_array_equal(ids_of(made.trace), np.concatenate([first, second]))
    np.save(tmp_path / "mask.npy", mask[:, :5])
    with pytest.raises(tracegen.UserError, match=r"the mask is \(2, 5\)"):
        read([tmp_path / "r.npy"], "rollout", mask=tmp_path / "mask.npy", **SIZES)


def test_rollout_tensors_in_pt_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    ids = routing(5)
    torch.save({"rollout_routed_experts": torch.from_numpy(ids[None])}, tmp_path / "r.pt")
    np.testing.assert_array_equal(ids_of(read([tmp_path / "r.pt"], "rollout", **SIZES).trace), ids)
    torch.save({"other": torch.zeros(1)}, tmp_path / "r.pt")
    with pytest.raises(tracegen.UserError, match="it has other"):
        read([tmp_path / "r.pt"], "rollout", **SIZES)
