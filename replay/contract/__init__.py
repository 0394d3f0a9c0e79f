"""The contract of schemes: what every scheme's tasks must satisfy, whatever it models.

Nothing here asks a scheme how it works. Bytes, rows and tokens are counted from the routing alone
(`replay.contract.counting`), and who waits for whom is read from the graph
(`replay.contract.reading`). What is demanded stands in `Scheme.build`; each demand is one check of
`replay.contract.checks`.
"""

from __future__ import annotations

from replay.contract.checks import CHECKS
from replay.contract.examine import Finding, examine

__all__ = ["CHECKS", "Finding", "examine"]
