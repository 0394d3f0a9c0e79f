"""GPUs that are held up at random: what is drawn, and whom it holds up further."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

import hwmodel
import replay
import tracegen
from replay.chains.chain import ChainLink
from replay.chains.jitter import Jitter, normal_form, read
from replay.chains.preparation import Layers, prepare
from replay.chains.replay import Replay
from replay.chains.settings import ChainSettings
from replay.experiments.base.identity import describe
from replay.experiments.layer.spec import RunSpec

RANKS, LAYERS, EXPERTS = 4, 2, 64
LATE = 2_000_000_000  # ps, far longer than a layer here
LATE_US = LATE / 1e6


@pytest.fixture(scope="module")
def system() -> hwmodel.System:
    """Launches take no time, so that no host gets further ahead while its GPU is held up."""
    return hwmodel.load("dgx-h100", {"overheads.launch_us": 0.0, "overheads.graph_launch_us": 0.0})


@pytest.fixture(scope="module")
def everywhere() -> tracegen.RoutingTrace:
    """All GPUs need rows of all others in every layer."""
    return tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=RANKS, tokens_per_rank=6, layers=LAYERS, seed=1)


@pytest.fixture(scope="module")
def at_home(everywhere) -> tracegen.RoutingTrace:
    """Tokens stay on their GPU: nobody needs anything of anybody."""
    rank = everywhere.tokens.rank[:, None].astype(int)
    choices = np.arange(8) + rank * EXPERTS // RANKS
    ids = np.stack([choices] * LAYERS).astype(everywhere.expert_ids.dtype)
    return dataclasses.replace(everywhere, expert_ids=ids)


def links_of(trace: tracegen.RoutingTrace, system: hwmodel.System, **given: object) -> Sequence[ChainLink]:
    """Layers of a replay with some settings."""
    settings = ChainSettings.of(RunSpec(precision="bf16", **given))
    batch = settings.batch(trace, system, 0)
    ideal = replay.schemes.find("ideal")
    return prepare(Layers(settings, trace, system, [batch] * settings.steps), ideal).links


Times = Callable[..., tuple[float, float]]


@pytest.fixture(scope="module")
def times(system) -> Times:
    """Time of a chain whose GPUs are held up, and with a barrier after each layer."""

    def replayed(trace: tracegen.RoutingTrace, scheme: str, late: Sequence[Sequence[int]]) -> tuple[float, float]:
        links = [
            dataclasses.replace(link, delays_ps=np.array(delays, np.int64))
            for link, delays in zip(links_of(trace, system), late, strict=True)
        ]
        ready = Replay(links, system, replay.schemes.find(scheme))
        result = ready.chain(compare_barrier=True)
        assert result.barrier_us is not None
        return result.measures.makespan_us, result.barrier_us

    return replayed


NEVER = [[0] * RANKS] * LAYERS
IN_TURN = [[LATE, 0, 0, 0], [0, LATE, 0, 0]]


@pytest.mark.extended
@every("scheme", ["ideal", "nccl-alltoall", "dysharp"])
def test_who_is_held_up_like_all_others_is_only_later(scheme: str, everywhere, times) -> None:
    never = times(everywhere, scheme, NEVER)
    always = times(everywhere, scheme, [[LATE] * RANKS] * LAYERS)
    for late, not_late in zip(always, never, strict=True):
        assert late == pytest.approx(not_late + LAYERS * LATE_US, abs=1e-3)


@pytest.mark.extended
@every(
    ("scheme", "adds"),
    [
        ("ideal", 1),
        ("dysharp", 1),
        ("moe-hub", 1),  # wait for rows alone
        ("nccl-alltoall", 2),
        ("deepep", 2),
        ("nvls", 2),  # wait for GPUs
    ],
)
def test_two_late_gpus_that_nobody_needs(scheme: str, adds: int, at_home, times) -> None:
    """One GPU is late in the first layer, another in the second: delays beside each other, or not.

    A GPU that waits for rows alone waits for nobody here, so both delays pass at once. A kernel
    that waits for all GPUs lets everybody wait for the first, and then for the second.
    """
    chained, met = (
        late - never for late, never in zip(times(at_home, scheme, IN_TURN), times(at_home, scheme, NEVER), strict=True)
    )
    assert chained == pytest.approx(adds * LATE_US, rel=0.02)
    assert met == pytest.approx(2 * LATE_US, rel=0.02)


@pytest.mark.extended
@every("scheme", ["ideal", "dysharp", "nccl-alltoall"])
def test_two_late_gpus_that_everybody_needs(scheme: str, everywhere, times) -> None:
    """Rows of the late GPU are needed in every layer: waiting for rows alone saves nothing."""
    late, never = (times(everywhere, scheme, one)[0] for one in (IN_TURN, NEVER))
    assert late - never == pytest.approx(2 * LATE_US, rel=0.02)


def test_layers_by_themselves_are_held_up_each_in_its_way(everywhere, system) -> None:
    """Though their work is the same, so that one replay would have stood for both."""
    links = links_of(everywhere, system)
    same = [dataclasses.replace(links[0], delays_ps=late) for late in (None, np.full(4, LATE))]
    one, other = (layer.measures.makespan_us for layer in Replay(same, system, replay.schemes.find("deepep")).apart())
    assert other == pytest.approx(one + LATE_US, abs=1e-3)


def test_waiting_for_all_adds_the_longest_delay_of_every_layer(everywhere, system) -> None:
    drawn = Jitter(40.0, 1.2, seed=7)
    longest = sum(drawn.delays_ps(RANKS, (0, 0, layer)).max() for layer in range(LAYERS)) / 1e6
    given = {"system": system, "scheme": "nccl-alltoall", "compare_barrier": True, "stack": "bare"}
    never, late = (
        replay.run(everywhere, **given, jitter=jitter, jitter_seed=7).chain for jitter in ("off", "lognormal:40:1.2")
    )
    assert late.barrier_us - never.barrier_us == pytest.approx(longest, rel=0.05)
    assert late.measures.makespan_us <= late.barrier_us


def test_delays_have_the_median_and_the_spread_asked_for() -> None:
    late_us = Jitter(30.0, 0.8, seed=1).delays_ps(40_000, (0,)) / 1e6
    assert np.median(late_us) == pytest.approx(30.0, rel=0.02)
    assert np.log(late_us).std() == pytest.approx(0.8, rel=0.02)
    assert set(Jitter(30.0, 0.0).delays_ps(5, (0,))) == {30_000_000}
    assert Jitter(1e9, 10.0).delays_ps(1000, (0,)).max() == 10**15  # and not beyond 64 bits


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), layer=st.integers(0, 100), gpus=st.integers(1, 8))
def test_delays_hang_on_the_gpu_and_the_layer_alone(seed: int, layer: int, gpus: int) -> None:
    jitter = Jitter(10.0, 1.0, seed)
    drawn = jitter.delays_ps(8, (0, 0, layer))
    assert np.array_equal(drawn[:gpus], jitter.delays_ps(gpus, (0, 0, layer)))
    assert len(np.unique(drawn)) == 8
    for key in ((1, 0, layer), (0, 1, layer), (0, 0, layer + 1)):
        assert not np.array_equal(drawn, jitter.delays_ps(8, key))
    assert not np.array_equal(drawn, Jitter(10.0, 1.0, seed + 1).delays_ps(8, (0, 0, layer)))


def test_every_layer_of_every_pass_and_step_has_delays_of_its_own(everywhere, system) -> None:
    given = {"jitter": "lognormal:5:1", "jitter_seed": 9, "direction": "training", "steps": 2}
    links = links_of(everywhere, system, **given)
    assert len({link.delays_ps.tobytes() for link in links}) == 2 * 2 * LAYERS
    assert np.array_equal(links[0].delays_ps, Jitter(5, 1, 9).delays_ps(RANKS, (0, 0, 0)))


def test_identity_knows_of_jitter_where_there_is_some(everywhere) -> None:
    def settings_of(**given: object) -> dict[str, object]:
        result = replay.run(everywhere, scheme="ideal", layer=0, **given)
        seen.add(result.run_id)
        return result.spec.settings()

    seen: set[str] = set()
    assert "jitter" not in settings_of()
    settings_of(jitter="off")
    assert len(seen) == 1
    assert settings_of(jitter="lognormal:10.0:0.50")["jitter"] == "lognormal:10:0.5"
    settings_of(jitter="lognormal:1e1:.5")
    assert len(seen) == 2
    settings_of(jitter="lognormal:10:0.5", jitter_seed=1)
    settings_of(jitter="lognormal:11:0.5")
    assert len(seen) == 4


def test_identities_without_jitter_are_as_before_there_was_any(system) -> None:
    scheme = replay.schemes.find("ideal")
    off, on = (
        describe(RunSpec(jitter=jitter, jitter_seed=5), {}, system, scheme)["settings"]
        for jitter in ("off", "lognormal:5:1")
    )
    assert on == off | {"jitter": "lognormal:5:1", "jitter_seed": 5}
    assert not off.keys() & {"jitter", "jitter_seed"}


@every(
    "text",
    [
        "",
        "on",
        "lognormal",
        "lognormal:5",
        "lognormal:0:1",
        "lognormal:-1:1",
        "lognormal:5:-1",
        "lognormal:nan:1",
        "lognormal:inf:1",
        "lognormal:5:11",
        "lognormal:5:1:1",
        "normal:5:1",
    ],
)
def test_other_distributions_are_refused(text: str) -> None:
    with pytest.raises(replay.UserError, match="possible are off and lognormal"):
        RunSpec(jitter=text)


def test_texts_are_read_as_they_are_written() -> None:
    assert read("off") is None
    assert read("lognormal:2.5:1", seed=3) == Jitter(2.5, 1.0, 3)
    assert read(normal_form("lognormal:0.123456789:1")) == Jitter(0.123456789, 1.0)


def test_jitter_is_refused_where_it_has_no_meaning(everywhere) -> None:
    with pytest.raises(replay.UserError, match="--jitter lognormal:5:1: a GPU that is held up"):
        ChainSettings.of(RunSpec(interleave="tbo", jitter="lognormal:5:1")).check_interleaved()
    two = tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=16, tokens_per_rank=4, layers=1, seed=1)
    given = {"scheme": "deepep-ll", "system": "dgx-h100-x2", "layer": 0, "sample_nodes": 1}
    with pytest.raises(replay.UserError, match="would never be late"):
        replay.run(two, **given, jitter="lognormal:5:1")
