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

from typing import TYPE_CHECKING

from hwmodel.errors import UserError
from tracegen.shared.lazy import loader

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

# Loaded on first use: a command's --help should not wait for what it does not need.
_HOMES = {
    "Capability": "hwmodel.system",
    "Compute": "hwmodel.compute",
    "Fabric": "hwmodel.fabric",
    "Link": "hwmodel.link",
    "Nccl": "hwmodel.nccl",
    "Overheads": "hwmodel.overheads",
    "Switch": "hwmodel.switch",
    "System": "hwmodel.system",
    "TileGrid": "hwmodel.tiles",
    "Warps": "hwmodel.warps",
    "load": "hwmodel.catalog",
    "names": "hwmodel.catalog",
}

__getattr__ = loader(__name__, _HOMES)
