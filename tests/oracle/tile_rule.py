"""The twin of `replay.model.compute.tile_order`: which tile an SM takes, one decision at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A tile of one GPU: its GEMM (0 or 1), expert, row tile of that expert, and column."""

    gemm: int
    expert: int
    row: int
    column: int


def key(order: str, tile: Tile, rows_of_expert: dict[int, int]) -> tuple[int, ...]:
    """What decides between ready tiles, smallest first, before the time at which they were ready.

    Parameters
    ----------
    rows_of_expert
        Row tiles of each expert that has any.
    """
    name, _, numbers = order.partition(":")
    if name == "arrival":
        return ()
    if name == "expert":
        return (tile.expert,)
    size, _, lag = numbers.partition("+")
    height = int(size) if name == "unit" else 8
    units = [(expert, first) for expert in sorted(rows_of_expert) for first in range(0, rows_of_expert[expert], height)]
    unit = units.index((tile.expert, tile.row // height * height))
    if name == "unit":
        return (unit + tile.gemm * int(lag or 0), tile.gemm, tile.column)
    wave = sorted(rows_of_expert).index(tile.expert) // int(size)
    return (wave, tile.gemm, unit, tile.column)


def sorted_key(
    order: str, tile: Tile, rows_of_expert: dict[int, int], needs: dict[tuple[int, int], int]
) -> tuple[int, ...]:
    """What decides where rows come from one source after the other.

    Parameters
    ----------
    needs
        The farthest source of the rows of each (expert, row tile), as the place in which it is
        fetched. All of a unit waits for the farthest of any of its row tiles.
    """
    name, _, numbers = order.partition(":")
    height = {"unit": int(numbers.partition("+")[0] or 0), "waves": 8}.get(name, 1)
    first = tile.row // height * height
    last = min(first + height, rows_of_expert[tile.expert])
    stage = max(needs[tile.expert, row] for row in range(first, last))
    return (stage, *key(order, tile, rows_of_expert))


def starts(
    order: str,
    rows_of_expert: dict[int, int],
    columns: tuple[int, int],
    ready: dict[tuple[int, int], int],
    duration: tuple[int, int],
    num_sms: int,
) -> dict[Tile, int]:
    """When each tile starts.

    Parameters
    ----------
    columns, duration
        Column tiles of a row tile in either GEMM, and the time of a tile.
    ready
        When the rows of each (expert, row tile) are there. GEMM-2 of a row tile is ready when all
        its columns of GEMM-1 have ended.
    """
    listed = [
        Tile(gemm, expert, row, column)
        for gemm in (0, 1)
        for expert in sorted(rows_of_expert)
        for row in range(rows_of_expert[expert])
        for column in range(columns[gemm])
    ]
    since = {tile: ready[tile.expert, tile.row] for tile in listed if tile.gemm == 0}
    found: dict[Tile, int] = {}
    running: dict[Tile, int] = {}
    now = 0
    while len(found) < len(listed):
        for tile in [tile for tile, end in running.items() if end <= now]:
            del running[tile]
        for tile in listed:
            if tile.gemm == 1 and tile not in since:
                before = [Tile(0, tile.expert, tile.row, column) for column in range(columns[0])]
                ends = [found[one] + duration[0] for one in before if one in found]
                if len(ends) == len(before) and max(ends) <= now:
                    since[tile] = max(ends)
        waiting = [tile for tile in listed if tile not in found and since.get(tile, now + 1) <= now]
        if waiting and len(running) < num_sms:
            best = min(
                waiting,
                key=lambda tile: (
                    key(order, tile, rows_of_expert),
                    since[tile],
                    listed.index(tile),
                ),
            )
            found[best] = now
            running[best] = now + duration[best.gemm]
            continue
        later = [end for end in running.values() if end > now]
        later += [time for time in ready.values() if time > now]
        now = min(later)
    return found
