"""Engines that follow a trace: what is written for them, and the plug-ins against stand-ins.

SERVING.md says what was tried with the engines' own classes.
"""

import functools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tracegen
from tracegen.cli import app
from tracegen.file.writer import write
from tracegen.importers import read
from tracegen.serving import plan, sglang, vllm
from tracegen.serving.exports import ENGINES, export
from tracegen.serving.plan import PlanBuffer, RoutePlan
from tracegen.trace.content_id import content_id

torch = pytest.importorskip("torch", reason="pip install 'moereplay[capture]'")

EXPERTS, TOPK, LAYERS = 16, 3, (1, 2)
SIZES: dict[str, Any] = {"num_experts": EXPERTS, "hidden_size": 8}
LENGTHS = {7: (4, 3), 9: (2, 6)}
"""Request of the dump to its tokens of prompt and answer that were routed."""


def dump(path: Path) -> tuple[Path, Any]:
    """Plain arrays of two requests in three steps, weights and ranks with them, and their ids."""
    request = np.repeat(list(LENGTHS), [sum(each) for each in LENGTHS.values()])
    position = np.concatenate([np.arange(sum(each)) for each in LENGTHS.values()])
    prompt = np.repeat([each[0] for each in LENGTHS.values()], [sum(e) for e in LENGTHS.values()])
    rng = np.random.default_rng(0)
    ids = rng.random((request.size, len(LAYERS), EXPERTS)).argsort(axis=2)[..., :TOPK]
    np.savez(
        path,
        expert_ids=ids,
        weights=np.sort(rng.random(ids.shape), axis=2)[..., ::-1],
        request=request,
        position=position,
        phase=(position >= prompt).astype(np.uint8),
        step=np.arange(request.size) // 5,
        rank=request % 2,
        num_ranks=4,
        layers=LAYERS,
    )
    return path, ids


@pytest.fixture
def trace(tmp_path: Path) -> tracegen.RoutingTrace:
    return read([dump(tmp_path / "dump.npz")[0]], "arrays", **SIZES).trace


@pytest.fixture
def route_plan(tmp_path: Path) -> RoutePlan:
    path, _ = dump(tmp_path / "dump.npz")
    return RoutePlan.load(path)


# What is written


def test_a_plan_is_the_trace_itself(trace: tracegen.RoutingTrace, tmp_path: Path) -> None:
    for engine in ("vllm", "sglang"):
        path = tmp_path / f"{engine}.npz"
        told = export(trace, engine, path)
        again = read([path], "arrays", **SIZES).trace
        assert content_id(again) == content_id(trace)
        assert told[-1].startswith(f"Followed by: MOEREPLAY_FOLLOW={path} ")
        assert RoutePlan.load(path).num_requests == len(LENGTHS)
        first = path.read_bytes()
        export(trace, engine, path)
        assert path.read_bytes() == first


def test_positions_that_no_request_has_are_refused(tmp_path: Path) -> None:
    """In the engine they were tables of as many entries, or an error of numpy's."""
    path, ids = dump(tmp_path / "dump.npz")
    with np.load(path) as whole:
        arrays = dict(whole)
    for position in (-1, 2**32, 2**62):
        np.savez(path, **{**arrays, "position": np.full(len(ids), position)})
        with pytest.raises(tracegen.UserError, match="position is not from 0 to"):
            RoutePlan.load(path)


def test_counts_and_samples_are_read_back(trace: tracegen.RoutingTrace, tmp_path: Path) -> None:
    export(trace, "sglang-counts", tmp_path / "c.pt")
    counted = read([tmp_path / "c.pt"], "sglang", topk=TOPK, hidden_size=8).trace
    np.testing.assert_array_equal(counted.load_per_expert(), trace.load_per_expert())
    assert counted.moe_layer_index.tolist() == list(LAYERS)
    export(trace, "slime", tmp_path / "s.pt")
    samples = read([tmp_path / "s.pt"], "rollout", **SIZES).trace
    for name in ("request", "position", "phase"):
        np.testing.assert_array_equal(getattr(samples.tokens, name), getattr(trace.tokens, name))
    for layer in range(len(LAYERS)):
        np.testing.assert_array_equal(samples.layer_ids(layer), trace.layer_ids(layer))
    held = torch.load(tmp_path / "s.pt", weights_only=True)["samples"]
    assert [len(one["tokens"]) for one in held] == [8, 9]
    assert [one["response_length"] for one in held] == [4, 7]


def test_what_an_engine_cannot_follow_is_not_written(tmp_path: Path) -> None:
    path, ids = dump(tmp_path / "dump.npz")
    ids[3, 1, 2] = -1
    np.savez(path, expert_ids=ids, position=np.arange(len(ids)) + 1, request=np.zeros(len(ids), int))
    short = read([path], "arrays", **SIZES).trace
    for engine in ("vllm", "sglang", "slime"):
        out = tmp_path / f"out{ENGINES[engine][0]}"
        with pytest.raises(tracegen.UserError, match="1 of 15 tokens have fewer than 3 experts"):
            export(short, engine, out)
        assert not out.exists()
    ids[3, 1, 2] = next(one for one in range(EXPERTS) if one not in ids[3, 1])
    np.savez(path, expert_ids=ids, position=np.arange(len(ids)) + 1, request=np.zeros(len(ids), int))
    late = read([path], "arrays", **SIZES).trace
    with pytest.raises(tracegen.UserError, match="15 rows at positions 1 to 15; slime replays"):
        export(late, "slime", tmp_path / "out.pt")
    with pytest.raises(tracegen.UserError, match=r"vllm reads files that end in \.npz"):
        export(late, "vllm", tmp_path / "out.pt")
    with pytest.raises(tracegen.UserError, match="unknown engine 'vlm'"):
        export(late, "vlm", tmp_path / "out.npz")


def test_the_command_writes_a_plan(trace: tracegen.RoutingTrace, tmp_path: Path) -> None:
    write(trace, tmp_path / "t.h5")
    out = tmp_path / "plan.npz"
    command = ["export", str(tmp_path / "t.h5"), "--to", "vllm", "--out", str(out)]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "2 layers x 15 tokens of 2 requests, for vllm" in found.stdout
    assert "VLLM_MOE_ROUTING_SIMULATION_STRATEGY=moereplay" in found.stderr
    assert out.exists()
    assert CliRunner().invoke(app, command).exit_code == 2  # without --force


# What is followed


def test_tokens_are_found_by_request_and_position(tmp_path: Path) -> None:
    path, ids = dump(tmp_path / "dump.npz")
    found = RoutePlan.load(path)
    rows, strays = found.rows(np.array([0, 1, 1, 0]), np.array([6, 0, 7, 2]))
    np.testing.assert_array_equal(rows, ids[[6, 7, 14, 2]])
    assert strays == 0
    # Request 3 is request 1 once more; position 9 of request 0 is its position 2.
    rows, strays = found.rows(np.array([3, 0]), np.array([5, 9]))
    np.testing.assert_array_equal(rows, ids[[7 + 5, 2]])
    assert strays == 2


def test_files_that_are_no_plan_are_refused(tmp_path: Path) -> None:
    path, ids = dump(tmp_path / "dump.npz")
    columns = {"request": np.zeros(15, int), "position": np.arange(15), "layers": LAYERS}
    for arrays, said in (
        ({"expert_ids": ids}, "no layers, position, request; moereplay trace export"),
        ({**columns, "expert_ids": ids[:, :1]}, r"\(15, 1, 3\) ids"),
        ({**columns, "expert_ids": ids - 1}, "tokens have fewer than 3 experts"),
        (
            {name: np.zeros((0, 2, 3), int)[:, 0, 0] for name in columns} | {"expert_ids": np.zeros((0, 0, 3), int)},
            "no row",
        ),
    ):
        np.savez(path, **arrays)
        with pytest.raises(tracegen.UserError, match=said):
            RoutePlan.load(path)


class Router:
    """Of vLLM."""

    def __init__(self, topk: int = TOPK) -> None:
        self.top_k, self.global_num_experts, self.eplb_state = topk, EXPERTS, None

    def _compute_routing(self, hidden: Any, logits: Any, kind: Any) -> Any:
        raise AssertionError("the router chooses by itself")


class Runner:
    """Of vLLM: routes each layer for the rows of a batch, and two rows that pad it."""

    max_num_tokens = 32
    device = "cpu"

    def __init__(self, layers: tuple[int, ...] = LAYERS, topk: int = TOPK, **parallel: Any) -> None:
        stated = {"data_parallel_size": 1, "use_sequence_parallel_moe": False, **parallel}
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(**stated))
        modules = [SimpleNamespace(layer_id=layer, router=Router(topk)) for layer in layers]
        self.model = SimpleNamespace(modules=lambda: [SimpleNamespace(), *modules])
        self.routers = [module.router for module in modules]
        self.loads = 0

    def load_model(self) -> None:
        self.loads += 1

    def prepare_inputs(self, batch: Any) -> Any:
        return batch

    def execute_model(self, batch: Any) -> Any:
        hidden = torch.zeros((self.prepare_inputs(batch).num_tokens + 2, 8))
        chosen = [router._compute_routing(hidden, None, torch.int64) for router in self.routers]
        assert all(weights.sum(1).allclose(torch.ones(len(hidden))) for weights, _ in chosen)
        return torch.stack([ids for _, ids in chosen], 1).numpy()


def batch(**requests: tuple[int, int]) -> Any:
    """Names to first position and length."""
    lengths = [length for _, length in requests.values()]
    position = np.concatenate([first + np.arange(count) for first, count in requests.values()])
    return SimpleNamespace(
        req_ids=[name.replace("_", "-") for name in requests],
        num_tokens=len(position),
        query_start_loc_np=np.cumsum([0, *lengths]),
        positions=torch.from_numpy(position),
    )


@pytest.fixture
def runner_class(route_plan: RoutePlan) -> Any:
    class Own(Runner):
        load_model, prepare_inputs, execute_model = (
            Runner.load_model,
            Runner.prepare_inputs,
            Runner.execute_model,
        )

    vllm.attach(Own, None, route_plan)
    return Own


def test_routers_of_vllm_follow_their_requests(runner_class: Any, tmp_path: Path) -> None:
    _, ids = dump(tmp_path / "dump.npz")
    runner = runner_class()
    runner.load_model()
    found = runner.execute_model(batch(a=(0, 4), b=(0, 2)))
    np.testing.assert_array_equal(found[:6], ids[[0, 1, 2, 3, 7, 8]])
    padding = found[6:]
    assert all(len(set(row)) == TOPK for rows in padding for row in rows.tolist())
    found = runner.execute_model(batch(b=(2, 1), a=(4, 1)))
    np.testing.assert_array_equal(found[:2], ids[[9, 4]])
    np.testing.assert_array_equal(found[2:], runner.execute_model(batch(a=(5, 2)))[2:])
    # A name says which request of the trace it is, whenever it comes.
    np.testing.assert_array_equal(runner.execute_model(batch(cmpl_moereplay_1_0=(3, 1)))[0], ids[7 + 3])


def test_vllm_is_refused_where_it_would_follow_wrongly(runner_class: Any) -> None:
    for changed, said in (
        ({"data_parallel_size": 2}, "--data-parallel-size: routers see other rows"),
        ({"use_sequence_parallel_moe": True}, "sequence parallelism"),
        ({"enable_dbo": True}, "--enable-dbo"),
        ({"layers": (1, 2, 5)}, "decoder layer 5 routes, MOEREPLAY_FOLLOW has 1, 2"),
        ({"topk": 4}, "has top-3 up to expert 15, the model top-4 of 16"),
    ):
        with pytest.raises(tracegen.UserError, match=said):
            runner_class(**changed).load_model()
    stage = runner_class(layers=())
    stage.load_model()
    stage.prepare_inputs(batch(a=(0, 2)))  # a stage of a pipeline without experts
    whole = runner_class()
    whole.load_model()
    with pytest.raises(tracegen.UserError, match="a pass of 40 tokens; at most 32"):
        whole.prepare_inputs(batch(a=(0, 40)))
    with pytest.raises(tracegen.UserError, match="a router is called for 33 rows"):
        whole.routers[0]._compute_routing(torch.zeros((33, 8)), None, None)


def test_vllm_must_simulate_its_routers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, _ = dump(tmp_path / "dump.npz")
    simulator: Any = ModuleType("simulator")
    strategies: dict[str, Any] = {}
    simulator.RoutingStrategy = object
    simulator.RoutingSimulator = SimpleNamespace(register_strategy=strategies.__setitem__)
    platform: Any = ModuleType("platforms")
    platform.current_platform = SimpleNamespace(is_cpu=lambda: False)
    runners: Any = ModuleType("runner")
    runners.GPUModelRunner = type("GPUModelRunner", (Runner,), {"load_model": Runner.load_model})
    for name, module in (
        ("vllm", ModuleType("vllm")),
        (vllm.CAPTURER, ModuleType("capturer")),
        (vllm.SIMULATOR, simulator),
        ("vllm.platforms", platform),
        *((name, runners) for name in vllm.RUNNERS),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(vllm.FOLDER, raising=False)
    monkeypatch.setenv(plan.FILE, str(path))
    monkeypatch.delenv(vllm.STRATEGY, raising=False)
    with pytest.raises(tracegen.UserError, match="simulated routers only: set VLLM_MOE_ROUTING"):
        vllm.register()
    monkeypatch.setenv(vllm.STRATEGY, "moereplay")
    vllm.register()
    assert runners.GPUModelRunner.moereplay_attached
    with pytest.raises(tracegen.UserError, match="was not loaded as a whole"):
        strategies["moereplay"].route_tokens(None)
    monkeypatch.setitem(sys.modules, vllm.SIMULATOR, None)
    with pytest.raises(tracegen.UserError, match="MOEREPLAY_FOLLOW needs a vLLM with RoutingSim"):
        vllm.register()


def forward(lengths: dict[str, tuple[int, int]], *, is_extend: bool, drafts: bool = False, **more: Any) -> Any:
    """SGLang's batch, its positions padded."""
    position = np.concatenate([first + np.arange(count) for first, count in lengths.values()])
    return SimpleNamespace(
        rids=list(lengths),
        positions=torch.from_numpy(np.concatenate([position, [0, 0]])),
        extend_seq_lens_cpu=[count for _, count in lengths.values()] if is_extend else None,
        forward_mode=SimpleNamespace(is_extend=lambda: is_extend, is_target_verify=lambda: drafts),
        **more,
    )


def test_simulated_routers_of_sglang_follow_their_requests(route_plan: RoutePlan, tmp_path: Path) -> None:
    _, ids = dump(tmp_path / "dump.npz")
    routers = sglang.SimulatedRouters(route_plan)
    runner = SimpleNamespace(is_draft_worker=False)

    def choose(rows: int) -> Any:
        found = []
        for layer in LAYERS:
            # The last column is a fused shared expert's.
            chosen = torch.full((rows, TOPK + 1), EXPERTS, dtype=torch.int32)
            routers.choose(chosen, None, EXPERTS, num_routed_topk=TOPK, top_k=TOPK + 1, layer_id=layer)
            assert (chosen[:, TOPK] == EXPERTS).all()
            found.append(chosen[:, :TOPK])
        return torch.stack(found, 1).numpy()

    first = forward({"x": (0, 4), "y": (0, 2)}, is_extend=True)
    routers.begin(runner, first)  # without a warm-up, and with one
    np.testing.assert_array_equal(choose(8)[:6], ids[[0, 1, 2, 3, 7, 8]])
    routers = sglang.SimulatedRouters(route_plan)
    choose(4)
    routers.begin(runner, first)
    np.testing.assert_array_equal(choose(8)[:6], ids[[0, 1, 2, 3, 7, 8]])
    routers.begin(runner, forward({"y": (2, 1), "x": (4, 1)}, is_extend=False))
    routers.begin(SimpleNamespace(is_draft_worker=True), forward({"z": (0, 1)}, is_extend=False))
    routers.begin(runner, SimpleNamespace(rids=None))
    np.testing.assert_array_equal(choose(2), ids[[9, 4]])
    with pytest.raises(tracegen.UserError, match="--enable-dp-attention"):
        routers.begin(runner, forward({"x": (5, 1)}, is_extend=False, global_num_tokens_cpu=[1, 1]))
    with pytest.raises(tracegen.UserError, match="speculative decoding"):
        routers.begin(runner, forward({"x": (5, 1)}, is_extend=True, drafts=True))


def test_sglang_stops_rather_than_serve_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, _ = dump(tmp_path / "dump.npz")
    monkeypatch.delenv(plan.FILE, raising=False)
    sglang.register()
    monkeypatch.setenv(plan.FILE, str(path))
    monkeypatch.delenv(sglang.SWITCH, raising=False)
    with pytest.raises(SystemExit, match=f"set {sglang.SWITCH}=1"):
        sglang.register()
    monkeypatch.setenv(sglang.SWITCH, "1")
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(SystemExit, match="needs an SGLang with apply_routing_simulation"):
        sglang.register()
    hooks: Any = ModuleType("hook_registry")
    registered: list[Any] = []
    hooks.HookType = SimpleNamespace(REPLACE="replace", BEFORE="before")
    hooks.HookRegistry = SimpleNamespace(register=lambda *each: registered.append(each))
    topk: Any = ModuleType("topk")
    topk.apply_routing_simulation = functools.partial(print)
    runner: Any = ModuleType("model_runner")
    runner.ModelRunner = SimpleNamespace(forward=print)
    monkeypatch.setitem(sys.modules, "sglang", ModuleType("sglang"))
    for name, module in (
        ("sglang.srt.plugins.hook_registry", hooks),
        (sglang.TOPK, topk),
        (sglang.RUNNER, runner),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    sglang.register()
    assert [(target, kind) for target, _, kind in registered] == [
        ("sglang.srt.layers.moe.topk.apply_routing_simulation", "replace"),
        ("sglang.srt.model_executor.model_runner.ModelRunner.forward", "before"),
    ]


def test_a_buffer_stays_where_it_is(route_plan: RoutePlan) -> None:
    """A CUDA graph reads what is there when it runs."""
    buffer = PlanBuffer(route_plan, 8, "cpu", EXPERTS, TOPK)
    seen = buffer.of_layer(2, 3)
    before = seen.clone()
    buffer.fill(["a"], np.array([3]), np.arange(3))
    np.testing.assert_array_equal(seen.numpy(), route_plan.ids[:3, 1])
    assert not np.array_equal(before.numpy(), seen.numpy())
    buffer.fill(["a"], np.array([1]), np.array([3]))
    np.testing.assert_array_equal(seen.numpy()[1:], before.numpy()[1:])
    with pytest.raises(tracegen.UserError, match="decoder layer 3 routes"):
        buffer.of_layer(3, 1)


def test_sglang_finds_the_plug_in() -> None:
    import tomllib

    project = Path(__file__).parents[2] / "pyproject.toml"
    points = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]
    assert points["sglang.srt.plugins"] == {"moereplay": "tracegen.serving.sglang:register"}
