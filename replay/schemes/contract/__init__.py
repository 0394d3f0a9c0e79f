"""The contract of schemes: what every scheme's tasks must satisfy, whatever it models.

Nothing here asks a scheme how it works. Bytes, rows and tokens are counted from the routing alone
(`replay.schemes.contract.byte_counts`), and who waits for whom is read from the graph
(`replay.schemes.contract.graph_facts`). What is demanded stands in `Scheme.build` and in
`TensorScheme.build`; each demand is one check of `replay.schemes.contract.checks` or of
`replay.schemes.contract.tensor_checks`, those of both kinds of `replay.schemes.contract.basics`.
"""

from __future__ import annotations

from replay.schemes.contract.checks import CHECKS
from replay.schemes.contract.examine import Finding, checks_of, examine

__all__ = ["CHECKS", "Finding", "checks_of", "examine"]
