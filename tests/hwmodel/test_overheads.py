import pytest

import hwmodel
from hwmodel import UserError

OVERHEADS = hwmodel.load("dgx-h100").overheads


def test_barrier_of_eight_gpus_takes_a_flag_and_a_little():
    assert OVERHEADS.barrier_ps(8) == 1_300_000


def test_barriers_grow_with_their_members_and_one_waits_for_nobody():
    times = [OVERHEADS.barrier_ps(members) for members in range(10)]
    assert times[:2] == [0, 0]
    assert times == sorted(times)
    assert OVERHEADS.barrier_ps(2) > OVERHEADS.flag_ps  # each signals and polls


def test_a_flag_is_a_store_that_is_seen():
    assert OVERHEADS.flag_ps == 600_000 + OVERHEADS.poll_ps
    # NCCL's LL rings, 512 bytes, 8 x H100: 14 steps of an all-reduce take 7 more than 7.
    assert OVERHEADS.flag_ps / 1e6 == pytest.approx((15.59 - 10.14) / 7, rel=0.05)


def test_overheads_are_ordered_as_measured():
    graph, stream = (OVERHEADS.kernel_gap_ps(mode) for mode in ("graph", "stream"))
    assert OVERHEADS.kernel_gap_ps() == stream
    assert graph < stream < OVERHEADS.launch_ps < OVERHEADS.host_sync_ps
    assert OVERHEADS.poll_pinned_ps < OVERHEADS.host_sync_ps
    with pytest.raises(UserError, match="known: graph, stream"):
        OVERHEADS.kernel_gap_ps("eager")
