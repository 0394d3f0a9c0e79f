"""``moereplay stacks``: the list of software stacks, and what one launches."""

from __future__ import annotations

import re

from loops import every
from typer.testing import CliRunner

from replay.cli.app import app
from replay.model.work.stacks import STACKS


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
    model = "deepseek-v3" if name == "deepseek" else "qwen3-30b-a3b"
    kernels, _, waits, host_us = sums(said(name, "--model", model, "--tokens", "64"))
    assert kernels > 0
    assert host_us > 0
    listed = said(name, "--model", model, "--tokens", "64", "--kernels")
    assert len(listed.splitlines()) > waits


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
