"""Bytes over every port, counted the slow way: token by token, message by message, in dicts.

Looks at expert ids, owners and expert ranks only, never at arrays derived from them elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: What a message occupies: (direction, gpu).
Port = tuple[str, int]


@dataclass(frozen=True)
class Routing:
    """Plain lists: ids of each token (-1 for an empty slot), its owner; each expert's rank."""

    ids: Sequence[Sequence[int]]
    owner: Sequence[int]
    expert_rank: Sequence[int]
    num_ranks: int

    def ranks(self, token: int) -> list[int]:
        """Rank of each of the token's experts, one entry per expert."""
        return [self.expert_rank[expert] for expert in self.ids[token] if expert >= 0]

    def remote(self, token: int) -> list[int]:
        """The same without the token's own rank."""
        return [rank for rank in self.ranks(token) if rank != self.owner[token]]


def messages(routing: Routing, traffic: str) -> Iterator[tuple[int, list[int]]]:
    """Rows of the dispatch as (source, ranks that one row reaches)."""
    for token, source in enumerate(routing.owner):
        if traffic in ("pair", "pair-copy"):
            yield from ((source, [rank]) for rank in routing.remote(token))
        elif traffic == "copy":
            yield from ((source, [rank]) for rank in sorted(set(routing.remote(token))))
        elif traffic == "switch":
            if routing.remote(token):
                yield source, sorted(set(routing.remote(token)))
        elif traffic == "ring":
            n = routing.num_ranks
            yield from (((source + hop) % n, [(source + hop + 1) % n]) for hop in range(n - 1))
        elif traffic == "dense":
            if routing.num_ranks > 1:
                yield source, list(range(routing.num_ranks))  # the source's own copy loops back
        elif traffic != "none":
            raise KeyError(traffic)


def messages_back(routing: Routing, traffic: str) -> Iterator[tuple[int, list[int]]]:
    """Rows of the combine as (owner, ranks that answer together)."""
    return messages(routing, "copy" if traffic == "pair-copy" else traffic)


def port_rows(routing: Routing, traffic: str) -> dict[str, Counter[Port]]:
    """Rows over every port by phase, each message counted on its own."""
    dispatch: Counter[Port] = Counter()
    combine: Counter[Port] = Counter()
    for source, ranks in messages(routing, traffic):
        dispatch["uplink", source] += 1
        for rank in ranks:
            dispatch["downlink", rank] += 1
    for owner, ranks in messages_back(routing, traffic):
        combine["downlink", owner] += 1
        for rank in ranks:
            combine["uplink", rank] += 1
    return {"dispatch": dispatch, "combine": combine}


def closed_form_rows(routing: Routing, traffic: str) -> dict[str, Counter[Port]]:
    """The same by the closed forms: sums of e(t), r(t), h(t) up; Ein(g), In(g), all T down.

    Dispatch up and down of every class; the combine exchanges the two, those of its own class.
    """
    apart = {"pair-copy": ("pair", "copy")}
    out, back = apart.get(traffic, (traffic, traffic))
    up, down = _closed_form(routing, out)
    answered, asked = _closed_form(routing, back)
    mirrored = {("downlink", gpu): rows for (_, gpu), rows in answered.items()}
    mirrored |= {("uplink", gpu): rows for (_, gpu), rows in asked.items()}
    return {"dispatch": up + down, "combine": Counter(mirrored)}


def _closed_form(routing: Routing, traffic: str) -> tuple[Counter[Port], Counter[Port]]:
    """Rows of the dispatch up and down."""
    up: Counter[Port] = Counter()
    down: Counter[Port] = Counter()
    tokens = range(len(routing.owner))
    for gpu in range(routing.num_ranks):
        own = [token for token in tokens if routing.owner[token] == gpu]
        foreign = [token for token in tokens if routing.owner[token] != gpu]
        pairs_in = sum(routing.ranks(token).count(gpu) for token in foreign)
        tokens_in = sum(gpu in routing.ranks(token) for token in foreign)
        up["uplink", gpu], down["downlink", gpu] = {
            "none": (0, 0),
            "pair": (sum(len(routing.remote(token)) for token in own), pairs_in),
            "copy": (sum(len(set(routing.remote(token))) for token in own), tokens_in),
            "switch": (sum(bool(routing.remote(token)) for token in own), tokens_in),
            "ring": (
                sum(routing.owner[token] != (gpu + 1) % routing.num_ranks for token in tokens)
                if routing.num_ranks > 1
                else 0,
                len(foreign),
            ),
            "dense": (len(own), len(tokens)) if routing.num_ranks > 1 else (0, 0),
        }[traffic]
    return up, down


def write_packets(nbytes: int, extra_flits: int = 0) -> int:
    """Wire bytes of one row of stores, packet by packet: 128 B of data, flits of 16 B."""
    wire = 0
    while nbytes > 0:
        data = min(nbytes, 128)
        flits, rest = divmod(data, 16)
        wire += 16 * (1 + extra_flits + flits + (2 if rest else 0))  # a partial flit has enables
        nbytes -= data
    return wire


def response_packets(nbytes: int) -> int:
    """Wire bytes of the answer to one row of loads: whole flits, no byte enables."""
    wire = 0
    while nbytes > 0:
        data = min(nbytes, 128)
        wire += 16 * (1 + -(-data // 16))
        nbytes -= data
    return wire
