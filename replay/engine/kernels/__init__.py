"""Numba kernels of the engine: functions that take one memory each, and what lies in it.

| file | what it holds |
|---|---|
| `memory` | records, vectors and numbers behind one pointer |
| `compiled_memory` | what numba is taught about them |
| `layout` | the records, the memories of a layout and of a run, and what their numbers mean |
| `settings`, `compiling`, `cache`, `private` | how kernels are compiled and kept, and where |
| `surveying`, `packing`, `interning` | from the graph to records before a run, and back after it |
| `channels`, `lanes`, `lookups` | data structures: tasks on their way, queues, tables |
| `events`, `starts`, `loop` | the two phases of an instant, and the loop over them |
| `pausing` | what is left of a run that was paused |
| `edges`, `reading` | sorting edges and rows; the longest chain and who was waited for last |
| `changes`, `sums` | levels over time; bytes and times added up |

The semantics are those of the twin, ``tests/oracle/engine_oracle.py``; each file says which of its
functions it implements. With ``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python.
"""

from replay.engine.kernels.settings import config as config  # before all that imports numba

# isort: split
from replay.engine.kernels.changes import Changes as Changes
from replay.engine.kernels.changes import count_changes as count_changes
from replay.engine.kernels.changes import find_changes as find_changes
from replay.engine.kernels.changes import settle_changes as settle_changes
from replay.engine.kernels.changes import sum_changes as sum_changes
from replay.engine.kernels.compiling import compile_all as compile_all
from replay.engine.kernels.edges import group_rows as group_rows
from replay.engine.kernels.edges import order_tasks as order_tasks
from replay.engine.kernels.edges import sort_edges as sort_edges
from replay.engine.kernels.interning import number_keys as number_keys
from replay.engine.kernels.interning import rehash as rehash
from replay.engine.kernels.loop import run as run
from replay.engine.kernels.packing import pack as pack
from replay.engine.kernels.packing import pack_touches as pack_touches
from replay.engine.kernels.packing import unpack as unpack
from replay.engine.kernels.pausing import Paused as Paused
from replay.engine.kernels.pausing import find_left as find_left
from replay.engine.kernels.reading import Causes as Causes
from replay.engine.kernels.reading import Chain as Chain
from replay.engine.kernels.reading import Draws as Draws
from replay.engine.kernels.reading import Meanwhile as Meanwhile
from replay.engine.kernels.reading import find_draws as find_draws
from replay.engine.kernels.reading import find_services as find_services
from replay.engine.kernels.reading import last_admitted as last_admitted
from replay.engine.kernels.reading import last_met_edges as last_met_edges
from replay.engine.kernels.reading import longest_chain as longest_chain
from replay.engine.kernels.reading import walk_back as walk_back
from replay.engine.kernels.sums import NUM_SUMS as NUM_SUMS
from replay.engine.kernels.sums import Ends as Ends
from replay.engine.kernels.sums import Keyed as Keyed
from replay.engine.kernels.sums import Services as Services
from replay.engine.kernels.sums import Tallied as Tallied
from replay.engine.kernels.sums import find_last_ends as find_last_ends
from replay.engine.kernels.sums import sum_keyed as sum_keyed
from replay.engine.kernels.sums import sum_services as sum_services
from replay.engine.kernels.sums import tally as tally
from replay.engine.kernels.surveying import Surveyed as Surveyed
from replay.engine.kernels.surveying import survey as survey
