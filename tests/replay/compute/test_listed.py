"""Parts of a layer as stacks launch them: against the lists, and against sums by hand.

Times by hand are those of the round machine: a byte takes 0.2 ps, tiles are 64 x 64, kernels are 2
us apart (1.5 in a graph), an elementwise one takes 0.3 us beside its bytes, a wait of the host 9
us, the launch of a graph 2.5 us.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from loops import every
from round_machine import NS, ROUND, US
from small_shape import small_shape

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.arrays import Ints
from replay.model.compute.dense import Between
from replay.model.compute.listed_parts import ListedParts
from replay.model.compute.slices import Slices
from replay.model.machine.host import Launch, Operation
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.context import Context
from replay.model.work.kernel_lists import KernelSizes, ListedOperation, load
from replay.model.work.stacks import STACKS, CallCosts, Stack
from replay.model.work.stacks.costs import CallCost
from replay.steps.ends import ListedEnds
from replay.steps.kernel_sizes import sizes_of
from replay.steps.plan import ParallelPlan
from tracegen.models.schema import ModelShape

GAP, GRAPH_GAP, SMALL = 2 * US, 1_500_000, 300 * NS
MEMORY, GEMM, CORE = Kind.BETWEEN, Kind.DENSE_GEMM, Kind.ATTENTION
TOKENS, PAIRS = 128, 40_000
TRAINING = [name for name, (listed, _) in STACKS.items() if load(listed).trains]
assert TRAINING == ["megatron-plain", "megatron-tuned", "automodel", "deepseek"]
GROUPED = small_shape(
    name="grouped",
    hidden=128,
    moe_intermediate=64,
    num_experts=96,
    topk=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_shared_experts=2,
    shared_intermediate=64,
    dense_layers=(0,),
    dense_intermediate=256,
    vocab=640,
)
LATENT = GROUPED.model_copy(
    update={
        "num_kv_heads": None,
        "head_dim": None,
        "q_lora_rank": 192,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 48,
    }
)
MACHINE = hwmodel.load("dgx-h100", ROUND | {"attention.forward_efficiency": 0.5, "attention.backward_efficiency": 0.25})


class Run(NamedTuple):
    """What a layer's parts launched, and the schedule."""

    machine: Machine
    end: Ints
    timeline: Timeline
    kinds: Ints

    def services(self, *kinds: Kind) -> list[int]:
        """Times of tasks of kinds, in order, of those that take any."""
        of = np.isin(self.kinds, [int(kind) for kind in kinds])
        return [int(ps) for ps in self.timeline.service_ps[of] if ps]

    def latency(self, *kinds: Kind) -> int:
        """Time of tasks of kinds from their end until others see it, of all together."""
        of = np.isin(self.kinds, [int(kind) for kind in kinds])
        return int((self.timeline.visible_ps - self.timeline.end_ps)[of].sum())

    @property
    def end_ps(self) -> int:
        """When the last kernel ends."""
        return int(self.timeline.visible_ps[self.end[0]])

    @property
    def launched(self) -> int:
        """Kernels of the program."""
        return sum(one.launches for one in self.machine.host.program)

    @property
    def host_ps(self) -> int:
        """When the host is through."""
        last = self.machine.host.last
        return 0 if last is None else int(self.timeline.visible_ps[last[0]])


def run(add: Any, launch: Launch | None = "eager", system: hwmodel.System = MACHINE) -> Run:
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, 1, launch=launch)
    end = add(machine, machine.mark(machine.ranks))
    graph = builder.build()
    return Run(machine, end, schedule(graph), graph.kind)


def context(tp: int = 1) -> Context:
    return Context(*(np.array([n], np.int64) for n in (TOKENS // tp, TOKENS, PAIRS)))


def collective_ps(group: str, what: str, nbytes: int) -> int:
    return 1000 * nbytes


def parts(name: str, shape: ModelShape = GROUPED, tp: int = 1, **changes: Any) -> ListedParts:
    stack = changes.pop("stack", None) or Stack.of(name, MACHINE)
    sizes = sizes_of(shape, ParallelPlan(tp=tp, dp=8 // tp, ep=8), TOKENS)
    return ListedParts(
        shape,
        "fp8" if name == "deepseek" else "bf16",
        slices=Slices(tp, 1, collective_ps),
        stack=stack,
        sizes=sizes,
        **changes,
    )


def layer(of: Between, *, is_dense: bool = False, launch: Launch | None = "eager") -> Run:
    def add(machine: Machine, after: Ints) -> Ints:
        tp = of.slices.tp
        return of.layer(machine, context(tp), after, is_dense=is_dense)["dense"]

    return run(add, launch)


def free(stack: Stack) -> Stack:
    """A stack whose calls cost nothing."""

    def nothing(costs: Mapping[str, CallCost]) -> dict[str, CallCost]:
        return {
            name: cost.model_copy(
                update={
                    way: getattr(cost, way).model_copy(update={"value": 0.0}) for way in ("forward_us", "backward_us")
                }
                | {"around_forward_us": None, "around_backward_us": None}
            )
            for name, cost in costs.items()
        }

    costs = CallCosts(nothing(stack.costs.calls), operators=nothing(stack.costs.operators))
    return dataclasses.replace(stack, costs=costs)


def rows_of(of: ListedParts, *, is_dense: bool = False) -> list[ListedOperation]:
    """The rows of a layer without its routed experts, part by part."""
    latent = of.shape.kv_lora_rank and of.stack.name.startswith("megatron")
    attention = "latent attention" if latent else "attention"
    forward = {"modules", attention, "dense"} if is_dense else {"modules", attention, "router", "nodes"}
    if of.shape.num_shared_experts and not is_dense:
        forward.add("shared")
    backward = {*forward, "attention's weights", "gradients"}
    wanted = backward if of.is_backward else forward
    direction = "backward" if of.is_backward else "forward"
    there = {part.name for part in of.stack.kernels.parts if part.direction == direction}
    sizes = of.sizes
    if is_dense:
        sizes = dataclasses.replace(sizes, experts=0, topk=0, local=0, rows=0, copies=0)
    rows = list(of.stack.operations(sizes, wanted & there, direction))
    if "shared" in forward and not of.stack.kernels.has("shared"):
        rows += of.stack.experts(sizes, direction, shared=True)
    return rows


def of_stacks() -> list[tuple[str, ModelShape]]:
    return [(name, LATENT if name == "deepseek" else GROUPED) for name in TRAINING] + [
        ("megatron-plain", LATENT),
        ("megatron-plain:graphs=attention", GROUPED),
    ]


def whole_ps(stack: Stack, row: ListedOperation) -> int:
    """Host time of a row, of which each kernel takes whole picoseconds."""
    kernels = max(1, row.kernels)
    return stack.costs.ps(row) // kernels * kernels


def small_of(row: ListedOperation) -> int:
    """Kernels of a row that move none of its bytes: all but the last, or the two last if that
    is attention itself, which has bytes of its own."""
    if row.kind == "gemm" or not row.kernels:
        return 0
    return max(0, row.kernels - (2 if row.kind == "attention" else 1))


@every("is_dense", [False, True])
@every("is_backward", [False, True])
def test_a_layer_launches_what_its_list_has(*, is_backward: bool, is_dense: bool) -> None:
    """Kernels, bytes and products of every stack; what its list lacks are bare kernels."""
    for name, shape in of_stacks():
        of = parts(name, shape, is_backward=is_backward)
        part = "dense" if is_dense else "shared"
        bare = Between(shape, of.precision, is_backward=is_backward)
        lacks = not (of.stack.kernels.has(part) or (name == "deepseek" and part == "shared"))

        def add(machine: Machine, after: Ints, bare: Between = bare, part: str = part) -> Ints:
            if part == "shared":
                return bare.shared_experts(machine, context(), after)
            kernels = bare._kernels(machine, after)
            bare._dense(kernels, context())
            return kernels.end

        more = run(add) if lacks else None
        found, rows = layer(of, is_dense=is_dense), rows_of(of, is_dense=is_dense)
        extra = 0 if more is None else more.launched
        assert found.launched == sum(row.kernels for row in rows) + extra, name
        moved = sum(-(-row.moves // 5) for row in rows)
        moved += 0 if more is None else sum(more.services(MEMORY))
        small = sum(map(small_of, rows))
        assert sum(found.services(MEMORY)) == moved, name
        gaps = sum(row.kernels * (GRAPH_GAP if of.stack.captures(row.graph) and row.captured else GAP) for row in rows)
        gaps += 0 if more is None else sum(more.services(Kind.LAUNCH))
        assert sum(found.services(Kind.LAUNCH)) == gaps, name
        assert found.latency(MEMORY) >= small * SMALL, name
        products = sum(row.kernels for row in rows if row.gemm)
        products += 0 if more is None else len(more.services(GEMM))
        assert len(found.services(GEMM)) == products, name
        assert len(found.services(CORE)) == 1, name


def memory(nbytes: int) -> int:
    return -(-nbytes // 5)


def gemm(rows: int, n: int, k: int) -> int:
    tiles = -(-rows // 64) * -(-n // 64)
    return -(-tiles // 100) * (2 * 64 * min(n, 64) * k + 11 * NS)


def test_a_forward_pass_by_hand() -> None:
    """Megatron's grouped attention and fused router, in order, kernel by kernel."""
    stack = free(Stack.of("megatron-plain:router_fusion=true,aux_loss=false", MACHINE))
    shape = GROUPED.model_copy(update={"num_shared_experts": 0})
    found = layer(parts("megatron-plain", shape, stack=stack), launch=None)
    row = TOKENS * 2  # bytes of a value of every token
    q, kv, hidden = 4 * 32, 2 * 32, 128
    expected = [
        (MEMORY, memory(2 * row * hidden)),  # norm: read, written
        (GEMM, gemm(TOKENS, q + 2 * kv, hidden)),
        (MEMORY, memory(2 * row * q)),  # two key heads share a row of columns: queries are copied
        (MEMORY, memory(2 * row * q)),  # rotations
        (MEMORY, memory(2 * row * kv)),
        (MEMORY, memory(2 * row * kv)),  # values, made contiguous
        (MEMORY, 0),  # state of random numbers
        (CORE, 2 * PAIRS * 4 * (32 + 32) // 50),
        (GEMM, gemm(TOKENS, hidden, q)),
        (MEMORY, memory(3 * row * hidden)),  # residual: two read, one written
        (MEMORY, memory(2 * row * hidden)),  # norm
        (GEMM, gemm(TOKENS, 96, hidden)),
        (MEMORY, memory(9 * TOKENS * 96)),  # logits to choice
    ]
    of = np.isin(found.kinds, [int(kind) for kind in (MEMORY, GEMM, CORE)])
    kinds, times = found.kinds[of].tolist(), found.timeline.service_ps[of].tolist()
    assert [(Kind(kind), ps) for kind, ps in zip(kinds, times, strict=True)] == expected
    elementwise = sum(kind == MEMORY for kind, _ in expected)
    total = sum(ps for _, ps in expected) + len(expected) * GAP + elementwise * SMALL
    assert found.end_ps == total


def test_products_of_a_backward_pass_are_those_without_a_stack() -> None:
    """But the gate's gradient of weights, which Megatron adds up with a kernel of its own."""
    listed = layer(parts("megatron-plain", is_backward=True)).services(GEMM)
    bare = layer(Between(GROUPED, "bf16", is_backward=True)).services(GEMM)
    compute, tokens = MACHINE.compute, TOKENS
    gate = compute.gemm_time_ps(96, 128, tokens, "bf16", MACHINE.sm.num_sms)
    assert gate in listed
    listed.remove(gate)
    for one in listed:
        bare.remove(one)
    assert len(bare) == 1


@every("name", TRAINING)
def test_hosts_that_cost_nothing_change_nothing(name: str) -> None:
    instant = hwmodel.load("dgx-h100", ROUND | {"overheads.launch_us": 0.0, "overheads.host_sync_us": 0.0})
    shape = LATENT if name == "deepseek" else GROUPED
    for is_backward in (False, True):
        of = parts(name, shape, is_backward=is_backward)
        of = dataclasses.replace(of, stack=free(of.stack))

        def add(machine: Machine, after: Ints, of: ListedParts = of) -> Ints:
            return of.layer(machine, context(), after, is_dense=False)["dense"]

        def both(machine: Machine, after: Ints, of: ListedParts = of) -> Ints:
            return add(machine, of.hop(machine, context(), after), of)

        ends = [run(add, launch, instant).end_ps for launch in ("eager", None)]
        if of.stack.options.get("graphs", "none") == "none":
            assert ends[0] == ends[1]
        if of.stack.kernels.has("hop"):
            assert run(both, "eager", instant).end_ps >= ends[0]


@every("shape", [GROUPED, LATENT])
def test_bare_parts_take_no_more_where_launches_cost_nothing(shape: ModelShape) -> None:
    """To the picosecond; and launches that cost something hold them up."""
    instant, slow = (hwmodel.load("dgx-h100", ROUND | {"overheads.launch_us": us}) for us in (0.0, 3.0))
    for is_backward in (False, True):
        of = Between(shape, "bf16", is_backward=is_backward)

        def add(machine: Machine, after: Ints, of: Between = of) -> Ints:
            return of.layer(machine, context(), after, is_dense=False)["dense"]

        free_ps, ahead_ps = (run(add, launch, instant).end_ps for launch in ("eager", None))
        assert free_ps == ahead_ps == run(add, None, slow).end_ps
        assert run(add, "eager", slow).end_ps > ahead_ps


@every("name", ["megatron-plain", "automodel"])
def test_a_host_pays_for_every_call(name: str) -> None:
    """It is through when its calls are made, as nothing of these parts waits."""
    for is_backward in (False, True):
        of = parts(name, is_backward=is_backward)
        rows = rows_of(of)
        more = 0
        if not of.stack.kernels.has("shared"):
            bare = Between(GROUPED, "bf16", is_backward=is_backward)
            more = run(lambda m, after, b=bare: b.shared_experts(m, context(), after)).launched
        calls = sum(whole_ps(of.stack, row) for row in rows)
        assert layer(of).host_ps == calls + more * 3 * US


def test_a_scope_is_launched_once() -> None:
    """Inputs are copied by launches of their own, then one launch replays the rest."""
    for graphs, held in (
        ("none", ()),
        ("router", ("router",)),
        ("attention", ("attention", "router")),
    ):
        shape = GROUPED.model_copy(update={"num_shared_experts": 0})
        stack = Stack.of(f"megatron-plain:graphs={graphs}", MACHINE)
        of = parts("megatron-plain", shape, stack=stack)
        rows = rows_of(of)
        alone = [row for row in rows if row.part not in held or not row.captured]
        assert sum(row.name == "inputs of the graph" for row in rows) == bool(held)
        expected = sum(whole_ps(stack, row) for row in alone)
        found = layer(of)
        assert found.launched == sum(row.kernels for row in rows)
        assert found.host_ps == expected + bool(held) * 2_500_000
    assert of.stack.captures("router")
    assert not of.stack.captures("")


def test_calls_without_kernels_take_the_host_their_time_but_in_a_graph() -> None:
    def add(machine: Machine, after: Ints) -> Ints:
        for held in (True, False):
            if held:
                machine.host.begin_graph()
            machine.host.spend(Operation("allocations", 0, host_ps=5 * US))
            machine.host.end_graph()
        return after

    assert run(add).host_ps == 5 * US
    assert run(add, None).host_ps == 0


def test_slices_exchange_as_without_a_stack() -> None:
    """Bytes of the collectives of tensor parallelism, in both passes."""
    for is_backward in (False, True):
        exchanged: list[list[tuple[str, int]]] = []
        for of in (
            parts("megatron-plain:aux_loss=false", tp=2, is_backward=is_backward),
            Between(GROUPED, "bf16", is_backward=is_backward),
        ):
            seen: list[tuple[str, int]] = []

            def record(group: str, what: str, nbytes: int, seen: Any = seen) -> int:
                assert group == "tp"
                seen.append((what, nbytes))
                return 5 * US

            sliced = dataclasses.replace(of, slices=Slices(2, 1, record))
            layer(sliced)
            exchanged.append(sorted(seen))
        assert exchanged[0] == exchanged[1]
        assert len(exchanged[0]) == 4 + 2 * is_backward


def test_few_key_heads_gather_their_columns() -> None:
    """With two key heads on four GPUs each gathers the columns of all, and sums their gradients."""
    for is_backward, what in ((False, "all_gather"), (True, "reduce_scatter")):
        seen: list[tuple[str, int]] = []

        def record(group: str, what: str, nbytes: int, seen: Any = seen) -> int:
            seen.append((what, nbytes))
            return 0

        of = parts("megatron-plain", tp=4, is_backward=is_backward)
        layer(dataclasses.replace(of, slices=Slices(4, 1, record)))
        assert seen.count((what, 2 * TOKENS * (4 + 2 * 2) * 32)) == 1


def test_latent_vectors_are_gathered_one_by_one() -> None:
    """Those of queries, and of keys and values: half of the bytes of both each."""
    seen: list[tuple[str, int]] = []

    def record(group: str, what: str, nbytes: int) -> int:
        seen.append((what, nbytes))
        return 0

    shape = LATENT.model_copy(update={"q_lora_rank": 256})
    of = parts("megatron-plain", shape, tp=2, is_backward=True)
    layer(dataclasses.replace(of, slices=Slices(2, 1, record)))
    assert seen.count(("all_gather", TOKENS * (256 + 64))) == 2
    assert seen.count(("reduce_scatter", 2 * TOKENS * (256 + 64 + 16) // 3)) == 3


def test_gate_and_head_are_bf16_where_layers_are_fp8() -> None:
    sms, compute = MACHINE.sm.num_sms, MACHINE.compute
    gate, up = ([compute.gemm_time_ps(TOKENS, n, 128, dtype, sms) for dtype in ("bf16", "fp8")] for n in (96, 192))
    assert gate[0] != gate[1]
    found = layer(parts("deepseek", LATENT)).services(GEMM)
    assert gate[0] in found
    assert up[1] in found, "latent queries"


def test_gradients_of_weights_are_put_off() -> None:
    whole = layer(parts("megatron-plain", is_backward=True))
    inputs = layer(parts("megatron-plain", is_backward=True, weights="put off"))
    weights = layer(parts("megatron-plain", is_backward=True, weights="alone"))
    both = sorted(inputs.services(GEMM) + weights.services(GEMM))
    assert sorted(whole.services(GEMM)) == both
    assert len(weights.services(GEMM)) == 5  # output, columns, gate, shared up and down
    assert inputs.launched + weights.launched == whole.launched
    assert not weights.services(MEMORY, CORE)


def test_gradients_add_up_in_the_types_of_the_stack() -> None:
    """A weight larger than its operands: twice as many bytes in FP32 as in BF16, or a result."""
    shape = GROUPED.model_copy(update={"hidden": 4096, "dense_intermediate": 4096})
    slow = hwmodel.load("dgx-h100", ROUND | {"hbm.peak_GB_per_s": 1000.0})
    times = {}
    for option in ("main_bytes=4", "main_bytes=2", "gradient_fusion=false"):
        of = parts(f"megatron-plain:{option}", shape, is_backward=True, weights="alone")
        found = run(lambda m, after, o=of: o.layer(m, context(), after, is_dense=True)["dense"], system=slow)
        times[option] = found.services(GEMM)[-1]
    n, k = 2 * 4096, 4096
    operands = 2 * TOKENS * (n + k)
    for option, adds in (("main_bytes=4", 4), ("main_bytes=2", 2)):
        assert times[option] == 2 * (operands + 2 * adds * n * k) + 11 * NS
    product = slow.compute.gemm_time_ps(n, k, TOKENS, "bf16", slow.sm.num_sms)
    assert times["gradient_fusion=false"] == product


def test_what_selective_recomputation_makes_again() -> None:
    for name, shape, dense, expected in (
        ("megatron-plain", GROUPED, False, ["norm", "activation"]),
        ("megatron-plain", GROUPED, True, ["activation"]),
        ("automodel", GROUPED, False, ["norm", "norm"]),
        ("deepseek", LATENT, False, []),
    ):
        of = parts(name, shape, is_backward=True)
        again = run(lambda m, after, o=of, d=dense: o.again(m, context(), after, is_dense=d))
        assert [one.name for one in again.machine.host.program] == expected
    latent = parts("megatron-plain", LATENT, is_backward=True)
    again = run(lambda m, after: latent.again(m, context(), after, is_dense=False))
    assert len(again.services(GEMM)) == 2  # queries, keys and values projected up


def test_a_pair_cuts_a_layer_at_attention() -> None:
    for is_backward in (False, True):
        of = parts("megatron-plain", is_backward=is_backward)

        def add(machine: Machine, after: Ints, of: ListedParts = of) -> Ints:
            ready = of.prepare(machine, 2, context(), after)
            assert machine.host.program, "something lies before attention"
            assert "attention" not in {one.name for one in machine.host.program}
            ended = of.attend(machine, context(), ready)
            return of.shared_experts(machine, context(), ended)

        assert run(add).launched == layer(of).launched


def test_gpus_have_as_many_tokens() -> None:
    of = parts("automodel")
    one = Context(*(np.array([n], np.int64) for n in (TOKENS + 1, TOKENS, PAIRS)))
    with pytest.raises(AssertionError, match="as many tokens"):
        run(lambda m, after: of.layer(m, one, after, is_dense=False)["dense"])


# ---- hops and ends -------------------------------------------------------------------------------


def test_a_hop_takes_the_lead() -> None:
    """The host posts both messages and waits for the device; what follows is launched behind.

    Chunks of a stage post each message by itself, and do not wait. A scale of the routers' loss
    follows forward, of three kernels, a run of autograd backward.
    """
    for is_backward, behind in ((False, 3 * 37_300_000), (True, 46_100_000)):
        of = parts("megatron-plain", is_backward=is_backward)
        found = run(lambda m, after, o=of: o.hop(m, context(), after))
        post, made = 62_600_000, 0 if is_backward else 3  # a call, and a tensor of 2.6 us
        assert found.launched == made
        assert found.host_ps == post + 9 * US + behind
        chunks = dataclasses.replace(of, sizes=dataclasses.replace(of.sizes, chunks=2))
        free_running = run(lambda m, after, o=chunks: o.hop(m, context(), after))
        assert free_running.host_ps == post + 60_000_000 + behind


def test_every_chunk_of_the_first_and_last_stages_takes_a_batch() -> None:
    of = parts("megatron-plain")
    more = parts("megatron-plain:chunk_batches=true")
    each = [run(lambda m, after, o=o: o.hop(m, context(), after)).host_ps for o in (of, more)]
    assert each[1] - each[0] == 2 * (7_300_000 + 2_600_000)


@every("tp", [1, 2])
def test_python_around_a_layer(tp: int) -> None:
    """Hooks of modules and weights, and checkpoints as the plan says, launch nothing."""
    shape = GROUPED.model_copy(update={"num_shared_experts": 0})
    local = shape.num_experts // 8
    looked = 13 * 4_900_000 + (4 + 2 * local) * 3_500_000
    hooks = (2 + 2 * local) * 10_700_000
    for recompute, kept, made in (
        ("none", 0, 0),
        ("full", 56_000_000, 27_700_000),
        ("selective", 2 * 70_000_000, 2 * 90_900_000),
    ):
        for is_backward, expected in ((False, looked + kept), (True, hooks + made)):
            name = f"megatron-plain:recompute={recompute}"
            of = parts(name, shape, tp, is_backward=is_backward)
            rows = [row for row in rows_of(of) if row.operator]
            of_rows = sum(of.stack.costs.ps(row) for row in rows)
            assert of_rows == pytest.approx(expected, abs=len(rows))
            assert not any(row.kernels for row in rows)
            copied = parts(f"{name},copies_again=true", shape, tp, is_backward=is_backward)
            moved = sum(row.moves for row in rows_of(copied)) - sum(r.moves for r in rows_of(of))
            sizes = of.sizes
            again = 4 * sizes.tokens * sizes.hidden + 4 * sizes.rows * sizes.inner
            assert moved == again * (is_backward and recompute == "selective")
            assert layer(copied).end_ps >= layer(of).end_ps


def test_a_gate_in_fp32_multiplies_in_it_and_casts_before_core_0_13() -> None:
    def gate(options: str, *, is_backward: bool) -> list[tuple[str, int, str]]:
        of = parts(f"megatron-plain:{options}", is_backward=is_backward)
        wanted = ("gate", "operands", "gradients in their")
        return [(r.name, r.kernels, r.types) for r in rows_of(of) if r.name.startswith(wanted)]

    own = [("gradients in their own types", 2, "")]
    products = [(f"gate, gradient of {what}, in FP32", 1, "fp32") for what in ("input", "weight")]
    assert gate("router_fp32=true", is_backward=False) == [("gate", 1, "bf16")]
    found = gate("router_fp32=true", is_backward=True)
    assert [one for one in found if "added" not in one[0]] == [
        ("operands in FP32", 2, ""),
        *products,
        *own,
    ]
    old = "router_fp32=true,gate_casts=true"
    assert gate(old, is_backward=False) == [
        ("operands of the gate in FP32", 2, ""),
        ("gate in FP32", 1, "fp32"),
    ]
    found = gate(old, is_backward=True)
    assert [one for one in found if "added" not in one[0]] == [*products, *own]


def ends(name: str, **sizes: int) -> ListedEnds:
    of = parts(name)
    return ListedEnds(
        GROUPED,
        "bf16",
        Slices(),
        np.array([TOKENS]),
        stack=of.stack,
        sizes=dataclasses.replace(of.sizes, **sizes),
    )


@every("name", ["megatron-plain", "megatron-tuned", "automodel"])
def test_ends_launch_what_their_lists_have(name: str) -> None:
    of = ends(name)
    for part in ("embedding", "head"):
        for is_backward in (False, True):
            direction = "backward" if is_backward else "forward"
            rows = of.stack.operations(of.sizes, [part], direction)
            add = getattr(of, part)
            found = run(lambda m, after, a=add, b=is_backward: a(m, after, is_backward=b))
            assert found.launched == sum(row.kernels for row in rows)
            if not any(row.waits for row in rows):
                assert found.host_ps == sum(whole_ps(of.stack, row) for row in rows)
            waits = sum(not one.launches for one in found.machine.host.program)
            assert waits == sum(row.waits for row in rows)


def test_a_batch_comes_to_the_first_and_the_last_stage() -> None:
    """The last stage copies targets and their mask; with one stage the first has all."""
    single, several = (ends("megatron-plain", stages=stages) for stages in (1, 2))
    one, more = (run(lambda m, after, o=of: o.head(m, after, is_backward=False)).host_ps for of in (single, several))
    assert more - one == 2 * (7_300_000 + 2_600_000)


@every("stages", [1, 2])
def test_a_batch_is_handed_to_the_tensor_parallel_group(stages: int) -> None:
    """Two tensors a stage, a broadcast of 60 us each; all four where one stage is first and last."""

    def of_group(part: str, *, tp: int) -> list[ListedOperation]:
        names = ("tokens and positions to the group", "targets and mask to the group")
        of = ends("megatron-plain:group_batches=true", stages=stages, tp=tp)
        rows = of.stack.operations(of.sizes, [part], "forward")
        found = [row for row in rows if row.name in names]
        assert sum(of.stack.costs.ps(row) for row in found) == 120_000_000 * len(found)
        return found

    first, last = (of_group(part, tp=2) for part in ("embedding", "head"))
    assert (len(first), len(last)) == ((2, 0) if stages == 1 else (1, 1))
    assert sum(row.moves for row in (*first, *last)) == (16 + 12) * 2 * TOKENS
    assert not any(of_group(part, tp=1) for part in ("embedding", "head"))
    of = ends("megatron-plain", stages=stages, tp=2)
    assert not any(
        "to the group" in row.name for row in of.stack.operations(of.sizes, ["embedding", "head"], "forward")
    )


def test_a_look_at_the_loss_waits_between_its_kernels() -> None:
    """Twice: a kernel, the wait for it, and the next one is launched behind."""
    of = ends("megatron-plain")
    found = run(lambda m, after: of.head(m, after, is_backward=False))
    last = [(one.name, one.launches) for one in found.machine.host.program[-4:]]
    name = "whether the loss is finite"
    assert last == [(name, 1), (name, 0), (name, 1), (name, 0)]
    row = of.stack.operations(of.sizes, ["head"], "forward")[-1]
    calm = dataclasses.replace(of, stack=Stack.of("megatron-plain:checks_loss=false", MACHINE))
    without = run(lambda m, after: calm.head(m, after, is_backward=False))
    each = of.stack.costs.ps(row) // 2
    # From when both are through: a call, the kernel, the wait, and all that again.
    begun = max(without.end_ps + GAP, without.host_ps + each)
    first = begun + SMALL + 9 * US
    assert found.host_ps == first + each + SMALL + 9 * US


def test_an_end_that_a_list_lacks_is_bare() -> None:
    of = parts("deepseek", LATENT)
    listed = ListedEnds(LATENT, "bf16", Slices(), np.array([TOKENS]), stack=of.stack, sizes=KernelSizes())
    found = run(lambda m, after: listed.head(m, after, is_backward=False))
    assert found.launched == 4  # norm, scores, and two of the loss
