"""Measuring, with a GPU that takes a nanosecond for each byte, and where something is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from loops import every

from replay.errors import UserError
from replay.studies.machines import logs, measure


class Tensor:
    """Says to the clock of `gpu` how many bytes its calls move."""

    def __init__(self, gpu, *sides, dtype=1, device="cuda"):
        self.gpu, self.nbytes = gpu, dtype
        self.flushes = sides == (measure.FLUSH_BYTES,) and dtype == 1
        for side in sides:
            self.nbytes *= side

    def t(self):
        return self

    def busy(self, *_given):
        self.gpu.ns += self.nbytes
        self.gpu.flushes += self.flushes
        return self

    zero_ = copy_ = sum = add_ = item = busy


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = self.gpu.ns

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e6


class Capture:
    """A graph that is replayed takes as long as when it was captured."""

    def __init__(self, gpu):
        self.gpu = gpu

    def __call__(self, graph):
        self.graph, graph.gpu = graph, self.gpu
        return self

    def __enter__(self):
        self.begun = self.gpu.ns

    def __exit__(self, *_):
        self.graph.ns = self.gpu.ns - self.begun


class Graph:
    def replay(self):
        self.gpu.ns += self.ns


def torch_of(gpu, *, gpus=1, free=80 << 30, reaches=True, cuda_version="13.0", nccl=True):
    """What `measure` uses of torch."""

    def tensor(*sides, dtype=4, device="cuda"):
        return Tensor(gpu, *sides, dtype=dtype, device=device)

    def like(one, device="cuda"):
        gpu.order.append(device)
        return Tensor(gpu, 1, dtype=one.nbytes)

    def exchanged(*tensors):
        assert gpu.order[-1] != "left"
        tensors[0].busy()

    def join(kind, *, device_id):
        assert kind == "nccl" and device_id[0] == "cuda"
        gpu.order.append(f"joined on {device_id[1]}")

    cuda = SimpleNamespace(
        Event=lambda enable_timing: Event(gpu),
        CUDAGraph=Graph,
        graph=Capture(gpu),
        synchronize=lambda: None,
        is_available=lambda: gpus > 0,
        device_count=lambda: gpus,
        set_device=lambda at: None,
        mem_get_info=lambda: (free, free),
        get_device_name=lambda: "NVIDIA H100 80GB HBM3",
        current_device=lambda: 0,
        can_device_access_peer=lambda one, other: reaches and one != other,
    )
    distributed = SimpleNamespace(
        init_process_group=join,
        destroy_process_group=lambda: gpu.order.append("left"),
        is_available=lambda: nccl,
        is_nccl_available=lambda: nccl,
        barrier=lambda: None,
        all_to_all_single=exchanged,
        all_reduce=exchanged,
    )
    return SimpleNamespace(
        empty=tensor,
        zeros=tensor,
        randn=tensor,
        empty_like=like,
        cuda=cuda,
        distributed=distributed,
        int8=1,
        bfloat16=2,
        float32=4,
        __version__="2.11",
        mm=lambda a, b: a.busy(),
        version=SimpleNamespace(cuda=cuda_version),
        device=lambda kind, at: (kind, at),
    )


@pytest.fixture
def gpu():
    return SimpleNamespace(ns=0, flushes=0, order=[])


def of(document, what):
    return [one for one in document["samples"] if one["what"] == what]


def test_one_gpu(gpu):
    document = measure.measure(torch_of(gpu), {})
    assert document["schema"] == "moereplay-measured/1"
    assert document["measured"] == "1 x NVIDIA H100 80GB HBM3, CUDA 13.0, torch 2.11"
    calls = len(measure.SHAPES) + 3 * len(measure.MEMORY_BYTES) + 3  # three graphs
    assert gpu.flushes == measure.REPEATS * calls
    # Times are of the call alone, and not of what empties the cache before it.
    for one in of(document, "memory"):
        assert one["seconds"] * 1e9 == pytest.approx(one["read"] or one["written"])
    for one in of(document, "gemm-bf16"):
        assert one["seconds"] * 1e9 == pytest.approx(2 * one["m"] * one["k"])
    for what in ("kernels-stream", "kernels-graph"):  # four bytes each
        assert [round(one["seconds"] * 1e9) for one in of(document, what)] == [40, 400, 4000]
    assert len(of(document, "launch")) == len(of(document, "host-sync")) == measure.REPEATS
    assert not of(document, "all-to-all")


def test_several_gpus(gpu):
    torch = torch_of(gpu, gpus=8)
    document = measure.measure(torch, {"RANK": "0", "WORLD_SIZE": "8"})
    sizes = [one["bytes"] for one in of(document, "all-to-all")]
    assert sizes == measure.MESSAGE_BYTES == [one["bytes"] for one in of(document, "all-reduce")]
    for what in ("all-to-all", "all-reduce", "pair-copy"):
        for one in of(document, what):
            assert one["seconds"] * 1e9 == pytest.approx(one["bytes"]) and one.get("gpus", 8) == 8
    assert measure.measure(torch, {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}) is None
    assert gpu.order[-1] == "left" and "joined on 3" in gpu.order


def test_gpus_copy_when_no_other_process_has_a_kernel(gpu):
    measure.measure(torch_of(gpu, gpus=8), {"WORLD_SIZE": "8"})
    copies = len(measure.MESSAGE_BYTES)
    assert gpu.order[-copies - 1 :] == ["left", *["cuda:1"] * copies]
    # A GPU that the first cannot reach would be reached through the host, which is no link.
    far = measure.measure(torch_of(gpu, gpus=8, reaches=False), {"WORLD_SIZE": "8"})
    assert of(far, "all-reduce") and not of(far, "pair-copy")


def test_what_torch_says_is_a_line(gpu):
    torch = torch_of(gpu)

    def fails(*_):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    torch.mm = fails
    with pytest.raises(UserError, match="torch says 'CUDA error: out of memory'") as error:
        measure.measure(torch, {})
    assert "\n" not in str(error.value)


def test_what_it_needs_is_said():
    assert "one NVIDIA GPU that nobody else uses" in measure.needs({})
    assert "8 NVIDIA GPUs" in measure.needs({"WORLD_SIZE": "8"})
    assert all("\n" not in measure.needs(one) for one in ({}, {"WORLD_SIZE": "2"}))


@every("key", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
@every("text", ["x", "", "-1", "1.0", "9" * 5000])
def test_a_process_that_is_no_number_is_refused(command, tmp_path, monkeypatch, key, text):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(key, text)
    said = command("hardware measure")
    assert said.code == 2 and said.err.count("\n") == 1 and len(said.err) < 250
    assert f"{key} must be a whole number" in said.err and not list(tmp_path.iterdir())


def test_processes_by_hand():
    assert measure.process({}) == (0, 0, 1)
    told = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}
    assert measure.process(told) == (9, 1, 16)
    with pytest.raises(UserError, match="RANK must be less than WORLD_SIZE, 8, and is 9"):
        measure.process(told | {"WORLD_SIZE": "8"})
    assert measure.process(told | {"LOCAL_WORLD_SIZE": "16"}) == (9, 1, 16)
    with pytest.raises(UserError, match=r"one machine; this one has 8 of 16 processes.*nnodes 1"):
        measure.process(told | {"LOCAL_WORLD_SIZE": "8"})


@every(
    "torch, environment, said",
    [
        (None, {}, "pip install"),
        ({"gpus": 0}, {}, "torch sees none"),
        ({"cuda_version": None}, {}, "this torch is built for others"),
        ({"gpus": 2, "nccl": False}, {"WORLD_SIZE": "2"}, "PyTorch with NCCL; this has none"),
        ({"gpus": 2}, {"WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT is not: .* by torchrun"),
        ({"gpus": 2}, {"LOCAL_RANK": "2"}, "process 2 has no GPU; torch sees 2"),
        ({"free": 1 << 30}, {}, "4.3 GB of GPU memory; 1.1 GB of GPU 0 are free"),
    ],
)
def test_what_is_missing_is_refused(gpu, monkeypatch, torch, environment, said):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch if torch is None else torch_of(gpu, **torch))
        with pytest.raises(UserError, match=said) as error:
            measure.prepare(environment)
    assert "\n" not in str(error.value)


def test_the_command_writes_a_log_that_is_read(gpu, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch_of(gpu))
    said = command("hardware measure -o mine.json")
    assert said.code == 0 and "measuring takes about" in said.err
    log = logs.read("mine.json", "dgx-h100")
    assert {row.table for row in log.rows} == {"matrices", "streams", "values"}
    monkeypatch.setitem(sys.modules, "torch", None)
    said = command("hardware measure -o other.json")
    assert said.code == 2 and said.err.count("\n") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json"}
