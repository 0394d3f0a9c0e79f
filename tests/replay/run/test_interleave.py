"""Two micro-batches in turns: who waits for whom, by hand, and every scheme that can be so."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import pytest
from loops import every
from small_shape import small_shape
from tiers import mostly_extended

import hwmodel
import replay
import tracegen
from replay.chains.chain import ChainGraph, ChainLink, MicroBatch
from replay.chains.preparation import strategy_of
from replay.chains.replay import Replay, Strategy
from replay.engine import schedule
from replay.errors import UserError
from replay.model.compute.dense import Between
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.model.work.batch import Batch, BatchOrigin
from replay.model.work.context import Context
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES, find
from replay.schemes.contract import checks
from replay.schemes.contract.basics import ends, frees
from replay.schemes.contract.bytes_on_ports import payload, wire
from replay.schemes.contract.case import Case
from replay.schemes.contract.layers import LAYERS, WIDE, draw, work
from replay.schemes.contract.order import experts_wait, tokens_wait
from replay.schemes.contract.sms import most_in_use
from replay.schemes.ep.staged_schemes import STAGES, StagedScheme
from replay.schemes.registry import EXAMPLES

ABLE = [name for name in (*SCHEMES, *EXAMPLES) if isinstance(scheme := find(name), StagedScheme) and scheme.interleaves]
EVERY_TIME = ("deepep", "deepep-ll", "nccl-alltoall")
PS = 1_000_000  # of a microsecond


# ---- by hand -------------------------------------------------------------------------------------


class Timed(StagedScheme):
    """Stages that take 1, 5, 7, 4 and 2 us; with a hook, 5 and 4 of them on the wire."""

    name = "timed"
    summary = "stages of known times"
    source = "this test"
    traffic = "pair"

    def communication_sms(self, system):
        return 20

    def stages(self, work, machine, start):
        assert work.num_tokens

        def pass_by(us, after):
            return machine.delay(Kind.MARK, Time(us * PS), after)

        if self.releases == "stream":
            ready = yield pass_by(1, start)
            ready = yield pass_by(5, ready)
            ready = yield pass_by(7, ready)
            ready = yield pass_by(4, ready)
            return pass_by(2, ready)
        sent = pass_by(1, start)
        arrived = pass_by(5, sent)
        ready = machine.gather((yield sent), machine.ranks, arrived)
        ready = yield machine.mark(machine.ranks, ready)
        done = yield pass_by(7, ready)
        sent = machine.mark(machine.ranks, done)
        arrived = pass_by(4, sent)
        ready = machine.gather((yield sent), machine.ranks, arrived)
        return pass_by(2, ready)


class Hooked(Timed):
    name = "hooked"
    releases = "hook"
    interleaves = frozenset({"tbo", "dbo", "sbo"})


class Parts:
    """What lies before a layer: 2 us, 3 us, and 1 us of shared experts."""

    def prepare(self, machine, decoder_layer, context, after):
        return machine.delay(Kind.BETWEEN, Time(2 * PS), after)

    def attend(self, machine, context, after):
        return machine.delay(Kind.BETWEEN, Time(3 * PS), after)

    def shared_experts(self, machine, context, after):
        return machine.delay(Kind.BETWEEN, Time(1 * PS), after)


def ends_us(scheme: Timed, strategy: Strategy, layers: int, between=None) -> list[int]:
    """When each layer is over for all micro-batches."""
    layer = work(draw(8, 4, 2), 2, 4)
    first = np.flatnonzero(np.arange(8) % 4 < 2)
    parts = (first, np.setdiff1d(np.arange(8), first))
    parts = (np.arange(8),) if strategy.kind == "sbo" else parts
    nothing = Context(*(np.zeros(2, np.int64) for _ in range(3)))
    link = ChainLink(
        lambda: layer,
        between=between,
        context=nothing,
        micro_batches=tuple(MicroBatch(tokens, nothing) for tokens in parts),
    )
    chain = Replay([link] * layers, hwmodel.load("dgx-h100"), scheme, strategy=strategy).build()
    visible = schedule(chain.built.graph).visible_ps
    return [int(visible[ends].max()) // PS for ends in chain.finishes]


def test_rows_of_the_one_travel_while_the_other_computes() -> None:
    # Computes: send 0-1, send 1-2, experts 6-13 and 13-20, finish 20-22 and 24-26.
    # Moves rows: 1-6, 6-11, 13-17, 20-24. One batch after the other would take 38.
    for kind in ("tbo", "dbo"):
        assert ends_us(Timed(), strategy_of(kind, "prefill", "stream"), 1) == [26]


def test_with_a_hook_rows_travel_at_the_same_time() -> None:
    # Computes: send 0-1 and 1-2, experts 6-13 and 13-20, finish 20-22 and 24-26. On the wire 1-6,
    # 2-7, 13-17, 20-24.
    assert ends_us(Hooked(), strategy_of("tbo", "prefill", "hook"), 1) == [26]
    # Decoding, the second is two stages behind and sends when the first has its sums: what overlaps
    # is a layer of the one with what lies before a layer of the other.
    assert ends_us(Hooked(), strategy_of("tbo", "decode", "hook"), 1) == [38]


def test_decoding_attends_while_rows_of_the_other_travel() -> None:
    # First: before 0-5, send 5-6, shared 6-7, on the wire 6-11; second: prepare 7-9. First: experts
    # 11-18, on the wire 18-22; second: attend 18-21. First: finish 22-24; second: send 24-25,
    # shared 25-26, on the wire 25-30, experts 30-37, on the wire 37-41, finish 41-43.
    decode = strategy_of("tbo", "decode", "hook")
    assert ends_us(Hooked(), decode, 1, Parts()) == [43]
    # With a next layer the first prepares it at 26-28 and attends at 37-40, while rows of the
    # second travel each way; send 43-44, shared 44-45; second: prepare 45-47; experts 49-56, attend
    # 56-59, finish 60-62; second: send 62-63, experts 68-75, finish 79-81.
    assert ends_us(Hooked(), decode, 2, Parts()) == [43, 81]


def test_dbo_attends_before_it_waits_for_the_other_combine() -> None:
    # Both lists: before 0-5, send 5-6; before 6-11, send 11-12; rows 6-11 and 12-17; experts 12-19.
    # tbo: experts 19-26, shared 26-27, finish 27-29 (rows 19-23), and without a turn between them
    # the first's next layer: before 29-34, send 34-35. Shared 35-36, finish 36-38 (rows 26-30),
    # before 38-43, send 43-44, experts 44-58, shared 58-59, finish 59-61, shared 61-62, finish
    # 62-64.
    assert ends_us(Timed(), strategy_of("tbo", "prefill", "stream"), 2, Parts()) == [38, 64]
    # dbo: shared 19-20, experts 20-27, finish 27-29, shared 29-30; before the next layer 30-35; the
    # rows 27-31, finish 35-37. Then send 37-38, before 38-43, send 43-44, experts 44-51, shared
    # 51-52, experts 52-59, finish 59-61, shared 61-62, rows 59-63, finish 63-65.
    assert ends_us(Timed(), strategy_of("dbo", "prefill", "stream"), 2, Parts()) == [37, 65]


def test_a_batch_by_itself_computes_shared_experts_while_its_rows_travel() -> None:
    # Before 0-5, send 5-6, shared 6-7, on the wire 6-11, experts 11-18, on the wire 18-22, finish
    # 22-24; as the kernels by themselves, but for the shared experts.
    strategy = strategy_of("sbo", "decode", "hook")
    assert ends_us(Hooked(), strategy, 2, Parts()) == [24, 48]
    assert ends_us(Hooked(), strategy, 1) == [19]
    # The kernel that receives begins behind them.
    longer = Parts()
    longer.shared_experts = lambda machine, _, after: machine.delay(Kind.BETWEEN, Time(8 * PS), after)
    assert ends_us(Hooked(), strategy, 1, longer) == [24 + 3]


# ---- every scheme --------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A list of an engine by name, and the phase."""

    kind: str
    phase: str


CUTS = (Cut("tbo", "prefill"), Cut("tbo", "decode"), Cut("dbo", "decode"))


def halves_of(layer) -> tuple[np.ndarray, ...]:
    ranks = layer.num_ranks
    origin = BatchOrigin("by hand", 0)
    rows = np.arange(layer.num_tokens)
    return Batch(rows, layer.source_rank.astype(np.int32), ranks, "decode", origin).halves()


class InTurns(Case):
    """A scheme on a layer whose micro-batches take turns, for the checks of the contract."""

    def __init__(self, scheme, name: str, layer, cut: Cut) -> None:
        super().__init__(scheme, name, layer)
        self.strategy = strategy_of(cut.kind, cut.phase, scheme.releases)
        parts = tuple(MicroBatch(places) for places in halves_of(layer))
        self.link = ChainLink(lambda: layer, micro_batches=parts)

    @cached_property
    def chain(self) -> ChainGraph:
        return Replay([self.link], self.system, self.scheme, strategy=self.strategy).build()


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: "-".join(cut))
@pytest.mark.parametrize("scheme", mostly_extended(ABLE, EVERY_TIME, share=2))
def test_micro_batches_keep_the_contract(scheme: str, cut: Cut) -> None:
    for name in (WIDE, "a rank without tokens"):
        layer = LAYERS[name]()
        if find(scheme).refuses(layer):
            continue
        case = InTurns(find(scheme), name, layer, cut)
        for check in (
            ends,
            payload,
            wire,
            checks.check_carried,
            checks.tokens,
            checks.bounds,
            frees,
            experts_wait,
            tokens_wait,
        ):
            assert not list(check(case)), (name, check.__name__)


@every("scheme", ABLE)
def test_both_streams_together_never_have_more_sms_than_there_are(scheme: str) -> None:
    system = hwmodel.load("dgx-h100", {"gpu.num_sms": 64})
    layer = work(draw(800, 8, 2, skew=0.7), 4, 8, shape=ExpertShape(1024, 256))
    shape = small_shape(name="between", num_layers=3, head_dim=64)
    places = halves_of(layer)
    parts = tuple(
        MicroBatch(tokens, Context(count, count, 40_000_000 * (1 + np.arange(4))))
        for tokens in places
        for count in [np.bincount(layer.source_rank[tokens], minlength=4)]
    )
    links = [
        ChainLink(
            lambda: layer,
            layer_index=number,
            decoder_layer=number,
            between=Between(shape, "bf16"),
            context=parts[0].context,
            micro_batches=parts,
        )
        for number in range(2)
    ]
    one = find(scheme)
    for kind in ("tbo", "dbo"):
        strategy = strategy_of(kind, "prefill", one.releases)
        chain = Replay(links, system, one, strategy=strategy).build()
        timeline = schedule(chain.built.graph)
        machine = chain.built.machine
        assert most_in_use(timeline, machine).sms <= 64
        assert machine.sms.compute == 64 - one.interleave(kind).stream_sms(layer, system)
        if one.releases == "stream":  # attention takes SMs that no kernel for rows holds
            pools = dict(machine.sms.queues)
            attention = np.isin(chain.built.graph.resource, pools["sm-attention"])
            assert attention.any()


def test_attention_has_the_sms_that_rows_leave_as_long_as_they_travel() -> None:
    layer = work(draw(4096, 8, 2), 4, 8, shape=ExpertShape(4096, 64))
    shape = small_shape(name="between", hidden=4096, moe_intermediate=64, num_layers=1, head_dim=64)
    counts = np.full(4, 512)
    parts = tuple(MicroBatch(tokens, Context(counts, counts, np.full(4, 100_000_000))) for tokens in halves_of(layer))
    link = ChainLink(lambda: layer, between=Between(shape, "bf16"), context=parts[0].context, micro_batches=parts)
    one = find("deepep").with_options({"num_sms": 24})
    strategy = strategy_of("tbo", "prefill", "stream")
    chain = Replay([link], hwmodel.load("dgx-h100"), one, strategy=strategy).build()
    timeline, graph = schedule(chain.built.graph), chain.built.graph
    blocks = np.flatnonzero((graph.kind == Kind.ATTENTION) & (graph.rank == 0))
    alone, beside = (np.unique(timeline.start_ps[some], return_counts=True) for some in np.split(np.sort(blocks), 2))
    # The first micro-batch attends on all SMs: waves of 132. Rows of the first have 24 of them when
    # the second attends, which come back when they are there and begin waves of their own.
    assert alone[1].tolist() == [132] * 4
    assert beside[1][0] == 132 - 24
    assert 24 in beside[1]
    assert beside[1].sum() == 4 * 132


# ---- whole replays -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    return tracegen.generate.generate(
        "zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=31, layers=3, steps=1, seed=1, skew=0.8
    )


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["tbo", "dbo"])
@pytest.mark.parametrize("scheme", ["deepep", "deepep-ll", "nccl-alltoall"])
def test_a_model_sends_the_same_rows_in_two_micro_batches(scheme: str, kind: str, trace) -> None:
    whole = replay.run(trace, scheme=scheme, phase=None).chain
    cut = replay.run(trace, scheme=scheme, interleave=kind).chain
    assert whole is not None
    assert cut is not None
    assert cut.routing == whole.routing
    assert cut.measures.payload_bytes == whole.measures.payload_bytes
    assert [one.payload_bytes for one in cut.layers] == [one.payload_bytes for one in whole.layers]


def test_half_the_tokens_are_cut_off_on_every_rank() -> None:
    owner = np.repeat(np.arange(4), [5, 0, 1, 4]).astype(np.int32)
    batch = Batch(np.arange(10), owner, 4, "decode", BatchOrigin("by hand", 0))
    first, second = batch.halves()
    assert first.tolist() == [0, 1, 6, 7]
    assert second.tolist() == [2, 3, 4, 5, 8, 9]
    assert batch.of_tokens(second).source_rank.tolist() == [0, 0, 0, 2, 3, 3]


def test_the_latency_of_every_token_is_known(trace) -> None:
    result = replay.run(trace, scheme="deepep", layer=1, interleave="dbo")
    assert result.layers[0].token_latency_us is not None
    slowest = {one.token for one in result.layers[0].slowest_tokens}
    assert len(slowest) == 8


def test_memory_of_two_micro_batches_is_that_of_one_batch_for_rows_that_pass(trace) -> None:
    whole = replay.run(trace, scheme="nccl-alltoall", layer=0).layers[0].memory
    cut = replay.run(trace, scheme="nccl-alltoall", layer=0, interleave="tbo").layers[0].memory
    of = {one.name: one for one in whole.buffers}
    assert {one.name for one in cut.buffers} == set(of)
    for one in cut.buffers:
        assert one.bytes == of[one.name].bytes, one.name  # rings stay, rows add up
    assert cut.weight_bytes == whole.weight_bytes
    assert cut.total_bytes == whole.total_bytes


def test_a_batch_by_itself_sends_the_same_rows(trace) -> None:
    whole, cut = (
        replay.run(trace, scheme="deepep-ll", phase=None, precision="fp8", interleave=kind).chain
        for kind in ("off", "sbo")
    )
    assert whole is not None
    assert cut is not None
    assert cut.routing == whole.routing
    assert cut.measures.payload_bytes == whole.measures.payload_bytes


def test_memory_of_a_batch_by_itself(trace) -> None:
    whole, cut = (
        replay.run(trace, scheme="deepep-ll", layer=0, precision="fp8", interleave=kind) for kind in ("off", "sbo")
    )
    of = {one.name: one.bytes for one in whole.layers[0].memory.buffers}
    found = {one.name: one.bytes for one in cut.layers[0].memory.buffers}
    # Room for 128 tokens of four GPUs: eight signals of four bytes for each of 16 experts.
    assert found == of | {"signals of GEMM-2": [16 * 8 * 4] * 4}


REFUSED = {
    "no stages between which another micro-batch could run": {"scheme": "comet"},
    "no kernel that sends results while.* sbo has: deepep-ll$": {"interleave": "sbo"},
    "--pass backward": {"direction": "backward"},
    "--shared-experts beside-dispatch": {"shared_experts": "beside-dispatch"},
    "--placement moonep": {"placement": "moonep"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_go_with_it_is_said(message: str, trace) -> None:
    settings = {"scheme": "deepep", "interleave": "tbo", **REFUSED[message]}
    with pytest.raises(UserError, match=message):
        replay.run(trace, **settings)


@pytest.mark.extended
def test_a_comparison_leaves_out_what_cannot_take_turns(trace) -> None:
    compared = replay.compare(trace, interleave="tbo", layer=0, tune=False, schemes=None, options={})
    assert {one.scheme.name for one in compared.results} == {
        name for name in ABLE if name in SCHEMES and name not in compared.left_out
    }
    assert "no stages between which" in compared.left_out["comet"]


def test_a_scheme_must_leave_sms_to_the_other_micro_batch(trace) -> None:
    few = hwmodel.load("dgx-h100", {"gpu.num_sms": 20})
    with pytest.raises(UserError, match="20 SMs for rows; the GPU has 20"):
        replay.run(trace, system=few, scheme="deepep", options={"num_sms": 20}, interleave="tbo")


def test_stages_are_counted() -> None:
    class Short(Timed):
        name = "short"

        def stages(self, work, machine, start):
            ready = yield start
            return ready

    with pytest.raises(AssertionError, match=", ".join(STAGES)):
        ends_us(Short(), strategy_of("tbo", "prefill", "stream"), 1)


def test_a_report_says_that_micro_batches_overlap(trace) -> None:
    result = replay.run(trace, scheme="deepep", layer=0, interleave="dbo")
    assert "micro-batches overlap (dbo)" in " ".join(replay.summary(result).split())
    assert "overlap (" not in replay.summary(replay.run(trace, scheme="deepep", layer=0))
