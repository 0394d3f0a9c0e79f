"""What cannot be captured is refused; what was killed or runs in parallel is not lost."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401  # before all that imports torch
import numpy as np
import pytest
import tiny_families
import torch
from loops import every
from replay_proof import DECODED, EXPECTED, REAL, captured, generate, prompts

import tracegen
from tracegen.capture import generation, recover
from tracegen.file import writer
from tracegen.library import verify


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_beams": 2}, "beam search reorders"),
        ({"prompt_lookup_num_tokens": 2}, "speculative decoding"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_it_runs(
    model: Any, out: Path, options: dict[str, Any], reason: str
) -> None:
    ids, mask = prompts()
    with (
        pytest.raises(tracegen.UserError, match=reason),
        tracegen.capture(model, out),
    ):
        model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=2, **options)
    assert list(out.parent.iterdir()) == []


def test_a_bypassed_hook_is_noticed(out: Path) -> None:
    fused = tiny_families.tiny_model("gpt_oss")
    block = fused.model.layers[1].mlp
    block.forward = lambda hidden: (hidden, None)
    with pytest.raises(tracegen.UserError, match="1 of 3 MoE layers were not seen"):
        captured(fused, out)
    for layer in fused.model.layers:
        layer.mlp.forward = lambda hidden: (hidden, None)
    with pytest.raises(tracegen.UserError, match=r"no site fired.*use_kernels"):
        captured(fused, out)


def test_rows_that_are_not_the_tokens_are_refused(out: Path) -> None:
    odd = tiny_families.tiny_model("mixtral")
    experts = odd.model.layers[1].mlp.experts
    experts.register_forward_pre_hook(lambda _m, args: tuple(a[:-1] for a in args))
    with pytest.raises(tracegen.UserError, match=r"layer 1 .* routed 20 rows.*3 x 7 = 21"):
        captured(odd, out)


def test_models_without_routing_and_misuse_are_refused(model: Any, out: Path) -> None:
    with pytest.raises(tracegen.UserError, match="is it a Mixture-of-Experts"):
        tracegen.capture(torch.nn.Linear(2, 2), out)
    with pytest.raises(tracegen.UserError, match="not str"):
        tracegen.capture("mixtral", out)
    with pytest.raises(tracegen.UserError, match="did not run"), tracegen.capture(model, out):
        pass
    with pytest.raises(tracegen.UserError, match="not within a forward pass"):  # noqa: SIM117
        with tracegen.capture(model, out):
            model.model(input_ids=prompts()[0])
    out.touch()
    with pytest.raises(tracegen.UserError, match="exists"), tracegen.capture(model, out):
        generate(model)


def test_an_error_in_the_block_keeps_what_was_recorded(model: Any, out: Path) -> None:
    with pytest.raises(KeyError) as caught, tracegen.capture(model, out):
        generate(model)
        raise KeyError("the user's own")
    assert f"{REAL + DECODED} tokens were captured" in caught.value.__notes__[0]
    partial = out.with_name("trace.h5.partial")
    with pytest.raises(tracegen.UserError, match="killed capture left"):
        captured(model, out)
    assert tracegen.load(recover([partial])[0]).num_tokens == REAL + DECODED
    partial.unlink()


def test_a_trace_that_cannot_be_written_keeps_what_was_recorded(model: Any, out: Path) -> None:
    with (
        pytest.raises(tracegen.UserError, match="exists") as caught,
        tracegen.capture(model, out),
    ):
        generate(model)
        out.touch()  # someone else was faster
    partial = out.with_name("trace.h5.partial")
    assert str(partial) in caught.value.__notes__[0]
    assert recover([partial], out.with_name("other.h5"))[0].is_file()


def test_a_second_interrupt_leaves_no_half_trace(model: Any, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the trace is written, and while the hooks are taken off."""
    partial = out.with_name("trace.h5.partial")
    for owner, name in ((writer, "_describe"), (generation, "unwatch")):
        with (
            monkeypatch.context() as patch,
            pytest.raises(KeyboardInterrupt) as caught,
            tracegen.capture(model, out),
        ):
            generate(model)
            patch.setattr(owner, name, lambda *_: signal.raise_signal(signal.SIGINT))
        assert f"{REAL + DECODED} tokens were captured" in caught.value.__notes__[0]
        assert list(out.parent.iterdir()) == [partial]
        assert tracegen.load(recover(partial)[0]).num_tokens == REAL + DECODED
        for path in (out, partial):
            path.unlink()
        model.__dict__.pop("generate", None)


def test_a_full_disk_stops_the_capture_with_a_reason(model: Any, out: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with (
            pytest.raises(tracegen.UserError, match=r"partial: cannot be written") as caught,
            tracegen.capture(model, out, buffer_bytes=1),
        ):
            generate(model)
            size = out.with_name("trace.h5.partial").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
            generate(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "recover" in caught.value.__notes__[-1]
    assert tracegen.load(recover(out.with_name("trace.h5.partial"))[0]).num_tokens >= REAL


KILLED = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import tiny_families, tracegen
from replay_proof import generate
model = tiny_families.tiny_model("mixtral")
with tracegen.capture(model, sys.argv[2], buffer_bytes=1):
    while True:
        generate(model)
        print("once", flush=True)
"""


@pytest.mark.extended
def test_a_killed_capture_can_be_recovered(tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    here = str(Path(__file__).parent)
    process = subprocess.Popen([sys.executable, "-c", KILLED, here, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    path, _ = recover([tmp_path / "a.h5.partial"])
    trace = tracegen.load(path)
    assert trace.num_tokens >= REAL + DECODED
    first = trace.tokens.request < 3
    assert sorted(zip(trace.tokens.request[first], trace.tokens.position[first], strict=True)) == [
        (request, position) for request, position, _ in EXPECTED
    ]


MODES = ["gloo", "environment"]


@pytest.fixture(scope="module")
def ranks_wrote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each mode, with what its two ranks wrote."""
    folder, here = tmp_path_factory.mktemp("ranks"), Path(__file__).parent
    for mode in MODES:
        (folder / mode).mkdir()
    given = [path for path in [os.environ.get("PYTHONPATH")] if path]
    shared = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *given])}
    shared.pop("WORLD_SIZE", None)
    command = [sys.executable, here / "rank_worker.py", *(folder / mode for mode in MODES)]
    subprocess.run(command, env=shared, timeout=300, check=True)
    return folder


@pytest.mark.extended
@every("mode", MODES)
def test_two_ranks_write_one_trace(ranks_wrote: Path, mode: str) -> None:
    out = ranks_wrote / mode / "a.h5"
    trace = tracegen.load(out)
    assert verify(out)
    rank, request = trace.tokens.rank, trace.tokens.request
    assert rank is not None
    assert sorted(set(zip(rank.tolist(), request.tolist(), strict=True))) == [
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 3),
    ]
    assert np.bincount(rank).tolist() == [2 * (5 + 2), 2 * (6 + 2)]
    assert trace.num_steps == 3
    assert not list(out.parent.glob("*.partial"))
