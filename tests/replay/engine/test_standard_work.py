"""The standard piece of work: six programs, written apart, agree on how long it takes."""

from __future__ import annotations

import layer_workload as workload
import numba
import numpy as np
import pytest

from replay.engine import schedule

#: What the others found, in microseconds with three decimals.
MAKESPAN_US = "6461.235"


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="a million tasks take minutes without the JIT")
@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0",
    reason="the recipe sends rows in the order in which argpartition of numpy 2 leaves them",
)
def test_standard_work_takes_what_others_found() -> None:
    graph = workload.build_layer(workload.make_workload())
    assert (graph.num_tasks, graph.num_edges) == (1_050_750, 1_048_576)
    assert f"{schedule(graph).makespan_ps / 1e6:.3f}" == MAKESPAN_US
