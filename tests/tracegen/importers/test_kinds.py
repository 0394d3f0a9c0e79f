"""Kinds of input that people have, and what each gives."""

from pathlib import Path

import kinds_of_engines  # noqa: F401 - adds its rows
import kinds_of_tables  # noqa: F401 - adds its rows
import numpy as np
from dumps import EXPERTS, SIZES, ids_of
from kinds import GIVES, IDS, KINDS, TOKENS
from kinds_of_arrays import model, npz

import tracegen
from tracegen.importers import read_as_typed


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


def test_every_kind_gives_what_it_says(tmp_path: Path) -> None:
    wrong = []
    for number, (name, make) in enumerate(KINDS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        given, (what, _, said) = make(folder), GIVES[name].partition(": ")
        sizes = {} if "model" in given.options else SIZES
        try:
            made = read_as_typed(given.paths, given.format, {**sizes, **given.options})
        except tracegen.UserError as error:
            found, told = "refused", str(error)
        else:
            found, told = "read", " ".join(made.notices)
            if not np.array_equal(ids_of(made.trace), given.ids):
                found = "read as others"
        if found != what or said not in told or (found == "refused" and not said):
            wrong.append(f"{name}: {found}: {told}")
    assert not wrong, "\n".join(wrong)
