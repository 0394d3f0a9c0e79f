"""Arrays by what they hold, with the axes that each docstring names."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
"""Whole numbers of any other kind: indices, keys, places."""

Reals = npt.NDArray[np.float64]
"""Real numbers: errors, slopes, values of draws."""

Int32s = npt.NDArray[np.int32]
"""Whole numbers in 32 bits, where a schedule has one for each task."""

Tasks = npt.NDArray[np.int64]
"""Tasks of a graph, by their numbers."""

Ranks = npt.NDArray[np.int64]
"""Ranks, which are GPUs."""

Pools = npt.NDArray[np.int64]
"""Pools of servers, such as the SMs that a kernel has on each GPU."""

Counts = npt.NDArray[np.int64]
"""Numbers of rows, tokens or the like."""

Bytes = npt.NDArray[np.int64]
"""Numbers of bytes."""

Picoseconds = npt.NDArray[np.int64]
"""Times and spans."""
