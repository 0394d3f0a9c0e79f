"""The setting ``stack``: what a stack does in each stage of a layer, and what a result says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any
from unittest import mock

import pytest
from host_times import launched
from loops import every
from tiers import mostly_extended

import hwmodel
import replay
import tracegen
from replay.chains import layer_stacks, stack_calls
from replay.chains.host_program import outline_layer
from replay.chains.preparation import make_work
from replay.chains.replay import Replay
from replay.chains.settings import ChainSettings
from replay.chains.stack_calls import stage_calls
from replay.errors import UserError
from replay.experiments.layer import replay as carried_out
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.experiments.layer.tables.every import ranking
from replay.model.compute.row_moves import row_map
from replay.model.machine.host import OUTSIDE, UNSTAGED, Calls, StageCalls
from replay.model.machine.host_script import HostScript
from replay.model.work.batch import Batch, form_batch
from replay.model.work.kernel_lists import KernelSizes
from replay.model.work.kernel_lists.lists import Pass
from replay.model.work.layer import LayerWork
from replay.model.work.precision import Precision
from replay.model.work.stacks import Stack, even_sizes, facts_of, facts_of_place
from replay.model.work.stacks.stack import SERVED
from replay.report.text import render, summary
from replay.schemes import SCHEMES, find
from replay.schemes.ep.staged_schemes import STAGES
from tracegen.models import ModelShape

Synthetic = Callable[..., tracegen.RoutingTrace]
H100 = hwmodel.load("dgx-h100")
SHAPE = ModelShape(
    name="small",
    hidden=1024,
    moe_intermediate=512,
    num_experts=16,
    topk=2,
    num_layers=2,
    gated=True,
    num_heads=8,
    num_kv_heads=4,
    head_dim=128,
)
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


def scripts(scheme: str) -> dict[Pass, Callable[[], HostScript]]:
    def script(way: Pass) -> HostScript:
        return outline_layer(find(scheme), works()[way], H100).host.script

    return {way: partial(script, way) for way in PASSES}


def calls_of(scheme: str, stack: Stack) -> Mapping[tuple[str, bool], StageCalls]:
    return stage_calls(stack, find(scheme), sizes(), scripts(scheme), H100).stages


# ---- stages --------------------------------------------------------------------------------------


@every("direction", PASSES)
@every("scheme", KNOWN)
def test_each_row_of_a_layer_is_in_one_group(scheme: str, direction: Pass) -> None:
    """Rows arrive with the last exchange of the first part, and leave with those of the last."""
    stack = plain().with_dispatcher(scheme)
    assert stack is not None
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
    assert stack is not None
    is_backward = PASSES[direction]
    found = calls_of(scheme, stack)
    machine = outline_layer(find(scheme), works()[direction], H100)
    counts = machine.host.counts
    for stages, rows in stack_calls._groups(stack, sizes(), direction).items():
        here = [found[stage, is_backward] for stage in stages]
        launched = sum(counts.launched[stage, is_backward] for stage in stages)
        waited = sum(counts.waited[stage, is_backward] for stage in stages)
        moved = sum(counts.moved[stage, is_backward] for stage in stages)
        # Experts multiply twice, and backward twice for each; one scheme calls each by itself.
        calls = RANKS if scheme == "megatron" else 1
        products = calls * sum(row.kind == "gemm" for row in rows)
        small = [row for row in rows if row.kind != "gemm"]
        others = sum(row.kernels for row in small) - (launched - products)
        assert here[0].others == max(0, others)
        assert here[0].nbytes == max(0, sum(row.moves for row in small) - moved)
        assert here[0].waits == max(0, sum(row.waits for row in rows) - waited)
        late_ps = sum(counts.late_ps[stage, is_backward] for stage in stages)
        listed_ps = sum(stack_calls._late_ps(machine, row) for row in small)
        assert here[0].late_ps == max(0, listed_ps - late_ps)
        assert {one[1:] for one in here[1:]} <= {(0, 0, 0, 0)}
        assert {one.launch_ps for one in here} == {here[0].launch_ps}
        launches = launched + here[0].others
        whole = sum(stack.costs.ps(row) for row in rows)
        assert 0 <= whole - launches * here[0].launch_ps < max(1, launches)


def test_rows_of_a_list_keep_their_laws_in_stages() -> None:
    """The all-to-all's maps are the scheme's own, to the bytes; DeepEP's map of rows is not."""
    stack = plain("megatron-plain:dispatcher=deepep")
    machine = outline_layer(find("deepep"), works()["forward"], H100)
    rows = stack_calls._groups(stack, sizes(), "forward")[stack_calls.EXPERTS]
    (one,) = (row for row in rows if row.law and row.law[0] == "row map")
    assert one.law is not None
    least = row_map(machine, one.law[1], one.law[2]).ps
    beside = least - int(H100.hbm.stream_ps(one.moves))
    found = calls_of("deepep", plain())["experts", False].late_ps
    others = sum(stack_calls._late_ps(machine, row) for row in rows if row is not one)
    assert beside > 0 and found == beside + others
    own = calls_of("nccl-alltoall", plain())
    assert sum(own[stage, False].late_ps for stage in STAGES) < beside


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
    call = stack.costs.call_ps("library", "forward")
    assert calls_of("deepep", stack)["finish", False] == StageCalls(call)


def test_a_copy_that_is_waited_for_is_in_the_wait() -> None:
    stack = plain("megatron-plain:dispatcher=deepep")
    rows = stack.operations(sizes(), ["dispatch"], "forward")
    row = next(row for row in rows if row.waits and row.copies)
    assert stack.costs.ps(row) == stack.costs.ps(row._replace(copies=0))
    copy = stack.costs.ps(row._replace(waits=0)) - stack.costs.ps(row)
    assert copy == stack.costs.call_ps("copy", "forward")


def test_deepep_waits_more_often_in_megatron_than_by_itself() -> None:
    found = calls_of("deepep", plain())
    waits = {stage: found[stage, False].waits for stage in STAGES}
    # By itself it polls once. Its indices take three waits, padding three and the experts one.
    assert waits == {"send": 0, "receive": 0, "experts": 7, "combine": 0, "finish": 0}
    fewer = calls_of("deepep", plain("megatron-plain:pads_permute=false,experimental=true"))
    assert sum(one.waits for one in fewer.values()) == 0
    assert sum(calls_of("nccl-alltoall", plain())[stage, False].waits for stage in STAGES) == 0


def test_a_fused_scheme_is_an_extension() -> None:
    """Each launch is a call of a library, and outside of the layer operators are PyTorch's."""
    stack = plain()
    found = calls_of("comet", stack)
    for direction, is_backward in PASSES.items():
        library = StageCalls(stack.costs.call_ps("library", direction))
        assert {found[one, is_backward] for one in (UNSTAGED, *STAGES)} == {library}
        assert found[OUTSIDE, is_backward].launch_ps == stack.costs.call_ps("torch", direction)


def test_an_unknown_scheme_whose_host_knows_rows_has_the_stacks_experts() -> None:
    stack = plain()
    found = calls_of("deepep-v2", stack)
    rows = stack.operations(sizes(), ["experts"], "forward")
    host = outline_layer(find("deepep-v2"), works()["forward"], H100).host
    experts = found["experts", False]
    launches = host.counts.launched["experts", False] + experts.others
    assert experts.launch_ps == sum(stack.costs.ps(row) for row in rows) // launches
    library = StageCalls(stack.costs.call_ps("library", "forward"))
    assert {found[stage, False] for stage in STAGES if stage != "experts"} == {library}
    # The host of nvls never waits, so that experts cannot be told their rows by it.
    unaware = calls_of("nvls", stack)
    assert {unaware[stage, False] for stage in STAGES} == {library}


def test_serving_lists_know_no_dispatcher() -> None:
    """Their experts are a scheme's own, too, and costs are without autograd."""
    stack = plain("sglang")
    forward: dict[Pass, Callable[[], HostScript]] = {"forward": scripts("deepep")["forward"]}
    found = stage_calls(stack, find("deepep"), sizes(), forward, H100).stages
    library, torch = (
        stack.costs.call_ps("library", "forward"),
        stack.costs.call_ps("torch", "forward"),
    )
    assert (library, torch) == (13_400_000, 13_400_000)
    assert set(found.values()) == {StageCalls(library), StageCalls(torch)}
    training = plain().costs
    assert training.call_ps("library", "forward") == 42_800_000
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
    """Bare launches that cost nothing are calls that cost nothing, where no kernel is added."""
    check_practice(synthetic(ranks=2), scheme, "forward", adds=False)


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=3, turn=1))
def test_every_scheme_trains_in_practice(scheme: str, synthetic: Synthetic) -> None:
    if find(scheme).passes != {"forward", "backward"}:
        pytest.skip("has no backward pass")
    adds = stack_calls.brings_experts(plain(), find(scheme), H100)
    adds = adds or plain().with_dispatcher(scheme) is not None
    check_practice(synthetic(ranks=2), scheme, "training", adds=adds)


def check_practice(trace: tracegen.RoutingTrace, scheme: str, direction: str, *, adds: bool) -> None:
    """Hosts cost something, and nothing where their calls cost nothing and add no kernels."""
    system = hwmodel.load("dgx-h100", {"overheads.launch_us": 0.0})
    if find(scheme).lacks(system):
        pytest.skip("of another platform")

    def time(stack: str | None) -> float:
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

    bare, costly = time(None), time("practice")
    assert costly > bare or scheme == "ideal"
    if not adds:
        assert time("practice:library_us=0,torch_us=0") == bare


# ---- what results say ----------------------------------------------------------------------------


def test_without_a_stack_nothing_says_so(synthetic: Synthetic) -> None:
    trace = synthetic(ranks=2)
    bare = replay.run(trace, scheme="deepep", layer=0)
    under = replay.run(trace, scheme="deepep", layer=0, stack="sglang")
    assert "stack" not in json.loads(bare.to_json())
    assert "stack" not in RunSpec().model_dump()
    assert bare.run_id != under.run_id
    document = json.loads(under.to_json())
    assert document["stack"] == {
        "name": "sglang",
        "knows": False,
        "options": {"qk_norm": True, "fused_qk_norm_rope": False, "fused_reduce": False},
    }
    heading, *_ = summary(under).split(" remote GPUs per token")
    assert "Launched kernel by kernel by hosts of sglang." in heading
    assert "by hosts of" not in summary(bare)


def test_bare_results_say_what_hosts_take_in_practice(synthetic: Synthetic) -> None:
    """A replay under practice whose GPUs are done long before takes as long as its calls."""
    trace = synthetic(ranks=2)
    asked: dict[str, Any] = {"scheme": "hybrid-ep", "layer": 0, "barrier": True, "direction": "training"}
    bare, under = replay.run(trace, **asked), replay.run(trace, **asked, stack="practice")
    practice = bare.practice
    assert practice is not None
    assert practice.stack == under.stack
    assert practice.waits == sum(calls_of("hybrid-ep", plain())[stage, False].waits for stage in STAGES) + 1
    # The mean of both passes; waits, and kernels behind the last launch, are what is more.
    assert practice.host_us == pytest.approx(under.totals.mean_layer_us, rel=0.05)
    assert practice.host_us < under.totals.mean_layer_us
    assert bare.totals == replay.run(trace, **asked, stack="bare").totals
    text = " ".join(summary(bare).split())
    assert f"hold up a layer: hybrid-ep ({practice.host_us:,.0f} us of host time under megatron-plain)." in text
    charged = "Of host time launches and waits alone are charged, nothing of a framework's."
    heading, *_ = text.split(" remote GPUs per token")
    asked_by = "Those of what trains or serves with each scheme: --stack practice, which is not the default since "
    assert f"Launched kernel by kernel by bare hosts. {asked_by}" in heading
    assert f"{charged} With a framework's host time (--stack practice)" in text


@pytest.mark.parametrize("scheme", mostly_extended(SCHEMES, share=3, turn=2))
def test_what_hosts_take_in_practice_is_what_a_layer_takes_that_they_launch_so(
    scheme: str, synthetic: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts of layers that were replayed, in any order, against layers described for these hosts."""
    made: list[Calls] = []
    compared: list[tuple[int, int]] = []
    given_calls, practice = layer_stacks.calls_of, layer_stacks.in_practice

    def calls_of(*given: Any) -> Calls:
        made.append(given_calls(*given))
        assert made[-1] == given_calls(*given[:-1])  # without scripts that are known
        return made[-1]

    def both(settings: ChainSettings, trace: tracegen.RoutingTrace, batch: Batch, bare: Replay) -> Any:
        found = practice(settings, trace, batch, bare)
        assert found is not None
        host_ps = waits = 0
        for is_backward in settings.passes:
            link = next(link for link in bare.links if link.is_backward == is_backward)
            turns = max(1, len(link.micro_batches))
            with launched() as times:
                host = outline_layer(bare.scheme, link.work(), bare.system, bare.launch, made[-1]).host
            host_ps += turns * sum(times)
            waits = max(waits, turns * host.counts.waited.total())
        compared.append((found.host_ps, found.waits))
        assert compared[-1] == (host_ps // len(settings.passes), waits)
        assert not bare.under(bare.scheme).scripts
        return found

    monkeypatch.setattr(layer_stacks, "calls_of", calls_of)
    monkeypatch.setattr(carried_out, "in_practice", both)
    if find(scheme).lacks(H100):
        pytest.skip("of another platform")
    trains = find(scheme).passes == {"forward", "backward"}
    interleaves = getattr(find(scheme), "interleaves", ())
    for launch in ("eager", "graph"):
        for more in (
            {"layer": 1},
            {"layer": 1, "direction": "training", "barrier": True},
            {"layer": (0, 1), "direction": "training"},
            {"layer": (0, 1), "interleave": "dbo"},
            {"layer": (0, 1), "interleave": "dualpipe", "direction": "training"},
        ):
            if launch == "graph" and "direction" in more:
                continue
            if (trains or "direction" not in more) and ("interleave" not in more or more["interleave"] in interleaves):
                replay.run(synthetic(ranks=2, steps=2), scheme=scheme, system=H100, launch=launch, tune=False, **more)
    assert len(compared) >= 2


def test_practice_is_that_of_the_passes_in_a_sample_of_layers(synthetic: Synthetic) -> None:
    trace = synthetic(ranks=2, layers=4)
    asked: dict[str, Any] = {"scheme": "hybrid-ep", "barrier": True}
    sampled = replay.run(trace, **asked, direction="training", sample_layers=2)
    assert len(sampled.layers) == 2  # both backward, by their draw
    assert sampled.practice == replay.run(trace, **asked, direction="backward").practice


@pytest.mark.parametrize(("asked", "again"), [({"layer": 1}, 0), ({"layer": (0, 1)}, 0), ({"interleave": "dbo"}, 1)])
def test_layers_that_were_replayed_one_after_the_other_are_not_described_again(
    asked: dict[str, Any], again: int, synthetic: Synthetic
) -> None:
    with mock.patch.object(layer_stacks, "outline_layer", side_effect=outline_layer) as described:
        assert replay.run(synthetic(ranks=2), scheme="deepep-ll", tune=False, **asked).practice is not None
    assert described.call_count == again


@pytest.mark.parametrize("given", [{"stack": "bare"}, {"system": "mi300x-x8"}, {"communication_only": True}])
def test_practice_is_not_told_where_it_was_asked_or_is_not_known(given: dict[str, Any], synthetic: Synthetic) -> None:
    one = replay.run(synthetic(ranks=2), scheme="ideal", layer=0, **given)
    assert one.practice is None
    assert "practice" not in json.loads(one.to_json())
    assert "Launched kernel by kernel by " in summary(one)
    assert "--stack practice" not in summary(one)


def test_graphs_hold_calls_but_not_those_behind_a_wait(synthetic: Synthetic) -> None:
    trace = synthetic(ranks=2, phase="decode")
    found = {name: replay.run(trace, scheme=name, layer=0).practice for name in ("nvls", "deepep")}
    eager = replay.run(trace, scheme="nvls", layer=0, launch="eager").practice
    assert found["nvls"] and found["deepep"] and eager
    assert found["nvls"].host_us < 10 < eager.host_us  # one launch of the graph
    assert found["deepep"].waits == 1
    assert found["nvls"].waits == 0


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
    held = "Launched as CUDA graphs, in each layer until a host waits by hosts of"
    assert f"{held} megatron-inference: nvls." in text
    end = "so that kernels for rows are calls of an extension"
    assert f"Not in the list of vllm, {end}: all." in text  # that of megatron-inference knows nvls
    assert f"{held} megatron-inference: nvls." in " ".join(render(ranking(both)).split())


def test_schemes_that_a_list_does_not_know_are_named_beside_those_that_it_does(
    synthetic: Synthetic,
) -> None:
    both = replay.compare(synthetic(ranks=2), ["deepep", "nvls"], layer=0, baseline="deepep", stack="megatron-plain")
    text = " ".join(summary(both).split())
    assert "Not in the list of megatron-plain, " in text
    assert "are calls of an extension: nvls." in text


@every(("stack", "option"), [("deepseek", "bare"), ("vllm", "sglang"), ("bare", "sglang")])
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


def test_a_stack_has_its_kernels_around_a_scheme_that_knows_them(synthetic: Synthetic) -> None:
    """As with the scheme's option, and by its hosts; bare takes them away."""
    trace = synthetic(ranks=2)
    for scheme in ("deepep", "deepep-v2"):
        by_option, under, practice = (
            replay.run(trace, scheme=scheme, layer=0, options=options, stack=stack)
            for options, stack in (({"stack": "sglang"}, None), ({}, "sglang"), ({"stack": "sglang"}, "practice"))
        )
        assert by_option.scheme == under.scheme == practice.scheme
        assert under.stack is not None
        assert under.stack == practice.stack
        assert under.stack.name == "sglang"
        bare, none = (
            replay.run(trace, scheme=scheme, layer=0, options=options, stack=stack)
            for options, stack in (({}, "bare"), ({"stack": "bare"}, None))
        )
        assert bare.stack is None
        assert bare.scheme == none.scheme
        assert bare.totals == none.totals
    for scheme in ("deepep", "deepep-v2"):
        compared, none = (
            replay.run(trace, scheme=scheme, layer=0, stack=stack, options=options)
            for options, stack in (({}, "deepgemm"), ({"stack": "deepgemm"}, None))
        )
        assert compared.stack is None and compared.scheme == none.scheme
        assert compared.totals == none.totals
    other = replay.run(trace, scheme="megamoe", layer=0, stack="deepgemm")
    assert other.totals == replay.run(trace, scheme="megamoe", layer=0).totals
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
    assert sum(whole[stage].nbytes for stage in stages) > 0
    for stage in stages:
        one = whole[stage]
        halved = one._replace(nbytes=one.nbytes // 2, late_ps=one.late_ps // 2)
        assert half[stage] == halved
    assert half[OUTSIDE, False] == whole[OUTSIDE, False]


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
    assert shared.others == whole.others
    assert shared.launch_ps > 1.3 * whole.launch_ps


def test_options_that_change_no_layer_are_refused(synthetic: Synthetic) -> None:
    trace = synthetic(ranks=2)
    with pytest.raises(UserError, match=r"fused_reduce changes no layer.*library_us=20"):
        replay.run(trace, scheme="deepep", layer=0, stack="sglang:fused_reduce=true")
    one = replay.run(trace, scheme="deepep", layer=0, stack="sglang:library_us=20")
    assert one.stack is not None
