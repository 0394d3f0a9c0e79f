"""Rows of one worker process on their way to files, in the importer's format ``arrays``.

A recording never hurts the engine: what cannot be written waits, up to a bound, until it can be,
and what does not fit is counted and said.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.shared import output
from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder
from tracegen.trace.arrays import Array

ROWS_A_FILE = 16_384
"""Rows after which a file is written."""
SECONDS_A_FILE = 2.0
"""Time after which a file is written however few rows there are. Engines kill their workers when
they end: what they lose is what came in this time."""
HELD_BYTES = 2**26
"""Rows that wait while nothing can be written; what comes on top is lost."""
log = logging.getLogger("vllm.moereplay")


class PassRecorder:
    """Recorder of passes into files ``rank{r}-{n}.npz``, each named so only when whole.

    While a file cannot be written (a full disk, a folder that is gone or read-only), rows wait in
    memory, and writing is tried again every :data:`SECONDS_A_FILE`.

    Parameters
    ----------
    folder
        Where the files go; made if it is not there.
    rank
        Number of this process among all that record.
    num_ranks
        How many they are, so that one without a token keeps its place.

    Raises
    ------
    UserError
        If the folder cannot be made, or holds files of this rank already: two recordings would be
        mixed.
    """

    def __init__(self, folder: Path, rank: int, num_ranks: int) -> None:
        with output.failures(folder):  # refused now rather than with the first rows
            folder.mkdir(parents=True, exist_ok=True)
        if next(folder.glob(f"rank{rank}-*.npz"), None) is not None:
            msg = f"{folder} holds a recording of rank {rank} already; give an empty folder"
            raise UserError(msg)
        self.folder, self.rank, self.num_ranks = folder, rank, num_ranks
        self._files = ManagedFolder(folder)
        self.passes = self.files = self._rows = 0
        self.lost = 0
        """Rows that nothing could be written of."""
        self._requests: dict[str, int] = {}
        self._parts: dict[str, list[Array]] = defaultdict(list)
        self._layers: tuple[int, ...] = ()
        self._waiting: deque[dict[str, Any]] = deque()
        self._trouble = ""
        self._lock = threading.RLock()
        # A process that is forked from this one inherits the rows, and must not write them.
        self._process = os.getpid()
        atexit.register(self.close)
        threading.Thread(target=self._flush_now_and_then, daemon=True).start()

    def add(
        self,
        layers: tuple[int, ...],
        ids: Array,
        requests: list[str],
        lengths: Array,
        columns: dict[str, Array],
    ) -> None:
        """Keep the rows of one forward pass.

        Parameters
        ----------
        layers
            Decoder layer numbers.
        ids
            Expert ids, integer (token, layer, k); -1 where a layer did not route.
        requests
            The engine's name of each request of the pass.
        lengths
            Tokens of each request, integer (request,).
        columns
            ``position``, ``phase`` and ``draft`` of each token, integer (token,).
        """
        with self._lock:
            if layers != self._layers:
                self.flush()
                self._layers = layers
            numbers = [self._requests.setdefault(name, len(self._requests)) for name in requests]
            self._parts["expert_ids"].append(ids)
            self._parts["request"].append(np.repeat(numbers, lengths))
            self._parts["step"].append(np.full(len(ids), self.passes))
            for name, column in columns.items():
                self._parts[name].append(column)
            self.passes += 1
            self._rows += len(ids)
            if self._rows >= ROWS_A_FILE:
                self.flush()

    def flush(self) -> None:
        """Write what is there to the next files, as far as that is possible."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._write_waiting()  # makes room for what has come since
            if self._rows:
                arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in self._parts.items()}
                arrays |= {"layers": np.array(self._layers), "rank": np.array(self.rank)}
                arrays["num_ranks"] = np.array(self.num_ranks)
                self._rows = 0
                self._parts.clear()
                self._wait(arrays)
                if not self._trouble:
                    self._write_waiting()

    def close(self) -> None:
        """Write the rest, and say what was lost."""
        self.flush()
        if os.getpid() != self._process:
            return
        waiting = sum(len(arrays["step"]) for arrays in self._waiting)
        if self.lost or waiting:
            log.error("rank %d: %d rows were not recorded", self.rank, self.lost + waiting)

    def _wait(self, arrays: dict[str, Any]) -> None:
        """Put rows behind those that are to be written, if there is room for them."""
        held = sum(array.nbytes for one in self._waiting for array in one.values())
        if held + sum(array.nbytes for array in arrays.values()) > HELD_BYTES and held:
            self.lost += len(arrays["step"])
        else:
            self._waiting.append(arrays)

    def _write_waiting(self) -> None:
        """Write what waits, in order, until a file cannot be written."""
        while self._waiting and self._written(self._waiting[0]):
            self._waiting.popleft()

    def _written(self, arrays: dict[str, Any]) -> bool:
        """Write a file; whether that was possible is said when it changes."""
        try:
            name = f"rank{self.rank}-{self.files:05}.npz"
            with self._files.present(), self._files.writer(name) as file:
                np.savez(file, **arrays)
        except Exception as error:  # whatever a disk does: the engine goes on
            if not self._trouble:
                log.error("the recording waits: %s", error)
            self._trouble = str(error)
            return False
        self.files += 1
        if self._trouble:
            log.warning("the recording goes on; %d rows were lost", self.lost)
            self._trouble = ""
        return True

    def _flush_now_and_then(self) -> None:
        """Write what a quiet engine has left."""
        while True:
            time.sleep(SECONDS_A_FILE)
            self.flush()
