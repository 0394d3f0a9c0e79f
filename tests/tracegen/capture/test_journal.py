"""A killed capture leaves a file that can be read; a damaged one is refused in one line."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import tracegen
from replay.cli.app import app
from tracegen.capture import finish, ranks, recover
from tracegen.capture.batch import StepRows
from tracegen.capture.recorder import Recorder
from tracegen.file.journal import BlockLayout, JournalWriter, open_journal
from tracegen.library import verify

LAYOUT = BlockLayout(num_layers=2, topk=2, num_experts=6, weights=True, token_ids=False)


def head(rank: int = 0, session: str = "s") -> dict[str, Any]:
    return {
        "rank": rank,
        "session": session,
        "model": {"num_experts": 6, "top_k": 2, "hidden_size": 16, "model_type": "tiny"},
        "moe_layer_index": [1, 3],
        "title": "by hand",
    }


def block(first_step: int, rows: int, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed + first_step)
    ids = draw.random((2, rows, 6)).argsort(axis=2)[:, :, :2].astype(np.uint8)
    return {
        "step": np.arange(first_step, first_step + rows, dtype=np.uint32),
        "request": np.zeros(rows, np.uint32),
        "position": np.arange(first_step, first_step + rows, dtype=np.uint32),
        "phase": np.ones(rows, np.uint8),
        "flags": np.zeros((2, rows), np.uint8),
        "expert_ids": ids,
        "gate_weights": np.full((2, rows, 2), 0.5, np.float16),
    }


def write(path: Path, *, rank: int = 0, done: bool = False, seed: int = 0, blocks: int = 3) -> Path:
    journal = JournalWriter(path, LAYOUT, head(rank))
    for number in range(blocks):
        journal.append(block(4 * number, 4, seed))
    if done:
        journal.finish({"dropped": {"padding": 5}})
    else:
        journal.close()
    return path


def test_a_torn_block_is_lost_and_the_others_are_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5.partial")
    path.write_bytes(path.read_bytes()[:-3])
    out, digest = recover([path])
    assert out == tmp_path / "a.h5"
    trace = tracegen.load(out)
    assert trace.num_tokens == 8
    np.testing.assert_array_equal(trace.expert_ids[:, 4:], block(4, 4)["expert_ids"])
    assert "was killed" in trace.info.provenance["notes"]
    assert verify(out) == digest
    assert path.is_file()


class Stopping:
    """A file that is written to in parts, and stops the process after some of them."""

    def __init__(self, file: Any, parts: int) -> None:
        self.file, self.parts = file, parts

    def write(self, data: Any) -> int:
        written = int(self.file.write(data[:50]))
        self.parts -= 1
        if self.parts == -1:  # only once
            raise KeyboardInterrupt
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_block_is_written_once_whenever_an_interrupt_comes(tmp_path: Path) -> None:
    """Within a record, when it is whole but that is not noted yet, and not at all."""
    path = tmp_path / "a.h5.partial"
    for parts in range(6):
        layout = BlockLayout(num_layers=2, topk=2, num_experts=6, weights=True, token_ids=False)
        recorder = Recorder(path, layout, [1, 3], head(), buffer_bytes=1)
        rows = StepRows(
            keep=np.ones(4, np.bool_),
            dropped={},
            phase=np.zeros(4, np.uint8),
            request=np.arange(4, dtype=np.uint32),
            position=np.zeros(4, np.uint32),
        )
        ids = [np.array([[0, 1]] * 4)] * 2
        weights = [np.full((4, 2), 0.5)] * 2
        recorder.add(0, rows, [0, 1], ids, weights, None)
        recorder.settle()
        recorder._journal._file = Stopping(recorder._journal._file, parts)  # type: ignore[assignment]  # a stand-in
        recorder.add(1, rows, [0, 1], ids, weights, None)
        try:
            recorder.settle()
        except KeyboardInterrupt:
            assert parts < 4
        recorder.close()
        journal = open_journal(path)
        assert journal.torn_bytes == 0
        assert [block["step"][0] for block in journal.read()] == [0, 1], parts
        path.unlink()


def test_a_full_disk_keeps_what_fits(tmp_path: Path) -> None:
    path = tmp_path / "a.h5.partial"
    journal = JournalWriter(path, LAYOUT, head())
    journal.append(block(0, 4))
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
    try:
        with pytest.raises(tracegen.UserError, match=r"a\.h5\.partial: cannot be written \(File too"):
            journal.append(block(4, 4))
        with pytest.raises(tracegen.UserError, match="cannot be written"):
            JournalWriter(tmp_path / "b.h5.partial", LAYOUT, {"title": "x" * size})
        with pytest.raises(tracegen.UserError, match=r"cannot write .*other\.h5: "):
            recover(path, tmp_path / "other.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    journal.append(block(4, 4))  # there is room again
    journal.close()
    assert open_journal(path).num_rows == 8


def test_someone_who_takes_a_journal_for_a_trace_is_told_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5.partial")
    for use in (tracegen.load, verify):
        with pytest.raises(tracegen.UserError, match=r"12 tokens x 2 layers.*trace recover"):
            use(path)


def test_ranks_become_one_trace_in_step_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"a.h5.rank{r}.partial", rank=r, done=True, seed=100 * r) for r in (0, 1)]
    out, _ = recover(list(reversed(paths)))
    trace = tracegen.load(out)
    assert trace.tokens.rank is not None
    assert trace.tokens.step.tolist() == sorted([*range(12), *range(12)])
    assert trace.tokens.rank.tolist() == [0, 1] * 12
    assert trace.tokens.request.tolist() == [0, 1] * 12
    np.testing.assert_array_equal(trace.expert_ids[:, 1:8:2], block(0, 4, seed=100)["expert_ids"], err_msg="rank 1")
    assert trace.info.provenance["dropped"] == [{"rows": 10, "why": "padding"}]


def test_tensor_parallel_replicas_are_recorded_once(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"a.h5.rank{r}.partial", rank=r, done=True) for r in (0, 1, 2)]
    trace = tracegen.load(recover(paths)[0])
    assert trace.num_tokens == 12
    assert trace.tokens.rank is None
    assert "2 further ranks recorded the same rows" in trace.info.provenance["notes"]


def test_the_last_rank_may_have_no_token(tmp_path: Path) -> None:
    paths = []
    for rank, tokens in ((0, 8), (1, 8), (2, 0)):
        journal = JournalWriter(tmp_path / f"a.h5.rank{rank}.partial", LAYOUT, head(rank))
        if tokens:
            journal.append(block(0, tokens, seed=rank))
        journal.finish({})
        paths.append(journal.path)
    assert tracegen.load(recover(paths)[0]).num_ranks == 3


def test_of_each_tensor_parallel_group_one_rank_is_kept(tmp_path: Path) -> None:
    """Ranks 0 and 1 share a batch, 2 and 3 another; blocks end where the clock said."""
    paths = []
    for rank in range(4):
        journal = JournalWriter(tmp_path / f"a.h5.rank{rank}.partial", LAYOUT, head(rank))
        whole = block(0, 8, seed=rank // 2)
        cut = 3 + rank
        for rows in (slice(0, cut), slice(cut, 8)):
            journal.append({n: a[:, rows] if a.ndim > 1 else a[rows] for n, a in whole.items()})
        journal.finish({})
        paths.append(journal.path)
    trace = tracegen.load(recover(paths)[0])
    assert trace.tokens.rank is not None
    assert np.bincount(trace.tokens.rank).tolist() == [8, 8]
    assert "2 further ranks recorded the same rows" in trace.info.provenance["notes"]


def test_parts_of_different_captures_do_not_mix(tmp_path: Path) -> None:
    first = write(tmp_path / "a.rank0.partial")
    other = JournalWriter(tmp_path / "a.rank1.partial", LAYOUT, head(1, "another"))
    other.append(block(0, 2))
    other.close()
    with pytest.raises(tracegen.UserError, match="not of one capture"):
        recover([first, other.path])


def test_a_rank_that_never_finishes_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.h5.rank0.partial", done=True)
    with pytest.raises(tracegen.UserError, match=r"ranks \[1\] did not finish"):
        ranks.wait_for_all(tmp_path / "a.h5", ranks.World(0, 2, "s"), wait_s=0.1)


def test_what_is_no_journal_or_empty_is_refused(tmp_path: Path, tiny_file: Path) -> None:
    with pytest.raises(tracegen.UserError, match="not the journal"):
        open_journal(tiny_file)
    with pytest.raises(tracegen.UserError, match="no rows"):
        recover([write(tmp_path / "b.partial", blocks=0)])
    with pytest.raises(tracegen.UserError, match=r"nosuch\.partial: no such file"):
        recover(tmp_path / "nosuch.partial")
    whole = write(tmp_path / "c.h5.partial")
    with pytest.raises(tracegen.UserError, match="two journals are of the same rank"):
        recover([whole, whole])
    with pytest.raises(tracegen.UserError, match="there is no folder"):
        recover(whole, tmp_path / "none" / "c.h5")
    recover(whole)
    with pytest.raises(tracegen.UserError, match=r"c\.h5 exists; overwrite=True"):
        recover(whole)
    done = CliRunner().invoke(app, ["trace", "recover", str(whole)])
    assert done.exit_code == 2
    assert "--force overwrites" in done.output
    done = CliRunner().invoke(app, ["trace", "recover", str(whole), "--force"])
    assert done.exit_code == 0


@settings(max_examples=150)
@given(st.integers(0, 2_000), st.integers(1, 255), st.integers(0, 3))
def test_no_damage_does_more_than_lose_blocks(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    data = bytearray(write(folder / "a.partial").read_bytes())
    data[place % len(data)] ^= change
    (folder / "b.partial").write_bytes(bytes(data[: len(data) - cut]))
    whole = np.concatenate([block(4 * n, 4)["expert_ids"] for n in range(3)], axis=1)
    try:
        journal = open_journal(folder / "b.partial")
    except tracegen.UserError:
        return
    for number, read in enumerate(journal.read()):
        np.testing.assert_array_equal(read["expert_ids"], whole[:, 4 * number : 4 * number + 4])


def test_the_order_of_blocks_does_not_depend_on_the_buffer(tmp_path: Path) -> None:
    one = JournalWriter(tmp_path / "one.partial", LAYOUT, head())
    one.append(block(0, 8))
    one.finish({})
    many = JournalWriter(tmp_path / "many.partial", LAYOUT, head())
    whole = block(0, 8)
    for row in range(8):
        cut = {
            name: array[:, row : row + 1] if array.ndim > 1 else array[row : row + 1] for name, array in whole.items()
        }
        many.append(cut)
    many.finish({})
    digests = {
        finish.finish([open_journal(j.path)], tmp_path / f"{i}.h5", overwrite=False) for i, j in enumerate((one, many))
    }
    assert len(digests) == 1
