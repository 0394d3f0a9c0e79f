"""The host thread of every GPU: what a kernel costs before it runs, and waits of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.machine.kinds import Kind
from replay.machine.times import Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.machine.kinds import PhaseKinds
    from replay.machine.resources import Ints, Resources
    from replay.machine.tasks import Tasks


class Host:
    """Launches kernels and waits for what GPUs write to its memory."""

    def __init__(self, system: System, resources: Resources, tasks: Tasks) -> None:
        self._overheads = system.overheads
        self._resources = resources
        self._tasks = tasks

    def work(self, kind: Kind, time: Time, after: Ints) -> Ints:
        """Occupy the thread: (rank,) tasks."""
        resources = self._resources
        return self._tasks.serve(resources.host, time, kind=kind, rank=resources.ranks, after=after)

    def launch(self, after: Ints) -> Ints:
        """Begin a kernel that the host could not launch ahead: (rank,) tasks."""
        return self.work(Kind.LAUNCH, Time(self._overheads.launch_ps), after)

    def wait(self, kinds: PhaseKinds, after: Ints) -> Ints:
        """Copy a few bytes from the GPU and synchronise the stream: (rank,) tasks."""
        return self.work(kinds.sync, Time(self._overheads.host_sync_ps), after)

    def poll(self, kinds: PhaseKinds, after: Ints) -> Ints:
        """Poll pinned memory until the GPU has stored to it: (rank,) tasks."""
        return self.work(kinds.sync, Time(self._overheads.poll_pinned_ps), after)
