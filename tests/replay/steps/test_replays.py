"""Times of a step's parts: what recomputation, slices and split passes make of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from small_shape import small_shape

import hwmodel
from replay.engine import GraphBuilder
from replay.measure.activity import Activity
from replay.model.compute.dense import Between
from replay.model.compute.slices import Slices
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.context import Context
from replay.schemes.ep.base import LayerRefusedError
from replay.steps import copies, layer_passes, stretches
from replay.steps.groups import GroupTimes
from replay.steps.layer_passes import behind_forward
from replay.steps.parameters import of_embedding, of_head, of_layer
from replay.steps.plan import ParallelPlan
from replay.steps.replays import StepReplays
from replay.steps.routing import DrawnRouting
from replay.steps.times import PassTime, StepParts
from tracegen import models
from tracegen.generate import generate
from tracegen.models import ModelShape

H100 = hwmodel.load("dgx-h100")
SHAPE = small_shape(
    hidden=2048,
    moe_intermediate=512,
    num_shared_experts=1,
    shared_intermediate=512,
    dense_layers=(0,),
    dense_intermediate=4096,
    num_heads=16,
    num_kv_heads=4,
    vocab=32_000,
)
LATENT = models.load("deepseek-v2-lite")
BASE = {"dp": 4, "ep": 4, "pp": 2}
TOKENS = 256


def made(scheme: str = "deepep", shape: ModelShape = SHAPE, **changes: Any) -> StepParts:
    settings = ("splits_backward", "layers", "routing", "trace", "beside")
    own = {name: changes.pop(name) for name in settings if name in changes}
    plan = ParallelPlan(**{**BASE, **changes})
    replays = StepReplays(shape, H100, plan, TOKENS, "bf16", **{"layers": 1, **own})
    return replays.under(scheme)


@pytest.fixture(scope="module")
def plain() -> StepParts:
    return made(splits_backward=True, layers=3, routing=DrawnRouting("zipf", {"skew": 0.5}))


@pytest.fixture(scope="module")
def full() -> StepParts:
    return made(recompute="full", routing=DrawnRouting("zipf", {"skew": 0.5}))


@pytest.fixture(scope="module")
def selective() -> StepParts:
    return made(recompute="selective", routing=DrawnRouting("zipf", {"skew": 0.5}))


def gemm_ps(columns: int, inner: int) -> int:
    return H100.compute.gemm_time_ps(TOKENS, columns, inner, "bf16", H100.sm.num_sms)


def whole(one: PassTime | None) -> int:
    assert one is not None
    return int((one.own + one.met).max())


# ---- layers ------------------------------------------------------------------------------------


def test_every_layer_has_its_times(plain: StepParts) -> None:
    layers = plain.layers[0]
    assert len(layers) == SHAPE.num_layers
    assert [one.forward.meets for one in layers] == [False, True, True, True]
    assert len({whole(one.forward) for one in layers}) == 4  # each has a routing of its own


def test_layers_that_are_not_replayed_take_the_times_of_one_near_them() -> None:
    few = made(layers=1)
    assert few.layers[0][1] is few.layers[0][3]


def test_the_middle_of_a_traces_layers_stands_for_all() -> None:
    trace = generate("zipf", SHAPE, ranks=4, tokens_per_rank=TOKENS, skew=0.9)
    plan = ParallelPlan(**BASE)
    replays = StepReplays(SHAPE, H100, plan, TOKENS, "bf16", layers=1, trace=trace)
    replays.under("ideal")
    rows = [np.bincount(trace.expert_ids[layer].ravel() // 2).max() for layer in range(3)]
    assert replays.facts["replayed_layers"] == [[int(np.argsort(rows)[1])]]


def test_both_halves_of_a_backward_pass_are_about_all_of_it(plain: StepParts) -> None:
    for part in (*plain.layers[0], plain.head, plain.embedding):
        parts = whole(part.inputs) + whole(part.weights)
        assert parts == pytest.approx(whole(part.backward), rel=0.05)
    moe = plain.layers[0][1]
    assert moe.inputs is not None
    assert moe.weights is not None
    assert moe.weights.causes["experts"].min() > 0
    assert not moe.weights.meets
    assert (moe.inputs.met < moe.backward.met).all()


def test_experts_weights_are_launched_while_those_of_attention_are_at_work() -> None:
    """However long a launch takes, as long as GPUs take longer."""
    routed = []
    for launch_us in (1.0, 4.5):
        system = hwmodel.load("dgx-h100", {"overheads.launch_us": launch_us})
        replays = StepReplays(SHAPE, system, ParallelPlan(**BASE), TOKENS, "bf16", layers=1, splits_backward=True)
        part = replays.under("nccl-alltoall").layers[0][1].weights
        assert part is not None
        routed.append(part.causes["experts"].tolist())
    assert routed[0] == routed[1]


def test_an_embedding_has_no_gradients_of_inputs_to_make_first(plain: StepParts) -> None:
    assert whole(plain.embedding.inputs) == 0
    assert whole(plain.embedding.weights) == whole(plain.embedding.backward) > 0


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_made_again_is_made_once_where_a_backward_pass_is_split(recompute: str, plain: StepParts) -> None:
    """With the gradients of inputs, which need it first: those of weights find it there."""
    step = made("nccl-alltoall", splits_backward=True, recompute=recompute)
    for part in step.layers[0][:2]:
        parts = whole(part.inputs) + whole(part.weights)
        assert parts == pytest.approx(whole(part.backward), rel=0.05)
    assert whole(step.layers[0][0].weights) == whole(plain.layers[0][0].weights)


def test_schemes_without_stages_cannot_put_weights_off() -> None:
    part = made("dysharp", splits_backward=True).layers[0][1]
    assert part.inputs is None
    assert part.weights is None


def test_a_scheme_that_cannot_train_is_refused() -> None:
    with pytest.raises(LayerRefusedError, match="no backward pass"):
        made("deepep-ll")


def test_a_forward_pass_beside_a_backward_pass_is_quicker_than_both() -> None:
    part = made("nccl-alltoall", beside="dualpipe").layers[0][1]
    assert part.beside is not None
    assert whole(part.beside) < 1.05 * (whole(part.forward) + whole(part.backward))
    assert part.beside.causes["attention"].min() > 0
    assert made("dysharp", beside="dualpipe").layers[0][1].beside is None


def test_passes_beside_each_other_are_replayed_once_for_each_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer of multi-token prediction has more before it, and the same passes beside."""
    replayed = []
    pair_times = layer_passes.pair_times

    def counted(pair: Any) -> Any:
        replayed.append(pair)
        return pair_times(pair)

    monkeypatch.setattr(layer_passes, "pair_times", counted)
    layers = made("nccl-alltoall", beside="dualpipe", mtp=1).layers[0]
    assert len(replayed) == 2  # with its hosts, and with hosts that cost nothing
    assert layers[1].beside is layers[-1].beside is not None
    assert layers[1].forward.own.tolist() != layers[-1].forward.own.tolist()
    made("nccl-alltoall", beside="dualpipe", mtp=1, layers=2)
    assert len(replayed) == 2 + 2 * 2


def test_parts_with_the_same_tasks_are_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of multi-token prediction has more before it, so that its hosts are further ahead."""
    replayed = []
    exposed_ps = stretches.exposed_ps

    def counted(*given: Any) -> Any:
        replayed.append(given)
        return exposed_ps(*given)

    monkeypatch.setattr(stretches, "exposed_ps", counted)
    made("deepep")
    alone = len(replayed)
    known = made("deepep", mtp=1).layers[0]
    assert len(replayed) == 2 * alone
    unlike = itertools.count()
    monkeypatch.setattr(stretches, "fingerprint", lambda _: bytes([next(unlike)]))
    again = made("deepep", mtp=1).layers[0]
    assert len(replayed) == 4 * alone
    for one, other in zip(known, again, strict=True):
        for found, wanted in ((one.forward, other.forward), (one.backward, other.backward)):
            assert found is not None
            assert wanted is not None
            assert found.own.tolist() == wanted.own.tolist()
            assert found.met.tolist() == wanted.met.tolist()
            assert str(found.activity) == str(wanted.activity)
            assert str(found.causes) == str(wanted.causes)


def test_passes_beside_each_other_with_what_is_made_again() -> None:
    """Before both meet others; all of a forward pass again would meet them on its way."""
    none, some, every = (
        made("nccl-alltoall", beside="megatron", recompute=one).layers[0][1] for one in ("none", "selective", "full")
    )
    assert none.beside is not None
    assert some.beside is not None
    assert every.beside is None
    assert not none.beside.own.any()
    assert some.beside.met.tolist() == none.beside.met.tolist()
    again = some.backward.own - none.backward.own
    # Its first kernel is launched when the passes before are over.
    assert ((again <= some.beside.own) & (some.beside.own < again + 4_500_000)).all()


# ---- recomputation -----------------------------------------------------------------------------


def test_all_again_is_both_passes(plain: StepParts, full: StepParts) -> None:
    dense, again = plain.layers[0][0], full.layers[0][0]
    assert whole(again.backward) == whole(dense.forward) + whole(dense.backward)
    # Max-plus by hand: come, meet, forward, backward alone, meet, backward.
    first = full.layers[0][1]
    moe = plain.layers[0][1]
    through = moe.forward.own.max() + moe.forward.met
    ends = (through + moe.backward.own).max() + moe.backward.met
    assert (first.backward.own.max() + first.backward.met).tolist() == ends.tolist()


def test_waiting_between_both_passes_is_exchange() -> None:
    own, met = np.array([1, 2]), np.array([10, 4])
    runs = Activity(own, met, 0 * own)
    ahead = PassTime(own, met, {"attention": own, "experts": met}, runs)
    back = behind_forward(ahead, ahead)
    assert back.met.tolist() == [11 + 10, 11 + 4]
    assert back.causes["exchange"].tolist() == [0, 11 - 6]
    assert back.activity.communicating.tolist() == [20, 8 + 5]
    assert back.activity.active.tolist() == (back.own + back.met).tolist()


def test_some_again_is_norms_activations_and_latent_vectors(
    plain: StepParts, selective: StepParts, full: StepParts
) -> None:
    for layer in (0, 1):
        none, some, every = (one.layers[0][layer] for one in (plain, selective, full))
        assert whole(none.backward) < whole(some.backward) < whole(every.backward)
    some, none = selective.layers[0][1].backward, plain.layers[0][1].backward
    more = {
        cause: int(some.causes[cause].max() - none.causes[cause].max()) for cause in ("attention", "experts", "dense")
    }
    assert more["attention"] > 0
    # Of as many rows as each GPU has.
    extra = some.causes["experts"] - none.causes["experts"]
    assert extra.max() > extra.min() > 0
    assert more["dense"] == 0


# ---- slices ------------------------------------------------------------------------------------


def exchanged(shape: ModelShape, *, tp: int = 1, cp: int = 1, **between: Any) -> list[Any]:
    """Collectives of a MoE layer's dense parts, with 8 rows per GPU."""
    seen: list[Any] = []

    def note(group: str, what: str, nbytes: int) -> int:
        seen.append((group, what, nbytes))
        return 1000

    parts = Between(shape, "bf16", slices=Slices(tp, cp, note), **between)
    machine = Machine(H100, GraphBuilder(KIND_NAMES), 1)
    context = Context(np.array([8]), np.array([8 * tp * cp]), np.array([64]))
    parts.layer(machine, context, machine.mark(machine.ranks), is_dense=False)
    return seen


AG, RS = "all_gather", "reduce_scatter"


def test_tensor_parallelism_moves_what_megatron_moves() -> None:
    rows, row = 8 * 4, 2048 * 2
    assert exchanged(SHAPE, tp=4) == [("tp", AG, rows * row), ("tp", RS, rows * row)] * 2
    back = [("tp", AG, rows * row), ("tp", RS, rows * row), ("tp", AG, rows * row)]
    assert exchanged(SHAPE, tp=4, is_backward=True) == back * 2
    assert exchanged(SHAPE, tp=4, is_backward=True, weights="alone") == [back[0]] * 2
    assert exchanged(SHAPE, tp=4, is_backward=True, weights="put off") == back[1:] * 2


def test_latent_attention_gathers_latent_vectors() -> None:
    first = exchanged(LATENT, tp=4)[:3]
    rank, rope = 512, 64
    assert first == [
        ("tp", AG, 32 * 2048 * 2),  # queries have no latent vector
        ("tp", AG, 32 * (rank + rope) * 2),
        ("tp", RS, 32 * 2048 * 2),
    ]
    with_queries = LATENT.model_copy(update={"q_lora_rank": 256})
    assert exchanged(with_queries, tp=4)[0] == ("tp", AG, 32 * (256 + rank + rope) * 2)


def test_context_parallelism_gathers_keys_and_values() -> None:
    keys = 8 * 4 * (4 * 128) * 2 * 2
    assert exchanged(SHAPE, cp=4) == [("cp", AG, keys)]
    assert exchanged(SHAPE, cp=4, is_backward=True) == [("cp", AG, keys), ("cp", RS, keys)]
    assert exchanged(SHAPE, tp=2, cp=2)[1] == ("cp", AG, keys // 2)  # two heads of four


def test_slices_take_their_part_of_the_work(plain: StepParts) -> None:
    sliced = made(tp=4, dp=1, micro_batch=4)  # as many tokens on each GPU, a quarter of the heads
    one, other = plain.layers[0][0].forward, sliced.layers[0][0].forward
    moved = 4 * TOKENS * 2048 * 2
    exchanges = 2 * sum(GroupTimes(H100).collective_ps(what, moved, 4) for what in (AG, RS))
    assert whole(other) - whole(one) == pytest.approx(exchanges, rel=0.2)
    halves = made(cp=2, dp=2).layers[0][0].forward
    assert (halves.causes["dense"] < one.causes["dense"]).all()  # of half of the tokens


def test_groups_of_experts_within_a_group_of_slices_do_alike() -> None:
    """Eight GPUs that slice attention are two groups of four that experts are spread over."""
    routing = DrawnRouting("zipf", {"skew": 1.0})
    met = made("nccl-alltoall", tp=2, cp=4, dp=1, pp=1, routing=routing).layers[0][1].forward.met
    assert met[:4].tolist() == met[4:].tolist()
    assert len(set(met.tolist())) > 2


# ---- ends and copies ---------------------------------------------------------------------------


def test_predictions_beyond_the_next_token_pass_the_head_again(plain: StepParts) -> None:
    more = made(mtp=1)
    once, twice = plain.head.forward.activity, more.head.forward.activity
    assert twice.active.tolist() == (2 * once.active).tolist()
    assert whole(more.head.forward) == 2 * whole(plain.head.forward)
    assert len(more.layers[0]) == SHAPE.num_layers + 1
    joined = more.layers[0][-1].forward.causes["dense"] - more.layers[0][1].forward.causes["dense"]
    assert gemm_ps(2048, 4096) < joined.min() < gemm_ps(2048, 4096) + 15_000_000  # and two norms


def test_head_and_loss_take_their_operations_and_bytes(plain: StepParts) -> None:
    scores = TOKENS * 32_000
    loss = 3 * 2 * scores / 3.35e12
    rest = whole(plain.head.forward) - gemm_ps(32_000, 2048)
    assert loss < rest / 1e12 < 1.5 * loss + 20e-6
    none = made(shape=SHAPE.model_copy(update={"vocab": None}))
    assert whole(none.head.forward) == whole(none.embedding.backward) == 0


def test_a_chunk_has_its_layers_and_its_ends() -> None:
    plan = ParallelPlan(**BASE)
    first = copies.chunk_parameters(SHAPE, plan, range(2), first=True, last=False)
    layers = [of_layer(SHAPE, number, 1, 4) for number in range(2)]
    assert first.dense == sum(one.without_experts for one in layers) + of_embedding(SHAPE)
    assert first.experts == layers[1].experts
    last = copies.chunk_parameters(SHAPE, plan, range(2, 4), first=False, last=True)
    two = sum(of_layer(SHAPE, number, 1, 4).without_experts for number in (2, 3))
    assert last.dense == two + of_head(SHAPE)


def test_a_tied_head_is_a_copy_of_the_embedding_on_another_stage_alone() -> None:
    tied, plan = SHAPE.model_copy(update={"tied_embeddings": True}), ParallelPlan(**BASE)
    layers = sum(of_layer(tied, number, 1, 4).without_experts for number in range(4))
    embedding = 32_000 * 2048
    one = copies.chunk_parameters(tied, plan, range(4), first=True, last=True)
    assert one.dense == layers + embedding
    ends = [
        copies.chunk_parameters(tied, plan, mine, first=not number, last=bool(number)).dense
        for number, mine in enumerate((range(2), range(2, 4)))
    ]
    assert sum(ends) == layers + 2 * embedding


def test_gradients_and_weights_go_round_once(plain: StepParts) -> None:
    """Of the dense weights, since four GPUs have all experts once."""
    plan = ParallelPlan(**BASE)
    of = copies.chunk_parameters(SHAPE, plan, range(3), first=True, last=False)
    through = 3 / 4 * of.dense / 450e9  # of a port of H100's
    assert 4 * through < plain.synchronise[0, 3] / 1e12 < 2.2 * 4 * through
    adam = (of.dense / 4 + of.experts) * 34 / 3.35e12
    assert adam + 2 * through < plain.update[0, 3] / 1e12 < 1.6 * adam + 2.5 * 2 * through
    # Two copies of the experts have gradients to add up, too.
    twice = made(dp=4, ep=2)
    assert twice.synchronise[0, 3] > plain.synchronise[0, 3]


# ---- samples of nodes --------------------------------------------------------------------------


def test_gpus_of_other_nodes_take_the_times_of_those_that_stand_for_them() -> None:
    """In every pass and by every cause, what is made again included; GPUs wait for their hosts."""
    machine = hwmodel.load(
        "dgx-h100",
        {"fabric.num_gpus": 2, "fabric.num_domains": 4, "overheads.launch_us": 20.0},
    )
    shape = SHAPE.model_copy(update={"num_layers": 2})
    replays = StepReplays(
        shape,
        machine,
        ParallelPlan(ep=8, dp=8, recompute="selective"),
        32,
        "bf16",
        layers=1,
        sample_nodes=1,
        splits_backward=True,
        routing=DrawnRouting("zipf", {"skew": 0.5}),
    )
    part = replays.under("nccl-alltoall").layers[0][1]
    for timed in (part.forward, part.backward, part.inputs, part.weights):
        assert timed is not None
        for times in (timed.own, timed.met, *timed.causes.values()):
            assert times.shape == (8,)
            assert (times.reshape(4, 2) == times[:2]).all()
    assert replays.facts["sampled_nodes"] == 1
