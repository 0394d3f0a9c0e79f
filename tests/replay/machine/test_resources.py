"""Resources of a machine: what they are for, and that each is made once."""

from __future__ import annotations

import numpy as np
import pytest
from round_machine import round_machine

from replay.engine import GraphBuilder
from replay.errors import UserError
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass


def make(num_ranks: int = 3) -> Machine:
    return Machine(round_machine(), GraphBuilder(KIND_NAMES), num_ranks)


def test_a_thing_is_made_once_for_each_key() -> None:
    resources, made = make().resources, []

    def one_more() -> np.ndarray:
        made.append(len(made))
        return np.array([len(made)], np.int64)

    first = resources.once("thing", ("x", 1), one_more)
    assert resources.once("thing", ("x", 1), one_more) is first
    assert resources.once("thing", ("x", 2), one_more) is not first
    assert len(made) == 2


def test_ports_belong_to_their_rank() -> None:
    machine = make(4)
    owner = machine.graph.build().resources.owner
    for port in ("uplink", "downlink", "hbm", "host"):
        assert owner[getattr(machine.resources, port)].tolist() == [0, 1, 2, 3]


def test_a_name_that_is_a_port_is_no_other_thing() -> None:
    machine = make()
    with pytest.raises(UserError, match="uplink"):
        machine.sms.pool("uplink", 2)


def test_every_resource_has_its_class() -> None:
    machine = make(2)
    machine.sms.pool("anything", 3)
    machine.sms.units("decides", 1, "fifo")
    machine.sms.channels("hbm-like name", 2)
    _ = machine.resources.hub
    own = machine.graph.resource("by hand", "by hand")
    graph = machine.graph.build()
    classes = machine.resources.classes(graph)
    counted = {ResourceClass(of): int((classes == of).sum()) for of in np.unique(classes)}
    assert counted == {
        ResourceClass.UPLINK: 2,
        ResourceClass.DOWNLINK: 2,
        ResourceClass.HBM: 2,
        ResourceClass.HOST: 2,
        ResourceClass.HUB: 2,
        ResourceClass.SM: 2 + 4,
        ResourceClass.ARBITER: 2,
        ResourceClass.OTHER: 1,
    }
    assert classes[own] == ResourceClass.OTHER
