"""Schedules that several tests of exports read; a folder for tests that act as several users."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.engine import GraphBuilder, Timeline, schedule


@pytest.fixture
def crossing() -> Timeline:
    """Two rows from GPU 0 to GPU 1, a tile on each, and back; a mark that belongs to nobody."""
    builder = GraphBuilder(["row", "tile", "mark"])
    up = [builder.resource(f"uplink {g}", group="uplink", owner=g) for g in range(2)]
    down = [builder.resource(f"downlink {g}", group="downlink", owner=g) for g in range(2)]
    pool = builder.resource("sm 1", group="sm", servers=2, owner=1)
    row = {"duration_ps": 31_858, "latency_ps": 250_000, "payload_bytes": 14_336}
    sent = builder.add(2, resource=up[0], **row, wire_bytes=16_384)
    received = builder.add(2, resource=down[1], **row, wire_bytes=16_384, after=sent)
    tile = builder.add(2, resource=pool, duration_ps=[900_000, 800_000], kind=1, after=received)
    returned = builder.add(2, resource=up[1], **row, after=tile)
    home = builder.add(2, resource=down[0], **row, after=returned)
    builder.join(home, kind=2)
    return schedule(builder.build())


@pytest.fixture
def ground() -> Iterator[Path]:
    """A folder in which other users may look; pytest closes its own to them whenever one starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
