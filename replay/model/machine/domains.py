"""NVLink domains as schemes ask about them: who shares one, and who is whose peer in another.

A scheme never divides ranks by GPUs itself: which GPU a rank runs on is a setting of the system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmodel.fabric import Fabric
    from replay.model.arrays import Ints
    from replay.model.machine.resources import IntsLike

Found = TypeVar("Found")


class Domains:
    """The NVLink domains that the ranks in use lie in, a node each on most machines.

    Parameters
    ----------
    fabric
        The GPUs and how they are joined.
    num_ranks
        Ranks in use.

    Attributes
    ----------
    gpu
        (rank,): GPU that each rank runs on.
    size
        GPUs of a full domain.
    num
        Domains with at least one rank.
    """

    def __init__(self, fabric: Fabric, num_ranks: int) -> None:
        self.gpu: Ints = np.array(fabric.gpu_of_rank(num_ranks), dtype=np.int64)
        self.size = fabric.gpus_per_domain
        self.num = -(-num_ranks // self.size)
        self._rank_of = np.full(self.num * self.size, -1, np.int64)
        self._rank_of[self.gpu] = np.arange(num_ranks)
        self._found: dict[str, Any] = {}

    def once(self, what: str, find: Callable[[], Found]) -> Found:
        """Compute what follows from the domains when it is first asked for, and remember it."""
        if what not in self._found:
            self._found[what] = find()
        found: Found = self._found[what]
        return found

    def of(self, rank: IntsLike) -> Ints:
        """Domain of ranks, numbered from 0: of any shape."""
        found: Ints = self.gpu[rank] // self.size
        return found

    def local(self, rank: IntsLike) -> Ints:
        """Index of ranks within their domain, which is the rail of their network card."""
        found: Ints = self.gpu[rank] % self.size
        return found

    def peer(self, rank: IntsLike, domain: IntsLike) -> Ints:
        """Rank with the same index in another domain, or in its own one: broadcast.

        Raises
        ------
        ValueError
            If no rank is there, because the last domain is not full; see `even`.
        """
        found: Ints = self._rank_of[np.asarray(domain) * self.size + self.local(rank)]
        if (found < 0).any():
            message = f"{len(self.gpu)} ranks fill no domain of {self.size}: some have no peer"
            raise ValueError(message)
        return found

    def members(self, domain: int) -> Ints:
        """Ranks of a domain, by their index in it."""
        found = self._rank_of[domain * self.size : (domain + 1) * self.size]
        return found[found >= 0]

    @property
    def even(self) -> bool:
        """Tell whether all domains in use are full, or there is only one: everybody has all peers."""
        return self.num == 1 or len(self.gpu) == self.num * self.size

    def crosses(self, src: IntsLike, dst: IntsLike) -> npt.NDArray[np.bool_]:
        """Tell whether messages leave their domain: broadcast."""
        crossing: npt.NDArray[np.bool_] = self.of(src) != self.of(dst)
        return crossing
