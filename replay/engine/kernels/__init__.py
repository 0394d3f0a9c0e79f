"""Numba kernels of the engine: functions that take one memory each, and what lies in it.

| file | what it holds |
|---|---|
| `memory` | records, vectors and numbers behind one pointer |
| `compiled_memory` | what numba is taught about them |
| `layout` | the records, the memories of a layout and of a run, and what their numbers mean |
| `settings`, `compiling` | how kernels are compiled |
| `cache`, `sources`, `private` | how they are kept, under which name, and where |
| `packing`, `interning` | from the graph to records before a run, and back after it |
| `channels`, `lanes`, `lookups` | data structures: tasks on their way, queues, tables |
| `events`, `starts`, `loop` | the two phases of an instant, and the loop over them |
| `edges`, `reading` | sorting edges and rows; what is read off graphs and runs |
| `changes`, `sums` | levels over time; bytes and times added up |

The semantics are those of the twin, ``tests/oracle/engine_oracle.py``; each file says which of its
functions it implements. With ``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python.
"""

from replay.engine.kernels import sources as sources  # before all that kernels are made of
from replay.engine.kernels.settings import config as config  # before all that imports numba
