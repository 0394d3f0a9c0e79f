"""A forward pass beside a backward pass: by hand, what both do, and who waits for whom."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from loops import every
from small_shape import small_shape

import hwmodel
import replay
import tracegen
from replay.chains.chain import ChainLink
from replay.chains.kernel_streams import KernelSpan, stream_use
from replay.chains.pass_pairs import ORDERS, pair_times
from replay.chains.replay import Replay
from replay.engine import schedule
from replay.errors import UserError
from replay.experiments.layer.setup import set_up
from replay.experiments.layer.spec import RunSpec
from replay.model.compute.dense import Between
from replay.model.machine.host import AddedRow, Calls, Operation, StageCalls
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.model.work.context import Context
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES, find
from replay.schemes.contract.layers import draw, work
from replay.schemes.contract.sms import most_in_use
from replay.schemes.ep.staged_schemes import StagedScheme

ABLE = [name for name in SCHEMES if isinstance(find(name), StagedScheme) and "dualpipe" in find(name).interleaves]
PS = 1_000_000  # of a microsecond
H100 = hwmodel.load("dgx-h100")


# ---- by hand -------------------------------------------------------------------------------------


class Slow(StagedScheme):
    """Stages that take 1, 5, 7, 4 and 2 us forward, twice as long backward; weights 3 us."""

    name = "slow"
    summary = "stages of known times"
    source = "this test"
    traffic = "pair"
    stage_us = (1, 5, 7, 4, 2)

    def communication_sms(self, system):
        return 20

    def stages(self, work, machine, start):
        assert work.puts_off_weights == work.is_backward
        times = [us * PS * (1 + work.is_backward) for us in self.stage_us]
        ready = start
        for us in times[:-1]:
            ready = yield machine.delay(Kind.MARK, Time(us), ready)
        return machine.delay(Kind.MARK, Time(times[-1]), ready)

    def weight_gradients(self, work, machine, after):
        assert work.puts_off_weights
        return machine.delay(Kind.MARK, Time(3 * PS), after)


class Still(Slow):
    """Rows take no time."""

    name = "still"
    stage_us = (1, 0, 7, 0, 2)


class Wired(Slow):
    """Rows take much longer than anything computes."""

    name = "wired"
    stage_us = (1, 500, 7, 400, 2)


@dataclass(frozen=True)
class Parts:
    """What lies between: 2 us, 3 us, and 1 us of shared experts; weights of these 1, 2 and 1."""

    weights: str = "with"

    def _pass_by(self, machine, us, alone_us, after):
        time = alone_us if self.weights == "alone" else us
        return machine.delay(Kind.BETWEEN, Time(time * PS), after)

    def prepare(self, machine, decoder_layer, context, after):
        return self._pass_by(machine, 2, 1, after)

    def attend(self, machine, context, after):
        return self._pass_by(machine, 3, 2, after)

    def shared_experts(self, machine, context, after):
        return self._pass_by(machine, 1, 1, after)


def links(number: int, between=None) -> list[ChainLink]:
    """Pairs of small layers."""
    small = [work(draw(8, 4, 2), 2, 4, is_backward=backward) for backward in (False, True)]
    nothing = Context(*(np.zeros(2, np.int64) for _ in range(3)))
    return [
        ChainLink(
            lambda layer=layer: layer,
            is_backward=layer.is_backward,
            context=nothing,
            between=between,
            layer_index=number - 1 - place if layer.is_backward else place,
        )
        for place in range(number)
        for layer in small
    ]


def ran(scheme, kind: str, between=None, number: int = 1):
    """What each stream does when in the first pair; when each pair is over."""
    chain = Replay(links(number, between), H100, scheme, strategy=ORDERS[kind]).build()
    visible = schedule(chain.built.graph).visible_ps // PS
    found: dict[bool, list[tuple[str, int, int]]] = {True: [], False: []}
    for one in chain.spans[0]:
        begun, ended = (int(visible[tasks[0]]) for tasks in (one.begun, one.ended))
        if ended > begun:
            found[one.of == "rows"].append((one.of, begun, ended))
    last = [max(int(visible[ends].max()) for ends in chain.finishes[2 * pair :][:2]) for pair in range(number)]
    return *(sorted(found[is_rows], key=lambda one: one[1:]) for is_rows in (True, False)), last


def test_kernels_that_a_stack_adds_to_experts_are_computed() -> None:
    """Nothing is exposed for them: all GPUs wait for, in these pairs, is computed."""
    rows = tuple(AddedRow(Operation(name, 1), 50_000_000, behind=behind) for behind, name in enumerate(("cast", "sum")))
    bare, under = (
        pair_times(
            Replay(links(1, Parts()), H100, Still(), strategy=ORDERS["megatron"], launch="eager", calls=Calls(calls))
        )
        for calls in ({}, {("experts", False): StageCalls(0, rows)})
    )
    assert (under.exposed_ps == bare.exposed_ps).all()
    longer = under.busy_ps["experts"] - bare.busy_ps["experts"]
    assert (longer == under.ends_ps - bare.ends_ps).all()
    assert (longer > 2 * H100.hbm.stream_ps(50_000_000)).all()


def test_dualpipe_by_hand() -> None:
    rows, computing, last = ran(Slow(), "dualpipe", Parts())
    # Gradients travel, while the other attends; its rows behind them, while this one computes. Rows
    # of gradients go back beside weights, results while gradients of attention are made.
    assert rows == [("rows", 2, 12), ("rows", 12, 17), ("rows", 26, 34), ("rows", 38, 42)]
    assert computing == [
        ("experts", 0, 2),
        ("attention", 2, 4),
        ("attention", 4, 7),
        ("experts", 7, 8),
        ("dense", 8, 9),
        ("experts", 12, 26),
        ("experts", 26, 29),
        ("dense", 29, 30),
        ("dense", 30, 31),
        ("experts", 31, 38),
        ("experts", 38, 42),
        ("attention", 42, 45),
        ("attention", 45, 47),
        ("attention", 47, 50),
        ("experts", 50, 52),
    ]
    assert last == [52]


def test_megatron_by_hand() -> None:
    rows, computing, last = ran(Slow(), "megatron", Parts())
    assert rows == [("rows", 2, 12), ("rows", 12, 17), ("rows", 26, 34), ("rows", 36, 40)]
    # Shared experts are beside attention, and weights of both come last.
    assert computing == [
        ("experts", 0, 2),
        ("attention", 2, 4),
        ("attention", 4, 7),
        ("dense", 7, 8),
        ("experts", 8, 9),
        ("experts", 12, 26),
        ("experts", 26, 29),
        ("experts", 29, 36),
        ("experts", 36, 40),
        ("dense", 40, 41),
        ("attention", 41, 44),
        ("attention", 44, 46),
        ("attention", 46, 49),
        ("dense", 49, 50),
        ("experts", 50, 52),
    ]
    assert last == [52]


def test_without_travel_a_pair_takes_what_both_take() -> None:
    # Forward 1 + 7 + 2, backward 20 and weights 3; between 6 and 6, weights 4.
    for kind in ORDERS:
        assert ran(Still(), kind, Parts())[2] == [10 + 20 + 3 + 6 + 6 + 4]
        assert ran(Still(), kind, Parts(), 3)[2] == [49, 98, 147]
        assert ran(Still(), kind)[2] == [33]


def test_rows_that_take_longer_decide_the_time_of_a_pair() -> None:
    # The stream for rows carries 5 + 4 and 10 + 8 hundreds of us in a row. In between one kernel
    # alone has what the next rows need: experts backward (14) and forward (7), then sums of the
    # forward pass (2) and sending of the next backward pass (2).
    for kind in ORDERS:
        first, second, third = ran(Wired(), kind, Parts(), 3)[2]
        assert first == 2 + 1000 + 500 + 800 + 400 + 2
        assert second - first == third - second == first


def test_time_of_both_streams() -> None:
    times = [np.array(one) for one in ([0, 0], [4, 2], [3, 2], [9, 2], [6, 0], [7, 9])]
    spans = [
        KernelSpan("experts", times[0], times[1]),
        KernelSpan("rows", times[2], times[3]),
        KernelSpan("dense", times[4], times[5]),
    ]
    found = stream_use(spans, 2)
    assert found.both_ps.tolist() == [1 + 1, 0]
    assert found.computing_ps.tolist() == [4 + 1, 2 + 9]
    assert found.busy_ps["rows"].tolist() == [6, 0]
    assert found.busy_ps["attention"].tolist() == [0, 0]


# ---- every scheme --------------------------------------------------------------------------------

SHAPE = small_shape(
    name="between", hidden=512, num_layers=3, head_dim=64, num_shared_experts=1, shared_intermediate=128
)


def real_links(num_pairs: int = 2) -> list[ChainLink]:
    """Pairs of layers with attention between, in which GPUs have different loads."""
    made = []
    for place in range(2 * num_pairs):
        backward = bool(place % 2)
        layer = work(
            draw(240, 8, 2, skew=0.7, seed=place),
            4,
            8,
            shape=ExpertShape(512, 256),
            is_backward=backward,
        )
        counts = np.bincount(layer.source_rank, minlength=4)
        between = Between(SHAPE, "bf16", is_backward=backward)
        context = Context(counts, counts, 4_000_000 * (1 + np.arange(4)))
        link = ChainLink(
            lambda layer=layer: layer,
            layer_index=place // 2,
            decoder_layer=place // 2,
            is_backward=backward,
            between=between,
            context=context,
        )
        made.append(link)
    return made


@pytest.fixture(scope="module")
def replayed():
    """Two pairs under a scheme and an order, made once: chain, schedule and system."""
    systems = {
        "cuda": hwmodel.load("dgx-h100", {"gpu.num_sms": 64}),
        "cann": hwmodel.load("atlas-800t-a2"),
    }

    @functools.cache
    def of(name: str, kind: str):
        one = find(name)
        system = systems[one.platform or "cuda"]
        chain = Replay(real_links(), system, one, strategy=ORDERS[kind]).build()
        return chain, schedule(chain.built.graph), system

    return of


@every("scheme", ABLE)
def test_streams_keep_their_order_and_their_sms(scheme: str, replayed) -> None:
    chain, timeline, system = replayed(scheme, "dualpipe")
    machine = chain.built.machine
    assert most_in_use(timeline, machine).sms <= system.sm.num_sms
    layer = real_links()[0].work()
    aside = find(scheme).interleave("dualpipe").stream_sms(layer, system)
    assert machine.sms.compute == system.sm.num_sms - aside
    visible = timeline.visible_ps
    for rows in (True, False):
        spans = [one for of in chain.spans for one in of if (one.of == "rows") == rows]
        times = np.array([(visible[one.begun], visible[one.ended]) for one in spans])
        for rank in range(4):
            begun, ended = times[np.argsort(times[:, 0, rank], kind="stable"), :, rank].T
            some = ended > begun
            assert (begun[some][1:] >= ended[some][:-1]).all(), "one kernel after the other"


def counted(graph, kinds) -> Counter:
    of = np.isin(graph.kind, list(kinds))
    return Counter(zip(graph.kind[of].tolist(), graph.rank[of].tolist(), strict=True))


@every("scheme", ABLE)
def test_a_pair_does_what_both_passes_do(scheme: str, replayed) -> None:
    chain, _, system = replayed(scheme, "dualpipe")
    together = chain.built.graph
    alone = [Replay(some, system, find(scheme)).build().built.graph for some in (real_links()[::2], real_links()[1::2])]
    # GEMMs are cut into other tiles where they have fewer SMs; kernels, and bytes, are the same.
    kinds = {Kind.DENSE_GEMM, Kind.BETWEEN, Kind.PERMUTE, Kind.UNPERMUTE, Kind.ACTIVATION}
    assert counted(together, kinds) == sum((counted(one, kinds) for one in alone), Counter())
    for name in ("payload_bytes", "wire_bytes"):
        whole, *parts = (int(getattr(one, name).sum()) for one in (together, *alone))
        assert whole == sum(parts) > 0
    assert (together.kind == Kind.WGRAD).any()


# ---- whole replays -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    return tracegen.generate.generate(
        "zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=31, layers=3, steps=3, seed=1, skew=0.8
    )


@pytest.fixture(scope="module")
def result(trace) -> replay.Result:
    return replay.run(trace, scheme="deepep", interleave="dualpipe", direction="training", stack="bare")


def test_a_forward_pass_of_the_next_step_meets_layers_backward(result) -> None:
    assert [(one.step, one.layer_index, one.is_backward) for one in result.chain.layers] == [
        (1, 0, False),
        (0, 2, True),
        (1, 1, False),
        (0, 1, True),
        (1, 2, False),
        (0, 0, True),
    ]
    assert (result.chain.num_steps, result.chain.num_layers) == (1, 3)


def test_each_layer_of_a_pair_sends_what_it_sends_alone(result, trace) -> None:
    found = {(one.step, one.is_backward, one.layer_index): one for one in result.chain.layers}
    for step, direction in ((1, "forward"), (0, "backward")):
        alone = replay.run(trace, scheme="deepep", step=step, direction=direction)
        for one in alone.chain.layers:
            beside = found[step, one.is_backward, one.layer_index]
            assert beside.payload_bytes == one.payload_bytes
            assert beside.wire_bytes == one.wire_bytes


def test_times_of_a_pair_add_up(result) -> None:
    chain = result.chain
    found, ends = chain.pairs, chain.measures.rank_end_us
    assert np.allclose(found.pair_us, np.array(ends) / 3)
    assert max(ends) == chain.measures.makespan_us
    for one in zip(*found.busy_us.values(), found.both_us, found.pair_us, strict=True):
        *busy, both, pair = one
        computing, rows = sum(busy[:3]), busy[3]
        assert computing + rows - pair <= both * (1 + 1e-9)
        assert both <= min(computing, rows) * (1 + 1e-9)
        assert computing <= pair * (1 + 1e-9)
    assert found.exposed_us == [
        pytest.approx(pair - sum(of[rank] for name, of in found.busy_us.items() if name != "rows"))
        for rank, pair in enumerate(found.pair_us)
    ]
    # What lies between is all attention here: the model has no shared experts.
    assert chain.between_us == pytest.approx(3 * np.mean(found.busy_us["attention"]))
    assert not any(found.busy_us["dense"])


def test_the_sequence_is_a_replay_of_one_pass_after_the_other(result, trace) -> None:
    alone = replay.run(trace, scheme="deepep", step=1, stack="bare")
    ends = np.array(alone.chain.measures.rank_end_us)
    assert np.allclose(result.chain.pairs.forward_us, ends / 3)
    assert (np.array(result.chain.pairs.sequence_us) > ends / 3).all()


def test_several_steps_go_on_side_by_side(trace) -> None:
    two = replay.run(trace, scheme="deepep", interleave="megatron", direction="training", steps=2, layer=1).chain
    assert [(one.step, one.is_backward) for one in two.layers] == [
        (1, False),
        (0, True),
        (2, False),
        (1, True),
    ]
    assert (two.num_steps, two.num_layers) == (2, 1)


def test_one_layer_by_function_is_that_of_a_chain(trace) -> None:
    both = replay.run(trace, scheme="nccl-alltoall", interleave="megatron", direction="training", layer=1).chain
    spec = RunSpec(layer=1, direction="training", interleave="megatron")
    found = pair_times(set_up(spec, {}, H100, find("nccl-alltoall")).prepare(trace))
    assert (found.ends_ps / PS).tolist() == both.measures.rank_end_us
    assert np.allclose(found.exposed_ps / PS, both.pairs.exposed_us)
    for name, busy in found.busy_ps.items():
        assert np.allclose(busy / PS, both.pairs.busy_us[name])


def test_results_are_read_as_they_were_written(result, trace, tmp_path) -> None:
    result.save(tmp_path / "pairs.json")
    assert replay.load_result(tmp_path / "pairs.json") == result
    assert '"pairs"' not in replay.run(trace, scheme="deepep").to_json()


def test_a_report_says_what_overlaps(result) -> None:
    text = " ".join(replay.summary(result).split())  # lines break where the screen ends
    assert "passes overlap (dualpipe)" in text
    found = result.chain.pairs
    assert f"A layer forward beside a layer backward: {np.mean(found.pair_us):,.1f} us" in text
    assert f"both streams are busy {sum(found.both_us) / sum(found.pair_us):.1%} of it" in text


REFUSED = {
    "--pass forward: a forward pass runs beside": {"direction": "forward"},
    "--barrier": {"barrier": True},
    "--shared-experts beside-dispatch": {"shared_experts": "beside-dispatch"},
    "no stages between which.* deepep, ": {"scheme": "comet"},
    "deepep-ll.*no stages|deepep-ll.*backward": {"scheme": "deepep-ll"},
    "4 ranks.*|step": {"step": 2},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_go_with_it_is_said(message: str, trace) -> None:
    settings = {"scheme": "deepep", "interleave": "dualpipe", "direction": "training", **REFUSED[message]}
    with pytest.raises(UserError, match=message) as error:
        replay.run(trace, **settings)
    assert "\n" not in str(error.value)


def test_schemes_without_gradients_have_no_such_order() -> None:
    """All others have one but Megatron-LM's all-gathers, whose stages are its list's alone."""
    staged = [one for one in map(find, SCHEMES) if isinstance(one, StagedScheme)]
    different = {one.name for one in staged if ("dualpipe" in one.interleaves) != ("backward" in one.passes)}
    assert different == {"megatron-allgather"}
    assert not find("megatron-allgather").interleaves
