"""Maps that are written for an engine, read by the engine's own code.

Skipped unless ``MOEREPLAY_ENGINES`` names a folder with the packages' Python sources and torch can
be imported: the ``site-packages`` of an environment with the engines, or a folder into which their
source distributions were unpacked (``pip download --no-deps --no-binary :all: sglang``). Engines
are not installed: of SGLang the module that reads is imported, with what it needs of the rest, of
the others a function or a class is taken out of its file. PLACEMENT.md says what was tried.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from replay.model.work.expert_maps import to_text
from replay.model.work.placement import Placement
from replay.model.work.replicas import choose

ENGINES = Path(os.environ.get("MOEREPLAY_ENGINES", ""))

pytestmark = pytest.mark.skipif(
    "MOEREPLAY_ENGINES" not in os.environ,
    reason="set MOEREPLAY_ENGINES to a folder with the engines' sources, see PLACEMENT.md",
)

# Two MoE layers, which are the decoder layers 1 and 3 of four: 4 experts, 6 slots on 2 GPUs.
SLOTS = np.array([[0, 1, 2, 3, 0, 2], [3, 2, 1, 0, 3, 3]])
DECODER_LAYERS = [1, 3]
HELD_BY = [  # of each layer, the slots of every expert
    [[0, 4], [1], [2, 5], [3]],
    [[3], [2], [1], [0, 4, 5]],
]


def write(tmp_path: Path, form: str) -> Path:
    path = tmp_path / ("map.yaml" if form == "tensorrt" else "map.json")
    path.write_text(to_text(form, SLOTS, 2, DECODER_LAYERS, 4))
    return path


def source(file: str) -> Path:
    path = ENGINES / file
    if not path.is_file():
        pytest.skip(f"no {file} in {ENGINES}")
    return path


def taken_out(monkeypatch: pytest.MonkeyPatch, file: str, *wanted: str, **given: object) -> Any:
    """Functions and classes of a file by name, run without what the file imports.

    Class bodies and annotations find `given` and, of the file's imports, those of the standard
    library and of pydantic.
    """
    tree = ast.parse(source(file).read_text("utf-8"))
    light = {"typing", "dataclasses", "json", "collections", "pydantic", "__future__"}
    body: list[ast.stmt] = []
    for node in tree.body:
        is_light = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in light
        is_light |= isinstance(node, ast.Import) and {one.name for one in node.names} <= light
        if is_light or getattr(node, "name", None) in wanted:
            body.append(node)
    module: Any = ModuleType("taken_out")
    vars(module).update(given)
    monkeypatch.setitem(sys.modules, "taken_out", module)  # where pydantic looks names up
    exec(compile(ast.Module(body, []), file, "exec"), vars(module))
    return module


def held(of_experts: list[list[int]]) -> list[list[int]]:
    """Slots of every expert, of what an engine pads with -1."""
    return [[slot for slot in slots if slot >= 0] for slots in of_experts]


# ---- SGLang --------------------------------------------------------------------------------------


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``sglang.srt.eplb.expert_location``, without the packages around it."""
    torch = pytest.importorskip("torch")
    source("sglang/srt/eplb/expert_location.py")
    before = set(sys.modules)

    def stand_in(name: str, **has: object) -> None:
        module = ModuleType(name)
        module.__path__ = [str(ENGINES / name.replace(".", "/"))]
        vars(module).update(has)
        monkeypatch.setitem(sys.modules, name, module)

    for package in ("sglang", "sglang.srt", "sglang.srt.eplb", "sglang.srt.eplb.eplb_algorithms"):
        stand_in(package)
    experts = SimpleNamespace(num_layers=4, num_logical_experts=4, num_groups=None)
    model = SimpleNamespace(get_model_config_for_expert_location=lambda _config: experts)
    stand_in("sglang.srt.model_loader", get_model_architecture=lambda _config: (model, ""))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    yield importlib.import_module("sglang.srt.eplb.expert_location")
    for name in set(sys.modules) - before:
        if name.startswith("sglang"):
            del sys.modules[name]


def server(path: Path | None = None, *, nodes: int = 1, ranks: int = 2, spare: int = 2) -> Any:
    return SimpleNamespace(
        init_expert_location=str(path),
        device="cpu",
        ep_num_redundant_experts=spare,
        ep_size=ranks,
        nnodes=nodes,
        ep_dispatch_algorithm="static",
    )


def test_sglang_reads_the_slots(sglang: Any, tmp_path: Path) -> None:
    read = sglang.compute_initial_expert_location_metadata(
        server(write(tmp_path, "sglang")), SimpleNamespace(hf_config=None), moe_ep_rank=None
    )
    assert read.num_layers == 4
    assert read.num_local_physical_experts == 3
    of_layer = read.physical_to_logical_map.tolist()
    assert [of_layer[number] for number in DECODER_LAYERS] == SLOTS.tolist()
    all_slots = [read.logical_to_all_physical_map[number].tolist() for number in DECODER_LAYERS]
    assert [held(slots) for slots in all_slots] == HELD_BY


@pytest.mark.parametrize("slots", [[0, 1, 2, 3, 0, 2, 0, 3], [3, 2, 1, 0, 3, 3, 3, 3]])
@pytest.mark.parametrize(("nodes", "rule"), [(1, "nearest"), (4, "same-gpu")])
def test_replicas_are_sglangs(sglang: Any, slots: list[int], nodes: int, rule: str) -> None:
    """On one node all but its own replica is the first one; between nodes they are shared."""
    import torch

    placement = Placement(np.arange(8, dtype=np.int32) // 2, 4, "by hand", np.array(slots))
    every = np.tile(np.arange(4, dtype=np.int32), (4, 1))
    ours = choose(every, np.arange(4, dtype=np.int32), placement, rule)
    candidates = [[slot for slot in range(8) if slots[slot] == one] for one in range(4)]
    padded = torch.tensor([[one + [-1] * (8 - len(one)) for one in candidates]])
    theirs = [
        sglang.compute_logical_to_rank_dispatch_physical_map(server(nodes=nodes, ranks=4), padded, 4, 8, rank)[
            0
        ].tolist()
        for rank in range(4)
    ]
    assert len(theirs) == len(ours)
    for rank, of_rank in enumerate(theirs):
        for expert, slot in enumerate(of_rank):
            is_fixed = rule == "nearest" or slot // 2 == rank or len(candidates[expert]) == 1
            assert slot in candidates[expert]
            if is_fixed:
                assert ours[rank, expert] == slot
    for expert, of_expert in enumerate(candidates):  # which GPU has which is drawn from a seed
        shares = [
            sorted(rows.count(slot) for slot in of_expert)
            for rows in ([row[expert] for row in theirs], ours[:, expert].tolist())
        ]
        assert shares[0] == shares[1]


# ---- vLLM and vLLM Ascend ------------------------------------------------------------------------


def test_vllm_has_the_same_replicas_of_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no file: what it derives from the tensor that it has in memory."""
    torch = pytest.importorskip("torch")
    file = "vllm/distributed/eplb/eplb_state.py"
    vllm = taken_out(monkeypatch, file, "compute_logical_maps", torch=torch)
    rows = json.loads(write(tmp_path, "vllm").read_text())["physical_to_logical_map"]
    slots, counts = vllm.compute_logical_maps(torch.tensor(rows), 4)
    assert [held(of_layer) for of_layer in slots.tolist()] == HELD_BY
    assert counts.tolist() == [[len(one) for one in of_layer] for of_layer in HELD_BY]


def test_vllm_ascend_reads_the_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    file = "vllm_ascend/eplb/core/eplb_utils.py"
    ascend = taken_out(monkeypatch, file, "expert_file_to_tensor", torch=torch, logger=None)
    for position, row in enumerate(SLOTS):
        read, count = ascend.expert_file_to_tensor(write(tmp_path, "vllm-ascend"), position)
        assert read.flatten().tolist() == row.tolist()
        assert (read.shape[0], count) == (2, 6)


# ---- TensorRT-LLM --------------------------------------------------------------------------------


def test_tensorrt_llm_takes_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `TorchLlmArgs.validate_load_balancer` makes it of a file."""
    file = "tensorrt_llm/llmapi/llm_args.py"
    taken = taken_out(monkeypatch, file, "StrictBaseModel", "MoeLoadBalancerConfig")
    settings = taken.MoeLoadBalancerConfig(**yaml.safe_load(write(tmp_path, "tensorrt").read_text()))
    for rank in range(2):
        settings.setup(ep_rank=rank, ep_size=2)
        assert (settings.slot_start, settings.slot_end) == (3 * rank, 3 * rank + 3)
    assert [settings.get_layer_initial_global_assignments(number) for number in DECODER_LAYERS] == SLOTS.tolist()
    with pytest.raises(KeyError):
        settings.get_layer_initial_global_assignments(0)  # a dense layer
