"""Bytes and utilisation of every port between domains, against counts made here."""

from __future__ import annotations

import numpy as np
import pytest

import hwmodel
import replay
from replay.measure.parts import NetworkLoad
from replay.report.text import summary
from tracegen.generate import generate

SIZES = {"ranks": 16, "tokens_per_rank": 3, "layers": 1, "seed": 5}
HIDDEN = 7168  # of deepseek-v3
GROUPS = {"pcie-out", "nic-out", "leaf-up", "leaf-down", "nic-in", "pcie-in"}


@pytest.fixture(scope="module")
def trace():
    return generate("uniform", "deepseek-v3", **SIZES)


def network_of(trace, **overrides: object) -> tuple[replay.Result, NetworkLoad]:
    result = replay.run(
        trace,
        scheme="deepep-ll",
        system="dgx-h100-x2",
        layer=0,
        precision="bf16",
        overrides=overrides,
    )
    network = result.layers[0].measures.network
    assert network is not None
    return result, network


def pairs(trace) -> np.ndarray:
    """(source, destination): (token, expert) pairs, by brute force; 16 experts a rank."""
    found = np.zeros((16, 16), np.int64)
    for token, experts in enumerate(trace.expert_ids[0].tolist()):
        for expert in experts:
            found[token // 3, expert // 16] += 1
    return found


def test_one_domain_has_no_network(trace) -> None:
    one = generate("uniform", "deepseek-v3", **(SIZES | {"ranks": 8}))
    result = replay.run(one, scheme="deepep-ll", system="dgx-h100-x2", layer=0)
    assert result.layers[0].measures.network is None
    assert "Network between" not in summary(result)


def test_bytes_of_every_port_add_up(trace) -> None:
    result, network = network_of(trace)
    rows_of = pairs(trace)
    crosses = np.arange(16)[:, None] // 8 != np.arange(16) // 8
    over_spine = crosses & (np.arange(16)[:, None] % 8 != np.arange(16) % 8)
    assert set(network.ports) == GROUPS
    row = 2 * HIDDEN
    for of, port_sums in (
        ("nic-out", (rows_of * crosses).sum(axis=1)),
        ("pcie-out", (rows_of * crosses).sum(axis=1)),
        ("nic-in", (rows_of * crosses).sum(axis=0)),
        ("pcie-in", (rows_of * crosses).sum(axis=0)),
    ):
        payload = {port.name: port.payload_bytes["dispatch"] for port in network.ports[of]}
        assert payload == {f"{of} {gpu}": row * rows for gpu, rows in enumerate(port_sums.tolist())}
    by_rail = (rows_of * over_spine).reshape(2, 8, 16).sum(axis=(0, 2))
    up = {port.name: port.payload_bytes["dispatch"] for port in network.ports["leaf-up"]}
    assert up == {f"leaf-up {leaf}": row * rows for leaf, rows in enumerate(by_rail.tolist())}
    assert [port.leaf for port in network.ports["nic-out"]] == [gpu % 8 for gpu in range(16)]
    # Rows come back as they went.
    back = {port.name: port.payload_bytes["combine"] for port in network.ports["nic-in"]}
    went = {port.name: port.payload_bytes["dispatch"] for port in network.ports["nic-out"]}
    assert list(back.values()) == list(went.values())
    for rail in network.rails:
        cards = [port for port in network.ports["nic-out"] if port.leaf == rail.leaf]
        assert rail.num_cards == 2
        assert rail.sent_bytes == sum(sum(port.wire_bytes.values()) for port in cards)
    carried = [rail.sent_bytes + rail.received_bytes for rail in network.rails]
    assert network.busiest_rail == int(np.argmax(carried))
    measured = result.layers[0].measures
    assert {port.name for ports in network.ports.values() for port in ports} >= {
        f"leaf-down {leaf}" for leaf in range(8)
    }
    nic = [port.utilisation for port in network.ports["nic-out"]]
    assert measured.utilisation["nic-out"].max == max(nic)


def test_utilisation_is_time_in_service_over_the_layer_s(trace) -> None:
    result, network = network_of(trace, **{"nic.write_ns": 0.0})
    for port in network.ports["nic-out"]:
        busy_us = sum(port.wire_bytes.values()) / 47_500
        share = busy_us / result.layers[0].measures.makespan_us
        assert port.utilisation == pytest.approx(share, rel=1e-3)


def test_a_shared_card_is_one_port(trace) -> None:
    _, usual = network_of(trace)
    _, network = network_of(trace, **{"fabric.slow": ["nic 2 = 0"]})
    went = {port.name: sum(port.wire_bytes.values()) for port in usual.ports["nic-out"]}
    found = {port.name: sum(port.wire_bytes.values()) for port in network.ports["nic-out"]}
    assert "nic-out 2" not in found
    assert found["nic-out 3"] == went["nic-out 2"] + went["nic-out 3"]
    assert len(network.ports["pcie-out"]) == 16
    assert [rail.num_cards for rail in network.rails] == [2, 2, 1, 2, 2, 2, 2, 2]


@pytest.mark.extended
def test_a_table_has_cards_and_the_busiest_rail(trace) -> None:
    compared = replay.compare(trace, ["deepep-ll", "nccl-alltoall"], system="dgx-h100-x2", layer=0, precision="bf16")
    text = summary(compared)
    _, network = network_of(trace)
    line = next(one for one in text.partition("Network between")[2].splitlines() if "deepep-ll" in one)
    rail = network.rails[network.busiest_rail]
    mean = sum(sum(port.wire_bytes.values()) for port in network.ports["nic-out"]) / 16
    assert f"leaf {rail.leaf}" in line
    cells = line.split()
    assert cells[1] == f"{mean / 1e6:.2f}"
    assert cells[cells.index("leaf") + 2] == f"{(rail.sent_bytes + rail.received_bytes) / 1e6:.2f}"


def test_hardware_knows_one_rail_a_card() -> None:
    network = hwmodel.load("dgx-h100-x4").fabric.network
    assert network.num_leaves == 8
    assert [network.leaf(nic) for nic in (0, 7, 8, 31)] == [0, 7, 0, 7]


def test_congestion_of_a_shared_uplink_shows_as_queueing_there(trace) -> None:
    usual, _ = network_of(trace)
    tight, network = network_of(trace, **{"network.oversubscription": 100.0})
    measured = tight.layers[0].measures
    assert measured.busiest_resource.group in ("leaf-up", "leaf-down")
    queueing = [
        part.measures.critical_path.by_resource_us.get("leaf-up", {}).get("queueing", 0.0)
        for part in (*usual.layers, *tight.layers)
    ]
    assert queueing[1] > 0.3 * measured.makespan_us > queueing[0]
    # Two cards' worth of uplinks, a hundredth of it: all that passes one has to.
    most = max(sum(port.wire_bytes.values()) for port in network.ports["leaf-up"])
    assert measured.makespan_us > most / (2 * 47_500 / 100)
    assert tight.totals.makespan_us > 2 * usual.totals.makespan_us


def test_nodes_in_another_order_take_as_long(trace) -> None:
    """All nodes are alike, and all GPUs of one, if their peers move with them."""
    usual, _ = network_of(trace)
    turned = [*range(11, 16), *range(8, 11), *range(3, 8), *range(3)]
    other, network = network_of(trace, **{"fabric.rank_order": turned})
    assert other.totals.makespan_us == usual.totals.makespan_us
    assert len(network.ports["nic-out"]) == 16


def test_ranks_that_take_turns_have_their_neighbours_on_other_nodes(trace) -> None:
    _, network = network_of(trace, **{"fabric.rank_order": "round robin"})
    rows_of, rank = pairs(trace), np.arange(16)
    crosses = rank[:, None] % 2 != rank % 2
    gpu = rank % 2 * 8 + rank // 2
    sent = dict(zip(gpu.tolist(), (rows_of * crosses).sum(axis=1).tolist(), strict=True))
    for port in network.ports["nic-out"]:
        assert port.payload_bytes["dispatch"] == 2 * HIDDEN * sent[int(port.name.split()[1])]
