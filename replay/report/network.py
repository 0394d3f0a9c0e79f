"""What network cards and rails carried, as a table of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.tables import MB
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.parts import Network, NetworkPort
    from tracegen.shared.display.content import Cell

COLUMNS = (
    Column("scheme"),
    Column("out mean", "MB", ",.2f", says=says("out mean")),
    Column("out max", "MB", ",.2f", rank=1),
    Column("in mean", "MB", ",.2f"),
    Column("in max", "MB", ",.2f", rank=1),
    Column("busiest NIC"),
    Column("in use", "", ".1%"),
    Column("rail", rank=2, says=says("rail")),
    Column("rail carries", "MB", ",.2f", rank=2),
    Column("rail in use", "", ".1%", rank=2),
    Column("uplinks", "", ".1%", rank=1, says=says("uplinks")),
)


def network_table(results: Sequence[Result], count: int, unit: str) -> Table | None:
    """Bytes of network cards, of the busiest rail, and of uplinks; None where none has a message.

    Parameters
    ----------
    count
        Layers or steps that sums are divided by.
    unit
        What that is.
    """
    found = [_networks(result) for result in results]
    if not any(found):
        return None
    return Table(
        "network",
        f"Network between NVLink domains: a card's bytes per {unit}, and what is used most",
        COLUMNS,
        [
            (name, *(_cells(networks, count) if networks else [None] * (len(COLUMNS) - 1)))
            for name, networks in zip(row_names(results), found, strict=True)
        ],
    )


def _networks(result: Result) -> list[Network]:
    return [one.network for one in result.measured if one.network is not None]


def _cells(networks: list[Network], count: int) -> list[Cell]:
    cells: list[Cell] = []
    for way in ("nic-out", "nic-in"):
        of_card: dict[str, int] = {}
        for network in networks:
            for card in network.ports[way]:
                of_card[card.name] = of_card.get(card.name, 0) + sum(card.wire_bytes.values())
        carried = [nbytes / count / MB for nbytes in of_card.values()]
        cells += [sum(carried) / len(carried), max(carried)]
    nics = [card for way in ("nic-out", "nic-in") for card in _all(networks, way)]
    uplinks = [port.utilisation for way in ("leaf-up", "leaf-down") for port in _all(networks, way)]
    busiest = max(nics, key=lambda card: card.utilisation)
    rails: dict[int, int] = {}
    for network in networks:
        for rail in network.rails:
            carried_by_rail = rail.sent_bytes + rail.received_bytes
            rails[rail.leaf] = rails.get(rail.leaf, 0) + carried_by_rail
    leaf = max(rails, key=lambda one: rails[one])
    in_use = max(
        rail.utilisation for network in networks for rail in network.rails if rail.leaf == leaf
    )
    return [
        *cells, busiest.name, busiest.utilisation, f"leaf {leaf}", rails[leaf] / count / MB,
        in_use, max(uplinks, default=None),
    ]  # fmt: skip


def _all(networks: list[Network], way: str) -> list[NetworkPort]:
    return [port for network in networks for port in network.ports.get(way, [])]
