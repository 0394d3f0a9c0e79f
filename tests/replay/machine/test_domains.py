"""Who shares an NVLink domain, and who is whose peer, counted rank by rank."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every

import hwmodel
from replay.model.machine.domains import Domains

FOUR_NODES = hwmodel.load("dgx-h100-x4").fabric


@every(("num_ranks", "num"), [(1, 1), (8, 1), (9, 2), (16, 2), (32, 4)])
def test_ranks_lie_in_domains_in_turn(num_ranks: int, num: int) -> None:
    domains = Domains(FOUR_NODES, num_ranks)
    assert (domains.num, domains.size) == (num, 8)
    ranks = np.arange(num_ranks)
    assert domains.of(ranks).tolist() == [rank // 8 for rank in range(num_ranks)]
    assert domains.local(ranks).tolist() == [rank % 8 for rank in range(num_ranks)]
    assert [rank for d in range(num) for rank in domains.members(d)] == ranks.tolist()
    assert domains.even == (num_ranks <= 8 or num_ranks % 8 == 0)


def test_peers_have_one_index() -> None:
    domains = Domains(FOUR_NODES, 32)
    ranks = np.arange(32)
    for domain in range(4):
        peers = domains.peer(ranks, domain)
        assert (domains.of(peers) == domain).all()
        assert (domains.local(peers) == domains.local(ranks)).all()
    assert domains.peer(ranks, domains.of(ranks)).tolist() == ranks.tolist()


def test_a_domain_that_is_not_full_has_no_peer_for_all() -> None:
    domains = Domains(FOUR_NODES, 12)
    assert domains.peer(3, 1) == 11
    with pytest.raises(ValueError, match="12 ranks fill no domain of 8: some have no peer"):
        domains.peer(np.arange(8), 1)


def test_messages_cross_where_the_domains_differ() -> None:
    ranks = np.arange(16)
    crossing = Domains(FOUR_NODES, 16).crosses(ranks[:, None], ranks)
    assert crossing[:8, :8].sum() == crossing[8:, 8:].sum() == 0
    assert crossing[:8, 8:].all() and crossing[8:, :8].all()
