"""Kernels of schemes and of lists that know them: each is stated once, or twice alike.

A list has all of a layer. What a scheme launches in its stages is among the rows of the list that
belong there, by name and number; what moves rows or indices has the list's bytes, too. So the stack
adds what the list has more of, and no kernel is launched in two ways.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import hwmodel
from replay.chains import stack_calls
from replay.chains.host_program import outline_layer
from replay.chains.layer_stacks import launched_by
from replay.chains.stack_calls import stage_calls
from replay.model.machine.host_script import Calls, HostScript, KernelRun, StageCalls
from replay.model.work.kernel_lists import KernelSizes, ListedOperation, Pass
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.model.work.stacks import STACKS, Stack, facts_of_place
from replay.schemes import Scheme, find
from replay.schemes.contract import layers as small_layers
from replay.schemes.registry import names

H100 = hwmodel.load("dgx-h100")
#: Options of stacks whose kernels schemes have. HybridEP's leave out permutes within its exchange; experts of dense
#: exchanges have rows of their own, as grouped products of PyTorch need them; sums are in BF16, as layers here are.
OPTIONS: Mapping[str, str] = {
    "megatron-tuned": "permute_in_exchange=false",
    "megatron-inference": "products=torch,bf16_sums=true",
}
#: Options of schemes: of the release that a list is of, and what lists have besides.
OF_SCHEME: Mapping[str, Mapping[str, Any]] = {
    "nvls": {"gathers_at_once": True},
    "two-sided": {"side": "two"},
    "copied results": {"payload_in_workspace": False},
}
#: Other options of a scheme that its list has kernels of, by their names in `OF_SCHEME`.
VARIANTS: Mapping[str, tuple[str, ...]] = {"trtllm-alltoall": ("two-sided", "copied results")}
#: Pairs in which a scheme's kernels stand in for others, by what these are.
STAND_INS = {
    ("vllm", "nccl-allgather"): "experts of vLLM's Triton kernels, which find rows by index; rows and scores gathered"
}
#: Stacks whose rows are in FP8 as they travel.
IN_FP8 = {"deepseek"}
#: Kernels whose bytes are those of all schemes' experts: gate weights and casts within are a stack's.
SHARED = {"activation", "activation, gradients"}


#: Schemes and stages whose waits are the stack's alone: Megatron's and AutoModel's experts read counts.
ADDED_WAITS = {("deepep", "experts")}


class Pair(NamedTuple):
    """A stack, and a scheme that its list knows, with options of it."""

    stack: str
    scheme: str
    direction: Pass
    variant: str = ""


def pairs() -> Iterator[tuple[str, str]]:
    """All of them."""
    for stack in STACKS:
        for scheme in names("ep"):
            if Stack.of(stack, H100).knows(scheme):
                yield stack, scheme


PAIRS = [
    Pair(stack, scheme, direction, variant)
    for stack, scheme in pairs()
    for variant in ("", *VARIANTS.get(scheme, ()))
    if (stack, scheme) not in STAND_INS
    for direction in (("forward", "backward") if Stack.of(stack, H100).kernels.trains else ("forward",))
]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=" ".join)


def sizes() -> KernelSizes:
    """Of each GPU of `layer`."""
    return KernelSizes(
        tokens=4, ranks=4, hidden=512, experts=16, topk=4, local=4, rows=16, copies=8, inner=64, heads=1, width=64
    )


@cache
def layer(*, is_backward: bool, precision: str | Precision = "bf16") -> LayerWork:
    """Even work: 16 tokens with two experts on each of two GPUs, every expert with four rows."""
    token = np.arange(16)[:, None]
    gpu, place = (token + np.array([0, 0, 1, 1])) % 4, (token // 4 + np.array([0, 1, 0, 1])) % 4
    return small_layers.work(
        (4 * gpu + place).astype(np.int32),
        4,
        16,
        shape=ExpertShape(512, 64),
        precision=precision,
        is_backward=is_backward,
    )


def with_options(pair: Pair) -> Scheme:
    """The scheme of a pair."""
    return find(pair.scheme).with_options(OF_SCHEME.get(pair.variant or pair.scheme, {}))


def stack_of(pair: Pair) -> Stack:
    """The stack, with the scheme as its dispatcher."""
    text = f"{pair.stack}:{OPTIONS[pair.stack]}" if pair.stack in OPTIONS else pair.stack
    stack = Stack.of(text, H100, facts_of_place(H100, 4))
    return stack.with_dispatcher(pair.scheme, with_options(pair).list_options)


def scheme_of(pair: Pair) -> Scheme:
    """The scheme as it is launched under the stack."""
    trains = stack_of(pair).kernels.trains
    return launched_by(with_options(pair), pair.stack, {}, in_pairs=False, is_training=trains)


@cache
def script_of(pair: Pair) -> HostScript:
    """All that hosts do in a layer."""
    return outline_layer(scheme_of(pair), layer(is_backward=pair.direction == "backward"), H100).host.script


class Stages(NamedTuple):
    """Kernels of some stages, but for products.

    Attributes
    ----------
    of
        Their names.
    launched, listed
        By name: kernels that the scheme launches, and that the list has.
    launched_bytes, listed_bytes
        By name: what these read and write.
    copies
        Copies to the host and memsets of the list, which are no kernels in it.
    """

    of: tuple[str, ...]
    launched: Counter[str]
    listed: Counter[str]
    launched_bytes: Counter[str]
    listed_bytes: Counter[str]
    copies: set[str]


def stages_of(pair: Pair) -> Iterator[Stages]:
    """Stages of a layer, as `replay.chains.stack_calls` groups them."""
    script, is_backward = script_of(pair), pair.direction == "backward"
    for stages, every in stack_calls._groups(stack_of(pair), sizes(), pair.direction).items():
        rows = [row for row in every if row.kind != "gemm"]
        launched, moved = Counter[str](), Counter[str]()
        for run in script.runs([(stage, is_backward) for stage in stages]):
            if not run.is_product:
                launched[run.name] += run.kernels
                moved[run.name] += run.nbytes
        yield Stages(
            stages,
            launched,
            _by_name(rows, "kernels"),
            moved,
            _by_name(rows, "moves"),
            {row.name for row in rows if not row.kernels},
        )


def _by_name(rows: list[ListedOperation], what: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row.name] += getattr(row, what)
    return found


def test_pairs_in_which_kernels_stand_in_for_others_are_those_that_are_named() -> None:
    assert set(pairs()) == {(pair.stack, pair.scheme) for pair in PAIRS} | STAND_INS.keys()


@every_pair
def test_a_scheme_launches_kernels_of_its_list_alone(pair: Pair) -> None:
    for stages in stages_of(pair):
        strange = stages.launched.keys() - stages.listed.keys()
        assert not strange, f"{stages.of}: the list has none of {sorted(strange)}"
        more = (stages.launched - stages.listed).keys() - stages.copies
        assert not more, f"{stages.of}: the list has fewer of {sorted(more)}"


def calls_of(pair: Pair) -> Mapping[tuple[str, bool], StageCalls]:
    """What the stack does in each stage."""
    scripts = {pair.direction: lambda: script_of(pair)}
    return stage_calls(stack_of(pair), scheme_of(pair), sizes(), scripts, H100).stages


@every_pair
def test_a_stack_adds_what_the_list_has_more_of(pair: Pair) -> None:
    found, is_backward = calls_of(pair), pair.direction == "backward"
    for stages in stages_of(pair):
        added = Counter[str]()
        for row in (row for stage in stages.of for row in found[stage, is_backward].added):
            added[row.what.name] += row.what.launches
        assert +added == stages.listed - stages.launched, stages.of


def test_kernels_that_stand_in_for_others_are_where_these_are() -> None:
    """Rows are permuted in place of tables, zeroed and added up in place of a sum of each token's."""
    pair = Pair("megatron-inference", "nvls", "forward")
    stack = Stack.of("megatron-inference", H100).with_dispatcher("nvls")
    found = stage_calls(stack, scheme_of(pair), sizes(), {"forward": lambda: script_of(pair)}, H100).stages
    names = [(row.what.name, row.what.launches) for row in found["experts", False].added]
    # The permute stands for the first table, of two kernels that add up one for another table: eight as the list has.
    assert names == [("experts of blocks", 1), ("ids of rows", 1)]


def test_products_stand_in_for_no_other_kernels() -> None:
    """Those of shared experts are no rows of the list of routed ones."""
    stage = ("experts", False)
    runs = [KernelRun(stage, "gemm1", 0, True, 2), KernelRun(stage, "zeroes", 1, False, 3)]
    assert stack_calls._strange(runs, {"activation"}) == 3
    assert stack_calls._strange(runs, {"zeroes"}) == 0


@every_pair
def test_kernels_are_launched_in_the_order_of_the_list(pair: Pair) -> None:
    """Those that the stack adds among those of the scheme, but for gradients of weights that a list puts off."""
    is_backward = pair.direction == "backward"
    calls = Calls(calls_of(pair))
    script = outline_layer(scheme_of(pair), layer(is_backward=is_backward), H100, "eager", calls).host.script
    for stages, rows in stack_calls._groups(stack_of(pair), sizes(), pair.direction).items():
        runs = script.runs([(stage, is_backward) for stage in stages])
        launched = [run.name for run in runs if not run.is_product]
        listed = [row.name for row in rows if row.kind != "gemm" and (row.kernels or row.name in launched)]
        assert launched == [name for name, _ in itertools.groupby(listed)], stages


def test_gradients_of_weights_that_are_put_off_leave_other_rows_where_they_are() -> None:
    """Products of rows stand for none of weights: the stack's cast comes between the products, as in the list."""
    pair = Pair("megatron-plain", "nccl-alltoall", "backward")
    work = layer(is_backward=True).putting_off_weights()
    scripts = {pair.direction: lambda: outline_layer(scheme_of(pair), work, H100).host.script}
    found = stage_calls(stack_of(pair), scheme_of(pair), sizes(), scripts, H100)
    script = outline_layer(scheme_of(pair), work, H100, "eager", found).host.script
    launched = [run.name for run in script.runs([("experts", True)]) if not run.is_product]
    rows = stack_calls._groups(stack_of(pair), sizes(), pair.direction)[stack_calls.EXPERTS]
    listed = [row.name for row in rows if row.kind != "gemm" and (row.kernels or row.name in launched)]
    assert launched == [name for name, _ in itertools.groupby(listed)]


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.stack not in IN_FP8], ids=" ".join)
def test_kernels_that_both_state_move_the_same_bytes(pair: Pair) -> None:
    for stages in stages_of(pair):
        both = stages.launched.keys() & stages.listed.keys() - SHARED
        listed, launched = stages.listed_bytes, stages.launched_bytes
        assert {name: launched[name] for name in both} == {name: listed[name] for name in both}, stages.of


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_megatron_s_casts_and_paddings_are_its_list_s(direction: Pass) -> None:
    """Scales of blocks; those of schemes that run experts together stand in for them."""
    is_backward = direction == "backward"
    stack = Stack.of("megatron-plain:fp8=blockwise", H100).with_dispatcher("megatron")
    work = layer(is_backward=is_backward, precision=Precision("bf16", gemm="fp8"))
    machine = outline_layer(find("megatron"), work, H100)
    script = machine.host.script
    listed, late_ps = Counter[str](), Counter[str]()
    for row in stack.operations(sizes(), ["experts"], direction):
        listed[row.name] += row.kernels
        late_ps[row.name] += stack_calls._late_ps(machine, row)
    runs = [run for run in script.runs([("experts", is_backward)]) if not run.is_product and "sort" not in run.name]
    launched = {name: sum(run.kernels for run in runs if run.name == name) for name in {run.name for run in runs}}
    launched.pop("chunk map", None)
    names = {"activation, gradients"} if is_backward else {"activation"}
    assert {name: listed[name] for name in launched.keys() - names} == {
        name: count for name, count in launched.items() if name not in names
    }
    assert sum("cast" in name or "padd" in name for name in launched) == 5
    calls = stage_calls(stack, find("megatron"), sizes(), {direction: lambda: script}, H100).stages
    late_ps.subtract({run.name: run.late_ps for run in runs if "cast" in run.name})
    added = {row.what.name: row.late_ps for row in calls["experts", is_backward].added if "cast" in row.what.name}
    assert added == {name: late_ps[name] for name in launched if "cast" in name}, "the stack's is the rest of a law's"


def test_masked_experts_in_fp8_are_their_list_s() -> None:
    """SGLang's list is of BF16 otherwise; buffers have room for 128 tokens of each GPU."""
    stack = Stack.of("sglang:fp8_experts=true", H100).with_dispatcher("deepep-ll")
    script = outline_layer(find("deepep-ll"), layer(is_backward=False, precision="fp8"), H100).host.script
    rows = stack.operations(dataclasses.replace(sizes(), slots=4 * 4 * 128), ["experts"], "forward")
    runs = script.runs([("experts", False)])
    assert [run.is_product for run in runs] == [row.kind == "gemm" for row in rows]
    listed = [(row.name, row.kernels, row.moves) for row in rows if row.kind != "gemm"]
    assert [(run.name, run.kernels, run.nbytes) for run in runs if not run.is_product] == listed


@every_pair
def test_hosts_wait_where_the_list_says(pair: Pair) -> None:
    script, is_backward = script_of(pair), pair.direction == "backward"
    for stages, rows in stack_calls._groups(stack_of(pair), sizes(), pair.direction).items():
        waits = sum(script.counts.waited[stage, is_backward] for stage in stages)
        listed = sum(row.waits for row in rows)
        assert waits == (0 if (pair.scheme, *stages) in ADDED_WAITS else listed), stages
