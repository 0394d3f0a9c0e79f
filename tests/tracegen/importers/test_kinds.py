"""Kinds of input that people have, and what each gives: the table of IMPORTERS.md, row by row."""

import gzip
import re
from pathlib import Path
from typing import Any

import kinds_of_engines  # noqa: F401 - adds its rows
import numpy as np
import pytest
from dumps import (
    EXPERTS,
    SIZES,
    TOPK,
    Array,
    ids_of,
    megatron_files,
    routing,
    safetensors,
    write_npy,
)
from kinds import IDS, KINDS, TOKENS, Kind, kind

import tracegen
from tracegen.importers import read_as_typed

IMPORTERS_MD = Path(tracegen.__file__).parent / "importers" / "IMPORTERS.md"
HEADING = "## Kinds of input that were tried"
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


def parquet(folder: Path, name: str = "r.parquet", **columns: Any) -> list[Path]:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
    from pyarrow import parquet as module

    module.write_table(pyarrow.table(columns), folder / name)
    return [folder / name]


def model(folder: Path, dense: tuple[int, ...] = (), zero: int = 0) -> str:
    path = folder / "model.toml"
    path.write_text(MODEL.format(name="four", dense=list(dense), zero=zero), "utf-8")
    return str(path)


def boolean() -> Array:
    chosen = np.zeros((TOKENS, 2, EXPERTS), np.bool_)
    np.put_along_axis(chosen, IDS, True, axis=2)
    return chosen


def long_rows() -> dict[str, Array]:
    """A row for each token and layer."""
    token, layer = (axis.ravel() for axis in np.indices((TOKENS, 2)))
    return {"token": token, "layer": layer, "experts": IDS.reshape(-1, TOPK)}


@kind("`.npy`")
def _(folder: Path) -> Kind:
    return Kind([write_npy(folder / "r.npy", IDS)])


@kind("`.npz` with arrays of other names")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, choice=IDS, seq=np.zeros(TOKENS)))


@kind("`.npz` with one array of another name")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, arr_0=IDS))


@kind("`.npz` with Python objects")
def _(folder: Path) -> Kind:
    np.savez(folder / "r.npz", expert_ids=np.array([{}, []], object), allow_pickle=True)
    return Kind([folder / "r.npz"])


@kind("`.npz`, compressed")
def _(folder: Path) -> Kind:
    np.savez_compressed(folder / "r.npz", expert_ids=IDS)
    return Kind([folder / "r.npz"])


@kind("`.npz.gz`")
def _(folder: Path) -> Kind:
    (folder / "r.npz.gz").write_bytes(gzip.compress(npz(folder, expert_ids=IDS)[0].read_bytes()))
    return Kind([folder / "r.npz.gz"])


@kind("`.jsonl.gz` of Megatron-LM")
def _(folder: Path) -> Kind:
    ids = np.sort(IDS, axis=2)
    (path,) = megatron_files(folder / "m", {(0, 0): ids})
    packed = folder / "router_trace_rank0.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return Kind([packed], ids, "megatron")


@kind("`.pt` of a dictionary")
def _(folder: Path) -> Kind:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    torch.save({"topk_ids": torch.from_numpy(IDS), "note": "x"}, folder / "r.pt")
    return Kind([folder / "r.pt"])


@kind("`.csv`")
def _(folder: Path) -> Kind:
    (folder / "r.csv").write_text("token,layer,e0,e1,e2\n", "utf-8")
    return Kind([folder / "r.csv"])


@kind("a column for each slot")
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, **{f"expert_{k}": IDS[:, 0, k] for k in range(TOPK)}))


@kind("a row for each slot")
def _(folder: Path) -> Kind:
    token, layer, slot = (axis.ravel() for axis in np.indices(IDS.shape))
    order = np.random.default_rng(1).permutation(token.size)
    columns = {"token": token, "layer": layer, "slot": slot, "expert_ids": IDS.ravel()}
    return Kind(parquet(folder, **{name: column[order] for name, column in columns.items()}))


@kind("a row for each token and layer, in any order")
def _(folder: Path) -> Kind:
    order = np.random.default_rng(1).permutation(2 * TOKENS)
    columns = {name: column[order].tolist() for name, column in long_rows().items()}
    return Kind(parquet(folder, **columns), options={"columns": {"ids": "experts"}})


@kind("a row for each token and layer, some missing")
def _(folder: Path) -> Kind:
    columns = {name: column[1:].tolist() for name, column in long_rows().items()}
    return Kind(parquet(folder, **columns), options={"columns": {"ids": "experts"}})


@kind("a table with columns of other names")
def _(folder: Path) -> Kind:
    columns = {f"{name}_x": column.tolist() for name, column in long_rows().items()}
    return Kind(parquet(folder, **columns))


@kind("a table with columns of other names, named")
def _(folder: Path) -> Kind:
    columns = {f"{name}_x": column.tolist() for name, column in long_rows().items()}
    names = {"ids": "experts_x", "layer": "layer_x", "token": "token_x"}
    return Kind(parquet(folder, **columns), options={"columns": names})


@kind("a table with columns of other names, named wrongly")
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, experts=IDS.tolist()), options={"columns": {"ids": "expert"}})


@kind("a table with lists of unequal length")
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, expert_ids=[[1, 2], [3]]))


@kind("a table that pandas wrote, with its index")
def _(folder: Path) -> Kind:
    index = np.arange(TOKENS) * 10
    columns = {"expert_ids": IDS.tolist(), "request": [0.0] * TOKENS, "__index_level_0__": index}
    return Kind(parquet(folder, **columns))


@kind("a table with gaps in a column of numbers")
def _(folder: Path) -> Kind:
    return Kind(parquet(folder, expert_ids=IDS.tolist(), request=[None, *[0] * (TOKENS - 1)]))


@kind("big-endian, Fortran order")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.asfortranarray(IDS.astype(">i2"))))


@kind("bytes above 127")
def _(folder: Path) -> Kind:
    ids = (IDS + 180).astype(np.uint8)
    return Kind(npz(folder, expert_ids=ids), ids, options={"num_experts": 200})


@kind("bytes with 255 for no expert")
def _(folder: Path) -> Kind:
    ids = IDS.copy()
    ids[3, 1, 2] = -1
    return Kind(npz(folder, expert_ids=ids.astype(np.uint8)), ids)


@kind("a rectangular batch with a mask, padded on the left")
def _(folder: Path) -> Kind:
    ids = np.concatenate([routing(4, seed=7), IDS]).reshape(2, 8, 2, TOPK)
    mask = np.ones((2, 8), np.int64)
    mask[0, :4] = 0
    return Kind(npz(folder, expert_ids=ids, attention_mask=mask))


@kind("a mask of rows")
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS, routing(4, seed=7)])
    return Kind(npz(folder, expert_ids=ids, valid=np.arange(TOKENS + 4) < TOKENS))


@kind("a map of booleans (token, layer, expert)")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, routing_map=boolean()), np.sort(IDS, axis=2))


@kind("a map of booleans in safetensors")
def _(folder: Path) -> Kind:
    path = folder / "r.safetensors"
    path.write_bytes(safetensors({"routing_map": boolean()}))
    return Kind([path], np.sort(IDS, axis=2))


@kind("a map of zeros and ones")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=boolean().astype(np.int8)), np.sort(IDS, axis=2))


@kind("a map with probabilities (token, layer, expert)")
def _(folder: Path) -> Kind:
    weights = np.where(boolean(), 0.25, 0)
    return Kind(npz(folder, routing_map=boolean(), weights=weights), np.sort(IDS, axis=2))


@kind("floats that are scores")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.random.default_rng(0).random((TOKENS, 2, EXPERTS))))


@kind("floats that are whole, with gaps")
def _(folder: Path) -> Kind:
    ids = IDS.copy()
    ids[3, 1, 2] = -1
    return Kind(npz(folder, expert_ids=np.where(ids < 0, np.nan, ids)), ids)


@kind("text")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS.astype(np.str_)))


@kind("a folder, rank10 after rank9")
def _(folder: Path) -> Kind:
    dump = folder / "dump"
    dump.mkdir()
    for number in range(TOKENS):
        npz(dump, f"rank{number}.npz", expert_ids=IDS[number : number + 1], step=[number])
    (dump / "README.txt").write_text("not a part", "utf-8")
    return Kind([dump])


@kind("a folder of Megatron-LM")
def _(folder: Path) -> Kind:
    ids = np.sort(IDS, axis=2)
    megatron_files(folder / "m", {(0, rank): ids[6 * rank :][:6] for rank in (0, 1)})
    return Kind([folder / "m"], ids, "megatron", {"pp": 1})


@kind("a folder without such files")
def _(folder: Path) -> Kind:
    (folder / "dump").mkdir()
    (folder / "dump" / "notes.txt").write_text("x", "utf-8")
    return Kind([folder / "dump"])


@kind("ids from 1")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS + 1))


@kind("ids of experts that do nothing")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS), options={"zero_experts": 4})


@kind("ids of experts that do nothing, of a model file")
def _(folder: Path) -> Kind:
    sizes = {"model": model(folder, zero=4)}
    return Kind(npz(folder, expert_ids=IDS, layers=[0, 1]), options=sizes)


@kind("ids with an expert twice")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.where(IDS[0, 0, 0] == IDS, IDS[0, 0, 1], IDS)))


@kind("layers of zeros, of a model with dense layers there")
def _(folder: Path) -> Kind:
    whole = np.concatenate([np.zeros_like(IDS), IDS], axis=1)
    return Kind(npz(folder, expert_ids=whole), options={"model": model(folder, dense=(0, 1))})


@kind("layers of zeros, of a model with experts there")
def _(folder: Path) -> Kind:
    whole = np.concatenate([np.zeros_like(IDS), IDS], axis=1)
    return Kind(npz(folder, expert_ids=whole), options={"model": model(folder)})


@kind("layers of zeros, without a model")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.concatenate([np.zeros_like(IDS), IDS], axis=1)))


@kind("(layer, token, k), with a model")
def _(folder: Path) -> Kind:
    sizes = {"model": model(folder)}
    return Kind(npz(folder, expert_ids=IDS.transpose(1, 0, 2)), options=sizes)


@kind("(layer, token, k), with a column")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS.transpose(1, 0, 2), request=np.zeros(TOKENS, int)))


@kind("(layer, token, k), and nothing else")
def _(folder: Path) -> Kind:
    ids = IDS.transpose(1, 0, 2)
    return Kind(npz(folder, expert_ids=ids), ids)


@kind("more than four dimensions")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS[None, None]))


@kind("no rows")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS[:0]))


@kind("phases as words")
def _(folder: Path) -> Kind:
    phase = ["prefill"] * 8 + ["decode"] * 4
    return Kind(npz(folder, expert_ids=IDS, phase=phase))


@kind("ranks, of which the last had no token")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, rank=np.arange(TOKENS) % 3, request=range(TOKENS)))


@kind("ranks, of which the last had no token, and their number")
def _(folder: Path) -> Kind:
    ranks = {"rank": np.arange(TOKENS) // 4, "num_ranks": 8}
    return Kind(npz(folder, expert_ids=IDS, request=range(TOKENS), step=[0] * TOKENS, **ranks))


@kind("ranks with equal routes and requests of their own")
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS[:3], IDS[:3]])
    columns = {"rank": [0] * 3 + [1] * 3, "request": range(6), "step": [0] * 6}
    return Kind(npz(folder, expert_ids=ids, **columns), ids)


@kind("ranks with equal routes and nothing else")
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS, IDS])
    return Kind(npz(folder, expert_ids=ids, rank=np.repeat([0, 1], TOKENS)))


@kind("rows of -1")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.concatenate([np.full((2, 2, TOPK), -1), IDS])))


@kind("rows of one dummy route at the end of a step")
def _(folder: Path) -> Kind:
    ids = np.concatenate([IDS, np.broadcast_to(np.arange(TOPK), (4, 2, TOPK))])
    return Kind(npz(folder, expert_ids=ids), ids)


@kind("rows of zeros")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=np.concatenate([np.zeros((2, 2, TOPK), int), IDS])))


@kind("several files with other layers")
def _(folder: Path) -> Kind:
    first = npz(folder, "a.npz", expert_ids=IDS)
    return Kind(first + npz(folder, "b.npz", expert_ids=routing(3, layers=3)))


@kind("several files, one of them with a column more")
def _(folder: Path) -> Kind:
    first = npz(folder, "a.npz", expert_ids=IDS)
    return Kind(first + npz(folder, "b.npz", expert_ids=IDS, phase=[0] * TOKENS))


@kind("weights of another shape")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, weights=np.ones((TOKENS, TOPK))))


@kind("weights of zero for padding")
def _(folder: Path) -> Kind:
    weights = np.ones((TOKENS + 2, 2, TOPK))
    weights[-2:] = 0
    ids = np.concatenate([IDS, routing(2, seed=5)])
    return Kind(npz(folder, expert_ids=ids, weights=weights))


@kind("weights that do not sum to one")
def _(folder: Path) -> Kind:
    return Kind(npz(folder, expert_ids=IDS, weights=np.full(IDS.shape, 2.5)))


def table() -> dict[str, str]:
    """Kind to what it gives, of the rows of the document."""
    section = IMPORTERS_MD.read_text("utf-8").split(HEADING)[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    cells = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]
    return dict(cells)


def test_provenance_names_layers_that_were_not_recorded(tmp_path: Path) -> None:
    for dense, name, layers in (
        ((), "layers_not_recorded", [0, 1]),
        ((0, 1), "dense_layers_left_out", [0, 1]),
    ):
        whole = np.concatenate([np.zeros_like(IDS), IDS], axis=1)
        options = {"model": model(tmp_path, dense=dense)}
        trace = read_as_typed(npz(tmp_path, expert_ids=whole), "arrays", options).trace
        source = trace.info.provenance["source"]
        assert source[name] == layers
        left_out = {"layers_not_recorded", "dense_layers_left_out", "empty_layers_left_out"}
        assert left_out & source.keys() == {name}
        assert trace.moe_layer_index.tolist() == [2, 3]


def test_with_one_slot_zeros_are_an_expert_unless_the_model_has_none(tmp_path: Path) -> None:
    ids = np.zeros((TOKENS, 4, 1), int)
    ids[:, 2:] = IDS[:, :, :1]
    path = npz(tmp_path, expert_ids=ids)
    sizes = {"num_experts": EXPERTS, "hidden_size": 8}
    assert read_as_typed(path, "arrays", sizes).trace.num_layers == 4
    toml = Path(model(tmp_path, dense=(0, 1)))
    toml.write_text(toml.read_text("utf-8").replace("value = 3,", "value = 1,"), "utf-8")
    trace = read_as_typed(path, "arrays", {"model": str(toml)}).trace
    assert trace.moe_layer_index.tolist() == [2, 3]


def test_the_table_has_every_kind_and_is_in_order() -> None:
    found = table()
    assert KINDS.keys() <= found.keys()
    assert list(found) == sorted(found, key=lambda name: re.sub(r"[`(.]", "", name).lower())
    assert len(found) >= 40


def test_every_kind_gives_what_the_table_says(tmp_path: Path) -> None:
    says, wrong = table(), []
    for number, (name, make) in enumerate(KINDS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        given, (what, _, said) = make(folder), says[name].partition(": ")
        sizes = {} if "model" in given.options else SIZES
        try:
            made = read_as_typed(given.paths, given.format, {**sizes, **given.options})
        except tracegen.UserError as error:
            found, told = "refused", str(error)
        else:
            found, told = "read", " ".join(made.notices)
            if not np.array_equal(ids_of(made.trace), given.ids):
                found = "read as others"
        if found != what or said.strip("`") not in told or (found == "refused" and not said):
            wrong.append(f"{name}: {found}: {told}")
    assert not wrong, "\n".join(wrong)
