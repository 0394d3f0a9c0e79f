"""Ranks that had no token keep their place: in the import, in the file, and in what replays it."""

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from dumps import SIZES, ids_of, megatron_files, phases, routing, sglang_record

import tracegen
from replay.model.work.batch import form_batch
from tracegen.file.writer import write
from tracegen.importers import read
from tracegen.library.convert import convert


def idle(path: Path, ranks: list[int], **arrays: Any) -> Path:
    """Four tokens on each of some ranks, in one decode step, of requests of their own."""
    tokens = 4 * len(ranks)
    columns = {"request": np.arange(tokens), "step": np.zeros(tokens, int), "phase": [1] * tokens}
    np.savez(path, expert_ids=routing(tokens), rank=np.repeat(ranks, 4), **columns, **arrays)
    return path


def test_the_last_gpu_may_be_idle(tmp_path: Path) -> None:
    path = idle(tmp_path / "r.npz", [0, 1, 3, 4, 5, 6])
    with pytest.raises(tracegen.UserError, match=r"not dealt evenly to 7 GPUs.*such as ranks 8"):
        read([path], "arrays", **SIZES)
    made = read([path], "arrays", ranks=8, **SIZES)
    trace = made.trace
    assert trace.num_ranks == 8
    assert not any("How many GPUs" in notice for notice in made.notices)
    assert form_batch(trace).num_ranks == 8
    uneven = read([path], "arrays", ranks=7, **SIZES)
    assert uneven.trace.num_ranks == 7
    assert "16 experts are not dealt evenly to 7 GPUs." in uneven.notices
    with pytest.raises(tracegen.UserError, match="ranks 6: the dump is of 7 ranks or more"):
        read([path], "arrays", ranks=6, **SIZES)
    with pytest.raises(tracegen.UserError, match="import it with --ranks 16"):
        form_batch(trace, num_ranks=16)
    stated = read([idle(path, [0, 1, 3, 4, 5, 6], num_ranks=8)], "arrays", **SIZES).trace
    assert stated.content_id == trace.content_id
    with pytest.raises(tracegen.UserError, match="ranks 16 contradicts the dump, which has 8"):
        read([path], "arrays", ranks=16, **SIZES)


def test_a_file_says_how_many_gpus_there_were(tmp_path: Path) -> None:
    trace = read([idle(tmp_path / "r.npz", [0, 1])], "arrays", ranks=4, **SIZES).trace
    out = tmp_path / "r.h5"
    assert write(trace, out) == trace.content_id
    assert tracegen.load(out).num_ranks == tracegen.load(out, tokens=slice(0, 4)).num_ranks == 4
    with h5py.File(out) as file:
        assert file.attrs["schema_version"].decode() == "1.1.0"
    two = read([tmp_path / "r.npz"], "arrays", ranks=2, **SIZES).trace
    assert two.content_id != trace.content_id
    write(two, tmp_path / "two.h5")
    with h5py.File(tmp_path / "two.h5") as file:
        assert file.attrs["schema_version"].decode() == "1.0.0"
    # A part without a token of the last GPU is still of as many.
    part = tmp_path / "part.h5"
    assert convert(str(tmp_path / "two.h5"), part, tokens="0:4").version == "1.1.0"
    assert tracegen.load(part).num_ranks == 2
    assert convert(str(out), tmp_path / "without.h5", without=("rank",)).version == "1.0.0"
    with pytest.raises(tracegen.UserError, match=r"1\.0 cannot say that there were 4 GPUs"):
        convert(str(out), tmp_path / "old.h5", to="1.0")
    few = dataclasses.replace(two, info=dataclasses.replace(two.info, num_ranks=1))
    with pytest.raises(tracegen.UserError, match="num_ranks is 1, and a token is on rank 1"):
        few.validate()
    with h5py.File(out, "r+") as file:
        file["tokens/rank"].attrs["num_ranks"] = 2**20
    with pytest.raises(tracegen.UserError, match="'num_ranks' is 1048576"):
        tracegen.load(out)


def test_pairs_of_ranks_are_sources_and_idle_pairs_too(tmp_path: Path) -> None:
    ids, paths = routing(12), []
    for rank in (0, 1, 4, 5):
        rows = slice(rank // 2 * 4, rank // 2 * 4 + 4)
        paths.append(tmp_path / f"{rank}.npz")
        np.savez(paths[-1], expert_ids=ids[rows], rank=rank, layers=[0, 1], request=range(4))
    trace = read(paths, "arrays", ranks=8, **SIZES).trace
    assert trace.num_ranks == 4
    assert trace.tokens.rank is not None
    assert np.bincount(trace.tokens.rank).tolist() == [4, 0, 4]
    with pytest.raises(tracegen.UserError, match="ranks 7: no multiple of 2 ranks"):
        read(paths, "arrays", ranks=7, **SIZES)
    # A process whose file has no row was there.
    np.savez(tmp_path / "7.npz", expert_ids=ids[:0], rank=7, layers=[0, 1], request=[])
    assert read([*paths, tmp_path / "7.npz"], "arrays", **SIZES).trace.num_ranks == 4


def test_ranks_with_other_requests_are_no_replicas(tmp_path: Path) -> None:
    ids = np.concatenate([routing(4), routing(4)])
    columns = {"rank": [0] * 4 + [1] * 4, "step": [0] * 8}
    np.savez(tmp_path / "r.npz", expert_ids=ids, request=range(8), **columns)
    assert read([tmp_path / "r.npz"], "arrays", **SIZES).trace.num_ranks == 2
    with pytest.raises(tracegen.UserError, match="tp 2: ranks 0 and 1 have other requests"):
        read([tmp_path / "r.npz"], "arrays", tp=2, **SIZES)
    # Processes may count their requests by themselves: then the routes tell.
    np.savez(tmp_path / "r.npz", expert_ids=ids, request=[*range(4)] * 2, **columns)
    assert read([tmp_path / "r.npz"], "arrays", **SIZES).trace.num_ranks is None
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    paths = []
    for rank, tokens in ((0, [1, 2, 3, 4]), (1, [5, 6, 7, 8])):
        record = sglang_record(ids[:4], [*range(4)], 1, 1, [4], tokens=tokens)
        paths.append(tmp_path / f"{rank}.pt")
        mapping = torch.arange(16).repeat(2, 1)
        torch.save(
            {"records": [{**record, "rank": rank}], "last_physical_to_logical_map": mapping},
            paths[-1],
        )
    assert read(paths, "sglang", hidden_size=8).trace.num_tokens == 8


def test_recorders_tell_of_ranks_that_were_idle(tmp_path: Path) -> None:
    ids = np.sort(routing(8), axis=2)
    paths = megatron_files(tmp_path / "m", {(0, rank): ids[4 * rank :][:4] for rank in (0, 1)})
    for rank in (2, 3):
        paths.append(tmp_path / "m" / f"router_trace_rank{rank}.jsonl")
        paths[-1].touch()
    trace = read(paths, "megatron", pp=1, **SIZES).trace
    assert trace.num_ranks == 4
    assert read([tmp_path / "m"], "megatron", pp=1, **SIZES).trace.content_id == trace.content_id
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    paths = []
    for rank in range(4):
        few = ids[2 * rank :][:2]
        record = sglang_record(few, [0, 1], 1, 1 if rank < 2 else 4, [2], tokens=[rank, 9])
        paths.append(tmp_path / f"{rank}.pt")
        mapping = torch.arange(16).repeat(2, 1)
        torch.save(
            {"records": [{**record, "rank": rank}], "last_physical_to_logical_map": mapping},
            paths[-1],
        )
    assert read(paths, "sglang", hidden_size=8).trace.num_ranks == 4


def test_layers_that_a_recorder_leaves_empty_are_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")
    ids = np.full((4, 4, 3), -1)
    ids[:, 2:] = routing(4)
    record = sglang_record(ids, [*range(4)], 1, 1, [4])
    mapping = torch.arange(16).repeat(4, 1)
    torch.save({"records": [record], "last_physical_to_logical_map": mapping}, tmp_path / "r.pt")
    made = read([tmp_path / "r.pt"], "sglang", hidden_size=8)
    assert made.trace.moe_layer_index.tolist() == [2, 3]
    (said,) = [notice for notice in made.notices if "hold no route" in notice]
    assert said.startswith("2 of 4 layers hold no route, only zeros or -1, and were left out: [0, 1]")
    assert made.trace.info.provenance["source"]["empty_layers_left_out"] == [0, 1]


def test_decoded_tokens_are_steps_of_their_own(tmp_path: Path) -> None:
    ids, path = routing(8), tmp_path / "r.npz"
    requests = {"request": [0, 0, 0, 1, 1, 1, 0, 1], "position": [0, 1, 2, 0, 1, 2, 3, 3]}
    np.savez(path, expert_ids=ids, **requests)
    in_order = ids[[0, 1, 2, 6, 3, 4, 5, 7]]
    lengths = tmp_path / "prompts.npy"
    np.save(lengths, [2, 3])
    for options, phase, step in (
        ({}, [0] * 8, [0] * 4 + [1] * 4),
        ({"prompt_len": 2}, [0, 0, 1, 1] * 2, [0, 0, 1, 2, 3, 3, 4, 5]),
        ({"prompts": lengths}, [0, 0, 1, 1, 0, 0, 0, 1], [0, 0, 1, 2, 3, 3, 3, 4]),
    ):
        trace = read([path], "arrays", **options, **SIZES).trace
        assert phases(trace) == phase
        assert trace.tokens.step.tolist() == step
        np.testing.assert_array_equal(ids_of(trace)[step.index(1) :][:1], in_order[step.index(1)][None])
    # Steps as recorded tell phases too: one row of a request in a step is a decoded token.
    np.savez(path, expert_ids=ids, step=[0] * 6 + [1] * 2, **requests)
    assert phases(read([path], "arrays", **SIZES).trace) == [0] * 6 + [1] * 2
    np.savez(path, expert_ids=ids, phase=[0] * 8, **requests)
    with pytest.raises(tracegen.UserError, match=r"prompt_len 2 is of no use.*where prompts end"):
        read([path], "arrays", prompt_len=2, **SIZES)


def test_rows_that_end_a_step_again_and_again_are_left_out_on_demand(tmp_path: Path) -> None:
    dummy = np.broadcast_to(np.arange(3), (3, 2, 3))
    ids = np.concatenate([routing(4), dummy, routing(4, seed=1), dummy[:2]])
    np.savez(tmp_path / "r.npz", expert_ids=ids, step=[0] * 7 + [1] * 6)
    made = read([tmp_path / "r.npz"], "arrays", **SIZES)
    assert any("5 rows at the end of steps (2)" in notice for notice in made.notices)
    trace = read([tmp_path / "r.npz"], "arrays", drop_repeats=True, **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), np.concatenate([routing(4), routing(4, seed=1)]))


def test_a_mask_of_its_own_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", expert_ids=routing(5))
    np.save(tmp_path / "mask.npy", np.array([0, 1, 1, 1, 0]))
    mask = {"mask": tmp_path / "mask.npy"}
    trace = read([tmp_path / "r.npz"], "arrays", **mask, **SIZES).trace
    np.testing.assert_array_equal(ids_of(trace), routing(5)[1:4])
    np.savez(tmp_path / "r.npz", expert_ids=routing(5), valid=[1] * 5)
    with pytest.raises(tracegen.UserError, match="mask was given, and the file has a mask"):
        read([tmp_path / "r.npz"], "arrays", **mask, **SIZES)
    np.save(tmp_path / "mask.npy", np.arange(5))
    with pytest.raises(tracegen.UserError, match="a mask of ones, and zeros for padding"):
        read([write_ids(tmp_path)], "arrays", **mask, **SIZES)


def write_ids(folder: Path) -> Path:
    np.save(folder / "ids.npy", routing(5))
    return folder / "ids.npy"
