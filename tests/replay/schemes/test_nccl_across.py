"""NCCL's schemes on several nodes: settings, nodes that are not full, one node of several."""

from __future__ import annotations

import numpy as np
from loops import every

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.schemes import SCHEMES
from replay.schemes.contract.case import Case
from replay.schemes.contract.checks import CHECKS
from replay.schemes.contract.layers import ACROSS, draw, work

SAME_LIBRARY = ("nccl-alltoall", "megatron", "megatron-allgather", "tutel", "fastermoe", "nvls")


@every("layer", ["3 domains of 2, zipf fp8", "2 domains of 8, uneven ranks"])
@every("check", ["payload", "ways"])
def test_without_relays_each_row_leaves_by_the_card_of_its_gpu(layer: str, check: str) -> None:
    scheme = SCHEMES["nccl-alltoall"].with_options({"pxn": False})
    assert (SCHEMES["nccl-alltoall"].network, scheme.network) == ("rail", "direct")
    case = Case(scheme, layer, ACROSS[layer].make(), ACROSS[layer].domain_size)
    assert not case.refusal and not list(CHECKS[check].find(case))


def ran(name: str, system: str, num_ranks: int) -> Timeline:
    layer = work(draw(8 * num_ranks, 16, 4, skew=0.5), num_ranks, 16)
    return schedule(build_layer(layer, hwmodel.load(system), SCHEMES[name])[0])


@every("name", SAME_LIBRARY)
def test_one_node_of_several_gives_what_one_node_gives(name: str) -> None:
    several, one = ran(name, "dgx-h100-x4", 8), ran(name, "dgx-h100", 8)
    assert np.array_equal(several.start_ps, one.start_ps)
    assert np.array_equal(several.visible_ps, one.visible_ps)


def test_ranks_that_fill_no_nodes() -> None:
    system, layer = hwmodel.load("dgx-h100-x2"), work(draw(24, 12, 2), 12, 12)
    scheme = SCHEMES["nccl-alltoall"]
    assert scheme.refuses_on(layer, system) == (
        "12 ranks do not fill nodes of 8: PXN wants a GPU of every rail in each, pxn=false does not"
    )
    assert not scheme.with_options({"pxn": False}).refuses_on(layer, system)


def test_kernels_hold_the_channels_of_their_communicator() -> None:
    system = hwmodel.load("dgx-h100-x2")
    scheme = SCHEMES["nccl-alltoall"]
    assert scheme.communication_sms(system) == 16
    held = [scheme.stream_sms(work(draw(n, n, 1), n, n), system) for n in (8, 16)]
    assert held == [32, 16]
    assert scheme.communication_sms(hwmodel.load("dgx-h100")) == 32


def test_fifos_of_several_nodes() -> None:
    system, mib = hwmodel.load("dgx-h100-x4"), 1 << 20

    def fifos(num_ranks: int, **options: bool) -> list[int]:
        scheme = SCHEMES["nccl-alltoall"].with_options(options)
        found = scheme.buffers(work(draw(num_ranks, num_ranks, 1), num_ranks, num_ranks), system)
        return np.unique(next(one.nbytes for one in found if "FIFO" in one.name)).tolist()

    assert fifos(8) == [7 * 32 * 12 * mib]
    # Two channels of a peer inside; of 16 channels, 16 chunks of 128 KiB that come, and that go for
    # each of eight ranks.
    assert fifos(32) == [7 * 2 * 12 * mib + (1 + 8) * 16 * 16 * mib // 8]
    assert fifos(32, pxn=False) == [7 * 2 * 12 * mib + (1 + 1) * 16 * 16 * mib // 8]
