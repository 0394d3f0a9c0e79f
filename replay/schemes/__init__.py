"""All schemes: one file or folder each, one dict of all.

Where to look:

- What a scheme is, and what its tasks must satisfy: `replay.schemes.ep.base`.
- How to add one: ``ADDING.md`` beside this file, which walks through `replay.schemes.ep.plain`.
- Bytes on every port, such as DeepEP's: `replay.schemes.ep.traffic` for the closed forms of all
  classes, `replay.schemes.ep.deepep.normal` for DeepEP.
- Each model and its source: the heads of `ideal`, `nccl_alltoall`, `deepep.normal`, `nvls`,
  `comet.scheme`, `comet.flux`, `flashdmoe.scheme`, `dysharp.scheme`, `moe_hub.scheme`.
- Schemes by name, from a file or from a plug-in: `replay.schemes.registry.find`.
"""

from __future__ import annotations

from replay.schemes.ep.base import Scheme
from replay.schemes.registry import SCHEMES, find, supporting_schemes

__all__ = ["SCHEMES", "Scheme", "find", "supporting_schemes"]
