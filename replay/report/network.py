"""What network cards and rails carried, as a table of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.tables import mb, row_names, text_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from replay.measure.parts import Network, NetworkPort
    from replay.run.result import Result

NOTES = (
    "out, in: bytes on the wire of dispatch and combine, per network card (NIC); rail: the leaf",
    "switch whose cards carry most, both ways; in use: busy time over the layer's; uplinks: use of",
    "a leaf's ways to the spine, which only messages between rails, or groups of nodes, pass.",
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
    table = text_table(
        f"Network between NVLink domains: MB per card and {unit}, and what is used most",
        ("scheme", "out mean", "max", "in mean", "max", "busiest NIC", "in use", "rail", "MB",
         "in use", "uplinks"),
    )  # fmt: skip
    for name, networks in zip(row_names(results), found, strict=True):
        table.add_row(name, *(_cells(networks, count) if networks else ["-"] * 10))
    return table


def _networks(result: Result) -> list[Network]:
    return [one.network for one in result.measured if one.network is not None]


def _cells(networks: list[Network], count: int) -> list[str]:
    cells = []
    for way in ("nic-out", "nic-in"):
        of_card: dict[str, int] = {}
        for network in networks:
            for card in network.ports[way]:
                of_card[card.name] = of_card.get(card.name, 0) + sum(card.wire_bytes.values())
        carried = [nbytes / count for nbytes in of_card.values()]
        cells += [mb(sum(carried) / len(carried)), mb(max(carried))]
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
        *cells, busiest.name, f"{busiest.utilisation:.1%}", f"leaf {leaf}",
        mb(rails[leaf] / count), f"{in_use:.1%}", f"{max(uplinks):.1%}" if uplinks else "-",
    ]  # fmt: skip


def _all(networks: list[Network], way: str) -> list[NetworkPort]:
    return [port for network in networks for port in network.ports.get(way, [])]
