"""Ways inside a domain: full meshes, groups of GPUs."""

import itertools

import networkx
import pytest

import hwmodel
from hwmodel import UserError

MESH, TIERS, PCIE = (hwmodel.load(name) for name in ("atlas-800t-a2", "cloudmatrix384", "pcie-l20"))


def test_every_pair_of_a_mesh_has_a_link_of_its_own():
    fabric = MESH.fabric
    assert networkx.is_isomorphic(fabric.graph, networkx.complete_graph(8).to_directed())
    for src, dst in itertools.permutations(range(8), 2):
        assert fabric.route(src, dst) == (f"gpu{src}", f"gpu{dst}")
        up, link, down = fabric.hops(src, dst)
        assert [(hop.port, hop.index) for hop in (up, link, down)] == [
            ("uplink", src),
            ("link", src),
            ("downlink", dst),
        ]
        assert up.rate == down.rate == link.rate.times(7)
        assert link.rate.units_per_second == pytest.approx(28e9 * 0.749)


def test_two_nodes_of_a_mesh_are_joined_by_cards():
    two = hwmodel.load("atlas-800t-a2-x2").fabric
    assert two.route(0, 8)[:2] == ("gpu0", "nic0") and two.route(0, 8)[-2:] == ("nic8", "gpu8")
    assert two.route(8, 9) == ("gpu8", "gpu9")


def test_a_mesh_has_as_many_links_as_pairs():
    said = r"mesh.links_per_pair: 2 to each of 7 other GPUs are 14 links; link.links_per_gpu says 7"
    with pytest.raises(UserError, match=said):
        hwmodel.load("atlas-800t-a2", {"mesh.links_per_pair": 2})
    assert hwmodel.load("atlas-800t-a2", {"mesh.links_per_pair": 2, "link.links_per_gpu": 14})


def test_the_second_tier_takes_longer_and_shares_nothing():
    fabric = TIERS.fabric
    assert 2 * fabric.path_latency_ps(0, 15) + fabric.read_access_ps == 929_000  # one switch, arXiv 2607.06202
    assert fabric.path_latency_ps(0, 16) == fabric.path_latency_ps(16, 0) == fabric.path_latency_ps(0, 15) + 485_000
    assert [hop.port for hop in fabric.hops(0, 16)] == ["uplink", "downlink"]
    assert fabric.hops(0, 16)[0].latency_ps - fabric.hops(0, 15)[0].latency_ps == 485_000
    # Groups are counted within a domain: two racks of 768 have no group in common.
    assert [fabric.group(gpu) for gpu in (0, 15, 16, 767)] == [0, 0, 1, 47]
    assert hwmodel.load("cloudmatrix384-x2").fabric.group(768) == 0


def test_processors_share_what_lies_between_them():
    fabric = PCIE.fabric
    assert [hop.port for hop in fabric.hops(0, 3)] == ["uplink", "downlink"]
    up, link, down = fabric.hops(3, 4)
    assert (up.port, link.port, down.port) == ("uplink", "link", "downlink")
    assert link.rate.units_per_second == 47e9 and link.latency_ps == 300_000


def test_other_machines_have_neither():
    fabric = hwmodel.load("dgx-h100").fabric
    assert fabric.pair_rate is None and fabric.groups is None
    assert fabric.between(0, 7) == (None, 0) and fabric.group(7) == 0
