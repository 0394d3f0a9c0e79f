"""Predictions of whole tables, made once for all tests, in whichever process."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from replay.studies.validate.bench import Bench
from replay.studies.validate.catalog import TABLES
from replay.studies.validate.table import Outcome, predict


@pytest.fixture(scope="session")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Predict all rows of a table by its name; they take two minutes, and several tests ask."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all processes of the tests

    @cache
    def outcome(name: str) -> Outcome:
        kept = folder / f"predicted-{name}.npz"
        if not kept.exists():
            made = predict(TABLES[name], Bench())
            draft = Path(f"{kept}-{os.getpid()}.npz")
            np.savez(draft, predicted=made.predicted, left_out=made.left_out, kernels=made.kernels)
            draft.replace(kept)
        with np.load(kept) as found:
            return Outcome(
                TABLES[name],
                TABLES[name].rows(),
                found["predicted"],
                found["left_out"],
                tuple(found["kernels"].tolist()),
            )

    return outcome
