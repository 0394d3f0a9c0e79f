"""Inputs that are anybody's arrays."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import EXPERTS, TOPK, Array, routing, safetensors, write_npy
from kinds import IDS, TOKENS, Kind, kind

MODEL = """
name = "{name}"
title = "four layers"
[shape]
hidden = {{ value = 8, source = "x" }}
moe_intermediate = {{ value = 8, source = "x" }}
num_experts = {{ value = 16, source = "x" }}
num_zero_experts = {{ value = {zero}, source = "x" }}
topk = {{ value = 3, source = "x" }}
num_layers = {{ value = 4, source = "x" }}
dense_layers = {{ value = {dense}, source = "x" }}
gated = {{ value = true, source = "x" }}
"""


def npz(folder: Path, name: str = "r.npz", **arrays: Any) -> list[Path]:
    np.savez(folder / name, **arrays)
    return [folder / name]


def model(folder: Path, dense: tuple[int, ...] = (), zero: int = 0) -> str:
    path = folder / "model.toml"
    path.write_text(MODEL.format(name="four", dense=list(dense), zero=zero), "utf-8")
    return str(path)


def boolean() -> Array:
    chosen = np.zeros((TOKENS, 2, EXPERTS), np.bool_)
    np.put_along_axis(chosen, IDS, True, axis=2)
    return chosen


@kind("`.npy`", "read")
def _(folder: Path) -> Kind:
    return Kind([write_npy(folder / "r.npy", IDS)])


@kind("`.npz` with arrays of other names", "refused: it has choice, seq (--columns ids=NAME says which)")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, choice=IDS, seq=np.zeros(TOKENS)))


@kind("`.npz` with one array of another name", "read: The only array, 'arr_0', was taken for the expert ids.")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, arr_0=IDS))


@kind("`.npz` with Python objects", "refused: holds Python objects, which only unpickling could read")
def _(folder: Path) -> Kind:
    np.savez(folder / "r.npz", expert_ids=np.array([{}, []], object), allow_pickle=True)
    return Kind([folder / "r.npz"])


@kind("`.npz`, compressed", "read")
def _(folder: Path) -> Kind:
    np.savez_compressed(folder / "r.npz", expert_ids=IDS)
    return Kind([folder / "r.npz"])


@kind("`.npz.gz`", "refused: .npz, .npy, .safetensors, .pt, .parquet are read, not '.gz'")
def _(folder: Path) -> Kind:
    (folder / "r.npz.gz").write_bytes(gzip.compress(npz(folder, expert_ids=IDS)[0].read_bytes()))
    return Kind([folder / "r.npz.gz"])


@kind("`.pt` of a dictionary", "read")
def _(folder: Path) -> Kind:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    torch.save({"topk_ids": torch.from_numpy(IDS), "note": "x"}, folder / "r.pt")
    return Kind([folder / "r.pt"])


@kind("`.pt` of Python objects", "refused: cut, or with objects that only unpickling could read")
def _(folder: Path) -> Kind:
    (folder / "r.pt").write_bytes(pickle.dumps({"expert_ids": IDS, "more": {1, 2}}, protocol=4))
    return Kind([folder / "r.pt"])


@kind("`.csv`", "refused: --format arrays reads .npz, .npy, .safetensors, .pt, .parquet, not .csv")
def _(folder: Path) -> Kind:
    (folder / "r.csv").write_text("token,layer,e0,e1,e2\n", "utf-8")
    return Kind([folder / "r.csv"])


@kind("big-endian, Fortran order", "read")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.asfortranarray(IDS.astype(">i2"))))


@kind("bytes above 127", "read")
def _(folder: Path) -> Kind:
    ids = (IDS + 180).astype(np.uint8)
    return Kind(npz(folder, expert_ids=ids), ids, options={"num_experts": 200})


@kind("bytes with 255 for no expert", "read")
def _(folder: Path) -> Kind:
    ids = IDS.copy()
    ids[3, 1, 2] = -1
    return Kind(npz(folder, expert_ids=ids.astype(np.uint8)), ids)


@kind("a rectangular batch with a mask, padded on the left", "read: 4 rows were dropped: masked (padding).")
def _(folder: Path) -> Kind:
    ids = np.concatenate([routing(4, seed=7), IDS]).reshape(2, 8, 2, TOPK)
    mask = np.ones((2, 8), np.int64)
    mask[0, :4] = 0
    return Kind(npz(folder, expert_ids=ids, attention_mask=mask))


@kind("a mask of rows", "read: 4 rows were dropped: masked (padding).")
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS, routing(4, seed=7)])
    return Kind(npz(folder, expert_ids=ids, valid=np.arange(TOKENS + 4) < TOKENS))


@kind("a map of booleans (token, layer, expert)", "read: Expert ids came as a map of bool over 16 experts")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, routing_map=boolean()), np.sort(IDS, axis=2))


@kind("a map of booleans in safetensors", "read: Expert ids came as a map of bool over 16 experts")
def _(folder: Path) -> Kind:
    path = folder / "r.safetensors"
    path.write_bytes(safetensors({"routing_map": boolean()}))
    return Kind([path], np.sort(IDS, axis=2))


@kind("a map of zeros and ones", "read: Expert ids came as a map of int8 over 16 experts")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=boolean().astype(np.int8)), np.sort(IDS, axis=2))


@kind("a map with probabilities (token, layer, expert)", "read: Expert ids came as a map of bool over 16 experts")
def _(folder: Path) -> Kind:
    weights = np.where(boolean(), 0.25, 0)
    return Kind(npz(folder, routing_map=boolean(), weights=weights), np.sort(IDS, axis=2))


@kind(
    "floats that are scores",
    "refused: expert ids are integers, and floats only where they are whole (scores, or weights?)",
)
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.random.default_rng(0).random((TOKENS, 2, EXPERTS))))


@kind(
    "floats that are whole, with gaps", "read: Expert ids came as float64, all of them whole; gaps (1) are empty slots."
)
def _(folder: Path) -> Kind:
    ids = IDS.copy()
    ids[3, 1, 2] = -1
    return Kind(npz(folder, expert_ids=np.where(ids < 0, np.nan, ids)), ids)


@kind("text", "refused: expert ids are integers")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS.astype(np.str_)))


@kind("a folder, rank10 after rank9", "read")
def _(folder: Path) -> Kind:
    dump = folder / "dump"
    dump.mkdir()
    for number in range(TOKENS):
        npz(dump, f"rank{number}.npz", expert_ids=IDS[number : number + 1], step=[number])
    (dump / "README.txt").write_text("not a part", "utf-8")
    return Kind([dump])


@kind(
    "a folder without such files",
    "refused: a folder without .npz, .npy, .safetensors, .pt, .parquet of --format arrays; it has notes.txt",
)
def _(folder: Path) -> Kind:
    (folder / "dump").mkdir()
    (folder / "dump" / "notes.txt").write_text("x", "utf-8")
    return Kind([folder / "dump"])


@kind("a file given twice", "refused: the file was given 2 times")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS) * 2)


@kind("a file of a kind that the format has not", "refused: --format megatron reads .jsonl, .jsonl.gz, not .npz")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS), format="megatron")


@kind("a mask in which no row is real", "refused: no rows are left: 12 masked (padding)")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, mask=np.zeros(TOKENS, np.bool_)))


@kind("a mask of one file for two", "refused: it is of one file, 2 were given: put a mask into each")
def _(folder: Path) -> Kind:
    both = npz(folder, "a.npz", expert_ids=IDS) + npz(folder, "b.npz", expert_ids=IDS[::-1])
    mask = write_npy(folder / "mask.npy", np.arange(TOKENS) > 2)
    return Kind(both, options={"mask": mask})


@kind("a number of ranks, and no rank", "read: num_ranks is 8, but no 'rank' says which of them had a token")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, world_size=8))


@kind("a position twice in a request and step", "read: 11 rows have step, request and position of another")
def _(folder: Path) -> Kind:
    zero = np.zeros(TOKENS, int)
    return Kind(npz(folder, expert_ids=IDS, request=zero, position=zero, step=zero))


@kind("a prompt longer than the rows of its request", "refused: a prompt of 14 tokens, and rows end at position 11")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS), options={"prompt_len": TOKENS + 2})


@kind("ids from 1", "refused: ids are 1 to 16, so they count from one: subtract one")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS + 1))


@kind("ids of experts that do nothing", "read")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS), options={"zero_experts": 4})


@kind("ids of experts that do nothing, of a model file", "read")
def _(folder: Path) -> Kind:
    sizes = {"model": model(folder, zero=4)}
    return Kind(npz(folder, expert_ids=IDS, layers=[0, 1]), options=sizes)


@kind("ids of (token, layer x k)", "refused: --topk 3 contradicts the dump of (12, 1, 6) (token, layer, k)")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS.reshape(TOKENS, -1)))


@kind(
    "ids that overflowed their type",
    "refused: ids are 0 or more, and -1 for an empty slot (do they fit the type that they were saved in?)",
)
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=(IDS + 150).astype(np.int8)), options={"num_experts": 200})


@kind("ids with an expert twice", "refused: has an expert twice")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.where(IDS[0, 0, 0] == IDS, IDS[0, 0, 1], IDS)))


@kind("layers of zeros, of a model with dense layers there", "read: 2 of 4 layers are dense and were left out: [0, 1].")
def _(folder: Path) -> Kind:
    whole = np.concatenate([np.zeros_like(IDS), IDS], axis=1)
    return Kind(npz(folder, expert_ids=whole), options={"model": model(folder, dense=(0, 1))})


@kind("layers of zeros, of a model with experts there", "read: 2 MoE layers of four were not recorded")
def _(folder: Path) -> Kind:
    whole = np.concatenate([np.zeros_like(IDS), IDS], axis=1)
    return Kind(npz(folder, expert_ids=whole), options={"model": model(folder)})


@kind("layers of zeros, without a model", "read: Without --model it cannot be told whether they are dense")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.concatenate([np.zeros_like(IDS), IDS], axis=1)))


@kind(
    "(layer, token, k), with a model",
    "refused: the dump has 12 layers, four has 4, of which 4 have experts (are the ids token, layer, k?)",
)
def _(folder: Path) -> Kind:
    sizes = {"model": model(folder)}
    return Kind(npz(folder, expert_ids=IDS.transpose(1, 0, 2)), options=sizes)


@kind(
    "(layer, token, k), with a column",
    "refused: one for each of 2 tokens, are expected (expert_ids are token, layer, k)",
)
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS.transpose(1, 0, 2), request=np.zeros(TOKENS, int)))


@kind("(layer, token, k), and nothing else", "read: 2 tokens of 12 layers: are the ids token, layer, k?")
def _(folder: Path) -> Kind:
    ids = IDS.transpose(1, 0, 2)
    return Kind(npz(folder, expert_ids=ids), ids)


@kind("more than four dimensions", "refused: (token, layer, k) or (token, k) are expected")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS[None, None]))


@kind("no rows", "refused: no rows")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS[:0]))


@kind("phases as words", "read")
def _(folder: Path) -> Kind:
    phase = ["prefill"] * 8 + ["decode"] * 4
    return Kind(npz(folder, expert_ids=IDS, phase=phase))


@kind("rows of -1", "read: 2 rows were dropped: no expert in any layer (missing).")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.concatenate([np.full((2, 2, TOPK), -1), IDS])))


@kind(
    "rows of one dummy route at the end of a step",
    "read: 4 rows at the end of steps (1) are one row again and again: padding to a fixed size?",
)
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS, np.broadcast_to(np.arange(TOPK), (4, 2, TOPK))])
    return Kind(npz(folder, expert_ids=ids), ids)


@kind("rows of zeros", "read: 2 rows were dropped: zero in every slot of every layer (padding).")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.concatenate([np.zeros((2, 2, TOPK), int), IDS])))


@kind(
    "requests with names in one file, and numbers in another",
    "refused: requests have names in some of the files, and numbers in others",
)
def _(folder: Path) -> Kind:
    number = np.zeros(TOKENS, int)
    first = npz(folder, "a.npz", expert_ids=IDS, request=number)
    return Kind(first + npz(folder, "b.npz", expert_ids=IDS, request=number.astype(np.str_)))


@kind("requests with names, in two files", "read")
def _(folder: Path) -> Kind:
    rows = np.array([0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11])
    names = np.where(np.arange(TOKENS) < 6, "chat-b", "chat-a")
    place = np.arange(TOKENS) % 6
    paths = []
    for name, part in (("a.npz", rows[:8]), ("b.npz", rows[8:])):
        columns = {"request": names[part], "position": place[part]}
        paths += npz(folder, name, expert_ids=IDS[part], **columns)
    return Kind(paths)


@kind("several files with other layers", "refused: differ in (layers, slots)")
def _(folder: Path) -> Kind:
    first = npz(folder, "a.npz", expert_ids=IDS)
    return Kind(first + npz(folder, "b.npz", expert_ids=routing(3, layers=3)))


@kind("several files, one of them with a column more", "refused: phase is in only some of the files")
def _(folder: Path) -> Kind:
    first = npz(folder, "a.npz", expert_ids=IDS)
    return Kind(first + npz(folder, "b.npz", expert_ids=IDS, phase=[0] * TOKENS))


@kind("weights of zero in all rows", "read: All weights are zero: they were not recorded, and left out.")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, weights=np.zeros(IDS.shape)))


@kind(
    "an array for each layer, named by its number", "read: Arrays of 2 layers, named by number, were put side by side."
)
def _(folder: Path) -> Kind:
    return Kind(npz(folder, **{f"layer_{n}": IDS[:, place] for place, n in ((1, 10), (0, 9))}))


@kind(
    "an array whose name says nothing, beside the ids",
    "read: Not read, since their names say nothing: probs (--columns says).",
)
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, probs=np.ones(IDS.shape)))


@kind(
    "a tensor for each layer in a dictionary, by number",
    "read: Arrays of 2 layers, named by number, were put side by side.",
)
def _(folder: Path) -> Kind:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    torch.save({n: torch.from_numpy(IDS[:, n]) for n in (1, 0)}, folder / "r.pt")
    return Kind([folder / "r.pt"])


@kind("weights below zero", "read: 72 weights are negative")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, weights=np.full(IDS.shape, -0.5)))


@kind("weights larger than a trace holds", "refused: weights up to 1e+09; a trace holds up to 65504")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, weights=np.full(IDS.shape, 1e9)))


@kind("weights of another shape", "refused: weights are float64 (12, 3), expert_ids are (12, 2, 3)")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, weights=np.ones((TOKENS, TOPK))))


@kind("weights of zero for padding", "read: 2 rows were dropped: zero weight in every slot of every layer (masked).")
def _(folder: Path) -> Kind:
    weights = np.ones((TOKENS + 2, 2, TOPK))
    weights[-2:] = 0
    ids = np.concatenate([IDS, routing(2, seed=5)])
    return Kind(npz(folder, expert_ids=ids, weights=weights))


@kind("weights that do not sum to one", "read")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, weights=np.full(IDS.shape, 2.5)))
