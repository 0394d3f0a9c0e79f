"""One layer by itself, which begins on all ranks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.chains.chain import ChainLink, LayerGraph
from replay.chains.replay import Replay

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.host import Launch
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme


def build_layer(work: LayerWork, system: System, scheme: Scheme, launch: Launch | None = None) -> LayerGraph:
    """Let a scheme describe the work of one layer, its kernels launched as `Host` says."""
    link = ChainLink(lambda: work, is_backward=work.is_backward)
    return Replay([link], system, scheme, launch).build().built
