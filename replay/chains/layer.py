"""One layer by itself, which begins on all ranks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.chains.chain import Built, ChainLink
from replay.chains.replay import Replay
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.measure.result import LayerResult
    from replay.model.machine.host import Launch
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme


def replay_of(
    work: LayerWork,
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> Replay:
    """Give the replay of one layer that begins on all ranks at once."""
    link = ChainLink(lambda: work, is_backward=work.is_backward)
    return Replay([link], system, scheme, launch, lead=lead)


def build_layer(
    work: LayerWork,
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> Built:
    """Let a scheme describe the work of one layer, its kernels launched as `Host` says."""
    return replay_of(work, system, scheme, launch, lead=lead).build().built


def replay_layer(
    work: LayerWork, system: System, scheme: Scheme, launch: Launch | None = None
) -> LayerResult:
    """Replay one layer that begins on all ranks at once, launched as `Host` says."""
    return next(replay_of(work, system, scheme, launch).apart())
