"""Loads without tokens: every layout gives the same counts, and impossible ones are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import safetensors

import tracegen
from tracegen import UserError
from tracegen.generate import generate
from tracegen.importers import read
from tracegen.importers.loads import read_loads
from tracegen.models import ModelShape

EXPERTS, TOPK = 8, 2
STEPS = np.random.default_rng(5).multinomial(60, np.ones(EXPERTS) / EXPERTS, (2, 3))
"""(step, layer, expert): 30 tokens a step."""
COUNTS = STEPS.sum(axis=0)
SLOT_EXPERT = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]] * 3)


def table(rows: Any, header: str, delimiter: str = ",") -> str:
    lines = [delimiter.join(map(str, row)) for row in rows]
    return "\n".join([header, *lines]) + "\n"


def long_rows(counts: Any) -> list[tuple[int, int, int]]:
    return [(layer, expert, count) for layer, row in enumerate(counts.tolist()) for expert, count in enumerate(row)]


def by_slot(counts: Any) -> Any:
    """Counts of slots whose replicas have a half each, (..., slot)."""
    shared = counts[..., SLOT_EXPERT[0]].copy()
    shared[..., 8:] //= 2
    shared[..., :2] -= shared[..., 8:]
    return shared


def write(path: Path, value: Any) -> Path:
    """Write a value as its file's suffix says."""
    if path.suffix == ".npy":
        np.save(path, value)
    elif path.suffix == ".npz":
        np.savez(path, **value)
    elif path.suffix == ".safetensors":
        path.write_bytes(safetensors(value))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pip install 'moereplay[parquet]'")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(value), path)
    elif path.suffix == ".pt":
        torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
        is_dict = isinstance(value, dict)
        tensors = {k: torch.tensor(v) for k, v in value.items()} if is_dict else torch.tensor(value)
        torch.save(tensors, path)
    elif isinstance(value, str):
        path.write_text(value, "utf-8")
    else:
        path.write_text(json.dumps(value, default=lambda array: array.tolist()), "utf-8")
    return path


def stats_line(step: int) -> str:
    line = {"record_type": "eplb_load_stats", "step": step, "num_ranks": 2}
    line |= {"expert_load": by_slot(STEPS[step]).tolist(), "p2l_map": SLOT_EXPERT.tolist()}
    return json.dumps(line)


COLUMNS = dict(zip(("layer", "expert", "count"), np.array(long_rows(COUNTS)).T, strict=True))
BY_LAYER = {n: dict(enumerate(row)) for n, row in enumerate(COUNTS.tolist())}
LAYOUTS: dict[str, Any] = {
    "mindspeed.json": BY_LAYER,
    "named.json": {f"layer_{n}": row for n, row in enumerate(COUNTS.tolist())},
    "sglang2.json": {"rank": 0, "logical_count": COUNTS},
    "sglang3.json": {"logical_count": STEPS},
    "sglang3.pt": {"rank": np.int64(0), "logical_count": STEPS.astype(np.int32)},
    "sglang.csv": table(long_rows(COUNTS), "layer_id,expert_id,count"),
    "other.tsv": table(long_rows(COUNTS), "Layer\tExpert\tTokens", "\t"),
    "wide.csv": table(
        [(n, *row) for n, row in enumerate(COUNTS.tolist())],
        ",".join(["layer", *(f"expert_{e}" for e in range(EXPERTS))]),
    ),
    "matrix.csv": "\n".join(",".join(f"{c:.18e}" for c in row) for row in COUNTS),
    "excel.csv": table(long_rows(COUNTS), "layer;expert;count", ";"),
    "pandas.csv": table(COUNTS.tolist(), ",".join(map(str, range(EXPERTS)))),
    "indexed.csv": table(
        [(n, *row) for n, row in enumerate(COUNTS.tolist())],
        ",".join(["", *map(str, range(EXPERTS))]),
    ),
    "records.json": [dict(zip(COLUMNS, row, strict=True)) for row in long_rows(COUNTS)],
    "columns.json": COLUMNS,
    "records.jsonl": "\n".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in long_rows(COUNTS)),
    "long.parquet": COLUMNS,
    "lists.json": COUNTS,
    "counts.npy": COUNTS.astype(np.uint32),
    "floats.npy": STEPS.astype(np.float32),
    "only.npz": {"whatever": STEPS},
    "counts.npz": {"counts": COUNTS, "names": np.array(["a"])},
    "tensor.pt": STEPS,
    "counts.safetensors": {"expert_counts": COUNTS.astype(np.int32)},
    "window.pt": {"expert_load_window": by_slot(STEPS), "physical_to_logical_map": SLOT_EXPERT},
    "vllm.jsonl": "\n".join([json.dumps({"record_type": "eplb_load_meta"}), stats_line(0), stats_line(1)]),
}
"""The same loads, as tools and people write them."""


def test_every_layout_gives_the_same_loads(tmp_path: Path) -> None:
    wrong = []
    for name, value in LAYOUTS.items():
        loads = read_loads([write(tmp_path / name, value)])
        if loads.per_layer().tolist() != COUNTS.tolist():
            wrong.append((name, loads.per_layer().tolist()))
    assert not wrong


@pytest.mark.extended
def test_loads_are_one_thing_for_the_histogram_and_the_import(tmp_path: Path) -> None:
    histogram = {"ranks": 2, "tokens_per_rank": 8, "layers": 3, "topk": TOPK}
    wanted = generate("histogram", "mixtral-8x7b", **histogram, load=COUNTS).content_id
    wrong = []
    for name, value in LAYOUTS.items():
        path = write(tmp_path / name, value)
        if generate("histogram", "mixtral-8x7b", **histogram, load=path).content_id != wanted:
            wrong.append((name, "histogram"))
        trace = read([path], "counts", topk=TOPK, hidden_size=8).trace
        if trace.load_per_expert().tolist() != COUNTS.tolist():
            wrong.append((name, "import"))
    assert not wrong


def test_files_of_ranks_are_added_up_and_replicas_taken_once(tmp_path: Path) -> None:
    name = "expert_distribution_rank{}_timestamp17.csv"
    own = [
        write(tmp_path / name.format(rank), table(long_rows(part), "layer_id,expert_id,count"))
        for rank, part in enumerate(STEPS)
    ]
    assert read_loads(own).per_layer().tolist() == COUNTS.tolist()
    assert read_loads([tmp_path]).per_layer().tolist() == COUNTS.tolist()
    twins = [
        write(tmp_path / name.format(rank), table(long_rows(COUNTS), "layer_id,expert_id,count")) for rank in (2, 3)
    ]
    loads = read_loads(twins)
    assert loads.per_layer().tolist() == COUNTS.tolist()
    assert "2 ranks saw the tokens of 1" in loads.notices[0]
    assert "--tp" not in loads.notices[0], "no option of who only reads loads"
    assert "--tp 1 keeps all" in read_loads(twins, lambda: None).notices[0]
    assert read_loads(twins, lambda: 1).per_layer().tolist() == (2 * COUNTS).tolist()
    rows = [(rank, *row) for rank, part in enumerate(STEPS) for row in long_rows(part)]
    whole = write(tmp_path / "all.csv", table(rows, "rank,layer,expert,load"))
    assert read_loads([whole]).per_layer().tolist() == COUNTS.tolist()
    rows = [(step, *row) for step, part in enumerate(STEPS) for row in long_rows(part)]
    steps = write(tmp_path / "steps.csv", table(rows, "step,layer,expert,load"))
    assert read_loads([steps]).counts.tolist() == STEPS.tolist()


def test_dense_layers_count_nothing_and_experts_without_tokens_may_be_absent(
    tmp_path: Path,
) -> None:
    padded = np.concatenate([np.zeros((1, EXPERTS), int), COUNTS])
    whole = read_loads([write(tmp_path / "dense.json", {"logical_count": padded})])
    loads = whole.of_used()
    assert (loads.layers, whole.empty(), loads.empty()) == ((1, 2, 3), (0,), ())
    assert loads.counts[0].tolist() == COUNTS.tolist()
    rows = [row for row in long_rows(COUNTS) if row[1] < 6]
    sparse = read_loads([write(tmp_path / "sparse.csv", table(rows, "layer_id,expert_id,count"))])
    full = sparse.of_experts(EXPERTS, "the model")
    assert full.per_layer()[:, :6].tolist() == COUNTS[:, :6].tolist()
    assert not full.per_layer()[:, 6:].any()
    assert "Experts 6 to 7 are not named" in full.notices[-1]
    dense = read_loads([write(tmp_path / "six.npy", COUNTS[:, :6])])
    with pytest.raises(UserError, match="are of 6 experts; the model has 8"):
        dense.of_experts(EXPERTS, "the model")


def test_layers_are_numbered_by_the_model(tmp_path: Path) -> None:
    shape = tracegen.models.load("deepseek-v2-lite")
    layers = shape.moe_layer_index
    counts = np.ones((len(layers), shape.num_experts), int)
    positions = {n: dict(enumerate(row)) for n, row in enumerate(counts.tolist())}
    decoder = dict(zip(layers, positions.values(), strict=True))
    for name, value in (("a.npy", counts), ("b.json", positions), ("c.json", decoder)):
        assert read_loads([write(tmp_path / name, value)]).number_layers(shape).layers == layers
    three = read_loads([write(tmp_path / "d.npy", counts[:3])])
    with pytest.raises(UserError, match=r"of 3 layers; --model deepseek-v2-lite has 26 layers"):
        three.number_layers(shape)
    assert isinstance(shape, ModelShape)
    assert three.number_layers(None).layers is None
    for gap in (0, 3):
        counts = np.ones_like(counts)
        counts[gap] = 0
        loads = read_loads([write(tmp_path / "e.npy", counts)]).number_layers(shape)
        assert (loads.layers, loads.empty()) == (layers, (layers[gap],))


NESTED: Any = []
for _ in range(40):
    NESTED = [NESTED]
IMPOSSIBLE: dict[str, tuple[Any, str]] = {
    "negative.json": ([[1, -2]], "-2 is no count"),
    "fraction.npy": (np.array([[1, 2.5]]), "2.5 is no count"),
    "nan.npy": (np.array([[1, np.nan]]), "nan is no count"),
    "infinite.json": ('{"0": {"0": Infinity, "1": 2}}', "inf is no count"),
    "text.json": ([["1", "2"]], "'1' is no count"),
    "truth.json": ([[True, 2]], "True is no count"),
    "nothing.json": ([[None, 2]], "None is no count"),
    "huge.json": ([[10**30, 2]], "is no count"),
    "large.npy": (np.array([[2**63 - 1, 2**63 - 1]]), "is no count"),
    "unequal.json": ([[1, 2], [3]], "rows of unequal length"),
    "empty.json": ([[0, 0]], "the counts are empty"),
    "none.json": ([], "expected counts"),
    "deep.json": (NESTED, "dimensions; expected counts"),
    "four.npy": (np.ones((2, 2, 2, 2), int), "an array of 4 dimensions"),
    "strings.npy": (np.array([["a"]]), "counts are whole numbers"),
    "word.json": ('"counts"', "'counts'; expected counts"),
    "cut.json": ('{"0": {"0": 1', "not JSON"),
    "keys.json": ({"model": "x", "loss": 3}, "no loads in loss, model; expected"),
    "far.json": ({"0": {"99999999": 1}}, "an expert 99999999"),
    "map.json": ({"physical_to_logical_map": [[0, 1]]}, "it is a map of experts: --placement"),
    "tokens.npz": ({"expert_ids": np.zeros((2, 1, 2), int)}, "it holds tokens: .*arrays"),
    "several.npz": ({"a": COUNTS, "b": COUNTS}, "no loads in a, b"),
    "twice.csv": ("layer_id,expert_id,count\n0,1,2\n0,1,3\n", "layer 0, expert 1 is there 2 times"),
    "cells.csv": ("layer_id,expert_id,count\n0,1\n", "line 2: 2 fields of 3"),
    "gap.csv": ("layer_id,expert_id,count\n0,1,\n", "'' is no count"),
    "header.csv": ("a,b\n1,2\n", "columns a, b; expected layer_id,expert_id,count"),
    "rows.csv": ("layer_id,expert_id,count\n", "no rows"),
    "wide.csv": ("layer,expert_0,expert_2\n0,1,2\n", "columns layer, expert_0, expert_2"),
    "span.csv": ("layer_id,expert_id,count\n0,99999999,1\n", "at most 10000000 counts"),
    "slots.json": ({"expert_load": [[1, 2]], "p2l_map": [[0, 1, 2]]}, "counts of .* p2l_map is"),
    "file.txt": ("1", "loads are read from .json"),
}


def test_impossible_loads_are_refused_in_a_line_that_names_the_file(tmp_path: Path) -> None:
    wrong = []
    for name, (value, said) in IMPOSSIBLE.items():
        path = write(tmp_path / name, value)
        try:
            read_loads([path])
            wrong.append((name, "read"))
        except UserError as error:
            if not re.search(said, str(error)) or "\n" in str(error):
                wrong.append((name, str(error)))
            elif name != "empty.json" and str(path) not in str(error):
                wrong.append((name, f"not named: {error}"))
    assert not wrong


def test_an_expert_with_more_tokens_than_there_are_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "hot.json", {"0": {"0": 10, "1": 1, "2": 1}})
    with pytest.raises(UserError, match="an expert has 10 tokens of only 6; is topk 2 right"):
        read([path], "counts", topk=2, hidden_size=8, num_experts=EXPERTS)


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", {"rank": 0, "logical_count": COUNTS})
    other = write(tmp_path / "b.json", {"rank": 1, "logical_count": STEPS[:1]})
    with pytest.raises(UserError, match="counts of 2 ranks differ"):
        read_loads([one, other])
    again = write(tmp_path / "again.json", {"rank": 1, "logical_count": COUNTS})
    assert read_loads([one, again]).per_layer().tolist() == COUNTS.tolist()
    later = write(tmp_path / "c.npy", STEPS)
    assert read_loads([later, write(tmp_path / "d.npy", COUNTS)]).counts.shape == (3, 3, 8)
    with pytest.raises(UserError, match="differ in layers or experts"):
        read_loads([later, write(tmp_path / "e.npy", COUNTS[:2])])
    ranks = write(tmp_path / "x_rank0.csv", table(long_rows(COUNTS), "layer_id,expert_id,count"))
    with pytest.raises(UserError, match="some of these files are of one rank"):
        read_loads([ranks, later])
    twin = write(tmp_path / "y_rank0.csv", table(long_rows(COUNTS), "layer_id,expert_id,count"))
    with pytest.raises(UserError, match="rank 0 is there twice"):
        read_loads([ranks, twin])
    with pytest.raises(UserError, match="no such file"):
        read_loads([tmp_path / "gone.npy"])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=r"a folder without .*meta_info\.json of --format counts"):
        read_loads([tmp_path / "nothing"])


def test_formats_of_engines_take_loads_where_they_write_some(tmp_path: Path) -> None:
    for name, format in (
        ("sglang.csv", "sglang"),
        ("sglang2.json", "sglang"),
        ("mindspeed.json", "sglang"),
        ("tensor.pt", "sglang"),
        ("mindspeed.json", "tensorrt-llm"),
        ("counts.npy", "tensorrt-llm"),
    ):
        path = write(tmp_path / name, LAYOUTS[name])
        made = read([path], format, topk=TOPK, hidden_size=8)
        assert made.trace.load_per_expert().tolist() == COUNTS.tolist(), (name, format)
        assert "Co-activation and locality are not real" in " ".join(made.notices)


def test_ids_that_are_given_for_counts_are_suspected(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).random((12, 2, 16)).argsort(axis=2)[..., :3]
    told = read_loads([write(tmp_path / "ids.npy", ids)]).notices
    assert any("no count is there twice" in note for note in told)
    assert not read_loads([write(tmp_path / "counts.npy", STEPS)]).notices
    distinct = np.tile(np.arange(8) + 1, (5, 2, 1)) * 10
    assert not read_loads([write(tmp_path / "even.npy", distinct)]).notices


def test_a_layer_that_counts_nothing_is_what_the_model_says(tmp_path: Path) -> None:
    """The rule is that of ids: dense, or with experts and not recorded."""
    shape = tracegen.models.load("deepseek-v2-lite")
    counts = np.ones((shape.num_layers, shape.num_experts), int) * 6
    counts[[0, 7]] = 0
    path = write(tmp_path / "a.npy", counts)
    made = read([path], "counts", model=shape.name)
    source = made.trace.info.provenance["source"]
    assert (source["dense_layers_left_out"], source["layers_not_recorded"]) == ([0], [7])
    assert set(made.trace.moe_layer_index.tolist()) == set(range(1, 27)) - {7}
    stated = {"topk": 6, "hidden_size": 8, "moe_layers": range(10, 37)}
    assert read([path], "counts", **stated).trace.moe_layer_index.tolist() == [
        number for number in range(11, 37) if number != 17
    ]
    alone = read([path], "counts", topk=6, hidden_size=8).trace.info.provenance["source"]
    assert alone["empty_layers_left_out"] == [0, 7]
