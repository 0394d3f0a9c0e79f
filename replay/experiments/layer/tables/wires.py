"""Tables of traffic: rows of tokens, bytes by purpose, network cards and rails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.times import count, per, unit_of
from replay.report.tables import MB, table, word_column
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.parts import NetworkLoad, NetworkPort
    from replay.measure.result import Measures
    from tracegen.shared.display.content import Cell

OVERHEADS = ("headers", "requests", "acks", "signals", "evictions", "weights")
WAYS = {"up": "uplink", "down": "downlink"}
"""Directions, and where their bytes are."""

NETWORK_COLUMNS = (
    Column("scheme"),
    word_column("out mean", "MB", ",.2f"),
    Column("out max", "MB", ",.2f", rank=1),
    Column("in mean", "MB", ",.2f"),
    Column("in max", "MB", ",.2f", rank=1),
    Column("busiest NIC"),
    Column("in use", "", ".1%"),
    word_column("rail", rank=2),
    Column("rail carries", "MB", ",.2f", rank=2),
    Column("rail in use", "", ".1%", rank=2),
    word_column("uplinks", "", ".1%", 1),
)


def wire_tables(results: Sequence[Result]) -> list[Table]:
    """Payload of ports, bytes by purpose, and what network cards carried where there are any."""
    network = network_table(results)
    return [*payload_tables(results), overhead_table(results), *([network] if network else [])]


def payload_tables(results: Sequence[Result]) -> list[Table]:
    """Payload over the ports of a GPU, and over the busiest port with the time it takes there."""

    def bytes_of(way: str, of: Callable[[list[float]], float]) -> Callable[[Result], float]:
        return lambda one: of([value / count(one) / MB for value in getattr(one.totals, f"{way}_payload_bytes")])

    def most(*phases: str) -> Callable[[Result], float]:
        return lambda one: per(one, lambda each: _most(each, phases)) / MB

    unit, names = unit_of(results[0]), row_names(results)
    ports = [
        (Column(f"{way} {what}", "MB", ",.2f"), bytes_of(where, of))
        for way, where in WAYS.items()
        for what, of in (("mean", _mean), ("max", max))
    ]
    return [
        table("payload", f"Payload over the ports of a GPU per {unit}", results, *ports, labels=names),
        table(
            "busiest-port",
            f"Most payload on a port per {unit}",
            results,
            (word_column("dispatch", "MB", ",.2f"), most("dispatch")),
            (word_column("combine", "MB", ",.2f"), most("combine")),
            (word_column("both", "MB", ",.2f", 1), most("dispatch", "combine")),
            (
                word_column("wire bound", "us", ",.1f"),
                lambda one: per(one, _ports_us),
            ),
            (
                Column("phases", rank=2),
                lambda one: "shared" if one.schedules[0].bounds_us.phases_us is None else "apart",
            ),
            labels=names,
        ),
    ]


def _ports_us(one: Measures) -> float:
    return one.bounds_us.phases_us or one.bounds_us.port_us


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _most(measures: Measures, phases: Sequence[str]) -> float:
    """Payload of the port that carries most in some phases together."""
    carried = [measures.payload_bytes[phase] for phase in phases]
    up = map(sum, zip(*(ports.uplink for ports in carried), strict=True))
    down = map(sum, zip(*(ports.downlink for ports in carried), strict=True))
    return max((*up, *down))


def overhead_table(results: Sequence[Result]) -> Table:
    """Bytes on the wire by purpose, a row for each direction, mean over the GPUs."""
    found: list[tuple[str, str, dict[str, float]]] = []
    for name, result in zip(row_names(results), results, strict=True):
        for way, where in WAYS.items():
            sizes = {role: wire_bytes(result, role, where) for role in ("payload", *OVERHEADS)}
            found.append((name, way, sizes))
    # What no scheme of these puts on the wire needs no column.
    used = [role for role in OVERHEADS if any(sizes[role] for _, _, sizes in found)]
    columns = [
        Column("scheme"),
        Column("direction"),
        word_column("payload", "MB", ",.2f"),
        *(word_column(role, "MB", ",.2f", 2) for role in used),
        Column("payload/all", "", ".1%", rank=1),
    ]
    rows = [
        (
            name,
            way,
            *(sizes[role] / MB or None for role in ("payload", *used)),
            sizes["payload"] / sum(sizes.values()) if sum(sizes.values()) else None,
        )
        for name, way, sizes in found
    ]
    title = f"Bytes on the wire of a GPU per {unit_of(results[0])}, by purpose"
    return Table("wire", title, columns, rows)


def wire_bytes(result: Result, role: str, *ways: str) -> float:
    """Bytes of a purpose over a GPU's port in these directions, per layer or step; mean over replayed GPUs."""
    carried = [one.mechanisms.wire_bytes[role] for one in result.schedules if role in one.mechanisms.wire_bytes]
    total = sum(sum(getattr(ports, way)) for ports in carried for way in ways)
    return total / (count(result) * len(carried[0].uplink)) if total else 0.0


def network_table(results: Sequence[Result]) -> Table | None:
    """Bytes of network cards, of the busiest rail, and of uplinks; None without a message."""
    found = [[one.network for one in result.schedules if one.network] for result in results]
    if not any(found):
        return None
    nothing = [None] * (len(NETWORK_COLUMNS) - 1)
    rows = [
        (name, *(_network_cells(networks, count(results[0])) if networks else nothing))
        for name, networks in zip(row_names(results), found, strict=True)
    ]
    title = f"Network between NVLink domains: a card's bytes per {unit_of(results[0])}, and what is used most"
    return Table("network", title, NETWORK_COLUMNS, rows)


def _network_cells(networks: list[NetworkLoad], number: int) -> list[Cell]:
    cells: list[Cell] = []
    for way in ("nic-out", "nic-in"):
        of_card: dict[str, int] = {}
        for card in _all(networks, way):
            of_card[card.name] = of_card.get(card.name, 0) + sum(card.wire_bytes.values())
        carried = [nbytes / number / MB for nbytes in of_card.values()]
        cells += [_mean(carried), max(carried)]
    nics = [card for way in ("nic-out", "nic-in") for card in _all(networks, way)]
    uplinks = [port.utilisation for way in ("leaf-up", "leaf-down") for port in _all(networks, way)]
    busiest = max(nics, key=lambda card: card.utilisation)
    rails: dict[int, int] = {}
    for network in networks:
        for rail in network.rails:
            carried_by_rail = rail.sent_bytes + rail.received_bytes
            rails[rail.leaf] = rails.get(rail.leaf, 0) + carried_by_rail
    leaf = max(rails, key=lambda one: rails[one])
    in_use = max(rail.utilisation for network in networks for rail in network.rails if rail.leaf == leaf)
    return [
        *cells,
        busiest.name,
        busiest.utilisation,
        f"leaf {leaf}",
        rails[leaf] / number / MB,
        in_use,
        max(uplinks, default=None),
    ]


def _all(networks: list[NetworkLoad], way: str) -> list[NetworkPort]:
    return [port for network in networks for port in network.ports.get(way, [])]
