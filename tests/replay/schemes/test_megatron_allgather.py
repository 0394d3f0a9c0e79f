"""Megatron-LM's all-gather dispatcher: rings to the byte, types of sums, uneven ranks, launches."""

from __future__ import annotations

import numpy as np
from loops import every
from one_layer import replay_layer

import hwmodel
from replay.chains.host_program import outline_layer, program
from replay.chains.layer import build_layer
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import case_of, examine_case
from replay.schemes.contract.graph_facts import port_bytes
from replay.schemes.ep.megatron.allgather import SELECTED, SIZE_WAIT

SYSTEM = hwmodel.load("dgx-h100")
SCHEME = SCHEMES["megatron-allgather"]
HIDDEN = 96


def layer(tokens: list[int], *, back: str = "bf16", is_backward: bool = False) -> LayerWork:
    """Top-2 of two experts a rank."""
    ids = small_layers.draw(sum(tokens), 2 * len(tokens), 2, seed=2)
    return small_layers.work(
        ids,
        len(tokens),
        2 * len(tokens),
        tokens_of_rank=tokens,
        is_backward=is_backward,
        shape=ExpertShape(HIDDEN, 64),
        precision=Precision("bf16", combine=back),
    )


@every("is_backward", [False, True])
@every(("back", "value"), [("bf16", 2), ("fp32", 4)])
def test_rings_hand_every_row_to_every_other_gpu(back: str, value: int, is_backward: bool) -> None:
    work = layer([10, 10, 10, 10], back=back, is_backward=is_backward)
    carried = port_bytes(build_layer(work, SYSTEM, SCHEME)[0])
    for gpu in range(4):
        for way in ("uplink", "downlink"):
            # Its own rows and those it hands on, whatever they are routed to.
            assert carried["dispatch"][way, gpu] == 3 * 10 * HIDDEN * 2
            # Sums in the type of the probabilities.
            assert carried["combine"][way, gpu] == 3 * 10 * HIDDEN * value


def test_ranks_with_fewer_tokens_gather_as_many() -> None:
    carried = port_bytes(build_layer(layer([10, 0, 3]), SYSTEM, SCHEME)[0])
    assert set(carried["dispatch"].values()) == {2 * 10 * HIDDEN * 2}
    for name in ("a rank without tokens", "tiny, three ranks, several tiles"):  # rows of pieces
        assert not list(examine_case(case_of(SCHEME, name)))


def test_what_is_gathered_besides_are_flags_and_probabilities() -> None:
    graph = build_layer(layer([16, 16]), SYSTEM, SCHEME)[0]
    gathered = graph.wire_bytes[(graph.kind == Kind.COUNT_UP) & (graph.rank == 0)]
    # A byte, and then two, for each of four experts; protocol LL has as many flags.
    flags, probs = 2 * 16 * 4, 2 * 16 * 4 * 2
    assert SYSTEM.link.write_wire_bytes(flags) in gathered
    assert SYSTEM.link.write_wire_bytes(probs) in gathered
    assert len(gathered) == 2


def test_it_has_two_waits_and_as_many_experts_kernels() -> None:
    ids = np.arange(64, dtype=np.int32).reshape(8, 8)
    ours, theirs = (
        {one.name: one.launches for one in program(SCHEMES[name], small_layers.work(ids, 8, 64), SYSTEM)}
        for name in ("megatron-allgather", "megatron")
    )
    assert list(ours.values()).count(0) == 2
    assert ours["gemm1"] == ours["gemm2"] == theirs["gemm1"] == 8
    backward = program(SCHEME, small_layers.work(ids, 8, 64, is_backward=True), SYSTEM)
    assert all(one.launches for one in backward)
    assert backward[-1].name == "reduce-scatter of gradients of probabilities"


def test_own_gate_weights_are_selected_before_the_host_waits_for_their_number() -> None:
    """Seven kernels: flags and three probabilities for each token and each of two experts of a GPU."""
    for back, value in (("bf16", 2), ("fp32", 4)):
        script = outline_layer(SCHEME, layer([10, 10, 10], back=back), SYSTEM).host.script
        (run,) = (one for one in script.runs([("experts", False)]) if one.name == SELECTED)
        assert (run.kernels, run.nbytes) == (7, 30 * 2 * (4 + 3 * value))
        launched = [one.name for one in script.program]
        assert launched[launched.index(SIZE_WAIT) - 1] == SELECTED


def test_casts_stand_round_the_scatter_where_probabilities_are_fp32() -> None:
    for back, casts in (("bf16", 0), ("fp32", 1)):
        names = [one.name for one in program(SCHEME, layer([4, 4], back=back), SYSTEM)]
        assert sum(name.startswith("sums ") for name in names) == 2 * casts


def test_time_does_not_depend_on_where_tokens_go_but_in_the_experts() -> None:
    """The wire carries all rows anyway, so that one choice costs as much as eight."""
    ids = small_layers.draw(512, 64, 8)
    one, eight = (small_layers.work(ids[:, :k], 8, 64) for k in (1, 8))
    sent = [replay_layer(work, SYSTEM, SCHEME).measures.payload_bytes for work in (one, eight)]
    assert sent[0] == sent[1]
    exact = [
        np.sum(replay_layer(work, SYSTEM, SCHEMES["megatron"]).measures.payload_bytes["dispatch"].uplink)
        for work in (one, eight)
    ]
    ring = np.sum(sent[0]["dispatch"].uplink)
    assert exact[0] < ring < 1.1 * exact[1] * 8 / 7


def test_memory_holds_all_tokens() -> None:
    buffers = {one.name: one.nbytes.tolist() for one in SCHEME.buffers(layer([3, 1]), SYSTEM)}
    row = 2 * HIDDEN
    assert buffers["gathered rows"] == buffers["sums for all tokens"] == [6 * row] * 2
    assert buffers["gathered map and probabilities"] == [6 * 4 * (1 + 2)] * 2
