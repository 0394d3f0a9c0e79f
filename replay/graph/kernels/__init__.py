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

from replay.graph.kernels.settings import config as config  # before all that imports numba

# isort: split
from replay.graph.kernels.changes import Changes as Changes
from replay.graph.kernels.changes import count_changes as count_changes
from replay.graph.kernels.changes import find_changes as find_changes
from replay.graph.kernels.changes import settle_changes as settle_changes
from replay.graph.kernels.changes import sum_changes as sum_changes
from replay.graph.kernels.compiling import compile_all as compile_all
from replay.graph.kernels.edges import group_rows as group_rows
from replay.graph.kernels.edges import order_tasks as order_tasks
from replay.graph.kernels.edges import sort_edges as sort_edges
from replay.graph.kernels.interning import number_keys as number_keys
from replay.graph.kernels.interning import rehash as rehash
from replay.graph.kernels.loop import run as run
from replay.graph.kernels.packing import pack as pack
from replay.graph.kernels.packing import pack_touches as pack_touches
from replay.graph.kernels.packing import unpack as unpack
from replay.graph.kernels.pausing import Paused as Paused
from replay.graph.kernels.pausing import find_left as find_left
from replay.graph.kernels.reading import Causes as Causes
from replay.graph.kernels.reading import Draws as Draws
from replay.graph.kernels.reading import Meanwhile as Meanwhile
from replay.graph.kernels.reading import find_draws as find_draws
from replay.graph.kernels.reading import find_services as find_services
from replay.graph.kernels.reading import last_admitted as last_admitted
from replay.graph.kernels.reading import last_met_edges as last_met_edges
from replay.graph.kernels.reading import longest_chain as longest_chain
from replay.graph.kernels.reading import walk_back as walk_back
from replay.graph.kernels.sums import NUM_SUMS as NUM_SUMS
from replay.graph.kernels.sums import Ends as Ends
from replay.graph.kernels.sums import Keyed as Keyed
from replay.graph.kernels.sums import Services as Services
from replay.graph.kernels.sums import Tallied as Tallied
from replay.graph.kernels.sums import find_last_ends as find_last_ends
from replay.graph.kernels.sums import sum_keyed as sum_keyed
from replay.graph.kernels.sums import sum_services as sum_services
from replay.graph.kernels.sums import tally as tally
from replay.graph.kernels.surveying import Surveyed as Surveyed
from replay.graph.kernels.surveying import survey as survey
