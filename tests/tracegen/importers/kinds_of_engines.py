"""Inputs that engines and trainers write."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import EXPERTS, TOPK, Array, megatron_files, npy, text64
from kinds import IDS, TOKENS, Kind, kind
from kinds_of_arrays import npz

PROMPT = 8
USAGE = {"prompt_tokens": PROMPT, "completion_tokens": TOKENS + 1 - PROMPT}
LAYERED = {"num_layers": 2}
FILLER = np.broadcast_to(np.arange(TOPK), (1, 2, TOPK))


def raw(ids: Array, kind: str = "<i4") -> str:
    return text64(ids.astype(kind).tobytes())


def meta(ids: Array = IDS, kind: str = "<i4", **more: object) -> dict[str, Any]:
    """SGLang's ``meta_info``."""
    return {"id": "a", **USAGE, "routed_experts": raw(ids, kind), **more}


def written(folder: Path, *entries: object, name: str = "r.jsonl") -> list[Path]:
    (folder / name).write_text("\n".join(map(json.dumps, entries)), "utf-8")
    return [folder / name]


def streamed(folder: Path, *chunks: object) -> list[Path]:
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    (folder / "r.sse").write_text(text, "utf-8")
    return [folder / "r.sse"]


def sglang(folder: Path, *entries: object, ids: Array = IDS) -> Kind:
    return Kind(written(folder, *entries), ids, "sglang", LAYERED)


def vllm(folder: Path, *entries: object, ids: Array = IDS) -> Kind:
    return Kind(written(folder, *entries), ids, "vllm")


def csv(folder: Path, passes: list[int], lines: int | None = None, outputs: bool = False) -> Kind:
    """moe-trace of llama.cpp: pass after pass, layer after layer, token after token."""
    told, begin, ids = ["layer,expert"], 0, IDS.copy()
    for tokens in passes:
        for layer in (0, 1):
            first = begin + tokens - 1 if outputs and layer == 1 else begin
            told += [f"{layer},{e}" for row in IDS[first : begin + tokens, layer] for e in row]
            ids[begin:first, layer] = -1
        begin += tokens
    (folder / "moe_trace.csv").write_text("\n".join(told[:lines]), "utf-8")
    return Kind([folder / "moe_trace.csv"], ids, "llama.cpp")


@kind("llama.cpp: layer,expert of moe-trace", "read")
def _(folder: Path) -> Kind:
    return csv(folder, [8, 1, 1, 1, 1])


@kind("llama.cpp: layer,expert of moe-trace, cut", "refused: layers of pass 1 have {0: 4, 1: 3} tokens")
def _(folder: Path) -> Kind:
    return csv(folder, [8, 4], lines=-TOPK)


@kind(
    "llama.cpp: layer,expert of moe-trace, the last layer of outputs alone", "read: 7 of 12 tokens lack the last layer"
)
def _(folder: Path) -> Kind:
    return csv(folder, [8, 1, 1, 1, 1], outputs=True)


@kind(
    "llama.cpp: layer,expert of moe-trace, without topk",
    "refused: the dump does not say how many experts a token has: give --model or --topk",
)
def _(folder: Path) -> Kind:
    return csv(folder, [8, 4])._replace(options={"topk": None})


@kind("llama.cpp: layer,expert with a layer below 0", "refused: each is there once, from 0 to 65535")
def _(folder: Path) -> Kind:
    (folder / "moe_trace.csv").write_text("layer,expert\n-1,1\n-1,2\n-1,3\n", "utf-8")
    return Kind([folder / "moe_trace.csv"], format="llama.cpp")


@kind("llama.cpp: layer,expert with capitals, blank lines and other ends of lines", "read")
def _(folder: Path) -> Kind:
    given = csv(folder, [8, 1, 1, 1, 1])
    text = given.paths[0].read_text("utf-8").replace("layer,expert", "Layer, Expert")
    given.paths[0].write_bytes(f"{text}\n\n".replace("\n", "\r\n").encode())
    return given


@kind("llama.cpp: phase,token,layer,rank,expert", "read")
def _(folder: Path) -> Kind:
    told = ["phase,token,layer,rank,expert"]
    for (token, layer, slot), expert in np.ndenumerate(IDS):
        told.append(f"{'prefill' if token < PROMPT else 'decode'},{token},{layer},{slot},{expert}")
    (folder / "r.csv").write_text("\n".join(told), "utf-8")
    return Kind([folder / "r.csv"], IDS, "llama.cpp")


@kind(
    "llama.cpp: another header",
    "refused: layer,expert (moe-trace), phase,token,layer,rank,expert, or pass,token,layer,e0,...[,w0,...]",
)
def _(folder: Path) -> Kind:
    (folder / "r.csv").write_text("pos,layer,e0\n0,0,1\n", "utf-8")
    return Kind([folder / "r.csv"], IDS, "llama.cpp")


@kind("NeMo-Gym: turns of an agent, with NeMo-RL's text of an array", "read")
def _(folder: Path) -> Kind:
    padded = np.concatenate([IDS, FILLER])
    turn = {
        "prompt_token_ids": [1] * PROMPT,
        "generation_token_ids": [2] * (TOKENS + 1 - PROMPT),
        "routed_experts": f"nrlre1:int8:{TOKENS + 1}x2x{TOPK}:{raw(padded, 'i1')}",
    }
    return vllm(folder, {"output": [{"type": "function_call"}, turn]})


@kind("NeMo-RL: a batch padded with the first experts", "read: 4 rows were dropped: padding of a rectangular tensor.")
def _(folder: Path) -> Kind:
    whole = np.concatenate([IDS, np.repeat(FILLER, 4, axis=0)])[None]
    np.save(folder / "r.npy", whole)
    return Kind([folder / "r.npy"], IDS, "rollout")


@kind("NVIDIA Dynamo: nvext", "read")
def _(folder: Path) -> Kind:
    return sglang(folder, {"choices": [{}], "usage": USAGE, "nvext": {"routed_experts": raw(IDS)}})


@kind("prime-rl: data, shape and dtype", "read")
def _(folder: Path) -> Kind:
    payload = {"data": raw(IDS, "<u2"), "shape": list(IDS.shape), "dtype": "uint16"}
    return vllm(folder, {"choices": [{"routed_experts": payload}], "usage": USAGE})


@kind("SGLang: a batch of /generate in one line", "read")
def _(folder: Path) -> Kind:
    return sglang(folder, [{"meta_info": meta()}, {"meta_info": meta()}], ids=np.tile(IDS, (2, 1, 1)))


@kind("SGLang: a prompt alone", "read")
def _(folder: Path) -> Kind:
    return sglang(folder, {"meta_info": meta(prompt_tokens=TOKENS + 1, completion_tokens=0)})


@kind("SGLang: a stream of /v1/chat/completions", "read")
def _(folder: Path) -> Kind:
    chunk = {"id": "c", "object": "chat.completion.chunk"}
    last = {**chunk, "choices": [], "sglext": {"routed_experts": raw(IDS)}}
    first = {**chunk, "choices": [{"index": 0, "delta": {"content": "x"}}]}
    paths = streamed(folder, first, last, {**chunk, "choices": [], "usage": USAGE})
    return Kind(paths, IDS, "sglang", LAYERED)


@kind("SGLang: a stream of /generate", "read")
def _(folder: Path) -> Kind:
    begun = {"id": "a", "prompt_tokens": PROMPT, "completion_tokens": 1}
    return Kind(streamed(folder, {"meta_info": begun}, {"meta_info": meta()}), IDS, "sglang", LAYERED)


@kind("SGLang: a stream that was cut", "refused: a stream has them in its last chunk: was it cut?")
def _(folder: Path) -> Kind:
    begun = {"id": "a", "prompt_tokens": PROMPT, "completion_tokens": 1}
    return Kind(streamed(folder, {"meta_info": begun}), IDS, "sglang", LAYERED)


@kind("SGLang: several choices, with meta_info each", "read")
def _(folder: Path) -> Kind:
    choices = [{"meta_info": meta()}, {"meta_info": meta(IDS[:9], completion_tokens=2)}]
    return sglang(folder, {"choices": choices}, ids=np.concatenate([IDS, IDS[:9]]))


@kind("SGLang: several choices, with sglext", "read: 1 responses have several choices and the ids of one")
def _(folder: Path) -> Kind:
    return sglang(folder, {"choices": [{}, {}], "sglext": {"routed_experts": raw(IDS)}})


@kind("SGLang: turns, each with its request", "read")
def _(folder: Path) -> Kind:
    turns = [
        {
            "request": {"routed_experts_start_len": first},
            "response": {"meta_info": {**meta(IDS[first:end]), **tokens}},
        }
        for first, end, tokens in (
            (0, 5, {"prompt_tokens": 3, "completion_tokens": 3}),
            (5, TOKENS, {"prompt_tokens": 9, "completion_tokens": TOKENS - 8}),
        )
    ]
    return sglang(folder, *turns)


@kind("SGLang: uint8, and nothing says so", "refused: the 12 rows that are due if their type is uint8")
def _(folder: Path) -> Kind:
    return sglang(folder, {"meta_info": meta(kind="u1")})


@kind("SGLang: uint8, as routed_experts_dtype says", "read")
def _(folder: Path) -> Kind:
    return sglang(folder, {"meta_info": meta(kind="u1", routed_experts_dtype="uint8")})


@kind("TensorRT-LLM: outputs of its Python interface", "read")
def _(folder: Path) -> Kind:
    answer = {"token_ids": [1] * (TOKENS + 1 - PROMPT), "routed_experts": IDS.tolist()}
    output = {"prompt_token_ids": [1] * PROMPT, "outputs": [answer]}
    return Kind(written(folder, output), IDS, "tensorrt-llm")


@kind("verifiers: a trajectory", "read")
def _(folder: Path) -> Kind:
    payload = {"data": raw(IDS, "u1"), "shape": list(IDS.shape), "start": 0}
    tokens = {"prompt_ids": [1] * PROMPT, "completion_ids": [1] * (TOKENS + 1 - PROMPT)}
    return vllm(folder, {"trajectory": [{"tokens": {**tokens, "routed_experts": payload}}]})


@kind("vLLM: a chat that was streamed", "refused: It streams them from /inference/v1/generate alone")
def _(folder: Path) -> Kind:
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}}]}
    return Kind(streamed(folder, chunk), IDS, "vllm")


@kind("vLLM: a prompt alone", "read")
def _(folder: Path) -> Kind:
    entry = {"choices": [{"routed_experts": None}], "prompt_routed_experts": text64(npy(IDS))}
    return vllm(folder, entry)


@kind("vLLM: a stream of /inference/v1/generate", "read")
def _(folder: Path) -> Kind:
    one = {"request_id": "g", "choices": [{"index": 0, "token_ids": [7]}]}
    last = {"index": 0, "token_ids": [8] * (TOKENS - PROMPT), "routed_experts": text64(npy(IDS))}
    chunks = [{**one, "prompt_token_ids": [1] * PROMPT}, {**one, "choices": [last]}]
    return Kind(streamed(folder, *chunks), IDS, "vllm")


@kind("vLLM: lines of JSON in a file named .json", "read")
def _(folder: Path) -> Kind:
    choice = {"routed_experts": text64(npy(IDS.astype(np.uint8)))}
    entry = {"choices": [choice], "usage": USAGE}
    return Kind(written(folder, entry, entry, name="r.json"), np.tile(IDS, (2, 1, 1)), "vllm")


@kind("vLLM: outputs of LLM.generate as JSON, two answers", "read")
def _(folder: Path) -> Kind:
    answers = [
        {"index": 0, "token_ids": [1] * (TOKENS + 1 - PROMPT), "routed_experts": IDS.tolist()},
        {"index": 1, "token_ids": [1], "routed_experts": IDS[:PROMPT].tolist()},
    ]
    entry = {"prompt_token_ids": [1] * PROMPT, "outputs": answers}
    return vllm(folder, entry, ids=np.concatenate([IDS, IDS[:PROMPT]]))


@kind("vLLM: raw bytes", "refused: Then give --format sglang")
def _(folder: Path) -> Kind:
    return vllm(folder, {"choices": [{"routed_experts": raw(IDS)}]})


@kind("vLLM: the printed text of an array", "refused: routed experts are the printed text of an array")
def _(folder: Path) -> Kind:
    return vllm(folder, {"choices": [{"routed_experts": str(IDS + EXPERTS)}]})


@kind("rollout: a list of tensors, of requests of unequal length", "read")
def _(folder: Path) -> Kind:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    torch.save([torch.from_numpy(IDS[:PROMPT]), torch.from_numpy(IDS[PROMPT:])], folder / "r.pt")
    return Kind([folder / "r.pt"], format="rollout")


@kind("rollout: samples, with lengths of some responses", "refused: columns with an entry for each sample are expected")
def _(folder: Path) -> Kind:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    ids = [torch.from_numpy(IDS[:PROMPT]), torch.from_numpy(IDS[PROMPT:])]
    tokens = [[1] * (len(one) + 1) for one in ids]
    columns = {"tokens": tokens, "rollout_routed_experts": ids}
    torch.save({**columns, "response_lengths": torch.tensor([3])}, folder / "r.pt")
    return Kind([folder / "r.pt"], format="rollout")


@kind("`.jsonl.gz` of Megatron-LM", "read")
def _(folder: Path) -> Kind:
    ids = np.sort(IDS, axis=2)
    (path,) = megatron_files(folder / "m", {(0, 0): ids})
    packed = folder / "router_trace_rank0.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return Kind([packed], ids, "megatron")


@kind("a folder of Megatron-LM", "read")
def _(folder: Path) -> Kind:
    ids = np.sort(IDS, axis=2)
    megatron_files(folder / "m", {(0, rank): ids[6 * rank :][:6] for rank in (0, 1)})
    return Kind([folder / "m"], ids, "megatron", {"pp": 1})


@kind(
    "ranks, of which the last had no token",
    "refused: 16 experts are not dealt evenly to 3 GPUs: how many were there, with those that had no token?",
)
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, rank=np.arange(TOKENS) % 3, request=range(TOKENS)))


@kind("ranks, of which the last had no token, and their number", "read")
def _(folder: Path) -> Kind:
    ranks = {"rank": np.arange(TOKENS) // 4, "num_ranks": 8}
    return Kind(npz(folder, expert_ids=IDS, request=range(TOKENS), step=[0] * TOKENS, **ranks))


@kind(
    "ranks with equal routes and requests of their own", "read: How many GPUs there were is not recorded: 2 were taken"
)
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS[:3], IDS[:3]])
    columns = {"rank": [0] * 3 + [1] * 3, "request": range(6), "step": [0] * 6}
    return Kind(npz(folder, expert_ids=ids, **columns), ids)


@kind("ranks with equal routes and nothing else", "read: 2 ranks saw the tokens of 1 (tensor parallelism)")
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS, IDS])
    return Kind(npz(folder, expert_ids=ids, rank=np.repeat([0, 1], TOKENS)))
