"""Handing out the points of a study until each has its outcome, here or elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from dataclasses import dataclass
from itertools import chain

from replay.errors import UserError
from replay.experiments.base.crews.crew import Batch, Crew
from replay.experiments.base.crews.leases import Leases
from replay.experiments.base.crews.store import Failure, PointOutcome, Store, read_point
from replay.experiments.base.crews.worker import Job, ReplayRecord

BATCH_S = 2.0  # a batch lasts about so long: long for a message, short for what a kill loses
MOST_JOBS = 64  # of a batch
MOST_DEATHS = 2  # of a worker that carries out one point alone
POLL_S = 0.5  # between looks at what others do


@dataclass(frozen=True)
class FinishedReplay:
    """A replay with its outcome; `is_found` where it was in the folder or somebody else did it."""

    id: str
    outcome: PointOutcome
    is_found: bool


class ReplayQueue:
    """Replays to be carried out, and those that are being carried out; `num_left` is of both.

    Parameters
    ----------
    jobs
        Replays that are not in the folder, those of one trace together.
    store, leases
        The folder, and who works on what in it.
    crew
        Who carries them out.
    """

    def __init__(self, jobs: Sequence[Job], store: Store, leases: Leases, crew: Crew) -> None:
        self._store, self._leases, self._crew = store, leases, crew
        self.num_left = len(jobs)
        self._left = deque(jobs)
        self._elsewhere: list[Job] = []  # somebody else has them
        self._looked = 0.0
        self._running: dict[Batch, list[Job]] = {}
        self._deaths: Counter[str] = Counter()
        self._alone: set[str] = set()  # a worker died of a batch that had them
        self._seconds: list[float] = []  # of the last batches, per replay

    def outcomes(self) -> Iterator[FinishedReplay]:
        """Give each replay's outcome as it comes."""
        while self._left or self._elsewhere or self._running:
            for finished in chain(self._hand_out(), self._collect()):
                self.num_left -= 1
                yield finished
            self._look_again()

    def _hand_out(self) -> Iterator[FinishedReplay]:
        while self._left and len(self._running) < self._crew.capacity:
            batch, found = self._take()
            if batch:
                self._running[self._crew.submit(batch)] = batch
            yield from found

    def _take(self) -> tuple[list[Job], list[FinishedReplay]]:
        """The next batch, of one trace, and what others had finished before it."""
        batch: list[Job] = []
        found: list[FinishedReplay] = []
        size = self._batch_size()
        while self._left and len(batch) < size:
            job = self._left[0]
            is_alone = job.id in self._alone
            if batch and (is_alone or job.trace != batch[0].trace):
                break
            self._left.popleft()
            is_ours = self._leases.take(job.id)
            there, _ = self._store.read(job.id)  # others may have been here since we looked
            if there is not None:
                found.append(FinishedReplay(job.id, there, is_found=True))
                self._leases.give_back([job.id] if is_ours else [])
            elif is_ours:
                batch.append(job)
            else:
                self._elsewhere.append(job)
            if is_alone:
                break
        return batch, found

    def _batch_size(self) -> int:
        if self._crew.most is not None:
            return self._crew.most
        if not self._seconds:
            return 1
        worth = BATCH_S * len(self._seconds) / max(sum(self._seconds), 1e-6)
        fair = len(self._left) / (2 * max(1, self._crew.size))
        return max(1, int(min(worth, fair, MOST_JOBS)))

    def _collect(self) -> Iterator[FinishedReplay]:
        """Outcomes of what has finished; waits a while if nothing has."""
        if not self._running:
            if self._left or self._elsewhere:
                self._leases.wait([job.id for job in self._elsewhere], POLL_S)
            return
        finished, _ = wait(self._running, POLL_S, FIRST_COMPLETED)
        for one in finished:
            batch = self._running.pop(one)
            try:
                results, seconds = one.result()
            except self._crew.deaths as death:
                yield from self._bury(batch, death)
                continue
            except CancelledError:
                message = "the scheduler is gone; the same command goes on from what is finished"
                raise UserError(message) from None
            self._seconds = [*self._seconds[-15:], seconds / len(batch)]
            for job, done in zip(batch, results, strict=True):
                yield self._keep(job, done)

    def _keep(self, job: Job, done: ReplayRecord) -> FinishedReplay:
        failure = done.failure
        if failure is None:
            outcome, problem = read_point(done.text, job.id, self._store.present)
            if outcome is not None:
                self._store.write(job.id, done.text)
                return FinishedReplay(job.id, outcome, is_found=False)
            failure = Failure(f"what its worker sent {problem}", (), "")
        self._store.write_failure(job.id, failure, job.point.settings)
        return FinishedReplay(job.id, PointOutcome(None, None, failure.message), is_found=False)

    def _bury(self, batch: list[Job], death: BaseException) -> Iterator[FinishedReplay]:
        """Hand out again, each point alone, what a killed worker had; but not for ever."""
        for job in reversed(batch):
            self._deaths[job.id] += len(batch) == 1
            if self._deaths[job.id] >= MOST_DEATHS:
                message = f"its process was killed {MOST_DEATHS} times; too little memory is the usual reason"
                yield self._keep(job, ReplayRecord("", Failure(message, (str(death),), "")))
            else:
                self._alone.add(job.id)
                self._left.appendleft(job)

    def _look_again(self) -> None:
        """See, not too often, whether others have finished, or left, what they had."""
        if self._elsewhere and time.monotonic() - self._looked >= POLL_S:
            self._left.extendleft(reversed(self._elsewhere))
            self._elsewhere.clear()
            self._looked = time.monotonic()
