"""Compiled kernels of the engine: functions that take one memory each, and what lies in it.

| file | what it holds |
|---|---|
| `layout` | the records, the memories of a layout and of a run, and what their numbers mean |
| `packing`, `interning` | from the graph to records before a run, and back after it |
| `channels`, `lanes`, `lookups` | data structures: tasks on their way, queues, tables |
| `events`, `starts`, `loop` | the two phases of an instant, and the loop over them |
| `edges`, `reading` | sorting edges and rows; what is read off graphs and runs |
| `checks` | a look at all takes and touches of a graph before it runs |
| `changes`, `coverage`, `sums` | levels over time; what intervals cover; bytes and times added up |
| `ahead` | compilation of all of them before they are needed |

What compiles them is in ``replay/engine/backend``. The semantics are those of the twin,
``tests/oracle/engine_oracle.py``; each file says which of its functions it implements. With
``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python.
"""

from replay.engine import backend as backend  # takes the digest of these files before any is read
