"""The setting ``stack``: what a stack does in each stage of a layer, and what a result says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from loops import every
from small_shape import small_shape
from tiers import mostly_extended

import hwmodel
import replay
import tracegen
from replay.chains import stack_calls
from replay.chains.host_program import outline_layer
from replay.chains.layer_stacks import launched_by
from replay.chains.preparation import make_work
from replay.chains.stack_calls import stage_calls
from replay.errors import UserError
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.experiments.layer.tables.every import ranking
from replay.model.arrays import Tasks
from replay.model.compute.row_moves import row_map
from replay.model.machine.host import OUTSIDE, UNSTAGED, AddedRow, StageCalls
from replay.model.machine.host_script import HostScript
from replay.model.machine.machine import Machine
from replay.model.work.batch import form_batch
from replay.model.work.kernel_lists import KernelSizes
from replay.model.work.kernel_lists.lists import Pass
from replay.model.work.layer import LayerWork
from replay.model.work.precision import Precision
from replay.model.work.stacks import Stack, even_sizes, facts_of, facts_of_place
from replay.model.work.stacks.stack import SERVED
from replay.report.text import render, summary
from replay.schemes import SCHEMES, Scheme, find
from replay.schemes.ep.staged_schemes import STAGES

Synthetic = Callable[..., tracegen.RoutingTrace]
H100 = hwmodel.load("dgx-h100")
SHAPE = small_shape(moe_intermediate=512, num_experts=16, num_layers=2, num_kv_heads=4)
TOKENS, RANKS = 64, 4
PASSES: Mapping[Pass, bool] = {"forward": False, "backward": True}
KNOWN = ("nccl-alltoall", "megatron", "deepep", "hybrid-ep")


@cache
def routed() -> tracegen.RoutingTrace:
    return tracegen.generate.generate("uniform", SHAPE, ranks=RANKS, tokens_per_rank=TOKENS)


@cache
def works() -> Mapping[Pass, LayerWork]:
    batch = form_batch(routed(), num_ranks=RANKS, phase="prefill")
    return {
        direction: make_work(
            routed(),
            batch,
            layer=0,
            placement="contiguous",
            precision=Precision("bf16"),
            is_backward=is_backward,
        )
        for direction, is_backward in PASSES.items()
    }


def sizes() -> KernelSizes:
    return even_sizes(SHAPE, tokens=TOKENS, ranks=RANKS)


def plain(text: str = "megatron-plain") -> Stack:
    return Stack.of(text, H100, facts_of(SHAPE))


def known(scheme: str) -> Scheme:
    """A scheme as it is launched under a list that knows it."""
    return launched_by(find(scheme), "megatron-plain", {}, in_pairs=False, is_training=True)


def scripts(scheme: str) -> dict[Pass, Callable[[], HostScript]]:
    def script(way: Pass) -> HostScript:
        return outline_layer(known(scheme), works()[way], H100).host.script

    return {way: partial(script, way) for way in PASSES}


def calls_of(scheme: str, stack: Stack) -> Mapping[tuple[str, bool], StageCalls]:
    around = stack.with_dispatcher(scheme, known(scheme).list_options)
    return stage_calls(around, known(scheme), sizes(), scripts(scheme), H100).stages


def extension(stack: Stack, direction: Pass) -> StageCalls:
    """Calls of kernels that neither its list nor a library's knows."""
    return StageCalls(stack.costs.call_ps("library", direction))


def waits_of(calls: StageCalls) -> int:
    """Waits that a stack has in a stage besides the scheme's."""
    return sum(row.waits for row in calls.added)


# ---- stages --------------------------------------------------------------------------------------


@every("direction", PASSES)
@every("scheme", KNOWN)
def test_each_row_of_a_layer_is_in_one_group(scheme: str, direction: Pass) -> None:
    """Rows arrive with the last exchange of the first part, and leave with those of the last."""
    stack = plain().with_dispatcher(scheme)
    groups = stack_calls._groups(stack, sizes(), direction)
    parts = ("dispatch", "experts", "combine")
    parts = parts if direction == "forward" else parts[::-1]
    in_order = [row for part in parts for row in stack.operations(sizes(), [part], direction)]
    assert [row for rows in groups.values() for row in rows] == in_order
    arriving, experts, leaving, finish = groups.values()
    ends = (arriving[-1], leaving[0], leaving[-1])
    assert {row.kind for row in ends} == {"exchange"}
    assert "exchange" not in {row.kind for row in (*experts, *finish)}
    assert {row.part for row in arriving} == {parts[0]}


@every("direction", PASSES)
@every("scheme", KNOWN)
def test_stages_have_what_the_list_has_beyond_the_scheme(scheme: str, direction: Pass) -> None:
    """Time is spread over launches; kernels, bytes and waits that the scheme has are not twice."""
    stack = plain().with_dispatcher(scheme)
    is_backward = PASSES[direction]
    found = calls_of(scheme, stack)
    machine = outline_layer(known(scheme), works()[direction], H100)
    for stages, rows in stack_calls._groups(stack, sizes(), direction).items():
        here = [found[stage, is_backward] for stage in stages]
        waited = sum(machine.host.counts.waited[stage, is_backward] for stage in stages)
        runs = machine.host.script.runs([(stage, is_backward) for stage in stages])
        launched = sum(run.kernels for run in runs)
        has, moved, late = Counter[str](), Counter[str](), Counter[str]()
        for run in (run for run in runs if not run.is_product):
            has[run.name] += run.kernels
            moved[run.name] += run.nbytes
            late[run.name] += run.late_ps
        # Experts multiply twice, and backward twice for each; one scheme calls each by itself.
        calls = RANKS if scheme == "megatron" else 1
        assert has.total() == launched - calls * sum(row.kind == "gemm" for row in rows)
        small = [row for row in rows if row.kind != "gemm"]
        listed, of_rows, of_laws = Counter[str](), Counter[str](), Counter[str]()
        for row in small:
            listed[row.name] += row.kernels
            of_rows[row.name] += row.moves
            of_laws[row.name] += stack_calls._late_ps(machine, row)
        added = [row for one in here for row in one.added]
        assert sum(row.what.launches for row in added) == (listed - has).total()
        assert sum(row.waits for row in added) == max(0, sum(row.waits for row in rows) - waited)
        # The scheme's kernels move rows; its elementwise ones may lack bytes of theirs.
        elementwise = {row.name for row in small if row.kind == "memory"}
        lacks = {name for name in of_rows if name not in has or name in elementwise}
        assert +Counter({name: of_rows[name] - moved[name] for name in lacks}) == +_sums(added, "nbytes")
        assert +Counter({name: of_laws[name] - late[name] for name in lacks}) == +_sums(added, "late_ps")
        assert {one.launch_ps for one in here} == {here[0].launch_ps}
        launches = launched + (listed - has).total()
        whole = sum(stack.costs.ps(row) for row in rows)
        assert 0 <= whole - launches * here[0].launch_ps < max(1, launches)


def _sums(added: Iterable[AddedRow], what: str) -> Counter[str]:
    """Bytes or times of laws by name."""
    found: Counter[str] = Counter()
    for row in added:
        found[row.what.name] += getattr(row, what)
    return found


def test_rows_of_a_list_keep_their_laws_in_stages() -> None:
    """The all-to-all's maps are the scheme's own, to the bytes; DeepEP's map of rows is not."""
    stack = plain("megatron-plain:dispatcher=deepep")
    machine = outline_layer(known("deepep"), works()["forward"], H100)
    rows = stack_calls._groups(stack, sizes(), "forward")[stack_calls.EXPERTS]
    (one,) = (row for row in rows if row.law and row.law[0] == "row map")
    assert one.law is not None
    least = row_map(machine, one.law[1], one.law[2]).ps
    beside = least - int(H100.hbm.stream_ps(one.moves))
    added = calls_of("deepep", plain())["experts", False].added
    assert beside > 0 and [row.late_ps for row in added if row.what.name == one.name] == [beside]
    own = calls_of("nccl-alltoall", plain())
    assert one.name not in {row.what.name for stage in STAGES for row in own[stage, False].added}


def test_shared_experts_are_not_launched_with_routed_ones() -> None:
    """DeepSeek's list has them among their kernels, and gradients of weights as a part."""
    stack = plain("deepseek")
    forward, backward = (stack_calls._groups(stack, sizes(), way) for way in PASSES)
    for groups in (forward, backward):
        rows = groups[stack_calls.EXPERTS]
        assert not any(row.shared or "shared" in row.name for row in rows)
    assert sum(row.weights for row in backward[stack_calls.EXPERTS]) == 4
    shared = [stack.experts(sizes(), way, shared=True) for way in PASSES]
    products = [[row.name for row in rows if row.gemm] for rows in shared]
    assert products == [
        ["shared up", "shared down"],
        [
            "shared down, gradient of input",
            "shared up, gradient of input",
            "shared down, gradient of weight",
            "shared up, gradient of weight",
        ],
    ]


def test_kernels_of_a_scheme_that_its_list_lacks_are_an_extension_s() -> None:
    """DeepSeek's list has nothing behind the combine."""
    stack = plain("deepseek")
    assert not stack_calls._groups(stack, sizes(), "forward")[stack_calls.FINISH]
    assert calls_of("deepep", stack)["finish", False] == extension(stack, "forward")


def test_a_copy_that_is_waited_for_is_in_the_wait() -> None:
    stack = plain("megatron-plain:dispatcher=deepep")
    rows = stack.operations(sizes(), ["dispatch"], "forward")
    row = next(row for row in rows if row.waits and row.copies)
    assert stack.costs.ps(row) == stack.costs.ps(row._replace(copies=0))
    copy = stack.costs.ps(row._replace(waits=0)) - stack.costs.ps(row)
    assert copy == stack.costs.call_ps("copy", "forward")


def test_deepep_waits_more_often_in_megatron_than_by_itself() -> None:
    found = calls_of("deepep", plain())
    waits = {stage: waits_of(found[stage, False]) for stage in STAGES}
    # By itself it polls once. Its indices take three waits, padding three and the experts one.
    assert waits == {"send": 0, "receive": 0, "experts": 7, "combine": 0, "finish": 0}
    fewer = calls_of("deepep", plain("megatron-plain:pads_permute=false,experimental=true"))
    assert sum(map(waits_of, fewer.values())) == 0
    assert sum(map(waits_of, calls_of("nccl-alltoall", plain()).values())) == 0


def test_a_fused_scheme_is_an_extension() -> None:
    """Each launch is a call of a library, and outside of the layer operators are PyTorch's."""
    stack = plain()
    found = calls_of("comet", stack)
    for direction, is_backward in PASSES.items():
        library = extension(stack, direction)
        assert {found[one, is_backward] for one in (UNSTAGED, *STAGES)} == {library}
        assert found[OUTSIDE, is_backward].launch_ps == stack.costs.call_ps("torch", direction)


def test_an_unknown_scheme_whose_host_knows_rows_has_the_stacks_experts() -> None:
    stack = plain()
    found = calls_of("deepep-v2", stack)
    rows = stack.operations(sizes(), ["experts"], "forward")
    host = outline_layer(find("deepep-v2"), works()["forward"], H100).host
    experts = found["experts", False]
    launches = host.counts.launched["experts", False] + sum(row.what.launches for row in experts.added)
    assert experts.launch_ps == sum(stack.costs.ps(row) for row in rows) // launches
    # Two launches of the library in a stage take the mean of both.
    ps = {
        name: stack.costs.of("deepep-v2").kernel_ps(name, "forward") for name in ("combine", "combine, reduce epilogue")
    }
    assert found["combine", False] == StageCalls(sum(ps.values()) // 2)
    # The host of nvls never waits, so that experts cannot be told their rows by it.
    unaware = calls_of("nvls", stack)
    assert {unaware[stage, False] for stage in STAGES} == {StageCalls(stack.costs.call_ps("library", "forward"))}


def test_serving_lists_know_no_dispatcher() -> None:
    """Their experts are a scheme's own, too, and costs are without autograd."""
    stack = plain("sglang")
    forward: dict[Pass, Callable[[], HostScript]] = {"forward": scripts("deepep")["forward"]}
    found = stage_calls(stack, find("deepep"), sizes(), forward, H100).stages
    library, torch = (
        stack.costs.call_ps("library", "forward"),
        stack.costs.call_ps("torch", "forward"),
    )
    assert (library, torch) == (14_050_000, 13_400_000)
    assert found["finish", False] == StageCalls(library)
    assert found[OUTSIDE, False] == StageCalls(torch)
    assert found["combine", False].launch_ps > library
    training = plain().costs
    assert training.call_ps("library", "forward") == 43_950_000
    assert training.call_ps("triton", "forward") > stack.costs.call_ps("triton", "forward")


def test_nothing_goes_between_nodes_where_experts_are_within_one() -> None:
    """Hybrid-EP copies tokens for a network only where it sends over one."""
    found = [
        Stack.of(f"megatron-tuned{given}", H100, facts_of_place(H100, ranks)).options["nodes"]
        for given, ranks in (("", 8), ("", 16), (":nodes=nixl", 8))
    ]
    assert found == ["one", "doca", "nixl"]


def test_a_run_within_a_node_has_no_kernels_between_nodes(synthetic: Synthetic) -> None:
    one = replay.run(synthetic(ranks=2), scheme="hybrid-ep", direction="training", stack="megatron-tuned")
    assert one.stack is not None
    assert one.stack.options["nodes"] == "one"


def test_sizes_of_experts_that_gpus_share() -> None:
    whole, halves = sizes(), even_sizes(SHAPE, tokens=TOKENS, ranks=RANKS, sharing=2)
    assert (halves.local, halves.inner, halves.rows) == (
        2 * whole.local,
        whole.inner // 2,
        2 * whole.rows,
    )
    assert whole.copies < halves.copies < whole.copies * 2
    assert even_sizes(SHAPE, tokens=TOKENS, ranks=64).local == 1


# ---- costs that are given ------------------------------------------------------------------------


def test_costs_of_calls_can_be_given() -> None:
    given = plain("megatron-plain:library_us=20,qk_norm=true").costs
    assert given.call_ps("library", "forward") == given.call_ps("library", "backward") == 20_000_000
    assert given.call_ps("torch", "forward") == plain().costs.call_ps("torch", "forward")
    half = hwmodel.load("dgx-h100", {"host.speed": 2.0})
    costs = Stack.of("megatron-plain:library_us=20", half).costs
    assert costs.call_ps("library", "forward") == 10_000_000


@every("value", ["fast", "true", "1.5", "-1"])
def test_a_cost_is_a_whole_number(value: str) -> None:
    with pytest.raises(UserError, match="whole microseconds"):
        plain(f"megatron-plain:library_us={value}")


# ---- practice ------------------------------------------------------------------------------------


def test_practice_is_one_stack_to_train_and_several_to_serve(synthetic: Synthetic) -> None:
    trace = synthetic(ranks=2)
    names = ["deepep", "nccl-ep", "comet"]
    served = replay.compare(trace, names, layer=0, baseline="deepep", stack="practice")
    stacks = {one.scheme.name: one.stack and one.stack.name for one in served.results}
    assert stacks == {"deepep": "vllm", "nccl-ep": "tensorrt-llm", "comet": "sglang"}
    trained = replay.run(trace, scheme="deepep", layer=0, direction="training", stack="practice:experimental=true")
    assert trained.stack is not None
    assert trained.stack.name == "megatron-plain:experimental=true"
    assert trained.stack.options["dispatcher"] == "deepep"
    assert trained.stack.knows
    assert SERVED.keys() <= SCHEMES.keys()


def test_practice_trains_in_fp8_with_scales_of_blocks(synthetic: Synthetic) -> None:
    one = replay.run(
        synthetic(ranks=2),
        scheme="deepep",
        layer=0,
        direction="backward",
        stack="practice",
        precision="fp8",
    )
    assert one.stack is not None
    assert one.stack.options["fp8"] == "blockwise"


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=3, turn=0))
def test_every_scheme_runs_in_practice_and_calls_that_cost_nothing_change_nothing(
    scheme: str, synthetic: Synthetic
) -> None:
    """Bare launches that cost nothing are calls that cost nothing, but that CUTLASS's experts have maps."""
    check_practice(synthetic(ranks=2), scheme, "forward", adds=scheme == "trtllm-alltoall")


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=3, turn=1))
def test_every_scheme_trains_in_practice(scheme: str, synthetic: Synthetic) -> None:
    if find(scheme).passes != {"forward", "backward"}:
        pytest.skip("has no backward pass")
    adds = stack_calls.brings_experts(plain(), find(scheme), H100)
    adds = adds or plain().knows(scheme)
    check_practice(synthetic(ranks=2), scheme, "training", adds=adds)


def check_practice(trace: tracegen.RoutingTrace, scheme: str, direction: str, *, adds: bool) -> None:
    """Hosts cost something, and nothing where their calls cost nothing and add no kernels."""
    system = hwmodel.load("dgx-h100", {"overheads.launch_us": 0.0})
    if find(scheme).lacks(system):
        pytest.skip("of another platform")

    def time(stack: str) -> float:
        return replay.run(
            trace,
            scheme=scheme,
            system=system,
            layer=0,
            barrier=True,
            tune=False,
            direction=direction,
            stack=stack,
        ).totals.makespan_us

    bare, costly = time("bare"), time("practice")
    assert costly > bare or scheme == "ideal"
    if not adds:
        assert time("practice:library_us=0,torch_us=0") == bare


# ---- what results say ----------------------------------------------------------------------------


def test_results_say_by_whose_hosts_they_were_launched(synthetic: Synthetic) -> None:
    trace = synthetic(ranks=2)
    bare = replay.run(trace, scheme="deepep", layer=0, stack="bare")
    under = replay.run(trace, scheme="deepep", layer=0, stack="sglang")
    assert "stack" not in json.loads(bare.to_json())
    assert bare.run_id != under.run_id
    document = json.loads(under.to_json())
    assert document["stack"] == {
        "name": "sglang",
        "knows": False,
        "options": {
            "dispatcher": "none",
            "fp8_experts": False,
            "signals": False,
            "qk_norm": True,
            "fused_qk_norm_rope": False,
            "fused_reduce": False,
        },
    }
    heading, *_ = summary(under).split(" remote GPUs per token")
    assert "Launched kernel by kernel by hosts of sglang." in heading
    assert "Launched kernel by kernel by bare hosts." in summary(bare)


def test_layers_are_launched_as_in_practice_by_default(synthetic: Synthetic) -> None:
    """One spec or none, in Python or as a file, of one step or of many."""
    trace = synthetic(ranks=2)
    asked: dict[str, Any] = {"scheme": "deepep", "layer": 0}
    usual, practice = replay.run(trace, **asked), replay.run(trace, **asked, stack="practice")
    assert usual.totals == practice.totals != replay.run(trace, **asked, stack="bare").totals
    assert usual.stack == practice.stack
    assert replay.run(trace, RunSpec.from_toml('scheme = "deepep"\nlayer = 0\n')).totals == usual.totals
    assert replay.compare(trace, ["deepep"], layer=0)["deepep"].totals == usual.totals
    assert replay.run(trace, **asked, steps="all").steps[0].makespan_us == usual.totals.makespan_us


@every(
    ("given", "why"),
    [
        ({"scheme": "ideal", "system": "mi300x-x8"}, "nothing is known of those of mi300x-x8"),
        ({"communication_only": True}, "calls of a stack are of whole layers"),
        ({"precision": "fp32", "direction": "backward"}, "no fp32 products in the list of what runs it"),
    ],
)
def test_hosts_are_bare_where_those_in_practice_are_not_known(
    given: dict[str, Any], why: str, synthetic: Synthetic
) -> None:
    """An explicit stack is refused there."""
    asked: dict[str, Any] = {"scheme": "nccl-alltoall", "layer": 0, **given}
    one = replay.run(synthetic(ranks=2), **asked)
    assert one.stack is None
    assert one.totals == replay.run(synthetic(ranks=2), **asked, stack="bare").totals
    assert f"Launched kernel by kernel by bare hosts ({why})." in " ".join(summary(one).split())
    with pytest.raises(UserError):
        replay.run(synthetic(ranks=2), **asked, stack="practice")


def test_results_of_before_were_launched_bare(synthetic: Synthetic, tmp_path: Path) -> None:
    """As long as no spec named a stack by default, and an estimate stood beside."""
    one = replay.run(synthetic(ranks=2), scheme="deepep", layer=0, stack="bare")
    document = json.loads(one.to_json())
    del document["spec"]["stack"]
    document["practice"] = {"stack": {"name": "vllm", "options": {}, "knows": False}, "host_us": 227.8, "waits": 1}
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert replay.load_result(tmp_path / "old.json") == one


def test_comparisons_say_which_stack_launches_which_scheme(synthetic: Synthetic) -> None:
    both = replay.compare(
        synthetic(ranks=2, phase="decode"),
        ["deepep", "nvls"],
        layer=0,
        baseline="deepep",
        stack="practice",
    )
    text = " ".join(summary(both).split())
    assert "Launched kernel by kernel by hosts of vllm: deepep." in text
    held = "Launched as CUDA graphs by hosts of"
    assert f"{held} megatron-inference: nvls." in text
    end = "so that kernels for rows are calls of an extension"
    assert f"Not in the list of vllm, {end}: all." in text  # that of megatron-inference knows nvls
    assert (
        "Costs of calls are uncertain: `moereplay compare --uncertainty 20` draws them, --stack practice:library_us=20"
        in text
    )
    assert f"{held} megatron-inference: nvls." in " ".join(render(ranking(both)).split())


def test_schemes_that_a_list_does_not_know_are_named_beside_those_that_it_does(
    synthetic: Synthetic,
) -> None:
    both = replay.compare(synthetic(ranks=2), ["deepep", "nvls"], layer=0, baseline="deepep", stack="megatron-plain")
    text = " ".join(summary(both).split())
    assert "Not in the list of megatron-plain, " in text
    assert "are calls of an extension: nvls." in text


@every(("stack", "option"), [("deepseek", "bare"), ("vllm", "sglang")])
def test_two_lists_around_the_same_exchanges_are_refused(synthetic: Synthetic, stack: str, option: str) -> None:
    how: dict[str, Any] = {"direction": "training", "interleave": "dualpipe"}
    with pytest.raises(UserError, match=rf"option stack={option} .* give one of them"):
        replay.run(
            synthetic(ranks=2, steps=2),
            scheme="deepep",
            options={"stack": option},
            stack=stack,
            **(how if stack == "deepseek" else {}),
        )
    with pytest.raises(UserError, match=r"option stack=deepseek .* give one of them"):
        replay.run(
            synthetic(ranks=2, steps=2),
            scheme="deepep",
            options={"stack": "deepseek"},
            stack="megatron-plain",
            **how,
        )


def test_a_list_that_knows_a_scheme_leaves_no_room_for_an_engine_s_kernels(synthetic: Synthetic) -> None:
    """Also in practice; a name that was given is refused beside the list, and kept where engines serve."""

    def option(**given: Any) -> str:
        how: dict[str, Any] = {"stack": "practice", "options": {}, "in_pairs": False, "is_training": True, **given}
        found = launched_by(find("deepep").with_options(how["options"]), **how)
        return str(getattr(found.options, "stack", ""))

    assert [option(stack=stack) for stack in ("megatron-plain", "megatron-tuned:qk_norm=true", "automodel")] == [
        "bare"
    ] * 3
    assert option(stack="deepseek") == "bare"
    assert option(stack="deepseek", in_pairs=True) == "deepseek"
    assert option() == "bare"
    assert option(options={"stack": "bare"}) == "bare"
    with pytest.raises(UserError, match=r"megatron-plain, which runs it in practice, and option stack=sglang .* bare"):
        option(options={"stack": "sglang"})
    assert option(is_training=False) == "vllm"
    assert option(is_training=False, options={"stack": "sglang"}) == "sglang"
    assert option(stack="sglang", is_training=False) == "sglang"
    with pytest.raises(UserError, match=r"--stack megatron-plain and option stack=vllm .* give one of them"):
        replay.run(synthetic(ranks=2), scheme="deepep", layer=0, stack="megatron-plain", options={"stack": "vllm"})


def test_a_wrong_name_of_a_layer_s_stack_is_answered_with_that_in_practice_among_others(synthetic: Synthetic) -> None:
    with pytest.raises(
        UserError, match=r"unknown stack 'pratice' \(did you mean 'practice'\?\); known: automodel, bare"
    ):
        replay.run(synthetic(ranks=2), scheme="deepep", layer=0, stack="pratice")


def test_what_a_stack_launches_is_no_option_that_was_given(synthetic: Synthetic) -> None:
    """A scheme by name and as an object are alike, and a forward pass of a training layer's settings is its own."""
    trace = synthetic(ranks=2)
    named, made = (
        replay.run(trace, scheme=one, layer=0, direction="training", barrier=True) for one in ("deepep", find("deepep"))
    )
    assert named.spec.options == made.spec.options == {}
    assert named.scheme.options["stack"] == "bare"
    assert (named.run_id, named.totals) == (made.run_id, made.totals)
    assert named.stack is not None
    forward = replay.run(trace, spec=named.spec.changed(direction="forward"))
    assert forward.totals == replay.run(trace, scheme="deepep", layer=0, barrier=True).totals


def test_a_stack_has_its_kernels_around_a_scheme_that_knows_them(synthetic: Synthetic) -> None:
    """As with the scheme's option, and by its hosts; bare hosts launch them, too."""
    trace = synthetic(ranks=2)
    for scheme in ("deepep", "deepep-v2"):
        by_option, under, bare = (
            replay.run(trace, scheme=scheme, layer=0, options=options, stack=stack)
            for options, stack in (({"stack": "sglang"}, None), ({}, "sglang"), ({"stack": "sglang"}, "bare"))
        )
        assert by_option.scheme == under.scheme == bare.scheme
        assert under.stack is not None
        assert under.stack == by_option.stack
        assert under.stack.name == "sglang"
        assert under.totals == by_option.totals != bare.totals
        assert bare.stack is None
    for scheme in ("deepep", "deepep-v2"):
        compared, none = (
            replay.run(trace, scheme=scheme, layer=0, stack=stack, options=options)
            for options, stack in (({}, "deepgemm"), ({"stack": "deepgemm"}, "bare"))
        )
        assert compared.stack is None and compared.scheme == none.scheme
        assert compared.totals == none.totals
    other = replay.run(trace, scheme="megamoe", layer=0, stack="deepgemm")
    assert other.totals == replay.run(trace, scheme="megamoe", layer=0, stack="bare").totals
    with pytest.raises(UserError, match="bare has no options"):
        replay.run(trace, scheme="deepep", layer=0, stack="bare:library_us=20")


@every(
    ("settings", "message"),
    [
        ({"stack": "practice:dispatcher=deepep", "direction": "training"}, "the scheme says who"),
        ({"stack": "megatron"}, "unknown stack 'megatron'"),
        ({"stack": "practice:nothing=1"}, "unknown option of vllm 'nothing'"),
        ({"stack": "sglang", "direction": "training"}, "no backward pass; those that train are"),
        ({"stack": "megatron-plain:fp8=mxfp8"}, "fp8 is mxfp8 and GEMMs are bf16"),
        ({"stack": "deepseek"}, "GEMMs are fp8, and not bf16"),
        ({"stack": "sglang", "communication_only": True}, "--communication-only and --stack"),
        ({"scheme": "pangu", "stack": "sglang", "system": "atlas-800t-a2"}, "has no table [host]"),
    ],
)
def test_what_no_stack_does_is_refused(settings: dict[str, Any], message: str, synthetic: Synthetic) -> None:
    with pytest.raises(UserError) as error:
        replay.run(synthetic(ranks=2), **{"scheme": "deepep", "layer": 0, **settings})
    assert message in str(error.value)


def test_schemes_that_a_list_does_not_know_have_no_types_there(synthetic: Synthetic) -> None:
    one = replay.run(synthetic(ranks=2), scheme="comet", layer=0, stack="deepseek")
    assert one.stack is not None
    assert not one.stack.knows


def test_passes_that_overlap_have_megatrons_streams(synthetic: Synthetic) -> None:
    for kind, overlap in (("off", "none"), ("megatron", "passes")):
        one = replay.run(
            synthetic(ranks=2, steps=2),
            scheme="deepep",
            direction="training",
            stack="practice",
            interleave=kind,
        )
        assert one.stack is not None
        assert one.stack.options["overlap"] == overlap


def calls_under(trace: tracegen.RoutingTrace, **settings: Any) -> Mapping[tuple[str, bool], StageCalls]:
    spec = RunSpec(scheme="deepep", stack="megatron-plain", **settings)
    calls = set_up(spec, {}).prepare(trace).calls
    assert calls is not None
    return calls.stages


def test_micro_batches_have_rows_of_their_own(synthetic: Synthetic) -> None:
    """Kernels that a stack adds move half of the bytes in each half of a batch."""
    trace = synthetic(ranks=2, tokens_per_rank=64)
    whole, half = (calls_under(trace, interleave=kind) for kind in ("off", "tbo"))
    stages = ("send", False), ("experts", False), ("finish", False)
    assert sum(row.nbytes for stage in stages for row in whole[stage].added) > 0
    for stage in stages:
        one = whole[stage]
        rows = [row._replace(nbytes=row.nbytes // 2, late_ps=row.late_ps // 2) for row in one.added]
        assert half[stage] == one._replace(added=tuple(rows))
    assert half[OUTSIDE, False] == whole[OUTSIDE, False]


def test_halves_of_a_batch_have_all_of_a_stacks_kernels(synthetic: Synthetic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those at the end of a stage among them."""
    launched: list[str] = []
    add_rows = Machine._add_rows

    def noting(machine: Machine, rows: Iterable[AddedRow], after: Tasks) -> Tasks:
        found = list(rows)
        launched.extend(row.what.name for row in found)
        return add_rows(machine, found, after)

    monkeypatch.setattr(Machine, "_add_rows", noting)
    trace, names = synthetic(ranks=2, tokens_per_rank=64), []
    for kind in ("off", "tbo"):
        launched.clear()
        replay.run(trace, scheme="deepep", layer=0, stack="megatron-plain", interleave=kind)
        names.append(Counter(launched))
    whole, halves = names
    assert whole["residual"] == 1
    assert halves == whole + whole


def test_another_machine_has_hosts_of_its_own_speed(synthetic: Synthetic) -> None:
    """As if the layer had been made ready on it, within a picosecond a launch."""
    trace = synthetic(ranks=2, tokens_per_rank=64)
    spec = RunSpec(scheme="deepep", stack="megatron-plain")
    slow = {"host.speed": 0.5}
    ready = set_up(spec, {}).prepare(trace)
    made = set_up(spec.model_copy(update={"overrides": slow}), {}).prepare(trace)
    moved = ready.under(ready.scheme, made.system)
    assert moved.stack == made.stack
    assert moved.calls is not None and made.calls is not None
    for stage, calls in made.calls.stages.items():
        found = moved.calls.stages[stage]
        assert found.launch_ps == pytest.approx(calls.launch_ps, abs=2)
        assert found._replace(launch_ps=0) == calls._replace(launch_ps=0)
    assert ready.under(ready.scheme).calls == ready.calls


def test_gpus_that_share_experts_launch_for_twice_as_many(synthetic: Synthetic) -> None:
    """A product of Transformer Engine is a call for each expert of a GPU."""
    trace = synthetic(ranks=2)
    whole, shared = (calls_under(trace, expert_tp=gpus)["experts", False] for gpus in (1, 2))
    kernels = [[row.what for row in one.added if row.what.launches] for one in (whole, shared)]
    assert kernels[0] == kernels[1]
    assert shared.launch_ps > 1.3 * whole.launch_ps


@every(
    ("scheme", "stack", "by", "settings"),
    [
        ("trtllm-alltoall", "tensorrt-llm:fused_sum=true", "fused_sum, by its experts", {}),
        ("trtllm-alltoall", "practice:payload_in_workspace=true", "by its option payload_in_workspace", {}),
        ("deepep-ll", "sglang:signals=true", "signals, by its option overlap_sms", {}),
        ("deepep-ll", "sglang:fp8_experts=true", "fp8_experts, by the type of products", {}),
        ("deepep-ll", "sglang:fp8_experts=true", "fp8_experts, by the type of products", {"precision": "fp8"}),
    ],
)
def test_options_that_a_scheme_decides_are_refused(
    scheme: str, stack: str, by: str, settings: dict[str, str], synthetic: Synthetic
) -> None:
    """They would contradict its kernels, or change nothing."""
    with pytest.raises(UserError, match=rf"^--stack \S+: scheme '{scheme}' decides .*{by}"):
        replay.run(synthetic(ranks=2, phase="decode"), scheme=scheme, layer=0, stack=stack, **settings)


def test_options_that_change_no_layer_are_refused(synthetic: Synthetic) -> None:
    trace = synthetic(ranks=2)
    with pytest.raises(UserError, match=r"fused_reduce changes no layer.*library_us=20"):
        replay.run(trace, scheme="deepep", layer=0, stack="sglang:fused_reduce=true")
    one = replay.run(trace, scheme="deepep", layer=0, stack="sglang:library_us=20")
    assert one.stack is not None
