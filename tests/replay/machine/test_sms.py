"""Who holds how many SMs, what is refused, and that a name is one thing."""

from __future__ import annotations

import pytest
from loops import every
from round_machine import round_machine

from replay.engine import GraphBuilder
from replay.errors import UserError
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine


def make(num_ranks: int = 3) -> Machine:
    return Machine(round_machine(), GraphBuilder(KIND_NAMES), num_ranks)  # of 100 SMs


def said(*, shares: dict[str, int], rest: str = "") -> str:
    with pytest.raises(UserError) as error:
        make().sms.split("scheme 'x'", shares, rest=rest)
    return str(error.value)


def test_shares_beyond_the_gpu_are_refused_by_the_names_of_their_options() -> None:
    assert said(shares={"send_sms": 101}) == ("option send_sms=101 of scheme 'x' takes 101 SMs; the GPU has 100 SMs")
    assert said(shares={"a": 60, "b": 30, "c": 10}, rest="compute") == (
        "options a=60, b=30 and c=10 of scheme 'x' take 100 SMs; the GPU has 100 SMs, and some must compute"
    )


def test_what_is_left_is_what_no_share_has() -> None:
    split = make().sms.split("scheme 'x'", {"a": 60, "b": 39}, rest="compute")
    assert split.left == 1
    assert make().sms.split("scheme 'x'", {"a": 60, "b": 40}).left == 0


def test_held_together_the_sum_counts() -> None:
    sms = make().sms
    kernel = sms.split("scheme 'x'", {})
    kernel.pool("send", 60)
    kernel.channels("receive", 40)
    kernel.channels("more warps of those", 40, on="receive")
    with pytest.raises(UserError, match="'send' and 'receive' and 'third' take 101 SMs"):
        kernel.warp_lanes("third", 1, 8)


def test_one_after_the_other_each_kernel_may_have_all() -> None:
    sms = make().sms
    for name in ("first", "second"):
        sms.pool(name, 100)
    with pytest.raises(UserError, match="'third' takes 101 SMs; the GPU has 100 SMs"):
        sms.pool("third", 101)
    held = [split.held for split in sms.ledger]
    assert held[:2] == [{"first": 100}, {"second": 100}]


def test_the_same_name_and_size_is_the_same_sms_in_every_layer() -> None:
    sms = make().sms
    assert sms.pool("sm", 90) is sms.pool("sm", 90)
    assert not set(sms.pool("sm", 90)) & set(sms.pool("sm", 91))
    assert sms.channels("c", 4).shape == (3, 4)
    assert sms.split("", {}).warp_lanes("w", 4, 5).shape == (3, 4, 5)


@every("second", ["channels", "pool", "warp_lanes", "units"])
def test_a_name_is_one_kind_of_thing(second: str) -> None:
    sms = make().sms
    if second == "channels":
        sms.pool("x", 4)
    else:
        sms.channels("x", 4)
    with pytest.raises(UserError, match=r"'x' is the name of a .* already; a .* needs another one"):
        {
            "channels": lambda: sms.channels("x", 4),
            "pool": lambda: sms.pool("x", 4),
            "warp_lanes": lambda: sms.split("", {}).warp_lanes("x", 4, 2),
            "units": lambda: sms.units("x", 4, "fifo"),
        }[second]()


def test_a_name_has_one_number_of_sms_in_a_kernel() -> None:
    split = make().sms.split("scheme 'x'", {})
    split.pool("z", 60)
    with pytest.raises(UserError, match="'z' has 60 SMs already; 90 need another name"):
        split.pool("z", 90)
