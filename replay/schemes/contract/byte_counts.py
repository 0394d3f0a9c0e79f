"""Bytes over every port, counted the slow way: token by token, message by message, in dicts.

Looks at expert ids, owners and expert ranks only, never at arrays derived from them elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

#: What a message occupies: (direction, gpu).
Port = tuple[str, int]

#: Rows, of which some may be in several parts.
Rows = int | Fraction


@dataclass(frozen=True)
class RoutingLists:
    """Plain lists: ids of each token (-1 for an empty slot), its owner; each expert's rank.

    Attributes
    ----------
    domain_size
        Ranks of an NVLink domain; None for all of them.
    """

    ids: Sequence[Sequence[int]]
    owner: Sequence[int]
    expert_rank: Sequence[int]
    num_ranks: int
    domain_size: int | None = None

    def ranks(self, token: int) -> list[int]:
        """Rank of each of the token's experts, one entry per expert."""
        return [self.expert_rank[expert] for expert in self.ids[token] if expert >= 0]

    def remote(self, token: int) -> list[int]:
        """The same without the token's own rank."""
        return [rank for rank in self.ranks(token) if rank != self.owner[token]]

    @property
    def domains(self) -> list[list[int]]:
        """Ranks of each NVLink domain."""
        size = self.domain_size or self.num_ranks
        return [[*range(first, min(first + size, self.num_ranks))] for first in range(0, self.num_ranks, size)]

    def domain(self, rank: int) -> int:
        """Domain of a rank."""
        return rank // (self.domain_size or self.num_ranks)

    def peer(self, rank: int, domain: int) -> int:
        """The rank of a domain with the same index in it."""
        size = self.domain_size or self.num_ranks
        return domain * size + rank % size


class Leg(NamedTuple):
    """A row on its way from one GPU to others.

    Attributes
    ----------
    by
        "nvlink", inside a domain, or "nic", to another one.
    source, ranks
        Where it leaves, and the ranks that it reaches.
    share
        How much of the row.
    """

    by: str
    source: int
    ranks: list[int]
    share: Rows = 1


PORTS_OF = {"nvlink": ("uplink", "downlink"), "nic": ("nic-out", "nic-in")}


def messages(
    traffic: str, source: int, experts: Sequence[int], members: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """Rows of a token inside one domain, as (source, ranks that one row reaches).

    Parameters
    ----------
    source
        The rank where the token is.
    experts
        Rank of each of its experts in the domain.
    members
        Ranks of the domain.
    """
    remote = [rank for rank in experts if rank != source]
    if traffic in ("pair", "pair-copy"):
        yield from ((source, [rank]) for rank in remote)
    elif traffic == "copy":
        yield from ((source, [rank]) for rank in sorted(set(remote)))
    elif traffic == "switch":
        if remote:
            yield source, sorted(set(remote))
    elif traffic == "ring":
        n, first = len(members), members.index(source)
        around = [members[(first + hop) % n] for hop in range(n)]
        yield from ((one, [other]) for one, other in pairwise(around))
    elif traffic == "dense":
        if len(members) > 1:
            yield source, [*members]  # the source's own copy loops back
    elif traffic != "none":
        raise KeyError(traffic)


def legs(routing: RoutingLists, traffic: str, network: str = "") -> Iterator[Leg]:
    """Rows of the dispatch."""
    for token, source in enumerate(routing.owner):
        if network in ("node", "gather", "ring"):
            yield from _forward_legs(routing, traffic, network, token, source)
            continue
        if network == "rings" and len(routing.domains) > 1:
            yield from _around(routing, source)
            continue
        everyone = [*range(routing.num_ranks)]
        for one, ranks in messages(traffic, source, routing.ranks(token), everyone):
            yield from _send_legs(routing, network, one, ranks)


def legs_back(routing: RoutingLists, traffic: str, network: str = "") -> Iterator[tuple[bool, Leg]]:
    """Rows of the combine: (True, a leg as it goes), or (False, one whose row goes back).

    On the way back of a leg, the ranks that it reached answer together.
    """
    back = "copy" if traffic == "pair-copy" else traffic
    if network not in ("direct", "rail") or len(routing.domains) == 1:
        yield from ((False, leg) for leg in legs(routing, back, network))
        return
    for token, owner in enumerate(routing.owner):
        everyone = [*range(routing.num_ranks)]
        for one, ranks in messages(back, owner, routing.ranks(token), everyone):
            for rank in ranks:
                yield from ((True, leg) for leg in _send_legs(routing, network, rank, [one]))


def _send_legs(routing: RoutingLists, network: str, source: int, ranks: list[int]) -> Iterator[Leg]:
    """A row from its GPU to others, straight or by way of a GPU of its own domain."""
    home = routing.domain(source)
    if all(routing.domain(rank) == home for rank in ranks):
        yield Leg("nvlink", source, ranks)
        return
    if network not in ("direct", "rail"):
        raise KeyError(network)
    (rank,) = ranks
    relay = routing.peer(rank, home) if network == "rail" else source
    if relay != source:
        yield Leg("nvlink", source, [relay])
    yield Leg("nic", relay, [rank])


def _forward_legs(routing: RoutingLists, traffic: str, network: str, token: int, source: int) -> Iterator[Leg]:
    """A row once to each domain that gets it, and from where it came in to the others there."""
    home, num = routing.domain(source), len(routing.domains)
    around = [(home + hop) % num for hop in range(num)]
    wanted = {routing.domain(rank) for rank in routing.ranks(token)}
    if network == "node":
        around = [home, *(domain for domain in around[1:] if domain in wanted)]
    places = [routing.peer(source, domain) for domain in around]
    for hop, place in enumerate(places[1:]):
        yield Leg("nic", places[hop] if network == "ring" else source, [place])
    for domain, place in zip(around, places, strict=True):
        there = [rank for rank in routing.ranks(token) if routing.domain(rank) == domain]
        for one, ranks in messages(traffic, place, there, routing.domains[domain]):
            yield Leg("nvlink", one, ranks)


def _around(routing: RoutingLists, source: int) -> Iterator[Leg]:
    """A row round all ranks, a part of it for the network card of each GPU of a domain.

    The ring of card c goes down from GPU c through a domain, and from the last GPU back to GPU c,
    whose card sends to GPU c of the next domain.
    """
    size = len(routing.domains[0])
    for card in range(size):
        rings = [[*reversed(one[: card + 1]), *reversed(one[card + 1 :])] for one in routing.domains]
        ring = [rank for one in rings for rank in one]
        first = ring.index(source)
        around = ring[first:] + ring[:first]
        for one, other in pairwise(around):
            home = routing.domain(one)
            if routing.domain(other) == home:
                yield Leg("nvlink", one, [other], Fraction(1, size))
                continue
            relay = routing.domains[home][card]
            if relay != one:
                yield Leg("nvlink", one, [relay], Fraction(1, size))
            yield Leg("nic", relay, [other], Fraction(1, size))


def port_rows(routing: RoutingLists, traffic: str, network: str = "") -> dict[str, defaultdict[Port, Rows]]:
    """Rows over every port by phase, each message counted on its own."""
    dispatch: defaultdict[Port, Rows] = defaultdict(int)
    combine: defaultdict[Port, Rows] = defaultdict(int)
    for leg in legs(routing, traffic, network):
        out, into = PORTS_OF[leg.by]
        dispatch[out, leg.source] += leg.share
        for rank in leg.ranks:
            dispatch[into, rank] += leg.share
    for goes, leg in legs_back(routing, traffic, network):
        out, into = PORTS_OF[leg.by] if goes else PORTS_OF[leg.by][::-1]
        combine[out, leg.source] += leg.share
        for rank in leg.ranks:
            combine[into, rank] += leg.share
    return {"dispatch": dispatch, "combine": combine}
