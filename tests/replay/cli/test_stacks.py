"""``moereplay stacks``: the list of software stacks, and what one launches."""

from __future__ import annotations

import re

from loops import every
from typer.testing import CliRunner

import hwmodel
from replay.cli.app import app
from replay.errors import UserError
from replay.model.work.stacks import STACKS, Stack

H100 = hwmodel.load("dgx-h100")


def said(*words: str) -> str:
    found = CliRunner().invoke(app, ["stacks", *words], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.stdout


def sums(shown: str) -> list[int]:
    """Numbers of the last row: kernels, tensors, waits, and host time."""
    line = next(line for line in shown.splitlines() if line.startswith("all "))
    numbers = [float(word.replace(",", "")) for word in line.split()[1:]]
    return [round(number) for number in (*numbers[:3], numbers[-1])]


def test_the_list_names_all_of_them() -> None:
    shown = said()
    for name in STACKS:
        assert re.search(rf"^{name} +(train|serve) ", shown, re.M), name


@every("name", sorted(STACKS))
def test_each_is_counted_and_listed(name: str) -> None:
    shown = said(name, "--tokens", "64")
    model = "deepseek-v3" if name == "deepseek" else "qwen3-30b-a3b"
    assert f"a layer of {model}," in shown.replace("\n", " "), "whose attention the list has"
    kernels, _, waits, host_us = sums(shown)
    assert kernels > 0
    assert host_us > 0
    listed = said(name, "--tokens", "64", "--kernels")
    assert len(listed.splitlines()) > waits


@every(
    ("stack", "scheme"),
    [
        ("megatron-plain:dispatcher=deepep", "deepep"),
        ("megatron-plain:dispatcher=hybridep", "hybrid-ep"),
        ("automodel", "deepep"),
        ("sglang:dispatcher=deepep-ll", "deepep-ll"),
    ],
)
def test_calls_of_a_dispatcher_s_library_cost_what_a_replay_pays(stack: str, scheme: str) -> None:
    shown = said(stack, "--kernels", "--tokens", "64")
    assert Stack.of(stack, H100).dispatcher == scheme
    costs = Stack.of(stack, H100).with_dispatcher(scheme).costs
    paid_us = costs.kernels["dispatch"].us("forward")
    assert re.search(rf"^dispatch +forward +dispatch .* {paid_us:.1f} ", shown, re.M)
    assert f"{paid_us:.1f}" != f"{costs.calls['library'].us('forward'):.1f}", "a call that stands in for any"


def test_a_graph_takes_launches_off_the_host() -> None:
    eager = sums(said("megatron-plain", "--model", "qwen3-30b-a3b"))
    graph = sums(said("megatron-plain:graphs=router", "--model", "qwen3-30b-a3b"))
    assert graph[-1] < eager[-1] - 1000  # 49 kernels of the router, 37 us each
    assert sums(said("megatron-plain:graphs=attention"))[-1] < graph[-1]


def test_slices_of_attention_bring_collectives() -> None:
    alone = said("megatron-plain", "--kernels")
    sliced = said("megatron-plain", "--kernels", "--tp", "8")
    assert "all-gather of rows" in sliced
    assert "all-gather of rows" not in alone


def refused(*words: str) -> str:
    found = CliRunner().invoke(app, ["stacks", *words], env={"COLUMNS": "200"})
    assert isinstance(found.exception, UserError), found.output
    return str(found.exception)


@every(
    ("words", "message"),
    [
        (["--ranks", "256"], "--ranks 256 does not divide the 128 experts of qwen3-30b-a3b"),
        (["--ranks", "7"], "--ranks 7 does not divide the 128 experts"),
        (["--tp", "3"], "--tp 3 does not divide the 32 attention heads"),
        (["--tp", "2", "--tokens", "1"], "--tp 2 does not divide the 1 tokens"),
        (["--model", "nobody"], "unknown model 'nobody'"),
        (["--system", "cloudmatrix384"], "has no table [host]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    assert message in refused("megatron-plain", *words)


@every(
    ("stack", "message"),
    [
        ("practice", "unknown stack 'practice'"),
        ("megatron-plain:graphs", "option 'graphs' has no value"),
        ("megatron-plain:graphs=none,graphs=router", "option 'graphs' is given twice"),
        ("megatron-plain:qk_norm=1", "qk_norm is 1; possible are false, true"),
        ("megatron-plain:qk_norm=yes", "qk_norm is 'yes'; possible are false, true"),
        ("megatron-plain:main_bytes=true", "main_bytes is True; possible are 2, 4"),
        ("megatron-plain:libary_us=2", "'libary_us' (did you mean 'library_us'?)"),
        (
            "megatron-plain:library_us=1000001",
            "possible are whole microseconds, from 0 to 1,000,000",
        ),
        (f"megatron-plain:library_us={'9' * 5000}", "possible are whole microseconds"),
    ],
)
def test_options_that_there_are_not_are_refused_in_a_line(stack: str, message: str) -> None:
    told = refused(stack)
    assert message in told
    assert len(told) < 400


def test_a_list_without_the_models_attention_is_refused() -> None:
    assert "has that of latent queries" in refused("deepseek", "--model", "qwen3-30b-a3b")
    assert "has that of grouped queries" in refused("automodel", "--model", "deepseek-v3")
    assert "knows no slices" in refused("automodel", "--tp", "2")
    bare = said("vllm", "--model", "flashdmoe")
    assert "attention " not in bare.split("Options")[0]
    assert "Without attention, of whose heads nothing is known in flashdmoe." in bare


def test_options_are_listed_with_their_values_and_others() -> None:
    shown = said("megatron-plain:graphs=router")
    assert "graphs=router (or none, attention): what Transformer" in shown
    assert "qk_norm=true (or false): norms of queries and keys." in shown
    assert "tensors: allocations of device memory." in shown
    assert "one launch" not in shown
    assert "a CUDA graph of all is one launch" in said("sglang")
