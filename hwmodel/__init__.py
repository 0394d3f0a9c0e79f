"""Models of machines: their resources, the wiring between them, and the times of work.

>>> import hwmodel
>>> system = hwmodel.load("dgx-h100")
>>> system.num_gpus, system.link.links_per_gpu
(8, 18)

Knows GPUs, SMs, links, switches, NICs, bytes and operations; nothing of tokens or
experts. Sizes are whole bytes and times whole picoseconds, of an idle machine:
waiting is the business of whoever schedules the work.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hwmodel.errors import UserError

if TYPE_CHECKING:
    from hwmodel.catalog import load, names
    from hwmodel.compute import Compute
    from hwmodel.fabric import Fabric
    from hwmodel.link import Link
    from hwmodel.nccl import Nccl
    from hwmodel.overheads import Overheads
    from hwmodel.switch import Switch
    from hwmodel.system import Capability, System
    from hwmodel.tiles import TileGrid
    from hwmodel.warps import Warps

__all__ = [
    "Capability",
    "Compute",
    "Fabric",
    "Link",
    "Nccl",
    "Overheads",
    "Switch",
    "System",
    "TileGrid",
    "UserError",
    "Warps",
    "load",
    "names",
]

# Loaded on first use: a command's --help should not wait for pydantic and numpy.
_HOMES = {
    "Capability": "system",
    "Compute": "compute",
    "Fabric": "fabric",
    "Link": "link",
    "Nccl": "nccl",
    "Overheads": "overheads",
    "Switch": "switch",
    "System": "system",
    "TileGrid": "tiles",
    "Warps": "warps",
    "load": "catalog",
    "names": "catalog",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"hwmodel.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
