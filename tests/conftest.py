"""Settings for every test: speed is never asserted, a failure repeats itself, one core each."""

from __future__ import annotations

import functools
import gc
import os

# Before numpy is imported: test processes are the parallelism. Threads of BLAS that wait for one
# another spin, which took `trace stats` 20 s of CPU instead of 6 on two busy cores.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

# What is printed is as wide as for a user's pipe, whatever the width of the terminal of the tests,
# which xdist hands on to its processes.
os.environ.pop("COLUMNS", None)

import typer  # noqa: E402
import typer.testing  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

settings.register_profile("moereplay", deadline=None, derandomize=True)
settings.load_profile("moereplay")

# To make the parser of all commands takes longer than most commands; `main` makes it once, too.
typer.testing._get_command = functools.cache(typer.main.get_command)

# Thousands of tests are alive at once: to look for cycles among them again and again took a sixth
# of all time. Now it happens more rarely, and not in what the collection of tests has made.
gc.set_threshold(50_000, 20, 50)


@given(st.none())
def _once(_: None) -> None:
    """Let hypothesis begin: it asks once who refers to its random numbers."""


def pytest_collection_finish() -> None:
    _once()  # who is frozen does not count
    gc.collect()
    gc.freeze()
