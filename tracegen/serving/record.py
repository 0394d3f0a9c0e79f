"""Rows of one worker process on their way to files, in the importer's format ``arrays``."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.managed import ManagedFolder
from tracegen.trace.arrays import Array

ROWS_A_FILE = 16_384
"""Rows after which a file is written."""
SECONDS_A_FILE = 2.0
"""Time after which a file is written however few rows there are. Engines kill their workers when
they end: what they lose is what came in this time."""


class Recorder:
    """Collects passes and writes them as ``rank{r}-{n}.npz``, each file under its name when whole.

    Parameters
    ----------
    folder
        Where the files go; made if it is not there.
    rank
        Number of this process among all that record.

    Raises
    ------
    UserError
        If the folder holds files of this rank already: two recordings would be mixed.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if next(folder.glob(f"rank{rank}-*.npz"), None) is not None:
            msg = f"{folder} holds a recording of rank {rank} already; give an empty folder"
            raise UserError(msg)
        self.folder, self.rank = folder, rank
        self._files = ManagedFolder(folder)
        self.passes = self.files = self._rows = 0
        self._requests: dict[str, int] = {}
        self._parts: dict[str, list[Array]] = defaultdict(list)
        self._layers: tuple[int, ...] = ()
        self._lock = threading.RLock()
        # A process that is forked from this one inherits the rows, and must not write them.
        self._process = os.getpid()
        atexit.register(self.flush)
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
        """Write what is there to the next file."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._rows:
                return
            arrays: dict[str, Any] = {
                name: np.concatenate(parts) for name, parts in self._parts.items()
            }
            arrays |= {"layers": np.array(self._layers), "rank": np.array(self.rank)}
            with self._files.opened(f"rank{self.rank}-{self.files:05}.npz") as file:
                np.savez(file, **arrays)
            self.files += 1
            self._rows = 0
            self._parts.clear()

    def _flush_now_and_then(self) -> None:
        """Write what a quiet engine has left."""
        while True:
            time.sleep(SECONDS_A_FILE)
            self.flush()
