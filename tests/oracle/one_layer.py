"""The replay of one layer by itself."""

from __future__ import annotations

from hwmodel import System
from replay.chains.chain import ChainLink
from replay.chains.replay import Replay
from replay.measure.result import LayerResult
from replay.model.machine.host import Launch
from replay.model.work.layer import LayerWork
from replay.schemes import Scheme


def replay_layer(work: LayerWork, system: System, scheme: Scheme, launch: Launch | None = None) -> LayerResult:
    """Replay one layer that begins on all ranks at once, launched as `Host` says."""
    link = ChainLink(lambda: work, is_backward=work.is_backward)
    return next(Replay([link], system, scheme, launch).apart())
