"""Device memory of a layer by hand: buffers of each library, what experts write, room on a GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
from loops import every
from one_layer import replay_layer

import hwmodel
import replay
from replay.chains.memory import largest, memory_of, room
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.deepep.buffers import low_latency_bytes
from replay.schemes.registry import EXAMPLES

HIDDEN, INTERMEDIATE, TOPK = 256, 128, 2
IDS = [[0, 1], [0, 1], [0, 2], [2, 3], [1, 3], [0, 3]]  # experts 0 and 1 on rank 0, 2 and 3 on 1
TOKENS = np.array([4, 2])
PAIRS = np.array([7, 5])  # rows of the experts of each GPU
COPIES = np.array([5, 4])
BACK = np.array([8, 4])  # rows that come back for a GPU's tokens
ROW, GATE_UP, ACTIVATED = 2 * HIDDEN, 2 * 2 * INTERMEDIATE, 2 * INTERMEDIATE
FP8_ROW, FP8_ACTIVATED = HIDDEN + 2 * 4, INTERMEDIATE + 4

H100 = hwmodel.load("dgx-h100")


def layer(precision: str | Precision = "bf16", *, is_backward: bool = False) -> LayerWork:
    return small_layers.work(
        np.array(IDS, np.int32),
        2,
        4,
        tokens_of_rank=TOKENS.tolist(),
        precision=precision,
        shape=ExpertShape(HIDDEN, INTERMEDIATE),
        is_backward=is_backward,
    )


def buffers(scheme: str, work: LayerWork, **options: object) -> dict[str, list[int]]:
    chosen = find(scheme).with_options(options)
    every = (*chosen.buffers(work, H100), *chosen.intermediates(work))
    found = {one.name: one.nbytes.tolist() for one in every}
    assert len(found) == len(every), "two buffers have one name"
    return found


def each(nbytes: int) -> list[int]:
    return [nbytes, nbytes]


EXPERTS = {
    "results of the first GEMM": (PAIRS * GATE_UP).tolist(),
    "operands of the second GEMM": (PAIRS * ACTIVATED).tolist(),
    "results of the experts": (PAIRS * ROW).tolist(),
}
FUSED = {name: nbytes for name, nbytes in EXPERTS.items() if "first" not in name}


def test_rows_of_direct_stores() -> None:
    assert buffers("plain", layer()) == EXPERTS | {
        "received rows": (PAIRS * ROW).tolist(),
        "returned rows": (BACK * ROW).tolist(),
    }
    mixed = buffers("plain", layer(Precision("bf16", dispatch="fp8", combine="fp8")))
    assert mixed["cast tokens"] == (TOKENS * FP8_ROW).tolist()
    assert mixed["received rows"] == (PAIRS * FP8_ROW).tolist()
    assert mixed["cast rows"] == (PAIRS * ROW).tolist()
    assert mixed["cast results"] == (PAIRS * FP8_ROW).tolist()


def test_a_bound_has_no_buffers_and_kernels_of_experts_have_theirs() -> None:
    assert buffers("ideal", layer()) == {}
    assert buffers("ideal", layer(), form="fused") == FUSED
    assert buffers("ideal", layer(), form="kernels") == EXPERTS


def test_deepep_has_rings_copies_expanded_rows_and_sums() -> None:
    # Of 12 channels from 2 ranks: 5 numbers; 256 rows with where they are from, room for 128 ids,
    # weights and scales.
    rings = 24 * (5 * 4 + 256 * (ROW + 8 + 128 * 8 + 128 * 4 + 128 * 4))
    meta = 4 + TOPK * (8 + 4)
    assert buffers("deepep", layer(), stack="bare") == EXPERTS | {
        "rings": each(-(-rings // 128) * 128),
        "received rows": (COPIES * (ROW + meta)).tolist(),
        "places in rings": (TOKENS * 2 * 4).tolist(),
        "rows by expert": (PAIRS * ROW).tolist(),
        "sums by GPU": (COPIES * ROW).tolist(),
    }
    # Engines pad each of two experts to 128 rows; vLLM copies the sums and sets a GiB aside.
    padded = buffers("deepep", layer("fp8"), stack="sglang")
    assert padded["rows by expert"] == each(256 * FP8_ROW)
    assert padded["results of the first GEMM"] == each(256 * GATE_UP)
    assert padded["activations to quantise"] == each(256 * ACTIVATED)
    assert padded["operands of the second GEMM"] == each(256 * FP8_ACTIVATED)
    vllm = buffers("deepep", layer("fp8"))
    assert vllm["rings"] == each(2**30)
    assert vllm["combined rows"] == (TOKENS * ROW).tolist()
    assert "activations to quantise" not in vllm
    # DeepGEMM's own comparison reads rows as they came, and sends results as they are.
    compared = buffers("deepep", layer("fp8"), stack="deepgemm")
    assert not {"rows by expert", "sums by GPU", "combined rows"} & compared.keys()
    assert compared["results of the first GEMM"] == (COPIES * GATE_UP).tolist()


def test_low_latency_has_room_for_all_tokens_at_every_expert_twice() -> None:
    # Rows of 256 values take the next size, 2048. Messages have a header of 16 bytes out, and a
    # smallest and a largest value for 128 back; 4 experts x 128 tokens.
    messages, back = 4 * 128, 2 * 2048 + 16 * 4
    both = 2 * (messages * back + messages * back + 128)
    slots = 2 * 128 * 2
    assert buffers("deepep-ll", layer()) == {
        "symmetric buffer": each(both + 128),
        "packed rows": each(slots * (2 * 2048 + 4)),
        "results of the first GEMM": each(slots * GATE_UP),
        "operands of the second GEMM": each(slots * ACTIVATED),
        "results of the experts": each(slots * ROW),
    }


def test_low_latency_buffers_have_the_sizes_that_were_published() -> None:
    # DeepEP's test prints "Allocating buffer size: 2146.961792 MB"; vllm-project/vllm issue 57894
    # has a table for hidden 5120 and 448 experts.
    assert low_latency_bytes(128, 7168, 288) == 2_146_961_792
    table = {2048: 35.55, 1856: 32.21, 1840: 31.94, 1536: 26.66}  # GiB by tokens of a rank
    for num_tokens, gib in table.items():
        assert low_latency_bytes(num_tokens, 5120, 448) / 2**30 == pytest.approx(gib, abs=0.005)


def test_nccls_connections_take_what_users_see() -> None:
    """NVIDIA/nccl issue 1685: the first all-to-all on 8 H100 takes 4.34 - 1.06 GB.

    It allocates buffers of 10,485,760 and of 2,097,152 bytes, for 32 channels of each peer.
    """
    work = small_layers.ALL["zipf 8 ranks"]()
    (fifos,) = (one for one in SCHEMES["nccl-alltoall"].buffers(work, H100) if one.stays)
    assert fifos.nbytes.tolist() == [7 * 32 * (10_485_760 + 2_097_152)] * 8
    assert fifos.nbytes[0] == pytest.approx(4.34e9 - 1.06e9, rel=0.15)


def test_nvls_has_all_tokens_twice_on_every_gpu() -> None:
    found = buffers("nvls", layer())
    assert found["gathered tokens"] == each(6 * (ROW + TOPK * (8 + 4)))
    assert found["sums of all tokens"] == each(6 * ROW)
    assert found["rows by expert"] == (PAIRS * ROW).tolist()


def test_flux_has_room_for_all_tokens_and_all_their_rows() -> None:
    assert buffers("flux", layer()) == {
        "tokens of all GPUs": each(6 * ROW),
        "results of all rows": each(6 * TOPK * ROW),
        "sums for all tokens": each(6 * ROW),
        "indices": each((3 * TOPK + TOPK + 2) * 6 * 4),
        "results of the first GEMM": (PAIRS * GATE_UP).tolist(),
        "operands of the second GEMM": (PAIRS * ACTIVATED).tolist(),
    }
    assert buffers("comet", layer()) == FUSED | {
        "tokens of all GPUs": each(6 * ROW),
        "fetched rows": (PAIRS * ROW).tolist(),
        "returned rows": (BACK * ROW).tolist(),
    }


def test_flashdmoe_has_four_cells_for_every_expert_and_source() -> None:
    room_for = 4 * 128  # experts, whole tiles of the 4 tokens that one GPU has
    assert buffers("flashdmoe", layer()) == {
        "symmetric heap": each(4 * room_for * ROW),
        "operands of the second GEMM": each(room_for * ACTIVATED),
        "signals": each(8 * (4 + 4 * 1 * -(-HIDDEN // 128))),
        "token indices": each(8 * room_for),
    }
    # About four times the rows of a GPU's tokens where capacity drops what is too much.
    ids = np.tile(np.arange(2, dtype=np.int32), (2048, 1))
    many = small_layers.work(ids, 2, 8, shape=ExpertShape(HIDDEN, INTERMEDIATE))
    heap = buffers("flashdmoe", many, capacity_factor=1.0)["symmetric heap"]
    assert heap == each(4 * 1024 * TOPK * ROW)
    assert buffers("flashdmoe", many)["symmetric heap"] == each(4 * 8 * 1024 * ROW)


@every("scheme", ["dysharp", "dysharp-comet", "dysharp-fusion-only"])
def test_dysharp_has_rows_in_slots_and_tables(scheme: str) -> None:
    assert buffers(scheme, layer()) == FUSED | {
        "received rows": (PAIRS * ROW).tolist(),
        "slots of tokens": each(6 * 4),
        "tokens of slots": (PAIRS * 4).tolist(),
    }


def test_moe_hub_keeps_no_results() -> None:
    assert buffers("moe-hub", layer()) == {
        "received rows": (PAIRS * ROW).tolist(),
        "return addresses": (PAIRS * 8).tolist(),
        "row addresses": (PAIRS * 8).tolist(),
        "returned rows": (BACK * ROW).tolist(),
        "operands of the second GEMM": (PAIRS * ACTIVATED).tolist(),
    }


def test_gradients_find_what_the_forward_pass_kept() -> None:
    found = buffers("plain", layer(is_backward=True))
    # The gradient of what the activation made, that of what it read, and the rows' own.
    assert found["results of the first GEMM"] == (PAIRS * ACTIVATED).tolist()
    assert found["operands of the second GEMM"] == (PAIRS * GATE_UP).tolist()
    assert found["kept by the forward pass"] == (PAIRS * (ROW + GATE_UP + ACTIVATED)).tolist()
    assert found["gradients of the weights"] == each(2 * 4 * 3 * HIDDEN * INTERMEDIATE)


# ---- the measure -------------------------------------------------------------------------------


def test_a_layer_has_buffers_tokens_and_weights() -> None:
    found = replay_layer(layer(), H100, find("plain")).memory
    assert found is not None
    weights = 2 * 2 * 3 * HIDDEN * INTERMEDIATE
    assert found.weight_bytes == each(weights)
    assert found.token_bytes == (TOKENS * 2 * ROW).tolist()
    held = sum(np.array(one.bytes) for one in found.buffers)
    assert found.total_bytes == (held + TOKENS * 2 * ROW + weights).tolist()


def test_fp8_weights_have_a_scale_for_each_block() -> None:
    found = memory_of(layer("fp8"), H100, find("plain"))
    blocks = 2 * 2 + 2 * 1  # of 128 x 128: twice 128 x 256, and 256 x 128
    assert found.weight_bytes == each(2 * (3 * HIDDEN * INTERMEDIATE + 4 * blocks))


def test_a_gpu_has_room_for_a_layer_and_the_weights_of_the_others() -> None:
    one, other = (memory_of(layer(types), H100, find("plain")) for types in ("bf16", "fp8"))
    assert largest([other, one]) is one
    found = room([other, one], H100, 5)
    assert found.needed_bytes == one.total_bytes[0] + 4 * one.weight_bytes[0]
    assert (found.num_layers, found.capacity_bytes) == (5, 81559 * 2**20)


@every("scheme", [*SCHEMES, *EXAMPLES])
@every("name", ["no tokens", "a rank without tokens", "one gpu", "experts do not divide", "backward"])
def test_every_scheme_states_bytes_of_every_gpu(scheme: str, name: str) -> None:
    work, chosen = small_layers.ALL[name](), find(scheme)
    if chosen.refuses(work):
        return
    for one in (*chosen.buffers(work, H100), *chosen.intermediates(work)):
        assert one.nbytes.shape == (work.num_ranks,), one.name
        assert np.issubdtype(one.nbytes.dtype, np.integer) and (one.nbytes >= 0).all(), one.name


def test_results_and_tables_say_it(synthetic) -> None:
    compared = replay.compare(synthetic(), ["deepep", "plain"], layer=0)
    for result in compared.results:
        (part,) = result.layers
        assert part.memory is not None and result.room is not None
        assert json.loads(result.to_json())["layers"][0]["memory"]["total_bytes"]
    shown = replay.summary(compared)
    assert "Device memory of the GPU that needs most" in shown and "rings" in shown
    assert "arning" not in shown
    alone = replay.summary(compared["plain"])
    assert "returned rows" in alone and "weights of its experts" in alone


def test_too_little_memory_is_said_with_numbers(synthetic) -> None:
    few = {"hbm.capacity_MiB": 1}
    compared = replay.compare(synthetic(), ["plain", "ideal"], layer=0, overrides=few)
    (needed, least) = (one.room.needed_bytes for one in compared.results if one.room)
    shown = " ".join(replay.summary(compared).split())
    assert "Warning: a GPU has 0.0 GB" in shown
    assert f"plain {needed / 1e9:,.1f}, ideal {least / 1e9:,.1f}." in shown


def test_a_chain_states_its_largest_layer(synthetic) -> None:
    result = replay.run(synthetic(layers=2), scheme="plain")
    assert result.chain is not None and result.chain.memory is not None
    apart = replay.run(synthetic(layers=2), scheme="plain", barrier=True)
    totals = [max(one.memory.total_bytes) for one in apart.layers if one.memory]
    assert max(result.chain.memory.total_bytes) == max(totals)
