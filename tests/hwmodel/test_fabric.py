import itertools

import networkx
import numpy as np
import pytest
from loops import every

import hwmodel
from hwmodel import UserError

H100 = hwmodel.load("dgx-h100").fabric
TWO_NODES = hwmodel.load("dgx-h100", {"fabric.num_domains": 2}).fabric


@every(
    ("preset", "links"),
    [("dgx-h100", (5, 4, 4, 5)), ("hgx-h800", (2, 2, 2, 2)), ("gh200-nvl32", (2,) * 9)],
)
def test_planes_of_the_presets(preset, links):
    fabric = hwmodel.load(preset).fabric
    assert all(fabric.links_of(gpu) == links for gpu in range(fabric.num_gpus))
    assert fabric.balanced_planes()
    assert fabric.num_planes == len(fabric.planes) == len(links)


def test_nine_switches_of_64_ports_are_exactly_full():
    graph = hwmodel.load("gh200-nvl32").fabric.graph
    for node, kind in graph.nodes(data="kind"):
        if kind == "switch":
            assert sum(edge["num_links"] for *_, edge in graph.out_edges(node, data=True)) == 64


def test_ports_add_up_to_the_gpu():
    for direction, total in (("uplink", H100.uplink_rate), ("downlink", H100.downlink_rate)):
        ports = [port for port in H100.ports if port.gpu == 3 and port.direction == direction]
        assert sum(port.num_links for port in ports) == 18
        assert sum(port.rate.units_per_second for port in ports) == pytest.approx(total.units_per_second)
    assert H100.uplink_rate.units_per_second == pytest.approx(450e9 * 0.9435)
    assert len(H100.ports) == 8 * 4 * 2


def test_measured_latencies_are_the_sum_of_their_parts():
    # 8 x H100: pointer-chasing load 826 ns; posted store to visibility about 600 ns
    for src, dst in itertools.permutations(range(8), 2):
        assert 2 * H100.path_latency_ps(src, dst) + H100.read_access_ps == 826_000
        assert H100.path_latency_ps(src, dst) + H100.write_visibility_ps == 600_000
        assert H100.path_latency_ps(src, dst) == H100.uplink_latency_ps + H100.downlink_latency_ps
    assert H100.path_latency_ps(2, 2) == 0


def test_round_trip_of_the_paper_is_about_a_microsecond():
    fabric = hwmodel.load("gh200-nvl32").fabric
    assert 2 * fabric.path_latency_ps(0, 31) == 1_000_000


def test_graph_is_the_wiring():
    graph = H100.graph
    assert sorted(graph) == sorted([f"gpu{gpu}" for gpu in range(8)] + [f"domain0/plane{plane}" for plane in range(4)])
    assert graph["gpu7"]["domain0/plane0"]["num_links"] == 5
    assert graph["gpu7"]["domain0/plane0"]["kind"] == "uplink"
    assert graph["domain0/plane1"]["gpu7"]["kind"] == "downlink"
    assert graph["domain0/plane1"]["gpu7"]["num_links"] == 4


@pytest.mark.parametrize("fabric", [H100, TWO_NODES])
def test_routes_are_shortest_paths(fabric):
    graph = fabric.graph
    for src, dst in itertools.product(range(fabric.num_gpus), repeat=2):
        route = list(fabric.route(src, dst))
        assert route in list(networkx.all_shortest_paths(graph, f"gpu{src}", f"gpu{dst}"))
        along = itertools.pairwise(route)
        latencies = [graph.edges[edge].get("latency_ps") for edge in along]
        if None not in latencies:
            assert sum(latencies) == fabric.path_latency_ps(src, dst)


def test_every_plane_is_a_way():
    ways = {H100.route(0, 1, plane)[1] for plane in H100.planes}
    assert ways == {f"domain0/plane{plane}" for plane in range(4)}
    with pytest.raises(UserError, match="no plane 4 between GPUs 0 and 1"):
        H100.route(0, 1, 4)


def test_nodes_are_joined_by_rails():
    assert (TWO_NODES.num_gpus, TWO_NODES.num_domains) == (16, 2)
    assert TWO_NODES.route(1, 9) == ("gpu1", "nic1", "leaf1", "nic9", "gpu9")
    assert TWO_NODES.route(0, 9) == (
        "gpu0",
        "nic0",
        "leaf0",
        "spine",
        "leaf1",
        "nic9",
        "gpu9",
    )
    assert TWO_NODES.route(9, 15, 3) == ("gpu9", "domain1/plane3", "gpu15")
    assert TWO_NODES.path_latency_ps(1, 9) == 8_000_000
    assert TWO_NODES.path_latency_ps(0, 9) == 9_300_000
    assert TWO_NODES.graph["nic1"]["leaf1"]["rate"].units_per_second == pytest.approx(47.5e9)
    assert TWO_NODES.network.nic.duration_ps(47_500) == 1_000_000
    assert not any(node.startswith("nic") for node in H100.graph)


def test_a_part_of_the_second_node():
    fabric = hwmodel.load("dgx-h100", {"fabric.num_domains": 2}, num_gpus=10).fabric
    assert (fabric.num_gpus, fabric.num_domains, fabric.domain(9), fabric.leaf(9)) == (10, 2, 1, 1)
    assert "gpu10" not in fabric.graph


def test_first_gpus_of_a_domain():
    part = hwmodel.load("gh200-nvl32", num_gpus=4)
    assert part.num_gpus == part.fabric.num_gpus == 4
    assert part.fabric.uplink_rate == hwmodel.load("gh200-nvl32").fabric.uplink_rate
    with pytest.raises(UserError, match="no GPU 4; there are 0 to 3"):
        part.fabric.path_latency_ps(0, 4)


def test_a_gpu_wired_otherwise_unbalances_the_planes():
    # Two GPUs of two planes: (3, 1) links against (1, 3). Even spraying over links
    # sends 3/4 of a message over the plane where the target has 1/4 of its links.
    fabric = hwmodel.load("dgx-h100", {"fabric.num_gpus": 2, "fabric.links_per_plane": "[[3, 1], [1, 3]]"}).fabric
    assert not fabric.balanced_planes()
    slowest = max((up / 4) / down for up, down in zip(fabric.links_of(0), fabric.links_of(1), strict=True))
    assert slowest == 3 / 4 > 1 / 4  # three times what the port as a whole would need
    same = {"fabric.num_gpus": 2, "fabric.links_per_plane": "[[3, 1], [3, 1]]"}
    assert hwmodel.load("dgx-h100", same).fabric.balanced_planes()


def test_planes_without_a_link_have_no_port():
    fabric = hwmodel.load("dgx-h100", {"fabric.num_gpus": 2, "fabric.links_per_plane": "[[4, 0], [0, 4]]"}).fabric
    assert len(fabric.ports) == 4
    with pytest.raises(UserError, match="between GPUs 0 and 1; there are \\[\\]"):
        fabric.route(0, 1)


@every(
    ("overrides", "said"),
    [
        ({"fabric.links_per_plane": "[5, 4]", "link.links_per_gpu": 18}, "= 9 links"),
        ({"fabric.links_per_plane": "[[1, 2]]"}, "has 1 rows; fabric.num_gpus says 8"),
        (
            {"fabric.num_gpus": 2, "fabric.links_per_plane": "[[1, 2], [3]]"},
            "must count the same planes",
        ),
    ],
)
def test_wiring_that_does_not_add_up_is_refused(overrides, said):
    with pytest.raises(UserError, match=said):
        hwmodel.load("dgx-h100", overrides)


def test_a_message_holds_what_its_packets_would_while_it_is_stored_and_forwarded():
    """Ports of 1 byte/ps, 150 ns between them."""
    round_numbers = {
        "link.bandwidth_GB_per_s": 125.0,
        "link.efficiency": 1.0,
        "link.links_per_gpu": 8,
        "fabric.links_per_plane": [8],
        "link.propagation_ns": 100.0,
        "switch.traversal_ns": 50.0,
    }
    fabric = hwmodel.load("dgx-h100", round_numbers).fabric
    assert fabric.held_in_switch_bytes(70_000) == 36_207  # 70,000 x 150 / 290, rounded up
    assert fabric.held_in_switch_bytes(16) == 16
    assert fabric.held_in_switch_bytes(np.array([0, 100_000])).tolist() == [0, 42_858]
