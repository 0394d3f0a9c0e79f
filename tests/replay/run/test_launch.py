"""The setting ``launch``: what it is by itself, what a result says of it, and who pays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import replay
import tracegen
from replay.chains.results import Makespan
from replay.engine import schedule
from replay.errors import UserError
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.report.text import summary

Synthetic = Callable[..., tracegen.RoutingTrace]


@pytest.fixture
def decoding(synthetic: Synthetic) -> tracegen.RoutingTrace:
    return synthetic(ranks=2, phase="decode")


@pytest.fixture
def prefilling(synthetic: Synthetic) -> tracegen.RoutingTrace:
    return synthetic(ranks=2)


def used(trace: tracegen.RoutingTrace, scheme: str, **settings: object) -> str:
    return replay.run(trace, scheme=scheme, layer=0, **settings).launch


def test_decode_is_captured_where_it_can_be(decoding: tracegen.RoutingTrace) -> None:
    assert used(decoding, "flashdmoe") == "graph"
    assert used(decoding, "nccl-alltoall") == "eager"  # its host waits for the splits
    assert used(decoding, "deepep") == "eager"
    assert used(decoding, "deepep", options={"cached_layout": True}) == "graph"


def test_prefill_is_not_captured(prefilling: tracegen.RoutingTrace) -> None:
    assert used(prefilling, "flashdmoe") == "eager"


@pytest.mark.parametrize("launch", ["eager", "graph"])
@pytest.mark.parametrize("scheme", ["flashdmoe", "nccl-alltoall"])
def test_what_is_asked_for_is_used(
    launch: str, scheme: str, decoding: tracegen.RoutingTrace, prefilling: tracegen.RoutingTrace
) -> None:
    assert used(decoding, scheme, launch=launch) == launch
    assert used(prefilling, scheme, launch=launch) == launch


def test_a_pass_with_a_wait_keeps_training_from_being_captured(
    decoding: tracegen.RoutingTrace,
) -> None:
    assert used(decoding, "nccl-alltoall", direction="backward") == "graph"
    assert used(decoding, "nccl-alltoall", direction="training") == "eager"


def test_launching_changes_times_and_identity(decoding: tracegen.RoutingTrace) -> None:
    eager, graph = (replay.run(decoding, scheme="nvls", layer=0, launch=launch) for launch in ("eager", "graph"))
    assert eager.run_id != graph.run_id
    # Three all-gathers, count and offsets, permute, three of the experts, zeroes, scatter-add,
    # reduce-scatter: twelve launches of which all but the last kernel are over sooner, against one
    # graph's launch.
    assert eager.totals.makespan_us > 12 * 4.5
    assert graph.totals.makespan_us < eager.totals.makespan_us


def test_tables_say_how_kernels_were_launched(decoding: tracegen.RoutingTrace) -> None:
    for stack, first, second in ((None, "hosts of vllm", "hosts of sglang"), ("bare", "bare hosts", "bare hosts")):
        both = replay.compare(decoding, ["deepep", "flashdmoe"], layer=0, baseline="deepep", stack=stack)
        text = summary(both)
        assert f"Launched kernel by kernel by {first}: deepep." in text
        assert f"Launched as CUDA graphs by {second}: flashdmoe." in text
        assert f"Launched as CUDA graphs by {second}." in summary(both["flashdmoe"])
    asked = replay.run(decoding, scheme="deepep", layer=0, launch="graph")
    assert "Launched as CUDA graphs, each until a host waits, by hosts of vllm." in summary(asked)


def test_a_spec_without_the_setting_reads_as_before() -> None:
    assert RunSpec.from_toml('scheme = "deepep"\n').launch is None
    spec = RunSpec(scheme="deepep", launch="graph")
    assert RunSpec.from_toml(spec.to_toml()) == spec
    assert "launch" not in RunSpec(scheme="deepep").to_toml()
    with pytest.raises(UserError, match=r"launch.*eager.*graph"):
        RunSpec(launch="greph")


def test_launches_of_many_layers_are_ahead_in_chains_that_forget_what_is_over(
    synthetic: Synthetic,
) -> None:
    """Sixty launches are those of three layers; what launches wait for is never so old."""
    trace, few = synthetic(ranks=2, layers=6), {"host.queue_launches": 60}
    ready = set_up(RunSpec(scheme="hybrid-ep", launch="eager", overrides=few), {}).prepare(trace)
    streamed = Makespan()
    ready.stream(streamed)
    assert streamed.ps == schedule(ready.build().built.graph).makespan_ps
