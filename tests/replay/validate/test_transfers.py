"""Transfers of the machine alone, against arithmetic."""

import numpy as np
import pytest
from loops import every

from replay.model.machine.kinds import DISPATCH
from replay.studies.validate.bench import Bench

BENCH = Bench()
H100 = BENCH.system("dgx-h100")
TWO_NODES = BENCH.system("dgx-h100-x2")


def took_us(system, num_ranks, build):
    return BENCH.time_us(system, num_ranks, build)


def test_a_put_leaves_one_nic_travels_and_enters_the_other():
    src, dst = np.array([0]), np.array([8])
    time = took_us(
        TWO_NODES,
        16,
        lambda m, start: m.transfers.store(DISPATCH, src, dst, 47_500_000, start[src]),
    )
    # Once over the slowest port, and the first packet twice.
    first_us = 4096 / 47_500
    assert time == pytest.approx(1000 + 8 + first_us, rel=1e-6)
    other_rail = np.array([9])
    across = took_us(
        TWO_NODES,
        16,
        lambda m, start: m.transfers.store(DISPATCH, src, other_rail, 47_500_000, start[src]),
    )
    # Two cards on a leaf: its way to the spine is twice as fast as a card.
    assert across == pytest.approx(time + 1.3 + 2 * 4096 / 95_000, rel=1e-6)


def test_many_puts_share_the_nic():
    src, dst = np.zeros(1000, np.int64), np.full(1000, 8)
    time = took_us(
        TWO_NODES,
        16,
        lambda m, start: m.transfers.store(DISPATCH, src, dst, 475_000, start[src]),
    )
    assert time == pytest.approx(1000 * 10 + 8 + 4096 / 47_500, rel=1e-6)


@every(("peers", "share"), [(1, 1.0), (2, 0.912), (7, 0.912)])
def test_stores_to_several_peers_are_slower_than_to_one(peers, share):
    dst = 1 + np.arange(700) % peers
    src = np.zeros(700, np.int64)
    time = took_us(
        H100,
        8,
        lambda m, start: m.transfers.store(DISPATCH, src, dst, 1 << 17, start[src]),
    )
    one_way = 700 * (1 << 17) * 9 / 8 / (450e3 * 0.9435 * share)
    # The last message enters its target after it has left; with one peer, acknowledgements of
    # nobody else share the way.
    assert time == pytest.approx(one_way, rel=0.01)


def test_scattered_stores_are_slower_still():
    src, dst = np.zeros(70, np.int64), 1 + np.arange(70) % 7

    def took(scattered):
        return took_us(
            H100,
            8,
            lambda m, start: m.transfers.store(
                DISPATCH,
                src,
                dst,
                1 << 20,
                start[src],
                fan_out=m.transfers.fan_out(src, dst, scattered),
            ),
        )

    link = H100.link
    for scattered, efficiency in (
        ("stores", link.scatter_efficiency),
        ("bulk", link.bulk_scatter_efficiency),
    ):
        ratio = float(link.fan_out_efficiency / efficiency)
        assert took(scattered) / took("no") == pytest.approx(ratio, rel=0.02)


def test_copy_engines_do_not_mind_several_peers():
    src = np.zeros(70, np.int64)

    def took(peers):
        dst = 1 + np.arange(70) % peers
        return took_us(
            H100,
            8,
            lambda m, start: m.transfers.store(DISPATCH, src, dst, 1 << 20, start[src], engine="copy_engine"),
        )

    assert took(7) == pytest.approx(took(1), rel=0.001)
