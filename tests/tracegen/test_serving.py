"""The recorder inside vLLM's workers, against a stand-in with the parts of vLLM that it uses.

SERVING.md says what was tried with vLLM's own classes.
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracegen.importers import read
from tracegen.serving import vllm
from tracegen.serving.record import PassRecorder

torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")

EXPERTS, TOPK, LAYERS = 16, 3, 4
SIZES: dict[str, Any] = {"num_experts": EXPERTS, "hidden_size": 8}


class Capturer:
    """Of vLLM: a buffer (token, layer, k) that the layers write their rows into."""

    def __init__(self, max_tokens: int, config: Any) -> None:
        self.device_buffer = torch.zeros((max_tokens, LAYERS, TOPK), dtype=torch.int32)

    def capture(self, layer_id: int, topk_ids: Any) -> None:
        self.device_buffer[: len(topk_ids), layer_id] = topk_ids


def bind(model: dict[int, Any], capturer: Capturer) -> None:
    for layer in model:
        model[layer] = lambda ids, layer=layer: capturer.capture(layer, ids)


@pytest.fixture
def runner_class(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A class like vLLM's model runner, whose model routes what the batch brings along."""
    module: Any = ModuleType("routed_experts_capturer")
    module.RoutedExpertsCapturer, module.bind_routed_experts_capturer = Capturer, bind
    monkeypatch.setitem(sys.modules, vllm.CAPTURER, module)

    class Runner:
        max_num_tokens = 64

        def __init__(self, rank: int, layers: list[int], groups: tuple[int, int] = (0, 1), **aux: bool) -> None:
            group, number = groups
            parallel = SimpleNamespace(data_parallel_rank=group, data_parallel_size=number, world_size=4, rank=rank)
            self.vllm_config = SimpleNamespace(parallel_config=parallel, aux_output_config=SimpleNamespace(**aux))
            self.layers = layers

        def load_model(self) -> None:
            self.model: dict[int, Any] = dict.fromkeys(self.layers)

        def prepare_inputs(self, batch: Any) -> Any:
            return batch

        def execute_model(self, batch: Any) -> str:
            if batch is None:
                return "nothing to do"
            made = self.prepare_inputs(batch)
            for layer in self.layers:
                padding = torch.zeros((2, TOPK), dtype=torch.int32)  # rows of a padded batch
                self.model[layer](torch.cat([made.ids[:, layer], padding]))
            return "done"

    return Runner


def batch(ids: Any, requests: dict[str, tuple[int, int, int]], drafts: list[int] | None) -> Any:
    """Of vLLM; requests have their first position, length in the pass, and prompt length."""
    starts = np.cumsum([0, *(length for _, length, _ in requests.values())])
    position = np.concatenate([first + np.arange(n) for first, n, _ in requests.values()])
    padded = torch.from_numpy(np.concatenate([position, [0, 0]]))
    return SimpleNamespace(
        req_ids=list(requests),
        num_tokens=len(ids),
        query_start_loc_np=starts,
        positions=padded,
        prefill_len_np=np.array([prompt for *_, prompt in requests.values()]),
        num_draft_tokens_per_req=None if drafts is None else np.array(drafts),
        ids=torch.from_numpy(ids),
    )


def routing(tokens: int, seed: int) -> Any:
    drawn = np.random.default_rng(seed).random((tokens, LAYERS, EXPERTS))
    return drawn.argsort(axis=2)[..., :TOPK].astype(np.int32)


def test_workers_of_vllm_are_recorded_and_merged(runner_class: Any, tmp_path: Path) -> None:
    """Two pipeline stages of two tensor-parallel ranks: one source of tokens, four layers."""
    first, second = routing(5, 0), routing(4, 1)
    vllm.attach(runner_class, tmp_path)
    vllm.attach(runner_class, tmp_path)  # vLLM calls plug-ins in several places
    for rank in range(4):
        runner = runner_class(rank, [0, 1] if rank < 2 else [2, 3])
        runner.load_model()
        prompts = {"a": (0, 3, 3), "b": (0, 2, 4)}
        assert runner.execute_model(batch(first, prompts, None)) == "done"
        assert runner.execute_model(None) == "nothing to do"
        runner.execute_model(batch(second, {"b": (2, 1, 4), "a": (3, 3, 3)}, [0, 2]))
        runner.moereplay.recorder.flush()
    paths = sorted(tmp_path.glob("*.npz"))
    assert [path.name for path in paths] == [f"rank{rank}-00000.npz" for rank in range(4)]
    made = read(paths, "arrays", **SIZES)
    trace = made.trace
    layers = [trace.layer_ids(layer) for layer in range(4)]
    np.testing.assert_array_equal(np.stack(layers, 1), np.concatenate([first, second[:2]]))
    assert trace.tokens.request.tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert trace.tokens.position.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert trace.tokens.phase.tolist() == [0] * 6 + [1]
    assert trace.tokens.step.tolist() == [0] * 5 + [1] * 2
    assert trace.tokens.rank is None
    assert any("2 rows were dropped: draft tokens" in notice for notice in made.notices)


def test_data_parallel_workers_without_a_token_keep_their_place(runner_class: Any, tmp_path: Path) -> None:
    """Three groups of four tensor-parallel ranks, of which the last had no request."""
    vllm.attach(runner_class, tmp_path)
    for group in range(3):
        for rank in range(4):
            runner = runner_class(rank, [0, 1], (group, 3))
            runner.load_model()
            if group < 2:
                runner.execute_model(batch(routing(5, group), {"a": (0, 5, 5)}, None))
            runner.moereplay.recorder.flush()
    paths = sorted(tmp_path.glob("*.npz"))
    assert len(paths) == 8
    made = read(paths, "arrays", **SIZES)
    assert made.trace.num_ranks == 3
    assert made.trace.tokens.rank.tolist() == [0] * 5 + [1] * 5
    assert not any("is not recorded" in notice for notice in made.notices)


def test_the_first_model_runner_keeps_its_batch_elsewhere(runner_class: Any, tmp_path: Path) -> None:
    class First(runner_class):  # type: ignore[misc]
        def _prepare_inputs(self, scheduled: Any, lengths: Any) -> None:
            pass

        def execute_model(self, scheduled: Any) -> None:
            self._prepare_inputs(scheduled, np.array([3, 3]))
            for layer in self.layers:
                self.model[layer](scheduled.ids[:, layer])

    vllm.attach(runner_class, tmp_path)
    vllm.attach(First, tmp_path)
    runner, ids = First(0, [1, 3]), routing(6, 2)
    runner.load_model()
    runner.input_batch = SimpleNamespace(
        req_ids=["a", "b"],
        num_computed_tokens_cpu=np.array([0, 7, 99]),
        num_prompt_tokens=np.array([3, 8, 99]),
    )
    drafts = {"b": [5]}
    runner.execute_model(SimpleNamespace(ids=torch.from_numpy(ids), scheduled_spec_decode_tokens=drafts))
    runner.moereplay.recorder.flush()
    trace = read(list(tmp_path.glob("*.npz")), "arrays", **SIZES).trace
    np.testing.assert_array_equal(np.stack([trace.layer_ids(0), trace.layer_ids(1)], 1), ids[:5, [1, 3]])
    assert trace.moe_layer_index.tolist() == [1, 3]
    assert trace.tokens.position.tolist() == [0, 1, 2, 7, 8]
    assert trace.tokens.phase.tolist() == [0] * 4 + [1]


def test_a_layer_that_does_not_run_has_no_rows_of_the_pass_before(runner_class: Any, tmp_path: Path) -> None:
    vllm.attach(runner_class, tmp_path)
    runner, ids = runner_class(0, [0, 1]), routing(4, 0)
    runner.load_model()
    runner.execute_model(batch(ids[:2], {"a": (0, 2, 2)}, None))
    runner.layers = [1]  # vLLM's models may leave a layer out
    runner.execute_model(batch(ids[2:], {"a": (2, 2, 2)}, None))
    runner.moereplay.recorder.flush()
    trace = read(list(tmp_path.glob("*.npz")), "arrays", **SIZES).trace
    assert trace.layer_ids(0)[2:].max() == -1
    np.testing.assert_array_equal(trace.layer_ids(1), ids[:, 1])


def test_a_recording_that_would_go_wrong_is_logged_and_the_engine_serves(
    runner_class: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.attach(runner_class, tmp_path)
    passed = batch(routing(2, 0), {"a": (0, 2, 2)}, None)

    def serve(**aux: bool) -> str:
        caplog.clear()
        runner = runner_class(0, [0], **aux)
        runner.load_model()
        if not hasattr(runner, "model") or runner.model[0] is None:
            runner.model = {0: lambda _ids: None}
        assert runner.execute_model(passed) == "done"
        return caplog.text

    assert "vLLM returns routed experts itself" in serve(enable_return_routed_experts=True)
    (tmp_path / "rank0-00000.npz").touch()
    assert "holds a recording of rank 0 already" in serve()
    (tmp_path / "rank0-00000.npz").unlink()
    tmp_path.rmdir()
    tmp_path.write_text("no folder")
    assert "nothing more is recorded: cannot write" in serve()
    tmp_path.unlink()
    passed.query_start_loc_np = "what a later vLLM has"
    text = serve()
    assert "nothing more is recorded" in text
    assert "Traceback" in text
    assert caplog.records[-1].levelname == "ERROR"


def test_the_plug_in_does_nothing_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(vllm.FOLDER, raising=False)
    vllm.register()
    assert not caplog.records
    monkeypatch.setenv(vllm.FOLDER, str(tmp_path))
    monkeypatch.setitem(sys.modules, "vllm", None)
    vllm.register()
    assert "nothing is recorded: MOEREPLAY_RECORD needs a vLLM with RoutedExperts" in caplog.text


def add(recorder: PassRecorder, rows: int, layer: int = 0) -> None:
    columns = {"position": np.arange(rows)}
    recorder.add((layer,), routing(rows, 0)[:, :1], ["x"], np.array([rows]), columns)


def spoiled(folder: Path) -> Callable[[], None]:
    """A folder whose place something else has taken; returns what makes it good again."""
    folder.rmdir()
    folder.write_text("no folder")
    return folder.unlink


def removed(folder: Path) -> Callable[[], None]:
    folder.rmdir()
    return lambda: None


def full(_folder: Path) -> Callable[[], None]:
    """As a full disk: a write fails in the middle of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("spoil", [spoiled, removed, full])
def test_rows_wait_while_nothing_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], Callable[[], None]]
) -> None:
    folder = tmp_path / "recording"
    recorder = PassRecorder(folder, 0, 1)
    repair = spoil(folder)
    try:
        for layer in (0, 0, 1):  # another layer begins another file
            add(recorder, 3, layer)
            recorder.flush()
    finally:
        repair()
    recorder.flush()
    names = [path.name for path in sorted(folder.iterdir())]
    assert names == [f"rank0-{number:05}.npz" for number in range(3)]
    steps = [np.load(path)["step"].tolist() for path in sorted(folder.iterdir())]
    assert steps == [[0] * 3, [1] * 3, [2] * 3]
    assert recorder.lost == 0
    said = [record.getMessage() for record in caplog.records]
    if spoil is not removed:  # a folder that is gone is made anew
        assert said[0].startswith("the recording waits: ")
        assert said[1:] == ["the recording goes on; 0 rows were lost"]


def test_what_does_not_fit_is_counted_and_the_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tracegen.serving.record.HELD_BYTES", 300)
    folder = tmp_path / "recording"
    recorder = PassRecorder(folder, 0, 1)
    repair = spoiled(folder)
    for _ in range(5):
        add(recorder, 3)
        recorder.flush()
    assert recorder.lost == 9
    repair()
    add(recorder, 3)
    recorder.flush()
    assert [np.load(path)["step"][0] for path in sorted(folder.iterdir())] == [0, 1, 5]
    assert "the recording goes on; 9 rows were lost" in caplog.text
    recorder.close()
    assert "rank 0: 9 rows were not recorded" in caplog.text


def test_files_are_written_as_rows_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracegen.serving.record.ROWS_A_FILE", 4)
    recorder = PassRecorder(tmp_path, 2, 4)
    for _ in range(3):
        columns = {"position": np.arange(3)}
        recorder.add((5, 7), routing(3, 0)[:, :2], ["x"], np.array([3]), columns)
    assert [path.name for path in tmp_path.iterdir()] == ["rank2-00000.npz"]
    recorder.flush()
    recorder.flush()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_worker_that_is_killed_has_written_what_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracegen.serving.record.SECONDS_A_FILE", 0.01)
    recorder = PassRecorder(tmp_path, 0, 1)
    recorder.add((0,), routing(1, 0)[:, :1], ["x"], np.array([1]), {"position": np.arange(1)})
    deadline = time.monotonic() + 10
    while not list(tmp_path.glob("rank*.npz")):  # nobody asks for it
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_vllm_finds_the_plug_in() -> None:
    import tomllib

    project = Path(__file__).parents[2] / "pyproject.toml"
    points = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]
    assert points["vllm.general_plugins"] == {"moereplay": "tracegen.serving.vllm:register"}
