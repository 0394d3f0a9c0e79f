"""Rows over every port by the closed forms that `replay.schemes.ep.traffic` states."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from replay.schemes.contract.byte_counts import Port, RoutingLists, Rows


def nic_rows(
    routing: RoutingLists, traffic: str, network: str
) -> dict[str, Counter[Port]] | dict[str, dict[Port, Rows]]:
    """Rows over the NICs by the closed forms of `replay.schemes.ep.traffic.NETWORK`."""
    if network == "rings":
        return _nic_rows_around(routing)
    if network in ("direct", "rail"):
        back = "copy" if traffic == "pair-copy" else traffic
        out, reverse = (_nic_rows_sent(routing, each, network) for each in (traffic, back))
        if network == "rail":  # rows back are relayed where they come from
            reverse = _nic_rows_sent(routing, back, network, is_back=True)
            return {"dispatch": out, "combine": reverse}
    else:
        out = reverse = _nic_rows_forwarded(routing, network)
    mirrored = {"nic-out": "nic-in", "nic-in": "nic-out"}
    return {
        "dispatch": out,
        "combine": Counter({(mirrored[way], gpu): rows for (way, gpu), rows in reverse.items()}),
    }


def _nic_rows_sent(routing: RoutingLists, traffic: str, network: str, *, is_back: bool = False) -> Counter[Port]:
    between: Counter[tuple[int, int]] = Counter()  # rows from a GPU to one of another domain
    for token, owner in enumerate(routing.owner):
        for rank in set(routing.ranks(token)) if traffic == "copy" else routing.ranks(token):
            if routing.domain(rank) != routing.domain(owner):
                between[(rank, owner) if is_back else (owner, rank)] += 1
    found: Counter[Port] = Counter()
    for (source, target), rows in between.items():
        relay = routing.peer(target, routing.domain(source))
        found["nic-out", relay if network == "rail" else source] += rows
        found["nic-in", target] += rows
    return found


def _nic_rows_forwarded(routing: RoutingLists, network: str) -> Counter[Port]:
    tokens = Counter(routing.owner)
    num = len(routing.domains)
    found: Counter[Port] = Counter()
    for gpu in range(routing.num_ranks):
        home = routing.domain(gpu)
        others = [routing.peer(gpu, domain) for domain in range(num) if domain != home]
        if network == "node":
            for token, owner in enumerate(routing.owner):
                domains = {routing.domain(rank) for rank in routing.ranks(token)}
                found["nic-out", gpu] += (owner == gpu) * len(domains - {home})
                found["nic-in", gpu] += (owner in others) * (home in domains)
        elif network in ("gather", "ring"):
            rows = sum(tokens[other] for other in others)
            following = routing.peer(gpu, (home + 1) % num)
            passed = rows + tokens[gpu] - tokens[following] if num > 1 else 0
            found["nic-out", gpu] = passed if network == "ring" else tokens[gpu] * (num - 1)
            found["nic-in", gpu] = rows
    return found


def _nic_rows_around(routing: RoutingLists) -> dict[str, dict[Port, Rows]]:
    tokens, size = Counter(routing.owner), len(routing.domains[0])
    out: dict[Port, Rows] = {}
    back: dict[Port, Rows] = {}
    for gpu in range(routing.num_ranks):
        following = routing.peer(gpu, (routing.domain(gpu) + 1) % len(routing.domains))
        sent, got = (Fraction(tokens.total() - tokens[one], size) for one in (following, gpu))
        out |= {port: rows for port, rows in ((("nic-out", gpu), sent), (("nic-in", gpu), got)) if rows}
        back |= {port: rows for port, rows in ((("nic-in", gpu), sent), (("nic-out", gpu), got)) if rows}
    return {"dispatch": out, "combine": back}


def closed_form_rows(routing: RoutingLists, traffic: str) -> dict[str, Counter[Port]]:
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


def _closed_form(routing: RoutingLists, traffic: str) -> tuple[Counter[Port], Counter[Port]]:
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
