"""Settings for every test: speed is never asserted, a failure repeats itself, one core each."""

from __future__ import annotations

import os

# Before numpy is imported: test processes are the parallelism. Threads of BLAS that wait for one
# another spin, which took `trace stats` 20 s of CPU instead of 6 on two busy cores.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

from hypothesis import settings  # noqa: E402

settings.register_profile("moereplay", deadline=None, derandomize=True)
settings.load_profile("moereplay")
